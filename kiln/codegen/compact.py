"""Compact: the positions at which a mask holds, as many as are asked for.

    i = w = 0;  while w < count:   out[w] = i;  w += mask[i];  i += 1

What is written where the mask does not hold is written over by the next. Operands: out, mask; numbers: count.
"""

from __future__ import annotations

from kiln.codegen.along import Along, AlongSpec
from kiln.codegen.code import Value
from kiln.codegen.target import Target


class Compact(Along):
    """A kernel being written."""

    def columns(self, unit: str, pointers: list[str], count: str) -> None:
        """The one column there is."""
        code = self.code
        out, mask = pointers
        start = [Value("0", "i64"), Value("0", "i64")]
        with code.repeat(start, lambda v: code.op(f"icmp slt i64 {v[1].text}, {self.number[0]}")) as loop:
            i, w = loop.values
            self.memory.write("int64", self.at(0, out, w.text), i)
            holds = self.machine.convert(self.read(1, self.at(1, mask, i.text)), "i64")
            loop.next = [Value(code.add(i.text, "1"), "i64"), self.machine.instruction("add", w, holds)]


def compact_ir(spec: AlongSpec, target: Target) -> str:
    """The LLVM text of the kernel: one function `kernel`, nothing undefined."""
    return Compact(spec, target).emit()
