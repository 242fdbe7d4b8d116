"""Random numbers that need a search: Poisson and binomial counts, draws by weight, permutations.

Counts below a mean of 10 invert the distribution in one kernel. Above it candidates are kept or thrown away
(Hörmann, The transformed rejection method for generating Poisson random variables, and The generation of
binomial random variates, both 1993): round r of element i draws from stream r of its own counter, so that the
numbers do not depend on who else was thrown away.
"""

from __future__ import annotations

import math
from itertools import count as rounds
from types import ModuleType
from typing import Any

from kiln.errors import describe, message
from kiln.ops.creation.constants import check_options, chosen_dtype, int_or_size, settle, sizes_given
from kiln.ops.elementwise.arithmetic import convert, maximum, minimum, where
from kiln.ops.elementwise.elementary import abs as absolute
from kiln.ops.elementwise.elementary import log, sqrt
from kiln.ops.indexing.getitem import put
from kiln.ops.random import draws as r
from kiln.ops.random import references
from kiln.ops.random.generator import reserve
from kiln.ops.random.sampling import DIGITS, LIMITS, float_dtype, place_for
from kiln.ops.reductions.scans import cumsum
from kiln.ops.sorting.sorts import argsort, searchsorted, topk
from kiln.scalars import mathematics, philox, scalar
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, expect, recorder_here, run, type_name
from kiln.table.callables import draws
from kiln.table.public import public
from kiln.table.record import Number, Operand, Sample, Structure, Tensor, composite, pointwise

LARGE = 10.0  # means from here on are drawn by rejection
STEPS = 64  # of the inversion: a count of more has probability below 1e-20

_DRAWN: dict[str, Any] = {"differentiable": False, "public": False}


def _stream(position: Any, seed: Any, stream: Any) -> Any:
    words = philox.philox(seed, position, stream)
    return philox.uniform_f64(words[0], words[1])


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((rng.integers(0, 2**40, (50,)), 7, 3, "float64"))],
    reference=d.reference(lambda np, x, seed, stream, t: references.uniform(np, x, seed, t, stream)),
    **{**_DRAWN, "dtypes": "float64"},
)
def draw_stream(position: Operand, seed: Operand, stream: Operand, dtype: Structure) -> Any:
    """A float64 in [0, 1) for every int64 position of a stream of its own.

    >>> kiln.poisson(kiln.full((2,), 1e3)).shape
    kiln.Size([2])
    """
    return _stream(position, seed, stream)


def _whole(x: Any) -> Any:
    """The largest whole float64 not above x; -1 for all x below 0."""
    return where(x < 0, -1.0, convert(convert(minimum(x, 2.0**62), "int64"), "float64"))


def _log_factorial(k: Any) -> Any:
    """log k! for float64 k >= 0: Stirling's series at k + 9, and what lies between by multiplication."""
    between = k + 1
    for step in range(2, 9):
        between = between * (k + step)
    x = k + 9
    square = 1 / (x * x)
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680)))) / x
    return (x - 0.5) * log(x) - x + 0.5 * math.log(2 * math.pi) + series - log(between)


def _poisson_candidate(rate: Any, u: Any, v: Any) -> Any:
    u = u - 0.5
    b = 2.53 * sqrt(rate) + 0.931
    a = 0.02483 * b - 0.059
    us = 0.5 - absolute(u)
    k = _whole((2 * a / us + b) * u + rate + 0.43)
    inside = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    height = log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b))
    fits = height <= k * log(rate) - rate - _log_factorial(maximum(k, 0.0))
    possible = (k >= 0) & ((us >= 0.013) | (v <= us))
    return where(inside | (possible & fits), k, -1.0)


