"""Traced modules whose calls are all written in one way."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph_module import GraphModule
from kiln.fx.interpreter import Transformer
from kiln.fx.names import root_module
from kiln.fx.operator_schemas import normalize_function, normalize_module

__all__ = ["NormalizeArgs", "NormalizeOperators"]


class NormalizeArgs(Transformer):
    """`NormalizeArgs(m).transform()`: the calls of kiln's functions and layers with all arguments by name, or
    (`normalize_to_only_use_kwargs=False`) by place where they may, defaults too.

    >>> import kiln
    >>> from kiln.fx.experimental.normalize import NormalizeArgs
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.flatten(x, 1))
    >>> print(NormalizeArgs(m).transform().code.strip())
    def forward(self, x):
        flatten = kiln.flatten(input = x, start_dim = 1, end_dim = -1);  x = None
        return flatten
    """

    def __init__(self, module: GraphModule, normalize_to_only_use_kwargs: bool = True) -> None:
        super().__init__(module)
        self.normalize_to_only_use_kwargs = normalize_to_only_use_kwargs

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A node of the call with other arguments, if it is known how they are called."""
        only = self.normalize_to_only_use_kwargs
        found = normalize_function(target, args, kwargs, normalize_to_only_use_kwargs=only)
        return super().call_function(target, *(found or (args, kwargs)))

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same of a layer's call."""
        found = normalize_module(self.module, target, args, kwargs, self.normalize_to_only_use_kwargs)
        return super().call_module(target, *(found or (args, kwargs)))


_OPERATORS = {"div": "truediv", "floor_divide": "floordiv", "remainder": "mod"}
_OPERATORS |= {name: name for name in "add sub mul eq ne lt le gt ge".split()}


class NormalizeOperators(Transformer):
    """`NormalizeOperators(m).transform()`: functions of two arguments that are operators too, as those.

    >>> import kiln
    >>> from kiln.fx.experimental.normalize import NormalizeOperators
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.add(x, 1))
    >>> print(NormalizeOperators(m).transform().code.strip())
    def forward(self, x):
        add = x + 1;  x = None
        return add
    """

    binary_magic_method_remap: dict[Any, Callable[..., Any]]

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        kiln = root_module()
        self.binary_magic_method_remap = {
            getattr(kiln, name): getattr(operator, sign) for name, sign in _OPERATORS.items()
        }

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A node of the operator, if there is one that does the same."""
        if len(args) == 2 and not kwargs:
            target = self.binary_magic_method_remap.get(target, target)
        return super().call_function(target, args, kwargs)


_hint_missing(__name__)
