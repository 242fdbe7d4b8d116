"""What reading a model raises, and what names of it kiln has."""

from __future__ import annotations

import re
from keyword import iskeyword

# What operators raise of operands that do not fit.
WRONG = (RuntimeError, ValueError, TypeError, IndexError, KeyError, NotImplementedError, AssertionError,
         ZeroDivisionError, OverflowError, AttributeError, MemoryError, RecursionError)  # fmt: skip


class LoadError(ValueError):
    """What is wrong with a file, or has no meaning here, in a sentence."""


class UnsupportedError(LoadError):
    """A whole file that says what kiln does not have: an operator, a dtype, an attribute."""


def identifier(name: str) -> str:
    """A name as variables have."""
    found = re.sub(r"\W", "_", name)
    return found if found.isidentifier() and not iskeyword(found) else f"_{found}"
