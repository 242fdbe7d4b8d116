"""Search: for each value, how many elements of a sorted row come before it.

    first, left = 0, along
    while left > 0:   half = left / 2;  before = sorted[first + half] comes before the value
        first = before ? first + half + 1 : first;  left = before ? left - half - 1 : half

A column is a value; the dim is the sorted row's, which neither the values nor the result have. Operands: out,
values, sorted; numbers: elements of the row.
"""

from __future__ import annotations

from kiln.codegen.along import Along, AlongSpec
from kiln.codegen.target import Target
from kiln.codegen.value import Value


class Search(Along):
    """A kernel being written; `what` of its pattern: "search", left or right."""

    block = 16

    def columns(self, unit: str, pointers: list[str], count: str) -> None:
        """Each column alone."""
        code = self.code
        with code.loop("0", count, 1) as column:
            out, value, row = (self.column(k, p, column.index) for k, p in enumerate(pointers))
            wanted = self.read(1, value)
            bounds = [Value("0", "i64"), Value(self.number[0], "i64")]
            with code.repeat(bounds, lambda v: code.op(f"icmp sgt i64 {v[1].text}, 0")) as loop:
                first, left = (v.text for v in loop.values)
                half = code.op(f"lshr i64 {left}, 1")
                middle = code.add(first, half)
                before = self._before(self.read(2, self.at(2, row, middle)), wanted)
                after = Value(code.add(middle, "1"), "i64")
                rest = Value(code.sub(code.sub(left, half), "1"), "i64")
                loop.next = [
                    self.machine.choose(before, after, loop.values[0]),
                    self.machine.choose(before, rest, Value(half, "i64")),
                ]
            self.memory.write("int64", out, loop.values[0])

    def _before(self, x: Value, wanted: Value) -> Value:
        """not x >= wanted, or not x > wanted: so all that is compared with a NaN."""
        reached = self.machine.compare("ge" if self.spec.what == "search left" else "gt", x, wanted)
        return Value(self.code.op(f"xor i1 {reached.text}, true"), "i1")


def search_ir(spec: AlongSpec, target: Target) -> str:
    """The LLVM text of the kernel: one function `kernel`, nothing undefined."""
    return Search(spec, target).emit()
