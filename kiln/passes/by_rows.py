"""Gradients of what the calls of a launch share, a row for each call instead of their sum.

    b [n], shared by R calls     gradient     reduce_sum(g [R, n]; dim 0)     ->     g [R, n]
    W [m, n]                     product(a.T [m, R k], b [R k, n])      ->     a [R, m, k] @ b [R, k, n]

A launch's derivative sums over its rows where a value has none. Left out there, each row is the gradient that
its call alone gives, with the same bits: what a row's sum is made of, and its order, is what that call has.
The engine adds them in the order of the calls (architecture.md 6).
"""

from __future__ import annotations

from kiln.graph.graph import Graph, Node, Value
from kiln.graph.size import Dim, product, slots_named
from kiln.table.record import find


def own_rows(value: Value, rows: Dim) -> Value | None:
    """`value` before rows are summed: its shape with `rows` in front; None where it is no such sum."""
    node = value.node
    if node is None:
        return None
    graph, name = value.graph, node.op.name
    if name == "reduce_sum" and 0 in node.attrs[0] and _same(node.inputs[0].shape[:1], rows):
        return _sum_of_each(graph, node, value, rows)
    if name == "product" and value.ndim == 2:
        return _product_of_each(graph, node, rows)
    if name == "reshape":
        inner = own_rows(node.inputs[0], rows)
        return None if inner is None else graph.add(node.op, (inner,), ((rows, *value.shape),))
    if name == "permute":
        inner = own_rows(node.inputs[0], rows)
        return (
            None if inner is None else graph.add(node.op, (inner,), ((0, *(d + 1 for d in node.attrs[0])),))
        )
    if node.op.kind == "pointwise":
        return _pointwise_of_each(node, rows)
    return None


def _same(shape: tuple[Dim, ...], rows: Dim) -> bool:
    return bool(shape) and shape[0] == rows


def _sum_of_each(graph: Graph, node: Node, value: Value, rows: Dim) -> Value:
    (x,) = node.inputs
    dims = tuple(d for d in node.attrs[0] if d)
    left = graph.add(node.op, (x,), (dims, True)) if dims else x
    return graph.add(find("reshape"), (left,), ((rows, *value.shape),))


def _product_of_each(graph: Graph, node: Node, rows: Dim) -> Value | None:
    factors = []
    for k, x in enumerate(node.inputs):  # each with what is contracted in front
        if k == 0 and x.node is not None and x.node.op.name == "permute" and x.node.attrs[0] == (1, 0):
            x = x.node.inputs[0]
        elif k == 0:
            x = graph.add(find("permute"), (x,), ((1, 0),))
        count = _each(x, rows)
        if count is None:
            return None
        factors.append(graph.add(find("reshape"), (x,), ((rows, count, x.shape[1]),)))
    left, right = factors
    return graph.add(node.op, (graph.add(find("permute"), (left,), ((0, 2, 1),)), right))


def _each(x: Value, rows: Dim) -> Dim | None:
    """How many rows of a matrix belong to each call; None: they are not the calls' one after the other."""
    if _same(x.shape, rows):
        return 1
    while x.node is not None and x.node.op.name == "reshape":
        inner, width = x.node.inputs[0], x.shape[-1]
        if _same(inner.shape, rows) and inner.ndim > 1 and inner.shape[-1] == width:
            return product(inner.shape[1:-1])
        x = inner
    return None


def _pointwise_of_each(node: Node, rows: Dim) -> Value | None:
    graph, out, inputs = node.out.graph, node.out, []
    for x in node.inputs:
        if x.ndim == 0 and (x.weak or (x.node is not None and x.node.op.kind == "constant")):
            inputs.append(x)
            continue
        inner = own_rows(x, rows) if x.shape == out.shape else None
        if inner is None:
            return None
        inputs.append(inner)
    return graph.add(node.op, tuple(inputs), node.attrs)


def rows_of_saved(value: Value, rows: Dim) -> int:
    """Whether a value has a row for each call in front (1), no rows (0), or rows elsewhere (-1)."""
    slots = slots_named(rows)
    meets = [not isinstance(d, int) and bool(slots & slots_named(d)) for d in value.shape]
    if not any(meets):
        return 0
    return 1 if value.shape[0] == rows and not any(meets[1:]) else -1
