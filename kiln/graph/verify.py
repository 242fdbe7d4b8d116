"""Every rule of the graph, checked: before planning, on what was read from a file, and in tests and under
KILN_CHECK after each pass (kiln/passes/pipeline.py).

inputs      come first, belong to this graph, their slots follow one another; a layout has one stride per dim
numbers     are weak, of dtype float64, int64 or bool, and own one slot
nodes       read inputs or earlier nodes of this graph, have hashable attributes of the closed set of types,
            and the dtype and shape their op infers, without a check the graph does not state
sizes       use slots the graph has
outputs     are values of this graph
called      graphs in attributes of control nodes follow the same rules, but have slots of their own
updates     name an output and an input of one dtype and shape
"""

from __future__ import annotations

from typing import Any

from kiln.graph.graph import Graph, Node, is_weak, takes
from kiln.graph.size import Dim, Size, slots_named
from kiln.graph.slots import slots_of
from kiln.graph.text import DTYPES, NUMBERS, Subgraph, type_text


class VerifyError(AssertionError):
    """A graph that breaks a rule: a bug of the pass that made it."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise VerifyError(message)


def _slots_used(dim: Dim) -> int:
    """One more than the highest slot a size names."""
    return max(slots_named(dim), default=-1) + 1


def _verify_dims(graph: Graph, dims: tuple[Any, ...], where: str) -> None:
    for dim in dims:
        if type(dim) is int:
            if dim < 0:
                raise VerifyError(f"{where}: negative size {dim}")
        elif not isinstance(dim, Size):
            raise VerifyError(f"{where}: {dim!r} is no size")
        elif _slots_used(dim) > graph.slots:
            raise VerifyError(f"{where}: {dim} names a slot the graph does not have")


def _verify_attr(graph: Graph, attr: Any, where: str, called: set[int]) -> None:
    if isinstance(attr, tuple):
        for item in attr:
            _verify_attr(graph, item, where, called)
        return
    if isinstance(attr, Subgraph):
        if id(attr.graph) in called:  # by another result of the same call
            return
        called.add(id(attr.graph))
        try:
            verify(attr.graph, called=True)
        except VerifyError as error:
            raise VerifyError(f"{where}, in {attr!r}: {error}") from None
        return
    if attr is not None and not isinstance(attr, (bool, int, float, str, Size)):
        raise VerifyError(f"{where}: attribute of type {type(attr).__name__}")
    if isinstance(attr, Size) and _slots_used(attr) > graph.slots:
        raise VerifyError(f"{where}: {attr} names a slot the graph does not have")


def _verify_inputs(graph: Graph, called: bool) -> None:
    total, slots = 0, set[int]()
    for k, value in enumerate(graph.inputs):
        where = f"input {k}"
        _require(
            value.graph is graph and value.node is None, f"{where}: belongs to another graph or to a node"
        )
        _require(value.dtype in (NUMBERS if value.weak else DTYPES), f"{where}: dtype {value.dtype}")
        if value.weak:
            own = 0 <= value.slot < graph.slots and value.slot not in slots
            _require(own and value.shape == (), f"{where}: a number owns one slot and has no dims")
            slots.add(value.slot)
        _verify_dims(graph, value.shape, where)
        if value.layout is not None:
            _require(
                len(value.layout) == value.ndim, f"{where}: {value.ndim} dims, {len(value.layout)} strides"
            )
        total += slots_of(value)
    _require(called or graph.slots >= total, f"the inputs take {total} slots, the graph has {graph.slots}")


def _verify_node(graph: Graph, node: Node, known: set[int], where: str, called: set[int]) -> None:
    for value in node.inputs:
        _require(id(value) in known, f"{where}: reads a value that no earlier line of this graph defines")
    for attr in node.attrs:
        _verify_attr(graph, attr, where, called)
    _require(
        takes(node.op, len(node.inputs), len(node.attrs)), f"{where}: wrong number of inputs or attributes"
    )
    _require(node.out.graph is graph and node.out.node is node, f"{where}: its value does not know it")
    checks = len(graph.checks)
    try:
        dtype, shape = node.op.infer(graph, node.inputs, node.attrs)
    except Exception as error:
        raise VerifyError(f"{where}: refuses its arguments: {error}") from error
    if len(graph.checks) > checks:
        unstated = graph.unstated(checks, graph.checks[:checks])
        _require(not unstated, f"{where}: needs {unstated}, which the graph does not check")
    if dtype != node.out.dtype or not graph.same_shape(shape, node.out.shape):
        stated = type_text(node.out.dtype, node.out.shape)
        raise VerifyError(f"{where}: says {stated}, infers {type_text(dtype, shape)}")
    _require(
        node.out.weak == is_weak(node.op, node.inputs), f"{where}: weak exactly where its inputs are numbers"
    )
    _verify_dims(graph, node.out.shape, where)


def verify(graph: Graph, called: bool = False) -> Graph:
    """Raises VerifyError at the first rule the graph breaks; else returns the graph. `called`: by a node,
    which says what its slots hold (kiln/graph/control.py).
    """
    _verify_inputs(graph, called)
    known, graphs = {id(v) for v in graph.inputs}, set[int]()
    graph.called = None
    for k, node in enumerate(graph.nodes):
        _verify_node(graph, node, known, f"node {k} ({node.op.name})", graphs)
        _require(id(node.out) not in known, f"node {k} ({node.op.name}): its value is defined twice")
        known.add(id(node.out))
    for k, value in enumerate(graph.outputs):
        _require(id(value) in known, f"output {k}: no value of this graph")
    for j, i in graph.updates.items():
        _require(
            0 <= j < len(graph.outputs) and 0 <= i < len(graph.inputs), f"update {j} -> {i}: out of range"
        )
        source, target = graph.outputs[j], graph.inputs[i]
        same = (
            source.dtype == target.dtype and graph.same_shape(source.shape, target.shape) and not target.weak
        )
        _require(same, f"update {j} -> {i}: {source!r} cannot be written into {target!r}")
    _require(len(set(graph.updates.values())) == len(graph.updates), "two outputs update one input")
    return graph
