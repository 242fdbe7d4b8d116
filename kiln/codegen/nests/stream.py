"""Non-temporal stores, which bypass the caches: of a large output no line is read first, and none evicted.

entry:  past_k = the output has 16 MB or more, its rows begin at lines, and no input lies in its memory
        (of arrays joined, the whole counts: each part would be small)
turn:   if past_k and 16 elements each: streaming stores;  else plain ones
end:    if a past_k: sfence, because streaming stores follow no other order

A plain store reads the line it writes; of 4M floats a sum moves 64 MB with plain stores and 48 MB without.
An output that a cache holds is read back faster than it would be from memory: measured (a third cache of
480 MB for many cores), plain stores are as fast up to 24 MB, and an output that is read again 20 to 30 %
cheaper; from 48 MB on streaming ones win by a fifth. What is read is asked for ahead then (`Frame.fetch`).
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.codegen.ir.code import Code
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.memory import MEMORY
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.nest import Nest

STREAM_FROM = 16 << 20  # bytes of an output


class Streams:
    """Which outputs of a call bypass the caches: an i1 each, where they may."""

    def __init__(
        self,
        code: Code,
        nest: Nest,
        size: list[Index],
        stride: list[list[Index]],
        base: list[Pointer],
        number: Callable[[int], Value],
    ) -> None:
        self.code, self.nest = code, nest
        self.size, self.stride, self.base, self.number = size, stride, base, number
        self.past: dict[int, Condition] = {}

    def ask(self, lane_dim: int, start: Integer = 0) -> None:
        """Decides it for outputs whose points are neighbours along `lane_dim`, from position `start` on."""
        if self.nest.small or not self.code.target.streams:
            return
        for k in sorted({k for k, _ in self.nest.stores}):
            operand = self.nest.operands[k]
            strides = operand.strides
            if not operand.folds and strides[lane_dim] == "1" and "0" not in strides:
                self.past[k] = self._passes(k, lane_dim, start)

    def _passes(self, k: int, lane_dim: int, start: Integer) -> Condition:
        operand = self.nest.operands[k]
        itemsize = MEMORY[operand.dtype][1]
        count, place = self.code.index(itemsize), self.base[k].address()
        for size in self.size if operand.part < 0 else [self.code.index(self.number(operand.part))]:
            count = count * size
        for d in range(len(self.size)):
            if d != lane_dim:
                place = place | (self.stride[k][d] * itemsize)
        if not isinstance(start, int):
            place = place | (start * itemsize)
        found = count >= STREAM_FROM
        uneven = place & 63  # within a cache line
        found = found & uneven.equals(0)
        for j, other in enumerate(self.nest.operands):
            if other.mode == "in" and other.strides == operand.strides:
                differ = self.base[j].differs(self.base[k])
                found = found & differ
        return found

    def fence(self) -> None:
        """What the end of the kernel needs."""
        if not self.past:
            return
        first, *others = self.past.values()
        for other in others:
            first = first | other
        with self.code.when(first):
            self.code.call("llvm.x86.sse.sfence", "void", [])
