"""A graph where a size is known: rows that are one row run by other kernels, several times faster."""

from __future__ import annotations

from kiln.graph.graph import Graph, Value, building
from kiln.graph.size import Dim, symbol
from kiln.passes.rewrite import substitute_attr


def where_one(graph: Graph, slot: int) -> Graph:
    """The same graph for calls at which the size in a slot is 1."""

    def known(k: int) -> Dim:
        return 1 if k == slot else symbol(k)

    work = Graph()
    work.slots = graph.slots
    now: dict[int, Value] = {}
    for value in graph.inputs:
        new = Value(work, None, value.dtype, substitute_attr(value.shape, known))
        new.layout, new.weak, new.slot = substitute_attr(value.layout, known), value.weak, value.slot
        now[id(value)] = new
        work.inputs.append(new)
    with building(work):
        for a, b in graph.checks:
            work.require_equal(substitute_attr(a, known), substitute_attr(b, known), "size")
        for node in graph.nodes:
            inputs = tuple([now[id(v)] for v in node.inputs])
            now[id(node.out)] = work.add(node.op, inputs, substitute_attr(node.attrs, known))
    return work.finish([now[id(v)] for v in graph.outputs])
