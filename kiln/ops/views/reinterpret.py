"""`view(dtype)`: memory whose bits are read as another dtype.

To the core the result is foreign memory, as a NumPy array's would be: writes to either are seen by both, in
recorded regions too.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.table.arguments import dtype_name, is_value
from kiln.table.record import Tensor, find


def as_bits(input: Tensor, dtype: Any) -> Any:
    """The tensor's memory read as another dtype; RuntimeError where widths do not fit."""
    if is_value(input):
        raise TypeError("view: the bits of an array are not read as another dtype inside an op")
    if dtype is input.dtype:
        return input.detach()
    shape, strides = list(input.shape), list(input.stride())
    places = find("as_strided").handle
    old, new = input.element_size(), dtype.itemsize
    if old != new:
        _check_widths(input, dtype)
        strides = [s * old // new for s in strides[:-1]] + [1]
        shape[-1] = shape[-1] * old // new
    if 0 in shape:
        return find("full").handle(0, tuple(shape), dtype_name(dtype))
    reach = 1 + sum((n - 1) * s for n, s in zip(input.shape, input.stride()))
    flat = places(input.detach(), (reach,), (1,), (input.storage_offset(),))
    memory = _core.frombuffer(flat, dtype_name(dtype), -1, 0)
    return places(memory, shape, strides, (0,))


def _check_widths(input: Tensor, dtype: Any) -> None:
    """PyTorch's errors where the last dim cannot grow or shrink."""
    old, new = input.element_size(), dtype.itemsize
    what = f"{input.dtype} as {dtype} (different element sizes)"
    if input.ndim == 0:
        raise RuntimeError(f"self.dim() cannot be 0 to view {what}")
    if input.shape[-1] != 1 and input.stride(-1) != 1:
        raise RuntimeError(f"self.stride(-1) must be 1 to view {what}, but got {input.stride(-1)}")
    if new > old:
        ratio = new // old
        if input.shape[-1] % ratio:
            raise RuntimeError(
                f"self.size(-1) must be divisible by {ratio} to view {what}, got {input.shape[-1]}"
            )
        if input.storage_offset() % ratio:
            raise RuntimeError(f"self.storage_offset() must be divisible by {ratio} to view {what}")
        if any(s % ratio for s in input.stride()[:-1]):
            raise RuntimeError(f"self.stride() must be divisible by {ratio} to view {what}")
