"""Operators of elements: arithmetic, comparison, activations, conversion."""

from __future__ import annotations

from functools import reduce
from typing import Any

from kiln import _core, ops
from kiln.nn import functional as F
from kiln.onnx.reading.known import LONGEST, Known
from kiln.onnx.reading.operators.table import Array, Value, axis_of, cast, kind, operator
from kiln.onnx.reading.refusal import LoadError, UnsupportedError
from kiln.onnx.reading.weights import dtype_of
from kiln.ops.elementwise.parts_of_numbers import bit_cast

# An operator without attributes -> the function of kiln that it is.
UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan",
    "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp",
    "Floor": "floor", "IsNaN": "isnan", "Log": "log", "Neg": "neg", "Reciprocal": "reciprocal",
    "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh", "Relu": "relu", "Not": "logical_not", "BitwiseNot": "bitwise_not",
    "Softsign": "softsign", "Mish": "mish",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Equal": "eq", "Less": "lt", "LessOrEqual": "le",
    "Greater": "gt", "GreaterOrEqual": "ge", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip


def _unary(name: str) -> Any:
    def apply(x: Array) -> Any:
        return getattr(ops, name)(x)

    return apply


def _binary(name: str) -> Any:
    def apply(x: Array, y: Array) -> Any:
        return getattr(ops, name)(x, _same(x, y))

    return apply


for _kind, _name in UNARY.items():
    operator(_kind)(_unary(_name))
for _kind, _name in BINARY.items():
    operator(_kind, since=7)(_binary(_name))


def _of_old(function: Any) -> Any:
    """Before opset 7 the second operand broadcasts where that is said, from a dim on that is said."""

    def apply(
        x: Array, y: Array, *, axis: int | None = None, broadcast: int = 0, consumed_inputs: Any = None
    ) -> Any:
        if broadcast and axis is not None and y.ndim:
            y = y.reshape((*y.shape, *[1] * (x.ndim - axis_of(axis, x.ndim) - y.ndim)))
        elif not broadcast and tuple(x.shape) != tuple(y.shape):
            raise LoadError(f"operands of {tuple(x.shape)} and {tuple(y.shape)} are not to broadcast")
        return function(x, y)

    return apply


def _same(x: Array, y: Array) -> Array:
    """The second operand, which is to have the dtype of the first."""
    if kind(x) != kind(y):
        raise LoadError(f"expected operands of one dtype, got {kind(x).name} and {kind(y).name}")
    return y


@operator("Div", since=7)
def _div(x: Array, y: Array) -> Any:
    return ops.div(x, _same(x, y), rounding_mode=None if kind(x).is_floating_point else "trunc")


@operator("Mod")
def _mod(x: Array, y: Array, *, fmod: int = 0) -> Any:
    return ops.fmod(x, _same(x, y)) if fmod else ops.remainder(x, _same(x, y))


@operator("Pow", since=7)
def _pow(x: Array, y: Array) -> Any:
    if kind(x).is_floating_point:
        return ops.pow(x, cast(y, kind(x)))
    if kind(y).is_floating_point:
        return cast(ops.pow(cast(x, _core.float64), cast(y, _core.float64)), kind(x))
    return cast(ops.pow(x, y), kind(x))


for _kind in ("Add", "Sub", "Mul", "And", "Or", "Xor", "Equal", "Less", "Greater"):
    operator(_kind)(_of_old(_binary(BINARY[_kind])))
operator("Div")(_of_old(_div))
operator("Pow")(_of_old(_pow))


@operator("BitShift")
def _bit_shift(x: Array, y: Array, *, direction: str) -> Any:
    if direction not in ("LEFT", "RIGHT"):
        raise LoadError(f"direction is {direction!r:.20}")
    shifted = ops.bitwise_left_shift if direction == "LEFT" else ops.bitwise_right_shift
    width = 8 * kind(x).itemsize
    if direction == "RIGHT" and kind(x) != _core.uint8:  # the sign is what comes in
        return shifted(x, ops.clamp(y, max=width - 1))
    return ops.where(y < width, shifted(x, ops.clamp(y, max=width - 1)), ops.zeros_like(x))


def _folded(function: Any) -> Any:
    def apply(x: Array, *more: Array) -> Any:
        return reduce(lambda a, b: function(a, _same(a, b)), more, x)

    return apply


operator("Max")(_folded(ops.maximum))
operator("Min")(_folded(ops.minimum))
operator("Sum")(_folded(ops.add))


@operator("Mean")
def _mean(x: Array, *more: Array) -> Any:
    return reduce(ops.add, more, x) / (1 + len(more))


@operator("Where")
def _where(condition: Array, x: Array, y: Array) -> Any:
    return ops.where(condition, x, _same(x, y))


