"""What reading a model raises."""

from __future__ import annotations


class LoadError(ValueError):
    """What is wrong with a file, or has no meaning here, in a sentence."""


class UnsupportedError(LoadError):
    """A whole file that says what kiln does not have: an operator, a dtype, an attribute."""
