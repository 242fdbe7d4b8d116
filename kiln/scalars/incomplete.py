"""The incomplete gamma functions, as scalars of type f64.

    P(a, x) = x^a e^-x / gamma(a + 1) (1 + x / (a + 1) (1 + x / (a + 2) (...)))      x <= a + 1, or x <= 3
    Q(a, x) = x^a e^-x / gamma(a) / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...))      above
    both of one step more where a > 60 and x lies near it (Temme):
        Q = erfc(h sqrt(a / 2)) / 2 + R,  P = erfc(-h sqrt(a / 2)) / 2 - R,  h^2 / 2 = u - log(1 + u),
        u = x / a - 1,  R = e^(-a h^2 / 2) / sqrt(2 pi a) (C0(h) + C1(h) / a + ...)

Series and fraction are quotients of two numbers each, so that a step is no division; its factors are near 1.
Q is 1 - P where the series is used, but for a < 1, where P may be nearly 1.
"""

from __future__ import annotations

from math import inf, nan, pi

from kiln.scalars import mathematics as m
from kiln.scalars.floats import Pair, poly
from kiln.scalars.gamma import LGAMMA, STIRLING, lgamma_positive
from kiln.scalars.gaussian import erfc
from kiln.scalars.scalar import Scalar, absolute, const, fma, select, sqrt

TEMME = (
    (-0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073,
     0.0003527336860670194, -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06,
     -1.85406221071516e-06, 8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09,
     1.0261809784240309e-08, -4.382036018453353e-09, 9.14769958223679e-10, -2.5514193994946248e-11,
     -5.830772132550426e-11, 2.4361948020667415e-11, -5.0276692801141755e-12, 1.1004392031956135e-13),
    (-0.001851851851851852, -0.003472222222222222, 0.0026455026455026454, -0.0009902263374485596,
     0.00020576131687242798, -4.018775720164609e-07, -1.8098550334489977e-05, 7.64916091608111e-06,
     -1.6120900894563446e-06, 4.647127802807434e-09, 1.378633446915721e-07, -5.752545603517705e-08,
     1.1951628599778148e-08, -1.7543241719747647e-11, -1.0091543710600413e-09, 4.162792991842583e-10,
     -8.56390702649298e-11, 6.067215101604758e-14),
    (0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06,
     -0.0001073665322636516, 5.2923448829120125e-05, -1.2760635188618728e-05, 3.423578734096138e-08,
     1.3721957309062934e-06, -6.298992138380055e-07, 1.4280614206064242e-07, -2.0477098421990866e-10,
     -1.409252991086752e-08, 6.228974084922022e-09, -1.3670488396617114e-09, 9.428356159014678e-13),
    (0.0006494341563786008, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885,
     -7.561801671883977e-05, -2.396505113867297e-07, 1.1082654115347302e-05, -5.6749528269915965e-06,
     1.4230900732435883e-06, -2.7861080291528143e-11, -1.6958404091930278e-07, 8.099464905388083e-08,
     -1.9111168485973655e-08, 2.3928620439808118e-12),
    (-0.0008618882909167117, 0.0007840392217200666, -0.0002990724803031902, -1.4638452578843418e-06,
     6.641498215465122e-05, -3.968365047179435e-05, 1.1375726970678419e-05, 2.507497226237533e-10,
     -1.6954149536558305e-06, 8.907507532205309e-07, -2.292934834000805e-07, 2.956794137544049e-11),
    (-0.00033679855336635813, -6.972813758365857e-05, 0.0002772753244959392, -0.00019932570516188847,
     6.797780477937208e-05, 1.419062920643967e-07, -1.3594048189768693e-05, 8.018470256334202e-06,
     -2.291481176508095e-06, -3.252473551298454e-10),
    (0.0005313079364639922, -0.0005921664373536939, 0.0002708782096718045, 7.902353232660328e-07,
     -8.153969367561969e-05, 5.61168275310625e-05, -1.8329116582843375e-05, -3.0796134506033047e-09),
    (0.00034436760689237765, 5.171790908260592e-05, -0.00033493161081142234, 0.0002812695154763237,
     -0.00010976582244684731, -1.2741009095484485e-07),
    (-0.0006526239185953094, 0.0008394987206720873, -0.000438297098541721, -6.969091458420552e-07),
)  # fmt: skip
STEPS = 100


def excess(u: Scalar) -> Scalar:
    """u - log(1 + u) for u > -1, to its own digits."""
    near = poly(u, [0.0, 0.0, *[(-1.0) ** k / k for k in range(2, 22)]])
    return select(absolute(u) < 0.1, near, u - m.log1p(u))


