"""Gamma, digamma, polygamma and zeta, as scalars of type f64.

log gamma y, y > 0: between 1 and 2 (y - 1) (y - 2) L(y - 3/2); below 8 from there by log of the product
that lies between; above by Stirling's series. Below 0 by reflection.
digamma y + 1, brought above 10 by a sum of inverses, one quotient; its asymptotic series; reflection
zeta: terms one by one, then the formula of Euler and Maclaurin
"""

from __future__ import annotations

from math import factorial, inf, nan, pi

from kiln.scalars import mathematics as m
from kiln.scalars.floats import poly, quotient
from kiln.scalars.scalar import Scalar, absolute, const, floor, fma, select
from kiln.scalars.trigonometry import sin_cos_pi

LGAMMA = (
    0.4831289505409809, -0.14595989591430608, 0.06291140107456439, -0.031308487501010576,
    0.01679709863127441, -0.009425622448532024, 0.005446457839113067, -0.0032120740734658823,
    0.0019229163131302149, -0.001164414590214301, 0.0007115190624195526, -0.0004379930024213228,
    0.00027131378512101933, -0.0001689184196860916, 0.00010535486227574695, -6.61382416060541e-05,
    4.302857691803138e-05, -2.7211635161075425e-05, 1.3184329025247033e-05, -8.337276044532044e-06,
    1.2141363392680489e-05, -7.774283435528806e-06,
)  # fmt: skip
STIRLING = (
    0.08333333333333333, -0.002777777777777677, 0.0007936507935136949, -0.0005952380241806458,
    0.0008417326636918241, -0.0019149787210748503, 0.0062087314042322235, -0.02086667023517538,
)  # fmt: skip
HALF_LOG_TWO_PI = 0.9189385332046728
# B2k / 2k, and B2k / (2k)!
BERNOULLI = (
    0.08333333333333333, -0.008333333333333333, 0.003968253968253968, -0.004166666666666667,
    0.007575757575757576, -0.021092796092796094, 0.08333333333333333, -0.4432598039215686,
)  # fmt: skip
EULER = (
    0.08333333333333333, -0.001388888888888889, 3.306878306878307e-05, -8.267195767195768e-07,
    2.08767569878681e-08, -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225827e-13,
    8.586062056277845e-15, -2.174868698558062e-16, 5.5090028283602295e-18, -1.3954464685812522e-19,
)  # fmt: skip


def lgamma_positive(y: Scalar) -> Scalar:
    """log gamma y for y > 0."""
    z, between = y, const(1.0, "f64")
    for _ in range(6):  # down to at most 2
        above = z > 2.0
        z = select(above, z - 1.0, z)
        between = select(above, between * z, between)
    u = select(y < 1.0, y, z - 1.0)
    far = y >= 8.0
    logarithm = m.log(select(far | (y < 1.0), y, between))
    core = u * (u - 1.0) * poly(u - 0.5, LGAMMA)
    near = core + select(y < 1.0, -logarithm, logarithm)
    inverse = 1.0 / y
    series = fma(inverse, poly(inverse * inverse, STIRLING), HALF_LOG_TWO_PI - 0.5)
    return select(far, fma(y - 0.5, logarithm - 1.0, series), near)


def lgamma(x: Scalar) -> Scalar:
    """log |gamma x|; infinite at 0 and the negative integers."""
    y = absolute(x)
    value = lgamma_positive(y)
    hi, lo = sin_cos_pi(y)[0]
    reflected = m.log(pi / (y * absolute(hi + lo))) - value
    reflected = select(y < 2.0**-60, value, reflected)
    return select(y.eq(inf), inf, select(x < 0.0, reflected, value))


def digamma_after(y: Scalar) -> Scalar:
    """digamma(y + 1) for y >= 0."""
    top, below = const(0.0, "f64"), const(1.0, "f64")
    z = y + 1.0
    for _ in range(9):  # up to at least 10
        short = z < 10.0
        top, below = select(short, fma(top, z, below), top), select(short, below * z, below)
        z = select(short, z + 1.0, z)
    inverse = 1.0 / z
    square = inverse * inverse
    return m.log(z) - (top / below + fma(square, poly(square, BERNOULLI), inverse * 0.5))


def digamma(x: Scalar) -> Scalar:
    """The derivative of log gamma; infinite at 0 against its sign, NaN at the negative integers."""
    y = absolute(x)
    after = digamma_after(y)
    sine, cosine = sin_cos_pi(y)
    reflected = fma(quotient(cosine, sine), pi, after)
    value = select(x < 0.0, select(sine[0].eq(0.0), nan, reflected), after - 1.0 / x)
    return select(x.eq(0.0), -1.0 / x, value)


def power(x: Scalar, n: int) -> Scalar:
    """x^n for n >= 1."""
    if n == 1:
        return x
    half = power(x, n // 2)
    return (half * half) * x if n % 2 else half * half


def tail(z: Scalar, s: Scalar | float, at_z: Scalar) -> Scalar:
    """The sum of (z + k)^-s over k >= 0, given z^-s, for z large beside s."""
    inverse = 1.0 / z
    square = inverse * inverse
    factor = inverse * s
    total = at_z * 0.5 + at_z * (z / (s - 1.0))
    for k, b in enumerate(EULER):
        total = fma(at_z * factor, b, total)
        factor = factor * square * (s + (2.0 * k + 1.0)) * (s + (2.0 * k + 2.0))
    return total


def hurwitz(y: Scalar, s: int) -> Scalar:
    """zeta(s, y) for y > 0 and an integer s >= 2."""
    total, z = const(0.0, "f64"), y
    for _ in range(min(10 + s // 2, 40)):
        total = total + 1.0 / power(z, s)
        z = z + 1.0
    return total + tail(z, const(float(s), "f64"), 1.0 / power(z, s))


def cotangent_derivative(n: int) -> list[float]:
    """The n-th derivative of cot, as a polynomial of cot."""
    p = [0.0, 1.0]
    for _ in range(n):
        slope = [-k * c for k, c in enumerate(p)][1:]
        p = [a + b for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope])]
    return p


def polygamma(n: int, x: Scalar) -> Scalar:
    """The n-th derivative of digamma, n >= 1."""
    if n > 170:
        return x * nan
    sign = -1.0 if n % 2 == 0 else 1.0
    negative = x <= 0.0
    value = hurwitz(select(negative, 1.0 - x, x), n + 1) * float(factorial(n))
    sine, cosine = sin_cos_pi(x)
    pole = sine[0].eq(0.0)
    cot = quotient(cosine, (select(pole, 1.0, sine[0]), sine[1]))
    reflection = poly(cot, cotangent_derivative(n)) * pi ** (n + 1)
    reflected = select(pole, const(sign * inf, "f64"), -value - reflection)
    return select(negative, reflected, select(x.eq(inf), 0.0, value) * sign)


def zeta(s: Scalar, q: Scalar) -> Scalar:
    """The sum of (q + k)^-s over k >= 0, s > 1, q > 0; infinite at s = 1 and integral q <= 0, else NaN."""
    total, z = const(0.0, "f64"), q
    for _ in range(10):
        total = total + m.pow(z, -s)
        z = z + 1.0
    value = total + tail(z, s, m.pow(z, -s))
    value = select(s.eq(inf), m.pow(q, -s), value)
    value = select(q > 0.0, value, select(q.eq(floor(q)), const(inf, "f64"), nan))
    value = select(q.ne(q), q, value)
    return select(s > 1.0, value, select(s.eq(1.0), const(inf, "f64"), nan))
