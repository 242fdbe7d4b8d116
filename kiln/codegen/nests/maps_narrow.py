"""Rows of a map so short that a vector holds several: 16 elements at a time, as they lie in memory.

Where the outputs' rows are narrow and follow one another, element e of them is row e / width, column
e % width. Of a width that divides 48, three vectors hold whole rows, so that lane l of every third vector is
in the same column: a row that is the same for all stands 48 elements long in a buffer, and positions go on by
a constant.

    position_j[l] = (16 j + l) / width * stride_row + (16 j + l) % width * stride_column         j = 0, 1, 2
    for v in 0 .. rows / (48 / width) * 48 by 16:
        store f(loads at v, at v % 48 of a buffer, or at position_0)
        position = position_1, position_2, position_0 + 48 / width * stride_row

The rows that are left, fewer than 48 elements, go the other ways of a map.
"""

from __future__ import annotations

from kiln.codegen.ir.code import IOTA64
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.frame import EXPENSIVE, Frame, Step
from kiln.codegen.nests.rows import SHORT
from kiln.scalars.scalar import Scalar
from kiln.table.order import LANES

TURNS = 3  # vectors that hold whole rows
WHOLE = TURNS * LANES
WIDEST = 12  # columns: the largest divisor of 48 below a vector
FEWEST = 4 * WHOLE  # elements: fewer are done before a buffer is filled
SCALE = 16  # x / width is x * ceil(2 ** 16 / width) >> 16, for x up to 48


