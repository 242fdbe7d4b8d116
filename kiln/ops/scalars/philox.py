"""Counter-based random numbers as scalars: the value at a position is a function of seed and position alone.

Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3;
2011): 128 bits of counter and 64 of key give four words. No state is carried, so eager, recorded, split over
threads or fused, the numbers are the same.

    counter = position (64 bits), stream (64 bits);  key = seed (64 bits)
"""

from __future__ import annotations

from kiln.ops.scalar import Scalar, const, convert, fma, sqrt
from kiln.ops.scalars.mathematics import log
from kiln.ops.scalars.trigonometry import quadrant, sin_cos

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
HALF_PI = 1.5707963267948966

Words = tuple[Scalar, Scalar, Scalar, Scalar]


def halves(x: Scalar) -> tuple[Scalar, Scalar]:
    """The low and high u32 words of an i64 or u64."""
    x = convert(x, "u64")
    return convert(x, "u32"), convert(x >> 32, "u32")


def wide_product(x: Scalar, factor: int) -> tuple[Scalar, Scalar]:
    """The low and high words of the 64-bit product of the u32 x and a constant."""
    return halves(convert(x, "u64") * factor)


def philox(seed: Scalar, counter: Scalar, stream: Scalar | None = None) -> Words:
    """Four u32 words for the integers `seed`, `counter` and `stream` (i64 or u64; stream 0 if not given)."""
    a, b = halves(counter)
    c, d = halves(stream) if stream is not None else (const(0, "u32"), const(0, "u32"))
    k0, k1 = halves(seed)
    for _ in range(ROUNDS):
        low0, high0 = wide_product(a, MULTIPLIERS[0])
        low1, high1 = wide_product(c, MULTIPLIERS[1])
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = k0 + KEY_STEPS[0], k1 + KEY_STEPS[1]
    return a, b, c, d


def uniform_f32(word: Scalar) -> Scalar:
    """A u32 as an f32 in [0, 1): a multiple of 2^-24, all equally likely."""
    return convert(convert(word >> 8, "i32"), "f32") * 2.0**-24


def join(low: Scalar, high: Scalar) -> Scalar:
    """Two u32 words as a u64."""
    return convert(low, "u64") | (convert(high, "u64") << 32)


def uniform_f64(low: Scalar, high: Scalar) -> Scalar:
    """Two u32 words as an f64 in [0, 1): a multiple of 2^-53, all equally likely."""
    return convert(convert(join(low, high) >> 11, "i64"), "f64") * 2.0**-53


def box_muller(uniform: Scalar, turns: Scalar) -> tuple[Scalar, Scalar]:
    """Two independent standard normals from a float in (0, 1] and a word, a fraction of a full turn.

    The turn is cut into quadrants in integers, so that no reduction by pi is needed.
    """
    width, signed = (32, "i32") if uniform.type == "f32" else (64, "i64")
    q = convert((turns + (1 << (width - 3))) >> (width - 2), signed)
    r = convert(convert(turns << 2, signed), uniform.type) * (HALF_PI * 2.0**-width)
    sine, cosine = sin_cos(r, None)
    radius = sqrt(log(uniform) * -2.0)
    return radius * quadrant(q + 1, sine, cosine), radius * quadrant(q, sine, cosine)


def normal_f32(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Two standard normals of type f32 from two u32 words; magnitudes up to 6.77."""
    uniform = fma(convert(convert(a, "i64"), "f32"), 2.0**-32, 2.0**-33)
    return box_muller(uniform, b)


def normal_f64(words: Words) -> tuple[Scalar, Scalar]:
    """Two standard normals of type f64 from four u32 words; magnitudes up to 8.65."""
    uniform = fma(convert(convert(join(words[0], words[1]) >> 11, "i64"), "f64"), 2.0**-53, 2.0**-54)
    return box_muller(uniform, join(words[2], words[3]))
