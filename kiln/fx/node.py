"""PyTorch's path of an operation of a traced program."""

from collections.abc import Callable
from typing import Any, TypeAlias

from kiln.absent import hint_missing as _hint_missing
from kiln.fx import Node

__all__ = ["Argument", "Node", "Target"]

Argument: TypeAlias = Any
Target: TypeAlias = Callable[..., Any] | str

_hint_missing(__name__)
