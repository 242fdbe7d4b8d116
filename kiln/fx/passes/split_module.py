"""A traced module as a chain of parts, each a module of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node, map_arg

__all__ = ["Partition", "split_module"]


class Partition:
    """One part: its nodes, what it takes and gives, and what must run before it."""

    def __init__(self, name: Any) -> None:
        self.name = name
        self.submod_name = f"submod_{name}"
        self.nodes: list[Node] = []
        self.inputs: dict[Node, None] = {}
        self.outputs: dict[Node, None] = {}
        self.dependencies: dict[Any, None] = {}
        self.graph = Graph()
        self.environment: dict[Node, Node] = {}
        self.targets: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"name: {self.name},\n nodes: {self.nodes},\n inputs: {list(self.inputs)}"


def split_module(
    m: GraphModule,
    root_m: Any,
    split_callback: Callable[[Node], int],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,
    keep_original_node_name: bool | None = False,
    **more: Any,
) -> GraphModule:
    """A module of submodules `submod_0, submod_1, ...`: `split_callback(node)` says for each call which part
    it belongs to. `root_m` holds the parameters and modules. `qualname_map` gets the old dotted name of each
    new one. RuntimeError if the parts need each other.

    >>> import kiln
    >>> from kiln.fx.passes.split_module import split_module
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.relu(x) + 1)
    >>> parts = split_module(m, m, lambda node: 0 if node.name == "relu" else 1)
    >>> print(parts.code.strip())
    def forward(self, x):
        submod_0 = self.submod_0(x);  x = None
        submod_1 = self.submod_1(submod_0);  submod_0 = None
        return submod_1
    """
    parts: dict[Any, Partition] = {}
    home: dict[Node, Any] = {}
    for node in m.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        name = split_callback(node)
        parts.setdefault(name, Partition(name)).nodes.append(node)
        home[node] = name
    for node in m.graph.nodes:  # what crosses from one part to another
        for used in node.all_input_nodes:
            if home.get(used) == home.get(node) and used in home:
                continue
            if used in home:
                parts[home[used]].outputs.setdefault(used)
            if node in home:
                parts[home[node]].inputs.setdefault(used)
                if used in home:
                    parts[home[node]].dependencies.setdefault(home[used])
    order = list(parts) if keep_original_order else _sorted(parts)
    for part in parts.values():
        for used in part.inputs:
            made = part.graph.placeholder(used.name, type_expr=used.type)
            made.meta = used.meta.copy()
            part.environment[used] = made
        for node in part.nodes:
            _copy(node, part, root_m, qualname_map, bool(keep_original_node_name))
        given = tuple(part.environment[n] for n in part.outputs)
        if given:
            part.graph.output(given[0] if len(given) == 1 else given)
        else:
            part.graph.output(())
    return _assembled(m, parts, order, bool(keep_original_node_name))


def _copy(node: Node, part: Partition, root: Any, names: dict[str, str] | None, keep: bool) -> None:
    """Adds a node to its part."""
    target: Any = node.target
    if node.op == "call_module":
        target = str(node.target).replace(".", "_")
        part.targets[target] = _reached(root, str(node.target))
        if names is not None:
            names[f"{part.submod_name}.{target}"] = str(node.target)
    args = map_arg(node.args, lambda n: part.environment[n])
    kwargs = map_arg(node.kwargs, lambda n: part.environment[n])
    copied = part.graph.create_node(
        node.op, target, args, dict(kwargs), node.name if keep else None, node.type
    )
    copied.meta = node.meta.copy()
    part.environment[node] = copied


def _reached(module: Any, path: str) -> Any:
    for name in path.split("."):
        if not hasattr(module, name):
            raise AttributeError(f"Operator target {path} not found!")
        module = getattr(module, name)
    return module


def _sorted(parts: dict[Any, Partition]) -> list[Any]:
    """The parts' names, each behind those that it needs."""
    order: list[Any] = []
    waiting = list(parts)
    while waiting:
        ready = next((n for n in waiting if all(d in order for d in parts[n].dependencies)), None)
        if ready is None:
            raise RuntimeError("cycle exists between partitions!")
        waiting.remove(ready)
        order.append(ready)
    return order


def _assembled(m: GraphModule, parts: dict[Any, Partition], order: list[Any], keep: bool) -> GraphModule:
    """The module that calls the parts."""
    graph, values = Graph(), dict[Node, Node]()
    held: dict[str, Any] = {}
    for node in m.graph.nodes:
        if node.op == "placeholder":
            default = node.args[0] if node.args else ...
            values[node] = graph.placeholder(str(node.target), node.type, default)
            values[node].meta = node.meta.copy()
        elif node.op == "get_attr":
            held[str(node.target)] = _reached(m, str(node.target))
            values[node] = graph.get_attr(str(node.target), node.type)
            values[node].meta = node.meta.copy()
    for name in order:
        part = parts[name]
        held[part.submod_name] = GraphModule(part.targets, part.graph)
        for used in part.inputs:
            if used not in values:
                raise RuntimeError(f"{part.submod_name} runs before {used}, which it uses")
        call = graph.call_module(part.submod_name, tuple(values[n] for n in part.inputs))
        outputs = list(part.outputs)
        if len(outputs) == 1:
            values[outputs[0]] = call
        for k, node in enumerate(outputs if len(outputs) > 1 else ()):
            item = graph.call_function(operator.getitem, (call, k), name=node.name if keep else None)
            item.meta = node.meta.copy()
            values[node] = item
    output = m.graph.output_node()
    graph.output(map_arg(output.args[0], lambda n: values[n]))
    return GraphModule(held, graph)


_hint_missing(__name__)
