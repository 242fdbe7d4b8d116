"""PyTorch's marks of what stays as it is from one version to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kiln.absent import hint_missing as _hint_missing

__all__ = ["compatibility"]

_F = TypeVar("_F")


def compatibility(is_backward_compatible: bool) -> Callable[[_F], _F]:
    """A decorator that leaves what it is given as it is."""
    return lambda fn: fn


_hint_missing(__name__)
