"""The scalar language: what a pointwise body is made of.

A body such as ``tanh(x)`` is a Python function of `Scalar`s. Running it once builds an expression; the
expression is then run under several handlers (LLVM text, NumPy, printer), so the mathematics is
written once. Scalars are immutable and interned by structure: the same expression is the same object.

    scalar := const | leaf | op(scalar, ...)
    leaf   := arg k           the k-th operand of a body
            | load k [at i..] one element of operand k of a loop nest
            | number k        the k-th number argument of a loop nest
            | index d         the position along dim d of a loop nest (i64)
    op     := add sub mul div rem neg fma ldexp sqrt floor ceil trunc rint abs
            | eq ne lt le gt ge | and or xor not shl shr | select | bits from_bits | convert
            | round dtype         an f32 rounded to float16 or bfloat16 (and back to f32)
            | sum prod max min argmax argmin all any    (reductions, in loop nests only)

Types: i1; i8 i16 i32 i64 (signed, wrapping); u8 u32 u64; f32 f64. Every op is total: integer division
by zero gives 0 and MIN / -1 wraps; a shift of the width or more gives 0 (or the sign); a float outside an
integer's range converts to its minimum. Each float op rounds once; only `fma` fuses. An `fma loose` may round
twice on a machine that has no such instruction: what is made of it has bounds that allow for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Union

Number = Union[int, float, bool]

FLOATS = frozenset({"f32", "f64"})
SIGNED = frozenset({"i8", "i16", "i32", "i64"})
UNSIGNED = frozenset({"u8", "u32", "u64"})
INTS = SIGNED | UNSIGNED
WIDTH = {
    "i1": 1, "i8": 8, "u8": 8, "i16": 16, "i32": 32, "u32": 32, "i64": 64, "u64": 64,
    "f32": 32, "f64": 64,
}  # fmt: skip

ARITHMETIC = frozenset({"add", "sub", "mul", "div", "rem", "neg", "abs"})
FLOAT_ONLY = frozenset({"fma", "ldexp", "sqrt", "floor", "ceil", "trunc", "rint"})
COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
LOGIC = frozenset({"and", "or", "xor", "not"})
SHIFT = frozenset({"shl", "shr"})
REDUCE = frozenset({"sum", "prod", "max", "min", "argmax", "argmin", "all", "any"})
LEAVES = frozenset({"arg", "load", "number", "index"})


class Scalar:
    """One node of a scalar expression: `op` applied to `args`, of `type`; `data` for constants and leaves."""

    __slots__ = ("args", "data", "op", "type")
    _interned: dict[tuple[Any, ...], Scalar] = {}

    op: str
    args: tuple[Scalar, ...]
    type: str
    data: Any

    def __new__(cls, op: str, args: tuple[Scalar, ...], type: str, data: Any = None) -> Scalar:
        key = (op, tuple(map(id, args)), type, data)
        found = cls._interned.get(key)
        if found is None:
            found = super().__new__(cls)
            found.op, found.args, found.type, found.data = op, args, type, data
            cls._interned[key] = found
        return found

    def __add__(self, other: ScalarLike) -> Scalar:
        return binary("add", self, other)

    def __radd__(self, other: ScalarLike) -> Scalar:
        return binary("add", other, self)

    def __sub__(self, other: ScalarLike) -> Scalar:
        return binary("sub", self, other)

    def __rsub__(self, other: ScalarLike) -> Scalar:
        return binary("sub", other, self)

    def __mul__(self, other: ScalarLike) -> Scalar:
        return binary("mul", self, other)

    def __rmul__(self, other: ScalarLike) -> Scalar:
        return binary("mul", other, self)

    def __truediv__(self, other: ScalarLike) -> Scalar:
        return binary("div", self, other)

    def __rtruediv__(self, other: ScalarLike) -> Scalar:
        return binary("div", other, self)

    def __neg__(self) -> Scalar:
        return unary("neg", self)

    def __lt__(self, other: ScalarLike) -> Scalar:
        return binary("lt", self, other)

    def __le__(self, other: ScalarLike) -> Scalar:
        return binary("le", self, other)

    def __gt__(self, other: ScalarLike) -> Scalar:
        return binary("gt", self, other)

    def __ge__(self, other: ScalarLike) -> Scalar:
        return binary("ge", self, other)

    def __and__(self, other: ScalarLike) -> Scalar:
        return binary("and", self, other)

    def __or__(self, other: ScalarLike) -> Scalar:
        return binary("or", self, other)

    def __xor__(self, other: ScalarLike) -> Scalar:
        return binary("xor", self, other)

    def __invert__(self) -> Scalar:
        return unary("not", self)

    def __lshift__(self, other: ScalarLike) -> Scalar:
        return binary("shl", self, other)

    def __rshift__(self, other: ScalarLike) -> Scalar:
        return binary("shr", self, other)

    def eq(self, other: ScalarLike) -> Scalar:
        """Equality as a scalar (``==`` stays identity: scalars are interned)."""
        return binary("eq", self, other)

    def ne(self, other: ScalarLike) -> Scalar:
        """Inequality as a scalar; true where either side is NaN."""
        return binary("ne", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a scalar body may not branch on a value: use select(condition, a, b)")

    def __repr__(self) -> str:
        return text(self)


ScalarLike = Union[Scalar, int, float, bool]


def const(value: Number, type: str) -> Scalar:
    """The constant `value`, rounded to `type`; a float constant is kept as its bits (so -0.0 and NaN are
    exact).
    """
    if type == "i1":
        return Scalar("const", (), type, bool(value))
    if type == "f32":
        return Scalar("const", (), type, struct.unpack("<I", struct.pack("<f", value))[0])
    if type == "f64":
        return Scalar("const", (), type, struct.unpack("<Q", struct.pack("<d", value))[0])
    return Scalar("const", (), type, int(value))


def const_value(x: Scalar) -> Number:
    """The number a constant scalar stands for."""
    if x.type == "f32":
        return float(struct.unpack("<f", struct.pack("<I", x.data))[0])
    if x.type == "f64":
        return float(struct.unpack("<d", struct.pack("<Q", x.data))[0])
    return x.data  # type: ignore[no-any-return]


def arg(k: int, type: str) -> Scalar:
    """The k-th operand of a body."""
    return Scalar("arg", (), type, k)


def lift(value: ScalarLike, type: str) -> Scalar:
    """`value` as a scalar of `type`: a Python number becomes a constant."""
    if isinstance(value, Scalar):
        assert value.type == type, f"scalar of type {value.type} where {type} was needed"
        return value
    return const(value, type)


def binary(op: str, x: ScalarLike, y: ScalarLike) -> Scalar:
    """A two-operand op; a Python number takes the other side's type."""
    type = x.type if isinstance(x, Scalar) else y.type  # type: ignore[union-attr]
    lhs, rhs = lift(x, type), lift(y, type)
    return Scalar(op, (lhs, rhs), "i1" if op in COMPARE else type)


