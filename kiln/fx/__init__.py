"""Names of PyTorch's symbolic tracer: a program that names them is imported; tracing is refused.

`isinstance(x, fx.Proxy)` is False of every value, as where nothing is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kiln.absent import no_attribute as _no_attribute
from kiln.absent import refuse as _refuse
from kiln.nn import Module as _Module

__all__ = [
    "Graph", "GraphModule", "Interpreter", "Node", "Proxy", "Tracer", "Transformer", "has_side_effect",
    "replace_pattern", "symbolic_trace", "wrap",
]  # fmt: skip

_T = TypeVar("_T")


class _Refused:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(f"fx.{type(self).__name__}")


class Proxy(_Refused):
    """A value while a program is traced. NotImplementedError."""


class Node(_Refused):
    """An operation of a traced program. NotImplementedError."""


class Graph(_Refused):
    """A traced program. NotImplementedError."""


class Tracer(_Refused):
    """What traces programs. NotImplementedError."""


class Interpreter(_Refused):
    """What runs a traced program node by node. NotImplementedError."""


class Transformer(Interpreter):
    """What makes another program of a traced one. NotImplementedError."""


class GraphModule(_Module):
    """A module that runs a traced program. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("fx.GraphModule")


def wrap(fn_or_name: _T) -> _T:
    """A function that tracing would not look into, as it is.

    >>> kiln.fx.wrap(len) is len
    True
    """
    return fn_or_name


def has_side_effect(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a traced program would keep, as it is."""
    return fn


def symbolic_trace(root: Any, concrete_args: Any = None) -> NoReturn:
    """NotImplementedError: programs are not read; `kiln.compile` records what runs."""
    _refuse("fx.symbolic_trace")


def replace_pattern(gm: Any, pattern: Any, replacement: Any) -> NoReturn:
    """NotImplementedError: there are no traced programs."""
    _refuse("fx.replace_pattern")


_FILES = ("graph_module", "node", "proxy")


def _found(name: str) -> Any:
    """`__getattr__`, which type checkers do not see."""
    if name not in _FILES:
        _no_attribute(__name__, name)
    return _import_module(f"kiln.fx.{name}")


if not TYPE_CHECKING:
    __getattr__ = _found
