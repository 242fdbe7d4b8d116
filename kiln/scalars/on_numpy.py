"""Scalars on NumPy arrays: the interpreter's arithmetic, bit for bit what a compiled kernel computes.

A scalar expression is evaluated node by node, operands first; every node becomes one array. NumPy's own
float32 and float64 operations round once and keep denormals, so only what NumPy leaves open is written
out here: fused multiply-add, and the total forms of division, shifts and float-to-integer conversion.

A NaN is a NaN wherever the machine has one; its sign and payload are not specified.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from kiln.scalars.scalar import FLOATS, INTS, LEAVES, REDUCE, SIGNED, WIDTH, Scalar, const_value

Array = np.ndarray[Any, Any]
Leaves = Callable[[Scalar], Array]
Gather = Callable[[Scalar, list[Array]], Array]

DTYPE: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
}  # fmt: skip


def evaluate(roots: list[Scalar], leaves: Leaves, gather: Gather | None = None) -> list[Array]:
    """The arrays the `roots` stand for.

    `leaves` gives the array of an arg, number, index, plain load, or reduction (which the caller has done):
    any shape that broadcasts with the others, of the dtype of the scalar's type. `gather` gives the array of
    a load at computed positions, from the positions. A result has the dtype of its root and the broadcast
    shape of what it reads; it may be an array `leaves` returned, and may be 0-dimensional.
    """
    order, reads = _schedule(tuple(roots))
    uses, values = dict(reads), dict[int, Array]()
    with np.errstate(all="ignore"):
        for node in order:
            operands = [values[id(a)] for a in _operands(node)]
            values[id(node)] = _apply(node, operands, leaves, gather)
            for a in _operands(node):
                uses[id(a)] -= 1
                if not uses[id(a)]:
                    del values[id(a)]
    return [values[id(r)] for r in roots]


def _operands(node: Scalar) -> tuple[Scalar, ...]:
    """What has to be evaluated before `node`: nothing for a reduction, which is a leaf here."""
    return () if node.op in REDUCE else node.args


@lru_cache(maxsize=64)  # a graph is interpreted for many values
def _schedule(roots: tuple[Scalar, ...]) -> tuple[list[Scalar], dict[int, int]]:
    """Every node once, operands first, and how often each is read (a root once more, so that it is kept)."""
    order: list[Scalar] = []
    uses: dict[int, int] = {}
    stack: list[tuple[Scalar, bool]] = [(r, False) for r in roots[::-1]]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in uses:
            uses[id(node)] = 0
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(_operands(node)))
    for node in order:
        for a in _operands(node):
            uses[id(a)] += 1
    for r in roots:
        uses[id(r)] += 1
    return order, uses


def _apply(node: Scalar, x: list[Array], leaves: Leaves, gather: Gather | None) -> Array:
    """One node, given its operands' arrays."""
    op, dtype = node.op, DTYPE[node.type]
    if op == "const":
        return _constant(node)
    if op in LEAVES or op in REDUCE:
        if x:
            assert gather is not None, "a load at computed positions needs a gather"
            value = gather(node, x)
        else:
            value = leaves(node)
        assert value.dtype == dtype, f"{op}: leaf of dtype {value.dtype} for a scalar of type {node.type}"
        return value
    if op == "convert":
        return _convert(x[0], node.args[0].type, node.type)
    if op == "round":
        return _round(x[0], node.data)
    if op in ("bits", "from_bits"):
        return np.ascontiguousarray(x[0]).view(dtype).reshape(x[0].shape)
    if op in ("div", "rem") and node.type in INTS:
        return _integer_division(op, x[0], x[1], node.type)
    if op in ("shl", "shr"):
        return _shift(op, x[0], x[1], node.type)
    if op == "ldexp":
        return _ldexp(*x)
    if op == "fma":
        return (_fma32 if node.type == "f32" else _fma64)(*x)
    if op == "not":
        return np.asarray(np.logical_not(x[0]) if node.type == "i1" else np.invert(x[0]))
    return np.asarray(_PLAIN[op](*x), dtype=dtype)


_PLAIN: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod,
    "neg": np.negative, "abs": np.absolute, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "rint": np.rint, "select": np.where,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _ldexp(x: Array, n: Array) -> Array:
    """x * 2^n, rounded once; NaN where either is."""
    whole = np.where(np.isnan(n), 0, n).astype(np.int32)
    return np.asarray(np.where(np.isnan(n), n, np.ldexp(x, whole)), dtype=x.dtype)


def _constant(node: Scalar) -> Array:
    """A constant as a 0-dimensional array; a float constant from its bits, so that a NaN's survive."""
    if node.type in FLOATS:
        return np.array(node.data, dtype=f"u{WIDTH[node.type] // 8}").view(DTYPE[node.type])
    return np.array(const_value(node), dtype=DTYPE[node.type])


def _integer_division(op: str, x: Array, y: Array, type: str) -> Array:
    """Quotient towards zero, or remainder with the dividend's sign; 0 for a zero divisor; MIN / -1 wraps."""
    zero = np.equal(y, 0)
    divisor = np.where(zero, y.dtype.type(1), y)
    rest = np.fmod(x, divisor)
    if type in SIGNED:
        minus_one = np.equal(y, -1)
        rest = np.where(minus_one, x.dtype.type(0), rest)
        divisor = np.where(minus_one, y.dtype.type(1), divisor)
        exact = np.floor_divide(np.subtract(x, rest), divisor)
        quotient = np.where(minus_one, np.negative(x), exact)
    else:
        quotient = np.floor_divide(x, divisor)
    return np.asarray(np.where(zero, x.dtype.type(0), quotient if op == "div" else rest), dtype=DTYPE[type])