def unary(op: str, x: Scalar) -> Scalar:
    """A one-operand op that keeps the type."""
    return Scalar(op, (x,), x.type)


def fma(x: ScalarLike, y: ScalarLike, z: ScalarLike) -> Scalar:
    """x * y + z, rounded once."""
    type = next(v.type for v in (x, y, z) if isinstance(v, Scalar))
    return Scalar("fma", (lift(x, type), lift(y, type), lift(z, type)), type)


def multiply_add(x: ScalarLike, y: ScalarLike, z: ScalarLike) -> Scalar:
    """x * y + z, rounded once where one instruction does it, else twice: for polynomials, for products."""
    exact = fma(x, y, z)
    return Scalar("fma", exact.args, exact.type, "loose")


def ldexp(x: Scalar, n: Scalar) -> Scalar:
    """x * 2^n for an integral float n, rounded once; NaN where either is.

    |n| may be up to about twice the largest exponent, as long as x * 2^(n/2) is a normal number.
    """
    return binary("ldexp", x, n)


def select(condition: Scalar, x: ScalarLike, y: ScalarLike) -> Scalar:
    """x where the i1 `condition` holds, else y."""
    type = x.type if isinstance(x, Scalar) else y.type  # type: ignore[union-attr]
    return Scalar("select", (condition, lift(x, type), lift(y, type)), type)


