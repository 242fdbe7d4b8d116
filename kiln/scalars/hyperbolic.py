"""Hyperbolic functions but tanh, and the inverses of all, as scalars of type f32 or f64.

    sinh a = a + a^3 S(a^2), a < 1;  h - 1 / (4 h), h = e^a / 2 as a pair, above
    asinh a = a + a^3 A(a^2), a < 1/2;  log(a + sqrt(a^2 + 1)) above
    acosh x = log1p(v), v = x - 1 + sqrt((x - 1) (x + 1));  atanh a = log1p(2 a / (1 - a)) / 2

Arguments of logarithms are pairs. Where they are huge, acosh and asinh are log x + ln2.
"""

from __future__ import annotations

from math import inf, nan

from kiln.scalars.floats import Pair, clamp, fast_two_sum, poly, two_product, two_sum, with_sign
from kiln.scalars.mathematics import exp_pair, log1p_sum, log_of_pair
from kiln.scalars.scalar import Scalar, absolute, const, fma, select, sqrt

SINH = {
    "f32": (0.1666666716337204, 0.008333316072821617, 0.00019841419998556376, 2.7915382361243246e-06),
    "f64": (0.16666666666666669, 0.008333333333333135, 0.00019841269841439825, 2.7557319154765e-06,
            2.5052123477716892e-08, 1.6057234854769625e-10, 7.759462749433681e-13),
}  # fmt: skip
ASINH = {
    "f32": (-0.1666664183139801, 0.07498593628406525, -0.044378072023391724, 0.02814031019806862,
            -0.013192346319556236),
    "f64": (-0.16666666666666607, 0.07499999999983697, -0.04464285712730395, 0.030381943696535626,
            -0.02237213791637106, 0.017352380703597854, -0.013960173876230405, 0.01151261951107293,
            -0.009532635669934677, 0.007461642953969481, -0.004741534996755118, 0.0017141286535806903),
}  # fmt: skip
SINH_MOST = {"f32": 90.0, "f64": 711.0}  # infinite from here on
HUGE = {"f32": 2.0**30, "f64": 2.0**60}


def half_exp(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """e^|x| / 2 as a pair, and e^-|x| / 2."""
    a = clamp(absolute(x), 0.0, SINH_MOST[x.type])
    hi, lo = exp_pair(a, less=1.0)
    return hi, lo, 0.25 / hi


def sinh(x: Scalar) -> Scalar:
    """The hyperbolic sine; odd."""
    a = absolute(x)
    hi, lo, inverse = half_exp(x)
    square = a * a
    near = fma(a * square, poly(square, SINH[x.type]), a)
    return with_sign(select(a < 1.0, near, hi + (lo - inverse)), x)


def cosh(x: Scalar) -> Scalar:
    """The hyperbolic cosine."""
    hi, lo, inverse = half_exp(x)
    return hi + (lo + inverse)


def root_pair(hi: Scalar, lo: Scalar) -> Pair:
    """The square root of the pair hi + lo >= 0, as a pair."""
    root = sqrt(hi)
    return root, (fma(-root, root, hi) + lo) * 0.5 / select(root > 0.0, root, 1.0)


def asinh(x: Scalar) -> Scalar:
    """The inverse hyperbolic sine; odd."""
    a, one = absolute(x), const(1.0, x.type)
    huge = a > HUGE[x.type]
    square, error = two_product(a, a)
    total, rest = two_sum(square, one)
    root, root_lo = root_pair(total, rest + error)
    u, u_lo = fast_two_sum(root, a)
    u, u_lo = select(huge, a, u), select(huge, 0.0, u_lo + root_lo)
    far = log_of_pair(u, u_lo, select(huge, one, 0.0))
    near = fma(a * square, poly(square, ASINH[x.type]), a)
    return with_sign(select(a < 0.5, near, select(a < inf, far, a)), x)


def acosh(x: Scalar) -> Scalar:
    """The inverse hyperbolic cosine; NaN below 1."""
    one = const(1.0, x.type)
    huge = x > HUGE[x.type]
    e = x - 1.0
    more, more_lo = two_sum(x, one)
    square, error = two_product(e, more)
    root, root_lo = root_pair(square, fma(e, more_lo, error))
    v, v_lo = two_sum(e, root)
    v, v_lo = select(huge, x, v), select(huge, 0.0, v_lo + root_lo)
    y = log1p_sum(v, v_lo, select(huge, one, 0.0))
    return select(x < 1.0, nan, select(x < inf, y, x))


def atanh(x: Scalar) -> Scalar:
    """The inverse hyperbolic tangent; odd, infinite at 1, NaN beyond."""
    a = absolute(x)
    below, below_lo = fast_two_sum(const(1.0, x.type), -a)
    inverse = 1.0 / below
    v = (a * 2.0) * inverse
    v_lo = (fma(-v, below, a * 2.0) - v * below_lo) * inverse
    y = log1p_sum(v, v_lo) * 0.5
    return with_sign(select(a < 1.0, y, select(a.eq(1.0), const(inf, x.type), nan)), x)


def logit(x: Scalar) -> Scalar:
    """log(x / (1 - x)) of the quotient as a pair; infinite at 0 and 1, NaN outside."""
    inside = (x > 0.0) & (x < 1.0)
    below, below_lo = fast_two_sum(const(1.0, x.type), -x)
    inverse = 1.0 / below
    q = x * inverse
    lo = (fma(-q, below, x) - q * below_lo) * inverse
    y = log_of_pair(select(inside, q, 1.0), select(inside, lo, 0.0))
    edge = select(x.eq(0.0), const(-inf, x.type), select(x.eq(1.0), const(inf, x.type), nan))
    return select(inside, y, edge)
