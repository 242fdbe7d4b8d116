"""Where a view finds its elements: strides over symbolic sizes, and views applied to them.

    Layout := sizes strides offset        element (i0, i1, ..) lies at offset + sum of i_d * strides[d]
    Link   := view, rest                  the views still to be applied, the innermost first

A dim of size 1 has stride 0, so equal layouts are equal accesses: the strides of a value's (imagined)
contiguous memory under a chain of views say exactly which element of the value each index reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

from kiln.graph.graph import Node, Shape, Value
from kiln.graph.size import Dim, product, quotient


class Layout(NamedTuple):
    """Sizes, strides (in elements) and offset of an array."""

    sizes: Shape
    strides: Shape
    offset: Dim


_contiguous: dict[Shape, Layout] = {}
REMEMBERED = 4096  # layouts


def contiguous(shape: Shape) -> Layout:
    """Rows in order; strides of dims of size 1 are 0."""
    found = _contiguous.get(shape)
    if found is None:
        if len(_contiguous) >= REMEMBERED:
            _contiguous.clear()
        found = _contiguous[shape] = _rows_in_order(shape)
    return found


def _rows_in_order(shape: Shape) -> Layout:
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(0 if size == 1 else step)
        step = step * size
    return Layout(shape, tuple(reversed(strides)), 0)


def input_layout(value: Value) -> Layout:
    """The layout an input states."""
    if value.layout is None:
        return contiguous(value.shape)
    strides = tuple(0 if n == 1 else s for n, s in zip(value.shape, value.layout))
    return Layout(value.shape, strides, 0)


def is_contiguous(layout: Layout) -> bool:
    """Whether a layout is known to be rows in order."""
    return layout.strides == contiguous(layout.sizes).strides


def squeeze(shape: Shape) -> Shape:
    """The dims that are not known to be 1."""
    return tuple([d for d in shape if d != 1]) if 1 in shape else shape


class Link:
    """One view and those applied after it; `source` is the value it is a view of (None for a broadcast)."""

    __slots__ = ("data", "kind", "rest", "source")

    def __init__(self, kind: str, data: Any, source: Value | None, rest: Chain) -> None:
        self.kind = kind
        self.data = data
        self.source = source
        self.rest = rest


Chain = Union[Link, None]


class Links:
    """Makes links, each once: equal chains are the same object."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Link] = {}

    def make(self, kind: str, data: Any, source: Value | None, rest: Chain) -> Link:
        """The link for a view whose result goes through `rest`."""
        key = (kind, data, id(source), id(rest))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Link(kind, data, source, rest)
        return found

    def of_node(self, node: Node, rest: Chain) -> Link:
        """The link of a view node."""
        data = node.attrs[:3] if node.op.kind in ("slice", "as_strided") else node.attrs[0]
        return self.make(
            node.op.kind, data, node.out if node.op.kind == "as_strided" else node.inputs[0], rest
        )

    def broadcast(self, value: Value, shape: Shape, rest: Chain) -> Chain:
        """From an operand's shape to the shape it is broadcast to."""
        return rest if value.shape == shape else self.make("expand", shape, None, rest)


def resolve(layout: Layout, chain: Chain) -> Layout | Link:
    """The layout after a chain of views, or the link that strides cannot express."""
    layout, rest = _followed(layout, chain)
    return layout if rest is None else rest


def _followed(layout: Layout, chain: Chain) -> tuple[Layout, Chain]:
    """The layout as far down a chain as strides express it, and the links that are left."""
    while chain is not None:
        after = _RULES[chain.kind](layout, chain.data)
        if after is None:
            break
        layout, chain = after, chain.rest
    return layout, chain


def before_reshape(layout: Layout, chain: Chain) -> Layout | None:
    """The layout before reshapes that strides cannot express, where the chain ends in nothing else but
    repetitions along a first dim.
    """
    layout, rest = _followed(layout, chain)
    sizes = layout.sizes
    while rest is not None:
        if rest.kind == "expand" and sizes[:1] == (1,) and rest.data[1:] == sizes[1:]:
            layout = _expand(layout, (rest.data[0], *layout.sizes))
        elif rest.kind != "reshape":
            return None
        sizes, rest = rest.data, rest.rest
    return layout


def regions(layout: Layout, sizes: Shape) -> list[list[tuple[Dim, Dim]]] | None:
    """The dims (size, stride) that make up each of several dims, neighbours merged where strides allow.

    None if they do not, in order, hold equally many elements.
    """
    left = [(n, s) for n, s in zip(layout.sizes, layout.strides) if n != 1]
    found: list[list[tuple[Dim, Dim]]] = []
    for size in sizes:
        region: list[tuple[Dim, Dim]] = []
        while numel(tuple(n for n, _ in region)) != size:
            if not left:
                return None
            n, stride = left.pop(0)
            if region and region[-1][1] == stride * n:
                n = n * region.pop()[0]
            region.append((n, stride))
        found.append(region)
    return None if left else found


def refined(a: Shape, b: Shape) -> Shape | None:
    """The fewest dims that both shapes, which hold equally many elements, are made of; None if that cannot
    be told.
    """
    left, right, found = [*a], [*b], list[Dim]()
    while left and right:
        x, y = left.pop(0), right.pop(0)
        found.append(x if x == y or _divides(x, y) else y)
        if x == y:
            continue
        if _divides(x, y):
            right.insert(0, quotient(y, x))
        elif _divides(y, x):
            left.insert(0, quotient(x, y))
        else:
            return None
    return None if left or right else tuple(found)


