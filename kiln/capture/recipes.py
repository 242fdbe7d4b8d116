"""Graphs as lists of calls: how the core replays views, and derivatives whose own derivative is wanted."""

from __future__ import annotations

import struct
from typing import Any

from kiln.capture.answers import structure as structured
from kiln.capture.function import Forward
from kiln.capture.programs import Slots
from kiln.graph.control import siblings
from kiln.graph.graph import Graph, Node, Value
from kiln.graph.size import Dim, single_slot, symbol
from kiln.graph.slots import array_input
from kiln.graph.text import text
from kiln.passes.rewrite import slots_in, substitute_attr
from kiln.table.kinds import VIEWS
from kiln.table.record import Op

BOOL, INT, FLOAT = 0, 2, 3  # kinds of a number, as the core counts them
NO_DIM, FLAT = -128, 127  # in native/call/op.h too
CLASS_DIM = 100  # dim 1, or 0 of a vector; in native/call/value_checks.cpp too


def recipe(graph: Graph, whole: bool = False) -> tuple[Any, ...]:
    """(environment, expressions, steps, outputs) for the core; a step is (op, structure, numbers, kinds,
    args, how many of its results are the next values).

    `as_strided` names places in its operand's memory, which a graph takes as contiguous: with `whole`,
    operands of any layout come, and it reads a copy.
    """
    slots = Slots(graph.slots)
    places: dict[int, int] = {id(v): i for i, v in enumerate(graph.inputs)}
    steps: list[Any] = []
    values = len(graph.inputs)
    for node in graph.nodes:
        if node.op.kind == "constant" or id(node.out) in places:
            continue
        if node.op.kind == "control":
            results = siblings(node, graph.nodes)
            steps.append((*_call(node, results, places, slots), len(results)))
            places.update({id(n.out): values + k for k, n in enumerate(results)})
            values += len(results)
            continue
        known = places
        if whole and node.op.kind == "as_strided":
            source = id(node.inputs[0])
            known = {**places, source: values}
            steps.append(("clone", structured(()), [], [], [places[source]], 1))
            values += 1
        places[id(node.out)] = values
        steps.append((*_step(node, known, slots), 1))
        values += 1
    outputs = [places[id(v)] for v in graph.outputs]
    return graph.slots, slots.exprs, steps, outputs


def _step(node: Node, places: dict[int, int], slots: Slots) -> tuple[Any, ...]:
    op = node.op
    assert isinstance(op, Op)
    args: list[int] = []
    numbers: list[int] = []
    kinds: list[int] = []
    structure: list[Any] = []
    pointwise = op.kind == "pointwise"

    def number(slot: int, kind: int) -> None:
        args.append(-1 - len(numbers))
        numbers.append(slot)
        kinds.append(kind)

    def operand(value: Value) -> str:
        literal = value.node is not None and value.node.op.kind == "constant"
        if not literal and not (value.weak and value.node is None):
            args.append(places[id(value)])
            return "t"
        kind = {"bool": BOOL, "int64": INT}.get(value.dtype, FLOAT)
        number(slots.of(_bits(value.node.attrs[0])) if literal and value.node else value.slot, kind)
        return {BOOL: "b", INT: "i", FLOAT: "f"}[kind]

    inputs, attrs = iter(node.inputs), iter(node.attrs)
    for param in op.params:
        if param.kind == "S":
            attr = next(attrs)
            structure.append((attr,) if op.kind == "slice" else attr)
        elif param.kind == "Z":
            sizes = next(attrs)
            for size in sizes:
                number(slots.of(size), INT)
            structure.append(len(sizes))
        elif param.kind == "L":
            rest = list(inputs)
            for item in rest:
                operand(item)
            structure.append(len(rest))
        else:
            value = next(inputs, None)
            code = None if value is None else operand(value)
            if not pointwise:
                structure.append(code)
    return op.name, structured(tuple(structure)), numbers, kinds, args


def _call(node: Node, results: list[Node], places: dict[int, int], slots: Slots) -> tuple[Any, ...]:
    """A call of graphs, as the op `called` of a graph of that alone; sizes that no array tells come as
    numbers.
    """
    graph, names, further = Graph(), dict[int, Dim](), []
    inputs = tuple(array_input(graph, v.dtype, tuple(d == 1 for d in v.shape)) for v in node.inputs)
    for outer, own in zip(node.inputs, inputs):
        for size, inside in zip(outer.shape, own.shape):
            names.setdefault(single_slot(size), inside)
    needed: set[int] = set()
    slots_in(node.attrs, needed)
    for slot in sorted(needed - names.keys()):
        names[slot] = symbol(graph.add_number("int64").slot)
        further.append(slot)
    attrs = tuple(substitute_attr(a, names.__getitem__) for a in node.attrs[1:])
    graph.finish([graph.add(n.op, inputs, (n.attrs[0], *attrs)) for n in results])
    args = [places[id(v)] for v in node.inputs] + [-1 - k for k in range(len(further))]
    numbers = [slots.of(symbol(slot)) for slot in further]
    structure = (len(inputs), text(graph), len(further))
    return "called", structured(structure), numbers, [INT] * len(numbers), args


def _bits(value: Any) -> Any:
    """A literal as the slot's integer; a size stays a size."""
    return struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else value


def position_check(function: Forward) -> tuple[Any, ...] | None:
    """Where the values of an index are to be checked: operands of index and source, dim, and the error."""
    check = function.op.checks
    if check is None:
        return None
    places: dict[str, int] = {}
    structure: dict[str, Any] = {}
    at = 0
    for param, entry in zip(function.op.params, function.structure):
        places[param.name] = at
        structure[param.name] = entry
        at += entry if param.kind in "ZL" else 0 if param.kind == "S" or entry is None else 1
    dim = structure[check.dim] if isinstance(check.dim, str) and check.dim != "class" else check.dim
    if check.along and isinstance(dim, int) and dim >= 0:
        dim += check.along
    if dim == "class":
        dim = CLASS_DIM  # told apart by the core
    ignore = places[check.ignore] if check.ignore else -1
    is_index = issubclass(check.error, IndexError)
    return places[check.positions], places[check.source], dim, check.negative, ignore, check.message, is_index


def positions_along(function: Forward) -> int:
    """The dim that a function's results are positions along, FLAT or NO_DIM."""
    if not function.op.gives_positions:
        return NO_DIM
    names = [param.name for param in function.op.params]
    dim: int | None = function.structure[names.index("dim")]
    return FLAT if dim is None else dim


def writes_at_places(graph: Graph) -> bool:
    """Whether the one result is the first input with values put at places of it, its shape and dtype kept."""
    if len(graph.outputs) != 1 or not graph.inputs:
        return False
    (out,), target = graph.outputs, graph.inputs[0]
    put = _viewed(out).node
    return (
        put is not None
        and put.op.algorithm == "scatter"
        and _viewed(put.inputs[0]) is target
        and not target.weak
        and (out.dtype, out.shape) == (target.dtype, target.shape)
    )


def _viewed(value: Value) -> Value:
    """What a value is a view of."""
    while value.node is not None and value.node.op.kind in VIEWS:
        value = value.node.inputs[0]
    return value
