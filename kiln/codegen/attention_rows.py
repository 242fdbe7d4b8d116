"""What an attention kernel does with rows of scores between its products.

    weigh      scores s -> e = exp(x - max x), x = s * scale + mask;  one over the sum of each row
    slopes     e, dP -> p = e / sum,  dS = p * (dP - sum of p * dP);  with dropout of dP first, and of p then
    deliver    sums -> an output, times a factor
    draw       which weights dropout keeps, a bit each
    thin       e -> what dropout makes of e / sum

Rows are whole (every key that a row may look at), so each is a softmax in the order of a reduction
(architecture.md 6). Keys that do not exist, or that a causal row may not see, have x = -inf, so e is 0, and
adding it changes no bit: rows are padded with such keys to whole vectors. A row of nothing but -inf has the
weights 0. For x = -inf no exponential is computed: it would be a denormal number first, which takes a
processor a hundred times as long.
"""

from __future__ import annotations

from kiln.codegen.code import IOTA32, IOTA64, LANES, Value
from kiln.codegen.emit import Expression, Machine, number
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import Element
from kiln.codegen.memory import Memory
from kiln.codegen.nest import REDUCE_BLOCK
from kiln.codegen.reduce import Reducer
from kiln.codegen.target import Target
from kiln.ops.scalar import Scalar, topological
from kiln.ops.scalars.mathematics import exp
from kiln.ops.scalars.philox import philox, uniform_f32

CHAIN = 8 * LANES  # elements of which each lane adds its own before they join its total
INFINITY = float("inf")
KEPT_BYTES = LANES // 8  # of the bits that say what of 16 columns dropout keeps


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

    def at(self, base: str, column: str) -> str:
        """The address of a column."""
        return self.code.at(base, self.code.mul(column, str(self.bytes)))

    def read(self, row: str, column: str) -> Value:
        """16 columns of a row."""
        return self.memory.read_lanes(self.dtype, self.at(row, column), None, None)

    def write(self, row: str, column: str, x: Value) -> None:
        """16 columns of a row."""
        self.memory.write_lanes(self.dtype, self.at(row, column), x, None, None)

    def one(self, address: str) -> Value:
        """A number in memory."""
        return self.memory.read(self.dtype, address)

    def spread(self, x: str) -> Value:
        """An argument of the type scores have, for 16 columns."""
        return self.machine.spread(Value(x, self.type), LANES)

    def kept(self, bits: str, column: str, x: Value) -> Value:
        """What dropout makes of 16 columns, whose bits lie in the row of bits."""
        word = self.code.op(f"load i16, ptr {_word(self.code, bits, column)}, align 2")
        keep = Value(self.code.op(f"bitcast i16 {word} to <{LANES} x i1>"), "i1", LANES)
        x = self.machine.instruction("fmul", x, self.spread("%factor"))
        return self.machine.choose(keep, x, self.machine.spread(self.number(0.0), LANES))

    def computed(self, make: object, *values: Value) -> Value:
        """What a scalar function gives of values."""
        leaves = [Scalar("number", (), v.type, k) for k, v in enumerate(values)]
        return Expression(self.code, lambda leaf: values[leaf.data]).value(make(*leaves))  # type: ignore[operator]

    def sum(self, count: str, element: object) -> Value:
        """The sum of `element(column)` over whole vectors, in the order of a reduction."""
        code, reducer = self.code, self.reducer("sum")
        with code.loop("0", count, REDUCE_BLOCK, reducer.identity()) as block:
            end = code.minimum(count, code.add(block.index, str(REDUCE_BLOCK)))
            with code.loop(block.index, end, CHAIN, reducer.identity(LANES)) as group:
                stop = code.minimum(end, code.add(group.index, str(CHAIN)))
                with code.loop(group.index, stop, LANES, reducer.identity(LANES)) as turn:
                    turn.next = reducer.step(turn.values, [element(turn.index)])  # type: ignore[operator]
                group.next = reducer.step(group.values, turn.values)
            block.next = reducer.step(block.values, reducer.tree(group.values))
        return block.values[0]


