"""The "rows" schedule: every p point reduces its own row, with the lanes along the row.

for point in begin .. end:
    pointers;  values of the point
    pass:  total = start
           for block of 16384:                     one block unless the row is longer
               acc[16] = identity
               for group of 128:                   8 vectors, one chain per lane
                   chain = f(v0);  chain = chain . f(v1);  ...  . f(v7)
                   acc = acc . chain
               total = total . tree(acc)
    ... next pass, which may read the totals ...
    stores of the point

A row of at most 4 elements (the call's rows are equally long) would leave most lanes empty. It goes element
by element, as scalars, in the order that the tree has there:

    a0 . a2,  a1 . a3,  then these:    (a, b) = (b, a . f(i))  for every i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kiln.codegen.ir.emit import Expression, together
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.frame import COSTS, EXPENSIVE, POINT, Frame, Step
from kiln.codegen.nests.nest import Nest
from kiln.codegen.nests.plan import Plan, above
from kiln.codegen.nests.reduce import Reducer
from kiln.codegen.target import Target
from kiln.table.order import CHAIN, GROUP, LANES, REDUCE_BLOCK

Part = TypeVar("Part", Value, Pointer)


SHORT = 4  # elements of a row done one by one


class Rows:
    """A nest of schedule "rows" with one reduced dim, being written."""

    row_step = 1  # a point's row and the next one's
    has_short = True  # whether rows may be short: one dim in memory
    steps_are_alike = True  # each vector is at its place in memory

    def __init__(self, nest: Nest, target: Target) -> None:
        self.frame = Frame(nest, target)
        self.nest = nest
        self.code = self.frame.code
        self.p = [d for d, role in enumerate(nest.dims) if role == "p"]
        self.r = [d for d, role in enumerate(nest.dims) if role == "r"]
        self.plan = Plan(self.frame, self.r[-1])
        self.lane_dim = self.r[-1]
        self.fetching = self._busiest()
        self.index: dict[int, Index] = {}
        self.pointers: list[Pointer] = []

    def emit(self) -> str:
        """The kernel's LLVM text."""
        frame = self.frame
        every = frozenset(range(len(self.nest.dims))) | {POINT}
        frame.hoist(frame.outer, frame.roots, every, False)
        frame.streams.ask(self.lane_dim)
        if self.plan.parked is not None:
            frame.streams.past.pop(self.plan.parked_at, None)  # its lines are in the cache already
        self.length = self.row_length()
        self.units()
        return frame.finish()

    def units(self) -> None:
        """The points of the call."""
        sizes = [self.frame.size[d] for d in self.p]
        if not self.has_short or self.nest.block < REDUCE_BLOCK or not self.p:
            with self.frame.units(sizes) as position:
                self.point(position)
            return
        short = self.length <= SHORT
        with self.code.when(short), self.frame.units(sizes) as position:
            self.point(position, self._short_pass)
        with self.code.when(~short), self.frame.units(sizes) as position:
            self.point(position)

    def point(self, position: list[Index], do: Callable[[Expression, int], None] | None = None) -> None:
        """One p point: its passes, each by `do` if it is given, then its stores."""
        frame = self.frame
        self.index = dict(zip(self.p, position))
        self.pointers = [
            self.address(k) if len(o.strides) == len(self.nest.dims) else frame.base[k]
            for k, o in enumerate(self.nest.operands)
        ]
        point = frame.scope(frame.outer, Step(self.index, self.pointers.__getitem__))
        for q in range(self.plan.count):
            (do or self._pass)(point, q)
        results = [(k, point.value(value)) for k, value in self.plan.last]
        for k, value in results:
            frame.memory.write(self.nest.operands[k].dtype, self.pointers[k], value)

    def address(self, k: int) -> Pointer:
        """Where operand k's row begins."""
        return self.frame.address(k, self.index)

    def stored(self, k: int, value: Value, step: Step) -> Value:
        """What is stored in operand k at `step`."""
        return value

    def row_length(self) -> Index:
        """The number of elements reduced."""
        return self.frame.size[self.lane_dim]

    def _pass(self, point: Expression, q: int) -> None:
        """One pass over the row: its reductions become values of the point."""
        frame, roots = self.frame, self.plan.roots(q)
        frame.hoist(point, roots, frame.reduced, False)
        spread = point.inner(point.leaf)
        frame.hoist(spread, roots, frame.reduced, True)
        found = self.plan.reductions[q]
        cheap = frame.cost(roots, frame.reduced) < EXPENSIVE
        if not found:
            start = self.code.index(0)
            if (copies := self._copies(q)) > 1:
                with frame.turns(0, self.length, copies) as (turn, at):
                    self._steps(spread, q, [*at])
                start = turn.index
            frame.lanes(
                start,
                self.length,
                [],
                2 if cheap else 1,
                lambda v, count, mask, values: self._step(spread, q, v, count, mask) or values,
            )
            return
        reducers = [Reducer(self.code, node) for node in found]
        totals = self._reduce(spread, q, reducers, cheap)
        for node, total in zip(found, grouped(reducers, totals)):
            point.values[id(node)] = total[-1]

    def _short_pass(self, point: Expression, q: int) -> None:
        """One pass over a short row. Positions are chosen in two equal lanes: a processor selects among lanes
        without branches, which would be guessed wrong.
        """
        frame, plan, code, machine = self.frame, self.plan, self.code, point.machine
        frame.hoist(point, plan.roots(q), frame.reduced, False)
        reducers = [Reducer(code, node) for node in plan.reductions[q]]
        nothing = [v for r in reducers for v in r.identity(2 if r.positions else 1)]
        with code.loop(0, self.length, 1, nothing * 2) as turn:
            a, b = turn.values[: len(nothing)], turn.values[len(nothing) :]
            elements = [machine.spread(e, v.width) for e, v in zip(self._element(point, q, turn.index), a)]
            turn.next = [*b, *steps(reducers, a, elements)]
        odd = (self.length & 1).differs(0).value
        pairs = list(zip(turn.values[: len(nothing)], turn.values[len(nothing) :]))
        a, b = ([machine.choose(odd, *ab[::d]) for ab in pairs] for d in (-1, 1))
        totals = steps(reducers, [v for r in reducers for v in r.initial(self.length)], steps(reducers, a, b))
        for node, total in zip(plan.reductions[q], grouped(reducers, totals)):
            found = total[-1]
            if found.width > 1:
                found = Value(code.op(f"extractelement {found.typed}, i64 0"), found.type)
            point.values[id(node)] = found

    def _element(self, scope: Expression, q: int, i: Index) -> list[Value]:
        """Pass q at one position: its point stores; the elements of its reductions."""
        frame, plan, operands = self.frame, self.plan, self.nest.operands

        def pointer(k: int) -> Pointer:
            place = i * frame.stride[k][self.lane_dim]
            return self.pointers[k].element(element(operands[k].dtype), place)

        inside = frame.scope(scope, Step({**self.index, self.lane_dim: i}, pointer))
        parked = plan.parked_at
        if plan.parked is not None and q > plan.parked_in:
            inside.values[id(plan.parked)] = frame.memory.read(operands[parked].dtype, pointer(parked))
        elements: list[Value] = []
        for node in plan.reductions[q]:
            elements.append(inside.value(node.args[0]))
            if node.op in ("argmax", "argmin"):
                elements.append(i.value)
        results = [(k, inside.value(value)) for k, value in plan.stores[q]]
        if plan.parked is not None and q == plan.parked_in:
            results.append((parked, inside.value(plan.parked)))
        for k, value in results:
            frame.memory.write(operands[k].dtype, pointer(k), value)
        return elements

    def _copies(self, q: int) -> int:
        """How many vectors pass q computes side by side, of those that a group holds."""
        if not self.steps_are_alike:
            return 1
        return min(CHAIN // 2, self.frame.in_flight(self.plan.roots(q), self.frame.reduced))

    def _step(
        self, scope: Expression, q: int, v: Index, count: Index | None, mask: Value | None
    ) -> list[Value]:
        """Pass q at 16 positions: its point stores; the elements of its reductions."""
        return self._steps(scope, q, [v], count, mask)[0]

    def _steps(
        self,
        scope: Expression,
        q: int,
        at: list[Index],
        count: Index | None = None,
        mask: Value | None = None,
    ) -> list[list[Value]]:
        """The same at 16 positions from each of `at`, side by side."""
        frame, plan = self.frame, self.plan
        taken = [self.step_at(q, v, count, mask) for v in at]
        if q == self.fetching:
            for step in taken:
                self._fetch_next_row(step)
        scopes = [frame.scope(scope, step) for step in taken]
        if plan.parked is not None and q > plan.parked_in:
            parked = plan.parked_at
            for inside, step in zip(scopes, taken):
                inside.values[id(plan.parked)] = frame.memory.read_lanes(
                    self.nest.operands[parked].dtype, step.pointer(parked), count, mask
                )
        elements: list[list[Value]] = []
        for node in plan.reductions[q]:
            elements.append(together(scopes, node.args[0]))
            if node.op in ("argmax", "argmin"):
                elements.append([frame.lane_positions(inside, v) for inside, v in zip(scopes, at)])
        results: list[tuple[int, list[Value]]] = []
        for k, value in plan.stores[q]:
            found = together(scopes, value)
            results.append((k, [self.stored(k, x, step) for x, step in zip(found, taken)]))
        if plan.parked is not None and q == plan.parked_in:
            results.append((plan.parked_at, together(scopes, plan.parked)))
        for k, found in results:
            for x, step in zip(found, taken):
                frame.store(k, x, step)
        for step in taken:
            self.finish_step(step)
        return [[scopes[0].machine.spread(e[n], LANES) for e in elements] for n in range(len(at))]

    def _busiest(self) -> int:
        """The pass that asks for the next row: of those that read a row again, the one that computes most."""
        plan, varying = self.plan, self.frame.reduced

        def work(q: int) -> tuple[int, int]:
            done = plan.parked if q > plan.parked_in else None
            nodes = above(plan.roots(q), done)
            return sum(COSTS.get(n.op, 1) for n in nodes if self.frame.varies(n, varying)), q

        return max(range(1, plan.count), key=work, default=-1)

    def _fetch_next_row(self, step: Step) -> None:
        """Ask for the same place of the next point's row: pass 0 of that row then finds it in the cache.

        A row is often a page, where hardware prefetchers stop; without this, the first pass waits for
        memory and the others for arithmetic. A prefetch may name any address.
        """
        frame, code = self.frame, self.code
        if len(self.r) > 1 or not self.p:
            return
        nodes = above(self.plan.roots(0), None)
        inputs = sorted(
            {n.data for n in nodes if n.op == "load" and not n.args and frame.varies(n, frame.reduced)}
        )
        for k in inputs:
            operand = self.nest.operands[k]
            if operand.strides[self.lane_dim] == "1" and operand.strides[self.p[-1]] != "0":
                ahead = frame.stride[k][self.p[-1]] * self.row_step
                place = step.pointer(k).element(element(operand.dtype), ahead)
                code.prefetch(place)

    def finish_step(self, step: Step) -> None:
        """What follows the stores of a step; nothing where the row is one run of memory."""

    def step_at(self, q: int, v: Index, count: Index | None, mask: Value | None) -> Step:
        """16 positions of the row from `v`, for pass q."""
        frame = self.frame

        def pointer(k: int) -> Pointer:
            operand = self.nest.operands[k]
            if operand.strides[self.lane_dim] == "0":
                return self.pointers[k]
            place = v * frame.stride[k][self.lane_dim]
            return self.pointers[k].element(element(operand.dtype), place)

        return Step(self.index, pointer, self.lane_dim, v, count, mask)

    # -- the order of a reduction -------------------------------------------------------------------

    def _reduce(self, scope: Expression, q: int, reducers: list[Reducer], cheap: bool) -> list[Value]:
        """Blocks of 16384, their totals combined in ascending order."""
        code = self.code
        start = [v for r in reducers for v in r.initial(self.length)]
        with code.loop(0, self.length, self.nest.block, start) as block:
            limit = (block.index + self.nest.block).min(self.length)
            groups = self._unrolled if cheap else self._rolled
            if self.nest.block < REDUCE_BLOCK:  # accumulators of chains
                groups = self._chain
            lanes = groups(scope, q, reducers, block.index, limit)
            trees = [v for r, p in zip(reducers, grouped(reducers, lanes)) for v in r.tree(p)]
            block.next = steps(reducers, block.values, trees)
        return block.values

    def _unrolled(
        self, scope: Expression, q: int, reducers: list[Reducer], start: Index, limit: Index
    ) -> list[Value]:
        """Whole groups of 128 written out as 8 vectors, then one group of what is left."""
        code = self.code
        whole = start + ((limit - start) & -GROUP)
        with code.loop(start, whole, GROUP, identities(reducers)) as group:
            chain: list[Value] = []
            for turn in range(CHAIN):
                elements = self._step(scope, q, group.index + turn * LANES, None, None)
                chain = steps(reducers, chain, elements) if chain else elements
            self.frame.settle()
            group.next = steps(reducers, group.values, chain)
        return steps(reducers, group.values, self._chain(scope, q, reducers, whole, limit))

    def _rolled(
        self, scope: Expression, q: int, reducers: list[Reducer], start: Index, limit: Index
    ) -> list[Value]:
        """Groups of 128 as a loop over their vectors: a costly body is written once."""
        code = self.code
        with code.loop(start, limit, GROUP, identities(reducers)) as group:
            end = (group.index + GROUP).min(limit)
            group.next = steps(reducers, group.values, self._chain(scope, q, reducers, group.index, end))
        return group.values

    def _chain(
        self, scope: Expression, q: int, reducers: list[Reducer], start: Index, limit: Index
    ) -> list[Value]:
        """The chains of one group, tails included."""
        carried = identities(reducers)
        if (copies := self._copies(q)) > 1:
            with self.frame.turns(start, limit, copies, carried) as (turn, at):
                chain = turn.values
                for elements in self._steps(scope, q, [*at]):
                    chain = steps(reducers, chain, elements)
                turn.next = chain
            start, carried = turn.index, turn.values

        def body(v: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
            elements = self._step(scope, q, v, count, mask)
            parts = zip(reducers, grouped(reducers, elements))
            return steps(reducers, values, [v for r, e in parts for v in r.present(e, mask)])

        return self.frame.lanes(start, limit, carried, 1, body)


def identities(reducers: list[Reducer]) -> list[Value]:
    return [v for r in reducers for v in r.identity(LANES)]


def grouped(reducers: list[Reducer], values: list[Part]) -> list[list[Part]]:
    """A flat list, of values or of where they lie, as one partial result per reduction."""
    rest = iter(values)
    return [[next(rest) for _ in range(2 if r.positions else 1)] for r in reducers]


def steps(reducers: list[Reducer], a: list[Value], b: list[Value]) -> list[Value]:
    """Every reduction's step, on flat lists."""
    pairs = zip(reducers, grouped(reducers, a), grouped(reducers, b))
    return [v for r, x, y in pairs for v in r.step(x, y)]


def emit_rows(nest: Nest, target: Target) -> str:
    """The kernel of a nest of schedule "rows", as LLVM text."""
    return Rows(nest, target).emit()
