"""What arguments are, said in other ways: sizes that vary by the tensors that have them, or by examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln import _core
from kiln.tracing.capture import parameter_names, specs_for
from kiln.tracing.captured import Captured, flat
from kiln.tracing.dims import Dim, Hint, hinted
from kiln.tracing.recorder import TracingError
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
    """A model as a graph. Where it does not do for each `Dim.AUTO` and `Dim.DYNAMIC` a size of its own, those
    of one size in the example are one size; where that does not do either, AUTO is as in the example.
    """
    try:
        return captured_twice(m, args, kwargs, given, on_data, True, None, preserved)
    except TracingError as error:
        refusal = error
    leaves: list[Any] = []
    tree = flat(args, kwargs, leaves, None, parameter_names(m, len(args)))
    specs = specs_for(tree, parameter_names(m, len(args)), given) if given else []
    hints = {
        (int(x.shape[d]), n is Dim.AUTO)
        for x, s in zip(leaves, specs)
        for d, n in s.items()
        if hinted(n, int(x.shape[d]))
    }
    if not hints:
        raise refusal

    def attempt(varying: set[int]) -> Captured | TracingError:
        spec_of: dict[int, dict[int, Any]] = {}
        for x, spec in zip(leaves, specs):
            own = spec_of.setdefault(id(x), {})
            for d, n in spec.items():
                size = int(x.shape[d])
                varies = hinted(n, size) and size in varying
                own[d] = Dim(f"size_{size}") if varies else None if isinstance(n, Hint) else n
        shapes = {name: _specs(x, lambda t: spec_of[id(t)]) for name, x in _named(m, args, kwargs).items()}
        try:
            return captured_twice(m, args, kwargs, shapes, on_data, True, None, preserved)
        except TracingError as error:
            return error

    found = attempt({size for size, _ in hints})
    if isinstance(found, Captured):
        return found
    varying = {size for size, is_auto in hints if not is_auto}
    found = attempt(varying)
    if isinstance(found, TracingError):
        raise refusal if varying else found  # (what no hint can mend)
    for size in sorted({size for size, _ in hints} - varying):
        more = attempt({*varying, size})
        if isinstance(more, Captured):
            found = more
            varying.add(size)
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
