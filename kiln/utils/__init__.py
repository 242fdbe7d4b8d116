"""Helpers around training: `kiln.utils.data`, `kiln.utils.checkpoint`."""

from kiln.absent import hint_missing as _hint_missing
from kiln.utils import checkpoint, data

__all__ = ["checkpoint", "data"]

_hint_missing(__name__)
