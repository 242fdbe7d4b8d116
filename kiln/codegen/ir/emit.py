"""Scalar expressions as LLVM instructions, on one value or on 16 lanes.

    x = load 0; y = exp-like polynomial of x         what `Expression.value` writes for a lane-level root
        %v1 = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> splat (...), ...)
        %v2 = fmul <16 x float> %v1, %v1
        ...

A node is written once per scope, as wide as its widest operand: what does not vary along the lanes stays
one scalar and is spread where a vector needs it. Every instruction is total (no poison): see the
docstring of `kiln.scalars.scalar`. No flag ever allows LLVM to change a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial, reduce

from kiln.codegen.ir import lacking
from kiln.codegen.ir.code import Code
from kiln.codegen.ir.index import Condition, Index, Pointer
from kiln.codegen.ir.instructions import FLOAT_COMPARE, Instructions
from kiln.codegen.ir.literal import literal, number
from kiln.codegen.ir.value import LLVM, Value, llvm_type
from kiln.scalars.floats import FORMAT
from kiln.scalars.scalar import FLOATS, SIGNED, WIDTH, Scalar, topological
from kiln.table.order import LANES

Leaf = Callable[[Scalar], Value]
LONG = 128  # nodes of a body that is written for a vector's lanes where vectors are narrow

FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
ROUNDERS = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "rint": "roundeven",
    "abs": "fabs",
}


class Machine(Instructions):
    """The ops of the scalar language on `Value`s of one width; each writes the instructions of one op."""

    __slots__ = ()

    # -- the ops ------------------------------------------------------------------------------------

    def apply(self, node: Scalar, args: list[Value]) -> Value:
        """The instructions of one non-leaf node on its operands' values."""
        op = node.op
        if op in self._SPECIAL:
            return self._SPECIAL[op](self, node, args)
        x = args[0]
        if op in FLOAT_COMPARE:
            return self.compare(op, x, args[1])
        if x.type in FLOATS:
            if op in FLOAT_BINARY:
                return self.instruction(FLOAT_BINARY[op], x, args[1])
            if op == "neg":
                return Value(self.code.op(f"fneg {x.typed}"), x.type, x.width)
            if op == "fma":
                return self.fused(x, args[1], args[2], node.data == "loose")
            return self.intrinsic(ROUNDERS[op], x)
        if op in INT_BINARY:
            return self.instruction(INT_BINARY[op], x, args[1])
        if op == "neg":
            return self.instruction("sub", number(0, x.type), x)
        if op == "abs":
            return self._integer_abs(x)
        return self.instruction("xor", x, number(-1, x.type))  # not

    def _integer_abs(self, x: Value) -> Value:
        if x.type not in SIGNED:
            return x
        negative = self.compare("lt", x, number(0, x.type))
        return self.choose(negative, self.instruction("sub", number(0, x.type), x), x)

    def _select(self, node: Scalar, args: list[Value]) -> Value:
        return self.choose(*args)

    def _bits(self, node: Scalar, args: list[Value]) -> Value:
        return self.cast("bitcast", args[0], node.type)

    def _convert(self, node: Scalar, args: list[Value]) -> Value:
        return self.convert(args[0], node.type)

    def _division(self, node: Scalar, args: list[Value]) -> Value:
        """q = x / (y == 0 or MIN / -1 ? 1 : y);  y == 0 ? 0 : q   (MIN / 1 is MIN, MIN rem 1 is 0)"""
        x, y = args
        if x.type in FLOATS:
            return self._remainder(x, y) if node.op == "rem" else self.instruction("fdiv", x, y)
        unsafe = zero = self.compare("eq", y, number(0, y.type))
        if x.type in SIGNED:
            least = number(-(1 << (WIDTH[x.type] - 1)), x.type)
            wraps = self.both("and", self.compare("eq", x, least), self.compare("eq", y, number(-1, y.type)))
            unsafe = self.both("or", unsafe, wraps)
        divisor = self.choose(unsafe, number(1, y.type), y)
        how = ("s" if x.type in SIGNED else "u") + node.op
        return self.choose(zero, number(0, x.type), self.instruction(how, x, divisor))

    def _remainder(self, x: Value, y: Value) -> Value:
        """The exact remainder of floats towards zero, with x's sign; NaN for an infinite x or a zero y.

        r = |x|, b = |y|
        while any r >= b:
            t = b;  while any t * 2^20 <= r:  t = t * 2^20      scaling up is exact
            r = r - trunc(r / t) * t                            the quotient is below 2^21, so at most 1
            r = r < 0 ? r + t : r                               too large; both lines are exact
            (a lane that is done, r < t, keeps its r)
        """
        x, y = self.align(x, y)
        infinite = number(float("inf"), x.type)
        a, b = self.intrinsic("fabs", x), self.intrinsic("fabs", y)
        good = self.both("and", self.compare("lt", a, infinite), self.compare("gt", b, number(0.0, x.type)))
        b = self.choose(good, b, number(1.0, x.type))
        a = self.choose(good, a, number(0.0, x.type))
        with self.code.repeat([a], lambda turn: self.any(self.compare("ge", turn.values[0], b))) as outer:
            r = outer.values[0]
            with self.code.repeat([b], lambda turn: self.any(self._scaled(turn.values[0], r)[1])) as inner:
                t = inner.values[0]
                larger, fits = self._scaled(t, r)
                inner.next = [self.choose(fits, larger, t)]
            t = inner.values[0]
            quotient = self.intrinsic("trunc", self.instruction("fdiv", r, t))
            minus = Value(self.code.op(f"fneg {quotient.typed}"), r.type, r.width)
            rest = self.fused(minus, t, r)
            below = self.compare("lt", rest, number(0.0, r.type))
            rest = self.choose(below, self.instruction("fadd", rest, t), rest)
            outer.next = [self.choose(self.compare("ge", r, t), rest, r)]
        whole = "i32" if x.type == "f32" else "i64"
        sign = number(-(1 << (WIDTH[whole] - 1)), whole)
        signed = self.both("and", self.cast("bitcast", x, whole), sign)
        result = self.both("or", self.cast("bitcast", outer.values[0], whole), signed)
        return self.choose(good, self.cast("bitcast", result, x.type), number(float("nan"), x.type))

    def _scaled(self, t: Value, r: Value) -> tuple[Value, Value]:
        """t * 2^20, and where it does not exceed r."""
        larger = self.instruction("fmul", t, number(2.0**20, t.type))
        return larger, self.compare("le", larger, r)

    def fused(self, x: Value, y: Value, z: Value, loose: bool = False) -> Value:
        """x * y + z, rounded once; a `loose` one twice where there is no instruction for it.

        Without the instruction, f32 goes through f64, where products are exact and sums have 29 bits more.
        """
        if self.code.target.fuses:
            return self.intrinsic("fma", x, y, z)
        if loose:
            return self.instruction("fadd", self.instruction("fmul", x, y), z)
        if x.type == "f32":
            x, y, z = (self.convert(v, "f64") for v in (x, y, z))
            return self.convert(self.instruction("fadd", self.instruction("fmul", x, y), z), "f32")
        return lacking.fused_doubles(self, *self.align(x, y, z))

    def any(self, x: Value) -> Condition:
        """Whether an i1 holds in any lane."""
        if x.width == 1:
            return self.code.condition(x)
        packed = self.code.op(f"bitcast {x.typed} to i{x.width}")
        return self.code.condition(self.code.op(f"icmp ne i{x.width} {packed}, 0"))

    def _shift(self, node: Scalar, args: list[Value]) -> Value:
        """A shift by an amount read as unsigned; the width or more gives 0, or the sign of a signed shr."""
        x, amount = args
        width = WIDTH[x.type]
        how = "shl" if node.op == "shl" else "ashr" if x.type in SIGNED else "lshr"
        if amount.constant and 0 <= int(amount.text) < width:
            return self.instruction(how, x, amount)
        fits = self.instruction("icmp ult", amount, number(width, amount.type), "i1")
        if how == "ashr":
            return self.instruction(how, x, self.choose(fits, amount, number(width - 1, amount.type)))
        inside = self.choose(fits, amount, number(0, amount.type))
        return self.choose(fits, self.instruction(how, x, inside), number(0, x.type))

    def _ldexp(self, node: Scalar, args: list[Value]) -> Value:
        """x * 2^n by the instruction of wide x86, else (x * 2^half) * 2^(n - half): only the last rounds."""
        x, n = self.align(*args)
        if self.code.target.vector_bits == 512 and x.width == LANES:
            return self._native_ldexp(x, n)
        form = FORMAT[x.type]
        total = self.instruction("fadd", n, number(form.magic, x.type))
        integer = self.cast("bitcast", total, form.integer)
        half = self.instruction("ashr", integer, number(1, form.integer))
        for part in (half, self.instruction("sub", integer, half)):
            raised = self.instruction("shl", part, number(form.mantissa, form.integer))
            raised = self.instruction("add", raised, number(form.one, form.integer))
            x = self.instruction("fmul", x, self.cast("bitcast", raised, x.type))
        return x

    def _native_ldexp(self, x: Value, n: Value) -> Value:
        if x.type == "f64":
            low, high = (self._native_scale(self._half(x, h), self._half(n, h), "pd", 8) for h in (0, 1))
            order = ", ".join(f"i32 {k}" for k in range(LANES))
            text = self.code.op(f"shufflevector {low.typed}, {high.typed}, <{LANES} x i32> <{order}>")
            return Value(text, x.type, LANES)
        return self._native_scale(x, n, "ps", 16)

    def _half(self, x: Value, which: int) -> Value:
        order = ", ".join(f"i32 {k}" for k in range(8 * which, 8 * which + 8))
        text = f"shufflevector {x.typed}, {x.llvm} poison, <8 x i32> <{order}>"
        return Value(self.code.op(text), x.type, 8)

    def _native_scale(self, x: Value, n: Value, suffix: str, width: int) -> Value:
        name = f"llvm.x86.avx512.mask.scalef.{suffix}.512"
        arguments = [x.typed, n.typed, f"{x.llvm} zeroinitializer", f"i{width} -1", "i32 4"]
        return Value(self.code.call(name, x.llvm, arguments), x.type, width)

    def _round(self, node: Scalar, args: list[Value]) -> Value:
        """The bits are kept: where the value is stored they are not found again."""
        half = node.data == "float16"
        raw = self.float_to_half(args[0]) if half else self.float_to_brain(args[0])
        found = self.half_to_float(raw) if half else self.brain_to_float(raw)
        self.code.rounded[found.text, node.data] = raw
        return found

    _SPECIAL = {
        "select": _select, "bits": _bits, "from_bits": _bits, "convert": _convert, "div": _division,
        "rem": _division, "shl": _shift, "shr": _shift, "round": _round, "ldexp": _ldexp,
    }  # fmt: skip

    # -- lanes in memory ----------------------------------------------------------------------------

    def room(self, type: str) -> Pointer:
        """Memory for 16 lanes, on the stack; an i1 takes a byte."""
        return self.code.slot(LLVM["u8" if type == "i1" else type], LANES)

    def put(self, x: Value, room: Pointer, at: Index) -> None:
        """Stores lanes from lane `at` on."""
        x = self.cast("zext", x, "u8") if x.type == "i1" else x
        room.element(LLVM[x.type], at).store(x.typed, WIDTH[x.type] // 8)

    def get(self, room: Pointer, type: str, at: Index, width: int) -> Value:
        """Lanes that lie there."""
        kind = "u8" if type == "i1" else type
        x = Value(room.element(LLVM[kind], at).load(llvm_type(kind, width), WIDTH[kind] // 8), kind, width)
        return self.compare("ne", x, number(0, "u8")) if type == "i1" else x

    # -- conversions --------------------------------------------------------------------------------

    def convert(self, x: Value, type: str) -> Value:
        """x as `type`, by the rules of `kiln.scalars.scalar.convert`."""
        if x.type == type:
            return x
        if type == "i1":
            zero = number(0, x.type)
            return self.compare("ne", x, zero)
        if x.type in FLOATS:
            if type in FLOATS:
                return self.cast("fpext" if type == "f64" else "fptrunc", x, type)
            return self._float_to_int(x, type)
        signed = x.type in SIGNED
        if type in FLOATS:
            return self.cast("sitofp" if signed else "uitofp", x, type)
        if WIDTH[type] == WIDTH[x.type]:
            return Value(x.text, type, x.width, False)
        if WIDTH[type] < WIDTH[x.type]:
            return self.cast("trunc", x, type)
        return self.cast("sext" if signed else "zext", x, type)

    def _float_to_int(self, x: Value, type: str) -> Value:
        """inside = lowest <= x < highest;  inside ? fptosi(inside ? x : 0) : MIN   (NaN is outside)

        On x86 the instruction for f32 -> i32 already answers MIN outside, so it needs no test.
        """
        native = self._native_truncation(x, type)
        if native is not None:
            return native
        bits = WIDTH[type]
        signed = type in SIGNED
        least = -(1 << (bits - 1)) if signed else 0
        exact = least - 1 >= -(1 << (24 if x.type == "f32" else 53))
        above = (
            self.compare("gt", x, number(least - 1, x.type))
            if exact
            else self.compare("ge", x, number(least, x.type))
        )
        below = self.compare("lt", x, number(1 << (bits - 1 if signed else bits), x.type))
        inside = self.both("and", above, below)
        tame = self.choose(inside, x, number(0, x.type))
        wide = type if bits >= 32 else "i32"
        whole = self.cast("fptosi" if signed or bits < 32 else "fptoui", tame, wide)
        return self.choose(inside, self.convert(whole, type), number(least, type))

    def _native_truncation(self, x: Value, type: str) -> Value | None:
        if x.type != "f32" or type != "i32" or x.width != 16 or self.code.target.vector_bits != 512:
            return None
        empty = "<16 x i32> zeroinitializer"
        arguments = [x.typed, empty, "i16 -1", "i32 4"]
        text = self.code.call("llvm.x86.avx512.mask.cvttps2dq.512", "<16 x i32>", arguments)
        return Value(text, "i32", 16)

    # -- the 16-bit floats: conversions only, on the bits in memory -----------------------------------

    def half_to_float(self, raw: Value) -> Value:
        """The f32 of float16 bits (i16)."""
        if not self.code.target.halves:
            return lacking.half_to_float(self, raw)
        half = self.code.op(f"bitcast {raw.typed} to {_lanes('half', raw.width)}")
        text = self.code.op(f"fpext {_lanes('half', raw.width)} {half} to {llvm_type('f32', raw.width)}")
        return Value(text, "f32", raw.width)

    def float_to_half(self, x: Value) -> Value:
        """The float16 bits (i16) nearest to an f32."""
        if not self.code.target.halves:
            return lacking.float_to_half(self, x)
        half = self.code.op(f"fptrunc {x.typed} to {_lanes('half', x.width)}")
        text = self.code.op(f"bitcast {_lanes('half', x.width)} {half} to {llvm_type('i16', x.width)}")
        return Value(text, "i16", x.width)

    def brain_to_float(self, raw: Value) -> Value:
        """The f32 of bfloat16 bits (i16): they are its upper half."""
        wide = self.instruction("shl", self.cast("zext", raw, "i32"), number(16, "i32"))
        return self.cast("bitcast", wide, "f32")

    def float_to_brain(self, x: Value) -> Value:
        """The bfloat16 bits (i16) nearest to an f32."""
        return self._native_brain(x) if self.code.target.tiles and x.width == 16 else self._brain(x)

    def _native_brain(self, x: Value) -> Value:
        """By one instruction, which takes denormals for zeros: where there are any, the other way."""
        code = self.code
        brains = "<16 x bfloat>"
        native = code.call("llvm.x86.avx512bf16.cvtneps2bf16.512", brains, [x.typed])
        bits = Value(code.op(f"bitcast {brains} {native} to <16 x i16>"), "i16", 16)
        denormal = "i32 32"  # of the classes of floats that the instruction tests for
        small = code.call("llvm.x86.avx512.fpclass.ps.512", "<16 x i1>", [x.typed, denormal])
        before, inside, out = code.block, code.label(), code.label()
        code.branch(self.any(Value(small, "i1", 16)), inside, out)
        code.begin(inside)
        found = self._brain(x)
        code.jump(out)
        code.begin(out)
        text = f"phi {bits.llvm} [ {bits.text}, %{before} ], [ {found.text}, %{inside} ]"
        return Value(code.op(text), "i16", 16)

    def _brain(self, x: Value) -> Value:
        """bits = x + 0x7fff + (bit 16 of x), upper half;  NaN ? its upper half made quiet"""
        data = self.cast("bitcast", x, "i32")
        upper = self.instruction("lshr", data, number(16, "i32"))
        odd = self.instruction("and", upper, number(1, "i32"))
        moved = self.instruction("add", data, self.instruction("add", odd, number(0x7FFF, "i32")))
        rounded = self.instruction("lshr", moved, number(16, "i32"))
        quiet = self.instruction("or", upper, number(0x40, "i32"))
        nan = self.instruction("fcmp uno", x, x, "i1")
        return self.cast("trunc", self.choose(nan, quiet, rounded), "i16")


def _lanes(kind: str, width: int) -> str:
    return kind if width == 1 else f"<{width} x {kind}>"


def rare_families(nodes: Sequence[Scalar], where: Callable[[Scalar], Hashable]) -> dict[int, list[Scalar]]:
    """The selects marked "rare" that share a branch: one condition, one place `where` they are computed.

    `nodes` are in topological order; no member of a family depends on another.
    """
    families: dict[Hashable, list[Scalar]] = {}
    found: dict[int, list[Scalar]] = {}
    for node in nodes:
        if node.op != "select" or node.data != "rare":
            continue
        key = (id(node.args[0]), where(node))
        below = {id(n) for n in topological([node])}
        family = families.get(key)
        if family is None or any(id(n) in below for n in family):
            family = families[key] = []
        family.append(node)
        found[id(node)] = family
    return found


class Expression:
    """Values of scalar nodes in one scope; an inner scope starts from a copy of the outer one's values."""

    __slots__ = ("code", "leaf", "machine", "values")

    def __init__(self, code: Code, leaf: Leaf, values: dict[int, Value] | None = None) -> None:
        self.code = code
        self.machine = Machine(code)
        self.leaf = leaf
        self.values: dict[int, Value] = {} if values is None else dict(values)

    def inner(self, leaf: Leaf) -> Expression:
        """A scope inside this one, reading leaves through `leaf`."""
        return Expression(self.code, leaf, self.values)

    def value(self, root: Scalar) -> Value:
        """The value of `root`, writing what this scope does not hold yet."""
        return together([self], root)[0]

    def before_branch(self, node: Scalar) -> list[Scalar]:
        """What must be known before the branch of a rare select's family: all but the rare values."""
        wanted = [node.args[0]]
        for member in self.code.rare.get(id(node), [node]):
            wanted += [member.args[2], *self._frontier(member.args[1])]
        return wanted

    def _frontier(self, root: Scalar) -> list[Scalar]:
        """The leaves of `root` and what of it is known already."""
        return self.below(root)[0]

    def below(self, root: Scalar) -> tuple[list[Scalar], set[int]]:
        """The same, and all that is written for it: nodes by their ids, the leaves among them."""
        seen: set[int] = set()
        stack, found = [root], []
        while stack:
            node = stack.pop()
            if id(node) in seen or node.op == "const":
                continue
            seen.add(id(node))
            if id(node) in self.values or node.op in ("load", "number", "index"):
                found.append(node)
            else:
                stack.extend(node.args)
        return found, seen

    def usual(self, rare: Scalar) -> Value:
        """The second operand of a rare select, as wide as what is chosen."""
        known = [self.values[id(rare.args[0])], self.values[id(rare.args[2])]]
        known += [self.values[id(x)] for x in self._frontier(rare.args[1])]
        return self.machine.spread(known[1], max(v.width for v in known))

    def write(self, node: Scalar) -> Value:
        """One node, whose operands are known."""
        if node.op == "const":
            return literal(node)
        if node.op in ("load", "number", "index"):
            return self.leaf(node)
        return self.machine.apply(node, [self.values[id(a)] for a in node.args])


def together(scopes: Sequence[Expression], root: Scalar) -> list[Value]:
    """The value of `root` in each of some scopes, writing what they do not hold yet; iterative.

    The scopes hold values of the same nodes. Each node is written for all of them in turn, so that a
    processor has several chains of instructions to go on with where one would wait for its own results.
    """
    if scopes[0].code.target.narrow and _in_pieces(scopes, root):
        return [scope.values[id(root)] for scope in scopes]
    known, stack = scopes[0].values, [root]
    while stack:
        node = stack[-1]
        if id(node) in known:
            stack.pop()
            continue
        rare = node.op == "select" and node.data == "rare"
        wanted = scopes[0].before_branch(node) if rare else node.args
        waiting = [a for a in wanted if id(a) not in known]
        if waiting:
            stack.extend(reversed(waiting))
            continue
        stack.pop()
        if rare:
            _write_rare(scopes, node)
        else:
            for scope in scopes:
                scope.values[id(node)] = scope.write(node)
    return [scope.values[id(root)] for scope in scopes]


def _in_pieces(scopes: Sequence[Expression], root: Scalar) -> bool:
    """Writes a long body for a vector's lanes at a time, where 16 are several vectors; whether it is long.
    All at once would be several times the instructions, which LLVM takes minutes for, and more values than
    registers hold.

    room[n] = value n                       of each leaf that varies
    each vector of lanes:  result[lanes] = the body of room[n][lanes]
    """
    code = scopes[0].code
    leaves, inside = scopes[0].below(root)
    if len(inside) < LONG:
        return False
    bits = max(WIDTH[node.type] for node in topological([root]) if id(node) in inside)
    some = code.target.vector_bits // bits
    for scope in scopes:
        given = {id(leaf): scope.value(leaf) for leaf in leaves}
        width = max((value.width for value in given.values()), default=1)
        if width <= some:
            return False
        machine, outer = scope.machine, code.rare
        result = machine.room(root.type)
        rooms = {k: machine.room(value.type) for k, value in given.items() if value.width > 1}
        for k, room in rooms.items():
            machine.put(given[k], room, code.index(0))
        code.rare = {k: [node for node in family if id(node) in inside] for k, family in outer.items()}
        with code.loop(0, width, some) as turn:
            part = scope.inner(scope.leaf)
            for k, room in rooms.items():
                part.values[k] = machine.get(room, given[k].type, turn.index, some)
            machine.put(machine.spread(part.value(root), some), result, turn.index)
        code.rare = outer
        scope.values[id(root)] = machine.get(result, root.type, code.index(0), width)
    return True


def _write_rare(scopes: Sequence[Expression], node: Scalar) -> None:
    """A family of selects whose first operands are computed only if some lane of some scope takes them.

    y = ...;  if any lane of a condition:  x = ...;  picked = select condition, x, y
    value = phi y, picked
    """
    code, machine = scopes[0].code, scopes[0].machine
    conditions = [scope.values[id(node.args[0])] for scope in scopes]
    family = [n for n in code.rare.get(id(node), [node]) if id(n) not in scopes[0].values]
    kept = [[scope.usual(n) for scope in scopes] for n in family]
    before, inside, out = code.block, code.label(), code.label()
    code.branch(machine.any(reduce(partial(machine.both, "or"), conditions)), inside, out)
    code.begin(inside)
    within = [scope.inner(scope.leaf) for scope in scopes]
    picked = [
        [machine.choose(*chosen) for chosen in zip(conditions, together(within, n.args[1]), usual)]
        for n, usual in zip(family, kept)
    ]
    after = code.block
    code.jump(out)
    code.begin(out)
    for n, rare, usual in zip(family, picked, kept):
        for scope, x, y in zip(scopes, rare, usual):
            text = f"phi {x.llvm} [ {y.text}, %{before} ], [ {x.text}, %{after} ]"
            scope.values[id(n)] = Value(code.op(text), x.type, x.width)
