"""Float arithmetic below the elementary functions: formats, polynomials, and sums of two floats.

A pair (hi, lo) is an unevaluated sum that holds about twice its type's precision.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.scalars.scalar import Scalar, bits, const, fma, from_bits, multiply_add, select
from kiln.tuples import NamedTuple

Pair = tuple[Scalar, Scalar]


class Format(NamedTuple):
    """What the bit tricks need to know of a float type."""

    mantissa: int  # stored bits of the significand
    integer: str  # the integer type of the same width
    one: int  # the bits of 1.0
    sign: int  # the sign bit, as a signed integer
    magic: float  # adding it rounds to an integer, kept in the low bits of the sum
    smallest: float  # the smallest normal number
    small: float  # below it f(x) rounds to x where f(x) = x + O(x^2)


FORMAT = {
    "f32": Format(23, "i32", 0x3F800000, -(2**31), 1.5 * 2.0**23, 2.0**-126, 2.0**-26),
    "f64": Format(52, "i64", 0x3FF << 52, -(2**63), 1.5 * 2.0**52, 2.0**-1022, 2.0**-55),
}


def poly(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """coefficients[0] + coefficients[1] x + ..., by Horner's rule, one multiply-add per degree."""
    total: Scalar | float = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = multiply_add(total, x, c)
    assert isinstance(total, Scalar)
    return total


def two_sum(a: Scalar, b: Scalar) -> Pair:
    """a + b and its rounding error, exactly, whichever is larger."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a: Scalar, b: Scalar) -> Pair:
    """a + b and its rounding error, exactly, where a is 0 or |a| >= |b|."""
    s = a + b
    return s, (a - s) + b


def two_product(a: Scalar, b: Scalar | float) -> Pair:
    """a * b and its rounding error, exactly."""
    p = a * b
    return p, fma(a, b, -p)


def quotient(a: Pair, b: Pair) -> Scalar:
    """a / b of two pairs, with one division."""
    inverse = 1.0 / b[0]
    q = a[0] * inverse
    return fma(fma(-q, b[0], a[0]) + (a[1] - q * b[1]), inverse, q)


def with_sign(magnitude: Scalar, source: Scalar) -> Scalar:
    """The non-negative `magnitude` with the sign bit of `source`."""
    sign = bits(source) & FORMAT[source.type].sign
    return from_bits(bits(magnitude) | sign)


def clamp(x: Scalar, low: float, high: float) -> Scalar:
    """x within [low, high]; a NaN stays."""
    x = select(x < low, low, x)
    return select(x > high, high, x)


def pair_product(a: Pair, b: Pair) -> Pair:
    """The product of two pairs, to about twice the type's precision."""
    hi, lo = two_product(a[0], b[0])
    return hi, lo + fma(a[0], b[1], a[1] * b[0])


def constant_plus(c: tuple[float, float], a: Pair) -> Pair:
    """The pair c + a, for |a| < |c|."""
    hi, lo = fast_two_sum(const(c[0], a[0].type), a[0])
    return hi, lo + (a[1] + c[1])