class _Weigh(Rows):
    """The routine weigh under construction."""

    def __init__(self, target: Target, element: Element, mask: Mask | None, causal: bool) -> None:
        super().__init__(
            target, element, "weigh",
            f"ptr %scores, i64 %pitch, i64 %rows, i64 %count, i64 %keys, i64 %first, {_kind(element)} %scale,"
            " ptr %shares, ptr %mask, i64 %mr, i64 %mc",
        )  # fmt: skip
        self.mask, self.causal = mask, causal

    def write_rows(self) -> Routine:
        """Row by row: x and its largest; e and its sum."""
        code, machine = self.code, self.machine
        with code.times("%rows") as r:
            row = code.at("%scores", code.mul(r, "%pitch"))
            seen = code.add(code.add("%first", r), "1") if self.causal else "%keys"
            self.limit = code.minimum(seen, "%keys")
            self.place = code.at("%mask", code.mul(r, "%mr"))
            largest = self._largest(row)
            nothing = machine.compare("eq", largest, self.number(-INFINITY))
            top = machine.spread(machine.choose(nothing, self.number(0.0), largest), LANES)

            def weight(column: str, row: str = row, top: Value = top) -> Value:
                x = self.read(row, column)
                hidden = machine.compare("eq", x, machine.spread(self.number(-INFINITY), LANES))
                zero = machine.spread(self.number(0.0), LANES)
                less = machine.choose(hidden, zero, machine.instruction("fsub", x, top))
                e = machine.choose(hidden, zero, self.computed(exp, less))
                self.write(row, column, e)
                return e

            total = self.sum("%count", weight)
            empty = machine.compare("eq", total, self.number(0.0))
            share = machine.instruction("fdiv", self.number(1.0), total)
            share = machine.choose(empty, self.number(0.0), share)
            self.memory.write(self.dtype, self.at("%shares", r), share)
        return code

    def _largest(self, row: str) -> Value:
        """The largest x of a row that is a number, all of them stored; in columns without a key -inf.

        A NaN stays out of it, and makes a NaN of the sum of weights.
        """
        code, machine = self.code, self.machine
        low = [machine.spread(self.number(-INFINITY), LANES)]

        def larger(x: Value, y: Value) -> Value:
            return machine.choose(machine.compare("gt", y, x), y, x)

        whole = code.minimum(code.op(f"and i64 %keys, -{2 * LANES}"), "%count")
        with code.loop("0", whole, 2 * LANES, low * 2) as turn:
            for k, best in enumerate(turn.values):
                x = self._x(row, code.add(turn.index, str(k * LANES)), None)
                turn.next = [*turn.next[:k], larger(best, x), *turn.next[k + 1 :]]
        with code.loop(whole, "%count", LANES, [larger(*turn.values)]) as rest:
            left = code.sub("%keys", rest.index)
            some = code.compare("sgt", left, "0")
            count = code.minimum(code.choose(some, left, "1"), str(LANES))
            rest.next = [larger(rest.values[0], self._x(row, rest.index, count))]
        return self.reducer("max").tree(rest.values)[0]

    def _x(self, row: str, column: str, count: str | None) -> Value:
        """16 scores, scaled and masked, stored; `count` keys exist there at most (None: all)."""
        machine = self.machine
        x = machine.instruction("fmul", self.read(row, column), Value("%scale", self.type))
        low = machine.spread(self.number(-INFINITY), LANES)
        if self.mask is not None:
            given = self._given(column, count)
            if given.type == "i1":
                x = machine.choose(given, x, low)
            else:
                x = machine.instruction("fadd", x, machine.convert(given, self.type))
        if self.causal or count is not None:
            left = Value(self.code.op(f"trunc i64 {self.code.sub(self.limit, column)} to i32"), "i32")
            lanes = Value(IOTA32, "i32", LANES, True)
            inside = machine.compare("gt", machine.spread(left, LANES), lanes)
            x = machine.choose(inside, x, low)
        self.write(row, column, x)
        return x

    def _given(self, column: str, count: str | None) -> Value:
        """The mask at 16 columns; `count` keys exist there."""
        assert self.mask is not None
        code, memory, dtype = self.code, self.memory, self.mask.dtype
        if self.mask.stride == "0":
            return memory.read(dtype, self.place)
        place = code.at(self.place, code.mul(column, "%mc"))
        lanes = None if count is None else memory.mask(count)
        if self.mask.stride == "1":
            if count is not None:  # beyond the last key nothing is read
                beyond = code.compare("sge", column, "%keys")
                place = code.choose(beyond, self.place, place, "ptr")
            return memory.read_lanes(dtype, place, count, lanes)
        size = Element(dtype, "", "").stored_bytes
        positions = memory.strided(code.op(f"sdiv i64 %mc, {size}"))
        if count is not None:
            beyond = code.compare("sge", column, "%keys")
            place = code.choose(beyond, self.place, place, "ptr")
        return memory.gather(dtype, place, positions, lanes)


def weigh(target: Target, element: Element, mask: Mask | None, causal: bool) -> Routine:
    """The routine weigh: `rows` rows of `count` scores, of which `keys` are keys; the first is query `first`.

    each row:   x = s * scale + mask, or -inf;  m = max x
                s = e = exp(x - m);  shares[row] = 1 / sum e, 0 for a sum of 0
    """
    return _Weigh(target, element, mask, causal).write_rows()


