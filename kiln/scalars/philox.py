"""Counter-based random numbers as scalars: the value at a position is a function of seed and position alone.

Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3;
2011): 128 bits of counter and 64 of key give four words. No state is carried, so eager, recorded, split over
threads or fused, the numbers are the same.

    counter = position (64 bits), stream (64 bits);  key = seed (64 bits)
"""

from __future__ import annotations

from kiln.scalars.mathematics import log
from kiln.scalars.scalar import Scalar, const, convert, fma, sqrt
from kiln.scalars.trigonometry import quadrant, sin_cos

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF
HALF_PI = 1.5707963267948966

Words = tuple[Scalar, Scalar, Scalar, Scalar]


def philox(seed: Scalar, counter: Scalar, stream: Scalar | None = None) -> Words:
    """Four u32 words for the integers `seed`, `counter` and `stream` (i64 or u64; stream 0 if not given).

    Words are the low halves of u64s, where a product of two has its place: nothing is moved between lanes.
    """
    none = const(0, "u64")
    a, b, c, d = *_in_low(counter), *(_in_low(stream) if stream is not None else (none, none))
    k0, k1 = _in_low(seed)
    for _ in range(ROUNDS):
        x, y = ((word & LOW) * factor for word, factor in zip((a, c), MULTIPLIERS))
        a, b, c, d = (y >> 32) ^ b ^ k0, y, (x >> 32) ^ d ^ k1, x
        k0, k1 = k0 + KEY_STEPS[0], k1 + KEY_STEPS[1]
    return convert(a, "u32"), convert(b, "u32"), convert(c, "u32"), convert(d, "u32")


def _in_low(x: Scalar) -> tuple[Scalar, Scalar]:
    """The words of an i64 or u64, each the low half of a u64."""
    x = convert(x, "u64")
    return x, x >> 32


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
