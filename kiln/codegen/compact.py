"""Compact: the positions at which a mask holds, as many as are asked for.

    i = w = 0;  while w < count and i < along:   out[w] = i;  w += mask[i];  i += 1

What is written where the mask does not hold is written over by the next. The mask may have lost some since it
was counted: then the last places are not written. Operands: out, mask; numbers: count, along.
"""

from __future__ import annotations

from kiln.codegen.along import Along, AlongSpec
from kiln.codegen.target import Target
from kiln.codegen.value import Value


class Compact(Along):
    """A kernel being written."""

    numbers = 2

    def columns(self, unit: str, pointers: list[str], columns: str) -> None:
        """The one column there is."""
        code = self.code
        out, mask = pointers
        start = [Value("0", "i64"), Value("0", "i64")]
        count, along = self.number

        def wanted(v: list[Value]) -> str:
            more = code.op(f"icmp slt i64 {v[1].text}, {count}")
            return code.op(f"and i1 {more}, {code.op(f'icmp slt i64 {v[0].text}, {along}')}")

        with code.repeat(start, wanted) as loop:
            i, w = loop.values
            self.memory.write("int64", self.at(0, out, w.text), i)
            holds = self.machine.convert(self.read(1, self.at(1, mask, i.text)), "i64")
            loop.next = [Value(code.add(i.text, "1"), "i64"), self.machine.instruction("add", w, holds)]


def compact_ir(spec: AlongSpec, target: Target) -> str:
    """The LLVM text of the kernel: one function `kernel`, nothing undefined."""
    return Compact(spec, target).emit()
