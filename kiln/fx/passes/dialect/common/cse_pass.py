"""What a graph computes twice, computed once."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.memory import written
from kiln.fx.node import Node, map_arg, method_of_tensors
from kiln.fx.passes.infra.pass_base import PassBase, PassResult

__all__ = ["CSEPass"]


class CSEPass(PassBase):
    """Calls of functions and methods with the same arguments become one. Those that draw or write stay,
    and of `banned_ops`, and those that read or give what a write of the graph may change.

    >>> import kiln
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.sin(x) + kiln.sin(x))
    >>> [node.name for node in CSEPass()(m).graph_module.graph.nodes]
    ['x', 'sin', 'add', 'output']
    """

    def __init__(self, banned_ops: set[Any] | None = None) -> None:
        super().__init__()
        self.banned_ops = banned_ops or set()

    def call(self, graph_module: GraphModule) -> PassResult:
        """The module with the new graph."""
        old = graph_module.graph
        changing = written(old)
        graph, copied = Graph(), dict[Node, Node]()
        known: dict[Any, Node] = {}
        for node in old.nodes:
            if self._stays(node) or not changing.isdisjoint((node, *node.all_input_nodes)):
                copied[node] = graph.node_copy(node, lambda n: copied[n])
                continue
            parts = (map_arg(node.args, lambda n: copied[n]), map_arg(node.kwargs, lambda n: copied[n]))
            key = (node.op, node.target, _key(parts))
            if key not in known:
                known[key] = graph.node_copy(node, lambda n: copied[n])
            copied[node] = known[key]
        changed = len(graph.nodes) < len(old.nodes)
        graph.set_codegen(old._codegen)
        return PassResult(GraphModule(graph_module, graph), changed)

    def _stays(self, node: Node) -> bool:
        """Whether a node is no call that gives the same each time."""
        is_call = node.op == "call_function" or (
            node.op == "call_method" and method_of_tensors(node) is not None
        )
        return not is_call or node.is_impure() or node.target in self.banned_ops


def _key(a: Any) -> Any:
    """Arguments as a key: equal only for the same, -0.0 and 0, 1 and True told apart."""
    if isinstance(a, (tuple, list)):
        return type(a).__name__, tuple(map(_key, a))
    if isinstance(a, dict):
        return "dict", tuple((key, _key(item)) for key, item in a.items())
    if isinstance(a, slice):
        return "slice", _key(a.start), _key(a.stop), _key(a.step)
    return type(a), a if isinstance(a, Node) else repr(a)


_hint_missing(__name__)
