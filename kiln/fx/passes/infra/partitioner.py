"""The parts of a graph that something can run, as large as they may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node
from kiln.fx.passes.operator_support import OperatorSupportBase
from kiln.fx.passes.tools_common import CALLABLE_NODE_OPS
from kiln.fx.passes.utils.fuser_utils import fuse_by_partitions

__all__ = ["CapabilityBasedPartitioner", "Partition"]


class Partition:
    """Nodes that run as one; of each its place in the graph, if it was given."""

    def __init__(
        self,
        id: int | None = None,
        nodes: Iterable[Node] | None = None,
        node_orders: Iterable[int] | None = None,
    ) -> None:
        self.id = id
        self.nodes: dict[Node, int | None] = {}
        orders = None if node_orders is None else list(node_orders)
        for k, node in enumerate(nodes or ()):
            self.nodes[node] = None if orders is None else orders[k]

    def __repr__(self) -> str:
        return str(self.nodes)

    def add_node(self, node: Node, node_order: int | None = None) -> None:
        """Adds one."""
        self.nodes[node] = node_order

    def remove_node(self, node: Node) -> None:
        """Takes one out."""
        del self.nodes[node]

    def size(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)


class CapabilityBasedPartitioner:
    """Puts the nodes that `operator_support` supports together, as far as the parts then still have an order.

    Parts of one node stay as they are, unless `allows_single_node_partition` or for the names of operations
    among `allowed_single_node_partition_ops`; so do those of nothing but `non_compute_ops`.
    `skip_horizontal_fusion`: nodes are put together only if one uses the other.

    >>> import kiln
    >>> from kiln.fx.passes.operator_support import create_op_support
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.sin(kiln.relu(x) + 1))
    >>> supported = create_op_support(lambda modules, node: node.name != "sin")
    >>> made = CapabilityBasedPartitioner(m, supported).partition_and_fuse()
    >>> [node.name for node in made.graph.nodes]
    ['x', 'fused_0', 'sin', 'output']
    """

    def __init__(
        self,
        graph_module: GraphModule,
        operator_support: OperatorSupportBase,
        allows_single_node_partition: bool = False,
        non_compute_ops: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Sequence[str] | None = None,
        skip_horizontal_fusion: bool = False,
    ) -> None:
        self.graph_module, self.operator_support = graph_module, operator_support
        self.allows_single_node_partition = allows_single_node_partition
        self.non_compute_ops = non_compute_ops or []
        self.allowed_single_node_partition_ops = allowed_single_node_partition_ops or []
        self.skip_horizontal_fusion = skip_horizontal_fusion

    def _is_supported(self, node: Node) -> bool:
        if node.op not in CALLABLE_NODE_OPS:
            return False
        return self.operator_support.is_node_supported(dict(self.graph_module.named_modules()), node)

    def propose_partitions(self) -> list[Partition]:
        """The parts; the graph stays as it is."""
        order = {node: k for k, node in enumerate(self.graph_module.graph.nodes)}
        parts: dict[int, Partition] = {}
        home: dict[Node, int] = {}
        for number, node in enumerate(reversed(self.graph_module.graph.nodes)):
            if not self._is_supported(node):
                continue
            parts[number] = Partition(number, [node], [order[node]])
            home[node] = number
            near = list(dict.fromkeys(home[user] for user in node.users if user in home))
            others = (
                [] if self.skip_horizontal_fusion else [k for k in parts if k != number and k not in near]
            )
            into = number
            for other in (*near, *others):
                if self._may_join(parts[into], parts[other], home):
                    keep, gone = (
                        (other, into) if len(parts[other].nodes) > len(parts[into].nodes) else (into, other)
                    )
                    parts[keep].nodes.update(parts.pop(gone).nodes)
                    home.update(dict.fromkeys(parts[keep].nodes, keep))
                    into = keep
        for part in parts.values():
            part.nodes = dict(sorted(part.nodes.items(), key=lambda item: item[1] or 0))
        return [part for part in parts.values() if self.allows_single_node_partition or self._is_worth(part)]

    def _may_join(self, one: Partition, other: Partition, home: dict[Node, int]) -> bool:
        """Whether two parts may be one: nothing outside that uses one is used by the other."""
        inside = {*one.nodes, *other.nodes}
        seen = set[Node]()
        waiting = [user for node in inside for user in node.users if user not in inside]
        while waiting:
            node = waiting.pop()
            if node in inside:
                return False
            if node in seen:
                continue
            entered = [n for n in home if home[n] == home[node]] if node in home else [node]
            seen.update(entered)  # of a part that is entered, all runs
            waiting += [user for n in entered for user in n.users if user not in seen]
        return True

    def _is_worth(self, part: Partition) -> bool:
        """Whether a part is a part: it computes, with more than one node or what may stand alone."""
        names = [_name_of(node) for node in part.nodes]
        if all(name in self.non_compute_ops for name in names):
            return False
        count = sum(name not in self.non_compute_ops and name != "_operator.getitem" for name in names)
        return count > 1 or any(name in self.allowed_single_node_partition_ops for name in names)

    def fuse_partitions(self, partitions: list[Partition], prefix: str = "fused_") -> GraphModule:
        """The module with each part as a submodule."""
        return fuse_by_partitions(self.graph_module, [part.nodes for part in partitions], prefix)

    def remove_bookend_non_compute_ops(self, partitions: list[Partition]) -> None:
        """Takes out of each part the `non_compute_ops` at its beginning and its end."""

        def bookend(node: Node, part: Partition, neighbours: Any) -> bool:
            return _name_of(node) in self.non_compute_ops and not any(
                n in part.nodes for n in neighbours(node)
            )

        for part in partitions:
            for neighbours in (lambda n: n.all_input_nodes, lambda n: n.users):
                while found := [node for node in part.nodes if bookend(node, part, neighbours)]:
                    for node in found:
                        part.remove_node(node)

    def partition_and_fuse(self, prefix: str = "fused_") -> GraphModule:
        """The module with the parts that are proposed as submodules."""
        return self.fuse_partitions(self.propose_partitions(), prefix)


def _name_of(node: Node) -> str:
    """A function by its name and package, another target as it is."""
    if node.op != "call_function":
        return str(node.target)
    return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', '')}"


_hint_missing(__name__)