def _permute(layout: Layout, dims: tuple[int, ...]) -> Layout:
    return Layout(tuple(layout.sizes[d] for d in dims), tuple(layout.strides[d] for d in dims), layout.offset)


def _expand(layout: Layout, sizes: Shape) -> Layout:
    lead = len(sizes) - len(layout.sizes)
    return Layout(sizes, (0,) * lead + layout.strides, layout.offset)


def _slice(layout: Layout, data: tuple[int, tuple[Dim, Dim, Dim]]) -> Layout:
    dim, (start, length, step) = data
    stride = layout.strides[dim]
    sizes = (*layout.sizes[:dim], length, *layout.sizes[dim + 1 :])
    strides = (*layout.strides[:dim], 0 if length == 1 else stride * step, *layout.strides[dim + 1 :])
    return Layout(sizes, strides, layout.offset + start * stride)


def _as_strided(layout: Layout, data: tuple[Shape, Shape, tuple[Dim]]) -> Layout:
    """Places in memory: the layout before must be contiguous, which the caller has seen to."""
    sizes, strides, (offset,) = data
    return Layout(sizes, tuple(0 if n == 1 else s for n, s in zip(sizes, strides)), layout.offset + offset)


_reshaped: dict[tuple[Layout, Shape], Layout | None] = {}


def _reshape(layout: Layout, sizes: Shape) -> Layout | None:
    """Groups of old dims become groups of new dims with the same number of elements."""
    if sizes == layout.sizes:
        return layout
    key = (layout, sizes)
    if key not in _reshaped:
        if len(_reshaped) >= REMEMBERED:
            _reshaped.clear()
        _reshaped[key] = _regrouped(layout, sizes)
    return _reshaped[key]


def _regrouped(layout: Layout, sizes: Shape) -> Layout | None:
    old = [(n, s) for n, s in zip(layout.sizes, layout.strides) if n != 1]
    new = [n for n in sizes if n != 1]
    if [n for n, _ in old] == new:
        return _with_strides(layout, sizes, [s for _, s in old])
    found: list[Dim] = []
    while old or new:
        many, few = _group(old, new)
        step = _merged(old[:many])
        if step is None:
            return None
        strides: list[Dim] = []
        for size in reversed(new[:few]):
            strides.append(step)
            step = step * size
        found += reversed(strides)
        old, new = old[many:], new[few:]
    return _with_strides(layout, sizes, found)


def _with_strides(layout: Layout, sizes: Shape, strides: list[Dim]) -> Layout:
    """Strides for the dims that are not 1."""
    rest = iter(strides)
    return Layout(sizes, tuple(0 if n == 1 else next(rest) for n in sizes), layout.offset)


def _group(old: list[tuple[Dim, Dim]], new: list[Dim]) -> tuple[int, int]:
    """How many leading old and new dims hold equally many elements; all if that cannot be told."""
    many = few = 0
    left: Dim = 1
    right: Dim = 1
    while many == 0 or few == 0 or left != right:
        more_old = many == 0 or (many < len(old) and few > 0 and _divides(left, right))
        more_new = few == 0 or (few < len(new) and _divides(right, left))
        if not more_old and not more_new:
            more_old = more_new = True
        if (more_old and many >= len(old)) or (more_new and few >= len(new)):
            return len(old), len(new)
        if more_old:
            left, many = left * old[many][0], many + 1
        if more_new and (few == 0 or not more_old):
            right, few = right * new[few], few + 1
    return many, few


def _divides(a: Dim, b: Dim) -> bool:
    """Whether b is known to be a proper multiple of a."""
    if a == b or a == 0:
        return False
    if isinstance(a, int) and isinstance(b, int):
        return b % a == 0
    whole = quotient(b, a)
    return whole * a == b


def _merged(dims: list[tuple[Dim, Dim]]) -> Dim | None:
    """The stride of several dims seen as one, None if one stride cannot express them."""
    for (_, outer), (size, inner) in zip(dims, dims[1:]):
        if outer != inner * size:
            return None
    return dims[-1][1] if dims else 0


_RULES: dict[str, Any] = {
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "as_strided": _as_strided,
}


def index_maps(shape: Shape, chain: Chain) -> list[Layout] | None:
    """For each dim of a value the index read along it, linear in the indices after a chain of views."""
    maps: list[Layout] = []
    for d, size in enumerate(shape):
        unit = tuple(1 if e == d and size != 1 else 0 for e in range(len(shape)))
        found = resolve(Layout(shape, unit, 0), chain)
        if isinstance(found, Link):
            return None
        maps.append(found)
    return maps


def numel(shape: Shape) -> Dim:
    """How many elements a shape holds."""
    return product(shape)


def concat_places(links: Links, node: Node) -> list[tuple[Value, Chain]]:
    """Every part of a concatenation and its place."""
    dim = node.attrs[0]
    found: list[tuple[Value, Chain]] = []
    start = 0
    for value in node.inputs:
        length = value.shape[dim]
        found.append((value, links.make("slice", (dim, (start, length, 1)), None, None)))
        start = start + length
    return found
