"""Sine, cosine and tangent, as scalars of type f32 or f64.

    x = q pi/2 + r, |r| <= pi/4;  sin r = r + r^3 S(r^2);  cos r = 1 - r^2/2 + r^4 C(r^2)
    the two low bits of q choose between them and sign the result

    |x| < limit   r = x - n P1 - n P2 - n P3, the first step exact, P1 + P2 + P3 = pi/2
    otherwise     x 2/pi mod 4 from the bits of 2/pi that matter, in integers

The second path is long; its selects are marked "rare", which lets a target skip it for a group of lanes that
has no such x. Which path a lane takes depends on its own x only.
"""

from __future__ import annotations

from kiln.scalars.floats import FORMAT, Pair, fast_two_sum, poly, quotient, two_product, two_sum
from kiln.scalars.scalar import WIDTH, Scalar, absolute, bits, const, convert, fma, from_bits, rint, select

PI_HALF = {
    "f32": (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
    "f64": (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
}
TWO_OVER_PI = {"f32": 0.6366197466850281, "f64": 0.6366197723675814}
REDUCE_LIMIT = {"f32": 2.0**15, "f64": 2.0**27}
SIN = {
    "f32": (-0.16666653752326965, 0.00833210814744234, -0.00019508233526721597),
    "f64": (-0.16666666666666627, 0.00833333333332094, -0.00019841269828618573, 2.755731327595765e-06,
            -2.5050692466480895e-08, 1.5892961244116072e-10),
}  # fmt: skip
COS = {
    "f32": (0.04166664555668831, -0.0013887297827750444, 2.443008816044312e-05),
    "f64": (0.04166666666666658, -0.0013888888888871375, 2.4801587287782704e-05, -2.7557313865452547e-07,
            2.0875657557185894e-09, -1.1356265738867769e-11),
}  # fmt: skip
# 2/pi = 0.(these bits); 1280 of them
TWO_OVER_PI_BITS = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921c"
    "fe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08"
    "56033046fc7b6babf0cfbc209af4361d",
    16,
)


def rarely(condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """select, saying that `condition` seldom holds: a target may skip x where no lane asks for it."""
    return Scalar("select", (condition, x, y), x.type, "rare")


def window(offset: Scalar, width: int, count: int, last: int) -> list[Scalar]:
    """`count` words of `width` bits at bit `offset` <= last of `width` zeros followed by the bits of 2/pi.

    A barrel shift over constant words: one select per word and bit of the word number, then by bits.
    """
    type, mask = f"u{width}", (1 << width) - 1
    number = last // width + count + 1
    words = [const(0, type)]
    words += [const(TWO_OVER_PI_BITS >> (1280 - width * i) & mask, type) for i in range(1, number)]
    index = offset >> (width.bit_length() - 1)
    step = 1 << ((last // width).bit_length() - 1)
    while step:
        here = (index & step).ne(0)
        keep = min(count + step, len(words))
        words = [select(here, words[min(i + step, len(words) - 1)], words[i]) for i in range(keep)]
        step //= 2
    left = convert(offset & (width - 1), type)
    right = const(width, type) - left
    return [(words[i] << left) | (words[i + 1] >> right) for i in range(count)]


def reduce_huge_f32(a: Scalar) -> Pair:
    """(q, r) of a finite f32 a >= REDUCE_LIMIT: q in i32 (two low bits hold), r in f32.

    a = m 2^e; bits of 2/pi of weight above 2^(2-e) add multiples of 4 quadrants: skip them, keep 96.
    """
    raw = bits(a)
    m = convert(convert((raw & 0x7FFFFF) | 0x800000, "u32"), "u64")
    w = [convert(v, "u64") for v in window((raw >> 23) - 120, 32, 3, 134)]
    turns = ((m * w[0]) << 32) + m * w[1] + ((m * w[2]) >> 32)
    q = (turns + (1 << 61)) >> 62
    r = convert(convert(turns << 2, "i64"), "f64") * (PI_HALF["f64"][0] * 2.0**-64)
    return convert(q, "i32"), convert(r, "f32")


def multiply_wide(a: Scalar, b: Scalar) -> Pair:
    """The high and low 64 bits of the product of two u64, a < 2^53."""
    low = 0xFFFFFFFF
    a0, a1, b0, b1 = a & low, a >> 32, b & low, b >> 32
    cross = a0 * b1
    middle = a1 * b0 + (cross & low) + ((a0 * b0) >> 32)
    return a1 * b1 + (cross >> 32) + (middle >> 32), a * b


def reduce_huge_f64(a: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """(q, r, lo) of a finite f64 a >= REDUCE_LIMIT: as for f32, with a window of 192 bits and r as a pair."""
    raw = bits(a)
    m = convert((raw & ((1 << 52) - 1)) | (1 << 52), "u64")
    w = window((raw >> 52) - 1013, 64, 3, 1033)
    high, low = multiply_wide(m, w[1])
    high = high + m * w[0]
    carried = low + multiply_wide(m, w[2])[0]
    high = high + convert(carried < low, "u64")
    q = (high + (1 << 61)) >> 62
    top = convert((high << 2) | (carried >> 62), "i64")
    parts = (
        convert(top >> 32, "f64") * 2.0**-32,
        convert(top & 0xFFFFFFFF, "f64") * 2.0**-64,
        convert(convert((carried << 2) >> 11, "i64"), "f64") * 2.0**-117,
    )
    hi, error = two_sum(parts[0], parts[1])
    hi, rest = two_sum(hi, parts[2])
    first, second, _ = PI_HALF["f64"]
    r, lo = two_product(hi, first)
    lo = lo + fma(rest + error, first, hi * second)
    return convert(q, "i64"), r, lo


def reduce_quarter(a: Scalar) -> tuple[Scalar, Scalar, Scalar | None]:
    """(q, r, lo): a = q pi/2 + r + lo for a >= 0, q an integer of a's width; f32 needs no lo.

    r is NaN for inf and NaN.
    """
    p1, p2, p3 = PI_HALF[a.type]
    magic, huge = FORMAT[a.type].magic, a >= REDUCE_LIMIT[a.type]
    t = fma(a, TWO_OVER_PI[a.type], magic)
    n, q = t - magic, bits(t)
    first = fma(n, -p1, a)
    if a.type == "f32":
        far_q, far_r = reduce_huge_f32(a)
        r = fma(n, -p3, fma(n, -p2, first))
        return rarely(huge, far_q, q), rarely(huge, far_r + (a - a), r), None
    far_q, far_r, far_lo = reduce_huge_f64(a)
    product, product_lo = two_product(n, -p2)
    second, error = two_sum(first, product)
    r, lo = fast_two_sum(second, fma(n, -p3, error + product_lo))
    return rarely(huge, far_q, q), rarely(huge, far_r + (a - a), r), rarely(huge, far_lo, lo)


def sin_cos_pairs(r: Scalar, lo: Scalar | None) -> tuple[Pair, Pair]:
    """sin(r + lo) and cos(r + lo) for |r| <= pi/4, each a large part and what is to be added."""
    t = r * r
    sine, cosine = (r * t) * poly(t, SIN[r.type]), poly(t, COS[r.type])
    half = t * 0.5
    top = 1.0 - half
    error = (1.0 - top) - half
    if lo is None:
        return (r, sine), (top, fma(t * t, cosine, error))
    return (r, sine + fma(-half, lo, lo)), (top, error + fma(t * t, cosine, -(r * lo)))


def sin_cos(r: Scalar, lo: Scalar | None) -> Pair:
    """sin(r + lo) and cos(r + lo) for |r| <= pi/4."""
    if lo is None:
        t = r * r
        cosine = fma(t, fma(t, poly(t, COS[r.type]), -0.5), 1.0)
        return r + (r * t) * poly(t, SIN[r.type]), cosine
    (s, s_lo), (c, c_lo) = sin_cos_pairs(r, lo)
    return s + s_lo, c + c_lo


def quadrant(q: Scalar, sine: Scalar, cosine: Scalar) -> Scalar:
    """The value at quadrant q (two low bits): sine, cosine, -sine, -cosine."""
    form = FORMAT[sine.type]
    value = select((q & 1).ne(0), cosine, sine)
    return from_bits(bits(value) ^ ((q << (WIDTH[sine.type] - 2)) & form.sign))


def sin(x: Scalar) -> Scalar:
    """The sine of x in radians; odd, NaN at the infinities."""
    q, r, lo = reduce_quarter(absolute(x))
    value = quadrant(q, *sin_cos(r, lo))
    return from_bits(bits(value) ^ (bits(x) & FORMAT[x.type].sign))


def cos(x: Scalar) -> Scalar:
    """The cosine of x in radians; NaN at the infinities."""
    q, r, lo = reduce_quarter(absolute(x))
    return quadrant(q + 1, *sin_cos(r, lo))


def tan(x: Scalar) -> Scalar:
    """The tangent of x in radians: sine / cosine, or -cosine / sine; odd, NaN at the infinities."""
    q, r, lo = reduce_quarter(absolute(x))
    sine, cosine = (fast_two_sum(*p) for p in sin_cos_pairs(r, lo))
    odd = (q & 1).ne(0)
    (top, top_lo), (below, below_lo) = (
        [select(odd, a, b) for a, b in zip(*parts)] for parts in ((cosine, sine), (sine, cosine))
    )
    value = quotient((top, top_lo), (below, below_lo))
    sign = (bits(x) ^ (q << (WIDTH[x.type] - 1))) & FORMAT[x.type].sign
    return from_bits(bits(value) ^ sign)


# Of pi x: x less the nearest multiple of 2, then of 1/2, is exact.

PI = {
    "f32": (3.1415927410125732, -8.742277657347586e-08),
    "f64": (3.141592653589793, 1.2246467991473532e-16),
}


def sin_cos_pi(x: Scalar) -> tuple[Pair, Pair]:
    """sin(pi x) and cos(pi x) as pairs, exact where they are 0 or 1; NaN at the infinities."""
    magic = FORMAT[x.type].magic
    x = fma(rint(x * 0.5), -2.0, x)
    t = fma(x, 2.0, magic)
    r = fma(t - magic, -0.5, x)
    hi, lo = two_product(r, PI[x.type][0])
    sine, cosine = (fast_two_sum(*p) for p in sin_cos_pairs(hi, fma(r, PI[x.type][1], lo)))
    return quadrant_pair(bits(t), sine, cosine), quadrant_pair(bits(t) + 1, sine, cosine)


def quadrant_pair(q: Scalar, sine: Pair, cosine: Pair) -> Pair:
    """`quadrant` of pairs."""
    odd, negative = (q & 1).ne(0), (q & 2).ne(0)
    hi, lo = (select(odd, c, s) for s, c in zip(sine, cosine))
    return select(negative, -hi, hi), select(negative, -lo, lo)


def sinc(x: Scalar) -> Scalar:
    """sin(pi x) / (pi x), 1 at 0; 0 at the infinities, as at every other integer."""
    pi, pi_lo = PI[x.type]
    hi, lo = sin_cos_pi(x)[0]
    below, below_lo = two_product(x, pi)
    value = quotient((hi, lo), (below, fma(x, pi_lo, below_lo)))
    return select(absolute(x) < FORMAT[x.type].small, 1.0, value) + (x - x)
