"""The error of a function that is not what it was promised to be; a leaf, so that anyone may name it."""

from __future__ import annotations


class PurityError(RuntimeError):
    """A function given to `kiln.compile(pure=True)` does what a pure one does not.

    It reads a tensor's value, writes a global, an attribute or an argument (a module's buffer it may), draws
    random numbers from Python or NumPy, or did something else in this call than in an earlier one. The
    message has the line.
    """
