"""make_tensor: tensors of random values for tests, in a range that suits every dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kiln import _core, ops
from kiln.errors import warn
from kiln.ops.creation.dtypes import finfo, iinfo

_OF_INTEGERS = {
    _core.bool: (0, 2),
    _core.uint8: (0, 10),
    **dict.fromkeys((_core.int8, _core.int16, _core.int32, _core.int64), (-9, 10)),
}


def make_tensor(
    *shape: int | Sequence[int],
    dtype: _core.dtype,
    device: Any,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> _core.Tensor:
    """A tensor of `shape` whose values are drawn evenly from [low, high).

    Without bounds from [-9, 9) for floats, -9 to 9 for integers, 0 to 9 for uint8, both values for bool.
    Bounds that the dtype does not hold are taken to its own. `exclude_zero` puts the smallest positive value
    in the place of zeros; `noncontiguous` leaves gaps between the elements, of two or more. ValueError for
    an empty or another dtype's range, NaN, gradients of integers, or a `memory_format` beside
    `noncontiguous`.

    >>> x = kiln.testing.make_tensor(2, 3, dtype=kiln.float32, device="cpu", low=0, high=1)
    >>> x.shape, bool((x < 1).all())
    (kiln.Size([2, 3]), True)
    """
    sizes: Any = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    is_float = dtype.is_floating_point
    if requires_grad and not is_float:
        raise ValueError(
            f"`requires_grad=True` is not supported for boolean and integral dtypes, but got {dtype=}"
        )
    if noncontiguous and memory_format is not None:
        raise ValueError(
            "The parameters `noncontiguous` and `memory_format` are mutually exclusive, but got "
            f"{noncontiguous=} and {memory_format=}"
        )
    least, most = _range(dtype, low, high)
    if is_float:
        drawn = ops.rand(sizes, dtype=dtype, device=device)
        span = most - least
        found = drawn * span + least if span <= finfo(dtype).max else drawn * most + (1 - drawn) * least
        found = ops.where(found >= most, least, found)  # rounded up
    else:
        found = ops.randint(int(least), min(int(most), 2**63 - 1), sizes, dtype=dtype, device=device)
    if exclude_zero:
        found[found == 0] = finfo(dtype).tiny if is_float else 1
    if noncontiguous and found.numel() > 1:
        found = ops.repeat_interleave(found, 2, dim=-1)[..., ::2]
    elif memory_format is not None:
        found = found.contiguous(memory_format=memory_format)
    return found.requires_grad_() if requires_grad else found


def _range(dtype: _core.dtype, low: float | None, high: float | None) -> tuple[float, float]:
    """The bounds to draw from, within those of the dtype: the second is left out."""
    is_float = dtype.is_floating_point
    usual = (-9, 9) if is_float else _OF_INTEGERS[dtype]
    least, most = (default if given is None else given for default, given in zip(usual, (low, high)))
    if any(math.isnan(bound) for bound in (least, most)):
        raise ValueError(f"`low` and `high` cannot be NaN, but got low={least} and high={most}")
    if is_float and least == most:
        warn(
            "Passing `low==high` to `torch.testing.make_tensor` for floating or complex types is deprecated "
            "since 2.1 and will be removed in 2.3. Use `torch.full(...)` instead.",
            FutureWarning,
        )
    elif least >= most:
        raise ValueError(f"`low` must be less than `high`, but got {least} >= {most}")
    if is_float:
        ends: tuple[float, float] = (finfo(dtype).min, finfo(dtype).max)
    elif dtype is _core.bool:
        ends = (0, 2)
    else:
        ends = (iinfo(dtype).min, iinfo(dtype).max + 1)
    if least > ends[1] or most < ends[0] or (not is_float and (least >= ends[1] or most <= ends[0])):
        closing = "]" if is_float else ")"
        raise ValueError(
            f"The value interval specified by `low` and `high` is [{least}, {most}), but {dtype} only "
            f"supports [{ends[0]}, {ends[1]}{closing}"
        )
    least, most = max(least, ends[0]), min(most, ends[1])
    return (least, most) if is_float else (math.ceil(least), math.ceil(most))
