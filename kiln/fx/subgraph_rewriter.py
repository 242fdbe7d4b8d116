"""Parts of a graph that look like a pattern, and others put in their place.

A pattern is itself a graph: its placeholders stand for anything, its other nodes for nodes of the same kind,
target and arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln.absent import hint_missing as _hint_missing
from kiln.fx._symbolic_trace import symbolic_trace
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node
from kiln.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher
from kiln.nn import Module as _Module
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]


class Match(NamedTuple):
    """A part that was found: its last node, and what each node of the pattern is."""

    anchor: Node
    nodes_map: dict[Node, Node]


class ReplacedPatterns:
    """A part that was replaced, with the nodes that stand in its place."""

    def __init__(self, anchor: Node, nodes_map: dict[Node, Node], replacements: list[Node]) -> None:
        self.anchor, self.nodes_map, self.replacements = anchor, nodes_map, replacements


def _graph_of(made: Any) -> Graph:
    if isinstance(made, GraphModule):
        return made.graph
    return made if isinstance(made, Graph) else symbolic_trace(made).graph


def replace_pattern(gm: GraphModule, pattern: Any, replacement: Any) -> list[Match]:
    """Puts `replacement` in the place of every part of a traced module's graph that looks like `pattern`;
    functions, modules or graphs of the same parameters. The matches, which do not overlap.

    >>> import kiln
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.neg(x) + kiln.relu(x))
    >>> found = kiln.fx.replace_pattern(m, lambda x: kiln.relu(x), lambda x: kiln.tanh(x))
    >>> print(m.code.strip())
    def forward(self, x):
        neg = kiln.neg(x)
        tanh = kiln.tanh(x);  x = None
        add = neg + tanh;  neg = tanh = None
        return add
    """
    return [Match(m.anchor, m.nodes_map) for m in _replace(gm, pattern, replacement)]


def replace_pattern_with_filters(
    gm: GraphModule,
    pattern: Any,
    replacement: Any = None,
    match_filters: list[Callable[[InternalMatch, Graph, Graph], bool]] | None = None,
    ignore_literals: bool = False,
    replacement_callback: Callable[[InternalMatch, Graph, Graph], Graph] | None = None,
    node_name_match: str = "",
) -> list[ReplacedPatterns]:
    """`replace_pattern` of the matches that every filter `(match, graph, pattern_graph) -> bool` takes.

    With `ignore_literals`, numbers of the pattern stand for any. `replacement_callback` makes the graph to
    put in for a match, instead of `replacement`.
    """
    return _replace(
        gm, pattern, replacement, match_filters, ignore_literals, replacement_callback, node_name_match
    )


def _take_attributes(gm: Any, replacement: Any) -> None:
    """Gives the module what the replacement's nodes name, and takes out submodules that nothing names now."""
    if isinstance(gm, GraphModule):
        gm.delete_all_unused_submodules()
    if isinstance(replacement, GraphModule):
        replacement.graph.lint()
    for node in gm.graph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        if _reached(gm, node.target) is not None:
            continue
        held = _reached(replacement, node.target)
        if held is None:
            raise RuntimeError(
                f'Attempted to create a "{node.op}" node during subgraph rewriting with target '
                f"{node.target}, but the referenced attribute does not exist in the replacement GraphModule"
            )
        copied = copy.deepcopy(held)
        if isinstance(copied, _Module):
            gm.add_submodule(node.target, copied)
        else:
            setattr(gm, node.target, copied)


def _reached(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def _replace(
    gm: GraphModule,
    pattern: Any,
    replacement: Any = None,
    match_filters: Any = None,
    ignore_literals: bool = False,
    replacement_callback: Any = None,
    node_name_match: str = "",
) -> list[ReplacedPatterns]:
    filters = match_filters or []
    graph, pattern_graph = gm.graph, _graph_of(pattern)
    matcher = SubgraphMatcher(
        pattern_graph, match_output=False, match_placeholder=False, remove_overlapping_matches=True,
        ignore_literals=ignore_literals,
    )  # fmt: skip
    matches = [
        m for m in matcher.match(graph, node_name_match) if all(f(m, graph, pattern_graph) for f in filters)
    ]
    if replacement is None and replacement_callback is None:
        raise AssertionError("Must provide either replacement GraphModule or replacement_callback")
    common = None if replacement is None else _graph_of(replacement)
    replaced: list[ReplacedPatterns] = []
    now: dict[Node, Node] = {}  # what stands in the place of nodes that are gone
    for match in matches:
        new = replacement_callback(match, graph, pattern_graph) if common is None else common
        placeholders = [n for n in new.nodes if n.op == "placeholder"]
        if len(match.placeholder_nodes) != len(placeholders):
            raise AssertionError("the replacement must have as many placeholders as the pattern")
        values = {
            p: now.get(n, n) if isinstance(n, Node) else n
            for p, n in zip(placeholders, match.placeholder_nodes)
        }
        for p, n in match.nodes_map.items():
            match.nodes_map[p] = now.get(n, n)
        wanted = new.output_node()
        users = {user for n in match.returning_nodes for user in n.users}
        internal = set(match.nodes_map.values())
        first = next((n for n in graph.nodes if n in users and n not in internal), None)
        given = [v for v in values.values() if isinstance(v, Node)]
        place = _place(graph, given, first, match)
        val_map: dict[Node, Any] = dict(values.items())
        with graph.inserting_before(place):
            for n in new.nodes:
                if n.op not in ("placeholder", "output"):
                    val_map[n] = graph.node_copy(n, val_map.__getitem__)
        returned = [val_map[n] for n in _returned(wanted)]
        for old, made in zip(match.returning_nodes, returned):
            old.replace_all_uses_with(made)
            now[old] = made
        for n in reversed(pattern_graph.nodes):
            if n.op not in ("placeholder", "output"):
                found = match.nodes_map[n]
                if not found._erased and not found.users:
                    graph.erase_node(found)
        made_nodes = [val_map[n] for n in new.nodes if n.op not in ("placeholder", "output")]
        replaced.append(ReplacedPatterns(match.anchors[0], match.nodes_map, made_nodes))
    gm.recompile()
    if replaced and isinstance(replacement, _Module):
        _take_attributes(gm, replacement)
    return replaced


def _returned(output: Node) -> list[Node]:
    """The nodes that a graph returns."""
    value = output.args[0]
    return [n for n in value if isinstance(n, Node)] if isinstance(value, (list, tuple)) else [value]


def _place(graph: Graph, given: list[Node], first_user: Node | None, match: InternalMatch) -> Node:
    """Before which node the replacement goes: behind what it is given, before what uses it."""
    order = {n: k for k, n in enumerate(graph.nodes)}
    last_given = max((order[n] for n in given), default=-1)
    if first_user is None:
        first_user = max(match.returning_nodes, key=order.__getitem__).next
    return (
        first_user
        if order.get(first_user, len(order)) > last_given
        else max(given, key=order.__getitem__).next
    )


_name_helpers(globals(), __name__)
_hint_missing(__name__)