class Narrow:
    """A nest of schedule "map" over rows of two dims, being written."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.code = frame.code
        self.width = frame.size[1]
        some = self.width.max(1)  # of empty rows there is nothing to do
        self.scale = (some + ((1 << SCALE) - 1)).udiv(some)
        self.step = self.scale * WHOLE >> SCALE  # rows of 48 elements
        direct = {n.data for n in frame.nodes if n.op == "load" and not n.args}
        self.read = sorted(k for k in direct if frame.nest.operands[k].strides[1] == "1")
        self.placed = [n for n in frame.nodes if n.op == "index" or self._gathered(n)]

    @staticmethod
    def suits(frame: Frame) -> bool:
        """Whether the pattern has outputs whose rows may follow one another, and few operations; not where a
        row is read at a computed place, as one run.
        """
        nest, column = frame.nest, Scalar("index", (), "i64", 1)
        runs = any(n.op == "load" and column in n.args for n in frame.nodes)
        if runs or len(nest.dims) != 2 or frame.cost(frame.roots, frozenset({0, 1})) >= EXPENSIVE:
            return False
        return {nest.operands[k].strides for k, _ in nest.stores} == {("s", "1")}

    def _gathered(self, node: Scalar) -> bool:
        if node.op != "load" or node.args or node.data in self.read:
            return False
        strides: tuple[str, ...] = self.frame.nest.operands[node.data].strides
        return strides != ("0", "0")

    def emit(self, begin: Index, end: Index) -> Index:
        """The rows from `begin` on, in whole groups of 48 elements; the first row that is left."""
        count = (end - begin) * self.width
        groups = (self._fits() & (count >= FEWEST)).choose(count.udiv(WHOLE), 0)
        left = begin + groups * self.step
        with self.code.when(groups > 0):
            self._groups(begin, left)
        return left

    def _fits(self) -> Condition:
        """Whether the call's rows are that narrow, and follow one another or are the same."""
        stride, gathers = self.frame.stride, any(n.op == "load" and n.args for n in self.frame.nodes)
        gathers = gathers or any(n.op == "load" for n in self.placed)
        found = (self.width <= (SHORT if gathers else WIDEST)) & (self.width * self.step).equals(WHOLE)
        for k, _ in self.frame.nest.stores:
            found = found & stride[k][0].equals(self.width)
        for k in self.read:
            found = found & (stride[k][0].equals(self.width) | stride[k][0].equals(0))
        return found

    def _groups(self, begin: Index, end: Index) -> None:
        """Rows `begin` to `end`, whole groups."""
        frame, nest, code = self.frame, self.frame.nest, self.code
        same = {k: frame.stride[k][0].equals(0) for k in self.read}
        base = {k: self._repeated(k, same[k]) for k in self.read}
        vectors, growth = self._positions(begin)
        carried: list[Value | Index] = [code.index(0), *(v for turns in vectors for v in turns)]
        with code.loop(begin * self.width, end * self.width, LANES, carried) as turn:
            phase = turn.indices[0]
            places = {n: turn.values[1 + TURNS * i] for i, n in enumerate(self.placed)}
            inside = frame.scope(frame.outer, Step({}, frame.base.__getitem__))
            plain = inside.leaf

            def leaf(node: Scalar) -> Value:
                if node.op == "index":
                    return places[node]
                if node.op != "load" or node.args:
                    return plain(node)
                k, dtype = node.data, nest.operands[node.data].dtype
                if node in places:
                    return frame.memory.gather(dtype, frame.base[k], places[node], None)
                place = base[k].element(element(dtype), same[k].choose(phase, turn.index))
                return frame.memory.read_lanes(dtype, place, None, None)

            inside.leaf = leaf
            results = [(k, inside.value(value)) for k, value in nest.stores]
            for k, value in results:
                place = frame.base[k].element(element(nest.operands[k].dtype), turn.index)
                frame.memory.write_lanes(nest.operands[k].dtype, place, value, None, None)
            turn.next = [phase.equals(WHOLE - LANES).choose(0, phase + LANES)]
            for i, more in enumerate(growth):
                first, second, third = turn.values[1 + TURNS * i : 1 + TURNS * (i + 1)]
                turn.next += [second, third, self._instruction("add", first, more)]

    def _repeated(self, k: int, same: Condition) -> Pointer:
        """Where operand k is read: a buffer that repeats its one row, or itself."""
        code, kind = self.code, element(self.frame.nest.operands[k].dtype)
        buffer = code.slot(kind, WHOLE)
        with code.when(same), code.loop(0, WHOLE, 1) as turn:
            column = turn.index - (turn.index * self.scale >> SCALE) * self.width
            raw = self.frame.base[k].element(kind, column).load(kind, 1)
            buffer.element(kind, turn.index).store(f"{kind} {raw}", 1)
        return same.choose(buffer, self.frame.base[k])

    def _positions(self, begin: Index) -> tuple[list[list[Value]], list[Integer]]:
        """Of everything in `placed`, its positions in three turns from row `begin` on, and by how much they
        grow until the first one's next turn.
        """
        if not self.placed:
            return [], []
        iota, make = Value(IOTA64, "i64", LANES, True), self._instruction
        lanes = [make("add", iota, LANES * turn) for turn in range(TURNS)]
        down = [make("lshr", make("mul", lane, self.scale), SCALE) for lane in lanes]
        columns = [make("sub", lane, make("mul", row, self.width)) for lane, row in zip(lanes, down)]
        rows = [make("add", row, begin) for row in down]
        vectors, growth = list[list[Value]](), list[Integer]()
        for node in self.placed:
            if node.op == "index":
                vectors.append(columns if node.data else rows)
                growth.append(0 if node.data else self.step)
                continue
            along, across = self.frame.stride[node.data]
            places = [
                (make("mul", row, along), make("mul", column, across)) for row, column in zip(rows, columns)
            ]
            vectors.append([make("add", x, y) for x, y in places])
            growth.append(self.step * along)
        return vectors, growth

    def _instruction(self, text: str, x: Value, y: Value | Integer) -> Value:
        """`text x, y` of i64 lanes, y the same in all of them or another vector."""
        if not isinstance(y, Value):
            y = Value(f"{y}", "i64", 1, isinstance(y, int) or y.text.isdigit())
        return self.frame.memory.machine.instruction(text, x, y)
