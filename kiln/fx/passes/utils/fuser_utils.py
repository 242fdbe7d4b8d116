"""Sets of nodes put into a module of their own, which one node calls."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node
from kiln.fx.passes.tools_common import legalize_graph
from kiln.fx.passes.utils.common import lift_subgraph_as_module

__all__ = [
    "erase_nodes",
    "fuse_as_graphmodule",
    "fuse_by_partitions",
    "insert_subgm",
    "topo_sort",
    "validate_partition",
]


def topo_sort(nodes: Iterable[Node]) -> list[Node]:
    """The nodes, each behind those of them that it uses. AssertionError if there is a cycle."""
    among = list(nodes)
    missing = dict.fromkeys(among, 0)
    for node in among:
        missing[node] = sum(used in missing for used in node.all_input_nodes)
    order = [node for node in among if not missing[node]]
    for node in order:  # which grows: a node comes when the last of those that it uses is there
        for user in node.users:
            if user in missing:
                missing[user] -= 1
                if not missing[user]:
                    order.append(user)
    if len(order) != len(among):
        raise AssertionError("topological sorted nodes doesn't have same length as input nodes")
    return order


def validate_partition(partition: Iterable[Node]) -> bool:
    """Whether nodes may run as one: none uses what another node makes of their results."""
    inside = set(partition)
    waiting = [user for node in inside for user in node.users if user not in inside]
    seen = set[Node]()
    while waiting:
        node = waiting.pop()
        if node in inside:
            return False
        if node not in seen:
            seen.add(node)
            waiting += node.users
    return True


def fuse_as_graphmodule(
    gm: GraphModule,
    nodes: list[Node],
    module_name: str,
    partition_lookup_table: dict[Node, int | None] | None = None,
    *,
    always_return_tuple: bool = False,
) -> tuple[GraphModule, tuple[Node, ...], tuple[Node, ...]]:
    """Nodes, in order, as a module; what it is given, and which nodes' results it gives: those that others
    use. AssertionError if they cannot run as one.
    """
    for node in nodes:
        if node.graph.owning_module is not gm or node._erased:
            raise AssertionError(f"{node} is not found in graph module {gm._get_name()}")
    if not validate_partition(nodes):
        raise AssertionError("Invalid partition, found dependency cycles")
    inside = set(nodes)
    graph, copied, given = Graph(), dict[Node, Node](), dict[Node, Node]()

    def of(used: Node) -> Node:
        if used in copied:
            return copied[used]
        if used.op == "get_attr" and used not in inside:
            copied[used] = graph.node_copy(used, of)
            return copied[used]
        if used not in given:
            at = next(reversed(given.values()), None)
            with graph.inserting_after(at) if at is not None else graph.inserting_before(_first(graph)):
                given[used] = graph.placeholder(used.name, used.type)
            given[used].meta = used.meta.copy()
        return given[used]

    for node in nodes:
        copied[node] = graph.node_copy(node, of)
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    made = tuple(copied[node] for node in results)
    graph.output(made[0] if len(made) == 1 and not always_return_tuple else made)
    graph.lint()
    module, _ = lift_subgraph_as_module(gm, graph, class_name=module_name)
    return module, tuple(given), tuple(results)


def _first(graph: Graph) -> Node | None:
    return next(iter(graph.nodes), None)


def insert_subgm(
    gm: GraphModule,
    sub_gm: GraphModule,
    orig_inputs: tuple[Node, ...],
    orig_outputs: tuple[Node, ...],
    insertion_point: Node | None = None,
) -> GraphModule:
    """Puts a module into another under its class's name and calls it; what nodes gave is then taken from its
    results; the call stands before `insertion_point`, or behind the last of the nodes that it replaces.
    """
    name = type(sub_gm).__name__
    gm.add_submodule(name, sub_gm)
    last = max(orig_outputs) if orig_outputs else None
    if insertion_point is None and last is not None:
        insertion_point = last.next
    with gm.graph.inserting_before(insertion_point):
        call = gm.graph.call_module(name, orig_inputs)
        call.meta["val"] = tuple(node.meta.get("val") for node in orig_outputs)
        single = len(orig_outputs) == 1 and not isinstance(sub_gm.graph.output_node().args[0], tuple)
        for k, node in enumerate(orig_outputs):
            made = call if single else gm.graph.call_function(operator.getitem, (call, k))
            if single:
                call.meta = node.meta.copy()
            else:
                made.meta = node.meta.copy()
            node.replace_all_uses_with(made)
    return gm


def erase_nodes(gm: GraphModule, nodes: list[Node]) -> None:
    """Erases nodes that stand in order, the last one first."""
    for node in reversed(nodes):
        gm.graph.erase_node(node)


def fuse_by_partitions(
    gm: GraphModule,
    partitions: list[dict[Node, int | None]],
    prefix: str = "fused_",
    always_return_tuple: bool = False,
) -> GraphModule:
    """Puts each of some sets of nodes into a submodule `fused_0`, `fused_1`, ...: in the order of
    their places, where those are given.
    """
    for k, partition in enumerate(partitions):
        places = list(partition.values())
        order = (
            topo_sort(partition)
            if None in places
            else sorted(partition, key=lambda node: partition[node] or 0)
        )
        module, given, results = fuse_as_graphmodule(
            gm, order, f"{prefix}{k}", partition, always_return_tuple=always_return_tuple
        )
        insert_subgm(gm, module, given, results)
        erase_nodes(gm, order)
    legalize_graph(gm)
    gm.graph.lint()
    return gm


_hint_missing(__name__)