def sqrt(x: Scalar) -> Scalar:
    """The correctly rounded square root."""
    return unary("sqrt", x)


def floor(x: Scalar) -> Scalar:
    """The largest integral float not above x."""
    return unary("floor", x)


def ceil(x: Scalar) -> Scalar:
    """The smallest integral float not below x."""
    return unary("ceil", x)


def trunc(x: Scalar) -> Scalar:
    """x rounded towards zero."""
    return unary("trunc", x)


def rint(x: Scalar) -> Scalar:
    """x rounded to the nearest integral float, ties to even."""
    return unary("rint", x)


def absolute(x: Scalar) -> Scalar:
    """|x| (clears the sign bit of a float; wraps at an integer's minimum)."""
    return unary("abs", x)


def bits(x: Scalar) -> Scalar:
    """The bits of a float as a signed integer of its width."""
    return Scalar("bits", (x,), {"f32": "i32", "f64": "i64"}[x.type])


def from_bits(x: Scalar) -> Scalar:
    """The float whose bits are x (i32 or i64)."""
    return Scalar("from_bits", (x,), {"i32": "f32", "i64": "f64"}[x.type])


def convert(x: Scalar, type: str) -> Scalar:
    """x as `type`: floats round to nearest even, floats to integers truncate, integers wrap, anything to
    i1 is != 0.
    """
    return x if x.type == type else Scalar("convert", (x,), type)


def round_to(x: Scalar, dtype: str) -> Scalar:
    """The f32 x rounded to "float16" or "bfloat16" (nearest even), as an f32; other dtypes leave x as it
    is.
    """
    return Scalar("round", (x,), "f32", dtype) if dtype in ("float16", "bfloat16") else x


def substitute(x: Scalar, replace: Callable[[Scalar], Scalar | None]) -> Scalar:
    """x with every subexpression for which `replace` answers replaced; iterative, each node visited once."""
    done: dict[int, Scalar] = {}
    stack = [x]
    while stack:
        node = stack[-1]
        if id(node) in done:
            stack.pop()
            continue
        new = replace(node)
        if new is not None:
            done[id(node)] = new
            stack.pop()
            continue
        waiting = [a for a in node.args if id(a) not in done]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        done[id(node)] = Scalar(node.op, tuple(done[id(a)] for a in node.args), node.type, node.data)
    return done[id(x)]


def topological(roots: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Every node the roots reach, operands before users."""
    return _topological(tuple(roots))


@lru_cache(maxsize=64)  # each step from a nest to its text asks for the order of the same roots
def _topological(roots: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    seen: set[Scalar] = set()
    order: list[Scalar] = []
    stack: list[Scalar | None] = list(roots[::-1])
    open_: list[Scalar] = []  # entered, operands not yet all done; a None on the stack closes the last one
    while stack:
        node = stack.pop()
        if node is None:
            order.append(open_.pop())
        elif node not in seen:
            seen.add(node)
            if node.args:
                open_.append(node)
                stack.append(None)
                stack += node.args[::-1]
            else:
                order.append(node)
    return tuple(order)


def text(x: Scalar) -> str:
    """A canonical text, one line per node: the printed form and part of cache keys."""
    return program_text([x])


def program_text(roots: list[Scalar]) -> str:
    """The canonical text of several expressions that share nodes."""
    names: dict[Scalar, str] = {}
    lines: list[str] = []
    for node in topological(roots):
        names[node] = name = f"%{len(names)}"
        operands = "".join([" " + names[a] for a in node.args])
        data = "" if node.data is None else f" {node.data}"
        lines.append(f"{name}:{node.type} = {node.op}{data}{operands}")
    lines.append("-> " + " ".join([names[r] for r in roots]))
    return "\n".join(lines)
