"""What random ops draw, by NumPy and Python alone: Philox and the rejections as their papers have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

_LOW, _HALF = 0xFFFFFFFF, 32


def words(np: ModuleType, position: Any, seed: Any, stream: Any = 0) -> list[Any]:
    """Philox4x32-10 of counters (position, stream) and a key: four arrays of 32 bits, as uint64."""
    counter: list[Any] = []
    key: list[Any] = []
    for x, halves in ((position, counter), (stream, counter), (seed, key)):
        x = np.asarray(x, "int64").astype("uint64")
        halves += [x & np.uint64(_LOW), x >> np.uint64(_HALF)]
    for turn in range(10):
        k0, k1 = (
            (k + np.uint64(turn * weyl)) & np.uint64(_LOW) for k, weyl in zip(key, (0x9E3779B9, 0xBB67AE85))
        )
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (second >> np.uint64(_HALF)) ^ counter[1] ^ k0,
            second & np.uint64(_LOW),
            (first >> np.uint64(_HALF)) ^ counter[3] ^ k1,
            first & np.uint64(_LOW),
        ]
    return counter


def _fractions(np: ModuleType, drawn: list[Any], bits: int) -> Any:
    """The upper `bits` of one word, or of two of which the second is the upper one, over 2^bits."""
    joined = drawn[0] if len(drawn) == 1 else drawn[0] | (drawn[1] << np.uint64(_HALF))
    return (joined >> np.uint64(_HALF * len(drawn) - bits)).astype("float64") / 2.0**bits


def uniform(np: ModuleType, position: Any, seed: Any, dtype: str, stream: Any = 0) -> Any:
    """In [0, 1): a multiple of 2^-53, or of 2^-24 for what is computed in float32."""
    drawn = words(np, position, seed, stream)
    return _fractions(np, drawn[:2], 53) if dtype == "float64" else _fractions(np, drawn[:1], 24)


def between(np: ModuleType, position: Any, seed: Any, dtype: str) -> Any:
    """In (0, 1): the middles of 2^52 parts, or of 2^23."""
    drawn = words(np, position, seed)
    if dtype == "float64":
        return _fractions(np, drawn[:2], 52) + 2.0**-53
    return _fractions(np, drawn[:1], 23) + 2.0**-24


def normal(np: ModuleType, position: Any, seed: Any, dtype: str) -> Any:
    """Box and Muller, 1958: the cosine of a part of a turn times the root of an exponential number."""
    drawn = words(np, position, seed)
    if dtype == "float64":
        chance, turn = _fractions(np, drawn[:2], 53) + 2.0**-54, _fractions(np, drawn[2:], 64)
    else:
        chance, turn = _fractions(np, drawn[:1], 32) + 2.0**-33, _fractions(np, drawn[1:2], 32)
    return np.sqrt(-2 * np.log(chance)) * np.cos(2 * np.pi * turn)


def below(np: ModuleType, position: Any, seed: Any, count: int) -> Any:
    """64 bits, the first word above the second, as a remainder; 0 of a count of 0."""
    upper, lower = words(np, position, seed)[:2]
    whole = (upper << np.uint64(_HALF)) | lower
    return (whole % np.uint64(count)).astype("int64") if count else np.zeros(whole.shape, "int64")


def poisson(rate: float, u: float, v: float) -> float:
    """Hörmann's PTRS: the count that two uniform numbers propose, -1 if it is thrown away."""
    u -= 0.5
    b = 0.931 + 2.53 * math.sqrt(rate)
    a = -0.059 + 0.02483 * b
    reach = 0.5 - abs(u)
    k = math.floor((2 * a / reach + b) * u + rate + 0.43)
    if reach >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
        return k
    if k < 0 or (reach < 0.013 and v > reach):
        return -1
    left = math.log(v) + math.log(1.1239 + 1.1328 / (b - 3.4)) - math.log(a / reach**2 + b)
    return k if left <= -rate + k * math.log(rate) - math.lgamma(k + 1) else -1


def binomial(n: float, p: float, u: float, v: float) -> float:
    """Hörmann's BTRS: likewise, for p up to 1/2."""
    u -= 0.5
    deviation = math.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    reach = 0.5 - abs(u)
    k = math.floor((2 * a / reach + b) * u + n * p + 0.5)
    if not 0 <= k <= n:
        return -1
    if reach >= 0.07 and v <= 0.92 - 4.2 / b:
        return k
    mode = math.floor((n + 1) * p)
    left = math.log(v * (2.83 + 5.1 / b) * deviation / (a / reach**2 + b))
    right = math.lgamma(mode + 1) + math.lgamma(n - mode + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return k if left <= right + (k - mode) * math.log(p / (1 - p)) else -1


def rounds(
    np: ModuleType, candidate: Any, arrays: tuple[Any, ...], position: int, seed: int, stream: int
) -> Any:
    """A candidate for every element, from the two streams of a round."""
    places = position + np.arange(arrays[0].size).reshape(arrays[0].shape)
    drawn = [uniform(np, places, seed, "float64", 2 * stream + k) for k in (0, 1)]
    return np.vectorize(candidate, otypes=["float64"])(*arrays, *drawn)


def log_gamma(concentration: float, u: float, turn: float, height: float, power: float) -> float:
    """Marsaglia and Tsang: the logarithm of the number proposed, NaN if it is thrown away."""
    d = (concentration if concentration >= 1 else concentration + 1) - 1 / 3
    z = math.sqrt(-2 * math.log1p(-u)) * math.cos(2 * math.pi * turn)
    v = (1 + z / math.sqrt(9 * d)) ** 3
    if v <= 0 or math.log1p(-height) >= z * z / 2 + d - d * v + d * math.log(v):
        return math.nan
    return math.log(d * v) + (math.log1p(-power) / concentration if concentration < 1 else 0)


def _slope(np: ModuleType, weight: Callable[[Any], Any], log_of: Callable[[Any], Any], at: float) -> float:
    """The integral of (log - its mean) weight below `at`, over the weight there: weights as logarithms, in a
    coordinate in which they fall on both sides; by Gauss and Legendre, 400 places on each.
    """
    places, parts = np.polynomial.legendre.leggauss(400)
    below, above = (at + 60 * (places + side) for side in (-1, 1))
    left, right = (np.exp(weight(side) - weight(at)) * parts * 60 for side in (below, above))
    mean = ((log_of(below) * left).sum() + (log_of(above) * right).sum()) / (left.sum() + right.sum())
    return float(((log_of(below) - mean) * left).sum())


def gamma_slope(np: ModuleType, a: float, z: float) -> float:
    """How a gamma draw moves with its concentration a: in the coordinate log t."""
    return -z * _slope(np, lambda u: a * u - np.exp(u), lambda u: u, math.log(z))


def beta_slope(np: ModuleType, z: float, a: float, b: float) -> float:
    """How a beta draw moves with its first concentration a, over 1 - z: in the coordinate of log odds."""

    def weight(u: Any) -> Any:
        return a * u - (a + b) * np.logaddexp(0, u)

    return -z * _slope(np, weight, lambda u: u - np.logaddexp(0, u), math.log(z / (1 - z)))