def _binomial_candidate(n: Any, p: Any, u: Any, v: Any) -> Any:
    u = u - 0.5
    spread = sqrt(n * p * (1 - p))
    b = 2.53 * spread + 1.15
    a = 0.0248 * b + 0.01 * p - 0.0873
    us = 0.5 - absolute(u)
    k = _whole((2 * a / us + b) * u + n * p + 0.5)
    inside = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
    height = log(v * ((2.83 + 5.1 / b) * spread) / (a / (us * us) + b))
    mode, kept = _whole((n + 1) * p), maximum(minimum(k, n), 0.0)
    chance = (kept - mode) * log(p / (1 - p))
    for sign, x in ((1.0, mode), (1.0, n - mode), (-1.0, kept), (-1.0, n - kept)):
        chance = chance + sign * _log_factorial(x)
    possible = (k >= 0) & (k <= n)
    return where(possible & (inside | (height <= chance)), k, -1.0)


def _uniforms(x: Any, position: Any, seed: Any, stream: Any) -> tuple[Any, Any]:
    """Two uniform arrays of x's shape for one round."""
    sizes = tuple(x.shape)
    flat = r.places(position, sizes)
    first, second = (draw_stream(flat, seed, stream * 2 + k, "float64") for k in (0, 1))
    return r.shaped(first, sizes), r.shaped(second, sizes)


def _round(candidate: Any, count: int) -> Any:
    """The reference of a round: its candidate, one element after another."""
    return d.reference(lambda np, *args: references.rounds(np, candidate, args[:count], *args[count:]))


@composite(
    samples=lambda rng, t: [Sample((d.array(rng, (30, 40), t, 10, 60), 100, 7, 1))],
    reference=_round(references.poisson, 1),
    **{**_DRAWN, "dtypes": "float64"},
)
def poisson_round(rate: Tensor, position: Number, seed: Number, stream: Number) -> Any:
    """One candidate for each Poisson count of mean `rate` >= 10, -1 where it was thrown away; float64.

    >>> kiln.poisson(kiln.full((2,), 1e3)).shape
    kiln.Size([2])
    """
    return _poisson_candidate(rate, *_uniforms(rate, position, seed, stream))


@composite(
    samples=lambda rng, t: [
        Sample((d.array(rng, (30, 40), t, 100, 200) // 1, d.array(rng, (30, 40), t, 0.2, 0.5), 100, 7, 1))
    ],
    reference=_round(references.binomial, 2),
    **{**_DRAWN, "dtypes": "float64"},
)
def binomial_round(count: Tensor, prob: Tensor, position: Number, seed: Number, stream: Number) -> Any:
    """One candidate for each binomial count of mean >= 10 and prob <= 1/2, -1 where it was thrown away.

    >>> kiln.binomial(kiln.full((2,), 100.0), kiln.full((2,), 0.5)).shape
    kiln.Size([2])
    """
    return _binomial_candidate(count, prob, *_uniforms(count, position, seed, stream))


def _poisson_inverse(np: ModuleType, u: Any, rate: Any) -> Any:
    chances = np.exp(-rate) * np.cumprod([np.ones_like(rate), *(rate / k for k in range(1, STEPS))], 0)
    return (u >= np.cumsum(chances, 0)).sum(0).astype("float64")


@pointwise(
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t, 0, 1), d.array(rng, (3, 5), t, 0, 10)))],
    reference=d.reference(_poisson_inverse),
    **{**_DRAWN, "dtypes": "float64"},
)
def poisson_inverse(u: Operand, rate: Operand) -> Any:
    """The Poisson count of mean `rate` < 10 below which the fraction u of all lies.

    >>> kiln.poisson(kiln.zeros(2))
    tensor([0., 0.])
    """
    chance = total = mathematics.exp(-rate)
    k = scalar.convert(u >= total, rate.type)
    for step in range(1, STEPS):
        chance = chance * (rate * (1 / step))
        total = total + chance
        k = k + scalar.convert(u >= total, rate.type)
    return k


def _binomial_inverse(np: ModuleType, u: Any, n: Any, p: Any) -> Any:
    chances = [(1 - p) ** n]
    for step in range(STEPS - 1):
        chances.append(chances[-1] * (n - step) / (step + 1) * p / (1 - p))
    return np.minimum((u >= np.cumsum(chances, 0)).sum(0), n)


