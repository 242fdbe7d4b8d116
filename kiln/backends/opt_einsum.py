"""Whether `einsum` asks the package opt_einsum for the order of its products: it does not; flags are kept."""

from __future__ import annotations

from typing import Any

from kiln.backends.flags import keep_kinds

enabled = False
strategy: str | None = None


def is_available() -> bool:
    """False: the order of products follows from the equation."""
    return False


def get_opt_einsum() -> Any:
    """The package where it is used: None."""
    return None


keep_kinds(__name__, enabled=bool, strategy=(str, type(None)))
