"""Passes over graphs of functions."""

from kiln.absent import hint_missing as _hint_missing

__all__: list[str] = []

_hint_missing(__name__)
