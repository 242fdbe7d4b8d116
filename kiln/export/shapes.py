"""What arguments are, said in other ways: sizes that vary by the tensors that have them, or by examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kiln import _core
from kiln.tracing.capture import parameter_names, specs_for
from kiln.tracing.captured import Captured, flat
from kiln.tracing.dims import Dim, hinted, open_dim
from kiln.tracing.recorder import SizeSaid, TracingError
from kiln.tracing.scripts import captured_twice
from kiln.tracing.trees import alike, constants, flatten


class ShapesCollection:
    """Which sizes of which arguments vary, by the tensors themselves: for arguments in deep containers.

    `shapes[x] = (Dim("batch"), None)` or `shapes[x][0] = Dim("batch")`, then
    `export(model, args, dynamic_shapes=shapes)`. AssertionError for two different shapes of one tensor.

    >>> import kiln
    >>> x = kiln.ones(4, 3)
    >>> shapes = kiln.export.ShapesCollection()
    >>> shapes[x][0] = kiln.export.Dim("batch")
    >>> kiln.export.export(lambda d: d["x"] * 2, ({"x": x},), dynamic_shapes=shapes).range_constraints
    {'batch': (0, None)}
    """

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[Any, Any]] = {}  # with the tensor, whose id is the key

    def __setitem__(self, t: Any, shape: Any) -> None:
        if not isinstance(t, _core.Tensor):
            raise AssertionError(f"Cannot assign shape to non-tensor type {type(t)}")
        _, known = self._shapes.setdefault(id(t), (t, shape))
        if known != shape:
            raise AssertionError(f"Shapes assigned to input do not match: expected {known}, got {shape}")

    def __getitem__(self, t: Any) -> Any:
        return self._shapes.setdefault(id(t), (t, {}))[1]

    def __len__(self) -> int:
        return len(self._shapes)

    def dynamic_shapes(
        self, m: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What `dynamic_shapes` of `export` takes. ValueError for a tensor that is not among the arguments.

        The sizes of other arguments do not vary.
        """
        met: set[int] = set()

        def of(x: Any) -> Any:
            met.add(id(x))
            return self._shapes[id(x)][1] if id(x) in self._shapes else None

        found = {name: _specs(x, of) for name, x in _named(m, args, kwargs).items()}
        if missing := [f"{list(x.shape)}" for k, (x, _) in self._shapes.items() if k not in met]:
            raise ValueError(
                "Some tensors that were assigned shapes were not found in args: tensors of shapes "
                f"{', '.join(missing)}. Pass the tensors themselves, not copies."
            )
        return found


