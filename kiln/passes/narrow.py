"""Narrow dtypes as what they are: where elements only move, and in products.

An op computes in float32 inside, so what it does with arrays of bfloat16 begins and ends as

    convert(move(convert(a, float32)), bfloat16)                 moves: views, writes, joins, gathers, choices
    product(move(convert(a, float32)), move(convert(b, float32)))

which reads and writes twice as much as need be, and all of an array of which little is gathered. Here the
first becomes `move(a)`, and the second `product_wide(move(a), move(b))`: the factors stay as they are, the
sums are float32. This is done to the graph of one op or of one derivative, never to a program: a user who
converts to float32 himself gets products of float32, recorded or not.

Of integers converted to int32 the sums are the same numbers, so `simplify` does it wherever it finds them:
what a user writes for int8 reads a quarter and runs on tiles.
"""

from __future__ import annotations

from kiln.graph.graph import Graph, Node, Value
from kiln.passes.rewrite import append
from kiln.table.kinds import ROUNDED, SUMS, VIEWS
from kiln.table.record import find


def narrow(graph: Graph) -> Graph:
    """Replaces both, in place; the graph."""
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        if node.op.name == "product":
            factors = narrow_factors(graph, node.inputs)
            if factors is not None:
                node.op, node.inputs = find("product_wide"), factors
        elif node.op.name == "convert" and node.out.dtype in ROUNDED:
            moves = _moves(node.inputs[0], rounded=True)
            if moves and moves[0].inputs[0].dtype == node.out.dtype and moves[-1].op.name != "convert":
                last = _moved(graph, moves).node
                assert last is not None
                last.out, node.out.node = node.out, last
                continue
        graph.nodes.append(node)
    return graph


def narrow_factors(graph: Graph, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
    """The factors of a product before they were converted to the dtype of their sums, if both were."""
    found = [_moves(v) for v in inputs]
    sources = {moves[0].inputs[0].dtype for moves in found if moves}
    if not all(found) or len(sources) > 1 or SUMS.get(*sources) != inputs[0].dtype:
        return None
    return tuple(_moved(graph, moves) for moves in found)


def _moves(value: Value, rounded: bool = False) -> list[Node]:
    """The conversions from one narrower dtype that a value's elements come from, then what moves them, each
    after what it moves; nothing if there is more to it. Numbers among them are zeros, or any if all is
    `rounded` in the end.
    """
    conversions: list[Node] = []
    moves: list[Node] = []
    stack, seen = [(value, False)], set[int]()
    while stack:
        value, done = stack.pop()
        node = value.node
        if done and node is not None:
            moves.append(node)
        elif id(value) not in seen:
            seen.add(id(value))
            if node is not None and node.op.name == "convert":
                conversions.append(node)
                continue
            arrays = None if node is None else _arrays(node, rounded)
            if arrays is None:
                return []
            stack.append((value, True))
            stack.extend((x, False) for x in arrays)
    dtypes = {(node.inputs[0].dtype, node.out.dtype) for node in conversions}
    narrow = len(dtypes) == 1 and all(to == ("float32" if rounded else SUMS.get(of)) for of, to in dtypes)
    return [*conversions, *moves] if narrow else []


def _arrays(node: Node, rounded: bool) -> tuple[Value, ...] | None:
    """The arrays whose elements a node moves; None if it does more."""
    kind = node.op.kind
    if kind in VIEWS or kind in ("embed", "gather"):
        return node.inputs[:1]
    if kind in ("write", "concat"):
        return node.inputs
    if kind == "full":
        number = node.inputs[0].node
        zero = number is not None and number.op.kind == "constant" and number.attrs == (0,)
        return () if rounded or zero else None
    if node.op.name == "scatter_set":
        return node.inputs[::2]
    if node.op.name == "where" and not any(v.weak for v in node.inputs[1:]):
        return node.inputs[1:]
    return None


def _moved(graph: Graph, moves: list[Node]) -> Value:
    """What is converted, moved as the conversions' results are."""
    dtype = moves[0].inputs[0].dtype
    values = {id(node.out): node.inputs[0] for node in moves if node.op.name == "convert"}
    for node in moves[len(values) :]:
        inputs = tuple(values.get(id(v), v) for v in node.inputs)
        new = append(graph, _full(node, dtype) if node.op.kind == "full" else node, inputs)
        new.dtype = dtype
        values[id(node.out)] = new
    return values[id(moves[-1].out)]


def _full(node: Node, dtype: str) -> Node:
    """The same number everywhere, in another dtype."""
    new = Node(node.op, node.inputs, (node.attrs[0], dtype), node.line)
    new.out = node.out
    return new
