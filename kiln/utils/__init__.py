"""Helpers around training: `kiln.utils.data`."""

from kiln.utils import data

__all__ = ["data"]
