"""The "columns" schedule: 256 neighbouring points of the last p dim reduce together, lanes across columns.

The order is that of "rows", element by element; only what is computed side by side differs. Lane l of a
column is its rows l, l + 16, ...; the 16 lane accumulators of all columns live in a stack buffer. Where much
is kept of each column a unit has fewer of them (`Nest.column_block`).

    for unit in begin .. end:                      256 columns of one index of the other p dims
        res[256] = start
        for block of 16384 rows:
            for group of 128 rows:
                for l in 0 .. 16:                  8 rows: l, l+16, ..., l+112 of the group
                    for j in 0 .. 256 by 16:       chain = f(row 0, j) . ... . f(row 7, j)
                        acc[l][j] = acc[l][j] . chain
                    (a costly f, or one with values of a row: row by row, the chains in a buffer)
            for j:  res[j] = res[j] . tree(acc[0..15][j])
        ... next pass, which may read res ...
        for j:  stores of the points
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.codegen.ir.emit import Expression, together
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import LLVM, Value, llvm_type
from kiln.codegen.nests.columns_narrow import Narrow
from kiln.codegen.nests.frame import EXPENSIVE, POINT, Frame, Step
from kiln.codegen.nests.nest import Nest
from kiln.codegen.nests.plan import Plan, above
from kiln.codegen.nests.reduce import Reducer
from kiln.codegen.nests.rows import grouped, identities, steps
from kiln.codegen.target import Target
from kiln.scalars.scalar import REDUCE, Scalar, topological
from kiln.table.order import CHAIN, GROUP, LANES


class Columns:
    """A nest of schedule "columns", being written."""

    def __init__(self, nest: Nest, target: Target) -> None:
        p = [d for d, role in enumerate(nest.dims) if role == "p"]
        self.column = p[-1]
        self.outer_dims = p[:-1]
        self.r = [d for d, role in enumerate(nest.dims) if role == "r"]
        self.frame = Frame(nest, target, self.column)
        self.nest = nest
        self.code = self.frame.code
        self.plan = Plan(self.frame, self.column)
        self.block = nest.column_block()
        self.stored: dict[int, list[Pointer]] = {}  # column-level values kept in stack buffers of a block

    def emit(self) -> str:
        """The kernel's LLVM text."""
        frame = self.frame
        every = frozenset(range(len(self.nest.dims))) | {POINT}
        frame.hoist(frame.outer, frame.roots, every, False)
        self.length = frame.size[self.r[0]]
        for d in self.r[1:]:
            self.length = self.length * frame.size[d]
        width = frame.size[self.column]
        blocks = (width + (self.block - 1)) // self.block
        with frame.units([*(frame.size[d] for d in self.outer_dims), blocks]) as position:
            self.first = position[-1] * self.block
            self.columns = (width - self.first).min(self.block)
            self.index = dict(zip(self.outer_dims, position))
            where = {**self.index, self.column: self.first}
            self.pointers = [
                frame.address(k, where) if len(o.strides) == len(self.nest.dims) else frame.base[k]
                for k, o in enumerate(self.nest.operands)
            ]
            unit = frame.scope(frame.outer, Step(self.index, self.pointers.__getitem__))
            self.stored = {}
            for q in range(self.plan.count):
                self._pass(unit, q)
            self._store_points(unit)
        return frame.finish()

    # -- values of one column, kept on the stack ----------------------------------------------------

    def _hold(self, unit: Expression, roots: list[Scalar]) -> None:
        """Compute what `roots` need once per column, for all columns, into stack buffers."""
        frame, wanted = self.frame, []
        for node in topological(roots):
            if node.op in REDUCE or not frame.varies(node, frame.reduced):
                continue
            wanted += [a for a in node.args if self._per_column(a) and a not in wanted]
        wanted = [n for n in wanted if id(n) not in self.stored]
        if not wanted:
            return
        buffers = [self.code.slot(LLVM[n.type], self.block) for n in wanted]

        def body(j: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
            scope = self._scope(unit, self._step(self.pointers, {}, j, count, mask), wanted)
            for node, buffer in zip(wanted, buffers):
                value = scope.machine.spread(scope.value(node), LANES)
                self._put(buffer, j, value)
            return values

        frame.lanes(0, self.columns, [], 1, body)
        for node, buffer in zip(wanted, buffers):
            self.stored[id(node)] = [buffer]

    def _per_column(self, node: Scalar) -> bool:
        frame = self.frame
        if frame.varies(node, frame.reduced) or not frame.varies(node, frozenset({self.column})):
            return False
        return bool(node.args) and node.op not in REDUCE

    def _put(self, buffer: Pointer, j: Index, value: Value) -> None:
        where = buffer.element(LLVM[value.type], j)
        where.store(value.typed, 1)

    def _get(self, buffer: Pointer, j: Index, type: str) -> Value:
        kind = llvm_type(type, LANES)
        where = buffer.element(LLVM[type], j)
        return Value(where.load(kind, 1), type, LANES)

    def _step(
        self,
        pointers: list[Pointer],
        index: dict[int, Index],
        j: Index,
        count: Index | None,
        mask: Value | None,
    ) -> Step:
        """16 columns from the unit's column j, on the row that `pointers` address."""
        frame = self.frame

        def pointer(k: int) -> Pointer:
            operand = self.nest.operands[k]
            if operand.strides[self.column] == "0":
                return pointers[k]
            return pointers[k].element(element(operand.dtype), j * frame.stride[k][self.column])

        return Step({**self.index, **index}, pointer, self.column, self.first + j, count, mask)

    def _scope(self, unit: Expression, step: Step, roots: list[Scalar], j: Index | None = None) -> Expression:
        """A scope for 16 columns; what is stored per column is read back where `roots` need it."""
        scope = self.frame.scope(unit, step)
        place = step.start - self.first if j is None else j
        stack, seen = list(roots), set()
        while stack:
            node = stack.pop()
            if id(node) in seen or id(node) in scope.values:
                continue
            seen.add(id(node))
            buffers = self.stored.get(id(node))
            if buffers is None:
                stack.extend(node.args)
            else:
                scope.values[id(node)] = self._get(buffers[-1], place, node.type)
        return scope

    # -- rows ---------------------------------------------------------------------------------------

    def _row(self, row: Index) -> tuple[list[Pointer], dict[int, Index]]:
        """The operands' addresses on a row, and its position along every r dim."""
        frame = self.frame
        index = dict(zip(self.r, frame.cut(row, [frame.size[d] for d in self.r])))
        pointers = []
        for k, operand in enumerate(self.nest.operands):
            place = self.code.index(0)
            if len(operand.strides) == len(self.nest.dims):
                for d in self.r:
                    if operand.strides[d] != "0":
                        place = place + index[d] * frame.stride[k][d]
            pointers.append(self.pointers[k].element(element(operand.dtype), place))
        return pointers, index

    def _at(
        self, unit: Expression, q: int, row: tuple[list[Pointer], dict[int, Index]], flat: Index, j: Index,
        count: Index | None, mask: Value | None,
    ) -> list[Value]:  # fmt: skip
        """Pass q at 16 columns of one row: its point stores; the elements of its reductions."""
        return self._at_each(unit, q, row, flat, [j], count, mask)[0]

    def _at_each(
        self, unit: Expression, q: int, row: tuple[list[Pointer], dict[int, Index]], flat: Index,
        columns: list[Index], count: Index | None = None, mask: Value | None = None,
    ) -> list[list[Value]]:  # fmt: skip
        """The same at 16 columns from each of `columns`, side by side."""
        plan = self.plan
        taken = [self._step(row[0], row[1], j, count, mask) for j in columns]
        scopes = [self._scope(unit, step, plan.roots(q), j) for step, j in zip(taken, columns)]
        if plan.parked is not None and q > plan.parked_in:
            dtype = self.nest.operands[plan.parked_at].dtype
            for scope, step in zip(scopes, taken):
                parked = self.frame.memory.read_lanes(dtype, step.pointer(plan.parked_at), count, mask)
                scope.values[id(plan.parked)] = parked
        elements: list[list[Value]] = []
        for node in plan.reductions[q]:
            elements.append(together(scopes, node.args[0]))
            if node.op in ("argmax", "argmin"):
                elements.append([flat.value] * len(columns))
        results = [(k, together(scopes, value)) for k, value in plan.stores[q]]
        if plan.parked is not None and q == plan.parked_in:
            results.append((plan.parked_at, together(scopes, plan.parked)))
        for k, values in results:
            for value, step in zip(values, taken):
                self.frame.store(k, value, step)
        return [[scopes[0].machine.spread(e[n], LANES) for e in elements] for n in range(len(columns))]

    def _side_by_side(self, q: int, do: Callable[[list[Index]], None]) -> Index:
        """Several vectors of columns at a time, where pass q had better; the column where that ends."""
        copies = self.frame.in_flight(self.plan.roots(q), frozenset({self.column, POINT}))
        if copies == 1:
            return self.code.index(0)
        with self.frame.turns(0, self.columns, copies) as (turn, at):
            do([*at])
        return turn.index

    # -- passes -------------------------------------------------------------------------------------

    def _pass(self, unit: Expression, q: int) -> None:
        """One pass over the rows of the unit's columns."""
        frame, code, roots = self.frame, self.code, self.plan.roots(q)
        self._hold(unit, roots)
        lanes = frame.reduced | {self.column, POINT}
        frame.hoist(unit, roots, lanes, False)
        scope = unit.inner(unit.leaf)
        frame.hoist(scope, roots, lanes, True)
        found = self.plan.reductions[q]
        if found:
            reducers = [Reducer(code, node) for node in found]
            self._reduce(scope, unit, q, reducers)
            return
        with code.loop(0, self.length, 1) as turn:
            row = self._row(turn.index)

            def several(columns: list[Index]) -> None:
                self._at_each(scope, q, row, turn.index, columns)

            def body(j: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
                return self._at(scope, q, row, turn.index, j, count, mask) or values

            frame.lanes(self._side_by_side(q, several), self.columns, [], 1, body)

    def _works_by_row(self, q: int) -> bool:
        """Whether pass q computes anything once per row, or too much per element to be unrolled."""
        frame, roots = self.frame, self.plan.roots(q)
        if frame.cost(roots, frame.reduced) >= EXPENSIVE:
            return True
        found = [n for n in above(roots, None) if n.args and frame.varies(n, frame.reduced)]
        return any(not frame.varies(n, frozenset({self.column, POINT})) for n in found)

    def _reduce(self, scope: Expression, unit: Expression, q: int, reducers: list[Reducer]) -> None:
        """All rows; the results stay in the stored buffers. Narrow ones go as in `columns_narrow.py`."""
        code = self.code
        kinds = [v.type for v in identities(reducers)]
        results = [code.slot(LLVM[t], self.block) for t in kinds]
        lanes = [code.slot(LLVM[t], self.block * LANES) for t in kinds]
        chains = [code.slot(LLVM[t], self.block) for t in kinds] if self._works_by_row(q) else []
        start = [r.machine.spread(v, LANES) for r in reducers for v in r.initial(self.length)]
        self._fill(results, start, 0, self.columns)
        narrow = Narrow(self.frame, self.plan, self.column, self.r[0]) if len(self.r) == 1 else None
        if narrow is None or narrow.reads is None:
            self._blocks(scope, q, reducers, lanes, chains, results)
        else:
            fits = narrow.fits()
            with code.when(fits):
                narrow.reduce((scope, unit), self.index, self.pointers, results, self.length, self.nest.block)
            with code.when(~fits):
                self._blocks(scope, q, reducers, lanes, chains, results)
        for node, mine in zip(self.plan.reductions[q], grouped(reducers, results)):
            self.stored[id(node)] = mine

    def _blocks(
        self, scope: Expression, q: int, reducers: list[Reducer], lanes: list[Pointer], chains: list[Pointer],
        results: list[Pointer],
    ) -> None:  # fmt: skip
        """Blocks of 16384 rows, lane by lane."""
        code = self.code
        with code.loop(0, self.length, self.nest.block) as block:
            limit = (block.index + self.nest.block).min(self.length)
            present = (limit - block.index).min(LANES)
            with code.loop(present, LANES, 1) as absent:
                at = absent.index * self.block
                self._fill(lanes, identities(reducers), at, at + self.columns)
            with code.loop(block.index, limit, GROUP) as group:
                begins = group.index.equals(block.index)
                here = (limit - group.index).min(LANES)
                with code.loop(0, here, 1) as lane:
                    self._lane(scope, q, reducers, lanes, chains, lane.index, group.index, limit, begins)
            self._tree(reducers, lanes, results)

    def _fill(self, buffers: list[Pointer], values: list[Value], start: Integer, limit: Index) -> None:
        """Write 16-lane values to buffers[start .. limit), rounded up to 16."""
        with self.code.loop(start, limit, LANES) as turn:
            for buffer, value in zip(buffers, values):
                self._put(buffer, turn.index, value)

    def _lane(
        self, scope: Expression, q: int, reducers: list[Reducer], lanes: list[Pointer], chains: list[Pointer],
        lane: Index, group: Index, limit: Index, begins: Condition,
    ) -> None:  # fmt: skip
        """The chains of one lane in one group: 8 rows 16 apart, added to the lane's accumulators."""
        code = self.code
        first = group + lane
        at = lane * self.block
        left = (limit - first + (LANES - 1)) // LANES
        count = left.min(CHAIN)
        kept = [b.element(LLVM[v.type], at) for b, v in zip(lanes, identities(reducers))]
        if chains:
            self._by_rows(scope, q, reducers, kept, chains, begins, first, count)
            return
        full = count.equals(CHAIN)
        with code.when(full):
            self._by_columns(scope, q, reducers, kept, begins, first, None)
        with code.when(~full):
            self._by_columns(scope, q, reducers, kept, begins, first, count)

    def _by_columns(
        self, scope: Expression, q: int, reducers: list[Reducer], kept: list[Pointer], begins: Condition,
        first: Index, chain_length: Index | None,
    ) -> None:  # fmt: skip
        """for j: acc[j] = acc[j] . chain; the chain unrolled (length None) or a loop over its rows."""
        code = self.code
        rows = [first + LANES * n for n in range(CHAIN)] if chain_length is None else []
        addressed = [self._row(row) for row in rows]

        def body(j: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
            chain: list[Value] = []
            for row, flat in zip(addressed, rows):
                elements = self._at(scope, q, row, flat, j, count, mask)
                chain = steps(reducers, chain, elements) if chain else elements
            if chain_length is not None:
                with code.loop(0, chain_length, 1, identities(reducers)) as turn:
                    flat = first + turn.index * LANES
                    elements = self._at(scope, q, self._row(flat), flat, j, count, mask)
                    turn.next = steps(reducers, turn.values, elements)
                chain = turn.values
            self._accumulate(reducers, kept, begins, j, chain)
            return values

        self.frame.lanes(0, self.columns, [], 1, body)

    def _by_rows(
        self, scope: Expression, q: int, reducers: list[Reducer], kept: list[Pointer], chains: list[Pointer],
        begins: Condition, first: Index, chain_length: Index,
    ) -> None:  # fmt: skip
        """chain[:] = identity;  each row: its own values once, then for j: chain[j] = chain[j] . f(row, j)

        then for j: acc[j] = acc[j] . chain[j]. Each row is read from end to end, as memory likes it.
        """
        code, frame = self.code, self.frame
        self._fill(chains, identities(reducers), 0, self.columns)
        with code.loop(0, chain_length, 1) as turn:
            flat = first + turn.index * LANES
            row = self._row(flat)
            index = {**self.index, **row[1]}
            inner = frame.scope(scope, Step(index, row[0].__getitem__))
            frame.hoist(inner, self.plan.roots(q), frozenset({self.column, POINT}), True)

            def several(columns: list[Index], count: Index | None = None, mask: Value | None = None) -> None:
                for j in columns:
                    self._fetch_next_row(q, row[0], j)
                for j, elements in zip(columns, self._at_each(inner, q, row, flat, columns, count, mask)):
                    old = [self._get(b, j, v.type) for b, v in zip(chains, identities(reducers))]
                    for buffer, value in zip(chains, steps(reducers, old, elements)):
                        self._put(buffer, j, value)

            def body(j: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
                several([j], count, mask)
                return values

            frame.lanes(self._side_by_side(q, several), self.columns, [], 1, body)
        with code.loop(0, self.columns, LANES) as turn:
            chain = [self._get(b, turn.index, v.type) for b, v in zip(chains, identities(reducers))]
            self._accumulate(reducers, kept, begins, turn.index, chain)

    def _fetch_next_row(self, q: int, pointers: list[Pointer], j: Index) -> None:
        """Ask for the same columns of the chain's next row: it lies on another page, where hardware does not.

        A prefetch may name any address.
        """
        frame, code = self.frame, self.code
        if len(self.r) > 1:
            return
        nodes = above(self.plan.roots(q), None)
        for k in sorted({n.data for n in nodes if n.op == "load" and not n.args}):
            operand = self.nest.operands[k]
            if operand.strides[self.column] == "1" and operand.strides[self.r[0]] != "0":
                down = j + frame.stride[k][self.r[0]] * LANES
                place = pointers[k].element(element(operand.dtype), down)
                code.prefetch(place)

    def _accumulate(
        self, reducers: list[Reducer], kept: list[Pointer], begins: Condition, j: Index, chain: list[Value]
    ) -> None:
        """acc[j] = (begins ? identity : acc[j]) . chain"""
        new, fresh = identities(reducers), begins.value
        old = [reducers[0].machine.choose(fresh, n, self._get(b, j, n.type)) for b, n in zip(kept, new)]
        for buffer, value in zip(kept, steps(reducers, old, chain)):
            self._put(buffer, j, value)

    def _tree(self, reducers: list[Reducer], lanes: list[Pointer], results: list[Pointer]) -> None:
        """for j: res[j] = res[j] . tree of the 16 lanes at j"""
        code = self.code
        kinds = [v.type for v in identities(reducers)]
        with code.loop(0, self.columns, LANES) as turn:
            j = turn.index
            parts = []
            for lane in range(LANES):
                at = j + lane * self.block
                parts.append([self._get(b, at, t) for b, t in zip(lanes, kinds)])
            half = LANES // 2
            while half:
                parts = [steps(reducers, parts[n], parts[n + half]) for n in range(half)]
                half //= 2
            old = [self._get(b, j, t) for b, t in zip(results, kinds)]
            for buffer, value in zip(results, steps(reducers, old, parts[0])):
                self._put(buffer, j, value)

    def _store_points(self, unit: Expression) -> None:
        """The stores that happen once per p point."""
        roots = [value for _, value in self.plan.last]
        if not roots:
            return

        def body(j: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
            step = self._step(self.pointers, {}, j, count, mask)
            scope = self._scope(unit, step, roots, j)
            results = [(k, scope.value(value)) for k, value in self.plan.last]
            for k, value in results:
                self.frame.store(k, value, step)
            return values

        self.frame.lanes(0, self.columns, [], 1, body)


def emit_columns(nest: Nest, target: Target) -> str:
    """The kernel of a nest of schedule "columns", as LLVM text."""
    return Columns(nest, target).emit()