class AdditionalInputs:
    """Further arguments that a program must take: the sizes in which they differ from the example vary. Those
    that are equal to each other in all of them are so in every call.

    `more.add(args, kwargs)`, then `export(model, args, dynamic_shapes=more)`, which also runs the program on
    each of them.

    >>> import kiln
    >>> more = kiln.export.AdditionalInputs()
    >>> more.add((kiln.ones(7, 3),))
    >>> program = kiln.export.export(lambda x: x * 2, (kiln.ones(4, 3),), dynamic_shapes=more)
    >>> program(kiln.ones(5, 3)).shape
    kiln.Size([5, 3])
    """

    def __init__(self) -> None:
        self._examples: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        """Adds arguments. AssertionError for what is no tuple, or no dict."""
        if not isinstance(args, tuple):
            raise AssertionError(f"Representative args {args} must be a tuple")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise AssertionError(f"Representative kwargs {kwargs} must be None or a dict")
        self._examples.append((args, dict(kwargs or {})))

    def dynamic_shapes(
        self, m: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What `dynamic_shapes` of `export` takes. ValueError for arguments that differ otherwise too."""
        first = _named(m, args, kwargs)
        leaves: list[Any] = []
        names: list[str] = []
        tree = flatten(first, leaves, names)
        others: list[list[Any]] = []
        for more in self._examples:
            found: list[Any] = []
            came = flatten(_named(m, *more), found)
            looks = [(x.dtype, x.ndim) for x in leaves], [(x.dtype, x.ndim) for x in found]
            if not alike(constants(tree, type), constants(came, type)) or looks[0] != looks[1]:
                raise ValueError(
                    "AdditionalInputs: expected arguments like those of the example but for sizes, got "
                    f"{more[0]}, {more[1]}"
                )
            others.append(found)
        dims: dict[tuple[int, ...], Dim] = {}  # by what it is in the example and in each of the others

        def size(k: int, d: int) -> Dim | None:
            sizes = tuple([int(found[k].shape[d]) for found in (leaves, *others)])
            if len(set(sizes)) == 1:
                return None
            return dims.setdefault(sizes, Dim("_".join(re.findall(r"\w+", f"{names[k]} {d}"))))

        shapes = {id(x): tuple([size(k, d) for d in range(x.ndim)]) for k, x in enumerate(leaves)}
        return {name: _specs(x, lambda t: shapes[id(t)]) for name, x in first.items()}

    def verify(self, ep: Any) -> None:
        """Runs the program on each of them, which raises where it does not take them."""
        for args, kwargs in self._examples:
            ep(*args, **kwargs)


def settled(
    m: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: Any,
    on_data: str,
    preserved: Sequence[str] = (),
) -> Captured:
    """A model as a graph. Each `Dim.AUTO` and `Dim.DYNAMIC` is a size of its own until the model says more of
    it: what it needs equal is one size, and an AUTO that it needs to be a number is one. Where sizes cannot
    vary for another reason, those are as in the example without which the others can.
    """
    leaves: list[Any] = []
    names: list[str] = []
    parameters = parameter_names(m, len(args))
    specs = specs_for(flat(args, kwargs, leaves, names, parameters), parameters, given) if given else []
    own: dict[int, dict[int, Any]] = {}  # by id: of each dim what is said of it
    places: dict[str, tuple[int, int, Any]] = {}  # of open sizes: the tensor's id, which dim, the hint
    for x, name, spec in zip(leaves, names, specs):
        said = own.setdefault(id(x), {})
        for d, n in spec.items():
            is_open = isinstance(d, int) and -x.ndim <= d < x.ndim and hinted(n, int(x.shape[d]))
            said[d] = dim = open_dim(name, d % x.ndim) if is_open else n
            if is_open:
                places[dim.__name__] = id(x), d, n

    if not places:
        return captured_twice(m, args, kwargs, given, on_data, True, None, preserved)
    dims = {n.__name__: n for said in own.values() for n in said.values() if isinstance(n, Dim)}
    reasons: dict[str, str] = {}

    def attempt(fixed: set[str]) -> Captured:
        known: dict[str, Any] = dict.fromkeys(fixed)  # what open sizes are: None, or (name, times, plus)

        def size_of(name: str) -> Any:
            if name not in known:
                return dims[name]
            if known[name] is None:
                return None
            base, times, plus = known[name]
            found = size_of(base)
            return None if found is None else found * times + plus

        while True:
            shapes = {k: dict(said) for k, said in own.items()}
            for name, (k, d, _) in places.items():
                shapes[k][d] = size_of(name)
            told = {n: _specs(x, partial(_by_id, shapes)) for n, x in _named(m, args, kwargs).items()}
            try:
                found = captured_twice(m, args, kwargs, told, on_data, True, None, preserved)
            except SizeSaid as said:
                if said.size is None and places[said.name][2] is Dim.DYNAMIC:
                    raise
                known[said.name] = said.size
                reasons[said.name] = said.reason
                continue
            found.reasons = {name: told for name, told in reasons.items() if name in known}
            return found

    try:
        return attempt(set())
    except TracingError as error:
        refusal = error
    found: Captured | None = None
    fixed = {name for name, (*_, hint) in places.items() if hint is Dim.AUTO}
    try:
        found = attempt(fixed)
    except TracingError:
        raise refusal from None  # (what no hint can mend)

    def let_vary(names: list[str]) -> None:
        """As many of these as can."""
        nonlocal found
        try:
            found = attempt(fixed - set(names))
        except TracingError as error:
            for part in (names[: len(names) // 2], names[len(names) // 2 :]) if len(names) > 1 else ():
                let_vary(part)
            if len(names) == 1:
                reasons[names[0]] = str(error)
        else:
            fixed.difference_update(names)

    names = sorted(fixed)
    let_vary(names[: len(names) // 2])
    let_vary(names[len(names) // 2 :])
    found.reasons = {**found.reasons, **{name: reasons[name] for name in fixed}}
    return found


@_core.Function
def register_dataclass(cls: type, *, serialized_type_name: str | None = None) -> None:
    """Checks that objects of a class can be arguments and results of a program: every dataclass can, without
    being registered. A program that was loaded, where the class may not be, gives dicts. ValueError for what
    is no dataclass.
    """
    if not isinstance(cls, type) or not hasattr(cls, "__dataclass_fields__"):
        raise ValueError(f"register_dataclass: expected a dataclass, got {cls!r}")


def _named(m: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments by the names that `dynamic_shapes` knows them by."""
    return {**dict(zip(parameter_names(m, len(args)), args)), **(kwargs or {})}


def _by_id(shapes: dict[int, Any], x: Any) -> Any:
    return shapes[id(x)]


def _specs(value: Any, of: Callable[[Any], Any]) -> Any:
    """A value's containers, with what is said of each tensor in its place."""
    if isinstance(value, _core.Tensor):
        return of(value)
    if isinstance(value, Mapping):
        return {k: _specs(v, of) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_specs(v, of) for v in value]
    if (fields := getattr(type(value), "__dataclass_fields__", None)) is not None:
        return {k: _specs(getattr(value, k), of) for k in fields}
    return None
