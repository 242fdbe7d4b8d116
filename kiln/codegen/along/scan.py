"""Scan: a running total along one dim (cumsum and its relatives).

    state = start
    for i in 0 .. along:   (or backwards)     state = step(state, x[i], i);  out[i] = last of state

The step is one of kiln/ops/reductions/scan_and_scatter_steps.py: one chain of operations per column, so
columns go side by side: 16 as the lanes of vectors where they are neighbours in memory, else four at a time
(more rows a power of two apart would push each other out of the cache).
"""

from __future__ import annotations

from kiln.codegen.along.along import Along, AlongSpec
from kiln.codegen.ir.index import Index, Integer, Pointer
from kiln.codegen.ir.literal import literal
from kiln.codegen.ir.value import Value
from kiln.codegen.target import Target
from kiln.ops.reductions.scan_and_scatter_steps import SCANS, state_type
from kiln.scalars.scalar import Scalar, convert, round_to
from kiln.table.apply import convert_dtype
from kiln.table.kinds import COMPUTE
from kiln.table.order import LANES

TOGETHER = 4  # columns whose steps do not wait for each other


class Scan(Along):
    """A kernel being written; `what` of its pattern: the op's name, the dtype elements are taken as, and
    forward or reverse.
    """

    operands = ("out", "x")
    block = LANES

    def __init__(self, spec: AlongSpec, target: Target) -> None:
        super().__init__(spec, target)
        self.name, self.taken, self.direction = spec.what.split()
        self.type = state_type(self.name, self.taken)

    def columns(self, unit: Index, pointers: list[Pointer], count: Index) -> None:
        """16 neighbours as lanes; others side by side, then each alone."""
        code = self.code
        if self.alone:
            self._along([pointers], 1)
            return
        start: Integer = 0
        if self.spec.strides[0][-1] == "1":
            whole = count.equals(LANES)
            with code.when(whole):
                self._along([pointers], LANES)
            start = whole.choose(count, 0)
        else:
            last = count - (TOGETHER - 1)
            with code.loop(start, last, TOGETHER) as turn:
                places = [turn.index + k for k in range(TOGETHER)]
                self._along([self._at(pointers, place) for place in places], 1)
            start = turn.index
        with code.loop(start, count, 1) as turn:
            self._along([self._at(pointers, turn.index)], 1)

    def _at(self, pointers: list[Pointer], column: Index) -> list[Pointer]:
        return [self.column(k, p, column) for k, p in enumerate(pointers)]

    def _along(self, columns: list[list[Pointer]], width: int) -> None:
        """The running totals of columns, `width` lanes each, one step of each after the other's."""
        code = self.code
        own = [self.machine.spread(literal(s), width) for s in SCANS[self.name].start(self.type)]
        last = self.number["along"] - 1
        with code.loop(0, self.number["along"], 1, own * len(columns)) as turn:
            place = turn.index if self.direction == "forward" else last - turn.index
            places = [[self.at(k, p, place) for k, p in enumerate(pointers)] for pointers in columns]
            elements = [self.read(1, x) if width == 1 else self.read_lanes(1, x) for _, x in places]
            after: list[Value] = []
            for k, (out, _) in enumerate(places):
                before = turn.values[k * len(own) : (k + 1) * len(own)]
                state, result = self._step(before, elements[k], place)
                after += [self.machine.spread(v, width) for v in state]
                if width == 1:
                    self.memory.write(self.spec.dtypes[0], out, result)
                else:
                    self.write_lanes(0, out, result)
            turn.next = after

    def _step(self, state: list[Value], element: Value, place: Index) -> tuple[list[Value], Value]:
        """The state after an element, and what is stored."""
        source, dtype = self.spec.dtypes[1], self.spec.dtypes[0]

        def after(*leaves: Scalar) -> list[Scalar]:
            *before, x, position = leaves
            taken = convert(convert_dtype(x, source, self.taken), self.type)
            found = SCANS[self.name].step(tuple(before), taken, position)
            return [*found, round_to(convert(found[-1], COMPUTE[dtype]), dtype)]

        *values, result = self.computed(after, [*state, element, place.value])
        return values, result
