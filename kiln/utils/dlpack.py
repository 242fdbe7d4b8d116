"""PyTorch's path of what shares memory with other libraries."""

from kiln.absent import hint_missing as _hint_missing
from kiln.ops import from_dlpack
from kiln.ops.creation import interop as _interop
from kiln.table.callables import named as _named

__all__ = ["from_dlpack", "to_dlpack"]

to_dlpack = _named("to_dlpack", _interop.to_dlpack)

_hint_missing(__name__)
