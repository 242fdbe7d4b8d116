"""What an attention kernel does with rows of scores between its products.

    weigh      scores s -> e = exp(x - max x), x = s * scale + mask;  one over the sum of each row
    slopes     e, dP -> p = e / sum,  dS = p * (dP - sum of p * dP);  with dropout of dP first, and of p then
    deliver    sums -> an output, times a factor
    draw       which weights dropout keeps, a bit each
    thin       e -> what dropout makes of it

Rows are whole (every key that a row may look at), so each is a softmax in the order of a reduction
(architecture.md 6). Keys that do not exist, or that a causal row may not see, have x = -inf, so e is 0, and
adding it changes no bit: rows are padded with such keys to whole vectors. A row of nothing but -inf has the
weights 0. Where a mask hides a key, by -inf or any number so low that exp gives 0, none is computed: it would
be a denormal number first, which takes a processor a hundred times as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.codegen.gemm.element import Element
from kiln.codegen.ir.code import IOTA32, IOTA64
from kiln.codegen.ir.emit import Expression, Machine
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.literal import number
from kiln.codegen.ir.memory import Memory
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.reduce import Reducer
from kiln.codegen.target import Target
from kiln.scalars.mathematics import EXP_RANGE, exp
from kiln.scalars.philox import philox, uniform_f32
from kiln.scalars.scalar import Scalar, topological
from kiln.table.order import GROUP, LANES, REDUCE_BLOCK

INFINITY = float("inf")
SCORES = "ptr %scores, i64 %pitch, i64 %rows, i64 %count, i64 %keys, i64 %first, "


class Mask(tuple[str, str]):
    """A mask's dtype, and the class of its stride along the keys: "1", "0" or "s"."""

    __slots__ = ()

    @property
    def dtype(self) -> str:
        """The dtype in memory."""
        return self[0]

    @property
    def stride(self) -> str:
        """The stride class."""
        return self[1]


class Rows:
    """A routine over rows of scores under construction."""

    def __init__(self, target: Target, element: Element, name: str, params: str) -> None:
        self.code = Routine(target, name, params)
        self.machine, self.memory = Machine(self.code), Memory(self.code)
        self.type, self.bytes = element.summed, element.bytes
        self.dtype = {"f32": "float32", "f64": "float64"}[self.type]

    def number(self, value: float) -> Value:
        """A literal of the type scores have."""
        return number(value, self.type)

    def reducer(self, op: str) -> Reducer:
        """A reduction of such values."""
        return Reducer(self.code, Scalar(op, (Scalar("number", (), self.type, 0),), self.type))

    def at(self, base: Pointer, column: Index) -> Pointer:
        """The address of a column."""
        return base[column * self.bytes]

    def read(self, row: Pointer, column: Index) -> Value:
        """16 columns of a row."""
        return self.memory.read_lanes(self.dtype, self.at(row, column), None, None)

    def write(self, row: Pointer, column: Index, x: Value) -> None:
        """16 columns of a row."""
        self.memory.write_lanes(self.dtype, self.at(row, column), x, None, None)

    def one(self, address: Pointer) -> Value:
        """A number in memory."""
        return self.memory.read(self.dtype, address)

    def spread(self, x: str) -> Value:
        """An argument of the type scores have, for 16 columns."""
        return self.machine.spread(Value(x, self.type), LANES)

    def kept(self, bits: Pointer, column: Index, x: Value) -> Value:
        """What dropout makes of 16 columns, whose bits lie in the row of bits."""
        word = _word(self.code, bits, column).load("i16", 2)
        keep = Value(self.code.op(f"bitcast i16 {word} to <{LANES} x i1>"), "i1", LANES)
        x = self.machine.instruction("fmul", x, self.spread("%factor"))
        return self.machine.choose(keep, x, self.machine.spread(self.number(0.0), LANES))

    def low_bits(self, x: Value) -> Value:
        """x rounded to bfloat16."""
        return self.machine.brain_to_float(self.machine.float_to_brain(x))

    def computed(self, make: object, *values: Value) -> Value:
        """What a scalar function gives of values."""
        leaves = [Scalar("number", (), v.type, k) for k, v in enumerate(values)]
        return Expression(self.code, lambda leaf: values[leaf.data]).value(make(*leaves))  # type: ignore[operator]

    def top(self, largest: Value) -> Value:
        """What is taken from a row's scores: the largest, 0 where every one is -inf."""
        nothing = self.machine.compare("eq", largest, self.number(-INFINITY))
        return self.machine.choose(nothing, self.number(0.0), largest)

    def share(self, total: Value) -> Value:
        """One over a sum of weights, 0 for none."""
        empty = self.machine.compare("eq", total, self.number(0.0))
        share = self.machine.instruction("fdiv", self.number(1.0), total)
        return self.machine.choose(empty, self.number(0.0), share)

    def sum(self, count: Index, element: object) -> Value:
        """The sum of `element(column)` over whole vectors, in the order of a reduction."""
        code, reducer = self.code, self.reducer("sum")
        with code.loop(0, count, REDUCE_BLOCK, reducer.identity()) as block:
            end = count.min(block.index + REDUCE_BLOCK)
            with code.loop(block.index, end, GROUP, reducer.identity(LANES)) as group:
                stop = end.min(group.index + GROUP)
                with code.loop(group.index, stop, LANES, reducer.identity(LANES)) as turn:
                    turn.next = reducer.step(turn.values, [element(turn.index)])  # type: ignore[operator]
                group.next = reducer.step(group.values, turn.values)
            block.next = reducer.step(block.values, reducer.tree(group.values))
        return block.values[0]


