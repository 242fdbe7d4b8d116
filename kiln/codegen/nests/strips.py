"""The "strips" schedule: "rows" whose points are reduced down the columns as well, in the same pass.

Lane l of a column is its rows l, l + 16, ...: a strip. A unit of work is one strip of one block of 16384
rows. It leaves the lane's accumulator of every column; a nest with `block` 16 combines those of 16 lanes by
the tree and adds the blocks in ascending order. Together that is the order of "columns", whoever computes a
strip.

    for unit in begin .. end:                       unit = block * 16 + lane
        acc[:] = chain[:] = identity                an operand's row of the unit: acc, then chain
        for group of 128 rows of the block:
            for row in lane, lane + 16, ... of the group:
                the passes of "rows";  storing x at column j:  chain[j] = chain[j] . x
            for j:  acc[j] = acc[j] . chain[j];  chain[j] = identity
"""

from __future__ import annotations

from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.frame import Step
from kiln.codegen.nests.nest import Nest
from kiln.codegen.nests.reduce import Reducer
from kiln.codegen.nests.rows import Rows
from kiln.codegen.target import Target
from kiln.scalars.scalar import Scalar
from kiln.table.order import GROUP, LANES, REDUCE_BLOCK


class Strips(Rows):
    """A nest of schedule "strips", being written."""

    row_step = LANES

    def __init__(self, nest: Nest, target: Target) -> None:
        super().__init__(nest, target)
        self.fetching = max(self.fetching, 0)  # the next row is no neighbour
        folds = {k: value for k, value in nest.stores if nest.operands[k].folds}
        self.reducers = {
            k: Reducer(self.code, Scalar(nest.operands[k].mode, (x,), x.type)) for k, x in folds.items()
        }
        self.acc: dict[int, Pointer] = {}
        self.chain: dict[int, Pointer] = {}

    def units(self) -> None:
        """The strips of the call."""
        code, rows = self.code, self.frame.size[self.p[0]]
        first_unit, last_unit = code.indices("begin", "end")
        with code.loop(first_unit, last_unit, 1) as unit:
            block = unit.index.ashr(LANES.bit_length() - 1) * REDUCE_BLOCK
            first = block + (unit.index & (LANES - 1))
            limit = (block + REDUCE_BLOCK).min(rows)
            for k in self.reducers:
                kind = element(self.nest.operands[k].dtype)
                place = unit.index * self.frame.stride[k][self.p[0]]
                self.acc[k] = self.frame.base[k].element(kind, place)
                self.chain[k] = self.acc[k].element(kind, self.length)
            self._fold(True)
            with code.loop(first, limit, GROUP) as group:
                end = (group.index + GROUP).min(limit)
                with code.loop(group.index, end, LANES) as row:
                    self.point([row.index])
                self._fold(False)

    def address(self, k: int) -> Pointer:
        """Where operand k's row begins."""
        return self.chain[k] if k in self.chain else super().address(k)

    def stored(self, k: int, value: Value, step: Step) -> Value:
        """The value, or its column's chain and the value: all are read before any is written."""
        if k not in self.reducers:
            return value
        dtype, reducer = self.nest.operands[k].dtype, self.reducers[k]
        chain = self.frame.memory.read_lanes(dtype, step.pointer(k), step.count, step.mask)
        return reducer.step([chain], [reducer.machine.spread(value, LANES)])[0]

    def _fold(self, first: bool) -> None:
        """Adds the chains to the accumulators; the first time there is nothing to add."""
        memory = self.frame.memory

        def body(j: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
            for k, reducer in self.reducers.items():
                dtype, (nothing,) = self.nest.operands[k].dtype, reducer.identity(LANES)
                acc, chain = (p[k].element(element(dtype), j) for p in (self.acc, self.chain))
                total = nothing
                if not first:
                    old, new = (memory.read_lanes(dtype, p, count, mask) for p in (acc, chain))
                    (total,) = reducer.step([old], [new])
                memory.write_lanes(dtype, acc, total, count, mask)
                memory.write_lanes(dtype, chain, nothing, count, mask)
            return values

        self.frame.lanes(0, self.length, [], 1, body)


def emit_strips(nest: Nest, target: Target) -> str:
    """The kernel of a nest of schedule "strips", as LLVM text."""
    return Strips(nest, target).emit()
