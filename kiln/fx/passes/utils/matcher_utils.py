"""The search for parts of a graph that look like a pattern."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.node import Node
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["InternalMatch", "SubgraphMatcher"]


@dataclass
class InternalMatch:
    """A part that was found."""

    anchors: list[Node]  # the pattern's last nodes
    nodes_map: dict[Node, Node] = field(default_factory=dict)  # node of the pattern -> of the graph
    placeholder_nodes: list[Any] = field(
        default_factory=list
    )  # what the pattern's placeholders are, in order
    returning_nodes: list[Node] = field(default_factory=list)  # what it returns
    name_node_map: dict[str, Node] = field(default_factory=dict)

    def copy(self) -> InternalMatch:
        """The same, to go on from."""
        return InternalMatch(
            self.anchors, dict(self.nodes_map), list(self.placeholder_nodes), list(self.returning_nodes)
        )


class SubgraphMatcher:
    """Finds the parts of graphs that look like `pattern`: nodes of the same kind, target and arguments, used
    by no other node but where the pattern returns them.

    `match_output`, `match_placeholder`: outputs and placeholders match their like alone.
    `ignore_literals`: numbers and texts of the pattern stand for any.
    """

    def __init__(
        self,
        pattern: Graph,
        match_output: bool = False,
        match_placeholder: bool = False,
        remove_overlapping_matches: bool = True,
        ignore_literals: bool = False,
    ) -> None:
        self.pattern, self.match_output, self.match_placeholder = pattern, match_output, match_placeholder
        self.remove_overlapping_matches, self.ignore_literals = remove_overlapping_matches, ignore_literals
        if len(pattern.nodes) == 0:
            raise ValueError("SubgraphMatcher cannot be initialized with an empty pattern")
        for node in pattern.nodes:
            if node.op != "output" and not node.users:
                raise AssertionError("SubgraphMatcher cannot be initialized with an pattern with dead code")
        self.pattern_placeholder_nodes = [n for n in pattern.nodes if n.op == "placeholder"]
        output = pattern.output_node()
        self.pattern_returning_nodes: list[Node] = output.all_input_nodes
        if match_output:
            self.pattern_anchors = [output]
        else:
            self.pattern_anchors = [n for n in output.all_input_nodes if len(n.users) == 1]

    def match(self, graph: Graph, node_name_match: str = "") -> list[InternalMatch]:
        """The parts of a graph, in order; those that overlap with one before them left out."""
        candidates: list[list[Node]] = []
        for anchor in self.pattern_anchors:
            found = [n for n in graph.nodes if self._alike(anchor, n)]
            if node_name_match:
                named = [n for n in found if n.name == node_name_match]
                found = named or found
            candidates.append(found)
        matches: list[InternalMatch] = []
        self._from_anchors(0, candidates, InternalMatch([]), matches)
        valid = [m for m in matches if self._contained(m)]
        kept: list[InternalMatch] = []
        taken: set[Node] = set()
        for m in valid:
            own = {n for p, n in m.nodes_map.items() if p.op not in ("placeholder", "output", "get_attr")}
            if self.remove_overlapping_matches and own & taken:
                continue
            taken |= own
            m.placeholder_nodes = [m.nodes_map[p] for p in self.pattern_placeholder_nodes if p in m.nodes_map]
            m.returning_nodes = [m.nodes_map[p] for p in self.pattern_returning_nodes]
            kept.append(m)
        return kept

    def _from_anchors(
        self, k: int, candidates: list[list[Node]], match: InternalMatch, matches: list[InternalMatch]
    ) -> None:
        if k == len(candidates):
            matches.append(match)
            return
        for node in candidates[k]:
            further = InternalMatch(self.pattern_anchors, dict(match.nodes_map))
            if self._node(self.pattern_anchors[k], node, further):
                self._from_anchors(k + 1, candidates, further, matches)

    def _alike(self, pattern: Node, node: Node) -> bool:
        """Whether a node may be one of the pattern's, its arguments aside."""
        if not self.match_placeholder and pattern.op == "placeholder":
            return True
        if pattern.op != node.op:
            return False
        if pattern.op in ("placeholder", "output"):
            return True
        if pattern.op == "get_attr":
            return _same_attribute(_held(pattern), _held(node)) or pattern.target == node.target
        return bool(pattern.target == node.target)

    def _node(self, pattern: Any, node: Any, match: InternalMatch) -> bool:
        """Whether the part that ends at a node looks like the pattern that ends at another; kept in match."""
        if not isinstance(pattern, Node):
            return bool(type(pattern) is type(node) and pattern == node)
        if pattern in match.nodes_map:
            return match.nodes_map[pattern] is node
        if pattern.op == "placeholder" and not self.match_placeholder:
            match.nodes_map[pattern] = node
            return True
        if not isinstance(node, Node) or any(n is node for n in match.nodes_map.values() if n is not None):
            return False
        if not self._alike(pattern, node):
            return False
        before = dict(match.nodes_map)
        match.nodes_map[pattern] = node
        if pattern.op == "placeholder":
            return True
        if self._arguments(pattern, node, match):
            return True
        match.nodes_map.clear()
        match.nodes_map.update(before)
        return False

    def _arguments(self, pattern: Node, node: Node, match: InternalMatch) -> bool:
        left, right = pattern, node
        if left.op == "call_function" and (
            left.kwargs.keys() != right.kwargs.keys() or len(left.args) != len(right.args)
        ):
            placed = _by_place(left, right)
            if placed is None:
                return False
            return self._lists(*placed, match)
        if left.kwargs.keys() != right.kwargs.keys():
            return False
        pairs = [right.kwargs[key] for key in left.kwargs]
        return self._lists([*left.args, *left.kwargs.values()], [*right.args, *pairs], match)

    def _lists(self, left: Any, right: Any, match: InternalMatch) -> bool:
        return len(left) == len(right) and all(self._argument(a, b, match) for a, b in zip(left, right))

    def _argument(self, left: Any, right: Any, match: InternalMatch) -> bool:
        if isinstance(left, Node):
            return self._node(left, right, match)
        if isinstance(left, (list, tuple)):
            return isinstance(right, (list, tuple)) and self._lists(left, right, match)
        if isinstance(left, dict):
            return (
                isinstance(right, dict)
                and left.keys() == right.keys()
                and all(self._argument(left[k], right[k], match) for k in left)
            )
        if isinstance(left, slice):
            return isinstance(right, slice) and self._lists(
                (left.start, left.stop, left.step), (right.start, right.stop, right.step), match
            )
        if isinstance(right, Node):
            return False
        return self.ignore_literals or bool(type(left) is type(right) and left == right)

    def _contained(self, match: InternalMatch) -> bool:
        """Whether what the part computes on its way is used by it alone."""
        own = {n for n in match.nodes_map.values() if isinstance(n, Node)}
        free = {*self.pattern_returning_nodes, *self.pattern_placeholder_nodes}
        for pattern, node in match.nodes_map.items():
            if pattern in free or pattern.op in ("output", "get_attr") or not isinstance(node, Node):
                continue
            if any(user not in own for user in node.users):
                return False
        return True


def _by_place(left: Node, right: Node) -> tuple[list[Any], list[Any]] | None:
    """The arguments of two calls of a function that are given by place in one and by name in the other."""
    try:
        signature = inspect.signature(left.target)  # type: ignore[arg-type]
        bound = [signature.bind(*n.args, **n.kwargs) for n in (left, right)]
    except (TypeError, ValueError):
        return None
    for b in bound:
        b.apply_defaults()
    if bound[0].arguments.keys() != bound[1].arguments.keys():
        return None
    return list(bound[0].arguments.values()), [bound[1].arguments[k] for k in bound[0].arguments]


def _same_attribute(left: Any, right: Any) -> bool:
    """Whether what two modules hold is of one kind: tensors, or objects of one class."""
    if isinstance(left, _core.Tensor) or isinstance(right, _core.Tensor):
        return isinstance(left, _core.Tensor) and isinstance(right, _core.Tensor)
    return left is not None and type(left) is type(right)


def _held(node: Node) -> Any:
    """What the module of a node's graph holds under its target."""
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found


_name_helpers(globals(), __name__)
_hint_missing(__name__)
