"""Functions of one array: rounding, roots, exponentials and logarithms, trigonometry, tests of floats.

Each has one body on scalars; bounds of error are in NUMERICS.md. Integers and bool become the default float
dtype first where the function is not closed over them.
"""

from __future__ import annotations

import math
from typing import Any

from kiln.ops.elementwise.arithmetic import overwrite, where, zeros_of
from kiln.ops.elementwise.comparison import eq, refuse, unsupported
from kiln.scalars import mathematics as m
from kiln.scalars import scalar
from kiln.scalars.scalar import FLOATS, Scalar, absolute, const, select
from kiln.table import drawn as d
from kiln.table.record import Operand, Sample, Tensor, pointwise

_NO_BOOL_NEG = (
    "Negation, the `-` operator, on a bool tensor is not supported. "
    "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
)


@pointwise(
    samples=d.unary(),
    reference=d.numpy("negative"),
    dtypes="numeric",
    onnx="Neg",
    inplace=True,
)
def neg(input: Operand) -> Any:
    """`-input`; unsigned integers wrap. RuntimeError for bool.

    >>> -kiln.tensor([1, -2])
    tensor([-1,  2])
    """
    refuse(input, {"i1"}, _NO_BOOL_NEG)
    return -input


@neg.derivative
def _(g: Tensor) -> Tensor:
    return -g


@pointwise(
    samples=d.unary(),
    reference=d.numpy("abs"),
    dtypes="numeric",
    onnx="Abs",
    inplace=True,
    tests=d.Tests(kinks=lambda np: (np.array([-1.0, 0.0, 2.0]),)),
)
def abs(input: Operand) -> Any:
    """The magnitude of `input`; the derivative at 0 is 0. The smallest integer stays as it is.

    >>> kiln.abs(kiln.tensor([-1.5, 2.0]))
    tensor([1.5000, 2.0000])
    """
    unsupported("abs_cpu", input, {"i1"})
    return input if input.type == "u8" else absolute(input)


@abs.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return g * sign(input)


@pointwise(
    samples=d.unary(),
    reference=d.numpy("sign"),
    dtypes="numeric",
    onnx="Sign",
    inplace=True,
    tests=d.Tests(steps=True),
)
def sign(input: Operand) -> Any:
    """-1, 0 or 1 by the sign of `input`; 0 for NaN.

    >>> kiln.sign(kiln.tensor([-3.0, 0.0, 2.0]))
    tensor([-1.,  0.,  1.])
    """
    if input.type == "i1":
        return input
    positive = select(input > 0, const(1, input.type), 0)
    return positive if input.type == "u8" else select(input < 0, const(-1, input.type), positive)


@sign.derivative
def _(g: Tensor) -> Any:
    return zeros_of(g)


def _rounding(name: str, function: str, step: Any, doc: str, onnx: str) -> Any:
    """A function that gives integral floats and leaves integers alone."""

    def body(input: Operand) -> Any:
        unsupported(f"{name}_vml_cpu", input, {"i1"})
        return step(input) if input.type in FLOATS else input

    body.__name__, body.__doc__ = name, doc
    op = pointwise(
        samples=d.unary(),
        reference=d.numpy(function),
        dtypes="numeric",
        onnx=onnx,
        inplace=True,
        public=name != "round",  # arithmetic's takes decimals too
        tests=d.Tests(steps=True),
    )(body)
    return op.derivative(lambda g: zeros_of(g))


_ROUNDED = """{0}; integers stay as they are. The derivative is 0. NotImplementedError for bool.

    >>> kiln.{1}(kiln.tensor([-1.5, 2.5]))
    tensor([{2}])
    """
floor = _rounding(
    "floor",
    "floor",
    scalar.floor,
    _ROUNDED.format("The largest integer not above `input`", "floor", "-2.,  2."),
    "Floor",
)
ceil = _rounding(
    "ceil",
    "ceil",
    scalar.ceil,
    _ROUNDED.format("The smallest integer not below `input`", "ceil", "-1.,  3."),
    "Ceil",
)
round = _rounding(
    "round",
    "rint",
    scalar.rint,
    _ROUNDED.format("The nearest integer, ties to even", "round", "-2.,  2."),
    "Round",
)
trunc = _rounding(
    "trunc", "trunc", scalar.trunc, _ROUNDED.format("`input` without its fraction", "trunc", "-1.,  2."), ""
)


@pointwise(
    "counted",
    samples=d.unary(),
    reference=d.numpy("square"),
    dtypes="numeric",
    inplace=True,
)
def square(input: Operand) -> Any:
    """`input * input`; integers wrap, bool gives int64.

    >>> kiln.square(kiln.tensor([3.0]))
    tensor([9.])
    """
    return input * input


