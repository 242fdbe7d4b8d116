"""Products cut along k: several threads take segments, whose sums are kept, and added in ascending order.

A sum's order (one chain per segment, the segments added ascending) leaves open who makes the chains. A launch
of few units and many segments is cut by the core, which knows the threads (native/program):

    rounds of `count` segments, from `first` on:
        count > 0:    units of each segment      its chains -> part 1, 2 .. count
        count < 0:    rows                       part 0 + part 1 + .. -> part 0; of the last round, finished

The parts lie in memory that the threads share, each like the outputs: rows of all batches, PITCH bytes or a
multiple of it apart. In a launch that is not cut `count` is 0, and a unit takes all of k.

Arguments after all others: `ptr`, before the thread's own memory: the parts; `arg`: first, count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.codegen.code import LANES
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import SEGMENT, Element
from kiln.codegen.value import LLVM, Value

PITCH = 128  # bytes: a whole panel or 16 sums at the end of a row stay inside it


def part_words(rows: Any, n: Any, element: Element) -> Any:
    """The 64-bit words of a part, on ints or symbolic sizes."""
    return rows * ((n * element.bytes + PITCH - 1) // PITCH) * (PITCH // 8)


class Segments:
    """Which segments of k a launch takes; the units it is at change with `divide`."""

    def __init__(
        self, code: Routine, element: Element, parts: str, cut: tuple[str, str], size: dict[str, str]
    ) -> None:
        self.code, self.element, self.parts, self.size = code, element, parts, size
        self.first, self.count = cut
        self.batch = "0"  # the unit's index
        bytes = code.mul(size["n"], str(element.bytes))
        self.pitch = code.op(f"and i64 {code.add(bytes, str(PITCH - 1))}, {-PITCH}")
        self.rows = code.mul(size["batch"], size["m"])
        self.part = code.mul(self.rows, self.pitch)
        self.cut = code.compare("sgt", self.count, "0")
        self.whole = code.op(f"xor i1 {self.cut}, true")
        self.adds = code.compare("slt", self.count, "0")

    def divide(self, at: str, units: str) -> str:
        """Settles which k the unit `at` takes, of so many units in a segment; the unit inside it."""
        code, k, found = self.code, self.size["k"], self.code.variable("0")
        with code.when(self.cut):
            code.set(found, code.op(f"sdiv i64 {at}, {units}"))
        segment = code.get(found)
        self.from_k = code.mul(code.add(self.first, segment), str(SEGMENT))
        self.to_k = code.choose(self.cut, code.minimum(code.add(self.from_k, str(SEGMENT)), k), k)
        self.into = code.at(self.parts, code.mul(code.add(segment, "1"), self.part))
        return code.sub(at, code.mul(segment, units))

    def place(self, row: str, column: str) -> str:
        """Where the sums of a row go from a column on, in the segment's part."""
        code = self.code
        rows = code.add(code.mul(self.batch, self.size["m"]), row)
        return code.at(self.into, code.mul(rows, self.pitch), code.mul(column, str(self.element.bytes)))

    def add(self, finish: Callable[..., None]) -> None:
        """Adds parts of the rows %begin .. %end; `finish(batch, row, rows, sums=)` takes complete ones."""
        code = self.code
        begin, many = code.mul("%begin", self.pitch), code.sub("0", self.count)
        here, begins = code.at(self.parts, begin), code.compare("eq", self.first, "0")
        with code.times(code.sub(code.mul("%end", self.pitch), begin), LANES * self.element.bytes) as at:
            self._add(code.at(here, at), many, begins)
        done = code.mul(code.add(self.first, many), str(SEGMENT))
        with code.when(code.compare("sge", done, self.size["k"])):
            unit = code.variable("%begin")
            with code.during(unit, "%end") as at:
                batch = code.op(f"sdiv i64 {at}, {self.size['m']}")
                row = code.sub(at, code.mul(batch, self.size["m"]))
                rows = code.minimum(code.sub(self.size["m"], row), code.sub("%end", at))
                finish(batch, row, rows, sums=code.at(self.parts, code.mul(at, self.pitch)))
                code.set(unit, code.add(at, rows))

    def _add(self, total: str, many: str, begins: str) -> None:
        """Sixteen sums: those so far (at first what adds nothing) and those of the parts."""
        code, element = self.code, self.element
        kind = f"<{LANES} x {LLVM[element.summed]}>"
        old = code.op(f"load {kind}, ptr {total}, align 16")
        old = code.op(f"select i1 {begins}, {kind} splat ({element.nothing}), {kind} {old}")
        place = code.variable(self.part)
        with code.loop("0", many, 1, [Value(old, element.summed, LANES)]) as turn:
            at = code.get(place)
            more = code.op(f"load {kind}, ptr {code.at(total, at)}, align 16")
            code.set(place, code.add(at, self.part))
            turn.next = [
                Value(code.op(f"{element.add} {kind} {turn.values[0].text}, {more}"), element.summed, LANES)
            ]
        code.line(f"store {turn.values[0].typed}, ptr {total}, align 16")
