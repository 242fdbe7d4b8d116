"""Activations and small formulas: composites of pointwise ops, each one kernel forward and one backward.

float16 and bfloat16 are computed in float32 and rounded once. Every `where` guards its branches from the
inside: the branch not taken sees a harmless argument, so that no 0 * inf arises in a derivative.
"""

from __future__ import annotations

import math
from typing import Any

from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.arithmetic import by_steps, convert, where
from kiln.ops.elementwise.unary import abs, exp, expm1, float_function, log1p, rsqrt, sigmoid, sqrt, tanh
from kiln.scalars import normal, scalar
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import type_name
from kiln.table.record import Number, Operand, Sample, Structure, Tensor, composite, pointwise


def wide(x: Any) -> Any:
    """A float16 or bfloat16 value of a body as float32; others as they are."""
    return convert(x, "float32") if x is not None and not x.weak and x.dtype in ("float16", "bfloat16") else x


def narrow(x: Any, dtype: str) -> Any:
    """x as `dtype`, at the end of a body that computed wide."""
    return x if x.dtype == dtype else convert(x, dtype)


def floating(x: Any, op: str) -> Any:
    """x wide, or PyTorch's error for an array that is not of floats."""
    if x.dtype not in kinds.FLOATS:
        raise NotImplementedError(f"\"{op}\" not implemented for '{type_name(x.dtype)}'")
    return wide(x)


@pointwise(
    samples=d.unary(),
    reference=d.reference(lambda np, x: x * x * x),
    dtypes="numeric",
    public=False,
)
def cube(input: Operand) -> Any:
    """`input * input * input`: the third power.

    >>> kiln.pow(kiln.tensor([2.0]), 3)
    tensor([8.])
    """
    return input * input * input


@cube.derivative
def _(g: Any, input: Any) -> Any:
    return g * (3 * (input * input))


@pointwise(
    samples=d.unary(0.5, 3),
    reference=d.reference(lambda np, x: 1 / (x * x)),
    public=False,
)
def inverse_square(input: Operand) -> Any:
    """`1 / (input * input)`: the power -2 of floats.

    >>> kiln.pow(kiln.tensor([2.0]), -2)
    tensor([0.2500])
    """
    return 1 / (input * input)


@inverse_square.derivative
def _(g: Any, input: Any) -> Any:
    return g * (-2 * (1 / (input * input) / input))


def _power(name: str, exponent: float, body: Any, gradient: Any) -> Any:
    """A power of floats that is no product. Backward reads the input, not the result: programs write to that
    (`(x ** 0.5).add_(eps)`).
    """

    def function(input: Operand) -> Any:
        return body(input)

    function.__name__ = name
    function.__doc__ = f"""The power {exponent:g} of floats.

    >>> kiln.pow(kiln.tensor([4.0]), {exponent:g}).shape
    kiln.Size([1])
    """
    op = pointwise(
        samples=d.unary(0.5, 3),
        reference=d.reference(lambda np, x: x**exponent),
        dtypes="float",
        public=False,
    )(function)
    op.derivative(gradient)
    return op


def _inverse_half_gradient(g: Any, input: Any) -> Any:
    y = rsqrt(input)
    return -0.5 * g * (y * y * y)


def _inverse_gradient(g: Any, input: Any) -> Any:
    y = 1 / input
    return -g * (y * y)


half_power = _power("half_power", 0.5, scalar.sqrt, lambda g, input: g / (2 * sqrt(input)))
inverse_half_power = _power("inverse_half_power", -0.5, lambda x: 1 / scalar.sqrt(x), _inverse_half_gradient)
inverse_power = _power("inverse_power", -1, lambda x: 1 / x, _inverse_gradient)


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


def _share_below(np: Any, x: Any) -> Any:
    return 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def _gelu(np: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return (x * _share_below(np, x)).astype(x.dtype)


def _gelu_slope(np: Any, x: Any) -> Any:
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
    onnx="Gelu",
    failures=d.failures(((d.Zeros(2),), {"approximate": "x"}, RuntimeError, "approximate argument must be")),
)
def gelu(input: Tensor, approximate: Structure = "none") -> Any:
    """`input` times the normal distribution's share below it, exactly ("none") or by a formula with tanh
    ("tanh").

    Floats. RuntimeError for other dtypes or another `approximate`.

    >>> kiln.nn.functional.gelu(kiln.tensor([0.0, 1.0]))
    tensor([0.0000, 0.8413])
    """
    x = floating(input, "GeluKernelImpl")
    if approximate == "none":
        result = gelu_exact(x)
    elif approximate == "tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
        result = 0.5 * x * (1 + tanh(inner))
    else:
        raise RuntimeError("approximate argument must be either none or tanh.")
    return narrow(result, input.dtype)


