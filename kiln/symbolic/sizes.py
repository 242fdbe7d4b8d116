"""Sizes that vary, said in terms of the inputs of one graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kiln.graph.size import Dim, Size, quotient, slots_named, substitute, symbol
from kiln.tracing.dims import Range


def respelled(
    ranges: Iterable[Range], shapes: list[tuple[Any, ...]]
) -> tuple[dict[int, Dim], dict[str, Range]]:
    """For sizes that vary, each a slot in `shapes`, what they are of the slots that the shapes' own sizes
    have, one after the other; and what is declared of those that can be told so.

    A size is read where a shape has it alone; one that stands in products and sums only, from those.
    """
    of: dict[int, Dim] = {}
    dims: dict[str, Range] = {}
    by_slot = {dim.slot: dim for dim in ranges}
    places = [(slot, size) for slot, size in enumerate(n for shape in shapes for n in shape)]
    linear = [(slot, linear_of(size)) for slot, size in places if isinstance(size, Size)]
    for slot, (old, times, plus) in sorted(linear, key=lambda p: p[1][1:] != (1, 0)):
        if old not in by_slot or old in of:
            continue
        of[old] = symbol(slot) if (times, plus) == (1, 0) else quotient(symbol(slot) - plus, times)
        given = by_slot[old]
        if given.name in dims:
            raise ValueError(
                f"the size {given.name} is declared with two ranges, {dims[given.name]!r} and {given!r}: "
                f"once is enough"
            )
        own = dims[given.name] = Range(given.name, given.min, given.max)
        own.symbol, own.slot, own.example, own.hint = of[old], slot, given.example, given.hint
    return of, dims


def linear_of(size: Size) -> tuple[int, int, int]:
    """(slot, times, plus) of times * slot + plus; a slot of -1 of any other size."""
    slots = slots_named(size)
    if len(slots) != 1:
        return -1, 1, 0
    (slot,) = slots
    plus = substitute(size, lambda _: 0)
    one = substitute(size, lambda _: 1)
    if not isinstance(plus, int) or not isinstance(one, int) or one - plus < 1:
        return -1, 1, 0
    return (slot, one - plus, plus) if symbol(slot) * (one - plus) + plus == size else (-1, 1, 0)
