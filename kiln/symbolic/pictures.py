"""A graph as a picture: what `kiln.viz` draws of the graph behind a tensor, of one that was defined."""

from __future__ import annotations

from typing import Any

from kiln.graph.graph import Graph, Value
from kiln.graph.size import Size
from kiln.graph.text import Subgraph
from kiln.symbolic.text import size_text
from kiln.tracing.captured import Captured
from kiln.tracing.expand import call_of, literal, whole_of
from kiln.viz.defined import Defined, Given, Sub
from kiln.viz.drawing import Drawing, defined
from kiln.viz.trace import Call, Input, Leaf, Root, Trace

_PARTS = {
    "cond": ("if it holds", "if not"),
    "while_loop": ("while", "step"),
    "scan": ("each step",),
    "counted": ("while", "step", "then"),
}


class Sizes(tuple):  # type: ignore[type-arg]
    """Sizes as people read them."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"({', '.join(map(str, self))}{',' if len(self) == 1 else ''})"


def drawn(found: Captured, graph: Graph, depth: int | None, summary: str, model: Any) -> Drawing:
    """The drawing of a graph."""
    arrays = [v for v in graph.inputs if not v.weak]
    leaves: dict[int, Leaf] = {}
    for own, value in zip(found.inputs, arrays):
        leaves[id(value)] = _leaf(Given(own.name), found, value)
    for held, value in zip(found.state, arrays[len(found.inputs) :]):
        leaves[id(value)] = _leaf(Leaf(held.name), found, value)
    names = list(found.outputs)
    names += [found.state[k].name if kind == "state" else found.inputs[k].name for kind, k in found.mutated]
    return defined(_trace(found, graph, leaves, names), model, depth, summary)


def _leaf(leaf: Leaf, found: Captured | None, value: Value) -> Leaf:
    leaf.dtype, leaf.shape = value.dtype, _sizes(found, value.shape)
    return leaf


def _sizes(found: Captured | None, shape: Any) -> Any:
    if all(isinstance(n, int) for n in shape):
        return tuple(shape)
    return Sizes([n if isinstance(n, int) else size_text(found, n) if found else str(n) for n in shape])


def _trace(found: Captured | None, graph: Graph, leaves: dict[int, Leaf], names: list[str]) -> Trace:
    """The calls of a graph, latest first."""
    of: dict[int, tuple[Any, int]] = {key: (leaf, 0) for key, leaf in leaves.items()}
    calls: list[Call] = []
    known: dict[Any, Defined] = {}
    for node in graph.nodes:
        if node.op.kind == "constant" or (node.out.weak and literal(node.out) is not node.out):
            continue
        op, which = whole_of(node.op)
        attrs = node.attrs
        subs: tuple[Subgraph, ...] = ()
        if node.op.kind == "control":
            which, subs, attrs = attrs[0], attrs[-1], ()
        key = op.name, tuple(map(id, node.inputs)), repr(node.attrs[1:] if subs else node.attrs)
        call = known.get(key)
        if call is None:
            call = known[key] = Defined(op, len(calls), node.line)
            given = [literal(v) for v in node.inputs]
            structure, operands = ((), given) if subs else call_of(op, given, attrs)
            call.structure = None if subs else structure
            if subs:  # its arguments are those of the graphs
                call.record, call.told, call.kind = None, op.name, "op"
            if any(isinstance(x, Size) for x in operands):
                call.told = op.name
            for x in operands:
                call.inputs.append(_input(found, x, of))
            parts = _PARTS.get(op.name, ())
            call.subs = [Sub(name, _inner(sub)) for name, sub in zip(parts, subs)]
            calls.append(call)
        call.shapes[which] = _sizes(found, node.out.shape)
        call.dtype = call.dtype or node.out.dtype
        of[id(node.out)] = call, which
    roots = []
    for name, value in zip(names, graph.outputs):
        source, output = of.get(id(value), (None, 0))
        roots.append(Root(name, source, output, _sizes(found, value.shape), value.dtype))
    return Trace(roots, calls[::-1], {}, False)


def _input(found: Captured | None, x: Any, of: dict[int, tuple[Any, int]]) -> Input:
    if not isinstance(x, Value):
        return Input(None, 0, "", None, number=x if not isinstance(x, Size) else str(x))
    if x.weak and id(x) not in of:
        return Input(None, 0, x.dtype, (), number="a number")
    source, output = of[id(x)]
    return Input(source, output, x.dtype, _sizes(found, x.shape))


def _inner(sub: Subgraph) -> Trace:
    """The calls of a graph that a node calls."""
    graph = sub.graph
    leaves = {id(v): _leaf(Given(f"x{k}"), None, v) for k, v in enumerate(graph.inputs) if not v.weak}
    names = [f"result {k}" for k in range(len(graph.outputs))] if len(graph.outputs) > 1 else ["result"]
    return _trace(None, graph, leaves, names)
