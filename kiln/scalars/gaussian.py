"""The normal distribution's functions, as scalars of type f64: erfc, erfcx, erfinv and their relatives.

erfcx a = e^(a^2) erfc a = P(t) / (1 + 2 a), t = (a - 7/2) / (a + 7/2), for every a >= 0
erfc from it, a^2 as a pair; below 1/2 from erf
erfinv x = x C(w), w = -log(1 - x^2), w < 6.25; else from a first guess s T(t), s = sqrt(-log(1 - x)),
t = (s - 8) / (s + 8), by one step of Halley's for log erfc
"""

from __future__ import annotations

from math import inf, nan

from kiln.scalars import mathematics as m
from kiln.scalars.floats import Pair, poly, two_product
from kiln.scalars.scalar import Scalar, absolute, const, fma, select, sqrt

ERFCX = (
    1.2423492448711544, -0.1400091801376197, -0.010555596332221948, 0.09751909515328766,
    -0.11508959816001924, 0.08798315382401649, -0.04882332583106857, 0.019099330953562744,
    -0.004215019878264628, -0.0003022679556600285, 0.0005643842596916611, -0.0001215121108267951,
    -4.278171873414404e-05, 2.4260272192531265e-05, 2.3272907398303757e-06, -3.8139595351423537e-06,
    -4.304351871517476e-08, 6.014193683552682e-07, -8.648371742276189e-09, -9.635383043317096e-08,
    6.808348116378198e-10, 1.3604940033298811e-08, 5.753457729579383e-11, -1.162139429038368e-09,
)  # fmt: skip
CENTER = (
    1.6536545626831027, 0.24015818242558964, -0.0060336708714301334, -0.0007407025341663534,
    0.0001867342080339785, -1.3882523362578768e-05, -1.365469199934515e-06, 4.234787780517826e-07,
    -2.907037009901643e-08, -4.112633844074247e-09, 1.0512123498863624e-09, -5.415416936827839e-11,
    -1.2975158775915566e-11, 2.633520234401914e-12, -8.15139407359073e-14, -4.0547198953715506e-14,
    6.636910707995947e-15, 2.1104847980556535e-17, -1.3325680543088934e-16, 1.1151540702902235e-17,
    1.2830361107038903e-18, -1.6837595494478125e-19, -3.588159810067144e-21,
)  # fmt: skip
TAIL = (
    0.9791678523002021, 0.06796466211750041, -0.10543427108989546, 0.12284303327253897,
    -0.13071817143439263, 0.13366985780555346, -0.12845511820511318, 0.09875420427710818,
    -0.09075368308727225, 0.14790421949315238, -0.11454840703761303,
)  # fmt: skip
SQRT_HALF = (0.7071067811865476, -4.833646656726457e-17)
ROOT_PI_HALF = 0.886226925452758  # sqrt(pi) / 2


def scaled(a: Scalar) -> Scalar:
    """e^(a^2) erfc a for a >= 0."""
    most = select(a > 1e300, 1e300, a)
    value = poly((most - 3.5) / (most + 3.5), ERFCX) / fma(most, 2.0, 1.0)
    return select(a.eq(inf), 0.0, value)


def gauss(square: Pair) -> Scalar:
    """e^-square, of a pair."""
    hi = select(square[0] > 800.0, 800.0, square[0])
    value = m.exp(-hi)
    return fma(-value, select(square[0] > 800.0, 0.0, square[1]), value)


def erfc_of(x: Scalar, square: Pair) -> Scalar:
    """erfc x, given x^2 as a pair."""
    a = absolute(x)
    far = scaled(a) * gauss(square)
    far = select(x < 0.0, 2.0 - far, far)
    return select(a < 0.5, 1.0 - fma(x, poly(square[0], m.ERF["f64"]), x), far)


def erfc(x: Scalar) -> Scalar:
    """1 - erf x, accurate in its tail."""
    return erfc_of(x, two_product(x, x))


def erfcx(x: Scalar) -> Scalar:
    """e^(x^2) erfc x: infinite below -26.6."""
    a = absolute(x)
    square, lo = two_product(a, a)
    grown = m.exp(square)
    grown = select(grown < inf, fma(grown, lo, grown), grown)
    value = scaled(a)
    return select(x < 0.0, fma(grown, 2.0, -value), value)


def ndtr(x: Scalar) -> Scalar:
    """The normal distribution's share below x."""
    return erfc_of(x * -SQRT_HALF[0], two_product(x, x * 0.5)) * 0.5


def log_ndtr(x: Scalar) -> Scalar:
    """log ndtr x, finite wherever x is."""
    t, square = x * SQRT_HALF[0], two_product(x, x * 0.5)
    below = m.log(scaled(absolute(t)) * 0.5) - square[0]
    share = erfc_of(select(x < -1.0, 0.0, t), (select(x < -1.0, 0.0, square[0]), square[1])) * 0.5
    return select(x.eq(-inf), x, select(x < -1.0, below, m.log1p(-share)))


def erfc_inverse(p: Scalar, x: Scalar) -> Scalar:
    """The v >= 0 with erfc v = p, given x = 1 - p, for p in (0, 1]."""
    w = -m.log(p * (2.0 - p))
    near = x * poly(w - 3.125, CENTER)
    log_p = m.log(p)
    s = sqrt(select(w < 6.25, 6.0, -log_p))
    guess = s * poly((s - 8.0) / (s + 8.0), TAIL)
    value = scaled(guess)
    square, lo = two_product(guess, guess)
    error = (-square - select(w < 6.25, -6.0, log_p)) + (m.log(value) - lo)
    slope = ROOT_PI_HALF * value  # -1 over the derivative of log erfc
    step = error * slope
    far = guess + step / fma(step, 0.5 / slope - guess, 1.0)
    return select(w < 6.25, near, far)


def erfinv(x: Scalar) -> Scalar:
    """The inverse of erf; odd, infinite at 1, NaN beyond."""
    a = absolute(x)
    inside = a < 1.0
    a = select(inside, a, 0.5)
    value = erfc_inverse(1.0 - a, a)
    value = select(inside, value, select(absolute(x).eq(1.0), const(inf, "f64"), nan))
    return select(x < 0.0, -value, select(x.eq(0.0), x, value))


def ndtri(p: Scalar) -> Scalar:
    """The inverse of ndtr: infinite at 0 and 1, NaN outside."""
    inside = (p > 0.0) & (p < 1.0)
    below = p < 0.5
    share = select(inside, select(below, p, 1.0 - p), 0.25) * 2.0
    v = erfc_inverse(share, 1.0 - share)
    value = fma(v, 2.0 * SQRT_HALF[0], v * (2.0 * SQRT_HALF[1]))
    value = select(below, -value, value)
    edge = select(p.eq(0.0), const(-inf, "f64"), select(p.eq(1.0), const(inf, "f64"), nan))
    return select(inside, value, edge)


def entr(x: Scalar) -> Scalar:
    """-x log x; 0 at 0, -inf below."""
    value = select(x.eq(0.0), 0.0, -x * m.log(x))
    return select(x < 0.0, -inf, value)
