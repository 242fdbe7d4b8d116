"""The epilogue and the prologues of a GEMM kernel: expressions over blocks of rows and columns.

finish    outputs = expressions(the sums in a block, operands)
          accumulators = chains of such, 16 lanes for every row of 128 columns
compute   a block of a factor = expression(operands), which no array holds
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from kiln.codegen.gemm.arguments import BATCH, arguments_of
from kiln.codegen.gemm.driver_spec import Launches, driver_spec_of
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.spec import GemmSpec
from kiln.codegen.ir.emit import Expression, rare_families, together
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.literal import number
from kiln.codegen.ir.memory import MEMORY, Memory, compute_type
from kiln.codegen.ir.memory import element as raw
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import Value, llvm_type
from kiln.codegen.nests.nest import TURN
from kiln.codegen.nests.overlap import side_by_side
from kiln.codegen.nests.reduce import Reducer
from kiln.codegen.nests.rows import grouped
from kiln.codegen.target import Target
from kiln.scalars.scalar import Scalar, topological
from kiln.table.order import CHAIN, GROUP, LANES

CALL, ROW, LANE = 0, 1, 2  # how often a scalar is computed
AHEAD = 4  # rows of outputs: a block of them is on as many pages, where the machine does not prefetch
EARLY = 16  # rows of what a factor is computed from


class _Row(NamedTuple):
    """A row of the block: what is known in it, its sums, each operand's row and the step of its columns."""

    scope: Expression
    src: Pointer
    row: dict[int, Pointer]
    unit: dict[int, Index]


class _Vector(NamedTuple):
    """Sixteen columns: the first, each operand's place and the block's, how many of them exist."""

    column: Index
    place: dict[int, Pointer]
    address: Pointer
    exist: Index | None
    mask: Value | None


class Block(NamedTuple):
    """What lies in a block: elements of a dtype, sums or a factor's, in panels of some columns."""

    dtype: str
    panel: int = 0  # columns; 0: all of them are one

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return MEMORY[self.dtype][1]


