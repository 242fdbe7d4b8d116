"""Element-wise functions of the standard: kiln's, on promoted arrays."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln.array_api import common as _common
from kiln.errors import describe as _describe
from kiln.errors import message as _message

# names of the standard whose function in kiln has another
_RENAMED = {
    "bitwise_invert": "bitwise_not", "divide": "div", "equal": "eq", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne",
    "subtract": "sub",
}  # fmt: skip
_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj", "cos", "cosh",
    "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not",
    "negative", "positive", "real", "reciprocal", "round", "signbit", "sin", "sinh", "sqrt", "square", "tan",
    "tanh", "trunc",
)  # fmt: skip
_BINARY = (
    "add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal",
    "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "nextafter",
    "not_equal", "pow", "remainder", "subtract",
)  # fmt: skip


def _unary(name: str) -> Any:
    function = getattr(ops, _RENAMED.get(name, name))

    def call(x: Any, /) -> Any:
        return function(_common.array(x, name))

    return _common.named(call, name, __name__, f"`{name}` of every element; the array's shape.")


def _binary(name: str) -> Any:
    function = getattr(ops, _RENAMED.get(name, name))

    def call(x1: Any, x2: Any, /) -> Any:
        return function(*_common.promote(name, x1, x2))

    doc = f"`{name}` of two arrays, or an array and a Python number; broadcast and promoted."
    return _common.named(call, name, __name__, doc)


globals().update({name: _unary(name) for name in _UNARY}, **{name: _binary(name) for name in _BINARY})


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """The array with elements below `min` and above `max` (arrays that broadcast, numbers, or None) replaced
    by them; the array's dtype. TypeError for a bound of a higher kind.
    """
    _common.array(x, "clip")
    for bound in (min, max):
        if bound is not None and _common.common_dtype("clip", (x, bound)) != x.dtype:
            expected = f"bounds that promote to {x.dtype}"
            raise TypeError(_message("clip", expected, _describe(bound)))
    if min is not None:
        x = ops.maximum(*_common.promote("clip", x, min))
    if max is not None:
        x = ops.minimum(*_common.promote("clip", x, max))
    return ops.clone(x) if min is None and max is None else x


def sign(x: Any, /) -> Any:
    """-1, 0 or 1 of every element, NaN of NaN; the array's shape and dtype."""
    result = ops.sign(_common.array(x, "sign"))
    return ops.where(ops.isnan(x), x, result) if x.dtype.is_floating_point else result
