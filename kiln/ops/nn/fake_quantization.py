"""Floats rounded to what few integers stand for, as training for quantization needs them; gradients go
through.
"""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise import elementary
from kiln.ops.elementwise.arithmetic import convert, detach, where
from kiln.ops.elementwise.comparison import ge, le, logical_and
from kiln.ops.views.core_views import reshape
from kiln.scalars.scalar import rint, select
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import dtype_name, type_name
from kiln.table.public import public
from kiln.table.record import Operand, Tensor, Tests, pointwise


@pointwise(
    public=False,
    tests=Tests(peer=None, straight_through=True),  # its gradient: tests/ops/test_fake_quantization.py
    samples=d.samples(lambda rng, dtype: ((d.array(rng, (3, 5), dtype), 4.0, 0.25, 1.0, 0.0, -3.0, 5.0), {})),
    reference=d.reference(
        lambda np, x, inverse, scale, zero, inner, low, high: (
            (np.clip(np.rint(x * inverse + inner) + zero - inner, low, high) - zero) * scale
        )
    ),
)
def on_grid(
    input: Operand,
    inverse: Operand,
    scale: Operand,
    zero_point: Operand,
    inner: Operand,
    low: Operand,
    high: Operand,
) -> Any:
    """`(clamp(round(input * inverse + inner) + zero_point - inner, low, high) - zero_point) * scale`,
    broadcast; `inner`, the zero point or 0, says whether it is added before what is between two integers is
    rounded. The gradient goes through to `input` where nothing was clamped. NaN gives the lowest.
    """
    place = rint(input * inverse + inner) + (zero_point - inner)
    kept = select(place > low, place, low)
    return (select(kept < high, kept, high) - zero_point) * scale


@on_grid.derivative
def _(g: Tensor, input: Tensor, inverse: Any, zero_point: Any, inner: Any, low: Any, high: Any) -> Any:
    place = elementary.round(input * inverse + inner) + (zero_point - inner)
    inside = logical_and(ge(place, low), le(place, high))
    return where(inside, g, 0), None, None, None, None, None, None


def _quantized(input: Any, scale: Any, zero_point: Any, low: int, high: int, *, before: bool = False) -> Any:
    """The op on floats of at least 32 bits, in the dtype of `input`."""
    if low > high:
        raise RuntimeError("`quant_min` should be less than or equal to `quant_max`.")
    own = dtype_name(input.dtype)
    if own not in kinds.FLOATS:
        name = type_name(own)
        raise NotImplementedError(
            f"\"fake_quantize_tensor_cachemask_kernel_type_handling\" not implemented for '{name}'"
        )
    wide = "float64" if own == "float64" else "float32"
    x = input if own == wide else convert(input, wide)
    step, zero = (
        float(v) if isinstance(v, (int, float)) else detach(convert(v, wide)) for v in (scale, zero_point)
    )
    inverse = 1.0 / step if isinstance(step, float) else elementary.reciprocal(step)
    y = on_grid(x, inverse, step, zero, zero if before else 0.0, float(low), float(high))
    return y if own == wide else convert(y, own)


@public(
    "fake_quantize_per_tensor_affine",
    method=False,
    differs="a zero point that is a tensor is not compared with the bounds",
)
def fake_quantize_per_tensor_affine(
    input: Any, scale: float | Tensor, zero_point: int | Tensor, quant_min: int, quant_max: int
) -> Any:
    """`input`, floats of any shape, rounded to the numbers that integers from `quant_min` to `quant_max`
    stand for: `(q - zero_point) * scale` for q. `scale` and `zero_point` are numbers or tensors of one
    element. The gradient is that of `input` where q was within the bounds, else 0.

    RuntimeError for bounds that are none and a zero point outside them, NotImplementedError for integers.

    >>> kiln.fake_quantize_per_tensor_affine(kiln.tensor([0.06, 0.97, 9.0]), 0.1, 0, 0, 15)
    tensor([0.1000, 1.0000, 1.5000])
    """
    if isinstance(zero_point, (int, float)) and quant_min <= quant_max:
        if not quant_min <= zero_point <= quant_max:
            raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")
    step, zero = (v if isinstance(v, (int, float)) else reshape(v, ()) for v in (scale, zero_point))
    return _quantized(input, step, zero, quant_min, quant_max)


@public(
    "fake_quantize_per_channel_affine",
    method=False,
    differs="zero points are not compared with the bounds",
)
def fake_quantize_per_channel_affine(
    input: Any, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Any:
    """As `fake_quantize_per_tensor_affine`, with a scale and a zero point for each place along `axis`:
    `scale` float32 and `zero_point` int32 or float, vectors as long as that dim.

    RuntimeError for other lengths, IndexError for an axis that is none.

    >>> x, steps = kiln.ones(2, 2), kiln.tensor([0.1, 0.4])
    >>> kiln.fake_quantize_per_channel_affine(x, steps, kiln.zeros(2), 0, -8, 7)
    tensor([[0.7000, 0.7000],
            [0.8000, 0.8000]])
    """
    kind = dtype_name(zero_point.dtype)
    if kind not in ("int32", "float32", "float16"):
        raise RuntimeError(f"Zero-point must be Int32, Float or Half, found {type_name(kind)}")
    if scale.ndim != 1 or zero_point.ndim != 1:
        raise RuntimeError("scale and zero-point need to be vectors")
    if scale.shape[0] != zero_point.shape[0]:
        raise RuntimeError("scale and zero-point need to have the same dimensions")
    at = kinds.normalize_dim(axis, input.ndim, "fake_quantize_per_channel_affine")
    if scale.shape[0] != input.shape[at]:
        raise RuntimeError("dimensions of scale and zero-point are not consistent with input tensor")
    along = (scale.shape[0], *(1,) * (input.ndim - at - 1))
    step, zero = reshape(scale, along), reshape(zero_point, along)
    return _quantized(input, step, zero, quant_min, quant_max, before=kind != "int32")
