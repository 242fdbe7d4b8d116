"""Products cut along k: several threads take segments, whose sums are kept, and added in ascending order.

A sum's order (one chain per segment, the segments added ascending) leaves open who makes the chains. A launch
of few units and many segments is cut by the core, which knows the threads (native/program/program):

    rounds of `count` segments, from `first` on:
        count > 0:    units of each segment      its chains -> part 1, 2 .. count
        count < 0:    rows                       part 0 + part 1 + .. -> part 0; of the last round, finished

The parts lie in memory that the threads share, each like the outputs: rows of all batches, PART_PITCH bytes
or a multiple of it apart. In a launch that is not cut `count` is 0, and a unit takes all of k.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.codegen.gemm.element import Element
from kiln.codegen.gemm.grid import PART_PITCH
from kiln.codegen.ir.index import Condition, Index, Pointer
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import LLVM, Value
from kiln.table.order import LANES, SEGMENT


class Segments:
    """Which segments of k a launch takes; the units it is at change with `divide`."""

    def __init__(
        self,
        code: Routine,
        element: Element,
        parts: Pointer,
        cut: tuple[Index, Index],
        size: dict[str, Index],
    ) -> None:
        self.code, self.element, self.parts, self.size = code, element, parts, size
        self.first, self.count = cut
        self.batch = code.index(0)  # the unit's index
        bytes = size["n"] * element.bytes
        self.pitch = (bytes + (PART_PITCH - 1)) & -PART_PITCH
        self.rows = size["batch"] * size["m"]
        self.part = self.rows * self.pitch
        self.cut = self.count > 0
        self.whole = ~self.cut
        self.adds = self.count < 0

    def divide(self, at: Index, units: Index) -> Index:
        """Settles which k the unit `at` takes, of so many units in a segment; the unit inside it."""
        code, k, segment = self.code, self.size["k"], self.code.index(0)
        if self.cut.text != "false":
            found = code.variable(0)
            with code.when(self.cut):
                found.set(at // units)
            segment = found.get()
        self.from_k = (self.first + segment) * SEGMENT
        self.to_k = self.cut.choose((self.from_k + SEGMENT).min(k), k)
        self.into = self.parts[(segment + 1) * self.part]
        return at - segment * units

    def place(self, row: Index, column: Index) -> Pointer:
        """Where the sums of a row go from a column on, in the segment's part."""
        rows = self.batch * self.size["m"] + row
        return self.into[rows * self.pitch, column * self.element.bytes]

    def add(self, finish: Callable[..., None]) -> None:
        """Adds parts of the rows %begin .. %end; `finish(batch, row, rows, sums=)` takes complete ones."""
        code = self.code
        first_row, last_row = code.indices("begin", "end")
        begin, many = first_row * self.pitch, 0 - self.count
        here, begins = self.parts[begin], self.first.equals(0)
        with code.times(last_row * self.pitch - begin, LANES * self.element.bytes) as at:
            self._add(here[at], many, begins)
        done = (self.first + many) * SEGMENT
        with code.when(done >= self.size["k"]):
            unit = code.variable(first_row)
            with code.during(unit, last_row) as at:
                batch = at // self.size["m"]
                row = at - batch * self.size["m"]
                rows = (self.size["m"] - row).min(last_row - at)
                finish(batch, row, rows, sums=self.parts[at * self.pitch])
                unit.set(at + rows)

    def _add(self, total: Pointer, many: Index, begins: Condition) -> None:
        """Sixteen sums: those so far (at first what adds nothing) and those of the parts."""
        code, element = self.code, self.element
        kind = f"<{LANES} x {LLVM[element.summed]}>"
        old = total.load(kind, 16)
        old = code.op(f"select i1 {begins}, {kind} splat ({element.nothing}), {kind} {old}")
        place = code.variable(self.part)
        with code.loop(0, many, 1, [Value(old, element.summed, LANES)]) as turn:
            at = place.get()
            more = total[at].load(kind, 16)
            place.set(at + self.part)
            turn.next = [
                Value(code.op(f"{element.add} {kind} {turn.values[0].text}, {more}"), element.summed, LANES)
            ]
        total.store(turn.values[0].typed, 16)
