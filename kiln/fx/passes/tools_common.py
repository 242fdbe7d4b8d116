"""What passes share."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node

__all__ = [
    "CALLABLE_NODE_OPS", "NodeList", "NodeSet", "get_acc_ops_name", "get_node_target",
    "is_node_output_tensor", "legalize_graph", "stable_topological_sort",
]  # fmt: skip

NodeList = list[Node]
NodeSet = set[Node]
CALLABLE_NODE_OPS = {"call_module", "call_function", "call_method"}


def get_acc_ops_name(k: Any) -> str:
    """The name of a function with that of its package."""
    if isinstance(k, str):
        return k
    module = (getattr(k, "__module__", "") or "").replace("torch._ops", "torch.ops")
    return f"{module}.{k.__name__}" if module else str(k.__name__)


def get_node_target(submodules: Any, node: Node) -> str:
    """What a node calls, as text: the class of a module, the name of a function or method."""
    if node.op not in CALLABLE_NODE_OPS:
        raise AssertionError(
            f"Expect op types of {', '.join(sorted(CALLABLE_NODE_OPS))}, but found {node.op}"
        )
    if node.op == "call_module":
        module = submodules[node.target]
        kind = getattr(module, "_base_class_origin", type(module))
        return get_acc_ops_name(kind)
    return get_acc_ops_name(node.target)


def is_node_output_tensor(node: Node) -> bool:
    """Whether `ShapeProp` found a node to give a tensor."""
    kind = node.meta.get("type")
    return isinstance(kind, type) and issubclass(kind, _core.Tensor)


def legalize_graph(gm: GraphModule) -> GraphModule:
    """Puts the nodes of a graph that is out of order in order, each behind what it uses. RuntimeError if
    there is a cycle.
    """
    return stable_topological_sort(gm)


def stable_topological_sort(gm: GraphModule) -> GraphModule:
    """The same: of nodes that may come next, the one that stands first."""
    graph: Graph = gm.graph
    waiting, done = list(graph.nodes), set[Node]()
    order: list[Node] = []
    while waiting:
        ready = next((n for n in waiting if all(used in done for used in n.all_input_nodes)), None)
        if ready is None:
            raise RuntimeError(f"Input graph has cycles, unable to add {waiting[:3]}")
        waiting.remove(ready)
        done.add(ready)
        order.append(ready)
    for node in order:
        graph._root.prepend(node)
    gm.recompile()
    return gm


_hint_missing(__name__)
