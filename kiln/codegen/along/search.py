"""Search: for each value, how many elements of a sorted row come before it.

    first, left = 0, along
    while left > 0:   half = left / 2;  before = sorted[first + half] comes before the value
        first = before ? first + half + 1 : first;  left = before ? left - half - 1 : half

A column is a value; the dim is the sorted row's, which neither the values nor the result have.
"""

from __future__ import annotations

from kiln.codegen.along.along import Along
from kiln.codegen.ir.index import Condition, Index, Pointer
from kiln.codegen.ir.value import Value


class Search(Along):
    """A kernel being written; `what` of its pattern: "search", left or right."""

    operands = ("out", "values", "sorted")
    block = 16

    def columns(self, unit: Index, pointers: list[Pointer], count: Index) -> None:
        """Each column alone."""
        code = self.code
        with code.loop(0, count, 1) as column:
            out, value, row = (self.column(k, p, column.index) for k, p in enumerate(pointers))
            wanted = self.read(1, value)
            bounds = [code.index(0), self.number["along"]]
            with code.repeat(bounds, lambda turn: turn.indices[1] > 0) as loop:
                first, left = loop.indices
                half = left >> 1
                middle = first + half
                before = self._before(self.read(2, self.at(2, row, middle)), wanted)
                after, rest = middle + 1, left - half - 1
                loop.next = [before.choose(after, first), before.choose(rest, half)]
            self.memory.write("int64", out, loop.values[0])

    def _before(self, x: Value, wanted: Value) -> Condition:
        """not x >= wanted, or not x > wanted: so all that is compared with a NaN."""
        reached = self.machine.compare("ge" if self.spec.what == "search left" else "gt", x, wanted)
        return ~self.code.condition(reached)
