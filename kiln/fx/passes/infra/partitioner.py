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


class _Parts:
    """The parts so far of a graph that is gone through from its end, and what runs behind what.

    A *unit* is a part, or a node that is in none. Sets of nodes are ints, with a bit for each.
    """

    def __init__(self) -> None:
        self.made: dict[int, Partition] = {}
        self._unit: dict[Node, int] = {}
        self._inside: dict[int, int] = {}  # unit -> its nodes
        self._behind: dict[int, int] = {}  # unit -> its nodes, and those of all that run behind it
        self._users: dict[int, set[Node]] = {}  # unit -> what uses its nodes, and is in another

    def add(self, unit: int, node: Node) -> None:
        """A node as a unit of its own, which may be made a part; what uses it is there."""
        self._unit[node], self._users[unit] = unit, set(node.users)
        self._inside[unit] = self._behind[unit] = 1 << unit
        for user in node.users:
            self._behind[unit] |= self._behind[self._unit[user]]

    def of_users(self, node: Node) -> list[int]:
        """The parts that use a node."""
        return [k for k in dict.fromkeys(self._unit[user] for user in node.users) if k in self.made]

    def may_join(self, one: int, other: int) -> bool:
        """Whether two parts may be one: nothing between them is to run behind one and before the other."""
        for first, last in ((one, other), (other, one)):
            if self._behind[first] & self._inside[last]:
                between = {self._unit[user] for user in self._users[first]} - {last}
                return not any(self._behind[k] & self._inside[last] for k in between)
        return True

    def join(self, one: int, other: int) -> int:
        """Puts the smaller of two parts into the other, which it gives."""
        keep, gone = (other, one) if self.made[other].size() > self.made[one].size() else (one, other)
        nodes = self.made.pop(gone).nodes
        self.made[keep].nodes.update(nodes)
        self._unit.update(dict.fromkeys(nodes, keep))
        inside = self._inside[keep] = self._inside[keep] | self._inside.pop(gone)
        self._users[keep] = {
            user for k in (keep, gone) for user in self._users[k] if self._unit[user] != keep
        }
        behind = self._behind[keep] | self._behind.pop(gone)
        for unit, found in self._behind.items():
            if found & inside:  # all of a part runs behind what one of its nodes runs behind
                self._behind[unit] = found | behind
        return keep


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

    def propose_partitions(self) -> list[Partition]:
        """The parts; the graph stays as it is."""
        modules, order = dict(self.graph_module.named_modules()), len(self.graph_module.graph.nodes)
        parts = _Parts()
        for number, node in enumerate(reversed(self.graph_module.graph.nodes)):
            parts.add(number, node)
            if node.op not in CALLABLE_NODE_OPS or not self.operator_support.is_node_supported(modules, node):
                continue
            near = parts.of_users(node)
            others = [] if self.skip_horizontal_fusion else [k for k in parts.made if k not in near]
            parts.made[number] = Partition(number, [node], [order - 1 - number])
            into = number
            for other in (*near, *others):
                if parts.may_join(into, other):
                    into = parts.join(into, other)
        found = list(parts.made.values())
        for part in found:
            part.nodes = dict(sorted(part.nodes.items(), key=lambda item: item[1] or 0))
        return [part for part in found if self.allows_single_node_partition or self._is_worth(part)]

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
