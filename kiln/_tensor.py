"""As `_utils`: what a pickle names of a tensor with attributes."""

from kiln._core import Tensor
from kiln.serialization.words import rebuild_from_type as _rebuild_from_type_v2

__all__ = ["Tensor", "_rebuild_from_type_v2"]
