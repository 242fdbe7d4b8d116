"""Division with a remainder, exact for every pair of floats, and integer powers, on scalars.

    fmod(x, y): r = |x|; for t = |y| 2^50k, k falling to 0:  r -= trunc(r / t) t     (one fma, exact)

The quotient of a step is below 2^52, so at worst it is one too large, and r comes out in [-t, t): a multiple
of the smaller operand's last bit, hence exact. f32 runs in f64 (6 steps), f64 needs 42.
"""

from __future__ import annotations

from kiln.scalars.scalar import FLOATS, SIGNED, Scalar, absolute, const, convert, floor, fma, select, trunc

_STEP = 50  # bits of quotient per step


def _steps(x: Scalar, y: Scalar, exponents: range) -> Scalar:
    """|x| reduced modulo |y|, both f64; y = 0 and infinite operands are the caller's."""
    rest, modulus = absolute(x), absolute(y)
    for k in exponents:
        # 2^k is a product of powers that fit: a modulus that overflows is above every rest
        scaled = modulus
        left = k
        while left > 0:
            scaled, left = scaled * const(2.0 ** min(left, 1000), "f64"), left - 1000
        reduced = fma(-trunc(rest / scaled), scaled, rest)
        reduced = select(reduced < 0, reduced + scaled, reduced)
        rest = select(rest < scaled, rest, reduced)
    return rest


def fmod(x: Scalar, y: Scalar) -> Scalar:
    """x - trunc(x / y) y, exact, with x's sign (also of zero); NaN for y = 0 or infinite x."""
    if x.type not in FLOATS:
        return _integer_rem(x, y)
    wide, other = convert(x, "f64"), convert(y, "f64")
    top = 278 if x.type == "f32" else 2098
    rest = _steps(wide, other, range(-(-top // _STEP) * _STEP, -1, -_STEP))
    infinite = absolute(wide).eq(float("inf"))
    undefined = infinite | other.eq(0) | wide.ne(wide) | other.ne(other)
    # an infinite y leaves x as it is; the sign of a zero result is x's
    rest = select(absolute(other).eq(float("inf")), absolute(wide), rest)
    rest = select(_negative(wide), -rest, rest)
    return convert(select(undefined, float("nan"), rest), x.type)


def _negative(x: Scalar) -> Scalar:
    """Whether a float's sign bit is set."""
    from_zero = const(1.0, x.type) / x
    return select(x.eq(0), from_zero < 0, x < 0)


def _integer_rem(x: Scalar, y: Scalar) -> Scalar:
    return select(y.eq(0), 0, Scalar("rem", (x, y), x.type))


def remainder(x: Scalar, y: Scalar) -> Scalar:
    """fmod brought to the sign of y."""
    rest = fmod(x, y)
    if x.type not in FLOATS and x.type not in SIGNED:
        return rest
    return select(rest.ne(0) & ((rest < 0) ^ (y < 0)), rest + y, rest)


def trunc_div(x: Scalar, y: Scalar) -> Scalar:
    """x / y rounded towards zero."""
    return trunc(x / y) if x.type in FLOATS else x / y


def floor_div(x: Scalar, y: Scalar) -> Scalar:
    """The floor of x / y; of floats it agrees with `remainder`."""
    if x.type not in FLOATS:
        if x.type not in SIGNED:
            return x / y
        rest = _integer_rem(x, y)
        return x / y - select(rest.ne(0) & ((rest < 0) ^ (y < 0)), const(1, x.type), 0)
    rest = fmod(x, y)
    quotient = (x - rest) / y
    quotient = select(rest.ne(0) & ((y < 0) ^ (rest < 0)), quotient - 1, quotient)
    below = floor(quotient)
    whole = select(quotient - below > 0.5, below + 1, below)
    zero = x / y * 0.0  # of the quotient's sign
    return select(y.eq(0), x / y, select(quotient.eq(0), zero, whole))


def integer_power(x: Scalar, n: Scalar) -> Scalar:
    """x ** n for integers by squaring, wrapping; a negative power is 0, or what it is for x = 1 and -1."""
    bits = {"i8": 7, "u8": 8, "i16": 15, "i32": 31, "i64": 63}[x.type]
    result, square = const(1, x.type), x
    for k in range(min(bits, 63)):
        odd = ((n >> k) & 1).ne(0)
        result, square = select(odd, result * square, result), square * square
    if x.type not in SIGNED:
        return result
    sign = select((n & 1).ne(0), const(-1, x.type), 1)
    inverse = select(x.eq(1), const(1, x.type), select(x.eq(-1), sign, 0))
    return select(n < 0, inverse, result)
