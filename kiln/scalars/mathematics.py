"""The elementary functions, each written once, as scalars of type f32 or f64.

All are branch-free: every lane computes every path and `select` keeps one, so a value's bits depend on the
value only. Powers of two are made by integer arithmetic on the exponent field; there is no table, and at
most one division. Coefficients are minimax fits; in f32 each is rounded before
those of higher degree are fitted again.

Names used throughout:

    n      the integer nearest to x / period, found by adding and subtracting `magic` = 1.5 * 2^M
    r      what remains of x, with a tail `lo` where one rounding would show
    hi, lo an unevaluated sum that holds about twice the type's precision

Measured bounds: kiln/scalars/NUMERICS.md. Right at 0, -0.0, infinities, NaN and denormals, in and out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from kiln.scalars.floats import (
    FORMAT,
    Pair,
    clamp,
    constant_plus,
    fast_two_sum,
    pair_product,
    poly,
    quotient,
    two_product,
    two_sum,
    with_sign,
)
from kiln.scalars.scalar import (
    Scalar,
    absolute,
    bits,
    const,
    convert,
    fma,
    from_bits,
    ldexp,
    rint,
    select,
    sqrt,
)
from kiln.scalars.trigonometry import cos, rarely, sin, tan

__all__ = [
    "cos", "erf", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "pow", "rsqrt", "sigmoid", "sin",
    "sqrt", "tan", "tanh",
]  # fmt: skip

# x as a sum of floats of the type, each rounded from what the ones before left
LN2 = {
    "f32": (0.6931471824645996, -1.9046542121259336e-09),
    "f64": (0.6931471805599453, 2.3190468138462996e-17),
}
LOG2E = {
    "f32": (1.4426950216293335, 1.925963033500011e-08),
    "f64": (1.4426950408889634, 2.0355273740931033e-17),
}


# Exponentials: x = n ln2 + r; e^r by a polynomial; the factor 2^n through the exponent field.
#
#     t  = fma(x, 1/ln2, magic)        low bits of t: n
#     r  = x - n ln2                   |r| <= ln2 / 2, first step exact
#     e^r - 1 = r + r^2 P(r)

EXP = {
    "f32": (0.4999999403953552, 0.1666651964187622, 0.04166823625564575, 0.008368822745978832,
            0.001382349873892963),
    "f64": (0.5000000000000011, 0.1666666666666641, 0.041666666666529184, 0.008333333333495634,
            0.0013888888943923293, 0.00019841269504756046, 2.480149276209247e-05, 2.7557587344426433e-06,
            2.7630378862167696e-07, 2.4999965656382597e-08),
}  # fmt: skip
# one term more in f32, where e^x - 1 is closest to its bound
EXPM1 = {
    "f32": (0.5, 0.1666666567325592, 0.041666459292173386, 0.00833356287330389,
            0.0013935433235019445, 0.00019747074111364782),
    "f64": EXP["f64"],
}  # fmt: skip
EXP2 = {
    "f32": (0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.009618500247597694,
            0.0013390970416367054, 0.00015328872541431338),
    "f64": (0.6931471805599453, 0.2402265069591013, 0.055504108664820084, 0.009618129107594095,
            0.0013333558146774824, 0.00015403530457148515, 1.5252733493009504e-05, 1.3215435262595011e-06,
            1.0178199590646037e-07, 7.073786870736421e-09, 4.434772822412223e-10),
}  # fmt: skip
EXP_RANGE = {"f32": (-104.0, 89.0), "f64": (-746.0, 710.0)}  # 0 below, inf above
EXP2_RANGE = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}


def power_of_two(n: Scalar, type: str) -> Scalar:
    """2^n for an integer n in the low bits of a `magic` sum, in the normal range of `type`."""
    form = FORMAT[type]
    return from_bits((n << form.mantissa) + form.one)


def scale(y: Scalar, t: Scalar) -> Scalar:
    """y 2^n, n in the low bits of the float t; rounded once, and only where the result is denormal."""
    return ldexp(y, t - FORMAT[y.type].magic)


def reduce_exp(x: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """(t, r, first, n): the magic sum, the remainder, and what a caller needs for the remainder's tail."""
    magic, (hi, lo) = FORMAT[x.type].magic, LN2[x.type]
    t = fma(x, LOG2E[x.type][0], magic)
    n = t - magic
    first = fma(n, -hi, x)
    return t, fma(n, -lo, first), first, n


