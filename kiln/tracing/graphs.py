"""Steps as a graph: one node per op that was called, composites among them.

inputs   tensors in the order of the operands, then numbers (a seed, a position)
nodes    op(values; attributes); of an op with several results, one node for each that is used
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.capture.called import CALLED, parsed
from kiln.capture.function import NUMBER
from kiln.capture.pure.function import described, function_for, inline
from kiln.capture.pure.steps import CAST, DETACH, STRIDED, WRITE, Step, Steps
from kiln.graph.graph import Graph, Node, Shape, Value, building, is_weak
from kiln.table import registry
from kiln.table.kinds import FLOATS
from kiln.table.record import Op, constant, find


class Look:
    """What is known of a step's results: a dtype and a shape each."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: str, shape: Shape) -> None:
        self.dtype, self.shape = dtype, shape


def graph_of(
    steps: Steps,
    inputs: list[Look],
    shapes: dict[int, Shape],
    lines: Sequence[str] = (),
    numbered: dict[int, Value] | None = None,
    begins: list[int] | None = None,
) -> Graph:
    """The graph of steps on inputs that look so; `shapes` of every value by its number, `lines` of steps.
    What each value became is put into `numbered`, how many nodes stand before each step, and at the end, into
    `begins`.
    """
    graph = Graph()
    values = {} if numbered is None else numbered
    begins = [] if begins is None else begins
    for k, look in enumerate(inputs):
        for _ in look.shape:
            graph.new_symbol()
        values[k] = graph.add_input(look.dtype, look.shape)
    for k, own in enumerate(steps.again):
        values[len(inputs) + k] = values[own]
    for k, letter in enumerate(steps.numbers):
        values[steps.tensors + k] = graph.add_number(NUMBER[letter])
    with building(graph):
        for k, step in enumerate(steps.steps):
            before = len(graph.nodes)
            begins.append(before)
            add_step(graph, step, values, shapes)
            for node in graph.nodes[before:] if k < len(lines) else ():
                node.line = lines[k]
    begins.append(len(graph.nodes))
    return graph.finish([values[k] for k in steps.results])


def add_step(graph: Graph, step: Step, values: dict[int, Value], shapes: dict[int, Shape]) -> None:
    """Adds the nodes of a step; `values` gets its results."""
    given = [x if kind in ("number", "size") else values[x] for kind, x in step.args]
    if isinstance(step.op, str):
        values[step.outs[0]] = _memory(graph, step, given)
        return
    if step.op is CALLED or is_ambiguous(step.op, step.structure) or _is_nameless(step.op):
        function = function_for(step.op, step.structure)
        called = step.op is CALLED  # a graph, whose nodes are this one's too
        source = parsed(step.structure[1]) if called else function.graph(tuple(map(described, given)))
        results = inline(graph, source, given)
        values.update(zip(step.outs, results if step.history else [_detached(graph, y) for y in results]))
        return
    inputs, attrs = arguments(graph, step.op, step.structure, given)
    for which, (k, dtype) in enumerate(zip(step.outs, step.dtypes)):
        op = step.op.result(which) if len(step.outs) > 1 else step.op
        # (of what is written into something else, the op itself knows the look)
        known = shapes.get(k)
        made = (
            graph.add(op, inputs, attrs) if known is None else append(graph, op, inputs, attrs, dtype, known)
        )
        if not step.history and any(v.dtype in FLOATS and not v.weak for v in inputs):
            made = _detached(graph, made)
        values[k] = made


def _detached(graph: Graph, made: Value) -> Value:
    """What a step gave that ran under no_grad."""
    return graph.add(find("detach"), (made,)) if made.dtype in FLOATS else made


def append(
    graph: Graph, op: Op, inputs: tuple[Value, ...], attrs: tuple[Any, ...], dtype: str, shape: Shape
) -> Value:
    """A node whose result is known to look so."""
    if is_weak(op, inputs):  # a number of numbers alone: a cast makes an array of it
        number = graph.add(op, inputs, attrs)
        return graph.add(find("convert"), (number,), (dtype,))
    node = Node(op, inputs, attrs)
    node.out = Value(graph, node, dtype, shape)
    graph.nodes.append(node)
    return node.out


def arguments(
    graph: Graph, op: Op, structure: tuple[Any, ...], given: list[Any]
) -> tuple[tuple[Value, ...], tuple[Any, ...]]:
    """The inputs and attributes of a node, from what the core was called with."""
    inputs, attrs = arguments_of(op, structure, given)
    return tuple([x if isinstance(x, Value) else constant(graph, x) for x in inputs]), attrs


def bound_of(op: Op, structure: tuple[Any, ...], given: list[Any]) -> list[Any]:
    """The arguments in parameter order, None for what is missing."""
    rest, entries = iter(given), iter(structure)
    bound: list[Any] = []
    for param in op.params:
        if op.kind == "pointwise" and param.kind != "S":
            bound.append(next(rest))
            continue
        entry = next(entries)
        if param.kind == "S":
            bound.append(entry[0] if op.kind == "slice" else entry)
        elif param.kind == "Z":
            bound.append(tuple([next(rest) for _ in range(entry)]))
        elif param.kind == "L":
            bound.append([next(rest) for _ in range(entry)])
        else:
            bound.append(None if entry is None else next(rest))
    return bound


def is_ambiguous(op: Op, structure: tuple[Any, ...]) -> bool:
    """Whether a node, which has no place for an operand that is missing, would mistake the one after it."""
    if op.kind == "pointwise":
        return False
    arrays = [
        (param.kind == "O" and entry is None)
        for param, entry in zip(op.params, structure)
        if param.kind in "TVNLO"
    ]
    return True in arrays and not all(arrays[arrays.index(True) :])


def _is_nameless(op: Op) -> bool:
    """Whether an op is none of the table's, as those for a batch of samples, which no text can name."""
    return op.kind == "composite" and registry.OPS.get(op.name) is not op


def arguments_of(op: Op, structure: tuple[Any, ...], given: list[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """The same, numbers as they are."""
    inputs: list[Any] = []
    attrs: list[Any] = []
    for param, value in zip(op.params, bound_of(op, structure, given)):
        if param.kind in "SZ":
            attrs.append(value)
        elif param.kind == "L":
            inputs += value
        elif value is not None:
            inputs.append(value)
    return inputs, tuple(attrs)


def _memory(graph: Graph, step: Step, given: list[Any]) -> Value:
    """A step that is no op of the table."""
    x = given[0]
    if step.op == DETACH:
        return graph.add(find("detach"), (x,))
    if step.op == CAST:
        (sizes,) = step.structure
        if x.weak or x.dtype != step.dtypes[0]:
            x = graph.add(find("convert"), (x,), (step.dtypes[0],))
        return x if tuple(x.shape) == tuple(sizes) else graph.add(find("expand"), (x,), (tuple(sizes),))
    sizes, strides, offset = step.structure
    if step.op == STRIDED:
        return graph.add(find("as_strided"), (x,), (tuple(sizes), tuple(strides), (offset,)))
    assert step.op == WRITE
    return graph.add(find("write"), (x, given[1]), (tuple(strides), (offset,)))