@operator("Identity")
def _identity(x: Value) -> Any:
    return x


@operator("Clip")
def _clip(x: Array, low: Array | None = None, high: Array | None = None, *, min: float | None = None,
          max: float | None = None) -> Any:  # fmt: skip
    if low is not None:
        x = ops.maximum(x, cast(low, kind(x)).reshape(()))
    if high is not None:
        x = ops.minimum(x, cast(high, kind(x)).reshape(()))
    return x if min is None and max is None else ops.clamp(x, min, max)


@operator("IsInf")
def _is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    below = ops.isneginf(x) if detect_negative else ops.zeros_like(x, dtype=_core.bool)
    return ops.logical_or(below, ops.isposinf(x)) if detect_positive else below


# -- activations ------------------------------------------------------------------------------------


@operator("Elu")
def _elu(x: Array, *, alpha: float = 1.0) -> Any:
    return F.elu(x, alpha)


@operator("Celu")
def _celu(x: Array, *, alpha: float = 1.0) -> Any:
    return F.celu(x, alpha)


@operator("Selu")
def _selu(
    x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Any:
    return gamma * ops.where(x > 0, x, alpha * ops.expm1(x))


@operator("Gelu")
def _gelu(x: Array, *, approximate: str = "none") -> Any:
    return F.gelu(x, approximate=approximate)


@operator("HardSigmoid")
def _hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return ops.clamp(x * alpha + beta, 0, 1)


@operator("HardSwish")
def _hard_swish(x: Array) -> Any:
    return F.hardswish(x)


@operator("LeakyRelu")
def _leaky_relu(x: Array, *, alpha: float = 0.01) -> Any:
    return F.leaky_relu(x, alpha)


@operator("PRelu")
def _prelu_of_channels(x: Array, slope: Array, *, consumed_inputs: Any = None) -> Any:
    if slope.ndim == 1:
        slope = slope.reshape((-1, *[1] * (x.ndim - 2)))
    return _prelu(x, slope)


@operator("PRelu", since=7)
def _prelu(x: Array, slope: Array) -> Any:
    return ops.where(x < 0, x * slope, x)


@operator("ThresholdedRelu")
def _thresholded_relu(x: Array, *, alpha: float = 1.0) -> Any:
    return ops.where(x > alpha, x, ops.zeros_like(x))


@operator("Shrink")
def _shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    found = ops.where(x < -lambd, x + bias, ops.where(x > lambd, x - bias, ops.zeros_like(x)))
    return cast(found, kind(x))


@operator("Softplus")
def _softplus(x: Array) -> Any:
    return F.softplus(x)


@operator("Swish")
def _swish(x: Array, *, alpha: float = 1.0) -> Any:
    return x * ops.sigmoid(x * alpha)


# -- dtypes -----------------------------------------------------------------------------------------


@operator("Cast")
def _cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    return cast(x, dtype_of(to, "its result"))


@operator("CastLike")
def _cast_like(x: Array, target: Array, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return cast(x, kind(target))


def bits_as(x: Array, dtype: Any) -> Array:
    """The bits of elements as those of another dtype of the same width."""
    given = kind(x)
    if dtype.itemsize != given.itemsize:
        raise UnsupportedError("BitCast between dtypes of different widths")
    if given.itemsize >= 4:
        return bit_cast(x, dtype.name)
    if given.is_floating_point or dtype.is_floating_point:
        return x.view(dtype)
    return cast(x, dtype)


@operator("BitCast")
def _bit_cast(x: Array, *, to: int) -> Any:
    return bits_as(x, dtype_of(to, "its result"))


@operator("Constant")
def _constant(*, value: Any = None, value_float: float | None = None, value_int: int | None = None,
              value_floats: Any = None, value_ints: Any = None) -> Any:  # fmt: skip
    if value is not None:
        return value
    for one, many, dtype in ((value_float, value_floats, "float32"), (value_int, value_ints, "int64")):
        if one is not None or many is not None:
            found = Known(dtype, [one] if many is None else many, many is not None)
            return found if len(found.items) <= LONGEST else found.array()
    raise LoadError("a constant without a value that kiln reads")


@operator("EyeLike")
def _eye_like(x: Array, *, dtype: int | None = None, k: int = 0) -> Any:
    rows, columns = x.shape
    at = ops.arange(columns).unsqueeze(0) - ops.arange(rows).unsqueeze(1)
    return cast(at == k, kind(x) if dtype is None else dtype_of(dtype, "its result"))


@operator("SwiGLU", since=28)
def _swiglu(gate: Array, x: Array, *, alpha: float = 1.0) -> Any:
    return gate * ops.sigmoid(gate * alpha) * x
