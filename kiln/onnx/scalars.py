"""Bodies of pointwise ops as operators: one node after the other, each total where a Scalar is.

A fused multiply-add is a product and a sum, as ONNX has none: it rounds twice. Integers narrower than 32 bits
are computed in 32 and wrapped, u32 in 64; of u64 only what does not tell signs apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.onnx.builder import Builder
from kiln.onnx.protobuf import TYPES
from kiln.scalars.scalar import FLOATS, INTS, SIGNED, WIDTH, Scalar, const_value, topological

# The dtype of a scalar type.
NAME = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u32": "uint32", "u64": "uint64", "f32": "float32", "f64": "float64",
}  # fmt: skip
COMPUTED = {"i8": "int32", "u8": "int32", "i16": "int32", "u32": "int64", "u64": "int64"}  # and in which
PLAIN = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "neg": "Neg", "abs": "Abs", "sqrt": "Sqrt", "floor": "Floor",
    "ceil": "Ceil", "rint": "Round", "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
    "ge": "GreaterOrEqual",
}  # fmt: skip
OF_BOOL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not", "ne": "Xor"}
OF_BITS = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor", "not": "BitwiseNot"}


def write(builder: Builder, root: Scalar, leaves: Callable[[Scalar], str]) -> str:
    """The value a scalar stands for; `leaves` gives those of its operands, in the scalar's type."""
    made: dict[int, str] = {}
    for node in topological([root]):
        made[id(node)] = _Node(builder, node, [made[id(a)] for a in node.args]).value(leaves)
    return made[id(root)]


