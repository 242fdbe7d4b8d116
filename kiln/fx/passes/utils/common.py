"""Graphs as modules, and graphs compared."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.passes.utils.matcher_utils import SubgraphMatcher
from kiln.nn import Module

__all__ = ["HolderModule", "compare_graphs", "lift_subgraph_as_module"]


class HolderModule(Module):
    """A module that has the modules of a dict."""

    def __init__(self, d: dict[str, Module | None]) -> None:
        super().__init__()
        for name, module in d.items():
            self.add_module(name, module)


def lift_subgraph_as_module(
    gm: GraphModule, subgraph: Graph, comp_name: str = "", class_name: str = "GraphModule"
) -> tuple[GraphModule, dict[str, str]]:
    """A graph whose nodes name what `gm` holds as a module of its own, and the names there of what it calls:
    the last part of the old ones. `comp_name` stands before the new names in that dict.
    """
    held, renamed = HolderModule({}), dict[str, str]()
    for node in subgraph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        target = str(node.target)
        *above, last = target.split(".")
        at: Any = gm
        for part in above:
            at = getattr(at, part)
        name, number = last, 0
        while hasattr(held, name) and getattr(held, name) is not getattr(at, last):
            number += 1
            name = f"{last}_{number}"
        setattr(held, name, getattr(at, last))
        renamed[f"{comp_name}.{name}" if comp_name else name] = target
        node.target = name
    return GraphModule(held, subgraph, class_name), renamed


def compare_graphs(left: Graph, right: Graph) -> bool:
    """Whether two graphs do the same: nodes of the same kinds, targets and arguments, however named.

    >>> from kiln.fx import symbolic_trace
    >>> first, second = (symbolic_trace(lambda x: x + 1).graph, symbolic_trace(lambda y: y + 1).graph)
    >>> compare_graphs(first, second)
    True
    """
    return bool(SubgraphMatcher(left, match_output=True, match_placeholder=True).match(right))


_hint_missing(__name__)
