"""Integers without a sign of 16, 32 and 64 bits inside a model: kiln has no tensors of them.

Those of 16 and 32 bits are kept as an int64 tensor of the same numbers, those of 64 as one of the same bits.
As inputs and outputs of a model they are refused; between, operators work on these tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kiln import _core, ops
from kiln.onnx.reading.operators.elementwise import bits_as
from kiln.onnx.reading.operators.table import Array, as_array, called, cast, found, kind
from kiln.onnx.reading.refusal import LoadError, UnsupportedError
from kiln.onnx.reading.weights import UNSIGNED, Unsigned, dtype_name

SIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
LOWEST = -(1 << 63)
UNSIGNED_NUMBERS = {4: "uint16", 12: "uint32", 13: "uint64"}


class Rule(NamedTuple):
    """What is to be looked after around an operator of int64."""

    wraps: bool = False  # whether the result is to be brought back into the range
    counts: tuple[int, ...] = (0,)  # which inputs are numbers without a sign
    compares: bool = False  # whether it goes by order, which the sign of 64 bits would upset
    divides: bool = False  # or by more than that


KEEPS = (
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Split", "Slice",
    "Gather", "GatherElements", "GatherND",
)  # fmt: skip
RULES: dict[str, Rule] = {
    **dict.fromkeys(KEEPS, Rule()),
    **dict.fromkeys(("Add", "Sub", "Mul"), Rule(wraps=True, counts=(0, 1))),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), Rule(counts=(0, 1))),
    "BitwiseNot": Rule(wraps=True),
    **dict.fromkeys(("Div", "Mod"), Rule(counts=(0, 1), divides=True)),
    "Where": Rule(counts=(1, 2)),
    "Equal": Rule(counts=(0, 1)),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), Rule(counts=(0, 1), compares=True)),
}  # fmt: skip


def wrapped(array: Array, dtype: str) -> Unsigned:
    """Numbers of int64 as those of the dtype, higher bits dropped."""
    width = UNSIGNED[dtype]
    return Unsigned(dtype, array if width == 64 else ops.bitwise_and(array, (1 << width) - 1))


def unsigned(op: str, given: Sequence[Any], attributes: dict[str, Any], opset: int, outputs: int) -> Any:
    """What an operator gives of numbers some of which have no sign, or makes such; None: neither."""
    to = attributes.get("to")
    target = UNSIGNED_NUMBERS.get(to) if op in ("Cast", "BitCast") and isinstance(to, int) else None
    if target is None and not any(isinstance(x, Unsigned) for x in given):
        return None
    special: dict[str, Callable[..., Any]] = {"Cast": _cast, "BitCast": _bit_cast}
    if op in special:
        return special[op](given[0], target, to)
    if op == "BitShift":
        return _shifted(*given, **attributes)
    rule, own = RULES.get(op), next(x.dtype for x in given if isinstance(x, Unsigned))
    if rule is None or (rule.divides and own == "uint64"):
        raise UnsupportedError(f"kiln has not its form of {own}")
    arrays = list(given)
    for k in rule.counts:
        if not isinstance(arrays[k], Unsigned) or arrays[k].dtype != own:
            raise LoadError(f"expected operands of one dtype, {own}")
        arrays[k] = arrays[k].array
        if rule.compares and own == "uint64":
            arrays[k] = ops.bitwise_xor(arrays[k], LOWEST)
    entry = found(op, "", opset)
    assert entry is not None
    result = called(entry, arrays, attributes, opset, outputs)
    if rule.compares or op == "Equal":
        return result
    parts = result if isinstance(result, tuple) else (result,)
    made = tuple([wrapped(x, own) if rule.wraps else Unsigned(own, x) for x in parts])
    return made if isinstance(result, tuple) else made[0]


def _cast(x: Any, target: str | None, to: Any) -> Any:
    if target is None:
        dtype = getattr(_core, dtype_name(to, "its result"))
        if x.dtype == "uint64" and dtype.is_floating_point:  # of half of it, the last bit kept for rounding
            half = ops.bitwise_or(_right(x.array, 1), ops.bitwise_and(x.array, 1))
            return ops.where(x.array < 0, cast(half, dtype) * 2, cast(x.array, dtype))
        return cast(x.array, dtype)
    if isinstance(x, Unsigned):
        return wrapped(x.array, target)
    x = as_array(x)
    if kind(x).is_floating_point and target == "uint64":
        far = x >= 2.0**63
        low = cast(ops.where(far, x - 2.0**63, x), _core.int64)
        return Unsigned(target, ops.where(far, ops.bitwise_xor(low, LOWEST), low))
    return wrapped(cast(x, _core.int64), target)


def _bit_cast(x: Any, target: str | None, to: Any) -> Any:
    """The bits as those of a dtype of the same width, by way of the one with a sign."""
    if isinstance(x, Unsigned):
        if target is not None:
            if target != x.dtype:
                raise UnsupportedError("BitCast between dtypes of different widths")
            return x
        return bits_as(
            cast(x.array, getattr(_core, SIGNED[x.dtype])), getattr(_core, dtype_name(to, "its result"))
        )
    assert target is not None
    return wrapped(cast(bits_as(as_array(x), getattr(_core, SIGNED[target])), _core.int64), target)


def _right(x: Array, count: Any) -> Array:
    """Bits moved to the right, zeros after them."""
    if isinstance(count, int):
        count = ops.full((), count, dtype=_core.int64)
    once = ops.bitwise_and(ops.bitwise_right_shift(x, 1), (1 << 63) - 1)
    return ops.where(count == 0, x, ops.bitwise_right_shift(once, ops.clamp(count - 1, min=0)))


def _shifted(x: Any, count: Any, *, direction: str) -> Any:
    if not isinstance(x, Unsigned) or not isinstance(count, Unsigned) or direction not in ("LEFT", "RIGHT"):
        raise LoadError("expected operands of one dtype, LEFT or RIGHT")
    width, by = UNSIGNED[x.dtype], count.array
    fits = ops.logical_and(by >= 0, by < width)
    by = ops.where(fits, by, ops.zeros_like(by))
    moved = ops.bitwise_left_shift(x.array, by) if direction == "LEFT" else _right(x.array, by)
    return wrapped(ops.where(fits, moved, ops.zeros_like(moved)), x.dtype)
