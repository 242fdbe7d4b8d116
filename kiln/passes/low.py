"""Products of narrow dtypes as what they are.

An op computes in float32 inside, so its product of two arrays of bfloat16 begins as

    product(convert(a, float32), convert(b, float32))       views may stand between, and zeros around either

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
    return tuple(_low(graph, chain) for chain in chains)


def _chain(value: Value) -> list[Node]:
    """The conversion a value comes from, and what moves its elements after it; nothing if it does not."""
    moves: list[Node] = []
    while value.node is not None and (value.node.op.kind in VIEWS or _among_zeros(value.node)):
        moves.append(value.node)
        value = value.node.inputs[-1 if value.node.op.kind == "write" else 0]
    node = value.node
    low = node is not None and node.op.name == "convert" and SUMS.get(node.inputs[0].dtype) == value.dtype
    return [node, *reversed(moves)] if low and node is not None else []


def _among_zeros(node: Node) -> bool:
    """Whether a node writes elements into zeros."""
    into = node.inputs[0].node if node.op.kind == "write" else None
    number = into.inputs[0].node if into is not None and into.op.kind == "full" else None
    return number is not None and number.op.kind == "constant" and number.attrs == (0,)


def _low(graph: Graph, chain: list[Node]) -> Value:
    """What a chain converts, moved as it moves it."""
    value = chain[0].inputs[0]
    dtype = value.dtype
    for node in chain[1:]:
        inputs = (value, *node.inputs[1:])
        if node.op.kind == "write" and (full := node.inputs[0].node) is not None:
            zeros = Node(full.op, full.inputs, (full.attrs[0], dtype))
            zeros.out = Value(graph, zeros, dtype, full.out.shape)
            graph.nodes.append(zeros)
            inputs = (zeros.out, value)
        value = append(graph, node, inputs)
        value.dtype = dtype
    return value
