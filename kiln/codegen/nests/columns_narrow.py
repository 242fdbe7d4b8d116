"""Columns side by side, and so few that a row does not fill a vector: 16 rows at a time, as they lie.

Where a row is one run of memory and the next follows at once, element e of 16 rows is row e / width, column
e % width, so that a lane of a column is one place of every 16 rows. The order is that of "columns".

    for block of 16384 rows:
        acc[16 * width] = identity
        for group of 128 rows:
            for v in 0 .. 16 * width by 16:    chain[v] = f(16 rows, v) . f(the next 16, v) ..   at most 8
            for e of the rows that are left:   chain[e] = chain[e] . f(e)                       fewer than 16
            for v:  acc[v] = acc[v] . chain[v]
        for j in 0 .. width:  res[j] = res[j] . tree(acc[j], acc[width + j], ...)
"""

from __future__ import annotations

from kiln.codegen.ir.emit import Expression
from kiln.codegen.ir.index import Condition, Index, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import LLVM, Value, llvm_type
from kiln.codegen.nests.frame import EXPENSIVE, Frame, Step
from kiln.codegen.nests.plan import Plan, above
from kiln.codegen.nests.reduce import Reducer
from kiln.codegen.nests.rows import grouped, identities, steps
from kiln.scalars.scalar import Scalar
from kiln.table.order import GROUP, LANES


class Narrow:
    """A pass of a nest of schedule "columns" over narrow rows, being written."""

    def __init__(self, frame: Frame, plan: Plan, column: int, row: int) -> None:
        self.frame = frame
        self.code = frame.code
        self.plan = plan
        self.column = column
        self.row = row
        self.width = frame.size[column]
        self.turn = self.width * LANES  # elements of 16 rows
        self.reads = self._reads()

    def _reads(self) -> list[int] | None:
        """The operands that are read, each in rows; None if anything else is."""
        frame, plan = self.frame, self.plan
        roots, both = plan.roots(0), frozenset({self.column, self.row})
        if plan.count != 1 or plan.stores[0] or frame.cost(roots, both) >= EXPENSIVE:
            return None
        found = set()
        for node in above(roots, None):
            if not frame.varies(node, both):
                continue
            if node.op == "index" or (node.op == "load" and (node.args or not self._in_rows(node))):
                return None
            if node.op == "load":
                found.add(node.data)
        plain = all(r.op not in ("argmax", "argmin") and r.args[0].type != "i1" for r in plan.reductions[0])
        return sorted(found) if plain and found else None

    def _in_rows(self, node: Scalar) -> bool:
        strides = self.frame.nest.operands[node.data].strides
        return (strides[self.column], strides[self.row] != "0") == ("1", True)

    def fits(self) -> Condition:
        """Whether the call's rows are narrow and lie one after the other."""
        assert self.reads is not None
        found = self.width < LANES
        for k in self.reads:
            found = found & self.frame.stride[k][self.row].equals(self.width)
        return found

    def reduce(
        self,
        scopes: tuple[Expression, Expression],
        index: dict[int, Index],
        pointers: list[Pointer],
        results: list[Pointer],
        length: Index,
        block: int,
    ) -> None:
        """Adds the rows to `results`; `scopes` hold what does not vary, for vectors and for scalars."""
        code = self.code
        self.scopes, self.index, self.pointers = scopes, index, pointers
        self.reducers = [Reducer(code, node) for node in self.plan.reductions[0]]
        self.nothing = identities(self.reducers)
        sums, chains = ([code.slot(LLVM[v.type], LANES * LANES) for v in self.nothing] for _ in range(2))
        with code.loop(0, length, block) as turn:
            limit = (turn.index + block).min(length)
            with code.loop(0, self.turn, LANES) as v:
                self._put(sums, v.index, self.nothing)
            with code.loop(turn.index, limit, GROUP) as group:
                self._group(group.index, (limit - group.index).min(GROUP), sums, chains)
            with code.loop(0, self.width, 1) as column:
                self._tree(column.index, sums, results)

    def _group(self, first: Index, rows: Index, sums: list[Pointer], chains: list[Pointer]) -> None:
        """Up to 128 rows: the chains of all lanes of all columns."""
        code, reducers = self.code, self.reducers
        turns = rows.udiv(LANES)
        start, left = first * self.width, (rows & (LANES - 1)) * self.width
        with code.loop(0, self.turn, LANES) as v:
            with code.loop(0, turns, 1, self.nothing) as turn:
                at = start + turn.index * self.turn + v.index
                turn.next = steps(reducers, turn.values, self._elements(self.scopes[0], at, self.column))
            self._put(chains, v.index, turn.values)
        rest = start + turns * self.turn
        with code.loop(0, left, 1) as e:
            old = self._get(chains, e.index, 1)
            self._put(
                chains, e.index, steps(reducers, old, self._elements(self.scopes[1], rest + e.index, -1))
            )
        with code.loop(0, self.turn, LANES) as v:
            old, chain = (self._get(b, v.index, LANES) for b in (sums, chains))
            self._put(sums, v.index, steps(reducers, old, chain))

    def _elements(self, scope: Expression, at: Index, lane_dim: int) -> list[Value]:
        """What is reduced, at the element `at` of all rows laid flat, or at 16 from there."""
        operands, reads = self.frame.nest.operands, self.reads or []

        def pointer(k: int) -> Pointer:
            start = self.pointers[k]
            return start.element(element(operands[k].dtype), at) if k in reads else start

        inside = self.frame.scope(scope, Step(self.index, pointer, lane_dim))
        width = 1 if lane_dim < 0 else LANES
        return [inside.machine.spread(inside.value(r.node.args[0]), width) for r in self.reducers]

    def _tree(self, column: Index, sums: list[Pointer], results: list[Pointer]) -> None:
        """The 16 lanes of a column, brought side by side, become part of its result."""
        code = self.code
        beside = [code.slot(LLVM[v.type], LANES) for v in self.nothing]
        with code.loop(0, LANES, 1) as lane:
            self._put(beside, lane.index, self._get(sums, lane.index * self.width + column, 1))
        lanes = grouped(self.reducers, self._get(beside, code.index(0), LANES))
        trees = [v for r, mine in zip(self.reducers, lanes) for v in r.tree(mine)]
        self._put(results, column, steps(self.reducers, self._get(results, column, 1), trees))

    def _get(self, buffers: list[Pointer], at: Index, width: int) -> list[Value]:
        kinds = [v.type for v in self.nothing]
        places = [b.element(LLVM[t], at) for b, t in zip(buffers, kinds)]
        return [Value(p.load(llvm_type(t, width), 1), t, width) for p, t in zip(places, kinds)]

    def _put(self, buffers: list[Pointer], at: Index, values: list[Value]) -> None:
        for buffer, value in zip(buffers, values):
            buffer.element(LLVM[value.type], at).store(value.typed, 1)
