"""The schedule "map" where an operand's neighbours lie along the last dim but one: a transposed input.

    at = begin
    while at < end:
        if 16 rows or more are left, of this dim and of the range:         up to 64 rows
            for v in 0 .. size by 16:
                for each 16 of the rows:
                    each transposed operand:  16 vectors along the rows, transposed in registers -> buffer
                    for r in 0 .. 16:  store f(loads at v, row r of the buffers)
            the columns that are left, row by row;  at += rows
        else: one row;  at += 1

Every cache line of a transposed operand is read once, and whole.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.codegen.ir.emit import Expression
from kiln.codegen.ir.index import Index, Integer
from kiln.codegen.ir.memory import element
from kiln.codegen.nests.frame import Frame, Step
from kiln.codegen.nests.nest import Nest
from kiln.table.order import LANES

SQUARE = 8  # transposed at once: 8 lines may share one cache set
Row = Callable[[dict[int, Index], Integer], None]


def transposed(nest: Nest) -> list[int]:
    """The inputs whose neighbours lie along the last dim but one."""
    dims = len(nest.dims)
    inputs = [k for k, o in enumerate(nest.operands) if o.mode == "in" and len(o.strides) == dims]
    return [k for k in inputs if dims > 1 and nest.operands[k].strides[-2:] == ("1", "s")]


class Tiles:
    """A map with transposed inputs, being written; `row` writes one row of it from a column on."""

    def __init__(self, frame: Frame, row: Row) -> None:
        self.frame, self.code, self.row = frame, frame.code, row
        self.lane_dim = len(frame.nest.dims) - 1
        self.across = self.lane_dim - 1
        self.transposed = transposed(frame.nest)
        self.buffers = {k: self.code.slot(self._kind(k), LANES * LANES) for k in self.transposed}

    def _kind(self, k: int) -> str:
        return element(self.frame.nest.operands[k].dtype)

    def emit(self) -> None:
        """The loop over blocks of rows and single rows."""
        frame, code = self.frame, self.code
        begin, end = code.indices("begin", "end")
        with code.repeat([begin], lambda turn: turn.indices[0] < end) as turn:
            (at,) = turn.indices
            index = dict(enumerate(frame.cut(at, frame.size[:-1])))
            left = frame.size[self.across] - index[self.across]
            left = left.min(end - at)
            groups = (left // LANES).min(4)  # neighbouring lines of one page are read together
            enough = groups > 0
            rows = enough.choose(groups * LANES, 1)
            whole = frame.size[self.lane_dim] & -LANES
            whole = enough.choose(whole, 0)
            self._block(index, whole, groups)
            with code.loop(0, rows, 1) as more:
                self.row({**index, self.across: index[self.across] + more.index}, whole)
            turn.next = [(at + rows)]

    def _block(self, index: dict[int, Index], whole: Index, groups: Index) -> None:
        """The whole squares of up to 64 rows."""
        frame, code = self.frame, self.code
        scope = frame.scope(frame.outer, Step(index, lambda k: frame.address(k, index)))
        frame.hoist(scope, frame.roots, frozenset({self.lane_dim, self.across}), True)
        with code.loop(0, whole, LANES) as columns:
            with code.loop(0, groups, 1) as group:
                first = index[self.across] + group.index * LANES
                for k in self.transposed:
                    self._turn(k, {**index, self.across: first, self.lane_dim: columns.index})
                with code.loop(0, LANES, 1) as row:
                    here = {**index, self.across: first + row.index}
                    self._row(scope, here, columns.index, row.index)

    def _row(self, scope: Expression, index: dict[int, Index], column: Index, row: Index) -> None:
        """16 columns of one row, its transposed operands read from the buffers."""
        frame, nest = self.frame, self.frame.nest
        where = {**index, self.lane_dim: column}
        step = Step(index, lambda k: frame.address(k, where), self.lane_dim, column)
        for k, buffer in self.buffers.items():
            step.staged[k] = buffer.element(self._kind(k), row * LANES)
        inside = frame.scope(scope, step)
        results = [(k, inside.value(value)) for k, value in nest.stores]
        for k, value in results:
            frame.store(k, value, step)
        frame.settle()

    def _turn(self, k: int, where: dict[int, Index]) -> None:
        """buffer[i][j] = operand k at row i, column j of the square that begins at `where`.

        each 8 columns, each 8 rows:
            s = 1, 2, 4:  vectors i and i + s swap the s x s squares off the diagonal
        """
        code, kind, stride = self.code, self._kind(k), self.frame.stride[k][self.lane_dim]
        square, vector = self.frame.address(k, where), f"<{SQUARE} x {kind}>"
        with code.loop(0, LANES, SQUARE) as column:
            first = square.element(kind, column.index * stride)
            into = self.buffers[k].element(kind, column.index)
            with code.loop(0, LANES, SQUARE) as row:
                address = first.element(kind, row.index)
                places = [address.element(kind, j * stride) for j in range(SQUARE)]
                rows = [place.load(vector, 1) for place in places]
                for i, values in enumerate(self._exchange(vector, rows)):
                    place = into.element(kind, (row.index + i) * LANES)
                    place.store(f"{vector} {values}", SQUARE)

    def _exchange(self, vector: str, rows: list[str]) -> list[str]:
        """Eight vectors of eight, transposed."""
        size = 1
        while size < SQUARE:
            low = [n + SQUARE - size if n & size else n for n in range(SQUARE)]
            high = [n + SQUARE if n & size else n + size for n in range(SQUARE)]
            for i in (n for n in range(SQUARE) if not n & size):
                pair = rows[i], rows[i + size]
                rows[i], rows[i + size] = (self._shuffle(vector, *pair, order) for order in (low, high))
            size *= 2
        return rows

    def _shuffle(self, vector: str, x: str, y: str, order: list[int]) -> str:
        text = ", ".join(f"i32 {n}" for n in order)
        return self.code.op(f"shufflevector {vector} {x}, {vector} {y}, <{SQUARE} x i32> <{text}>")