@pointwise(
    samples=lambda rng, t: [
        Sample(
            (
                d.array(rng, (3, 5), t, 0, 1),
                d.array(rng, (3, 5), "int64", 0, 20).astype(t),
                d.array(rng, (3, 5), t, 0, 0.5),
            )
        )
    ],
    reference=d.reference(_binomial_inverse),
    **{**_DRAWN, "dtypes": "float64"},
)
def binomial_inverse(u: Operand, count: Operand, prob: Operand) -> Any:
    """The binomial count of mean below 10 and prob <= 1/2 below which the fraction u of all lies.

    >>> kiln.binomial(kiln.ones(2), kiln.zeros(2))
    tensor([0., 0.])
    """
    odds = prob / (1.0 - prob)
    chance = total = mathematics.exp(count * mathematics.log1p(-prob))
    k = scalar.convert(u >= total, u.type)
    for step in range(STEPS - 1):
        chance = chance * ((count - step) * (odds * (1 / (step + 1))))
        total = total + chance
        k = k + scalar.convert(u >= total, u.type)
    return scalar.select(k < count, k, count)


# Public functions


def _until_kept(result: Any, draw: Any) -> Any:
    """`result` with what is still -1 drawn in rounds 1, 2, ... until all is kept."""
    for number in rounds(1):
        if not bool((result < 0).any()):
            return result
        result = where(result < 0, draw(number), result)


@public("poisson", method=False, dtypes="float", differentiable=False)
@draws
def poisson(input: Any, generator: Any = None) -> Any:
    """A Poisson count for each mean in `input`, of its shape and float dtype.

    RuntimeError for a mean below 0 or NaN.

    >>> kiln.poisson(kiln.zeros(2))
    tensor([0., 0.])
    """
    name = float_dtype(None, input.dtype, "poisson_cpu")
    rate = convert(input.detach(), "float64")
    if not bool((rate >= 0).all()):
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    sizes = tuple(rate.shape)
    position, seed = reserve(sizes, generator)
    u = run(r.uniform_values, 0.0, 1.0, position, seed, sizes, "float64")
    result = where(rate < LARGE, poisson_inverse(u, rate), where(rate < math.inf, -1.0, rate))
    result = _until_kept(result, lambda stream: poisson_round(rate, position, seed, stream))
    return convert(result, name)


@public("binomial", method=False, dtypes="float", differentiable=False)
@draws
def binomial(count: Any, prob: Any, generator: Any = None) -> Any:
    """How many of `count` trials succeed with chance `prob`: floats of the shape both broadcast to.

    A chance is taken between 0 and 1, a count as whole and not below 0; NaN gives NaN. ValueError for a count
    or a chance that is not of floats, RuntimeError for another dtype of `prob`.

    >>> kiln.binomial(kiln.tensor([3.0, 5.0]), kiln.ones(2))
    tensor([3., 5.])
    """
    name = dtype_name(count.dtype)
    for what, given in (("count", name), ("prob", dtype_name(prob.dtype))):
        if given not in DIGITS:
            raise ValueError(
                f"binomial only supports floating-point dtypes for {what}, got: {type_name(given)}"
            )
    if dtype_name(prob.dtype) != name:
        came = type_name(dtype_name(prob.dtype))
        raise RuntimeError(f"Found dtype {came} but expected {type_name(name)}")
    n, p = (convert(x.detach(), "float64") for x in (count, prob))
    sizes = tuple((n + p).shape)
    n, p = maximum(n, 0.0).expand(sizes), minimum(maximum(p, 0.0), 1.0).expand(sizes)
    n = where(n < 2.0**53, _whole(n), n)
    least = minimum(p, 1 - p)
    position, seed = reserve(sizes, generator)
    u = run(r.uniform_values, 0.0, 1.0, position, seed, sizes, "float64")
    small = (n * least < LARGE) | ~(n < math.inf) | (p != p)
    result = where(small, binomial_inverse(u, n, least), -1.0)
    result = _until_kept(result, lambda stream: binomial_round(n, least, position, seed, stream))
    result = where(p > 0.5, n - result, result)
    return convert(where((n < math.inf) & (p == p), result, n * p), name)


