"""What passes share: copying graphs, substituting sizes in attributes, walking what outputs need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kiln.graph.graph import Graph, Node, Value
from kiln.graph.size import Dim, Size, slots_named, substitute


def begun(graph: Graph) -> tuple[Graph, dict[int, Value]]:
    """A graph with the inputs and checks of another one, and its inputs by the ids of those."""
    copy = Graph()
    copy.slots, copy.checks, copy.equal = graph.slots, list(graph.checks), graph.equal.copy()
    values: dict[int, Value] = {}
    for value in graph.inputs:
        values[id(value)] = new = Value(copy, None, value.dtype, value.shape)
        new.layout, new.weak, new.slot = value.layout, value.weak, value.slot
        copy.inputs.append(new)
    return copy, values


def clone(graph: Graph) -> tuple[Graph, dict[int, Value]]:
    """A copy without outputs and updates, and the copy of every value by the original's id."""
    copy, values = begun(graph)
    for node in graph.nodes:
        values[id(node.out)] = append(copy, node, tuple(values[id(v)] for v in node.inputs))
    return copy, values


def append(graph: Graph, node: Node, inputs: tuple[Value, ...]) -> Value:
    """A copy of a node on other inputs of the same dtypes and shapes, at the end of a graph."""
    new = Node(node.op, inputs, node.attrs, node.line)
    new.out = Value(graph, new, node.out.dtype, node.out.shape)
    new.out.weak = node.out.weak
    graph.nodes.append(new)
    return new.out


def substitute_attr(attr: Any, replace: Callable[[int], Dim]) -> Any:
    """An attribute with the slots in its sizes replaced."""
    if isinstance(attr, tuple):
        return tuple(substitute_attr(a, replace) for a in attr)
    return substitute(attr, replace) if isinstance(attr, Size) else attr


def slots_in(dim: Any, found: set[int]) -> None:
    """Adds the slots that a size, or the sizes in an attribute, name."""
    if isinstance(dim, tuple):
        for item in dim:
            slots_in(item, found)
    elif isinstance(dim, Size):
        found |= slots_named(dim)


def reachable(outputs: Iterable[Value], stop: Callable[[Value], bool] = lambda value: False) -> set[int]:
    """The ids of what outputs are computed from, themselves included; not beyond where `stop` holds."""
    seen: set[int] = set()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if value.node is not None and not stop(value):
            stack.extend(value.node.inputs)
    return seen
