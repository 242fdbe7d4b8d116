"""A traced module as a chain of parts, each a module of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node, map_arg

__all__ = ["Partition", "split_module", "split_module_simple"]


class Partition:
    """One part: its nodes, what it takes and gives, and what must run before it."""

    def __init__(self, name: Any, submod_name: str | None = None) -> None:
        self.name = name
        self.submod_name = submod_name or f"submod_{name}"
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
    keep_original_input_name: bool = True,
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
) -> GraphModule:
    """A module of submodules `submod_0, submod_1, ...`: `split_callback(node)` says for each call which part
    it belongs to. `root_m` holds the parameters and modules. `qualname_map` gets the old dotted name of each
    new one. `partition_affix` goes into their names (`submod_fast_0`); with `tuple_return` those that
    give one result give a tuple of one. RuntimeError if the parts need each other.

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
        part = f"submod_{name}" if partition_affix is None else f"submod_{partition_affix}_{name}"
        parts.setdefault(name, Partition(name, part)).nodes.append(node)
        home[node] = name
    crossing(m, parts, home)
    order = list(parts) if keep_original_order else _sorted(parts)
    keep = bool(keep_original_node_name)
    for one in parts.values():
        copied(one, root_m, qualname_map, keep, tuple_return, keep_original_input_name)
    return assembled(m, parts, order, keep, tuple_return)


def split_module_simple(
    m: GraphModule, node_to_partition: dict[Node, int], *, partition_affix: str | None = None
) -> GraphModule:
    """The same, where a dict says which part a node belongs to."""
    return split_module(m, m, node_to_partition.__getitem__, partition_affix=partition_affix)


def crossing(m: GraphModule, parts: dict[Any, Partition], home: dict[Node, Any]) -> None:
    """Notes what crosses from one part to another."""
    for node in m.graph.nodes:
        for used in node.all_input_nodes:
            if home.get(used) == home.get(node) and used in home:
                continue
            if used in home:
                parts[home[used]].outputs.setdefault(used)
            if node in home:
                parts[home[node]].inputs.setdefault(used)
                if used in home:
                    parts[home[node]].dependencies.setdefault(home[used])


def copied(
    part: Partition,
    root: Any,
    names: dict[str, str] | None,
    keep_names: bool,
    tuple_return: bool,
    keep_input_names: bool = True,
) -> None:
    """Fills the graph of a part."""
    for k, used in enumerate(part.inputs):
        made = part.graph.placeholder(used.name if keep_input_names else f"arg_{k}", type_expr=used.type)
        made.meta = used.meta.copy()
        part.environment[used] = made
    for node in part.nodes:
        _copy(node, part, root, names, keep_names)
    given = tuple(part.environment[n] for n in part.outputs)
    part.graph.output(given[0] if len(given) == 1 and not tuple_return else given)


def _copy(node: Node, part: Partition, root: Any, names: dict[str, str] | None, keep: bool) -> None:
    """Adds a node to its part."""
    target: Any = node.target
    if node.op in ("call_module", "get_attr"):
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


def assembled(
    m: GraphModule,
    parts: dict[Any, Partition],
    order: list[Any],
    keep: bool,
    tuple_return: bool = False,
    kind: type[GraphModule] = GraphModule,
) -> GraphModule:
    """The module that calls the parts."""
    graph, values = Graph(), dict[Node, Node]()
    held: dict[str, Any] = {}
    wanted = {used for part in parts.values() for used in part.inputs}
    wanted.update(m.graph.output_node().all_input_nodes)
    for node in m.graph.nodes:
        if node.op == "placeholder":
            default = node.args[0] if node.args else ...
            values[node] = graph.placeholder(str(node.target), node.type, default)
            values[node].meta = node.meta.copy()
        elif node.op == "get_attr" and node in wanted:
            held[str(node.target)] = _reached(m, str(node.target))
            values[node] = graph.get_attr(str(node.target), node.type)
            values[node].meta = node.meta.copy()
    for name in order:
        part = parts[name]
        held[part.submod_name] = kind(part.targets, part.graph)
        for used in part.inputs:
            if used not in values:
                raise RuntimeError(f"{part.submod_name} runs before {used}, which it uses")
        call = graph.call_module(part.submod_name, tuple(values[n] for n in part.inputs))
        outputs = list(part.outputs)
        single = len(outputs) == 1 and not tuple_return
        if single:
            values[outputs[0]] = call
        for k, node in enumerate(() if single else outputs):
            item = graph.call_function(operator.getitem, (call, k), name=node.name if keep else None)
            item.meta = node.meta.copy()
            values[node] = item
    output = m.graph.output_node()
    graph.output(map_arg(output.args[0], lambda n: values[n]))
    return kind(held, graph)


_hint_missing(__name__)
