"""Numbers of few bits that stand for others: (x - zero point) * scale, and products of such."""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.onnx.reading.operators.reducing import matmul
from kiln.onnx.reading.operators.table import Array, axis_of, cast, kind, operator
from kiln.onnx.reading.operators.windows import convolved
from kiln.onnx.reading.refusal import LoadError, UnsupportedError
from kiln.onnx.reading.weights import dtype_of

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def _spread(v: Array, x: Array, axis: int, block: int) -> Array:
    """A scale or zero point as it broadcasts with x: one, one for each part of a dim, or each block."""
    if v.ndim == 0 or not block and v.ndim == 1 and v.shape[0] == 1:
        return v.reshape(())
    dim = axis_of(axis, x.ndim)
    if not block:
        return v.reshape(tuple([-1 if d == dim else 1 for d in range(x.ndim)]))
    return ops.repeat_interleave(v, block, dim).narrow(dim, 0, x.shape[dim])


def _quantised(x: Array, dtype: Any, zero: Array | None) -> Array:
    """Numbers rounded to even, moved by the zero point, within the range of the dtype."""
    least, most = RANGES[dtype.name]
    found = ops.round(x)
    if zero is not None:
        found = found + cast(zero, kind(found))
    return cast(ops.clamp(found, least, most), dtype)


def _target(zero: Array | None, given: int) -> Any:
    dtype = kind(zero) if zero is not None else dtype_of(given, "its result") if given else _core.uint8
    if dtype.name not in RANGES:
        raise UnsupportedError(f"kiln quantises to {', '.join(RANGES)}, not to {dtype.name}")
    return dtype


@operator("QuantizeLinear", since=10)
def _quantize_linear(x: Array, scale: Array, zero: Array | None = None, *, axis: int = 1, block_size: int = 0,
                     output_dtype: int = 0, precision: int = 0, saturate: int = 1) -> Any:  # fmt: skip
    dtype = _target(zero, output_dtype)
    wide = dtype_of(precision, "its precision") if precision else kind(scale)
    wide = _core.float32 if wide.itemsize < 4 else wide
    by = cast(_spread(scale, x, axis, block_size), wide)
    zero = None if zero is None else _spread(zero, x, axis, block_size)
    return _quantised(cast(x, wide) / by, dtype, zero)


@operator("DequantizeLinear", since=10)
def _dequantize_linear(x: Array, scale: Array, zero: Array | None = None, *, axis: int = 1,
                       block_size: int = 0, output_dtype: int = 0) -> Any:  # fmt: skip
    moved = cast(x, _core.int32)
    if zero is not None:
        moved = moved - cast(_spread(zero, x, axis, block_size), _core.int32)
    dtype = dtype_of(output_dtype, "its result") if output_dtype else kind(scale)
    wide = _core.float32
    return cast(cast(moved, wide) * cast(_spread(scale, x, axis, block_size), wide), dtype)


@operator("DynamicQuantizeLinear", since=11)
def _dynamic_quantize_linear(x: Array) -> Any:
    least, most = ops.clamp(ops.amin(x), max=0.0), ops.clamp(ops.amax(x), min=0.0)
    scale = (most - least) / 255.0
    zero = cast(ops.clamp(ops.round(-least / scale), 0, 255), _core.uint8)
    return _quantised(x / scale, _core.uint8, zero), scale, zero


def _moved(x: Array, zero: Array | None, rows: bool = False) -> Array:
    """Without its zero point, in int32; that may be one for each row."""
    found = cast(x, _core.int32)
    if zero is None:
        return found
    zero = cast(zero, _core.int32)
    if zero.ndim == 1 and rows:
        zero = zero.unsqueeze(-1)
    return found - (zero if zero.ndim else zero.reshape(()))


@operator("MatMulInteger", since=10)
def _matmul_integer(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Any:
    return matmul(_moved(a, a_zero, rows=True), _moved(b, b_zero))


@operator("QLinearMatMul", since=10)
def _qlinear_matmul(a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array,
                    scale: Array, zero: Array) -> Any:  # fmt: skip
    found = matmul(_moved(a, a_zero, rows=True), _moved(b, b_zero))
    rows = a_scale.unsqueeze(-1) if a_scale.ndim == 1 else a_scale
    factor = cast(rows, _core.float32) * cast(b_scale, _core.float32) / cast(scale, _core.float32)
    return _quantised(cast(found, _core.float32) * factor, _target(zero, 0), zero)


def _whole_convolution(x: Array, x_zero: Array | None, weight: Array, weight_zero: Array | None,
                       settings: dict[str, Any]) -> Array:  # fmt: skip
    """A convolution of integers: sums of float64 are exact below 2^53."""
    by_channel = weight_zero
    if by_channel is not None and by_channel.ndim == 1:
        by_channel = by_channel.reshape((-1, *[1] * (weight.ndim - 1)))
    parts = [cast(_moved(v, z), _core.float64) for v, z in ((x, x_zero), (weight, by_channel))]
    return cast(convolved(*parts, None, **settings), _core.int32)


@operator("ConvInteger", since=10)
def _conv_integer(
    x: Array, weight: Array, x_zero: Array | None = None, weight_zero: Array | None = None, *,
    auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    settings = {"auto_pad": auto_pad, "dilations": dilations, "group": group, "kernel_shape": kernel_shape,
                "pads": pads, "strides": strides}  # fmt: skip
    return _whole_convolution(x, x_zero, weight, weight_zero, settings)


@operator("QLinearConv", since=10)
def _qlinear_conv(
    x: Array, x_scale: Array, x_zero: Array, weight: Array, weight_scale: Array, weight_zero: Array,
    scale: Array, zero: Array, bias: Array | None = None, *, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    settings = {"auto_pad": auto_pad, "dilations": dilations, "group": group, "kernel_shape": kernel_shape,
                "pads": pads, "strides": strides}  # fmt: skip
    found = _whole_convolution(x, x_zero, weight, weight_zero, settings)
    channels = (1, -1, *[1] * (x.ndim - 2))
    if bias is not None:
        found = found + bias.reshape(channels)
    if weight_scale.ndim > 1:
        raise LoadError("the weight's scale has more than one dim")
    factor = x_scale * weight_scale.reshape(channels if weight_scale.ndim else ()) / scale
    return _quantised(cast(found, _core.float32) * factor, _target(zero, 0), zero)
