"""A flag of PyTorch's of what `empty` holds: it is kept, and chooses nothing.

`kiln.empty` has one fixed content, whether the flag is set or not.
"""

from kiln.absent import hint_missing as _hint_missing

__all__ = ["fill_uninitialized_memory"]

fill_uninitialized_memory = True

_hint_missing(__name__)
