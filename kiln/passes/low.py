"""Products of bfloat16 as what they are.

An op computes in float32 inside, so its product of two arrays of bfloat16 begins as

    product(convert(a, float32), convert(b, float32))       views may stand between

which reads and multiplies twice as much as need be. Here it becomes `product_wide(a, b)`: the factors stay as
they are, the sums are float32. This is done to the graph of one op or of one derivative, never to a program:
a user who converts to float32 himself gets products of float32, recorded or not.
"""

from __future__ import annotations

from kiln.graph.graph import Graph, Node, Value
from kiln.ops.kinds import VIEWS
from kiln.ops.record import find
from kiln.passes.rewrite import append


def low_products(graph: Graph) -> Graph:
    """Exchanges such products, in place; the graph."""
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        chains = [_chain(v) for v in node.inputs] if node.op.name == "product" else []
        if chains and all(chains):
            node.op = find("product_wide")
            node.inputs = tuple(_viewed(graph, chain) for chain in chains)
        graph.nodes.append(node)
    return graph


def _chain(value: Value) -> list[Node]:
    """The conversion a value comes from, and the views after it; nothing if it does not."""
    views: list[Node] = []
    while value.node is not None and value.node.op.kind in VIEWS and value.node.op.kind != "as_strided":
        views.append(value.node)
        value = value.node.inputs[0]
    node = value.node
    low = node is not None and node.op.name == "convert" and node.inputs[0].dtype == "bfloat16"
    return [node, *reversed(views)] if low and node is not None and value.dtype == "float32" else []


def _viewed(graph: Graph, chain: list[Node]) -> Value:
    """What a chain converts, through its views."""
    value = chain[0].inputs[0]
    for view in chain[1:]:
        value = append(graph, view, (value, *view.inputs[1:]))
        value.dtype = "bfloat16"
    return value
