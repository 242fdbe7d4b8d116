"""Engines for quantized tensors, of which kiln has none."""

from kiln.absent import hint_missing as _hint_missing

__all__ = ["engine", "supported_engines"]

engine = "none"
supported_engines = ["none"]

_hint_missing(__name__)
