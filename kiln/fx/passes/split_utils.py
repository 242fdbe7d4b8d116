"""A traced module as parts that tags of its nodes name."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node
from kiln.fx.passes.split_module import Partition, assembled, copied, crossing

__all__ = ["getattr_recursive", "setattr_recursive", "split_by_tags"]


def getattr_recursive(obj: Any, name: str) -> Any:
    """What an object has under a dotted name; None if it has nothing there."""
    for part in name.split("."):
        if not hasattr(obj, part):
            return None
        obj = getattr(obj, part)
    return obj


def setattr_recursive(obj: Any, attr: str, value: Any) -> None:
    """Sets what an object has under a dotted name."""
    *above, last = attr.split(".")
    for part in above:
        obj = getattr(obj, part)
    setattr(obj, last, value)


def split_by_tags(
    gm: GraphModule,
    tags: list[str],
    return_fqn_mapping: bool = False,
    return_tuple: bool = False,
    GraphModuleCls: type[GraphModule] = GraphModule,
) -> Any:
    """A module of submodules called as the tags are, in their order: a node's attribute `tag` is its part.
    With `return_fqn_mapping` also a dict: the names of modules in the parts, and what they were called.

    AssertionError if a call has no tag, or uses the result of a later part.

    >>> import kiln
    >>> from kiln.fx.passes.split_utils import split_by_tags
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.relu(x) + 1)
    >>> for node, tag in zip([n for n in m.graph.nodes if n.op == "call_function"], ["a", "b"]):
    ...     node.tag = tag
    >>> print(split_by_tags(m, ["a", "b"]).code.strip())
    def forward(self, x):
        a = self.a(x);  x = None
        b = self.b(a);  a = None
        return b
    """
    parts: dict[Any, Partition] = {tag: Partition(tag, tag) for tag in tags}
    home: dict[Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        tag: Any = getattr(node, "tag", None)
        if tag not in parts:
            raise AssertionError(f"Node {node.name} has no tag of {tags}: {tag}")
        for used in node.all_input_nodes:
            if used in home and tags.index(home[used]) > tags.index(tag):
                raise AssertionError(
                    f"Node {node.name} of {tag} uses {used.name} of {home[used]}, a later part"
                )
        parts[tag].nodes.append(node)
        home[node] = tag
    crossing(gm, parts, home)
    names: dict[str, str] = {}
    for part in parts.values():
        for node in [n for n in part.inputs if n.op == "get_attr"]:  # a part has its own
            del part.inputs[node]
            part.nodes.insert(0, node)
        copied(part, gm, names, False, return_tuple)
    names = {name.partition(".")[2]: old for name, old in names.items()}
    order = [tag for tag in tags if parts[tag].nodes]
    made = assembled(gm, parts, order, False, return_tuple, GraphModuleCls)
    return (made, names) if return_fqn_mapping else made


_hint_missing(__name__)
