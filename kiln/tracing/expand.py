"""Composites as what they are made of: every node is a primitive or a layer afterwards.

    linear(x, w, b)  ->  matmul(x, permute(w)) + b

A composite is captured as the core would ask for it, so float16 and bfloat16 are rounded once at its end.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from kiln.capture.pure.function import function_for, inline
from kiln.graph.graph import Graph, Node, Value, building
from kiln.graph.text import Subgraph
from kiln.passes.rewrite import append, begun
from kiln.table.record import find


class Moved:
    """Where things are in an expanded graph, by where they were."""

    def __init__(self) -> None:
        self.begins: list[int] = []  # how many nodes stand before what each node became, and at the end
        self.values: dict[int, int] = {}  # of inputs and nodes' results

    def note(self, graph: Graph, expanded: Graph, values: dict[int, Value]) -> None:
        """`values`: what became of each value, by its id."""
        places = {id(v): k for k, v in enumerate(expanded.values())}
        became = [values.get(id(v)) for v in graph.values()]
        self.values = {k: places[id(v)] for k, v in enumerate(became) if v is not None and id(v) in places}


def expand(graph: Graph, moved: Moved | None = None, keep: Container[str] = ()) -> Graph:
    """A graph without composites but for those to `keep` that computes the same; `moved` is told where its
    parts are.
    """
    return _expanded(graph, {}, moved, keep)


def expanded(sub: Subgraph) -> Subgraph:
    """The same of a graph that a node calls."""
    return _called(sub, {}, ())


def _expanded(
    graph: Graph, made_of: dict[int, Subgraph], moved: Moved | None = None, keep: Container[str] = ()
) -> Graph:
    """`made_of`: by id, what became of graphs that nodes call; the results of a call share them."""
    if not _has_composites(graph, set()):
        if moved is not None:
            moved.begins = list(range(len(graph.nodes) + 1))
            moved.note(graph, graph, {id(v): v for v in graph.values()})
        return graph
    work, values = begun(graph)
    several: dict[tuple[Any, ...], list[Value]] = {}
    with building(work):
        for node in graph.nodes:
            inputs = tuple([values[id(v)] for v in node.inputs])
            before = len(work.nodes)
            if moved is not None:
                moved.begins.append(before)
            made = _made(work, node, inputs, several, made_of, keep)
            made.shape = tuple([work.canonical(d) for d in made.shape])
            for new in work.nodes[before:]:
                new.line = node.line
            values[id(node.out)] = made
    if moved is not None:
        moved.begins.append(len(work.nodes))
        moved.note(graph, work, values)
    work.updates.update(graph.updates)
    return work.finish([values[id(v)] for v in graph.outputs])


def _has_composites(graph: Graph, seen: set[int]) -> bool:
    """`seen`: ids of graphs that nodes call and that have none."""
    for node in graph.nodes:
        if node.op.kind == "composite":
            return True
        for sub in node.attrs[-1] if node.op.kind == "control" else ():
            if id(sub) not in seen:
                seen.add(id(sub))
                if _has_composites(sub.graph, seen):
                    return True
    return False


def _called(sub: Subgraph, made_of: dict[int, Subgraph], keep: Container[str]) -> Subgraph:
    found = made_of.get(id(sub))
    if found is None:
        graph = _expanded(sub.graph, made_of, None, keep)
        found = made_of[id(sub)] = sub if graph is sub.graph else Subgraph(graph)
    return found


def _made(
    work: Graph,
    node: Node,
    inputs: tuple[Value, ...],
    several: dict[tuple[Any, ...], list[Value]],
    made_of: dict[int, Subgraph],
    keep: Container[str],
) -> Value:
    op: Any = node.op
    if op.kind == "control":
        called = tuple([_called(sub, made_of, keep) for sub in node.attrs[-1]])
        if any(a is not b for a, b in zip(called, node.attrs[-1])):
            return work.add(op, inputs, (*node.attrs[:-1], called))
    if op.kind != "composite" or op.name in keep:
        return append(work, node, inputs)
    whole, which = whole_of(op)
    key = whole.name, tuple(map(id, inputs)), node.attrs
    if key not in several:
        given = [literal(v) for v in inputs]
        structure, operands = call_of(whole, given, node.attrs)
        function = function_for(whole, structure)
        described = tuple([_described(x) for x in operands])
        several[key] = inline(work, function.graph(described), operands)
    value = several[key][which]
    if value.weak or value.dtype != node.out.dtype:
        value = work.add(find("convert"), (value,), (node.out.dtype,))
    for a, b in zip(value.shape, node.out.shape):
        work.require_equal(a, b, op.name)
    return value


def whole_of(op: Any) -> tuple[Any, int]:
    """The op that gives a node's result, and which of its results that is."""
    name, _, which = op.name.rpartition("__")
    return (find(name), int(which)) if name and which.isdigit() else (op, 0)


def literal(value: Value) -> Any:
    """A literal as a Python number; other values as they are."""
    if value.weak and value.node is not None and value.node.op.name == "constant":
        return value.node.attrs[0]
    return value


def _described(x: Any) -> Any:
    if isinstance(x, Value) and not (x.weak and x.node is None):
        return x.dtype, tuple([int(d == 1) for d in x.shape]), None
    return _letter(x)


def _letter(x: Any) -> str:
    if isinstance(x, Value):
        return {"float64": "f", "int64": "i", "bool": "b"}[x.dtype] if x.weak else "t"
    return "b" if isinstance(x, bool) else "i" if isinstance(x, int) else "f"


def call_of(op: Any, inputs: list[Any], attrs: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """(structure, operands) of a node, as the core has a call: what `graphs.arguments` takes apart."""
    structure: list[Any] = []
    operands: list[Any] = []
    rest, settings = iter(inputs), iter(attrs)
    optional = sum(p.kind == "O" for p in op.params)
    left = len(inputs) - sum(p.kind in "TVN" for p in op.params)
    for param in op.params:
        if param.kind == "S":
            value = next(settings)
            structure.append((value,) if op.kind == "slice" else value)
        elif param.kind == "Z":
            sizes = next(settings)
            structure.append(len(sizes))
            operands += sizes
        elif param.kind == "L":
            count = left - optional
            structure.append(count)
            operands += [next(rest) for _ in range(count)]
        elif param.kind == "O" and left <= 0:
            structure.append(None)
        else:
            left -= param.kind == "O"
            operands.append(next(rest))
            if op.kind != "pointwise":
                structure.append(_letter(operands[-1]))
    return tuple(structure), operands
