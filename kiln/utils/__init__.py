"""Helpers around training: `kiln.utils.data`, `kiln.utils.checkpoint`."""

from kiln.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