class _Node:
    """One scalar whose operands have values."""

    def __init__(self, builder: Builder, node: Scalar, x: list[str]) -> None:
        self.builder, self.node, self.x = builder, node, x
        self.type = node.args[0].type if node.args else node.type  # of what it is computed from

    def value(self, leaves: Callable[[Scalar], str]) -> str:
        """The result."""
        node, op = self.node, self.node.op
        if op == "const":
            if node.type in FLOATS:
                raw = node.data.to_bytes(WIDTH[node.type] // 8, "little")
                return self.builder.tensor(NAME[node.type], (), raw)
            return self.builder.constant(const_value(node), NAME[node.type])
        if not node.args:
            return leaves(node)
        rule: Any = getattr(self, f"_{op}", None)
        if rule is not None:
            return str(rule(*self.x))
        if self.type == "i1" and op in OF_BOOL:
            return self.builder.op(OF_BOOL[op], *self.x)
        if op in OF_BITS:
            return self.builder.op(OF_BITS[op], *self.x)
        return self._plain(PLAIN[op], *self.x)

    def _plain(self, kind: str, *x: str, result: str = "") -> str:
        """An operator, computed in a dtype that has it."""
        b, own = self.builder, NAME[self.type]
        if self.type == "u64" and self.node.op in ("lt", "le", "gt", "ge"):  # the order of signs, exchanged
            least = b.constant(-(1 << 63))
            return b.op(kind, *(b.op("Add", self._bit_cast(v, "int64"), least) for v in x))
        narrow = "int32" if self.type == "i1" else COMPUTED.get(self.type, own)
        if self.type == "u64" and self.node.op not in ("add", "sub", "mul", "neg", "eq"):
            raise b.refuse(f"computes {self.node.op} of 64 bits without a sign, which has no ONNX form")
        found = b.op(kind, *(self._converted(v, own, narrow) for v in x))
        out = result or NAME[self.node.type]
        return found if out == "bool" else self._converted(found, narrow, out)

    def _converted(self, x: str, source: str, target: str) -> str:
        """Integers in another dtype, wrapped."""
        b = self.builder
        if {source, target} == {"uint64", "int64"}:
            return self._bit_cast(x, target)
        if source == "int64" and target == "uint32":
            x = b.op("BitwiseAnd", x, b.constant(0xFFFFFFFF))
        return b.cast(x, source, target)

    def _bit_cast(self, x: str, target: str) -> str:
        return self.builder.op("BitCast", x, to=TYPES[target])

    def _number(self, value: float, type: str = "") -> str:
        return self.builder.constant(value, NAME[type or self.type])

    # -- ops with rules of their own ----------------------------------------------------------------

    def _ne(self, x: str, y: str) -> str:
        if self.type == "i1":
            return self.builder.op("Xor", x, y)
        return self.builder.op("Not", self._plain("Equal", x, y, result="bool"))

    def _fma(self, x: str, y: str, z: str) -> str:
        return self.builder.op("Add", self.builder.op("Mul", x, y), z)

    def _div(self, x: str, y: str) -> str:
        return self.builder.op("Div", x, y) if self.type in FLOATS else self._whole("Div", x, y)

    def _rem(self, x: str, y: str) -> str:
        return self.builder.op("Mod", x, y, fmod=1) if self.type in FLOATS else self._whole("Mod", x, y)

    def _whole(self, kind: str, x: str, y: str) -> str:
        """A quotient or remainder of integers: 0 by 0; by -1 without overflow."""
        b, one = self.builder, self._number(1)
        zero = self._plain("Equal", y, self._number(0), result="bool")
        minus = self._plain("Equal", y, self._number(-1), result="bool") if self.type in SIGNED else ""
        known = b.op("Or", zero, minus) if minus else zero
        own = NAME[self.type]
        wide = COMPUTED.get(self.type, own)
        given = [self._converted(v, own, wide) for v in (x, self._choose(known, one, y))]
        settings: dict[str, Any] = {"fmod": 1} if kind == "Mod" else {}
        found = self._converted(b.op(kind, *given, **settings), wide, own)
        if minus:
            by_minus = self._plain("Neg", x) if kind == "Div" else self._number(0)
            found = self._choose(minus, by_minus, found)
        return self._choose(zero, self._number(0), found)

    def _choose(self, condition: str, x: str, y: str, type: str = "") -> str:
        """Where of any dtype."""
        b, kind = self.builder, type or self.type
        if kind == "i1":
            others = b.op("And", b.op("Not", condition), y)
            return b.op("Or", b.op("And", condition, x), others)
        own = NAME[kind]
        wide = {"i8": "int32", "i16": "int32", "u32": "int64", "u64": "int64"}.get(kind, own)
        given = [self._converted(v, own, wide) for v in (x, y)]
        return self._converted(b.op("Where", condition, *given), wide, own)

    def _select(self, condition: str, x: str, y: str) -> str:
        return self._choose(condition, x, y, self.node.type)

    def _trunc(self, x: str) -> str:
        b = self.builder
        return b.op("Where", b.op("Less", x, self._number(0)), b.op("Ceil", x), b.op("Floor", x))

    def _ldexp(self, x: str, n: str) -> str:
        """x * 2^n in two steps, as one power may be beyond what a float holds."""
        b, two = self.builder, self._number(2)
        half = b.op("Floor", b.op("Mul", n, self._number(0.5)))
        first = b.op("Mul", x, b.op("Pow", two, half))
        return b.op("Mul", first, b.op("Pow", two, b.op("Sub", n, half)))

    def _bits(self, x: str) -> str:
        return self._bit_cast(x, NAME[self.node.type])

    _from_bits = _bits

    def _shl(self, x: str, amount: str) -> str:
        return self._shifted(x, amount, "LEFT")

    def _shr(self, x: str, amount: str) -> str:
        if self.type not in SIGNED:
            return self._shifted(x, amount, "RIGHT")
        b = self.builder  # of a negative number the complement is shifted, and complemented again
        negative = self._plain("Less", x, self._number(0), result="bool")
        moved = self._shifted(self._choose(negative, b.op("BitwiseNot", x), x), amount, "RIGHT")
        return self._choose(negative, b.op("BitwiseNot", moved), moved)

    def _shifted(self, x: str, amount: str, direction: str) -> str:
        """A shift of the bits; by the width or more it gives 0."""
        b, width, own = self.builder, WIDTH[self.type], NAME[self.type]
        raw = f"uint{width}"
        x, amount = (v if own == raw else self._bit_cast(v, raw) for v in (x, amount))
        wide = "uint32" if width < 32 else raw
        x, amount = (b.cast(v, raw, wide) for v in (x, amount))
        signed = "int64"
        fits = b.op("Less", b.cast(amount, wide, signed), b.constant(width))
        if wide == "uint64":  # amounts beyond 63 bits are negative as signed ones
            fits = b.op("And", fits, b.op("GreaterOrEqual", b.cast(amount, wide, signed), b.constant(0)))
        whole = b.op("Where", fits, b.cast(amount, wide, signed), b.constant(0))
        moved = b.op("BitShift", x, b.cast(whole, signed, wide), direction=direction)
        kept = b.cast(b.cast(moved, wide, signed), signed, signed)
        found = b.cast(b.op("Where", fits, kept, b.constant(0)), signed, wide)
        found = b.cast(found, wide, raw)
        return found if own == raw else self._bit_cast(found, own)

    def _convert(self, x: str) -> str:
        """Floats truncate towards zero; out of an integer's range a runtime decides."""
        b, target = self.builder, self.node.type
        if target in INTS and self.type in INTS and WIDTH[target] < WIDTH[self.type]:
            mask = b.constant((1 << WIDTH[target]) - 1)
            x = b.op("BitwiseAnd", self._converted(x, NAME[self.type], "int64"), mask)
            return b.cast(x, "int64", NAME[target])
        if {self.type, target} == {"i64", "u64"}:
            return self._bit_cast(x, NAME[target])
        return b.cast(x, NAME[self.type], NAME[target])

    def _round(self, x: str) -> str:
        """A float32 rounded to a dtype of 16 bits, as a float32."""
        b, dtype = self.builder, self.node.data
        return b.cast(b.cast(x, "float32", dtype), dtype, "float32")