class Row(NamedTuple):
    """A row of scores: where it lies, how many of its columns may be looked at, its mask."""

    place: Pointer
    limit: Index
    mask: Pointer


class Scores(Rows):
    """A routine over rows of scores that are to become weights, with the arguments of SCORES."""

    def __init__(
        self, target: Target, element: Element, name: str, params: str, mask: Mask | None, causal: bool
    ) -> None:
        scores = SCORES + f"{float_kind(element)} %scale, ptr %mask, i64 %mr, i64 %mc"
        super().__init__(target, element, name, scores + params)
        self.mask, self.causal = mask, causal
        self.low = self.machine.spread(self.number(-INFINITY), LANES)
        self.zero = self.machine.spread(self.number(0.0), LANES)

    def row(self, r: Index, masked: Index | None = None) -> Row:
        """The row r; `masked` is the one whose mask is its, if that is another."""
        code = self.code
        scores, masks = code.pointers("scores", "mask")
        pitch, count, keys, first, mr = code.indices("pitch", "count", "keys", "first", "mr")
        limit = keys.min(count)
        if self.causal:
            seen = (first + r + 1).min(limit)
            limit = (seen > 0).choose(seen, 0)
        mask = masks[(r if masked is None else masked) * mr] if self.mask else code.pointer("null")
        return Row(scores[r * pitch], limit, mask)

    def whole(self, limit: Index) -> Index:
        """The columns that are looked at in whole pairs of vectors."""
        return limit & -(2 * LANES)

    def larger(self, x: Value, y: Value) -> Value:
        """The larger of two, x where y is NaN."""
        return self.machine.choose(self.machine.compare("gt", y, x), y, x)

    def x(self, row: Row, column: Index, edge: bool) -> Value:
        """16 scores, scaled and masked; at an edge, -inf where there is none to be looked at."""
        machine = self.machine
        x = machine.instruction("fmul", self.read(row.place, column), Value("%scale", self.type))
        if self.mask is not None:
            given = self._given(row, column, row.limit - column if edge else None)
            if given.type == "i1":
                x = machine.choose(given, x, self.low)
            else:
                x = machine.instruction("fadd", x, machine.convert(given, self.type))
        return machine.choose(self.inside(row, column), x, self.low) if edge else x

    def inside(self, row: Row, column: Index) -> Value:
        """Which of 16 columns may be looked at."""
        left = (row.limit - column).bits(32)
        some = self.machine.spread(Value(left, "i32"), LANES)
        return self.machine.compare("gt", some, Value(IOTA32, "i32", LANES, True))

    def _given(self, row: Row, column: Index, left: Index | None) -> Value:
        """The mask at 16 columns, of which `left` (all, for None) may be read."""
        assert self.mask is not None
        code, memory, dtype = self.code, self.memory, self.mask.dtype
        mc = code.index("%mc")
        if self.mask.stride == "0":
            return memory.read(dtype, row.mask)
        place, count, lanes = row.mask[column * mc], None, None
        if left is not None:
            some = left > 0  # else nothing is read but the row's first
            place = some.choose(place, row.mask)
            count = some.choose(left, 1).min(LANES)
            lanes = memory.mask(count)
        if self.mask.stride == "1":
            return memory.read_lanes(dtype, place, count, lanes)
        size = Element(dtype, "", "").stored_bytes
        return memory.gather(dtype, place, memory.strided(mc // size), lanes)

    def weight(self, x: Value, top: Value, edge: bool) -> Value:
        """exp(x - top)."""
        machine = self.machine
        less = machine.instruction("fsub", x, top)
        if self.mask is None and not edge:
            return self.computed(exp, less)
        hidden = machine.compare("lt", less, self.number(EXP_RANGE[self.type][0]))
        return machine.choose(hidden, self.zero, self.computed(exp, machine.choose(hidden, self.zero, less)))


class _Weigh(Scores):
    """The routine weigh under construction."""

    def __init__(
        self, target: Target, element: Element, mask: Mask | None, causal: bool, rounds: bool
    ) -> None:
        super().__init__(target, element, "weigh", ", ptr %shares", mask, causal)
        self.rounds = rounds

    def write_rows(self) -> Routine:
        """Row by row: x and its largest; e and its sum."""
        code, machine = self.code, self.machine
        rows = code.index("%rows")
        with code.times(rows) as r:
            row = self.row(r)
            top = machine.spread(self.top(self._largest(row)), LANES)

            def weight(column: Index, row: Row = row, top: Value = top) -> Value:
                e = self.weight(self.read(row.place, column), top, True)
                self.write(row.place, column, self.low_bits(e) if self.rounds else e)
                return e

            total = self.sum(self.code.index("%count"), weight)
            self.memory.write(self.dtype, self.at(self.code.pointer("%shares"), r), self.share(total))
        return code

    def _largest(self, row: Row) -> Value:
        """The largest x of a row that is a number, all of them stored; in columns without a key -inf.

        A NaN stays out of it, and makes a NaN of the sum of weights.
        """
        code, whole = self.code, self.whole(row.limit)
        count = code.index("%count")
        with code.loop(0, whole, 2 * LANES, [self.low] * 2) as turn:
            for k, best in enumerate(turn.values):
                x = self._store(row, turn.index + k * LANES, False)
                turn.next = [*turn.next[:k], self.larger(best, x), *turn.next[k + 1 :]]
        with code.loop(whole, count, LANES, [self.larger(*turn.values)]) as rest:
            rest.next = [self.larger(rest.values[0], self._store(row, rest.index, True))]
        return self.reducer("max").tree(rest.values)[0]

    def _store(self, row: Row, column: Index, edge: bool) -> Value:
        x = self.x(row, column, edge)
        self.write(row.place, column, x)
        return x


def weigh(target: Target, element: Element, mask: Mask | None, causal: bool, rounds: bool) -> Routine:
    """The routine weigh: `rows` rows of `count` scores, of which `keys` are keys; the first is query `first`.

    each row:   x = s * scale + mask, or -inf;  m = max x
                s = e = exp(x - m), rounded if it `rounds`;  shares[row] = 1 / sum e, 0 for a sum of 0
    """
    return _Weigh(target, element, mask, causal, rounds).write_rows()


def kept_bytes(columns: Any) -> Any:
    """The bytes of the bits that say which of so many columns dropout keeps."""
    return columns // 8


def _word(code: Routine, bits: Pointer, column: Index) -> Pointer:
    """Where the bits of 16 columns lie in a row of bits."""
    return bits[kept_bytes(column)]


def float_kind(element: Element) -> str:
    """The LLVM type that scores have."""
    return "double" if element.summed == "f64" else "float"


def slopes(target: Target, element: Element, drops: bool) -> Routine:
    """The routine slopes: each row:  p = e * share;  dP = p * (dP - share * sum of e * dP).

    With dropout dP is kept dP, and p becomes kept p at last. Of bfloat16 both are rounded.
    """
    bits = f", ptr %kept, i64 %kp, {float_kind(element)} %factor" if drops else ""
    made = Rows(
        target, element, "slopes",
        "ptr %weights, ptr %grads, i64 %pitch, i64 %rows, i64 %count, ptr %shares" + bits,
    )  # fmt: skip
    code, machine = made.code, made.machine
    weights_of, grads_of, shares, kept_of = code.pointers("weights", "grads", "shares", "kept")
    pitch, rows, count, kp = code.indices("pitch", "rows", "count", "kp")
    final = made.low_bits if element.dtype == "bfloat16" else lambda x: x
    with code.times(rows) as r:
        weights, grads = weights_of[r * pitch], grads_of[r * pitch]
        kept = kept_of[r * kp] if drops else kept_of
        share = made.one(made.at(shares, r))

        def term(column: Index) -> Value:
            d = made.read(grads, column)
            if drops:
                d = made.kept(kept, column, d)
                made.write(grads, column, d)
            return machine.instruction("fmul", made.read(weights, column), d)

        mean = machine.spread(machine.instruction("fmul", share, made.sum(count, term)), LANES)
        with code.times(count, LANES) as column:
            less = machine.instruction("fsub", made.read(grads, column), mean)
            p = machine.instruction("fmul", made.read(weights, column), share)
            made.write(grads, column, final(machine.instruction("fmul", p, less)))
            made.write(weights, column, final(made.kept(kept, column, p) if drops else p))
    return code


def thin(target: Target, element: Element) -> Routine:
    """The routine thin: each row:  e = kept e; of bfloat16 rounded."""
    made = Rows(
        target, element, "thin",
        f"ptr %weights, i64 %pitch, i64 %rows, i64 %count, ptr %kept, i64 %kp, {float_kind(element)} %factor",
    )  # fmt: skip
    code = made.code
    kept_of, weights = code.pointers("kept", "weights")
    pitch, rows, count, kp = code.indices("pitch", "rows", "count", "kp")
    with code.times(rows) as r:
        row, kept = weights[r * pitch], kept_of[r * kp]
        with code.times(count, LANES) as column:
            e = made.kept(kept, column, made.read(row, column))
            made.write(row, column, made.low_bits(e) if element.dtype == "bfloat16" else e)
    return code


def draw(target: Target, element: Element) -> Routine:
    """The routine draw: a bit for each of 16 columns at a time, set where its number is `chance` or more.

    the seed's words of all rounds, spread
    each row, 16 columns:  kept[row][column / 16] = uniform(seed, first + row * step + column) >= chance
    """
    made = Rows(
        target, element, "draw",
        "ptr %kept, i64 %kp, i64 %rows, i64 %count, i64 %first, i64 %step, i64 %seed, float %chance",
    )  # fmt: skip
    code, machine = made.code, made.machine
    bits = code.pointer("%kept")
    rows, count, start, kp, step = code.indices("rows", "count", "first", "kp", "step")
    seed, chance = (Scalar("number", (), type, k) for k, type in enumerate(("i64", "f32")))
    position = Scalar("load", (), "i64", 0)
    root = uniform_f32(philox(seed, position)[0]) >= chance
    given = {"i64": Value("%seed", "i64"), "f32": Value("%chance", "f32")}
    outer = Expression(code, lambda leaf: given[leaf.type])
    varying: set[int] = set()
    for node in topological([root]):
        if node is position or any(id(x) in varying for x in node.args):
            varying.add(id(node))
            for x in node.args:
                if id(x) not in varying and x.op != "const":
                    outer.values[id(x)] = machine.spread(outer.value(x), LANES)
    lanes = Value(IOTA64, "i64", LANES, True)
    with code.times(rows) as r:
        row, first = bits[r * kp], start + r * step
        with code.times(count, LANES) as column:
            places = machine.spread((first + column).value, LANES)
            places = machine.instruction("add", places, lanes)

            def place(leaf: Scalar, places: Value = places) -> Value:
                return places

            keep = outer.inner(place).value(root)
            word = code.op(f"bitcast {keep.typed} to i16")
            _word(code, row, column).store(f"i16 {word}", 2)
    return code


def deliver(target: Target, element: Element) -> Routine:
    """The routine deliver: dst = src * factor, rounded to the dtype; `fs` bytes between rows' factors.

    A row of src is whole vectors, a row of dst `columns` elements side by side.
    """
    made = Rows(
        target, element, "deliver",
        "ptr %src, i64 %ss, ptr %dst, i64 %ds, i64 %rows, i64 %columns, ptr %factors, i64 %fs",
    )  # fmt: skip
    code, memory = made.code, made.memory
    sums, out, factors = code.pointers("src", "dst", "factors")
    rows, ss, ds, columns, fs = code.indices("rows", "ss", "ds", "columns", "fs")
    size = element.stored_bytes
    with code.times(rows) as r:
        src, dst = sums[r * ss], out[r * ds]
        factor = made.one(factors[r * fs])
        whole = columns & -LANES
        for start, end, masked in ((code.index(0), whole, False), (whole, columns, True)):
            with code.loop(start, end, LANES) as turn:
                x = made.machine.instruction("fmul", made.read(src, turn.index), factor)
                count = columns - turn.index if masked else None
                place = dst[turn.index * size]
                lanes = memory.mask(count) if count is not None else None
                memory.write_lanes(element.dtype, place, x, count, lanes)
    return code
