"""Ops for which a machine has no instruction, in others: fused multiply-add of f64, float16."""

from __future__ import annotations

from kiln.codegen.ir.instructions import Instructions
from kiln.codegen.ir.literal import number
from kiln.codegen.ir.value import Value

INFINITY = number(float("inf"), "f64")


def fused_doubles(m: Instructions, x: Value, y: Value, z: Value) -> Value:
    """x * y + z of f64, from sums that are exact:

        p + q = x * y    s + t = p + z    rest = t + q    0 < |rest| < inf ? s + rest : s

    The result is off by less than 2^-50 of its last bit more than one rounding. Where the product or its
    error leaves the range of normal numbers, the result is rounded twice.
    """
    p, q = two_product(m, x, y)
    s = m.instruction("fadd", p, z)
    other = m.instruction("fsub", s, p)
    t = m.instruction("fsub", p, m.instruction("fsub", s, other))
    t = m.instruction("fadd", t, m.instruction("fsub", z, other))
    rest = m.instruction("fadd", t, q)
    size = m.intrinsic("fabs", rest)
    some = m.compare("gt", size, number(0.0, "f64"))
    sane = m.both("and", some, m.compare("lt", size, INFINITY))
    return m.choose(sane, m.instruction("fadd", s, rest), s)


def two_product(m: Instructions, x: Value, y: Value) -> tuple[Value, Value]:
    """x * y of f64 and its rounding error, exactly, from products of halves (Dekker 1971).

    A half has 26 bits: the upper one is rounded, so the lower one has a sign.
    """
    product = m.instruction("fmul", x, y)
    halves = []
    for v in (x, y):
        bits = m.instruction("add", m.cast("bitcast", v, "i64"), number(1 << 26, "i64"))
        high = m.cast("bitcast", m.instruction("and", bits, number(-(1 << 27), "i64")), "f64")
        halves.append((high, m.instruction("fsub", v, high)))
    (a, b), (c, d) = halves
    rest = m.instruction("fsub", m.instruction("fmul", a, c), product)
    for v, w in ((a, d), (b, c), (b, d)):
        rest = m.instruction("fadd", rest, m.instruction("fmul", v, w))
    return product, rest


def half_to_float(m: Instructions, raw: Value) -> Value:
    """The f32 of float16 bits: those of the exponent and below, 13 places up, times 2^112, which is exact.

    From 2^16 on it is infinite or a NaN, whose exponent is that of f32. The sign is put back.
    """
    wide = m.cast("zext", raw, "i32")
    low = m.instruction("shl", m.instruction("and", wide, number(0x7FFF, "i32")), number(13, "i32"))
    scaled = m.instruction("fmul", m.cast("bitcast", low, "f32"), number(2.0**112, "f32"))
    bits = m.cast("bitcast", scaled, "i32")
    ended = m.instruction("or", bits, number(0x7F800000, "i32"))
    bits = m.choose(m.compare("ge", scaled, number(2.0**16, "f32")), ended, bits)
    sign = m.instruction("and", wide, number(0x8000, "i32"))
    sign = m.instruction("shl", sign, number(16, "i32"))
    return m.cast("bitcast", m.instruction("or", bits, sign), "f32")


def float_to_half(m: Instructions, x: Value) -> Value:
    """The float16 bits nearest to an f32.

    normal   bits + 0xfff + (bit 13), minus 112 in the exponent, 13 places down
    small    |x| + 1/2 rounds to multiples of the smallest half: its low bits
    large    infinite;   NaN: a quiet one
    """
    size = m.instruction("and", m.cast("bitcast", x, "i32"), number(0x7FFFFFFF, "i32"))
    upper = m.instruction("lshr", size, number(13, "i32"))
    moved = m.instruction("add", size, m.instruction("and", upper, number(1, "i32")))
    moved = m.instruction("add", moved, number(0xFFF - (112 << 23), "i32"))
    found = m.instruction("lshr", moved, number(13, "i32"))
    total = m.instruction("fadd", m.cast("bitcast", size, "f32"), number(0.5, "f32"))
    small = m.instruction("sub", m.cast("bitcast", total, "i32"), number(0x3F000000, "i32"))
    found = m.choose(m.compare("lt", size, number(113 << 23, "i32")), small, found)
    found = m.choose(m.compare("ge", size, number(0x477FF000, "i32")), number(0x7C00, "i32"), found)  # 65520
    payload = m.instruction("and", upper, number(0x3FF, "i32"))
    nan = m.compare("gt", size, number(0x7F800000, "i32"))
    found = m.choose(nan, m.instruction("or", payload, number(0x7E00, "i32")), found)
    sign = m.instruction("lshr", m.cast("bitcast", x, "i32"), number(16, "i32"))
    sign = m.instruction("and", sign, number(0x8000, "i32"))
    return m.cast("trunc", m.instruction("or", found, sign), "i16")
