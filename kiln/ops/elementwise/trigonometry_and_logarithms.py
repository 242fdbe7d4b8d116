"""Functions beyond those of `elementary`: trigonometric, hyperbolic, their inverses, logarithms.

Bounds of error are in NUMERICS.md. Integers and bool become the default float dtype first, except where
PyTorch has no such function of them.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import convert, larger, where
from kiln.ops.elementwise.comparison import eq, le, logical_and, unsupported
from kiln.ops.elementwise.elementary import DOC, cos, exp2, float_function, log, log1p, rsqrt, sigmoid
from kiln.ops.elementwise.public_arithmetic import pow
from kiln.scalars import hyperbolic, inverses, trigonometry
from kiln.scalars import mathematics as m
from kiln.scalars.scalar import INTS, Scalar, absolute, const, select
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, into, type_name
from kiln.table.public import alias, public
from kiln.table.record import Number, Op, Operand, Sample, Tensor, pointwise
from kiln.table.registry import forms


def _function(
    name: str, body: Any, gradient: Any, reference: Any, low: float, high: float, doc: str, onnx: str = ""
) -> Any:
    """A float function with samples in [low, high)."""
    samples = d.unary(low, high)
    return float_function(name, body, gradient, d.floats(reference), samples, doc, onnx, dtypes="float")


# Trigonometric functions and their inverses

tan = _function(
    "tan",
    trigonometry.tan,
    lambda g, y: g * (1 + y * y),
    "tan",
    -1.3,
    1.3,
    DOC.format("The tangent of `input` in radians", "tan", "0.0, 1.0", "0.0000, 1.5574"),
    "Tan",
)
asin = _function(
    "asin",
    inverses.asin,
    lambda g, input: g * rsqrt(1 - input * input),
    "arcsin",
    -0.9,
    0.9,
    DOC.format("The angle whose sine is `input`; NaN beyond 1", "asin", "0.0, 1.0", "0.0000, 1.5708"),
    "Asin",
)
acos = _function(
    "acos",
    inverses.acos,
    lambda g, input: -g * rsqrt(1 - input * input),
    "arccos",
    -0.9,
    0.9,
    DOC.format("The angle whose cosine is `input`; NaN beyond 1", "acos", "0.0, 1.0", "1.5708, 0.0000"),
    "Acos",
)
atan = _function(
    "atan",
    inverses.atan,
    lambda g, input: g / (1 + input * input),
    "arctan",
    -3,
    3,
    DOC.format("The angle whose tangent is `input`", "atan", "0.0, 1.0", "0.0000, 0.7854"),
    "Atan",
)


@pointwise(
    "float",
    samples=d.binary(),
    reference=d.reference(lambda np, y, x: np.arctan2(y, x)),
    failures=d.not_broadcastable,
    inplace=True,
)
def atan2(input: Tensor, other: Tensor) -> Any:
    """The angle in [-pi, pi] of the point (other, input), broadcast; integers and bool give the default float
    dtype.

    >>> kiln.atan2(kiln.tensor([1.0, 0.0]), kiln.tensor([1.0, -1.0]))
    tensor([0.7854, 3.1416])
    """
    return inverses.atan2(input, other)


@atan2.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    squares = input * input + other * other
    origin = eq(squares, 0)
    per = where(origin, 0, g / where(origin, 1, squares))
    return other * per, -input * per


# Hyperbolic functions and their inverses

sinh: Any = _function(
    "sinh",
    hyperbolic.sinh,
    lambda g, input: g * cosh(input),
    "sinh",
    -3,
    3,
    DOC.format("The hyperbolic sine", "sinh", "0.0, 1.0", "0.0000, 1.1752"),
    "Sinh",
)
cosh: Any = _function(
    "cosh",
    hyperbolic.cosh,
    lambda g, input: g * sinh(input),
    "cosh",
    -3,
    3,
    DOC.format("The hyperbolic cosine", "cosh", "0.0, 1.0", "1.0000, 1.5431"),
    "Cosh",
)
asinh = _function(
    "asinh",
    hyperbolic.asinh,
    lambda g, input: g * rsqrt(input * input + 1),
    "arcsinh",
    -3,
    3,
    DOC.format("The inverse hyperbolic sine", "asinh", "0.0, 1.0", "0.0000, 0.8814"),
    "Asinh",
)
acosh = _function(
    "acosh",
    hyperbolic.acosh,
    lambda g, input: g * rsqrt(input * input - 1),
    "arccosh",
    1.5,
    9,
    DOC.format("The inverse hyperbolic cosine; NaN below 1", "acosh", "1.0, 2.0", "0.0000, 1.3170"),
    "Acosh",
)
atanh = _function(
    "atanh",
    hyperbolic.atanh,
    lambda g, input: g / (1 - input * input),
    "arctanh",
    -0.9,
    0.9,
    DOC.format("The inverse hyperbolic tangent; NaN beyond 1", "atanh", "0.0, 0.5", "0.0000, 0.5493"),
    "Atanh",
)
for _of in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
    alias(f"arc{_of}", f"a{_of}", inplace=True)
alias("arctan2", "atan2", inplace=True)


# Logarithms, angles

log10 = _function(
    "log10",
    m.log10,
    lambda g, input: g / (input * 2.302585092994046),
    "log10",
    0.1,
    9,
    DOC.format("The logarithm to base 10", "log10", "1.0, 1000.0", "0., 3."),
)
deg2rad = _function(
    "deg2rad",
    lambda x: x * (math.pi / 180),
    lambda g: g * (math.pi / 180),
    "deg2rad",
    -200,
    200,
    DOC.format("Degrees as radians", "deg2rad", "180.0", "3.1416"),
)
rad2deg = _function(
    "rad2deg",
    lambda x: x * (180 / math.pi),
    lambda g: g * (180 / math.pi),
    "rad2deg",
    -3,
    3,
    DOC.format("Radians as degrees", "rad2deg", "1.0", "57.2958"),
)


def _sinc_gradient(g: Any, input: Any) -> Any:
    zero = eq(input, 0)
    flat = input * (-math.pi * math.pi / 3)  # the slope near 0, so that the second derivative there is right
    return g * where(zero, flat, (cos(math.pi * input) - sinc(input)) / where(zero, 1, input))


sinc = _function(
    "sinc",
    trigonometry.sinc,
    _sinc_gradient,
    "sinc",
    -3,
    3,
    DOC.format("sin(pi input) / (pi input), 1 at 0", "sinc", "0.0, 0.5", "1.0000, 0.6366"),
)


def _logit(np: ModuleType, x: Any) -> Any:
    return np.log(x / (1 - x))


def _logit_gradient(g: Any, input: Any) -> Any:
    inside = logical_and(le(0, input), le(input, 1))
    return where(inside, g / (input * (1 - input)), float("nan"))


logit_open = float_function(
    "logit_open",
    hyperbolic.logit,
    _logit_gradient,
    d.floats(_logit),
    d.unary(0.05, 0.95),
    "log(input / (1 - input)): `logit` of any input.",
    dtypes="float",
    public=False,
    inplace=False,
)


@pointwise(
    "float",
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t, 0.01, 0.99), 0.1))],
    reference=d.reference(lambda np, x, eps: _logit(np, np.clip(x, eps, 1 - eps)).astype(x.dtype)),
    public=False,
)
def logit_within(input: Operand, eps: Number) -> Any:
    """`logit` of input brought into [eps, 1 - eps]."""
    high = 1.0 - eps
    return hyperbolic.logit(select(input < eps, eps, select(input > high, high, input)))


@logit_within.derivative
def _(g: Tensor, input: Tensor, eps: Any) -> Any:
    inside = logical_and(le(eps, input), le(input, 1 - eps))
    harmless = where(inside, input, 0.5)
    return where(inside, g / (harmless * (1 - harmless)), 0), None


@public("logit", inplace=True, samples=d.unary(0.05, 0.95), dtypes="float")
def logit(input: Any, eps: float | None = None, *, out: Any = None) -> Any:
    """log(input / (1 - input)); NaN outside [0, 1]. Given `eps` >= 0, input is first brought into
    [eps, 1 - eps]. Integers and bool give the default float dtype.

    >>> kiln.logit(kiln.tensor([0.5, 0.9]))
    tensor([0.0000, 2.1972])
    """
    if eps is None or eps < 0:
        return logit_open(input, **into(out))
    return logit_within(input, eps, **into(out))


# Two arrays


def _floats_only(name: str, x: Scalar) -> None:
    unsupported(f"{name}_cpu", x, INTS | {"i1"})


@pointwise(
    samples=d.binary(),
    reference=d.reference(lambda np, x, y: np.hypot(x, y)),
    failures=d.not_broadcastable,
    inplace=True,
)
def hypot(input: Tensor, other: Tensor) -> Any:
    """`sqrt(input**2 + other**2)` without overflow, broadcast; floats. NotImplementedError for other dtypes.

    >>> kiln.hypot(kiln.tensor([3.0]), kiln.tensor([4.0]))
    tensor([5.])
    """
    _floats_only("hypot", input)
    return inverses.hypot(input, other)


@hypot.derivative
def _(g: Tensor, input: Tensor, other: Tensor, y: Tensor) -> Any:
    return g * (input / y), g * (other / y)


def _log_of_sum(name: str, exponential: Any, logarithm: Any, base: str, example: str) -> Op:
    """logaddexp or logaddexp2: larger + log(1 + e^-|difference|)."""

    def body(input: Tensor, other: Tensor) -> Any:
        _floats_only(name, input)
        same = input.eq(other)  # infinities of one sign: their difference is NaN
        below = select(same, 0.0, -absolute(input - other))
        return larger(input, other) + logarithm(exponential(below))

    body.__name__ = name
    body.__doc__ = f"""The logarithm of `{base}**input + {base}**other`, to base {base}, broadcast; floats.

    NotImplementedError for other dtypes.

    >>> kiln.{name}(kiln.tensor([0.0]), kiln.tensor([0.0]))
    tensor([{example}])
    """
    return pointwise(
        samples=d.binary(),
        reference=d.reference(lambda np, x, y: getattr(np, name)(x, y)),
        failures=d.not_broadcastable,
    )(body)


logaddexp = _log_of_sum("logaddexp", m.exp, m.log1p, "e", "0.6931")
logaddexp2 = _log_of_sum("logaddexp2", m.exp2, lambda x: m.log1p(x) * (1 / math.log(2)), "2", "1.")


@logaddexp.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return g * sigmoid(input - other), g * sigmoid(other - input)


@logaddexp2.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return g / (1 + exp2(other - input)), g / (1 + exp2(input - other))


def _times_log(name: str, function: Any, reference: Any, low: float, doc: str, **settings: Any) -> Op:
    """xlogy or xlog1py: input times a logarithm of other, 0 where input is."""

    def body(input: Operand, other: Operand) -> Any:
        value = select(input.eq(0.0), const(0.0, input.type), input * function(other))
        return select(other.ne(other), other, value)

    body.__name__, body.__doc__ = name, doc
    return pointwise(
        "float",
        samples=d.binary(0.5, 3, low, 3),
        reference=d.reference(reference),
        failures=d.not_broadcastable,
        **settings,
    )(body)


xlogy = _times_log(
    "xlogy",
    m.log,
    lambda np, x, y: np.where(x == 0, 0, x * np.log(y)).astype(x.dtype),
    0.5,
    """`input * log(other)`, broadcast; 0 where input is 0, NaN where other is. Integers and bool give the
    default float dtype.

    >>> kiln.xlogy(kiln.tensor([0.0, 1.0]), kiln.tensor([0.0, 2.0]))
    tensor([0.0000, 0.6931])
    """,
    inplace=True,
    inplace_function=True,
)
xlog1py = _times_log(
    "xlog1py",
    m.log1p,
    lambda np, x, y: np.where(x == 0, 0, x * np.log1p(y)).astype(x.dtype),
    -0.5,
    """`input * log(1 + other)`, broadcast; 0 where input is 0, NaN where other is. Integers and bool give the
    default float dtype.

    >>> kiln.special.xlog1py(kiln.tensor([0.0, 1.0]), kiln.tensor([-1.0, 1.0]))
    tensor([0.0000, 0.6931])
    """,
    public=False,
)


@xlogy.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    nothing = logical_and(eq(input, 0), le(other, 0))
    return where(nothing, 0, g * log(where(nothing, 1, convert(other, g.dtype)))), g * input / other


@xlog1py.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    nothing = logical_and(eq(input, 0), le(other, -1))
    return where(nothing, 0, g * log1p(where(nothing, 0, convert(other, g.dtype)))), g * input / (other + 1)


def _float_power_samples(rng: Any, dtype: str) -> list[Any]:
    x, y = d.array(rng, (3, 5), dtype, 0.5, 3), d.array(rng, (5,), dtype, 0, 3)
    return [Sample((x, y)), Sample((x, 2)), Sample((2.5, y))]


def _as_double(x: Any) -> Any:
    return x if isinstance(x, (int, float)) else convert(x, "float64")


forms("float_power", "(input: Operand, exponent: Operand, *, out=None)")


@public(
    "float_power",
    inplace=True,
    samples=_float_power_samples,
)
def float_power(input: Any, exponent: Any, *, out: Any = None) -> Any:
    """`input ** exponent` in float64, broadcast; numbers or any dtype. RuntimeError for an `out` of another
    dtype.

    >>> kiln.float_power(kiln.tensor([2, 3]), -1)
    tensor([0.5000, 0.3333], dtype=kiln.float64)
    """
    if out is not None and dtype_name(out.dtype) != "float64":
        whose = "base" if out is input else "output"
        raise RuntimeError(
            f"the {whose} given to float_power has dtype {type_name(dtype_name(out.dtype))} but the "
            "operation's result requires dtype Double"
        )
    return pow(_as_double(input), _as_double(exponent), **into(out))