def exp_unclamped(x: Scalar) -> Scalar:
    """e^x for x within EXP_RANGE (or NaN)."""
    t, r, _, _ = reduce_exp(x)
    return scale(poly(r, (1.0, 1.0, *EXP[x.type])), t)


def exp(x: Scalar) -> Scalar:
    """e^x."""
    low, high = EXP_RANGE[x.type]
    return unless_zero(x, low, lambda x: exp_unclamped(select(x > high, high, x)))


def unless_zero(x: Scalar, low: float, of: Callable[[Scalar], Scalar]) -> Scalar:
    """of(x), but 0 for x below `low`, where it is that: a masked score is -inf, and processors take a hundred
    times as long for an instruction whose result is too small for a normal number.
    """
    below = x < low
    return select(below, 0.0, of(select(below, 0.0, x)))


def exp_pair(x: Scalar, less: float = 0.0) -> Pair:
    """e^x 2^-less as a pair, for x within range (or NaN)."""
    t, r, first, n = reduce_exp(x)
    top, error = fast_two_sum(const(1.0, x.type), r)
    rest = fma(r * r, poly(r, EXP[x.type]), fma(n, -LN2[x.type][1], first - r) + error)
    hi, lo = fast_two_sum(top, rest)
    t = t - less if less else t
    return scale(hi, t), scale(lo, t)


def exp2(x: Scalar) -> Scalar:
    """2^x; exact for integers."""
    low, high = EXP2_RANGE[x.type]
    return unless_zero(x, low, lambda x: _exp2_within(select(x > high, high, x)))


def _exp2_within(x: Scalar) -> Scalar:
    magic = FORMAT[x.type].magic
    t = x + magic
    r = x - (t - magic)
    return scale(fma(r, poly(r, EXP2[x.type]), 1.0), t)


def expm1_pair(x: Scalar, half: bool) -> Pair:
    """e^x - 1 as hi + lo, for x within range and not small; half of it, so that it stays finite, if `half`.

    e^x - 1 = (2^n - 1) + 2^n r + 2^n (r^2 P + tail), the first sums exact as pairs.
    """
    form, lo = FORMAT[x.type], LN2[x.type][1]
    t, r, first, n = reduce_exp(x)
    rest = fma(r * r, poly(r, EXPM1[x.type]), fma(n, -lo, first - r))
    unit = 0.5 if half else 1.0
    power = from_bits((bits(t) << form.mantissa) + (form.one - (int(half) << form.mantissa)))
    less = power - unit
    hi, error = fast_two_sum(less, power * r)
    return hi, fma(power, rest, error + ((power - less) - unit))


def expm1(x: Scalar) -> Scalar:
    """e^x - 1."""
    low, high = {"f32": (-18.0, 89.0), "f64": (-38.0, 710.0)}[x.type]
    hi, lo = expm1_pair(clamp(x, low, high), half=True)
    return select(absolute(x) < FORMAT[x.type].small, x, (hi + lo) * 2.0)


def sigmoid(x: Scalar) -> Scalar:
    """1 / (1 + e^-x), from e^-|x|, so that neither side loses small values; in f64 a quotient of pairs."""
    low = EXP_RANGE[x.type][0]
    below = -absolute(x)
    below = select(below < low, low, below)
    negative = x < 0.0
    if x.type == "f32":
        e = exp_unclamped(below)
        return select(negative, e, 1.0) / (e + 1.0)
    hi, lo = exp_pair(below)
    total, error = fast_two_sum(const(1.0, x.type), hi)
    return quotient((select(negative, hi, 1.0), select(negative, lo, 0.0)), (total, error + lo))


# Logarithms: x = 2^k m, 2/3 <= m < 4/3, f = m - 1 exact; log(1 + f) = f + f^2 P(f).

