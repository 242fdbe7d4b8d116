"""`view(dtype)`: memory whose bits are read as another dtype.

Both tensors have one storage, so a write through either is counted for both. Recordings treat it as memory
that others can write, as they do a NumPy array's.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.table.arguments import is_value
from kiln.table.record import Tensor


def as_bits(input: Tensor, dtype: Any) -> Any:
    """The tensor's memory read as another dtype; RuntimeError where widths do not fit."""
    if is_value(input):
        raise TypeError("view: the bits of an array are not read as another dtype inside an op")
    if dtype is input.dtype:
        return input.detach()
    shape, strides = list(input.shape), list(input.stride())
    old, new = input.element_size(), dtype.itemsize
    if old != new:
        _check_widths(input, dtype)
        strides = [s * old // new for s in strides[:-1]] + [1]
        shape[-1] = shape[-1] * old // new
    # asking for the address tells the recordings, and those who know what the memory's positions lie below
    if input.data_ptr() % new:
        raise RuntimeError(f"view: the memory is not aligned for elements of {dtype}")
    return _core.view_bits(input.detach(), dtype, shape, strides, input.storage_offset() * old // new)


def elements(memory: Tensor, dtype: Any) -> Tensor:
    """All of the memory behind a tensor as elements of a dtype. Recordings are not told that it has several:
    for memory that no recording holds.
    """
    return _core.view_bits(memory, dtype, (memory._memory // dtype.itemsize,), (1,), 0)


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
