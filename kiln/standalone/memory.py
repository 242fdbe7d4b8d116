"""Where temporary arrays of a plan lie in the memory that the caller gives.

Arrays whose lengths are numbers are laid out here, each in the lowest gap that is free while it lives. Where
a length varies, arrays share a place if one is not needed any more when the other begins; a place is as long
as the longest that it ever holds, which is computed at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kiln.codegen.ir.index import Integer, Pointer
from kiln.graph.size import Dim
from kiln.passes.plan import Free, Plan, Step
from kiln.standalone.sizes import Sizes

ALIGNMENT = 64  # bytes
Where = tuple[int, Dim, int]  # a pointer of a plan: buffer, offset in elements, size of an element


class Life(NamedTuple):
    """The first and the last step that uses a temporary array, by their numbers."""

    first: int
    last: int


def lives(plan: Plan) -> dict[int, Life]:
    """Of every temporary array that is used, by the number of its buffer."""
    found: dict[int, Life] = {}
    for at, step in enumerate(plan.steps):
        for buffer in used(step):
            if plan.buffers[buffer].kind == "temp":
                found[buffer] = Life(found.get(buffer, Life(at, at)).first, at)
    return found


def used(step: Step) -> list[int]:
    """The buffers that a step reads or writes."""
    return [] if isinstance(step, Free) else [buffer for buffer, _, _ in step.pointers]


def aligned(size: Integer) -> Integer:
    """A number of bytes, rounded up."""
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


class Layout(NamedTuple):
    """Where every temporary array begins, and how much memory they take together, in bytes."""

    starts: dict[int, Integer]
    bytes: Integer


def lay_out(plan: Plan, sizes: Sizes) -> Layout:
    """The places of a plan's temporary arrays, for sizes that are known or are computed."""
    living = lives(plan)
    lengths = {k: aligned(sizes.of(plan.buffers[k].elements) * plan.buffers[k].itemsize) for k in living}
    fixed = {k: max(n, ALIGNMENT) for k, n in lengths.items() if isinstance(n, int)}
    if len(fixed) == len(lengths):
        return _gaps(living, fixed)
    return _places(plan, living, lengths)


def _gaps(living: dict[int, Life], lengths: dict[int, int]) -> Layout:
    starts: dict[int, Integer] = {}
    taken: list[tuple[int, int, int]] = []  # begin, end, buffer, in the order of memory
    top = 0
    for k in sorted(living, key=lambda k: (living[k].first, k)):
        taken = [piece for piece in taken if living[piece[2]].last >= living[k].first]
        begin = 0
        for low, high, _ in taken:
            if low - begin >= lengths[k]:
                break
            begin = max(begin, high)
        taken.append((begin, begin + lengths[k], k))
        taken.sort()
        starts[k] = begin
        top = max(top, begin + lengths[k])
    return Layout(starts, top)


def _places(plan: Plan, living: dict[int, Life], lengths: dict[int, Integer]) -> Layout:
    places: list[list[int]] = []
    for k in sorted(living, key=lambda k: (living[k].first, k)):
        free = [p for p in places if living[p[-1]].last < living[k].first]
        own = plan.buffers[k].elements, plan.buffers[k].itemsize
        alike = [p for p in free if any(plan.buffers[j][2:] == own for j in p)]
        if alike or free:
            (alike or free)[-1].append(k)
        else:
            places.append([k])
    starts: dict[int, Integer] = {}
    top: Integer = 0
    for place in places:
        length: Integer = ALIGNMENT
        for k in place:
            starts[k] = top
            length = larger(length, lengths[k])
        top = top + length
    return Layout(starts, top)


def larger(x: Integer, y: Integer) -> Integer:
    """The larger of two numbers."""
    if isinstance(x, int):
        return max(x, y) if isinstance(y, int) else y.max(x)
    return x.max(y)


def address(bases: Sequence[Pointer], sizes: Sizes, where: Where) -> Pointer:
    """Where a pointer of a plan points to."""
    buffer, offset, itemsize = where
    return bases[buffer][sizes.of(offset) * itemsize]