def _word(code: Routine, bits: str, column: str) -> str:
    """Where the bits of 16 columns lie in a row of bits."""
    return code.at(bits, code.op(f"sdiv i64 {column}, {LANES // KEPT_BYTES}"))


def _kind(element: Element) -> str:
    return "double" if element.summed == "f64" else "float"


def slopes(target: Target, element: Element, drops: bool) -> Routine:
    """The routine slopes: each row:  p = e * share;  d = dP;  dP = p * (d - sum of p * d).

    With dropout d = kept dP, and p becomes kept p at last.
    """
    bits = f", ptr %kept, i64 %kp, {_kind(element)} %factor" if drops else ""
    made = Rows(
        target, element, "slopes",
        "ptr %weights, ptr %grads, i64 %pitch, i64 %rows, i64 %count, ptr %shares" + bits,
    )  # fmt: skip
    code, machine = made.code, made.machine
    with code.times("%rows") as r:
        weights, grads = (code.at(base, code.mul(r, "%pitch")) for base in ("%weights", "%grads"))
        kept = code.at("%kept", code.mul(r, "%kp")) if drops else ""
        share = machine.spread(made.one(made.at("%shares", r)), LANES)

        def term(column: str) -> Value:
            p = machine.instruction("fmul", made.read(weights, column), share)
            made.write(weights, column, p)
            d = made.read(grads, column)
            if drops:
                d = made.kept(kept, column, d)
                made.write(grads, column, d)
            return machine.instruction("fmul", p, d)

        mean = machine.spread(made.sum("%count", term), LANES)
        with code.times("%count", LANES) as column:
            less = machine.instruction("fsub", made.read(grads, column), mean)
            p = made.read(weights, column)
            made.write(grads, column, machine.instruction("fmul", p, less))
            if drops:
                made.write(weights, column, made.kept(kept, column, p))
    return code


def thin(target: Target, element: Element) -> Routine:
    """The routine thin: each row:  e = kept e * share."""
    made = Rows(
        target, element, "thin",
        "ptr %weights, i64 %pitch, i64 %rows, i64 %count, ptr %shares, ptr %kept, i64 %kp,"
        f" {_kind(element)} %factor",
    )  # fmt: skip
    code = made.code
    with code.times("%rows") as r:
        row, kept = code.at("%weights", code.mul(r, "%pitch")), code.at("%kept", code.mul(r, "%kp"))
        share = made.machine.spread(made.one(made.at("%shares", r)), LANES)
        with code.times("%count", LANES) as column:
            p = made.machine.instruction("fmul", made.read(row, column), share)
            made.write(row, column, made.kept(kept, column, p))
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
    with code.times("%rows") as r:
        row, first = code.at("%kept", code.mul(r, "%kp")), code.add("%first", code.mul(r, "%step"))
        with code.times("%count", LANES) as column:
            places = machine.spread(Value(code.add(first, column), "i64"), LANES)
            places = machine.instruction("add", places, lanes)

            def place(leaf: Scalar, places: Value = places) -> Value:
                return places

            keep = outer.inner(place).value(root)
            word = code.op(f"bitcast {keep.typed} to i16")
            code.line(f"store i16 {word}, ptr {_word(code, row, column)}, align 2")
    return code


def deliver(target: Target, element: Element) -> Routine:
    """The routine deliver: dst = src * factor, rounded to the dtype; rows' factors are `fs` bytes apart.

    A row of src is whole vectors, a row of dst `columns` elements side by side.
    """
    made = Rows(
        target, element, "deliver",
        "ptr %src, i64 %ss, ptr %dst, i64 %ds, i64 %rows, i64 %columns, ptr %factors, i64 %fs",
    )  # fmt: skip
    code, memory = made.code, made.memory
    size = str(element.stored_bytes)
    with code.times("%rows") as r:
        src, dst = code.at("%src", code.mul(r, "%ss")), code.at("%dst", code.mul(r, "%ds"))
        factor = made.one(code.at("%factors", code.mul(r, "%fs")))
        whole = code.op(f"and i64 %columns, -{LANES}")
        for start, end, masked in (("0", whole, False), (whole, "%columns", True)):
            with code.loop(start, end, LANES) as turn:
                x = made.machine.instruction("fmul", made.read(src, turn.index), factor)
                count = code.sub("%columns", turn.index) if masked else None
                place = code.at(dst, code.mul(turn.index, size))
                lanes = memory.mask(count) if count is not None else None
                memory.write_lanes(element.dtype, place, x, count, lanes)
    return code
