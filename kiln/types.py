"""Names for annotations, as `torch.types` has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, TypeAlias, Union

from kiln._core import Size, Tensor
from kiln._core import dtype as _DType
from kiln.device import device as _Device
from kiln.ops.views.storage import TypedStorage, UntypedStorage

__all__ = ["Device", "FileLike", "Number", "Size", "Storage", "Tensor"]

Number: TypeAlias = int | float | bool
Device: TypeAlias = Union[_Device, str, int, None]
FileLike: TypeAlias = Union[str, "os.PathLike[str]", IO[bytes]]
Storage: TypeAlias = Union[TypedStorage, UntypedStorage]
_size: TypeAlias = Union[Size, list[int], tuple[int, ...]]
_device, _dtype = _Device, _DType
_int, _float, _bool = int, float, bool
_TensorOrTensors: TypeAlias = Union[Tensor, Sequence[Tensor]]
