"""A pass: arrays of one number as that number, where that changes no bit.

    mul(expand(convert(1.0; "float32"); (n)), x)      mul(1.0, x)              which simplify makes x of
    add(expand(convert(1.0; ..)), expand(..))         expand(convert(2.0; ..))

Gradients begin with an array of ones, which this takes out again. Whole numbers that every float dtype has
are looked at, and sums, differences and products of them.
"""

from __future__ import annotations

from typing import Any

from kiln.graph.graph import Graph, Node, Value, building
from kiln.passes.rewrite import append, begun
from kiln.table.kinds import FLOATS
from kiln.table.record import constant, find

_LARGEST = 256  # every whole number up to it is one of bfloat16
_FOLDED = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}


def literals(graph: Graph) -> Graph:
    """An equivalent graph with the same inputs and outputs."""
    made, values = begun(graph)
    with building(made):
        for node in graph.nodes:
            inputs = tuple(values[id(v)] for v in node.inputs)
            number = _of_numbers(made, node, inputs)
            if number is None:
                number = append(made, node, _replaced(made, node, inputs))
            values[id(node.out)] = number
    made.updates.update(graph.updates)
    return made.finish([values[id(v)] for v in graph.outputs])


def _number(value: Value) -> float | None:
    """The number that a literal is, or that an array holds everywhere."""
    views = 0
    while value.node is not None and value.node.op.name in ("expand", "reshape"):
        (value,), views = value.node.inputs, views + 1
    if value.node is not None and value.node.op.name == "convert" and value.dtype in FLOATS:
        (value,) = value.node.inputs
    elif views:
        return None
    if value.weak and value.node is not None and value.node.op.kind == "constant":
        number: Any = value.node.attrs[0]
        if isinstance(number, (int, float)) and number == int(number) and abs(number) <= _LARGEST and number:
            return float(number)
    return None


def _of_numbers(graph: Graph, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """What a node of numbers alone gives."""
    if node.op.name not in _FOLDED or node.out.dtype not in FLOATS or node.out.weak:
        return None
    numbers = [_number(v) for v in inputs]
    if any(n is None for n in numbers):
        return None
    total = _FOLDED[node.op.name](*numbers)
    if not total or abs(total) > _LARGEST:
        return None
    value = graph.add(find("convert"), (constant(graph, total),), (node.out.dtype,))
    return graph.add(find("expand"), (value,), (node.out.shape,)) if node.out.ndim else value


def _replaced(graph: Graph, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """The operands of a node, numbers instead of the arrays that hold nothing else."""
    if node.op.name not in (*_FOLDED, "div") or node.out.dtype not in FLOATS or node.out.weak:
        return inputs
    numbers = [None if v.weak else _number(v) for v in inputs]
    for k, n in enumerate(numbers):
        other = inputs[1 - k]
        whole = not other.weak and numbers[1 - k] is None and other.dtype == node.out.dtype
        if n is not None and whole and graph.same_shape(other.shape, node.out.shape):
            return tuple(constant(graph, n) if j == k else v for j, v in enumerate(inputs))
    return inputs
