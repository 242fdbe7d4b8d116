"""Sizes that vary: `Dim("batch", min=1, max=64)`, `2 * Dim("n") + 1`, and which tensor has which."""

from __future__ import annotations

from functools import partial
from typing import Any

from kiln import _core
from kiln.graph.graph import Shape
from kiln.graph.size import Dim as Expression
from kiln.graph.size import quotient, symbol
from kiln.table.callables import named
from kiln.tracing.sizes import Sizes
from kiln.tracing.trees import Tree

_LARGEST = 1 << 62


class Dim:
    """A size that may vary: its name, the least and the largest it may be (any, if None).

    Sums with and products by whole numbers are sizes that follow from it.

    >>> import kiln
    >>> n = kiln.export.Dim("n", min=2)
    >>> 2 * n + 1
    2*n + 1
    """

    AUTO: Any
    DYNAMIC: Any
    STATIC: Any

    @_core.Function
    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"Dim: expected a name as variables have, got {name!r}")
        if min is not None and max is not None and max < min:
            raise ValueError(f"Dim {name}: max {max} is below min {min}")
        self.__name__ = name
        self.min, self.max = min, max
        self.times, self.plus = 1, 0
        self.is_open = False  # whether the program says what it is: a name made for a hint

    def _derived(self, times: int, plus: int) -> Dim:
        if not isinstance(times, int) or not isinstance(plus, int) or times < 1:
            raise NotImplementedError(f"Dim {self.__name__}: a derived size is n * {self.__name__} + k")
        made = Dim(self.__name__, min=self.min, max=self.max)
        made.times, made.plus, made.is_open = times, plus, self.is_open
        return made

    def __add__(self, other: int) -> Dim:
        return self._derived(self.times, self.plus + other)

    __radd__ = __add__

    def __sub__(self, other: int) -> Dim:
        return self._derived(self.times, self.plus - other)

    def __mul__(self, other: int) -> Dim:
        return self._derived(self.times * other, self.plus * other)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        first = self.__name__ if self.times == 1 else f"{self.times}*{self.__name__}"
        return first + (f" + {self.plus}" if self.plus > 0 else f" - {-self.plus}" if self.plus else "")


@partial(named, "dims")
def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """A `Dim` for each name, all with these bounds.

    >>> import kiln
    >>> kiln.export.dims("batch", "length", max=64)
    (batch, length)
    """
    return tuple([Dim(name, min=min, max=max) for name in names])


class Hint:
    """`Dim.AUTO`, `Dim.DYNAMIC` and `Dim.STATIC`: a size that varies under a name of its own, or does not.

    AUTO leaves 0 and 1 as they are: what is true of them (1 broadcasts) is true of no other size.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Dim.{self.name}"


Dim.AUTO, Dim.DYNAMIC, Dim.STATIC = Hint("AUTO"), Hint("DYNAMIC"), Hint("STATIC")


def hinted(given: Any, size: int) -> bool:
    """Whether a size that is such in the example varies under a name of its own."""
    return given is Dim.DYNAMIC or (given is Dim.AUTO and size > 1)


def open_dim(name: str, dim: int) -> Dim:
    """The size of a tensor's dim under a name of its own, which the program may say more of."""
    made = Dim(open_name(name, dim))
    made.is_open = True
    return made


def open_name(name: str, dim: int) -> str:
    """What such a size is called."""
    return "".join(c if c.isalnum() else "_" for c in name) + f"_{dim}"


class Range:
    """A named size of a program: the slot it is read from (of the first input that has it), its bounds."""

    def __init__(self, name: str, least: int, most: int | None) -> None:
        self.name, self.min, self.max = name, least, most
        self.symbol: Expression = 0
        self.slot = -1
        self.example = self.hint = 0

    def __repr__(self) -> str:
        return f"{self.name}: {self.min} to {'any' if self.max is None else self.max}"


