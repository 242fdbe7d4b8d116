"""PyTorch's path of what stands for a value while a program is traced."""

from kiln.absent import hint_missing as _hint_missing
from kiln.fx import Proxy, Tracer

__all__ = ["Proxy", "Tracer"]

_hint_missing(__name__)
