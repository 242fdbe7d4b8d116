"""Nests of block 1: the "rows" schedule whose reductions take their elements one after the other.

    total = start
    for v in 0 .. length, 16 at a time:   e[16] = f(v ..);   total = total . e[0];  ...  total . e[15]

Partial results of blocks are combined so: with them this is the order of one long reduction.
"""

from __future__ import annotations

from kiln.codegen.ir.emit import Expression
from kiln.codegen.ir.index import Index
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.nest import Nest
from kiln.codegen.nests.reduce import Reducer
from kiln.codegen.nests.rows import Rows, grouped, steps
from kiln.codegen.target import Target
from kiln.table.order import LANES


class Sequence(Rows):
    """A nest of block 1, being written."""

    def _reduce(self, scope: Expression, q: int, reducers: list[Reducer], cheap: bool) -> list[Value]:
        """Totals of width 1; lanes beyond the end hold the identity."""
        start = [v for r in reducers for v in r.initial(self.length)]

        def body(v: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
            elements = self._step(scope, q, v, count, mask)
            parts = zip(reducers, grouped(reducers, elements))
            lanes = [x for r, e in parts for x in r.present(e, mask)]
            for lane in range(LANES):
                values = steps(reducers, values, [self._lane(x, lane) for x in lanes])
            return values

        return self.frame.lanes(0, self.length, start, 1, body)

    def _lane(self, x: Value, lane: int) -> Value:
        return Value(self.code.op(f"extractelement {x.typed}, i64 {lane}"), x.type, 1)


def emit_sequence(nest: Nest, target: Target) -> str:
    """The kernel of a nest of block 1, as LLVM text."""
    assert nest.dims.count("r") == 1, "a nest of block 1 reduces one dim"
    return Sequence(nest, target).emit()