def declared(
    ranges: dict[str, Range], known: Sizes, tensors: list[tuple[Any, str]], specs: dict[int, dict[int, Any]]
) -> dict[int, Shape]:
    """The shapes of tensors, by id, with symbols where a size varies; `ranges` and `known` are filled.

    A symbol is the slot of the first size that has the name alone; of a name that occurs in derived sizes
    only it is a quotient.
    """
    places: list[tuple[int, int, Dim, Any, str]] = []  # slot, size, its Dim, tensor, where
    slot = 0
    for x, name in tensors:
        spec = specs.get(id(x), {})
        for d in spec:
            if not isinstance(d, int) or not -x.ndim <= d < x.ndim:
                raise ValueError(f"{name}: has {x.ndim} dims, there is no dim {d!r}")
        spec = {d % x.ndim: n for d, n in spec.items()}
        for d, size in enumerate(tuple(x.shape)):
            given = spec.get(d)
            where = f"{name}: dim {d}"
            if hinted(given, int(size)):
                given = open_dim(name, d)
            if isinstance(given, Dim):
                places.append((slot, int(size), given, x, where))
            elif isinstance(given, int) and given != size:
                raise ValueError(f"{where} is {size} in the example, {given} in dynamic_shapes")
            elif given is not None and not isinstance(given, (int, Hint)):
                raise ValueError(f"{where}: expected a Dim, got {given!r}")
            slot += 1
    for at, size, dim, _, where in sorted(places, key=lambda p: (p[2].times, p[2].plus) != (1, 0)):
        _range_of(ranges, at, size, dim, where)
    shapes: dict[int, Shape] = {}
    sizes = {at: dim for at, _, dim, _, _ in places}
    slot = 0
    for x, _ in tensors:
        shape: list[Any] = []
        for size in tuple(x.shape):
            if slot in sizes:
                dim = sizes[slot]
                own = ranges[dim.__name__]
                known.hints[slot] = own.hint * dim.times + dim.plus
                most = _LARGEST if own.max is None else own.max * dim.times + dim.plus
                known.ranges[slot] = own.min * dim.times + dim.plus, most
                known.names[slot] = repr(dim)
                if dim.is_open and own.slot == slot and repr(dim) == dim.__name__:
                    known.open[slot] = dim.__name__
                shape.append(own.symbol * dim.times + dim.plus)
            else:
                shape.append(int(size))
            slot += 1
        shapes[id(x)] = tuple(shape)
    return shapes


def _range_of(ranges: dict[str, Range], slot: int, size: int, dim: Dim, where: str) -> None:
    """Learns of a name from a size that has it; ValueError where the example breaks what is declared."""
    n, rest = divmod(size - dim.plus, dim.times)
    own = ranges.get(dim.__name__)
    if rest or n < 0:
        raise ValueError(f"{where} is {size} in the example, which is no {dim!r}")
    if own is None:
        own = ranges[dim.__name__] = Range(dim.__name__, 0 if dim.min is None else dim.min, dim.max)
        own.symbol = (
            symbol(slot) if dim.times == 1 and not dim.plus else quotient(symbol(slot) - dim.plus, dim.times)
        )
        own.slot, own.example = slot, n
        # 1 and 0 are like no other size: what is true of them is true of few
        own.hint = n if n > 1 else min(max(own.min, 3), _LARGEST if own.max is None else own.max)
    elif own.example != n:
        raise ValueError(f"{where} is {size} in the example, where {dim.__name__} is {own.example} elsewhere")
    own.min = max(own.min, 0 if dim.min is None else dim.min)
    own.max = dim.max if own.max is None else own.max if dim.max is None else min(own.max, dim.max)
    if n < own.min or (own.max is not None and n > own.max):
        raise ValueError(f"{where} is {size} in the example, out of the range of {own!r}")


def specs_of(tree: Tree, given: Any, names: list[str], what: str = "dynamic_shapes") -> list[Any]:
    """For every tensor of a tree what is said of its dims: {dim: Dim or None}. ValueError for what fits
    not.
    """
    if tree.kind == "leaf":
        if given is None:
            return [{}]
        if isinstance(given, dict):
            return [dict(given)]
        if isinstance(given, (tuple, list)):
            return [dict(enumerate(given))]
        raise ValueError(f"{what}: expected a dict of dims or a tuple, got {given!r}")
    if given is None:
        return [{} for _ in range(tree.leaves)]
    if tree.kind == "constant":
        return []
    keys: list[Any] = list(tree.keys) if tree.keys else list(names) if names else []
    if isinstance(given, dict):
        unknown = [k for k in given if k not in keys] if keys else []
        if unknown:
            raise ValueError(f"{what}: no input is called {unknown[0]!r}; there are {keys}")
        parts = [given.get(k) for k in keys]
    elif isinstance(given, (tuple, list)):
        if len(given) != len(tree.items):
            raise ValueError(f"{what}: expected {len(tree.items)} entries, got {len(given)}")
        parts = list(given)
    else:
        raise ValueError(f"{what}: expected a dict, a tuple or a list, got {given!r}")
    found: list[Any] = []
    for k, (item, part) in enumerate(zip(tree.items, parts)):
        found += specs_of(item, part, [], f"{what}[{keys[k]!r}]" if keys else f"{what}[{k}]")
    return found
