"""Sizes that are left to a function (`Dim.AUTO`, `Dim.DYNAMIC`): followed until all is known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kiln import _core
from kiln.tracing.captured import Captured, flat
from kiln.tracing.dims import Dim, hinted, open_dim
from kiln.tracing.parameters import by_input, parameter_names, specs_for
from kiln.tracing.recorder import SizeSaid, TracingError
from kiln.tracing.twice import captured_twice


def settled(
    m: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: Any,
    on_data: str,
    check: bool = True,
    preserved: Sequence[str] | None = None,
) -> Captured:
    """A model as a graph. Each `Dim.AUTO` and `Dim.DYNAMIC` is a size of its own until the model says more of
    it: what it needs equal is one size, and an AUTO that it needs to be a number is one. Where sizes cannot
    vary for another reason, those are as in the example without which the others can.
    """
    leaves: list[Any] = []
    names: list[str] = []
    parameters = parameter_names(m, len(args))
    given = by_input(m, args, len(kwargs), given) if given else None
    specs = specs_for(flat(args, kwargs, leaves, names, parameters), parameters, given) if given else []
    own: dict[int, dict[int, Any]] = {}  # by id: of each dim what is said of it
    places: dict[str, tuple[int, int, Any]] = {}  # of open sizes: the tensor's id, which dim, the hint
    for x, name, spec in zip(leaves, names, specs):
        said = own.setdefault(id(x), {})
        for d, n in spec.items() if not said else ():  # (one tensor may be several arguments)
            is_open = isinstance(d, int) and -x.ndim <= d < x.ndim and hinted(n, int(x.shape[d]))
            said[d] = dim = open_dim(name, d % x.ndim) if is_open else n
            if is_open:
                places[dim.__name__] = id(x), d, n

    if not places:
        return captured_twice(m, args, kwargs, given, on_data, check, None, preserved)
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
            told = {n: specs_like(x, partial(_by_id, shapes)) for n, x in named(m, args, kwargs).items()}
            try:
                found = captured_twice(m, args, kwargs, told, on_data, check, None, preserved)
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


def named(m: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments by the names that `dynamic_shapes` knows them by."""
    return {**dict(zip(parameter_names(m, len(args)), args)), **(kwargs or {})}


def _by_id(shapes: dict[int, Any], x: Any) -> Any:
    return shapes[id(x)]


def specs_like(value: Any, of: Callable[[Any], Any]) -> Any:
    """A value's containers, with what is said of each tensor in its place."""
    if isinstance(value, _core.Tensor):
        return of(value)
    if isinstance(value, Mapping):
        return {k: specs_like(v, of) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [specs_like(v, of) for v in value]
    if (fields := getattr(type(value), "__dataclass_fields__", None)) is not None:
        return {k: specs_like(getattr(value, k), of) for k in fields}
    return None