def _slope_samples(rng: Any, dtype: str) -> list[Any]:
    return [Sample((d.array(rng, (3, 5), dtype),)), Sample((d.array(rng, (37,), dtype), 0.3))]


@composite(
    samples=_slope_samples,
    reference=d.reference(lambda np, x, s=0.01: np.where(x > 0, x, x * x.dtype.type(s))),
    method=False,
    inplace=True,
    onnx="LeakyRelu",
    tests=d.Tests(kinks=lambda np: (np.array([-1.0, 0.0, 1.0]),)),
)
def leaky_relu(input: Tensor, negative_slope: Number = 0.01) -> Any:
    """`input` where positive, else `negative_slope * input`; floats. RuntimeError for other dtypes.

    >>> kiln.nn.functional.leaky_relu(kiln.tensor([-1.0, 2.0]))
    tensor([-0.0100,  2.0000])
    """
    x = by_steps(floating(input, "leaky_relu_cpu"))
    return narrow(where(x > 0, x, x * negative_slope), input.dtype)


def decaying(x: Any) -> Any:
    """exp(x) - 1, whose slope does not change at 0: there elu and its relatives are bent, and their second
    derivative is 0 in PyTorch.
    """
    return where(comparison.eq(x, 0), x, expm1(x))


@composite(
    samples=_slope_samples,
    reference=d.reference(lambda np, x, a=1.0: np.where(x > 0, x, a * np.expm1(x)).astype(x.dtype)),
    method=False,
    inplace=True,
    onnx="Elu",
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
    onnx="Softplus",
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


def _three(rng: Any, dtype: str) -> Any:
    return tuple(d.array(rng, (3, 5), dtype, 0.5, 3) for _ in range(3)), {"value": 0.5}


def _operands(*values: Any) -> tuple[list[Any], str]:
    """Operands of a formula in their common dtype, wide, and the dtype of its result; True counts as 1."""
    dtype = kinds.result_type(values)
    numbers = [v + 0 if v.weak and v.dtype == "bool" else v for v in values]
    return [wide(v if v.dtype == dtype or v.weak else convert(v, dtype)) for v in numbers], dtype


@composite(
    samples=d.samples(_three),
    inplace=True,
    reference=d.reference(lambda np, x, a, b, value=1: x + x.dtype.type(value) * a * b),
)
def addcmul(input: Tensor, tensor1: Operand, tensor2: Operand, value: Number = 1) -> Any:
    """`input + value * tensor1 * tensor2`, broadcast.

    >>> kiln.addcmul(kiln.tensor([1.0]), kiln.tensor([2.0]), kiln.tensor([3.0]), value=10)
    tensor([61.])
    """
    (x, a, b), dtype = _operands(input, tensor1, tensor2)
    return narrow(x + value * a * b, dtype)


@composite(
    samples=d.samples(_three),
    inplace=True,
    reference=d.reference(lambda np, x, a, b, value=1: x + x.dtype.type(value) * a / b),
)
def addcdiv(input: Tensor, tensor1: Operand, tensor2: Operand, value: Number = 1) -> Any:
    """`input + value * tensor1 / tensor2`, broadcast; floats. RuntimeError for integers.

    >>> kiln.addcdiv(kiln.tensor([1.0]), kiln.tensor([3.0]), kiln.tensor([2.0]))
    tensor([2.5000])
    """
    (x, a, b), dtype = _operands(input, tensor1, tensor2)
    if dtype not in kinds.FLOATS:
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported; use (input + value * tensor1 / tensor2)"
        )
    return narrow(x + value * a / b, dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t), 0.3), {}),
        lambda rng, t: (tuple(d.array(rng, (4,), t, 0, 1) for _ in range(3)), {}),
    ),
    reference=d.reference(lambda np, a, b, w: a + np.asarray(w, a.dtype) * (b - a)),
    inplace=True,
)
def lerp(input: Tensor, end: Operand, weight: Operand) -> Any:
    """The point `weight` of the way from `input` to `end`, broadcast; exact at both ends.

    >>> kiln.lerp(kiln.tensor([1.0]), kiln.tensor([3.0]), 0.5)
    tensor([2.])
    """
    (start, stop, w), dtype = _operands(input, end, weight)
    span = stop - start
    return narrow(where(abs(w) < 0.5, start + w * span, stop - span * (1 - w)), dtype)