def _shift(op: str, x: Array, amount: Array, type: str) -> Array:
    """Shift by the amount read as unsigned: the width or more gives 0, or the sign for a signed shr."""
    width = WIDTH[type]
    over = np.less(amount, 0) | np.greater_equal(amount, width)
    inside = np.where(over, amount.dtype.type(0), amount)
    if op == "shl":
        return np.where(over, x.dtype.type(0), np.left_shift(x, inside))
    outside = np.right_shift(x, x.dtype.type(width - 1)) if type in SIGNED else x.dtype.type(0)
    return np.where(over, outside, np.right_shift(x, inside))


def _convert(x: Array, source: str, target: str) -> Array:
    """Floats round to nearest even; floats to integers truncate, out of range the minimum; integers wrap."""
    if target == "i1":
        return np.asarray(np.not_equal(x, x.dtype.type(0)))
    if source in FLOATS and target in INTS:
        limit = WIDTH[target] - (target in SIGNED)
        low = -(2.0**limit) if target in SIGNED else 0.0
        whole = np.trunc(x)
        inside = np.greater_equal(whole, low) & np.less(whole, 2.0**limit)
        safe = np.where(inside, whole, x.dtype.type(0))
        minimum = np.iinfo(DTYPE[target]).min
        return np.where(inside, safe.astype(DTYPE[target]), DTYPE[target].type(minimum))
    return np.asarray(x.astype(DTYPE[target]))


def _round(x: Array, dtype: str) -> Array:
    """A float32 rounded to float16 or bfloat16, to nearest even, as a float32 again."""
    if dtype == "float16":
        return np.asarray(x.astype(np.float16).astype(np.float32))
    raw = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
    rounded = (raw + (np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.asarray(np.where(np.isnan(x), x, rounded.view(np.float32)), dtype=np.float32)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and what the rounding left: their sum is a + b exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b rounded, and the remainder, for float64 of magnitude about 1: factors are cut in halves."""
    p = a * b
    ca, cb = a * 134217729.0, b * 134217729.0
    ah, bh = ca - (ca - a), cb - (cb - b)
    al, bl = a - ah, b - bh
    return p, al * bl - (((p - ah * bh) - al * bh) - ah * bl)


def _odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64 rounded to odd: exact, or the neighbour whose last bit is 1.

    Rounding the result again, to at most 51 bits, equals rounding a + b once.
    """
    s, rest = _two_sum(a, b)
    raw = s.view(np.int64)
    even = (rest != 0) & np.isfinite(rest) & ((raw & 1) == 0)
    away = (rest > 0) == (s > 0)
    return np.asarray(np.where(even, np.where(away, raw + 1, raw - 1), raw)).view(np.float64)


def _fma32(a: Array, b: Array, c: Array) -> Array:
    """float32 a * b + c rounded once: an exact product in float64, a sum rounded to odd, then to float32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return np.asarray(_odd_sum(product, c.astype(np.float64)).astype(np.float32))


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """float64 a * b + c rounded once.

    The factors are scaled to [1/2, 1), the addend by as much; the three parts of a * b + c = p + q + c' are
    then added with one rounding. The smaller of product and addend keeps its sign but not its size when it
    is below 2^-150 of the other, where it can only break a tie. Results near the denormals: by fractions.
    """
    special = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0) | (c == 0)
    if special.any():
        found = _fma64(*(np.where(special, 1.0, v) for v in (a, b, c)))
        return np.where(special, _fma64_special(a, b, c), found)
    (ma, ea), (mb, eb), (mc, ec) = np.frexp(a), np.frexp(b), np.frexp(c)
    ep = ea + eb
    top = np.maximum(ep, ec)
    scale = np.ldexp(1.0, np.maximum(ep - top, -150))
    p, q = _two_product(ma, mb)
    high, low = p * scale, q * scale
    addend = np.ldexp(mc, np.maximum(ec - top, -150))
    tail, rest = _two_sum(addend, low)
    head, middle = _two_sum(high, tail)
    total = head + _odd_sum(middle, rest)
    result = np.asarray(np.ldexp(total, top))
    tiny = np.abs(result) < 2.0**-1020
    if tiny.any():
        factors = np.broadcast_arrays(a, b, c)
        for i in np.flatnonzero(tiny & (total != 0)):
            result.flat[i] = _fma_fraction(*(float(v.flat[i]) for v in factors))
    return result


def _fma64_special(a: Array, b: Array, c: Array) -> Array:
    """a * b + c where an operand is zero or not finite, so that the product or the sum is exact.

    An infinite addend wins over a finite product that overflows; a product that underflows keeps its sign
    beside a zero.
    """
    product = a * b
    finite = np.isfinite(a) & np.isfinite(b)
    result = np.where((c == 0) & (a != 0) & (b != 0), product, product + c)
    return np.where(finite & ~np.isfinite(c), c, result)


def _fma_fraction(a: float, b: float, c: float) -> float:
    """a * b + c of finite floats by exact fractions; Python's division rounds once, denormals included."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return exact.numerator / exact.denominator
