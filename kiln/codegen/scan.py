"""Scan: a running total along one dim (cumsum and its relatives).

    state = start
    for i in 0 .. along:   (or backwards)     state = step(state, x[i], i);  out[i] = last of state

The step is one of kiln/ops/steps.py: one chain of operations per column, so 16 columns go side by side where
there are as many; else each alone. Operands: out, x; numbers: along.
"""

from __future__ import annotations

from kiln.codegen.along import Along, AlongSpec
from kiln.codegen.code import LANES, Value
from kiln.codegen.emit import literal
from kiln.codegen.target import Target
from kiln.ops.apply import convert_dtype
from kiln.ops.kinds import COMPUTE
from kiln.ops.scalar import Scalar, convert, round_to
from kiln.ops.steps import SCANS, state_type


class Scan(Along):
    """A kernel being written; `what` of its pattern: the op's name, the dtype elements are taken as, and
    forward or reverse.
    """

    block = LANES

    def __init__(self, spec: AlongSpec, target: Target) -> None:
        super().__init__(spec, target)
        self.name, self.taken, self.direction = spec.what.split()
        self.type = state_type(self.name, self.taken)

    def columns(self, unit: str, pointers: list[str], count: str) -> None:
        """16 columns together, or each of fewer alone."""
        code = self.code
        whole = code.op(f"icmp eq i64 {count}, {LANES}")
        with code.when(whole):
            self._along(pointers, LANES)
        alone = code.op(f"select i1 {whole}, i64 0, i64 {count}")
        with code.loop("0", alone, 1) as column:
            self._along([self.column(k, p, column.index) for k, p in enumerate(pointers)], 1)

    def _along(self, pointers: list[str], width: int) -> None:
        """The running total of `width` columns."""
        code, machine = self.code, self.machine
        start = SCANS[self.name].start(self.type)
        first = [machine.spread(literal(s), width) for s in start]
        last = code.sub(self.number[0], "1")
        with code.loop("0", self.number[0], 1, first) as turn:
            place = turn.index if self.direction == "forward" else code.sub(last, turn.index)
            out, x = (self.at(k, p, place) for k, p in enumerate(pointers))
            element = self.read(1, x) if width == 1 else self.read_lanes(1, x)
            state, result = self._step(turn.values, element, place)
            turn.next = [machine.spread(v, width) for v in state]
            if width == 1:
                self.memory.write(self.spec.dtypes[0], out, result)
            else:
                self.write_lanes(0, out, result)

    def _step(self, state: list[Value], element: Value, place: str) -> tuple[list[Value], Value]:
        """The state after an element, and what is stored."""
        source, dtype = self.spec.dtypes[1], self.spec.dtypes[0]

        def after(*leaves: Scalar) -> list[Scalar]:
            *before, x, position = leaves
            taken = convert(convert_dtype(x, source, self.taken), self.type)
            found = SCANS[self.name].step(tuple(before), taken, position)
            return [*found, round_to(convert(found[-1], COMPUTE[dtype]), dtype)]

        *values, result = self.computed(after, [*state, element, Value(place, "i64")])
        return values, result


def scan_ir(spec: AlongSpec, target: Target) -> str:
    """The LLVM text of the kernel: one function `kernel`, nothing undefined."""
    return Scan(spec, target).emit()