LOG = {
    "f32": (-0.5, 0.3333321213722229, -0.24999824166297913, 0.20010580122470856, -0.1667935997247696,
            0.1400345116853714, -0.12199171632528305, 0.13994967937469482, -0.1282924860715866),
    "f64": (-0.49999999999999956, 0.3333333333333313, -0.2500000000002952, 0.20000000000084014,
            -0.1666666666088064, 0.14285714273431233, -0.12500000515431997, 0.11111112008445882,
            -0.0999997490089417, 0.0909087130485626, -0.08334064180888955, 0.07693291322044604,
            -0.07129607311606292, 0.0665036357712269, -0.06400082503693674, 0.060538603157698635,
            -0.04534238637093343, 0.04167020283904696, -0.08696154734650469, 0.08514104575443626),
}  # fmt: skip
LOG2 = {
    "f32": (-0.7213475108146667, 0.48089665174484253, -0.36067190766334534, 0.2886892557144165,
            -0.24061591923236847, 0.20205993950366974, -0.17615820467472076, 0.20176324248313904,
            -0.18452493846416473),
    "f64": (-0.721347520444481, 0.4808983469629849, -0.36067376022266673, 0.28853900817900474,
            -0.24044917339801922, 0.2060992913783592, -0.1803368875472323, 0.16029946193346684,
            -0.14426914198534121, 0.13115354948875907, -0.12023513064218835, 0.11099073238427848,
            -0.10285849111940093, 0.0959444655282349, -0.09233367289359083, 0.08733874255795676,
            -0.06541523595941698, 0.060117394988730255, -0.1254589931048331, 0.12283256448602552),
}  # fmt: skip
TWO_THIRDS = {"f32": 0x3F2AAAAB, "f64": 0x3FE5555555555555}
SQRT_HALF = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}


def ordinary_split(x: Scalar, base: int) -> Pair:
    """`split` of a normal number."""
    form = FORMAT[x.type]
    raw = bits(x)
    exponent = (raw - base) >> form.mantissa
    k = convert(exponent, "f32") if x.type == "f32" else exponent_as_float(exponent, x.type)
    return k, from_bits(raw - (exponent << form.mantissa))


def exponent_as_float(exponent: Scalar, type: str) -> Scalar:
    """A small integer as a float, for targets without the conversion."""
    magic = FORMAT[type].magic
    return from_bits(exponent + bits_of(magic, type)) - magic


