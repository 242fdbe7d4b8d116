"""Which slot of a graph's environment holds what.

    slots := (for every input, in order)  array: ndim sizes, then, if it states strides, ndim strides
                                          number: one slot, its raw bits

A dim that is known to be 1 keeps its slot, unused: positions depend on ranks alone.
"""

from __future__ import annotations

from kiln.graph.graph import Graph, Value
from kiln.graph.size import Dim


def array_input(graph: Graph, dtype: str, ones: tuple[bool, ...], strided: bool = False) -> Value:
    """A new array input: dims where `ones` holds are 1, the others and the strides are fresh symbols."""
    shape: tuple[Dim, ...] = tuple(_size(graph, one) for one in ones)
    layout = tuple(graph.new_symbol() for _ in ones) if strided else None
    return graph.add_input(dtype, shape, layout)


def _size(graph: Graph, one: bool) -> Dim:
    size = graph.new_symbol()
    return 1 if one else size


def slots_of(value: Value) -> int:
    """How many slots an input takes."""
    if value.weak:
        return 1
    return value.ndim * (1 if value.layout is None else 2)


def first_slots(graph: Graph) -> list[int]:
    """The first slot of every input."""
    firsts: list[int] = []
    total = 0
    for value in graph.inputs:
        firsts.append(total)
        total += slots_of(value)
    return firsts