def _weights(input: Any, num_samples: int, replacement: bool) -> None:
    """PyTorch's errors for weights that no draw follows."""
    if dtype_name(input.dtype) not in DIGITS:
        shown = type_name(dtype_name(input.dtype))
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {shown}")
    if input.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > input.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")

    def told() -> str:
        wrong = ""
        if recorder_here() is None:
            wrong = "entry < 0" if bool((input < 0).any()) else "entry = infinity or NaN"
            wrong = f" (encountering probability {wrong})"
        return "probability tensor contains either `inf`, `nan` or element < 0: invalid multinomial " + (
            f"distribution{wrong}"
        )

    expect((input >= 0) & (input < math.inf), RuntimeError, told)
    text = "invalid multinomial distribution (sum of probabilities <= 0)"
    expect((input > 0).any(-1), RuntimeError, text)


@public(
    "multinomial",
    differs="more than 2^24 weights are taken",
    samples=lambda rng, t: [
        Sample((d.array(rng, (3, 1), t, 0.5, 2), 2, True)),
        Sample((d.array(rng, (3, 1), t, 0.5, 2), 1)),
    ],
    dtypes="float",
    differentiable=False,
    reads=True,
    failures=d.failures(
        ((d.Zeros(2), 3), {}, RuntimeError, "without replacement"),
        ((d.Zeros(2), 1), {}, RuntimeError, "sum of probabilities"),
        ((d.Zeros(2, value=-1), 1), {}, RuntimeError, "element < 0"),
        ((d.Zeros(2, 2, 2), 1), {}, RuntimeError, "1 or 2 dim"),
    ),
)
@draws
def multinomial(
    input: Any, num_samples: int, replacement: bool = False, *, generator: Any = None, out: Any = None
) -> Any:
    """`num_samples` positions drawn from each row of weights, (n,) or (m, n), by their size: int64.

    RuntimeError for weights below 0, not finite, or all 0, and for more draws than weights without
    replacement.

    >>> kiln.multinomial(kiln.tensor([0.0, 1.0]), 2, replacement=True)
    tensor([1, 1])
    """
    _weights(input, num_samples, replacement)
    weights = convert(input.detach(), "float64")
    if replacement:
        sizes = (*weights.shape[:-1], num_samples)
        u = run(r.uniform_values, 0.0, 1.0, *reserve(sizes, generator), sizes, "float64")
        sums = cumsum(weights / weights.amax(-1, True), -1)
        total = sums[..., -1:]
        at = u * total
        result = searchsorted(sums, where(at < total, at, 0.0), right=True)
    else:  # the first of exponential waiting times, one for each weight
        sizes = tuple(weights.shape)
        wait = run(r.exponential_values, 1.0, *reserve(sizes, generator), sizes, "float64")
        result = topk(weights / wait, num_samples, -1).indices
    return result if out is None else put(out, result)


@public("randperm", method=False, dtypes="all", differentiable=False)
@draws
def randperm(
    n: int,
    *,
    generator: Any = None,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """The integers below n in random order. RuntimeError for a negative n, or one the dtype does not hold.

    >>> kiln.randperm(1)
    tensor([0])
    """
    if not hasattr(type(n), "__index__"):
        raise TypeError(message("randperm", "an int", describe(n)))
    (n,) = sizes_given((int_or_size(n),), "randperm")
    name = chosen_dtype(place_for(out, dtype), "int64")
    if name == "bool":
        raise NotImplementedError("\"randperm\" not implemented for 'Bool'")
    if n > (2 ** DIGITS[name] + 1 if name in DIGITS else LIMITS[name][1]):
        raise RuntimeError(f"n cannot be greater than what {name} holds exactly, got {n}")
    check_options("randperm", options)
    keys = run(r.integer_values, 0, 2**63 - 1, *reserve((n,), generator), (n,), "int64")
    result = argsort(keys)
    result = result if name == "int64" else convert(result, name)
    return settle(result if out is None else put(out, result), requires_grad, device, "randperm")
