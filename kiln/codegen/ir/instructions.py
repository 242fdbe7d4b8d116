"""Instructions on values, of one element or of as many as there are lanes; literals are spread as needed."""

from __future__ import annotations

from kiln.codegen.ir.code import Code
from kiln.codegen.ir.value import LLVM, Value, llvm_type
from kiln.scalars.scalar import FLOATS, SIGNED

FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


class Instructions:
    """Instructions on `Value`s, which are spread to one width where theirs differ."""

    __slots__ = ("code",)

    def __init__(self, code: Code) -> None:
        self.code = code

    # -- shape --------------------------------------------------------------------------------------

    def spread(self, x: Value, width: int) -> Value:
        """x in every one of `width` lanes."""
        if x.width == width:
            return x
        assert x.width == 1, f"a vector of {x.width} lanes where {width} were needed"
        if x.constant:
            return Value(f"splat ({LLVM[x.type]} {x.text})", x.type, width, True)
        kind = llvm_type(x.type, width)
        one = self.code.op(f"insertelement {kind} poison, {LLVM[x.type]} {x.text}, i64 0")
        zero = f"<{width} x i32> zeroinitializer"
        return Value(self.code.op(f"shufflevector {kind} {one}, {kind} poison, {zero}"), x.type, width)

    def first(self, x: Value) -> Value:
        """x, or its first lane."""
        return x if x.width == 1 else Value(self.code.op(f"extractelement {x.typed}, i64 0"), x.type)

    def align(self, *values: Value) -> list[Value]:
        """The values at their common width."""
        width = max(v.width for v in values)
        return [self.spread(v, width) for v in values]

    # -- helpers: two operands of one width, literals spread on demand --------------------------------

    def instruction(self, text: str, x: Value, y: Value, type: str | None = None) -> Value:
        """`text ty x, y`, of x's type unless another is given."""
        if x.width != y.width:
            x, y = self.align(x, y)
        return Value(self.code.op(f"{text} {x.typed}, {y.text}"), type or x.type, x.width)

    def choose(self, condition: Value, x: Value, y: Value) -> Value:
        """select."""
        condition, x, y = self.align(condition, x, y)
        text = f"select {condition.typed}, {x.typed}, {y.typed}"
        return Value(self.code.op(text), x.type, x.width)

    def cast(self, how: str, x: Value, type: str) -> Value:
        """`how x to type`."""
        return Value(self.code.op(f"{how} {x.typed} to {llvm_type(type, x.width)}"), type, x.width)

    def intrinsic(self, name: str, *values: Value) -> Value:
        """A float intrinsic overloaded on its type."""
        values = tuple(self.align(*values))
        first = values[0]
        suffix = first.type if first.width == 1 else f"v{first.width}{first.type}"
        text = self.code.call(f"llvm.{name}.{suffix}", first.llvm, [v.typed for v in values])
        return Value(text, first.type, first.width)

    def compare(self, op: str, x: Value, y: Value) -> Value:
        """The i1 of a comparison; NaN is unequal to everything and unordered."""
        if x.type in FLOATS:
            return self.instruction(f"fcmp {FLOAT_COMPARE[op]}", x, y, "i1")
        if op not in ("eq", "ne"):
            op = ("s" if x.type in SIGNED else "u") + op
        return self.instruction(f"icmp {op}", x, y, "i1")

    def both(self, op: str, x: Value, y: Value) -> Value:
        """and, or, xor."""
        return self.instruction(op, x, y)