def logarithm(x: Scalar, of: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
    """of(k, f), x = 2^k (1 + f); what is no positive normal number goes a rare path."""
    base = TWO_THIRDS[x.type]
    (k, m), (any_k, any_m) = ordinary_split(x, base), split(x, base)
    ordinary = (x >= FORMAT[x.type].smallest) & (x < inf)
    return rarely(~ordinary, log_edges(x, of(any_k, any_m - 1.0), 0.0), of(k, m - 1.0))


def split(x: Scalar, base: int) -> Pair:
    """(k, m): x = 2^k m for finite x > 0, b <= m < 2b, b in (1/2, 1) the float of bits `base`; k a float."""
    form = FORMAT[x.type]
    lift = form.mantissa + 1
    denormal = x < form.smallest
    raw = bits(select(denormal, x * 2.0**lift, x))
    above = raw - base
    exponent = above >> form.mantissa
    m = from_bits(raw - (exponent << form.mantissa))
    as_float = from_bits(exponent + bits_of(form.magic, x.type))
    return as_float - select(denormal, form.magic + lift, const(form.magic, x.type)), m


def bits_of(value: float, type: str) -> int:
    """The bits of a positive float of `type`, as an integer."""
    return int(const(value, type).data)


def log_edges(x: Scalar, y: Scalar, pole: float) -> Scalar:
    """y, with -inf where x is at the pole, NaN below it, and x itself where it is infinite or NaN."""
    y = select(x > pole, y, select(x.eq(pole), const(-inf, x.type), nan))
    return select(x < inf, y, x)


def log(x: Scalar) -> Scalar:
    """The natural logarithm."""
    return logarithm(x, lambda k, f: log_sum(k, f, None))


def log_sum(k: Scalar, f: Scalar, tail: Scalar | None) -> Scalar:
    """k ln2 + log(1 + f + tail): the large part as a pair, since near k = -1 the parts nearly cancel."""
    hi, lo = LN2[f.type]
    small = (f * f) * poly(f, LOG[f.type])
    if tail is not None:
        small = small + fma(-f, tail, tail)
    total = fma(k, hi, f)
    rest = fma(k, hi, -total) + f
    return total + (fma(k, lo, rest) + small)


def log_of_pair(hi: Scalar, lo: Scalar, more: Scalar | None = None) -> Scalar:
    """log(hi + lo) + more ln2, for finite hi > 0 that is no denormal, |lo| small beside it."""
    k, m = split(hi, TWO_THIRDS[hi.type])
    return log_sum(k if more is None else k + more, m - 1.0, ldexp(lo, -k))


def log1p(x: Scalar) -> Scalar:
    """log(1 + x): k is chosen from the rounded 1 + x, f = 2^-k x + (2^-k - 1) from x itself."""
    return select(absolute(x) < FORMAT[x.type].small, x, log_edges(x, log1p_sum(x), -1.0))


def log1p_sum(x: Scalar, lo: Scalar | None = None, more: Scalar | None = None) -> Scalar:
    """log(1 + x + lo) + more ln2, for finite x > -1."""
    form = FORMAT[x.type]
    u = x + 1.0
    exponent = (bits(u) - TWO_THIRDS[x.type]) >> form.mantissa
    field = exponent << form.mantissa
    quarter = from_bits(const(form.one + (2 << form.mantissa), form.integer) - field)
    f, tail = two_sum(fma(quarter, 0.25, -1.0), from_bits(bits(x) - field))
    tail = tail if lo is None else fma(quarter * 0.25, lo, tail)
    k = from_bits(exponent + bits_of(form.magic, x.type)) - form.magic
    return log_sum(k if more is None else k + more, f, tail)


def log2(x: Scalar) -> Scalar:
    """The logarithm to base 2; exact for powers of 2."""

    def of(k: Scalar, f: Scalar) -> Scalar:
        hi, lo = LOG2E[x.type]
        top, rest = two_product(f, hi)
        rest = fma(f * f, poly(f, LOG2[x.type]), fma(f, lo, rest))
        total, error = fast_two_sum(k, top)
        return total + (error + rest)

    return logarithm(x, of)


LOG10 = {
    "f32": (-0.21714724600315094, 0.1447642743587494, -0.10857237875461578, 0.0869060605764389,
            -0.07245130836963654, 0.06079939380288124, -0.052826352417469025, 0.06085200235247612,
            -0.05630205571651459),
    "f64": (-0.21714724095162571, 0.14476482730108314, -0.10857362047594618, 0.08685889638099344,
            -0.07238241362482278, 0.06204206879208665, -0.054286812510757836, 0.048254946224868527,
            -0.04342933805022681, 0.0394811555560541, -0.036194403606733205, 0.03341148258895553,
            -0.030963210020725267, 0.028882818418718138, -0.027797299799250243, 0.02628696315040964,
            -0.019683321100245343, 0.01811532055203754, -0.03778200094782614, 0.036945590361709836),
}  # fmt: skip
# log10 e and log10 2; products of the first part of the second with any k are exact
LOG10_E = {
    "f32": (0.4342944920063019, -1.0103049952192578e-08),
    "f64": (0.4342944819032518, 1.098319650216765e-17),
}
LOG10_TWO = {
    "f32": (0.301025390625, 4.605039066518657e-06),
    "f64": (0.30102999566395283, 2.8363394551044964e-14),
}


def log10(x: Scalar) -> Scalar:
    """The logarithm to base 10."""

    def of(k: Scalar, f: Scalar) -> Scalar:
        (e, e_lo), (two, two_lo) = LOG10_E[x.type], LOG10_TWO[x.type]
        top, rest = two_product(f, e)
        square, square_lo = two_product(f, f)
        second, *higher = LOG10[x.type]
        rest = fma(f * square, poly(f, higher), fma(square_lo, second, fma(f, e_lo, rest)))
        rest = fma(square, second, rest)
        total, error = fast_two_sum(k * two, top)
        return total + (error + fma(k, two_lo, rest))

    return logarithm(x, of)


# tanh |x|, f32: y = H / (H + 1), H = (e^2|x| - 1) / 2; near 0, where rounding H + 1 loses most, H - H y.
#     2|x| = n ln 2 + 2r;  (e^2r - 1) / 2 = r + r^2 P(r);  H = 2^n (r + r^2 P(r)) + (2^n - 1) / 2
# f64: E / (E + 2), E = e^2|x| - 1, as pairs, one division.

EXPM1_TWICE = (1.0, 0.6666617393493652, 0.3333302438259125, 0.13386577367782593, 0.04462879151105881)
TANH_NEAR = 0.3125
TANH_ONE = {"f32": 9.1, "f64": 22.0}  # tanh rounds to 1 from here on


def tanh(x: Scalar) -> Scalar:
    """The hyperbolic tangent; odd, and never above 1 in magnitude."""
    a, one = absolute(x), TANH_ONE[x.type]
    low = select(a > one, one, a)
    if x.type == "f32":
        magic = FORMAT[x.type].magic + 127.0  # low bits of t: the exponent field of 2^n
        t = fma(low, 2 * LOG2E["f64"][0], magic)
        r = fma(t - magic, -0.5 * LN2["f64"][0], low)
        scale = from_bits(bits(t) << 23)
        half = fma(scale, fma(r * r, poly(r, EXPM1_TWICE), r), fma(scale, 0.5, -0.5))
        y = half / (half + 1.0)
        return with_sign(select(a < TANH_NEAR, fma(-half, y, half), y), x)
    hi, lo = fast_two_sum(*expm1_pair(low * 2.0, half=False))
    below, below_lo = two_sum(hi, const(2.0, x.type))
    y = quotient((hi, lo), (below, below_lo + lo))
    return with_sign(select(a < FORMAT[x.type].small, a, y), x)


# erf |x|: x + x P(x^2) below 1; 1 - 2^L(|x| - 2), L = log2 erfc, above.

ERF = {
    "f32": (0.12837916612625122, -0.3761262595653534, 0.11283581703901291, -0.026853593066334724,
            0.005187842529267073, -0.0008005574345588684, 7.837819430278614e-05),
    "f64": (0.12837916709551256, -0.37612638903183515, 0.11283791670944078, -0.02686617064309388,
            0.0052239776059700045, -0.0008548325922021827, 0.00012055293354103803, -1.4924707940213187e-05,
            1.644707682690579e-06, -1.6205887917364807e-07, 1.370911171738626e-08, -7.775933153915767e-10),
}  # fmt: skip
LOG2_ERFC = {
    "f32": (-7.739974021911621, -6.374057292938232, -1.332694172859192, -0.02378380112349987,
            0.005115719512104988, -0.001026968820951879, 0.00026770660770125687),
    "f64": (-7.739974157122987, -6.374058684658132, -1.3326907585162087, -0.02375414428370076,
            0.005151512472827513, -0.0010566289618025864, 0.00019521010614339648, -2.98730674340185e-05,
            2.816420527211616e-06, 2.93793809292946e-07, -2.498822153595936e-07, 8.338400578311873e-08,
            -2.0126140330914715e-08, 3.6629706025882275e-09, -3.959332271937723e-10, -6.205418251324399e-11,
            5.3933172244991514e-11, -1.4612783066412392e-11, 1.5030801008602397e-12),
}  # fmt: skip
ERF_ONE = {"f32": 3.93, "f64": 6.0}  # erf rounds to 1 from here on


def erf(x: Scalar) -> Scalar:
    """The error function; odd, and never above 1 in magnitude."""
    form, a, one = FORMAT[x.type], absolute(x), ERF_ONE[x.type]
    a = select(a > one, one, a)
    near = fma(a, poly(a * a, ERF[x.type]), a)
    exponent = poly(a - 2.0, LOG2_ERFC[x.type])
    t = exponent + form.magic
    r = exponent - (t - form.magic)
    far = fma(-power_of_two(bits(t), x.type), fma(r, poly(r, EXP2[x.type]), 1.0), 1.0)
    return with_sign(select(a < 1.0, near, far), x)


def rsqrt(x: Scalar) -> Scalar:
    """1 / sqrt(x), two roundings; inf at 0 with its sign, NaN below."""
    return 1.0 / sqrt(x)


# pow: |x|^y = 2^(y log2|x|), the logarithm and the product as pairs.
#
#     |x| = 2^k m, sqrt(1/2) <= m < sqrt(2);  s = (m - 1) / (m + 1), a pair;  t = s^2
#     log2 m = s (C1 + t (C3 + t (C5 + t Q(t))))      C1, C3, C5 as pairs; Q from one rounding on

POW_C1 = {
    "f32": (2.885390043258667, 3.851926067000022e-08),
    "f64": (2.8853900817779268, 4.0710547481862066e-17),
}
POW_C3 = {
    "f32": (0.9617967009544373, -7.028461812552678e-09),
    "f64": (0.9617966939259756, 5.0577616648125907e-17),
}
POW_C5 = {
    "f32": (0.5770780444145203, -2.805893473123433e-08),
    "f64": (0.5770780163555853, 5.2551030481378675e-17),
}
POW_Q = {
    "f32": (0.41204048532549464, 0.33379931695771126),
    "f64": (0.41219858311119906, 0.3205988979432639, 0.2623081953930331, 0.2219524679475358,
            0.19239449364823927, 0.16857729634844387, 0.17185880729648434),
}  # fmt: skip


def log2_pair(x: Scalar) -> Pair:
    """log2 x for finite x > 0, as a pair."""
    type = x.type
    k, m = split(x, SQRT_HALF[type])
    f = m - 1.0
    below, below_lo = two_sum(m, const(1.0, type))
    inverse = 1.0 / below
    s = f * inverse
    rest = fma(-s, below_lo, fma(-s, below, f))
    ratio = (s, rest * inverse)
    t = pair_product(ratio, ratio)
    zero = const(0.0, type)
    total = constant_plus(POW_C5[type], (t[0] * poly(t[0], POW_Q[type]), zero))
    total = constant_plus(POW_C3[type], pair_product(t, total))
    total = constant_plus(POW_C1[type], pair_product(t, total))
    hi, lo = pair_product(ratio, total)
    whole, error = fast_two_sum(k, hi)
    return fast_two_sum(whole, error + lo)


def exp2_pair(hi: Scalar, lo: Scalar) -> Scalar:
    """2^(hi + lo) for a small lo; an infinite hi saturates, whatever lo is."""
    low, high = EXP2_RANGE[hi.type]
    inside = (hi > low) & (hi < high)
    lo = select(inside, lo, 0.0)
    hi = clamp(hi, low, high)
    magic = FORMAT[hi.type].magic
    t = hi + magic
    r, lo = fast_two_sum(hi - (t - magic), lo)
    return scale(fma(r, poly(r, EXP2[hi.type]), lo * LN2[hi.type][0]) + 1.0, t)


def pow(x: Scalar, y: Scalar) -> Scalar:
    """x^y with the special cases of IEEE 754.

    pow(x, 0) = pow(1, y) = 1 even for a NaN; NaN for finite x < 0 and fractional y.
    """
    a, infinite = absolute(x), absolute(y).eq(inf)
    hi, lo = log2_pair(a)
    hi = select(a.eq(0.0), -inf, select(a.eq(inf), inf, hi))
    product, error = two_product(hi, y)
    magnitude = exp2_pair(product, fma(lo, y, error))
    integral = rint(y).eq(y)
    half = y * 0.5
    odd = integral & rint(half).ne(half)
    sign = bits(x) & FORMAT[x.type].sign
    result = from_bits(bits(magnitude) ^ select(odd, sign, 0))
    invalid = (x < 0.0) & ~integral & (a < inf)
    result = select(invalid, nan, result)
    result = select(x.ne(x) | y.ne(y), x + y, result)
    return select(y.eq(0.0) | x.eq(1.0) | (a.eq(1.0) & infinite), 1.0, result)
