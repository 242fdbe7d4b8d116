"""What passes are written with: the search for parts of a graph."""

from kiln.absent import hint_missing as _hint_missing

__all__: list[str] = []

_hint_missing(__name__)
