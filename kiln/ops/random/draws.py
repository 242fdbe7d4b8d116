"""Random numbers from counters: seed and position give the value, whoever computes it and in which order.

An op takes (seed, position); element i of its result is a function of (seed, position + i) alone. The public
functions (`sampling`, `distributions`, `dropout`) reserve the pair from a generator at the line of the call,
by an amount that depends on op and size only.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from kiln.ops.creation.constants import iota
from kiln.ops.elementwise.arithmetic import convert, maximum, where
from kiln.ops.elementwise.elementary import cos, exp, log, log1p, sin
from kiln.ops.elementwise.precision import floating, narrow
from kiln.ops.random import references
from kiln.ops.views.core_views import reshape
from kiln.scalars import philox, scalar
from kiln.table import drawn as d
from kiln.table.arguments import numel
from kiln.table.kinds import COMPUTE
from kiln.table.record import Number, Operand, Sample, Sizes, Structure, Tensor, composite, pointwise


def _counters(count: int, rng: Any) -> Any:
    return rng.integers(0, 2**40, (count,))


def _uniform(position: Any, seed: Any, type: str) -> Any:
    words = philox.philox(seed, position)
    return philox.uniform_f64(words[0], words[1]) if type == "f64" else philox.uniform_f32(words[0])


def _open(position: Any, seed: Any, type: str) -> Any:
    """A uniform float strictly between 0 and 1, where its logarithm is finite and not 0."""
    words = philox.philox(seed, position)
    if type == "f64":
        joined = scalar.convert(philox.join(words[0], words[1]) >> 12, "i64")
        return scalar.fma(scalar.convert(joined, "f64"), 2.0**-52, 2.0**-53)
    return scalar.fma(scalar.convert(scalar.convert(words[0] >> 9, "i32"), "f32"), 2.0**-23, 2.0**-24)


def _normal(position: Any, seed: Any, type: str) -> Any:
    words = philox.philox(seed, position)
    return philox.normal_f64(words)[0] if type == "f64" else philox.normal_f32(words[0], words[1])[0]


def _below(position: Any, seed: Any, count: Any) -> Any:
    """The high product of 63 random bits and count, as a remainder: 0 <= it < count."""
    words = philox.philox(seed, position)
    wide = (scalar.convert(words[0], "u64") << 32) | scalar.convert(words[1], "u64")
    limit = scalar.convert(count, "u64")
    return scalar.convert(scalar.select(limit.eq(0), 0, scalar.Scalar("rem", (wide, limit), "u64")), "i64")


_RANDOM: dict[str, Any] = {"differentiable": False, "public": False}


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((_counters(50, rng), 7, t))],
    reference=d.reference(lambda np, *args: references.uniform(np, *args).astype(d.held(args[-1]))),
    **_RANDOM,
)
def draw_uniform(position: Operand, seed: Operand, dtype: Structure) -> Any:
    """A float in [0, 1) for every int64 position, broadcast.

    >>> bool((kiln.rand(3) < 1).all())
    True
    """
    return _uniform(position, seed, COMPUTE[dtype])


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((_counters(50, rng), 7, t))],
    reference=d.reference(lambda np, *args: references.between(np, *args).astype(d.held(args[-1]))),
    **_RANDOM,
)
def draw_open(position: Operand, seed: Operand, dtype: Structure) -> Any:
    """A float strictly between 0 and 1 for every int64 position, broadcast.

    >>> bool((kiln.zeros(3).exponential_() > 0).all())
    True
    """
    return _open(position, seed, COMPUTE[dtype])


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((_counters(50, rng), 7, t))],
    reference=d.reference(lambda np, *args: references.normal(np, *args).astype(d.held(args[-1]))),
    **_RANDOM,
)
def draw_normal(position: Operand, seed: Operand, dtype: Structure) -> Any:
    """A normally distributed float for every int64 position, broadcast.

    >>> kiln.randn(3).shape
    kiln.Size([3])
    """
    return _normal(position, seed, COMPUTE[dtype])


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((_counters(50, rng), 7, 10, "int64"))],
    dtypes="integral",
    reference=d.reference(lambda np, x, seed, n, t: references.below(np, x, seed, n)),
    **_RANDOM,
)
def draw_below(position: Operand, seed: Operand, count: Operand, dtype: Structure) -> Any:
    """An integer in [0, count) for every int64 position, broadcast; 0 if count is 0.

    >>> kiln.randint(0, 1, (2,))
    tensor([0, 0])
    """
    return _below(position, seed, count)


def places(position: Any, sizes: tuple[Any, ...]) -> Any:
    """position, position + 1, ... for the elements of `sizes` in order."""
    count = numel(sizes)
    return position + position.graph.add(iota, (), ((count,), 0))


def width(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def shaped(flat: Any, sizes: tuple[Any, ...]) -> Any:
    return flat if len(sizes) == 1 else reshape(flat, sizes)


def _draws(op: Any, *extra: Any) -> Any:
    """Samples and reference of a composite over positions 0, 1, ..."""

    def of_numpy(np: ModuleType, *args: Any) -> Any:
        *numbers, position, seed, sizes, dtype = args
        flat = op.reference(
            position + np.arange(np.prod(sizes, dtype=int)),
            seed,
            *((numbers[1] - numbers[0],) if op is draw_below else ()),
            dtype,
        )
        if op is draw_below:
            return (flat + numbers[0]).reshape(sizes).astype(d.held(dtype))
        if dtype == "float16" and op is draw_uniform:
            flat = np.floor(flat.astype("float32") * 2048) / 2048
        first, second = np.asarray(numbers, flat.dtype)
        low, span = (first, second - first) if op is draw_uniform else (first, second)
        return (flat * span + low).reshape(sizes)

    return {"samples": lambda rng, t: [Sample((*extra, 100, 7, (3, 5), t)), Sample((*extra, 0, 7, (), t))],
            "reference": d.reference(of_numpy), **_RANDOM}  # fmt: skip


# how many bits of a uniform number a narrow dtype holds, so that rounding never makes it 1
_BITS = {"float16": 11, "bfloat16": 8}


@composite(**_draws(draw_uniform, -1.0, 3.0))
def uniform_values(
    low: Number, high: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """low + (high - low) * u for uniform u in [0, 1), rounded to a value below high.

    >>> bool((kiln.zeros(3).uniform_(2, 3) >= 2).all())
    True
    """
    u = draw_uniform(places(position, sizes), seed, width(dtype))
    if dtype in _BITS:
        steps = 2.0 ** _BITS[dtype]
        u = convert(convert(u * steps, "int32"), "float32") * (1 / steps)
    values = narrow(u * (high - low) + low, dtype)
    return shaped(where(values < high, values, low), sizes)


@composite(**_draws(draw_normal, 1.5, 0.5))
def normal_values(
    mean: Number, std: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """mean + std * z for standard normal z.

    >>> kiln.zeros(3).normal_(0, 2).shape
    kiln.Size([3])
    """
    z = draw_normal(places(position, sizes), seed, width(dtype))
    return shaped(narrow(z * std + mean, dtype), sizes)


@composite(**{**_draws(draw_below, 2, 10), "dtypes": "numeric"})
def integer_values(
    low: Number, high: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """low + a random integer below high - low.

    >>> kiln.randint(5, 6, (2,))
    tensor([5, 5])
    """
    values = draw_below(places(position, sizes), seed, high - low, "int64") + low
    return shaped(narrow(values, dtype), sizes)


def _bernoulli(np: ModuleType, probability: Any, position: Any, seed: Any) -> Any:
    u = draw_uniform.reference(position + np.arange(probability.size), seed, "float64")  # type: ignore[misc]
    return (u.reshape(probability.shape) < probability).astype(probability.dtype)


@composite(
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t, 0, 1), 100, 7))],
    reference=d.reference(_bernoulli),
    **_RANDOM,
)
def bernoulli_values(input: Tensor, position: Number, seed: Number) -> Any:
    """1 with the probability each element of `input` states, else 0.

    >>> kiln.bernoulli(kiln.ones(2))
    tensor([1., 1.])
    """
    x = floating(input, "bernoulli_tensor_cpu_p_")
    u = shaped(draw_uniform(places(position, tuple(x.shape)), seed, "float64"), tuple(x.shape))
    return convert(u < x, input.dtype)


@composite(
    samples=lambda rng, t: [Sample((0.25, 100, 7, (3, 5), t))],
    reference=d.reference(
        lambda np, p, position, seed, sizes, dtype: (
            (
                draw_uniform.reference(position + np.arange(15), seed, "float64") < p  # type: ignore[misc]
            )
            .reshape(sizes)
            .astype(d.held(dtype))
        )
    ),
    **{**_RANDOM, "dtypes": "all"},
)
def chance_values(p: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure) -> Any:
    """1 with probability p, else 0, of any dtype.

    >>> kiln.zeros(2).bernoulli_(1.0)
    tensor([1., 1.])
    """
    return shaped(convert(draw_uniform(places(position, sizes), seed, "float64") < p, dtype), sizes)


def _exponential(np: ModuleType, rate: Any, position: Any, seed: Any, sizes: Any, dtype: str) -> Any:
    u = draw_open.reference(position + np.arange(np.prod(sizes, dtype=int)), seed, dtype)  # type: ignore[misc]
    return np.maximum(-np.log(u.astype("float64")) / rate, 2.0**-24).astype(d.held(dtype)).reshape(sizes)


@composite(
    samples=lambda rng, t: [Sample((2.0, 100, 7, (3, 5), t)), Sample((0.5, 0, 7, (), t))],
    reference=d.reference(_exponential),
    **_RANDOM,
)
def exponential_values(rate: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure) -> Any:
    """Exponentially distributed floats of a rate: finite, and above 0 where the dtype holds them.

    >>> bool((kiln.zeros(3).exponential_() > 0).all())
    True
    """
    e = -log(draw_open(places(position, sizes), seed, width(dtype))) / rate
    return shaped(narrow(maximum(e, 2.0**-24) if dtype == "float16" else e, dtype), sizes)


@composite(
    samples=lambda rng, t: [Sample((0.0, 0.25, 100, 7, (3, 5), t))],
    reference=d.reference(
        lambda np, mean, std, position, seed, sizes, dtype: np.exp(
            draw_normal.reference(position + np.arange(15), seed, dtype) * std + mean  # type: ignore[misc]
        ).reshape(sizes)
    ),
    **_RANDOM,
)
def log_normal_values(
    mean: Number, std: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """The exponential of mean + std * z for standard normal z.

    >>> bool((kiln.zeros(3).log_normal_() > 0).all())
    True
    """
    z = draw_normal(places(position, sizes), seed, width(dtype))
    return shaped(narrow(exp(z * std + mean), dtype), sizes)


def _cauchy(
    np: ModuleType, median: float, sigma: float, position: Any, seed: Any, sizes: Any, dtype: str
) -> Any:
    u = draw_open.reference(position + np.arange(np.prod(sizes, dtype=int)), seed, "float64")  # type: ignore[misc]
    return (median + sigma * np.tan(np.pi * (u - 0.5))).reshape(sizes).astype(d.held(dtype))


@composite(
    samples=lambda rng, t: [Sample((1.0, 0.5, 100, 7, (3, 5), t))],
    reference=d.reference(_cauchy),
    **_RANDOM,
)
def cauchy_values(
    median: Number, sigma: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """median + sigma * tan(pi (u - 1/2)) for uniform u in (0, 1), computed in float64: finite there.

    >>> kiln.zeros(3).cauchy_().shape
    kiln.Size([3])
    """
    angle = (draw_open(places(position, sizes), seed, "float64") - 0.5) * math.pi
    return shaped(narrow(sin(angle) / cos(angle) * sigma + median, dtype), sizes)


@composite(
    samples=lambda rng, t: [Sample((0.25, 100, 7, (3, 5), t))],
    reference=d.reference(
        lambda np, p, position, seed, sizes, dtype: (
            np.ceil(
                np.log(draw_open.reference(position + np.arange(15), seed, "float64"))  # type: ignore[misc]
                / np.log1p(-p)
            )
            .reshape(sizes)
            .astype(d.held(dtype))
        )
    ),
    **{**_RANDOM, "dtypes": "numeric"},
)
def geometric_values(p: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure) -> Any:
    """How many trials of chance p until one succeeds, 1 or more.

    >>> bool((kiln.zeros(3).geometric_(0.5) >= 1).all())
    True
    """
    trials = log(draw_open(places(position, sizes), seed, "float64")) / log1p(-convert(p, "float64"))
    below = convert(trials, "int64")
    return shaped(narrow(where(convert(below, "float64") < trials, below + 1, below), dtype), sizes)
