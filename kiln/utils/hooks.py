"""PyTorch's path of what `register_..._hook` gives."""

from kiln.absent import hint_missing as _hint_missing
from kiln.nn.hooks import RemovableHandle

__all__ = ["RemovableHandle"]

_hint_missing(__name__)
