"""Where views lie in memory whose sizes vary: sizes, strides and an offset in elements, in general.

x[:, 1:]  of  [n, 4], contiguous     sizes (n, 3)   strides (4, 1)   offset 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kiln.graph.graph import Node, Shape
from kiln.graph.size import Dim, product


class Place(NamedTuple):
    """Where a tensor lies."""

    sizes: Shape
    strides: tuple[Dim, ...]
    offset: Dim

    def is_at(self, place: tuple[int, tuple[int, ...], tuple[int, ...]], of: Callable[[Dim], int]) -> bool:
        """Whether that is (offset, sizes, strides) where every size is what `of` says."""
        offset, sizes, strides = place
        same = of(self.offset) == offset and tuple(map(of, self.sizes)) == sizes
        return same and all(n == 1 or of(own) == came for n, own, came in zip(sizes, self.strides, strides))


def contiguous(sizes: Shape, offset: Dim = 0) -> Place:
    """The place of an array whose rows lie one behind the other."""
    strides = tuple([product(sizes[d + 1 :]) for d in range(len(sizes))])
    return Place(tuple(sizes), strides, offset)


def seen(place: Place | None, view: Node) -> Place | None:
    """The place of a view of what lies there; None where that cannot be told."""
    if place is None:
        return None
    sizes, strides, offset = place
    kind = view.op.kind
    if kind == "permute":
        (order,) = view.attrs
        return Place(tuple([sizes[d] for d in order]), tuple([strides[d] for d in order]), offset)
    if kind == "slice":
        dim, (start, length, step) = view.attrs
        moved = Place(_with(sizes, dim, length), _with(strides, dim, strides[dim] * step), offset)
        return moved._replace(offset=offset + start * strides[dim])
    wanted = view.out.shape
    if kind == "expand":
        more = len(wanted) - len(sizes)
        kept = [s if n == w else 0 for n, w, s in zip(sizes, wanted[more:], strides)]
        return Place(wanted, (*((0,) * more), *kept), offset)
    if kind == "reshape":
        found = _split(place, wanted)
        return None if found is None else Place(wanted, found, offset)
    if kind == "as_strided" and strides == contiguous(sizes).strides:  # what a diagonal is, and a window
        return Place(view.attrs[0], view.attrs[1], offset + view.attrs[2][0])
    return None


def _with(sizes: Sequence[Any], dim: int, new: Any) -> tuple[Any, ...]:
    return (*sizes[:dim], new, *sizes[dim + 1 :])


def _split(place: Place, wanted: Shape) -> tuple[Dim, ...] | None:
    """The strides of a reshape that is a view: dims that lie one behind the other are one, which is split
    into those that are wanted; None where sizes do not say how.
    """
    whole: list[tuple[Dim, Dim]] = []  # (size, stride) of dims that are as one, from the last
    for n, stride in zip(reversed(place.sizes), reversed(place.strides)):
        if n == 1:
            continue
        if whole and whole[-1][0] * whole[-1][1] == stride:
            whole[-1] = n * whole[-1][0], whole[-1][1]
        else:
            whole.append((n, stride))
    strides: list[Dim] = []
    left = iter(whole)
    size, stride = next(left, (1, 1))
    inside: Dim = 1  # how many elements of that dim the dims so far have
    for n in reversed(wanted):
        if n != 1 and inside == size:
            size, stride = next(left, (1, 1))
            inside = 1
        strides.append(inside * stride)
        inside = inside * n
    done = inside == size and next(left, None) is None
    return tuple(reversed(strides)) if done else None