@square.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return g * (2 * input)


@pointwise(
    "float",
    samples=d.unary(0.5, 3),
    reference=d.floats("reciprocal"),
    onnx="Reciprocal",
    inplace=True,
)
def reciprocal(input: Operand) -> Any:
    """`1 / input`.

    >>> kiln.reciprocal(kiln.tensor([4.0]))
    tensor([0.2500])
    """
    return 1 / input


@reciprocal.derivative
def _(g: Tensor, y: Tensor) -> Tensor:
    return -g * (y * y)


@pointwise(
    "float",
    samples=d.unary(0.1, 9),
    reference=d.floats("sqrt"),
    onnx="Sqrt",
    dtypes="all",
    inplace=True,
    tests=d.Tests(kinks=lambda np: (np.array([0.0, 4.0]),)),
)
def sqrt(input: Operand) -> Any:
    """The square root, correctly rounded; NaN below 0. The derivative at 0 is infinite.

    >>> kiln.sqrt(kiln.tensor([9.0]))
    tensor([3.])
    """
    return scalar.sqrt(input)


@sqrt.derivative
def _(g: Tensor, y: Tensor) -> Tensor:
    return g / (2 * y)


@pointwise(
    "float",
    samples=d.unary(0.1, 9),
    reference=d.floats("sqrt"),
    public=False,
)
def root(input: Operand) -> Any:
    """`sqrt` whose derivative at 0 is taken as 0: the last step of norms and standard deviations.

    >>> kiln.norm(kiln.tensor([3.0, 4.0]))
    tensor(5.)
    """
    return scalar.sqrt(input)


@root.derivative
def _(g: Tensor, y: Tensor) -> Tensor:
    zero = eq(y, 0)
    return where(zero, 0, g / (2 * where(zero, 1, y)))


@pointwise(
    "float",
    samples=d.unary(0.1, 9),
    reference=d.floats(lambda np, x: 1 / np.sqrt(x)),
    dtypes="all",
    inplace=True,
)
def rsqrt(input: Operand) -> Any:
    """`1 / sqrt(input)`, rounded twice.

    >>> kiln.rsqrt(kiln.tensor([4.0]))
    tensor([0.5000])
    """
    return 1 / scalar.sqrt(input)


@rsqrt.derivative
def _(g: Tensor, y: Tensor) -> Tensor:
    return -0.5 * g * (y * y * y)


def float_function(
    name: str,
    body_of: Any,
    gradient: Any,
    reference: Any,
    samples: Any,
    doc: str,
    onnx: str = "",
    **settings: Any,
) -> Any:
    """A float function of one array with the scalar body `body_of`; without derivative if `gradient` is
    None.
    """

    def body(input: Operand) -> Any:
        return body_of(input)

    body.__name__, body.__doc__ = name, doc
    op = pointwise(
        "float",
        samples=samples,
        reference=reference,
        onnx=onnx,
        differentiable=gradient is not None,
        **{"dtypes": "all", "inplace": True, **settings},
    )(body)
    return op if gradient is None else op.derivative(gradient)


DOC = """{0}, any shape; integers and bool give the default float dtype.

    >>> kiln.{1}(kiln.tensor([{2}]))
    tensor([{3}])
    """

