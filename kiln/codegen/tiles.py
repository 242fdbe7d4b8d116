"""The schedule "map" where an operand's neighbours lie along the last dim but one: a transposed input.

    at = begin
    while at < end:
        if 16 rows or more are left, of this dim and of the range:         up to 64 rows
            for v in 0 .. size by 16:
                for each 16 of the rows:
                    each transposed operand:  16 vectors along the rows, turned in registers -> buffer
                    for r in 0 .. 16:  store f(loads at v, row r of the buffers)
            the columns that are left, row by row;  at += rows
        else: one row;  at += 1

Every cache line of a transposed operand is read once, and whole.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.codegen.code import LANES
from kiln.codegen.emit import Expression
from kiln.codegen.frame import Frame, Step
from kiln.codegen.memory import element
from kiln.codegen.nest import Nest
from kiln.codegen.value import Value

SQUARE = 8  # turned at once: 8 lines may share one cache set
MOST_GROUPS = 4  # 16 rows each: neighbouring lines of one page are read together
Row = Callable[[dict[int, str], str], None]


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
        self.turned = transposed(frame.nest)
        self.buffers = {k: self.code.slot(self._kind(k), LANES * LANES) for k in self.turned}

    def _kind(self, k: int) -> str:
        return element(self.frame.nest.operands[k].dtype)

    def emit(self) -> None:
        """The loop over blocks of rows and single rows."""
        frame, code = self.frame, self.code
        test: Callable[[list[Value]], str] = lambda v: code.op(f"icmp slt i64 {v[0].text}, %end")  # noqa: E731
        with code.repeat([Value("%begin", "i64")], test) as turn:
            at = turn.values[0].text
            index = dict(enumerate(frame.cut(at, frame.size[:-1])))
            left = code.sub(frame.size[self.across], index[self.across])
            left = code.minimum(left, code.sub("%end", at))
            groups = code.minimum(code.op(f"sdiv i64 {left}, {LANES}"), str(MOST_GROUPS))
            enough = code.op(f"icmp sgt i64 {groups}, 0")
            rows = code.op(f"select i1 {enough}, i64 {code.mul(groups, str(LANES))}, i64 1")
            whole = code.op(f"and i64 {frame.size[self.lane_dim]}, -{LANES}")
            whole = code.op(f"select i1 {enough}, i64 {whole}, i64 0")
            self._block(index, whole, groups)
            with code.loop("0", rows, 1) as more:
                self.row({**index, self.across: code.add(index[self.across], more.index)}, whole)
            turn.next = [Value(code.add(at, rows), "i64")]

    def _block(self, index: dict[int, str], whole: str, groups: str) -> None:
        """The whole squares of up to 64 rows."""
        frame, code = self.frame, self.code
        scope = frame.scope(frame.outer, Step(index, lambda k: frame.address(k, index)))
        frame.hoist(scope, frame.roots, frozenset({self.lane_dim, self.across}), True)
        with code.loop("0", whole, LANES) as columns:
            with code.loop("0", groups, 1) as group:
                first = code.add(index[self.across], code.mul(group.index, str(LANES)))
                for k in self.turned:
                    self._turn(k, {**index, self.across: first, self.lane_dim: columns.index})
                with code.loop("0", str(LANES), 1) as row:
                    here = {**index, self.across: code.add(first, row.index)}
                    self._row(scope, here, columns.index, row.index)

    def _row(self, scope: Expression, index: dict[int, str], column: str, row: str) -> None:
        """16 columns of one row, its transposed operands read from the buffers."""
        frame, nest = self.frame, self.frame.nest
        where = {**index, self.lane_dim: column}
        step = Step(index, lambda k: frame.address(k, where), self.lane_dim, column)
        for k, buffer in self.buffers.items():
            step.staged[k] = self.code.offset(buffer, self._kind(k), self.code.mul(row, str(LANES)))
        inside = frame.scope(scope, step)
        results = [(k, inside.value(value)) for k, value in nest.stores]
        for k, value in results:
            frame.store(k, value, step)
        frame.settle()

    def _turn(self, k: int, where: dict[int, str]) -> None:
        """buffer[i][j] = operand k at row i, column j of the square that begins at `where`.

        each 8 columns, each 8 rows:
            s = 1, 2, 4:  vectors i and i + s exchange the s x s squares off the diagonal
        """
        code, kind, stride = self.code, self._kind(k), self.frame.stride[k][self.lane_dim]
        square, vector = self.frame.address(k, where), f"<{SQUARE} x {kind}>"
        with code.loop("0", str(LANES), SQUARE) as column:
            first = code.offset(square, kind, code.mul(column.index, stride))
            into = code.offset(self.buffers[k], kind, column.index)
            with code.loop("0", str(LANES), SQUARE) as row:
                address = code.offset(first, kind, row.index)
                places = [code.offset(address, kind, code.mul(str(j), stride)) for j in range(SQUARE)]
                rows = [code.op(f"load {vector}, ptr {place}, align 1") for place in places]
                for i, values in enumerate(self._exchange(vector, rows)):
                    place = code.mul(code.add(row.index, str(i)), str(LANES))
                    place = code.offset(into, kind, place)
                    code.line(f"store {vector} {values}, ptr {place}, align {SQUARE}")

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
