"""What every schedule shares: a nest's arguments as SSA values, and where its scalars vary.

entry:  size_d = arg[d]; stride_k_d = arg[...]; base_k = ptr[k]; number_n = arg[...]
        if begin >= end return
        values that depend on numbers and single elements only
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kiln.codegen.ir.code import IOTA64, Code, Loop
from kiln.codegen.ir.emit import Expression, rare_families
from kiln.codegen.ir.index import Index, Integer, Pointer
from kiln.codegen.ir.memory import Memory, element
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.nest import Nest, within
from kiln.codegen.nests.overlap import side_by_side
from kiln.codegen.nests.stream import Streams
from kiln.codegen.target import Target
from kiln.scalars.scalar import REDUCE, Scalar, topological
from kiln.table.order import LANES

POINT = -1  # the pseudo dim of a value that follows a reduction: known once per p point only
EXPENSIVE = 24  # lane-level ops from which a body is written once, without unrolling
COSTS = {"div": 6, "rem": 40, "sqrt": 6, "convert": 2}


class Step:
    """One vector of 16 positions along `lane_dim`, or one single position (`lane_dim` -1).

    `index[d]` is the scalar position along every other dim, `start` lane 0's position along the lane
    dim, `pointer(k)` the address of lane 0 of operand k; `count` and `mask` describe a tail, else None.
    Where the lanes are not neighbours (`kiln.codegen.nests.rows_many`), `staged[k]` addresses 16 elements of
    operand k gathered beside each other, and `vectors[d]` holds the lanes' positions along dim d.
    """

    __slots__ = ("count", "index", "lane_dim", "mask", "pointer", "staged", "start", "vectors")

    def __init__(
        self, index: dict[int, Index], pointer: Callable[[int], Pointer], lane_dim: int = -1,
        start: Integer = 0, count: Index | None = None, mask: Value | None = None,
    ) -> None:  # fmt: skip
        self.index = index
        self.pointer = pointer
        self.lane_dim = lane_dim
        self.start = start
        self.count = count
        self.mask = mask
        self.staged: dict[int, Pointer] = {}
        self.vectors: dict[int, Value] = {}


class Frame:
    """A nest being written: its code, its arguments, and the dims each of its scalars depends on."""

    def __init__(self, nest: Nest, target: Target, lane_dim: int = -1) -> None:
        self.nest = nest
        self.result_dims = frozenset({POINT} if lane_dim < 0 else {POINT, lane_dim})
        self.target = target
        self.code = Code(target)
        self.memory = Memory(self.code)
        self.roots = [value for _, value in nest.stores]
        self.nodes = topological(self.roots)
        self.reduced = frozenset(d for d, role in enumerate(nest.dims) if role == "r")
        self.depends: dict[int, frozenset[int]] = {}
        for node in self.nodes:
            self.depends[id(node)] = self._dims_of(node)
        self.code.rare = rare_families(self.nodes, self._place)
        self.arguments = nest.arguments
        self.in_tail = False  # of a loop: too little is left to bypass the caches
        self.fetches = False  # a turn whose stores bypass the caches asks for what later ones read
        self._waiting: dict[int, list[tuple[Pointer, Value, Step]]] = {}  # stores of this turn, by operand
        self._entry()

    def _dims_of(self, node: Scalar) -> frozenset[int]:
        dims: frozenset[int] = frozenset().union(*(self.depends[id(a)] for a in node.args))
        if node.op == "index":
            return frozenset({node.data})
        if node.op == "load" and not node.args:
            strides = self.nest.operands[node.data].strides
            return frozenset(d for d, kind in enumerate(strides) if kind != "0")
        if node.op in REDUCE:
            return (dims - self.reduced) | self.result_dims
        return dims

    def _place(self, node: Scalar) -> tuple[frozenset[int], frozenset[int]]:
        """Where a node is computed: the dims it varies along, and the reductions it must follow."""
        return self.depends[id(node)], frozenset(id(n) for n in topological([node]) if n.op in REDUCE)

    # -- arguments ----------------------------------------------------------------------------------

    def _entry(self) -> None:
        """Read every argument once, in the entry block; codegen drops what nobody uses."""
        code, nest = self.code, self.nest
        self.base = [code.operand(self.arguments.pointer(k)) for k in range(len(nest.operands))]
        self.size = [code.argument(self.arguments.word("size", d)) for d in range(len(nest.dims))]
        self.stride = [
            [self._stride(k, d, kind) for d, kind in enumerate(operand.strides)]
            for k, operand in enumerate(nest.operands)
        ]
        self.streams = Streams(code, nest, self.size, self.stride, self.base, self.number)
        self.outer = Expression(code, self._constant_leaf)

    def _stride(self, k: int, d: int, kind: str) -> Index:
        if kind in "01":
            return self.code.index(kind)
        return self.code.argument(self.arguments.word("stride", k, d))

    def number(self, k: int) -> Value:
        """The k-th number argument."""
        return self.code.number(self.arguments.word("number", k), self.nest.numbers[k])

    def finish(self) -> str:
        """Close the function; the module's text."""
        self.streams.fence()
        self.code.line("ret void")
        return self.code.text()

    # -- what is constant for the whole call --------------------------------------------------------

    def _constant_leaf(self, node: Scalar) -> Value:
        if node.op == "number":
            return self.number(node.data)
        assert node.op == "load", f"{node.op} is not constant over a nest"
        if node.args:
            return self._computed(self.outer, node, Step({}, self.base.__getitem__))
        return self.memory.read(self.nest.operands[node.data].dtype, self.base[node.data])

    def hoist(self, scope: Expression, roots: list[Scalar], inner: frozenset[int], widen: bool) -> None:
        """Write into `scope` the largest parts of `roots` that do not vary along the dims `inner`.

        With `widen`, a part that vectors use is spread here, once, instead of in the loop; a position is
        not: a load adds it to its address. The parts must be known already in this scope: what follows a
        reduction counts as inner until it is done.
        """
        wanted: list[Scalar] = []
        spread: set[int] = set()  # what vectors use
        for node in topological(roots):
            if id(node) in scope.values or node.op == "const" or not self.varies(node, inner):
                continue
            if node.op not in REDUCE or node in roots:
                fixed = [a for a in node.args if not self.varies(a, inner)]
                wanted += fixed
                spread.update(id(a) for a in fixed if node.op != "load")
        fixed = [r for r in roots if not self.varies(r, inner)]
        wanted += fixed
        spread.update(map(id, fixed))
        for node in wanted:
            if node.op != "const" and id(node) not in scope.values:
                scope.value(node)
        if widen:
            for node in wanted:
                value = scope.values.get(id(node))
                if value is not None and id(node) in spread and not value.constant and node.type != "i1":
                    scope.values[id(node)] = scope.machine.spread(value, LANES)

    def varies(self, node: Scalar, dims: frozenset[int]) -> bool:
        """Whether the node's value depends on a position along one of `dims`."""
        return bool(self.depends[id(node)] & dims)

    def cost(self, roots: list[Scalar], dims: frozenset[int]) -> int:
        """How many ops of `roots` are computed at every position along `dims`."""
        nodes = [n for n in topological(roots) if n.args and self.varies(n, dims)]
        return sum(COSTS.get(n.op, 1) for n in nodes if n.op != "load") + 6 * sum(
            n.op == "load" for n in nodes
        )

    # -- addresses and leaves -----------------------------------------------------------------------

    def address(self, k: int, index: dict[int, Index], start: Pointer | None = None) -> Pointer:
        """The address of operand k at the scalar positions `index` (dims that are missing count as 0)."""
        operand = self.nest.operands[k]
        place = self.code.index(0)
        for d, position in index.items():
            if operand.strides[d] != "0":
                place = place + position * self.stride[k][d]
        return (self.base[k] if start is None else start).element(element(operand.dtype), place)

    def scope(self, outer: Expression, step: Step) -> Expression:
        """A scope inside `outer` whose leaves are read at `step`."""
        inside = outer.inner(outer.leaf)
        inside.leaf = lambda node: self._leaf(inside, node, step)
        return inside

    def _leaf(self, scope: Expression, node: Scalar, step: Step) -> Value:
        if node.op == "number":
            return self.number(node.data)
        if node.op == "load":
            return self.load(scope, node, step)
        if node.data in step.vectors:
            return step.vectors[node.data]
        if node.data == step.lane_dim:
            return self.lane_positions(scope, step.start)
        return step.index[node.data].value

    def load(self, scope: Expression, node: Scalar, step: Step) -> Value:
        """A load leaf at `step`: neighbours, every other one, a strided or computed gather, one element."""
        if node.args:
            return self._computed(scope, node, step)
        k = node.data
        operand = self.nest.operands[k]
        if k in step.staged:
            return self.memory.read_lanes(operand.dtype, step.staged[k], None, None)
        kind = operand.strides[step.lane_dim] if step.lane_dim >= 0 else "0"
        pointer = step.pointer(k)
        if kind == "0":
            return self.memory.read(operand.dtype, pointer)
        if kind == "1":
            return self.memory.read_lanes(operand.dtype, pointer, step.count, step.mask)
        if kind == "2" and (step.count is None or self.target.masks):
            return self.memory.read_alternate(operand.dtype, pointer, step.count)
        positions = self.memory.strided(self.stride[k][step.lane_dim])
        return self.memory.gather(operand.dtype, pointer, positions, step.mask)

    def _computed(self, scope: Expression, node: Scalar, step: Step) -> Value:
        """base + sum of position * stride: one element, neighbours (only `index lane` moves), or a gather."""
        k, machine = node.data, scope.machine
        dtype, strides = self.nest.operands[k].dtype, self.nest.operands[k].strides
        fixed, moving, unit = self.code.index(0), list[Value](), False
        backwards: tuple[Scalar, Scalar] | None = None
        for d, position in enumerate(node.args):
            value = scope.value(position)
            if strides[d] == "0":
                continue
            if value.width == 1:
                fixed = fixed + self.code.index(value) * self.stride[k][d]
            elif position.op == "index" and position.data == step.lane_dim and strides[d] == "1" and not unit:
                unit = True
            else:
                backwards = self._backwards(position, step) if strides[d] == "1" else None
                stride = self.stride[k][d]
                scale = Value(stride.text, "i64", 1, stride.text == "1")
                moving.append(value if scale.constant else machine.instruction("mul", value, scale))
        if unit and not moving:
            where = fixed + step.start
            return self.memory.read_lanes(
                dtype, self.base[k].element(element(dtype), where), step.count, step.mask
            )
        pointer = self.base[k].element(element(dtype), fixed)
        if unit:
            moving.append(self.lane_positions(scope, step.start))
        if not moving:
            return self.memory.read(dtype, pointer)
        total = moving[0]
        for more in moving[1:]:
            total = machine.instruction("add", total, more)
        if backwards and len(moving) == 1:
            first, last = (self.code.index(machine.first(scope.value(x))) for x in backwards)
            place = first - step.start
            return self.memory.backwards(dtype, pointer, place, last, total, step.count, step.mask)
        return self.memory.gather(dtype, pointer, total, step.mask)

    def _backwards(self, position: Scalar, step: Step) -> tuple[Scalar, Scalar] | None:
        """x and y of a position x - lane, held within 0 and y, that do not depend on the lane."""
        lanes = frozenset({step.lane_dim})
        if step.lane_dim < 0 or position.op != "select" or (held := position.args[2]).op != "select":
            return None
        _, y, place = held.args
        if place.op != "sub" or position is not within(place, y) or self.varies(y, lanes):
            return None
        x, lane = place.args
        runs = lane.op == "index" and lane.data == step.lane_dim and not self.varies(x, lanes)
        return (x, y) if runs else None

    def store(self, k: int, value: Value, step: Step) -> None:
        """Store a value at every lane of `step`; large outputs wait until `settle`."""
        operand = self.nest.operands[k]
        if k in step.staged:
            self.memory.write_lanes(operand.dtype, step.staged[k], value, None, None)
            return
        kind = operand.strides[step.lane_dim]
        if kind == "1":
            raw = self.memory.raw_lanes(operand.dtype, value)
            if k in self.streams.past and not self.in_tail:
                self._waiting.setdefault(k, []).append((step.pointer(k), raw, step))
            else:
                self.memory.write_raw(operand.dtype, step.pointer(k), raw, step.count, step.mask)
        else:
            stride = self.code.index(2) if kind == "2" else self.stride[k][step.lane_dim]
            self.memory.write_strided(operand.dtype, step.pointer(k), stride, value, step.count, step.mask)

    def fetch(self, step: Step) -> None:
        """Prefetch what is read some iterations after `step`, of operands whose neighbours lie side by side.

        A processor looks a few hundred instructions ahead. That is too late where these are few iterations,
        or where non-temporal stores take the buffers that lines are read into. Any address may be prefetched.
        """
        for k, operand in enumerate(self.nest.operands):
            direct = operand.mode == "in" and len(operand.strides) == len(self.nest.dims)
            if direct and operand.strides[step.lane_dim] == "1" and k not in step.staged:
                self.code.prefetch(step.pointer(k)[2048])

    def settle(self) -> None:
        """Write what a turn stores in outputs that may bypass the caches, all of one behind one branch."""
        code = self.code
        for k, waiting in self._waiting.items():
            dtype, past = self.nest.operands[k].dtype, self.streams.past[k]
            count = waiting[0][2].count
            if count is not None:
                past = past & count.equals(LANES)
            streamed, plain, out = code.label(), code.label(), code.label()
            code.branch(past, streamed, plain)
            code.begin(streamed)
            for pointer, raw, step in waiting:
                self.memory.stream(dtype, pointer, raw)
                if self.fetches and k == next(iter(self._waiting)):
                    self.fetch(step)
            code.jump(out)
            code.begin(plain)
            for pointer, raw, step in waiting:
                self.memory.write_raw(dtype, pointer, raw, step.count, step.mask)
            code.jump(out)
            code.begin(out)
        self._waiting = {}

    def lane_positions(self, scope: Expression, start: Integer) -> Value:
        """start + lane, for 16 lanes."""
        first = scope.machine.spread(self.code.index(start).value, LANES)
        return scope.machine.instruction("add", first, Value(IOTA64, "i64", LANES, True))

    # -- loops over lanes ---------------------------------------------------------------------------

    @contextmanager
    def turns(
        self, start: Integer, limit: Index, copies: int, carried: Sequence[Value] = ()
    ) -> Iterator[tuple[Loop, Iterator[Index]]]:
        """for v in start .. limit - 16*copies, as long as all of so many vectors exist: the loop, and where
        each of them begins, written when it is asked for.
        """
        with self.code.loop(start, limit - (LANES * copies - 1), LANES * copies, carried) as turn:
            yield turn, (turn.index + LANES * copy for copy in range(copies))
            self.settle()

    def in_flight(self, roots: list[Scalar], dims: frozenset[int]) -> int:
        """How many vectors a long body that computes `roots` at positions along `dims` does side by side;
        1 of a short one, of which several are under way as they are.
        """
        if self.cost(roots, dims) < EXPENSIVE:
            return 1
        apart = {"load", *REDUCE}
        nodes = [n for n in topological(roots) if n.args and n.op not in apart and self.varies(n, dims)]
        return side_by_side(nodes, self.target)

    def lanes(
        self,
        start: Integer,
        limit: Index,
        carried: list[Value],
        unroll: int,
        body: Callable[..., list[Value]],
    ) -> list[Value]:
        """Write `body(position, count, mask, values)` over [start, limit), 16 positions at a time.

            for v in start .. limit - 16*unroll:  body x unroll        (unroll > 1)
            for v .. limit - 16:                  body                 (without masks)
            for v .. limit:                       body on a tail       (with masks: also the whole loop)

        `count` and `mask` are None where all 16 lanes exist. Returns the values after the last turn.
        """
        code = self.code
        wide = [unroll] if unroll > 1 else []
        if not self.target.masks:
            wide = [*wide, 1]
        for copies in wide:
            with self.turns(start, limit, copies, carried) as (turn, at):
                values = turn.values
                for v in at:
                    values = body(v, None, None, values)
                turn.next = values
            start, carried = turn.index, turn.values
        self.in_tail = bool(wide)
        with code.loop(start, limit, LANES, carried) as turn:
            count = (limit - turn.index).min(LANES)
            mask = self.memory.mask(count)
            turn.next = body(turn.index, count, mask, turn.values)
            self.settle()
        self.in_tail = False
        return turn.values

    # -- units of work ------------------------------------------------------------------------------

    @contextmanager
    def units(self, sizes: list[Index], first: Index | None = None) -> Iterator[list[Index]]:
        """for unit in begin (or `first`) .. end: its position in dims of `sizes`, the last moving fastest.

        before:  (p0, p1, ...) = begin cut by division, once
        turn:    ...;  p1 += 1;  if p1 == size1: p1 = 0, p0 += 1
        """
        code = self.code
        begin, end = code.indices("begin", "end")
        begin = begin if first is None else first
        if len(sizes) <= 1:
            with code.loop(begin, end, 1) as turn:
                yield [turn.index] * len(sizes)
            return
        with code.loop(begin, end, 1, self.cut(begin, sizes)) as turn:
            yield turn.indices
            turn.next = self.advance(turn.indices, sizes)

    def cut(self, position: Index, sizes: list[Index]) -> list[Index]:
        """A position in row-major order as one position per dim; the first size does not matter."""
        parts = []
        for size in reversed(sizes[1:]):
            rest = position.udiv(size)
            parts.append(position - rest * size)
            position = rest
        return [position, *reversed(parts)]

    def advance(self, position: list[Index], sizes: list[Index]) -> list[Index]:
        """The position after `position`, in row-major order."""
        result = list(position)
        result[-1] = position[-1] + 1
        for d in range(len(position) - 1, 0, -1):
            over = result[d] >= sizes[d]
            result[d] = over.choose(0, result[d])
            result[d - 1] = position[d - 1] + over.index()
        return result
