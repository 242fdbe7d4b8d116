"""Automatic batching."""

from kiln.batching.map import map as map