class _Rectangle:
    """A routine under construction; operand 0, which it loads or stores, is the block."""

    def __init__(
        self,
        target: Target,
        name: str,
        spec: GemmSpec,
        block: Block,
        stores: tuple[tuple[int, Scalar], ...],
        launches: Launches | None,
    ) -> None:
        batch = ", ".join(f"i64 %b{d}" for d in range(BATCH))
        params = f"{batch}, i64 %row, i64 %rows, i64 %col, i64 %cols, ptr %src, i64 %ss"
        self.fills = any(k == 0 for k, _ in stores)
        self.code = Routine(
            target, name, f"ptr %ptr, ptr %arg, {params}" + (", i64 %ps" if self.fills else "")
        )
        self.memory = Memory(self.code)
        self.spec, self.arguments = spec, arguments_of(spec)
        self.driver = driver_spec_of(spec, target, launches)
        self.block, self.stores = block, stores
        self.nodes = topological([value for _, value in stores])
        self.level: dict[int, int] = {}
        for node in self.nodes:
            self.level[id(node)] = max([self._leaf_level(node), *(self.level[id(a)] for a in node.args)])
        self.code.rare = rare_families(self.nodes, lambda node: self.level[id(node)])
        self.loads = sorted({n.data for n in self.nodes if n.op == "load" and n.data})
        self.used = sorted({*self.loads, *(k for k, _ in stores if k)})
        self._fold()

    def _fold(self) -> None:
        """The reductions that stores are folded by; of argmax and argmin places are the next store."""
        self.reducers: list[Reducer] = []
        self.folds: list[int] = []
        for k, value in self.stores:
            if k and self.spec.operands[k - 1].folds:
                self.folds.append(k)
                if value is not TURN:
                    mode = self.spec.operands[k - 1].mode
                    self.reducers.append(Reducer(self.code, Scalar(mode, (value,), value.type)))

    def _leaf_level(self, node: Scalar) -> int:
        if node.op == "index":
            return LANE
        if node.op != "load":
            return CALL
        return LANE if node.data == 0 or self.spec.operands[node.data - 1].strides[1] != "0" else ROW

    def _stride(self, k: int, dim: int | str) -> Index:
        """Operand k's stride along a dim of the batch, "row" or "column", in bytes."""
        operand = self.spec.operands[k - 1]
        size = MEMORY[operand.dtype][1]
        kind = "s" if isinstance(dim, int) else operand.strides[dim == "column"]
        if kind in "01":
            return self.code.index(size if kind == "1" else 0)
        return self.driver.word(self.code, "stride", k, dim) * size

    def write(self) -> Routine:
        """Numbers; each row: what varies by row; each 16 columns: the expression and its stores."""
        code, scope = self.code, Expression(self.code, self._call_leaf)
        block = code.pointer("%src")
        first_row, rows, col, cols, pitch = code.indices("row", "rows", "col", "cols", "ss")
        self._hoist(scope, CALL)
        base, step, unit = {}, {}, {}
        for k in self.used:
            start = code.operand(self.arguments.pointer(k))
            step[k], unit[k] = self._stride(k, "row"), self._stride(k, "column")
            column = self._accumulators(col) if k in self.folds else col
            batch = [(self._stride(k, d), code.index(f"%b{d}")) for d in range(BATCH)]
            places = (*batch, (step[k], first_row), (unit[k], column))
            base[k] = start[*(stride * at for stride, at in places)]
        self.step = step
        with code.times(rows) as r:
            row = {k: base[k][r * step[k]] for k in self.used}
            src = block[r * pitch]
            inner = scope.inner(lambda node: self._read_one(node, row))
            self._hoist(inner, ROW)
            at = _Row(inner, src, row, unit)
            if self.folds:
                self._groups(at)
            else:
                self._span(at, code.index(0), cols)
        return code

    def _groups(self, at: _Row) -> None:
        """Groups of columns, which leave their chains."""
        code = self.code
        cols = code.index("%cols")
        with code.times(cols, GROUP) as start:
            left = cols - start
            chains = self._span(at, start, start + left.min(GROUP))
            count = left.min(LANES)
            mask = self.memory.mask(count)
            for k, chain in zip(self.folds, chains):
                dtype = self.spec.operands[k - 1].dtype
                place = at.row[k].element(raw(dtype), self._accumulators(start))
                code.prefetch(place[self.step[k] * AHEAD], write=True)
                self.memory.write_lanes(dtype, place, chain, count, mask)

    def _accumulators(self, columns: Index) -> Index:
        """How many accumulators belong to whole groups of columns."""
        return columns // CHAIN

    def _span(self, at: _Row, start: Index, stop: Index) -> list[Value]:
        """Columns of a row, 16 at a time; the chains of what is folded."""
        code = self.code
        lanes = [n for n in self.nodes if n.args and self.level[id(n)] == LANE]
        copies = 1 if self.folds else side_by_side(lanes, code.target)
        if copies > 1:
            wide = start + (stop - start) // (LANES * copies) * (LANES * copies)
            with code.loop(start, wide, LANES * copies) as turn:
                self._vectors(at, [turn.index + LANES * copy for copy in range(copies)], None, [])
            start = wide
        whole = start + ((stop - start) & -LANES)
        with code.loop(start, whole, LANES, self._nothing()) as turn:
            turn.next = self._vectors(at, [turn.index], None, turn.values)
        with code.loop(whole, stop, LANES, turn.values) as turn:
            count = (stop - turn.index).min(LANES)
            turn.next = self._vectors(at, [turn.index], count, turn.values)
        return turn.values

    def _hoist(self, scope: Expression, level: int) -> None:
        for node in self.nodes:
            if self.level[id(node)] == level and node.op != "const":
                scope.value(node)

    def _call_leaf(self, node: Scalar) -> Value:
        return self.code.number(self.arguments.word("number", node.data), self.spec.numbers[node.data])

    def _read_one(self, node: Scalar, row: dict[int, Pointer]) -> Value:
        return self.memory.read(self.spec.operands[node.data - 1].dtype, row[node.data])

    def _vectors(
        self, at: _Row, columns: list[Index], count: Index | None, chains: list[Value]
    ) -> list[Value]:
        """Sixteen columns of a row from each of `columns` on, of which `count` exist (None: all)."""
        mask = None if count is None else self.memory.mask(count)
        vectors = [self._vector_at(at, c, count, mask) for c in columns]
        scopes = [at.scope.inner(partial(self._read, vector)) for vector in vectors]
        # all reads before any write: may be in place
        values = [together(scopes, root) for _, root in self.stores]
        elements: list[Value] = []
        for (k, _), found in zip(self.stores, values):
            for vector, value in zip(vectors, found):
                if k in self.folds:
                    elements.append(self.memory.machine.spread(value, LANES))
                else:
                    self._write(k, vector, value)
        return self._follow(chains, elements, columns[0], mask)

    def _vector_at(self, at: _Row, c: Index, count: Index | None, mask: Value | None) -> _Vector:
        place = {k: at.row[k][c * at.unit[k]] for k in self.used if k not in self.folds}
        address = at.src[c * self.block.bytes]
        if self.fills:  # the panels before, where they are not side by side
            gap = self.code.index("%ps") - self.block.panel * self.block.bytes
            address = address[c // self.block.panel * gap]
        return _Vector(c, place, address, count, mask)

    def _read(self, vector: _Vector, node: Scalar) -> Value:
        """A leaf."""
        if node.op == "index":  # of TURN, which is the same for all 16
            return (self.code.index("%col") + vector.column).value
        k = node.data
        if k == 0:
            summed = compute_type(self.block.dtype)
            total = vector.address.load(llvm_type(summed, LANES), self.block.bytes)
            return Value(total, summed, LANES)
        operand = self.spec.operands[k - 1]
        if operand.strides[1] == "1":
            return self.memory.read_lanes(operand.dtype, vector.place[k], vector.exist, vector.mask)
        return self.memory.gather(operand.dtype, vector.place[k], self._positions(k), vector.mask)

    def _write(self, k: int, vector: _Vector, value: Value) -> None:
        """A store of operand k, 0 being the block."""
        if k == 0:
            self._fill(vector, value)
            return
        self.code.prefetch(vector.place[k][self.step[k] * AHEAD], write=True)
        operand = self.spec.operands[k - 1]
        if operand.strides[1] == "1":
            self.memory.write_lanes(operand.dtype, vector.place[k], value, vector.exist, vector.mask)
        else:
            self.memory.scatter(operand.dtype, vector.place[k], self._positions(k), value, vector.mask)

    def _follow(
        self, chains: list[Value], elements: list[Value], c: Index, mask: Value | None
    ) -> list[Value]:
        """The chains and the elements at column `c`, with which they begin where a group does."""
        if not elements:
            return chains
        begins = (c & (GROUP - 1)).equals(0)
        found: list[Value] = []
        both = zip(self.reducers, grouped(self.reducers, chains), grouped(self.reducers, elements))
        for reducer, chain, (x, *turn) in both:
            found += reducer.follow(chain, [*reducer.present([x], mask), *turn], begins)
        return found

    def _nothing(self) -> list[Value]:
        """Chains before their first element."""
        found = []
        for reducer in self.reducers:
            found.append(reducer.identity(LANES)[0])
            if reducer.positions:
                found.append(self.memory.machine.spread(number(0, TURN.type), LANES))
        return found

    def _fill(self, vector: _Vector, value: Value) -> None:
        """Elements of a factor into the block."""
        for k in self.loads:
            if self.spec.operands[k - 1].strides == ("s", "1"):
                self.code.prefetch(vector.place[k][self.step[k] * EARLY])
        machine, dtype = self.memory.machine, self.block.dtype
        stored = machine.convert(machine.spread(value, LANES), compute_type(dtype))
        self.memory.write_lanes(dtype, vector.address, stored, vector.exist, vector.mask)

    def _positions(self, k: int) -> Value:
        return self.memory.strided(self.driver.word(self.code, "stride", k, "column"))


def finish(target: Target, spec: GemmSpec, launches: Launches | None = None) -> Routine:
    """The routine finish: rows x cols sums at src become outputs from (*batch, row, col) on.

    each row:  each 16 columns:  sum = load src;  x_k = load operand k;  store outputs, expression(sum, x)
                                 chain = chain . expression(sum, x)
               each 128 columns: store accumulators, chain
    """
    block = Block(element_of(spec.dtype).total)
    return _Rectangle(target, "finish", spec, block, spec.stores, launches).write()


def compute(
    target: Target, spec: GemmSpec, factor: str, block: Block, launches: Launches | None = None
) -> Routine:
    """The routine that computes a block of a factor: rows x cols elements at src, from (*batch, row, col) on.

    each row:  each 16 columns:  x_k = load operand k;  store src, expression(x)

    Panels of columns lie `ps` bytes apart: side by side in a block of rows.
    """
    stores = ((0, spec.prologues[factor].value),)
    return _Rectangle(target, f"compute_{factor}", spec, block, stores, launches).write()
