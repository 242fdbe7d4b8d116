"""Patterns that give names to their nodes."""

from __future__ import annotations

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node
from kiln.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

__all__ = ["SubgraphMatcherWithNameNodeMap"]


class SubgraphMatcherWithNameNodeMap(SubgraphMatcher):
    """A matcher of a traced pattern that returns, as its last result, a dict of nodes by name; each match
    then has `name_node_map`: those names with the nodes that were found.

    >>> import kiln
    >>> def pattern(x):
    ...     y = x + 1
    ...     return kiln.relu(y), {"sum": y}
    >>> m = kiln.fx.symbolic_trace(lambda a: kiln.relu(a + 1))
    >>> found = SubgraphMatcherWithNameNodeMap(kiln.fx.symbolic_trace(pattern)).match(m.graph)
    >>> found[0].name_node_map
    {'sum': add}
    """

    def __init__(
        self,
        pattern_gm: GraphModule,
        match_output: bool = False,
        match_placeholder: bool = False,
        remove_overlapping_matches: bool = True,
        ignore_literals: bool = False,
    ) -> None:
        graph = Graph()
        copied: dict[Node, Node] = {}
        output = pattern_gm.graph.process_outputs(graph.graph_copy(pattern_gm.graph, copied))
        graph.owning_module = pattern_gm
        if not isinstance(output, (tuple, list)) or not isinstance(output[-1], dict):
            raise AssertionError(
                "SubgraphMatcherWithNameNodeMap: the pattern must return a dict of its nodes by name as its "
                f"last result, got {output}"
            )
        *results, named = output
        self.name_to_node: dict[str, Node] = dict(named)
        graph.output(results[0] if len(results) == 1 else tuple(results))
        super().__init__(graph, match_output, match_placeholder, remove_overlapping_matches, ignore_literals)

    def match(self, graph: Graph, node_name_match: str = "") -> list[InternalMatch]:
        """The parts of a graph, each with its nodes by name."""
        found = super().match(graph, node_name_match)
        for one in found:
            for name, node in self.name_to_node.items():
                if node in one.nodes_map:
                    one.name_node_map[name] = one.nodes_map[node]
        return found


_hint_missing(__name__)