def front(a: Scalar, x: Scalar) -> Scalar:
    """x^a e^-x / gamma(a + 1), without losing digits to large a."""
    large = a > 10.0
    b = select(large, a, 10.0)
    u = (x - b) / b
    inverse = 1.0 / b
    series = inverse * poly(inverse * inverse, STIRLING)
    power = select(u < -0.5, u - m.log(x / b), excess(u))
    far = m.exp(fma(-b, power, -series)) / sqrt(b * (2 * pi))
    low = select(large, 1.0, a)
    near = m.exp(low * m.log(x) - x - lgamma_positive(low + 1.0))
    return select(large, far, near)


def series(a: Scalar, x: Scalar) -> Scalar:
    """1 + x / (a + 1) (1 + x / (a + 2) (...)), for x <= a + 1 or x <= 3."""
    by = 1.0 / (a + 0.5 * STEPS)
    step = x * by
    p, q = const(1.0, "f64"), const(1.0, "f64")
    for n in range(STEPS, 0, -1):
        q = q * ((a + float(n)) * by)
        p = fma(step, p, q)
    return p / q


def small(a: Scalar, x: Scalar) -> Scalar:
    """Q for a < 1 and x <= 3: 1 - x^a / gamma(1 + a) (1 + a (-x / (1 + a) + x^2 / (2! (2 + a)) - ...))."""
    power = a * m.log(x) - a * (a - 1.0) * poly(a - 0.5, LGAMMA)
    total, term = const(0.0, "f64"), const(1.0, "f64")
    for n in range(1, 32):
        term = term * x * (-1.0 / n)
        total = total + term / (a + float(n))
    less = m.expm1(power)
    return -less - (less + 1.0) * a * total


def fraction(a: Scalar, x: Scalar) -> Scalar:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...)), for x > a + 1 and x > 3."""
    by = 1.0 / x
    base = (x - a) * by
    square = by * by
    p, q = fma(by, 2.0 * STEPS + 1.0, base), const(1.0, "f64")
    for n in range(STEPS, 0, -1):
        p, q = fma(fma(by, 2.0 * n - 1.0, base), p, (a - float(n)) * (float(n) * square) * q), p
    return q / p * by


def near_a(a: Scalar, x: Scalar) -> Pair:
    """P and Q by Temme's expansion, for a > 60 and x within a half of it."""
    u = (x - a) / a
    half = excess(u)
    h = sqrt(half * 2.0)
    h = select(u < 0.0, -h, h)
    inverse = 1.0 / a
    total = poly(h, TEMME[-1])
    for row in reversed(TEMME[:-1]):
        total = fma(total, inverse, poly(h, row))
    rest = m.exp(-a * half) / sqrt(a * (2 * pi)) * total
    z = sqrt(a * half)
    z = select(u < 0.0, -z, z)
    return fma(erfc(-z), 0.5, -rest), fma(erfc(z), 0.5, rest)


def both(a: Scalar, x: Scalar) -> Pair:
    """P(a, x) and Q(a, x) for finite a, x > 0."""
    below = (x <= a + 1.0) | (x <= 3.0)
    near = (a > 60.0) & (absolute(x - a) < a * 0.5)
    head = front(a, x)
    low, low_x = select(below & ~near, a, 1.0), select(below & ~near, x, 1.0)
    p = head * series(low, low_x)
    high, high_x = select(below | near, 1.0, a), select(below | near, 4.0, x)
    q = head * high * fraction(high, high_x)
    around, around_x = select(near, a, 100.0), select(near, x, 100.0)
    near_p, near_q = near_a(around, around_x)
    few = (a < 1.0) & (x <= 3.0)
    q_low = select(few, small(select(few, a, 0.5), select(few, x, 1.0)), 1.0 - p)
    p_all, q_all = select(below, p, 1.0 - q), select(below, q_low, q)
    return select(near, near_p, p_all), select(near, near_q, q_all)


def edges(a: Scalar, x: Scalar, value: Scalar, low: float) -> Scalar:
    """The value, with what it is at zeros and infinities: `low` where nothing lies below x."""
    high = 1.0 - low
    value = select(x.eq(0.0) | a.eq(inf), low, value)
    value = select(a.eq(0.0) | (x.eq(inf) & (a < inf)), high, value)
    wrong = (a.eq(0.0) & x.eq(0.0)) | (a.eq(inf) & x.eq(inf))
    value = select(wrong | (a < 0.0) | (x < 0.0), nan, value)
    return select(a.ne(a) | x.ne(x), nan, value)


def inside(a: Scalar, x: Scalar) -> Pair:
    """(a, x) where both are finite and positive, else harmless."""
    fine = (a > 0.0) & (x > 0.0) & (a < inf) & (x < inf)
    return select(fine, a, 1.0), select(fine, x, 1.0)


def igamma(a: Scalar, x: Scalar) -> Scalar:
    """The share of gamma(a)'s integral below x."""
    return edges(a, x, both(*inside(a, x))[0], 0.0)


def igammac(a: Scalar, x: Scalar) -> Scalar:
    """The share above x."""
    return edges(a, x, both(*inside(a, x))[1], 1.0)
