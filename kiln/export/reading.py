"""A program of its texts: the graph is read, verified and asked what it may read; then its steps follow."""

from __future__ import annotations

from copy import copy
from typing import Any

from kiln.export.signature import asked_last, from_signature
from kiln.graph.graph import Graph
from kiln.graph.places import PlaceError, conditions
from kiln.graph.size import symbol
from kiln.graph.text import TextError, parse
from kiln.graph.verify import VerifyError, verify
from kiln.passes.rewrite import clone, slots_in
from kiln.table.record import find
from kiln.tracing.capture import add_checks, set_histories
from kiln.tracing.captured import Captured
from kiln.tracing.expand import Moved, expand
from kiln.tracing.restore import Restored
from kiln.tracing.sizes import Guard, Sizes

# Graphs that call graphs may be much larger than their text: how many nodes they may come to, for each line.
_LEAST, _FOLDS = 1 << 16, 16
# layers that stand in programs by themselves: composites that call them leave out what a node cannot
_CALLED = ("attend", "recurrent_hidden", "recurrent_cell", "recurrent_kept")


def read(text: str, signature: str, tensors: dict[str, Any]) -> tuple[Captured, list[bool]]:
    """A program as `capture` gives it, and which of its state takes gradients. TextError, with the line, for
    what is none.
    """
    try:
        graph = verify(parse(text, find, _LEAST + _FOLDS * text.count("\n")))
    except VerifyError as error:
        raise TextError(str(error)) from None
    found, trains = from_signature(graph, signature, tensors)  # type: ignore[arg-type]  # it says as much
    _check_named(found, graph)
    check_places(found, graph)
    follow(found, graph)
    return found, trains


def _check_named(found: Captured, graph: Graph) -> None:
    """Sizes of the graph are those that inputs have names for: the others are numbers there."""
    slots: set[int] = set()
    for node in graph.nodes:
        slots_in((*node.attrs, *node.out.shape), slots)
    for pair in graph.checks:
        slots_in(pair, slots)
    unnamed = slots - {dim.slot for dim in found.dims.values()}
    if unnamed:
        raise TextError(f"the graph has a size, s{min(unnamed)}, that no name is given for")


def follow(found: Captured, graph: Graph) -> list[int]:
    """Makes of the graph what runs it; the numbers of its results among the steps' values."""
    rest = Restored(graph)
    kept = list(rest.results)
    extra = add_checks(found, rest, len(kept))  # type: ignore[arg-type]  # of a recorder it asks as much
    found.steps = rest.finish([*kept, *extra])
    found.shapes = rest.shapes(found.steps)
    found.numbers = rest.places(found.steps)
    set_histories(found)
    found.graph = graph.finish([*graph.outputs, *(rest.values[k] for k in extra)])
    found.make_op()
    return kept


def decomposed(found: Captured, tensors: list[Any]) -> Captured:
    """A program without composites, which has these tensors."""
    made = copy(found)
    made.otherwise = {}
    made.state = [s._replace(tensor=x) for s, x in zip(found.state, tensors)]
    made.step_lines, made.whole = [], None
    graph, values = clone(found.graph)
    numbers, made.checks = asked_last(found)
    moved = Moved()
    try:
        follow(made, expand(graph.finish([values[id(found.graph.outputs[k])] for k in numbers]), moved))
    except TextError as error:  # of sizes that vary some ops make numbers, and compute with them
        raise NotImplementedError(f"run_decompositions: {found.name} has {error}") from None
    if found.hierarchy is not None:
        made.hierarchy = found.hierarchy.in_graph(moved.begins, moved.values)
    return made


def check_places(found: Captured, graph: Graph) -> None:
    """TextError for a node that leaves its operands' memory; where that depends on sizes, a guard more."""
    layers = [n for n in graph.nodes if n.op.kind == "layer" and n.op.name not in _CALLED]
    if layer := next(iter(layers), None):
        raise TextError(f"{layer.op.name} is a part of ops, not one that a program calls")
    try:
        asked = conditions(graph)
        asked += conditions(expand(graph))
    except PlaceError as error:
        raise TextError(str(error)) from None
    known = Sizes()
    for dim in found.dims.values():
        if dim.symbol is symbol(dim.slot):
            known.ranges[dim.slot] = dim.min, float("inf") if dim.max is None else dim.max
    for left, right, where in asked:
        if known.known(left, "<=", right) is not True:
            found.guards.append(Guard(left, "<=", right, True, where))
