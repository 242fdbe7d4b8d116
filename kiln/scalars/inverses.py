"""Arcsine, arccosine and arctangent, and the length of a point, as scalars of type f32 or f64.

asin s = s + s^3 A(s^2), s <= 1/2;  asin a = pi/2 - 2 asin sqrt((1 - a) / 2) above
atan q = q + q^3 T(q^2), |q| <= tan(pi/8); else from (q - 1) / (q + 1) and pi/4, or 1/q and pi/2
"""

from __future__ import annotations

from math import inf

from kiln.scalars.floats import FORMAT, Pair, fast_two_sum, poly, two_product, two_sum, with_sign
from kiln.scalars.scalar import Scalar, absolute, bits, const, convert, fma, select, sqrt

ASIN = {
    "f32": (0.16666753590106964, 0.07495276629924774, 0.04547145217657089, 0.024178795516490936,
            0.04216250032186508),
    "f64": (0.1666666666666676, 0.07499999999970997, 0.04464285717430074, 0.030381942726351436,
            0.02237221439686639, 0.017351623457583357, 0.013980676388246932, 0.011400132004304689,
            0.010773256451690326, 0.0037332587328423017, 0.021641408484405354, -0.020904939185592837,
            0.03256950285085093),
}  # fmt: skip
ATAN = {
    "f32": (-0.33332937955856323, 0.1997736394405365, -0.13874466717243195, 0.08044478297233582),
    "f64": (-0.33333333333333187, 0.1999999999995177, -0.14285714280039408, 0.11111110776520114,
            -0.09090897578313546, 0.07692057310098643, -0.0666307371555573, 0.05847685052202541,
            -0.050384480350351285, 0.03804420562094305, -0.017886282207915417),
}  # fmt: skip
PI_HALF = {
    "f32": (1.5707963705062866, -4.371138828673793e-08),
    "f64": (1.5707963267948966, 6.123233995736766e-17),
}
# pi/4 in two parts, the first of which times 0 to 4 is exact
PI_QUARTER = {
    "f32": (0.785398006439209, 1.5695823663008923e-07),
    "f64": (0.7853981633974483, 3.061616997868383e-17),
}
TAN_EIGHTH = 0.4142135623730951
LARGE = {"f32": 2.0**60, "f64": 2.0**500}  # a quotient's operands are brought within its square root's reach