exp = float_function(
    "exp",
    m.exp,
    lambda g, y: g * y,
    d.floats("exp"),
    d.unary(),
    DOC.format("e to the power `input`", "exp", "0.0, 1.0", "1.0000, 2.7183"),
    "Exp",
)
exp2 = float_function(
    "exp2",
    m.exp2,
    lambda g, y: g * (y * 0.6931471805599453),
    d.floats("exp2"),
    d.unary(),
    DOC.format("2 to the power `input`", "exp2", "3.0", "8."),
)
expm1 = float_function(
    "expm1",
    m.expm1,
    lambda g, y: g * (y + 1),
    d.floats("expm1"),
    d.unary(),
    DOC.format("exp(input) - 1, accurate near 0", "expm1", "0.0, 1.0", "0.0000, 1.7183"),
)
log = float_function(
    "log",
    m.log,
    lambda g, input: g / input,
    d.floats("log"),
    d.unary(0.1, 9),
    DOC.format("The natural logarithm; NaN below 0, -inf at 0", "log", "1.0, 2.0", "0.0000, 0.6931"),
    "Log",
)
log1p = float_function(
    "log1p",
    m.log1p,
    lambda g, input: g / (input + 1),
    d.floats("log1p"),
    d.unary(-0.5, 9),
    DOC.format("log(1 + input), accurate near 0", "log1p", "0.0, 1.0", "0.0000, 0.6931"),
)
log2 = float_function(
    "log2",
    m.log2,
    lambda g, input: g / (input * 0.6931471805599453),
    d.floats("log2"),
    d.unary(0.1, 9),
    DOC.format("The logarithm to base 2", "log2", "8.0", "3."),
)
tanh = float_function(
    "tanh",
    m.tanh,
    lambda g, y: g * (1 - y * y),
    d.floats("tanh"),
    d.unary(),
    DOC.format("The hyperbolic tangent", "tanh", "0.0, 1.0", "0.0000, 0.7616"),
    "Tanh",
)
sigmoid = float_function(
    "sigmoid",
    m.sigmoid,
    lambda g, y: g * (y * (1 - y)),
    d.floats(lambda np, x: 1 / (1 + np.exp(-x))),
    d.unary(),
    DOC.format("1 / (1 + exp(-input))", "sigmoid", "0.0, 2.0", "0.5000, 0.8808"),
    "Sigmoid",
)
sin: Any = float_function(
    "sin",
    m.sin,
    lambda g, input: g * cos(input),
    d.floats("sin"),
    d.unary(-9, 9),
    DOC.format("The sine of `input` in radians", "sin", "0.0, 1.0", "0.0000, 0.8415"),
    "Sin",
)
cos: Any = float_function(
    "cos",
    m.cos,
    lambda g, input: -g * sin(input),
    d.floats("cos"),
    d.unary(-9, 9),
    DOC.format("The cosine of `input` in radians", "cos", "0.0, 1.0", "1.0000, 0.5403"),
    "Cos",
)
erf = float_function(
    "erf",
    m.erf,
    lambda g, input: g * (1.1283791670955126 * exp(-(input * input))),
    d.floats(lambda np, x: np.vectorize(math.erf, otypes=[float])(x).astype(x.dtype)),
    d.unary(),
    DOC.format("The error function", "erf", "0.0, 1.0", "0.0000, 0.8427"),
    "Erf",
)


@pointwise(
    samples=d.unary(),
    reference=d.reference(lambda np, x: np.where(x < 0, np.zeros((), x.dtype), x)),
    dtypes="numeric",
    onnx="Relu",
    inplace=True,
    tests=d.Tests(kinks=lambda np: (np.array([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf]),)),
)
def relu(input: Operand) -> Any:
    """`input` where it is not below 0, else 0: -0.0 and NaN stay. The derivative at 0 is 0. RuntimeError for
    bool.

    >>> kiln.relu(kiln.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    refuse(input, {"i1"}, "Boolean inputs not supported for relu")
    return select(input < 0, 0, input)


@relu.derivative
def _(g: Tensor, y: Tensor) -> Tensor:
    return overwrite(y, where(y <= 0, 0, g))  # see by_steps


# Tests of floats: bool results, no derivative


def _test(name: str, of_float: Any, doc: str, onnx: str = "") -> Any:
    """A test of every element; `of_float(x)` for floats, and for integers what it says of any finite
    number.
    """

    def body(input: Operand) -> Any:
        return of_float(input) if input.type in FLOATS else const(name == "isfinite", "i1")

    body.__name__, body.__doc__ = name, doc
    return pointwise(
        "compare",
        samples=special,
        reference=d.numpy(name),
        dtypes="all",
        differentiable=False,
        onnx=onnx,
    )(body)


def special(rng: Any, dtype: str) -> list[Any]:
    x = d.array(rng, (3, 5), dtype)
    if dtype.startswith(("float", "bfloat")):
        x[0, 1], x[1, 2], x[2, 3] = float("nan"), float("inf"), -float("inf")
    return [Sample((x,))]


def _finite(x: Scalar) -> Scalar:
    return absolute(x) < float("inf")


_TESTED = """Whether each element {0}: a bool array; any dtype.

    >>> kiln.{1}(kiln.tensor([1.0, float("{2}")]))
    tensor([{3}])
    """
isnan = _test("isnan", lambda x: x.ne(x), _TESTED.format("is NaN", "isnan", "nan", "False,  True"), "IsNaN")
isinf = _test(
    "isinf",
    lambda x: absolute(x).eq(float("inf")),
    _TESTED.format("is infinite", "isinf", "inf", "False,  True"),
    "IsInf",
)
isfinite = _test(
    "isfinite", _finite, _TESTED.format("is neither NaN nor infinite", "isfinite", "inf", " True, False")
)
