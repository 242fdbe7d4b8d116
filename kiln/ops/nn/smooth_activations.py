"""Smooth activations: composites of pointwise ops, each one kernel forward and one backward.

float16 and bfloat16 are computed in float32 and rounded once. Every `where` guards its branches from the
inside: the branch not taken sees a harmless argument, so that no 0 * inf arises in a derivative.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.arithmetic import where
from kiln.ops.elementwise.elementary import abs, exp, expm1, float_function, log1p, sigmoid, tanh
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.views.core_views import slice_
from kiln.scalars import normal
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import into
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Number, Sample, Structure, Tensor, composite

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def samples_of(*numbers: float, low: float = -3.0, high: float = 3.0) -> Any:
    """Two calls: with the defaults, and with other numbers."""
    return lambda rng, t: [
        Sample((d.array(rng, (3, 5), t, low, high),)),
        Sample((d.array(rng, (37,), t, low, high), *numbers)),
    ]


def slope_samples(rng: Any, dtype: str) -> list[Any]:
    return [Sample((d.array(rng, (3, 5), dtype),)), Sample((d.array(rng, (37,), dtype), 0.3))]


def not_floats(name: str, *numbers: float) -> Any:
    """The failures of an activation of floats."""
    return d.failures(
        ((d.Zeros(2, dtype="int64"), *numbers), {}, NotImplementedError, "not implemented for 'Long'"),
    )


@composite(
    samples=d.unary(),
    reference=d.reference(lambda np, x: x / (1 + np.exp(-x))),
    method=False,
    inplace=True,
    tests=d.Tests(kinks=lambda np: (np.array([-800.0, 0.0, 800.0]),)),
)
def silu(input: Tensor) -> Any:
    """`input * sigmoid(input)`; floats. RuntimeError for other dtypes.

    >>> kiln.nn.functional.silu(kiln.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7311])
    """
    x = floating(input, "silu_cpu")
    return narrow(x * sigmoid(x), input.dtype)


def _share_below(np: ModuleType, x: Any) -> Any:
    return 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def _gelu(np: ModuleType, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return (x * _share_below(np, x)).astype(x.dtype)


def _gelu_slope(np: ModuleType, x: Any) -> Any:
    return (_share_below(np, x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)).astype(x.dtype)


gelu_slope = float_function(
    "gelu_slope",
    normal.gelu_slope,
    lambda g, input: g * ((2 - input * input) * (normal.DENSITY * exp(-0.5 * (input * input)))),
    d.reference(_gelu_slope),
    d.unary(),
    "The derivative of `gelu`.",
    dtypes="float",
    public=False,
    inplace=False,
)


gelu_exact = float_function(
    "gelu_exact",
    normal.gelu,
    lambda g, input: g * gelu_slope(input),
    d.reference(_gelu),
    d.unary(),
    "`gelu` without a choice.",
    dtypes="float",
    public=False,
    inplace=False,
)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (37,), t),), {"approximate": "tanh"}),
    ),
    reference=d.reference(_gelu),
    method=False,
    failures=d.failures(((d.Zeros(2),), {"approximate": "x"}, RuntimeError, "approximate argument must be")),
)
def gelu(input: Tensor, approximate: Structure = "none") -> Any:
    """`input` times the normal distribution's share below it, exactly ("none") or by a formula with tanh
    ("tanh").

    Floats. RuntimeError for other dtypes or another `approximate`.

    >>> kiln.nn.functional.gelu(kiln.tensor([0.0, 1.0]))
    tensor([0.0000, 0.8413])
    """
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    x = floating(input, "GeluKernelImpl")
    if approximate == "none":
        result = gelu_exact(x)
    else:
        inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
        result = 0.5 * x * (1 + tanh(inner))
    return narrow(result, input.dtype)


def decaying(x: Tensor) -> Tensor:
    """exp(x) - 1, whose slope does not change at 0: there elu and its relatives are bent, and their second
    derivative is 0 in PyTorch.
    """
    return where(comparison.eq(x, 0), x, expm1(x))


@composite(
    samples=slope_samples,
    reference=d.reference(lambda np, x, a=1.0: np.where(x > 0, x, a * np.expm1(x)).astype(x.dtype)),
    method=False,
    inplace=True,
    tests=d.Tests(kinks=lambda np: (np.array([-800.0, 0.0, 800.0]),)),
)
def elu(input: Tensor, alpha: Number = 1.0) -> Any:
    """`input` where positive, else `alpha * (exp(input) - 1)`; floats. RuntimeError for other dtypes.

    >>> kiln.nn.functional.elu(kiln.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """
    x = floating(input, "elu_cpu")
    positive = x > 0
    return narrow(where(positive, x, alpha * decaying(where(positive, 0, x))), input.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (37,), t, -9, 9), 2.0, 5.0), {}),
    ),
    reference=d.reference(
        lambda np, x, beta=1.0, threshold=20.0: np.where(
            x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta
        ).astype(x.dtype)
    ),
    method=False,
    tests=d.Tests(kinks=lambda np: (np.array([-800.0, 0.0, 20.0, 800.0]),)),
)
def softplus(input: Tensor, beta: Number = 1.0, threshold: Number = 20.0) -> Any:
    """`log(1 + exp(beta * input)) / beta`, and `input` itself where `beta * input > threshold`; floats.

    RuntimeError for other dtypes.

    >>> kiln.nn.functional.softplus(kiln.tensor([0.0, 30.0]))
    tensor([ 0.6931, 30.0000])
    """
    x = floating(input, "softplus_cpu")
    scaled = x * beta
    linear = scaled > threshold
    return narrow(where(linear, x, log1p(exp(where(linear, 0, scaled))) / beta), input.dtype)


@composite(
    samples=d.unary(),
    reference=d.reference(lambda np, x: -np.log1p(np.exp(-x))),
    method=False,
    tests=d.Tests(kinks=lambda np: (np.array([-800.0, 0.0, 800.0]),)),
)
def logsigmoid(input: Tensor) -> Any:
    """`log(sigmoid(input))`, finite wherever `input` is; floats. RuntimeError for other dtypes.

    >>> kiln.nn.functional.logsigmoid(kiln.tensor([0.0, -100.0]))
    tensor([  -0.6931, -100.0000])
    """
    x = floating(input, "log_sigmoid_forward_cpu")
    negative = x < 0
    return narrow(where(negative, x, 0) - log1p(exp(where(negative, x, -x))), input.dtype)


def _exponential(x: Tensor, alpha: Any) -> Tensor:
    """x where positive, else alpha * (exp(x / alpha) - 1)."""
    positive = x > 0
    return where(positive, x, alpha * decaying(where(positive, 0, x) / alpha))


@composite(
    samples=samples_of(),
    reference=d.reference(lambda np, x: x * np.tanh(np.logaddexp(0, x)).astype(x.dtype)),
    failures=not_floats("mish"),
    method=False,
    inplace=True,
)
def mish(input: Tensor) -> Any:
    """`input * tanh(log(1 + exp(input)))`; floats. NotImplementedError for other dtypes.

    >>> kiln.nn.functional.mish(kiln.tensor([0.0, 1.0]))
    tensor([0.0000, 0.8651])
    """
    x = floating(input, "mish_cpu")
    large = x > 20
    return narrow(x * tanh(where(large, x, log1p(exp(where(large, 0, x))))), input.dtype)


@composite(
    samples=samples_of(),
    reference=d.reference(
        lambda np, x: (SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x))).astype(x.dtype)
    ),
    failures=not_floats("selu"),
    method=False,
    inplace=True,
)
def selu(input: Tensor) -> Any:
    """1.0507 * `input` where positive, else 1.7581 * (exp(input) - 1); floats. NotImplementedError for other
    dtypes.

    >>> kiln.selu(kiln.tensor([-1.0, 2.0]))
    tensor([-1.1113,  2.1014])
    """
    x = floating(input, "elu_cpu")
    positive = x > 0
    low = SELU_SCALE * SELU_ALPHA * decaying(where(positive, 0, x))
    return narrow(where(positive, SELU_SCALE * x, low), input.dtype)


@composite(
    samples=samples_of(2.0),
    reference=d.reference(
        lambda np, x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x / alpha)).astype(x.dtype)
    ),
    failures=not_floats("exponential_unit"),
    public=False,
)
def exponential_unit(input: Tensor, alpha: Number = 1.0) -> Any:
    """`celu` for an alpha that is not 0."""
    return narrow(_exponential(floating(input, "elu_cpu"), alpha), input.dtype)


@public(
    "celu",
    layer=True,
    method=False,
    inplace=True,
    samples=samples_of(2.0),
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2), 0.0), {}, RuntimeError, "alpha cannot be 0"),
        ((d.Zeros(2, dtype="int64"),), {}, NotImplementedError, "not implemented for 'Long'"),
    ),
)
def celu(input: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """`input` where positive, else `alpha * (exp(input / alpha) - 1)`; floats. RuntimeError if `alpha` is 0.

    >>> kiln.celu(kiln.tensor([-1.0, 2.0]), 2.0)
    tensor([-0.7869,  2.0000])
    """
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return exponential_unit.handle(input, alpha, **into(out))


def _outside(rng: Any, t: str) -> list[Any]:
    """Floats from which tanh is well apart: PyTorch rounds it to the dtype before it subtracts."""
    x = d.array(rng, (3, 5), t, 1.5, 3)
    return [Sample((x,)), Sample((-x[0],))]


@composite(
    samples=_outside,
    reference=d.reference(lambda np, x: x - np.tanh(x)),
    failures=d.failures(((d.Zeros(2, dtype="bool"),), {}, RuntimeError, "bool has no subtraction")),
    method=False,
    tests=d.Tests(keeps_less="the inner function's value"),
)
def tanhshrink(input: Tensor) -> Any:
    """`input - tanh(input)`; integers give the default float dtype. RuntimeError for bool.

    >>> kiln.nn.functional.tanhshrink(kiln.tensor([0.0, 2.0]))
    tensor([0.0000, 1.0360])
    """
    if input.dtype == "bool":
        raise RuntimeError("tanhshrink: bool has no subtraction; convert it first")
    x = wide(input)
    y = x - tanh(x)
    return narrow(y, input.dtype) if input.dtype in kinds.FLOATS else y


@composite(
    samples=samples_of(),
    reference=d.reference(lambda np, x: x / (1 + np.abs(x))),
    failures=d.failures(
        ((d.Zeros(2, dtype="bool"),), {}, NotImplementedError, "not implemented for 'Bool'"),
    ),
    method=False,
)
def softsign(input: Tensor) -> Any:
    """`input / (1 + |input|)`; integers give the default float dtype. NotImplementedError for bool.

    >>> kiln.nn.functional.softsign(kiln.tensor([-1.0, 3.0]))
    tensor([-0.5000,  0.7500])
    """
    if input.dtype == "bool":
        raise NotImplementedError("\"abs_cpu\" not implemented for 'Bool'")
    x = wide(input)
    y = x / (1 + abs(x))
    return narrow(y, input.dtype) if input.dtype in kinds.FLOATS else y


@composite(
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (3, 5), t)), {})),
    reference=d.reference(lambda np, x, y: x / (1 + np.exp(-y))),
    public=False,
)
def gated(input: Tensor, gate: Tensor) -> Any:
    """`input * sigmoid(gate)`: what `glu` is made of."""
    return narrow(floating(input, "glu_cpu") * sigmoid(wide(gate)), input.dtype)


@public(
    "glu",
    layer=True,
    method=False,
    samples=lambda rng, t: [Sample((d.array(rng, (3, 4), t),)), Sample((d.array(rng, (2, 3), t), 0))],
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(3),), {}, RuntimeError, "Halving dimension must be even"),
        ((d.Zeros(),), {}, RuntimeError, "glu does not support scalars because halving size must be even"),
        ((d.Zeros(2), 1), {}, IndexError, "Dimension out of range"),
    ),
)
def glu(input: Any, dim: int = -1) -> Any:
    """The first half of `input` along `dim` times the sigmoid of the second; floats. RuntimeError for an odd
    size, IndexError for a dim out of range.

    >>> kiln.nn.functional.glu(kiln.tensor([2.0, 4.0, 0.0, 0.0]))
    tensor([1., 2.])
    """
    if input.ndim == 0:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    dim = normalize_dim(dim, input.ndim, "glu")
    half, odd = divmod(input.shape[dim], 2)
    if odd:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {input.shape[dim]}")
    return gated(slice_(input, dim, (0, half, 1)), slice_(input, dim, (half, half, 1)))