def arc(a: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """(far, s, rest): asin a = s + rest where not `far`, else pi/2 - 2 (s + rest); 0 <= a <= 1, else NaN."""
    far = a > 0.5
    t = select(far, (1.0 - a) * 0.5, a * a)
    root = sqrt(t)
    s = select(far, root, a)
    rest = (s * t) * poly(t, ASIN[a.type])
    if a.type == "f64":  # what the root's rounding left
        left = fma(-root, root, t) * 0.5 / select(root > 0.0, root, 1.0)
        rest = rest + select(far, left, 0.0)
    return far, s, rest


def asin(x: Scalar) -> Scalar:
    """The angle in [-pi/2, pi/2] whose sine is x; odd, NaN beyond 1."""
    far, s, rest = arc(absolute(x))
    hi, lo = PI_HALF[x.type]
    top, error = fast_two_sum(const(hi, x.type), s * -2.0)
    return with_sign(select(far, top + (error + fma(rest, -2.0, lo)), s + rest), x)


def acos(x: Scalar) -> Scalar:
    """The angle in [0, pi] whose cosine is x; NaN beyond 1."""
    far, s, rest = arc(absolute(x))
    hi, lo = PI_HALF[x.type]
    negative = x < 0.0
    # below 1/2: pi/2 -+ (s + rest); above: 2 (s + rest), taken from pi where x < 0
    factor = select(
        far, select(negative, const(-2.0, x.type), 2.0), select(negative, const(1.0, x.type), -1.0)
    )
    times = select(far, select(negative, const(2.0, x.type), 0.0), 1.0)
    base, part = times * hi, s * factor
    top, error = fast_two_sum(base, part)
    return top + (error + fma(rest, factor, times * lo))


def angle(n: Scalar, d: Scalar, back: Scalar | None = None) -> Scalar:
    """The angle in [0, pi] of the point (d, n), or (-d, n) where `back`; n, d >= 0, finite, not both 0."""
    type = n.type
    swap = n > d
    n, d = select(swap, d, n), select(swap, n, d)
    middle = n > d * TAN_EIGHTH
    (less, less_lo), (more, more_lo) = two_sum(n, -d), two_sum(d, n)
    top, top_lo = select(middle, less, n), select(middle, less_lo, 0.0)
    below, below_lo = select(middle, more, d), select(middle, more_lo, 0.0)
    q = top / below
    lo = (fma(-q, below, top) + (top_lo - q * below_lo)) / below
    t = q * q
    rest = fma(q * t, poly(t, ATAN[type]), lo)
    # the angle is k pi/4 + sign (q + rest)
    k, sign = select(middle, const(1.0, type), 0.0), const(1.0, type)
    k, sign = select(swap, 2.0 - k, k), select(swap, -sign, sign)
    if back is not None:
        k, sign = select(back, 4.0 - k, k), select(back, -sign, sign)
    hi, low = PI_QUARTER[type]
    whole, error = fast_two_sum(k * hi, sign * q)
    return whole + (error + fma(sign, rest, k * low))


def atan(x: Scalar) -> Scalar:
    """The angle in [-pi/2, pi/2] whose tangent is x; odd."""
    a, most = absolute(x), LARGE[x.type]
    return with_sign(angle(select(a > most, most, a), const(1.0, x.type)), x)


def within_reach(n: Scalar, d: Scalar) -> Pair:
    """(n, d) times one power of two, so that the larger is neither huge nor tiny; infinities as 1 and 0."""
    large, tiny = LARGE[n.type], 1.0 / LARGE[n.type]
    most = select(n > d, n, d)
    by = select(most > large, const(tiny, n.type), select(most < tiny, const(large, n.type), 1.0))
    infinite = most.eq(inf)
    n, d = (select(infinite, select(v.eq(inf), const(1.0, n.type), 0.0), v * by) for v in (n, d))
    return n, select(n.eq(0.0) & d.eq(0.0), 1.0, d)


def atan2(y: Scalar, x: Scalar) -> Scalar:
    """The angle in [-pi, pi] of the point (x, y), with the special cases of IEEE 754."""
    n, d = within_reach(absolute(y), absolute(x))
    back = (bits(x) & FORMAT[x.type].sign).ne(0)
    return select(x.ne(x) | y.ne(y), x + y, with_sign(angle(n, d, back), y))


def hypot(x: Scalar, y: Scalar) -> Scalar:
    """sqrt(x^2 + y^2) without overflow; infinite if either is, even beside a NaN."""
    infinite = absolute(x).eq(inf) | absolute(y).eq(inf)
    if x.type == "f32":
        a, b = convert(x, "f64"), convert(y, "f64")
        return select(infinite, inf, convert(sqrt(fma(a, a, b * b)), "f32"))
    a, b = absolute(x), absolute(y)
    most = select(a > b, a, b)
    large, tiny, up, down = most > 2.0**500, most < 2.0**-500, 2.0**700, 2.0**-700
    by = select(large, const(down, "f64"), select(tiny, const(up, "f64"), 1.0))
    back = select(large, const(up, "f64"), select(tiny, const(down, "f64"), 1.0))
    a, b = a * by, b * by
    (s, s_lo), (t, t_lo) = two_product(a, a), two_product(b, b)
    total, error = two_sum(s, t)
    root = sqrt(total)
    rest = (fma(-root, root, total) + (error + (s_lo + t_lo))) * 0.5 / select(root > 0.0, root, 1.0)
    return select(infinite, inf, (root + rest) * back)
