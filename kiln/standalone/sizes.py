"""Sizes of a library: what its caller states, what they may be, and code for what follows from them.

A caller states the sizes that vary, one integer each. Every other size of the program is an expression of
these. The bounds of each are chosen so that no expression leaves 62 bits: then plain arithmetic is right, and
one comparison for each stated size at the beginning of a call is all that is checked of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kiln.capture.programs import ADD, CONSTANT, DIVIDE, MULTIPLY, Slots
from kiln.codegen.ir.code import Code
from kiln.codegen.ir.index import Condition, Index, Integer
from kiln.graph.size import Dim, Size, single_slot, slots_named
from kiln.tracing.captured import Captured
from kiln.tracing.sizes import Guard

LARGEST = 1 << 62  # no expression of sizes is that large
UNBOUNDED = 1 << 40  # of a size without a declared bound, before the expressions are known


class Stated(NamedTuple):
    """An integer that callers state: a size, in the slot of the graph it is read from, and its bounds."""

    name: str
    slot: int
    least: int
    most: int | None


def stated_sizes(found: Captured) -> list[Stated]:
    """The sizes that vary, in the order of the inputs that have them."""
    names = {single_slot(dim.symbol): dim for dim in found.dims.values() if isinstance(dim.symbol, Size)}
    sizes: dict[int, Stated] = {}
    for own in found.inputs:
        for d, size in enumerate(own.shape):
            if not isinstance(size, Size):
                continue
            for slot in sorted(slots_named(size) - sizes.keys()):
                dim = names.get(slot)
                sizes[slot] = (
                    Stated(f"{own.name}_{d}", slot, 0, None)
                    if dim is None
                    else Stated(dim.name, slot, dim.min, dim.max)
                )
    return list(sizes.values())


Interval = tuple[int, int]


def intervals(slots: Slots, bounds: Mapping[int, Interval]) -> list[Interval]:
    """The least and largest value of every slot; `bounds`: of those that are stated."""
    found = [bounds.get(slot, (0, 0)) for slot in range(slots.environment)]
    for kind, a, b in slots.exprs:
        if kind == CONSTANT:
            found.append((a, a))
            continue
        (low, high), (least, most) = found[a], found[b]
        if kind == ADD:
            found.append((low + least, high + most))
            continue
        if kind == DIVIDE:
            least, most = max(least, 1), max(most, 1)
        calculate = {MULTIPLY: operator.mul, DIVIDE: divided}[kind]
        corners = [calculate(x, y) for x in (low, high) for y in (least, most)]
        found.append((min(corners), max(corners)))
    return found


def largest_sizes(
    stated: Iterable[Stated], values: Callable[[dict[int, Interval]], Iterable[Interval]]
) -> dict[int, Interval]:
    """Bounds of the stated sizes, by slot: the declared ones, and of others the largest power of two so that
    every expression (`values`: their bounds, of such) fits into 62 bits. OverflowError where the declared
    ones do not allow that.
    """
    cap = UNBOUNDED
    while True:
        bounds = {s.slot: (s.least, cap if s.most is None else s.most) for s in stated}
        if all(-LARGEST < x < LARGEST for interval in values(bounds) for x in interval):
            return bounds
        if cap <= 1 or all(s.most is not None for s in stated):
            raise OverflowError("the declared sizes allow arrays whose length does not fit into 64 bits")
        cap >>= 1


def divided(x: int, y: int) -> int:
    """x / y towards zero, y at least 1: as the code computes it."""
    return x // y if x >= 0 else -(-x // y)


class Sizes:
    """Code for every slot: numbers where they are known, else what was computed where this was made.

    `given`: of the slots that are read from inputs.
    """

    def __init__(self, code: Code, slots: Slots, given: Mapping[int, Integer]) -> None:
        self._slots = slots
        self._values: list[Integer] = [given.get(k, 0) for k in range(slots.environment)]
        for kind, a, b in slots.exprs:
            self._values.append(a if kind == CONSTANT else self._computed(kind, *self._pair(a, b)))

    def _pair(self, a: int, b: int) -> tuple[Integer, Integer]:
        return self._values[a], self._values[b]

    @staticmethod
    def _computed(kind: int, x: Integer, y: Integer) -> Integer:
        if kind == ADD:
            return x + y
        if kind == MULTIPLY:
            return x * y
        y = max(y, 1) if isinstance(y, int) else y.max(1)
        return divided(x, y) if isinstance(x, int) and isinstance(y, int) else x // y

    def __getitem__(self, slot: int) -> Integer:
        return self._values[slot]

    def of(self, dim: Dim) -> Integer:
        """A dim, one that the slots knew when this was made."""
        slot = self._slots.of(dim)
        assert slot < len(self._values), "a size that was not among the slots"
        return self._values[slot]


RELATIONS: dict[str, Callable[[Index, Integer], Condition]] = {
    "==": Index.equals, "!=": Index.differs, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


def breaks(code: Code, sizes: Sizes, guard: Guard) -> Condition:
    """Whether a question about sizes has another answer than the program was made with."""
    asked = RELATIONS[guard.sign](code.index(sizes.of(guard.left)), sizes.of(guard.right))
    return ~asked if guard.answer else asked
