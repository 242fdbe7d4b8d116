"""Names for annotations, as `torch.types` has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any, TypeAlias, Union

from kiln._core import Size, Tensor
from kiln._core import dtype as _DType
from kiln.absent import leave_out as _leave_out
from kiln.device import device as _Device
from kiln.ops.views.storage import TypedStorage, UntypedStorage

__all__ = ["Device", "FileLike", "Number", "Size", "Storage", "SymBool", "SymFloat", "SymInt", "Tensor"]

Number: TypeAlias = int | float | bool
Device: TypeAlias = Union[_Device, str, int, None]
FileLike: TypeAlias = Union[str, "os.PathLike[str]", IO[bytes]]
Storage: TypeAlias = Union[TypedStorage, UntypedStorage]
_size: TypeAlias = Union[Size, list[int], tuple[int, ...]]
_device, _dtype = _Device, _DType
_int, _float, _bool = int, float, bool
_TensorOrTensors: TypeAlias = Union[Tensor, Sequence[Tensor]]


class _Symbolic:
    """Of sizes that PyTorch leaves open while it reads a program. In kiln every size is a number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}: sizes are numbers")


class SymInt(_Symbolic):
    """A whole number that is not known yet: no value is one."""


class SymFloat(_Symbolic):
    """A number that is not known yet: no value is one."""


class SymBool(_Symbolic):
    """A truth that is not known yet: no value is one."""


_leave_out(_Symbolic, "as_integer_ratio bit_length conjugate hex is_integer", "sizes are numbers")
