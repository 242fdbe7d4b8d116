"""Compact: the positions at which a mask holds, as many as are asked for.

    i = w = 0;  while w < count and i < along:   out[w] = i;  w += mask[i];  i += 1

What is written where the mask does not hold is written over by the next. The mask may have lost some since it
was counted: then the last places are not written.
"""

from __future__ import annotations

from kiln.codegen.along.along import Along
from kiln.codegen.ir.code import Loop
from kiln.codegen.ir.index import Condition, Index, Pointer


class Compact(Along):
    """A kernel being written."""

    operands = ("out", "mask")
    numbers = ("count", "along")

    def columns(self, unit: Index, pointers: list[Pointer], columns: Index) -> None:
        """The one column there is."""
        code = self.code
        out, mask = pointers
        count, along = self.number["count"], self.number["along"]

        def wanted(turn: Loop) -> Condition:
            i, w = turn.indices
            more = w < count
            return more & (i < along)

        with code.repeat([code.index(0), code.index(0)], wanted) as loop:
            i, w = loop.indices
            self.memory.write("int64", self.at(0, out, w), i.value)
            holds = code.index(self.machine.convert(self.read(1, self.at(1, mask, i)), "i64"))
            loop.next = [i + 1, w + holds]
