"""Products of narrow dtypes as what they are.

An op computes in float32 inside, so its product of two arrays of bfloat16 begins as

    product(convert(a, float32), convert(b, float32))       views may stand between

which reads and multiplies twice as much as need be. Here it becomes `product_wide(a, b)`: the factors stay as
they are, the sums are float32. This is done to the graph of one op or of one derivative, never to a program:
a user who converts to float32 himself gets products of float32, recorded or not.

Of integers converted to int32 the sums are the same numbers, so `simplify` does it wherever it finds them:
what a user writes for int8 reads a quarter and runs on tiles.
"""

from __future__ import annotations

from kiln.graph.graph import Graph, Node, Value
from kiln.ops.kinds import SUMS, VIEWS
from kiln.ops.record import find
from kiln.passes.rewrite import append


def low_products(graph: Graph) -> Graph:
    """Exchanges such products, in place; the graph."""
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        factors = low_factors(graph, node.inputs) if node.op.name == "product" else None
        if factors is not None:
            node.op, node.inputs = find("product_wide"), factors
        graph.nodes.append(node)
    return graph


def low_factors(graph: Graph, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
    """The factors of a product before they were converted to the dtype of their sums, if both were."""
    chains = [_chain(v) for v in inputs]
    sources = {chain[0].inputs[0].dtype for chain in chains if chain}
    if not all(chains) or len(sources) > 1:
        return None
    return tuple(_viewed(graph, chain) for chain in chains)


def _chain(value: Value) -> list[Node]:
    """The conversion a value comes from, and the views after it; nothing if it does not."""
    views: list[Node] = []
    while value.node is not None and value.node.op.kind in VIEWS and value.node.op.kind != "as_strided":
        views.append(value.node)
        value = value.node.inputs[0]
    node = value.node
    low = node is not None and node.op.name == "convert" and SUMS.get(node.inputs[0].dtype) == value.dtype
    return [node, *reversed(views)] if low and node is not None else []


def _viewed(graph: Graph, chain: list[Node]) -> Value:
    """What a chain converts, through its views."""
    source = value = chain[0].inputs[0]
    for view in chain[1:]:
        value = append(graph, view, (value, *view.inputs[1:]))
        value.dtype = source.dtype
    return value
