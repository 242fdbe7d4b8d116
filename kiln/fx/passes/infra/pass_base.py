"""A pass over a traced module as an object."""

from __future__ import annotations

from typing import NamedTuple

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph_module import GraphModule

__all__ = ["PassBase", "PassResult"]


class PassResult(NamedTuple):
    """What a pass gives: the module, and whether it changed it."""

    graph_module: GraphModule
    modified: bool


class PassBase:
    """A pass: `call` changes a traced module; `requires` and `ensures` check before and after it."""

    def __call__(self, graph_module: GraphModule) -> PassResult | None:
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    def call(self, graph_module: GraphModule) -> PassResult | None:
        """What the pass does: to be overridden."""
        raise NotImplementedError(f"{type(self).__name__}.call is not defined")

    def requires(self, graph_module: GraphModule) -> None:
        """Called before: raises if the module is not as the pass needs it."""

    def ensures(self, graph_module: GraphModule) -> None:
        """Called behind it: raises if the module is not as the pass leaves it."""


_hint_missing(__name__)
