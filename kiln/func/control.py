"""Control flow for a batch: the graphs that are called, done for all samples at once.

cond         one branch where the flag is the same for all; else both, and each sample takes its own
while_loop   as long as any sample goes on; one that has ended keeps its state
scan         along the same dim, which comes before the batch inside
counted      where the number of steps is the same for all
custom       its derivative too
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from kiln.func.rules import Operand, batched, in_batch
from kiln.graph.control import Attrs
from kiln.graph.graph import Graph, Value, building
from kiln.graph.size import Dim, substitute, symbol
from kiln.graph.text import Subgraph
from kiln.passes.rewrite import substitute_attr
from kiln.table.record import CONTROL, Op, find

Flags = tuple[bool, ...]


def of_batch(op: Op, operands: list[Operand], attrs: list[Any], size: Any) -> Any:
    """One result of a call of graphs for a batch."""
    call = Attrs(*attrs)
    flags = tuple(x.batched for x in operands)
    made = _made(op.name, call.counts, call.steps[1], call.graphs, flags)
    state, each, _ = call.counts
    inputs = []
    for k, (x, wanted) in enumerate(zip(operands, made.inputs)):
        value = in_batch(x, size) if wanted else x.value
        if wanted and op.name == "scan" and state <= k < state + each:
            value = _swapped(value)
        inputs.append(value)
    graph: Graph = inputs[0].graph
    new = call._replace(sizes=(*call.sizes, size), graphs=made.graphs)
    if op.name == "cond" and flags[0]:
        return _chosen(graph, new, inputs, operands[0], size)
    out = graph.add(CONTROL[op.name], tuple(inputs), tuple(new))
    stacked = op.name == "scan" and call.which >= state
    return _swapped(out) if stacked else out


def _swapped(x: Value) -> Value:
    """The first two dims in the other order."""
    return x.graph.add(find("permute"), (x,), ((1, 0, *range(2, x.ndim)),))


def _chosen(graph: Graph, call: Attrs, inputs: list[Value], flag: Operand, size: Any) -> Value:
    """Both branches, of which each sample takes one: calls whose flag is known."""
    sides = []
    for sub in call.graphs:
        both = call._replace(graphs=(sub, sub))
        none = graph.add(find("reduce_any"), (inputs[0],), ((0,), False))
        sides.append(graph.add(CONTROL["cond"], (none, *inputs[1:]), tuple(both)))
    mask = graph.add(find("reshape"), (inputs[0],), ((size, *[1] * (sides[0].ndim - 1)),))
    return graph.add(find("where"), (mask, *sides))


class _Made(NamedTuple):
    """Graphs for a batch, and which inputs of the call have it."""

    graphs: tuple[Subgraph, ...]
    inputs: Flags


@lru_cache(maxsize=256)
def _made(
    name: str, counts: tuple[int, int, int], reverse: bool, graphs: tuple[Subgraph, ...], flags: Flags
) -> _Made:
    """The graphs of a call whose inputs are batched where `flags` holds. Of its results all are."""
    state = counts[0]
    if name == "custom":
        backward, results = (_Batch(g.graph, (True,) * len(g.graph.inputs)) for g in graphs)
        return _Made((backward.close(None), results.close(None)), (True,) * len(flags))
    if name == "cond":
        return _Made(tuple(_Batch(g.graph, flags[1:]).close(None) for g in graphs), flags)
    body = graphs[1 if name in ("while_loop", "counted") else 0].graph
    loop = state + counts[2] if name == "counted" else len(flags)
    full = flags
    if name in ("while_loop", "counted"):
        if _depends(graphs[0].graph, body, flags[:loop], state):
            if name == "counted":
                raise RuntimeError(
                    "vmap: the gradient of a while_loop whose number of steps differs between samples; take "
                    "the gradient of the mapped loop instead"
                )
            full = (*[True] * state, *flags[state:])
            return _Made(_masked(graphs, full, state), full)
        if name == "while_loop":
            full = (*[True] * state, *flags[state:])
            condition = Subgraph(_Batch(graphs[0].graph, flags).plain(full))
            return _Made((condition, _Batch(body, full).close(None)), full)
        loops = tuple(Subgraph(_Batch(g.graph, flags[:loop]).plain(flags[:loop])) for g in graphs[:2])
        if any(_Batch(body, flags[:loop]).outputs_batched()):
            raise RuntimeError(
                "vmap: the gradient of a while_loop over samples; take that of the mapped loop"
            )
        return _Made((*loops, _Batch(graphs[2].graph, flags, counted=True).close(None)), flags)
    full = (*[True] * state, *flags[state:])
    return _Made((_Batch(body, full).close(None),), full)


def _depends(condition: Graph, body: Graph, flags: Flags, state: int) -> bool:
    """Whether the flag of a loop is another for each sample, at some step."""
    now = list(flags)
    while True:
        after = _Batch(body, tuple(now)).outputs_batched()
        more = [a or b for a, b in zip(now[:state], after)] + now[state:]
        if more == now:
            return _Batch(condition, tuple(now)).outputs_batched()[0]
        now = more


def _masked(graphs: tuple[Subgraph, ...], flags: Flags, state: int) -> tuple[Subgraph, ...]:
    """A loop while any sample goes on."""
    condition, body = graphs[0].graph, graphs[1].graph
    ends = _Batch(condition, flags)
    flag = in_batch(ends.outputs[0], ends.size)
    ends.graph.finish([ends.graph.add(find("reduce_any"), (flag,), ((0,), False))])
    steps = _Batch(body, flags)
    again = _Batch(condition, flags, onto=steps)
    mask = in_batch(again.outputs[0], steps.size)
    results = []
    for k in range(state):
        before, after = steps.arrays[k].value, in_batch(steps.outputs[k], steps.size)
        goes_on = steps.graph.add(find("reshape"), (mask,), ((steps.size, *[1] * (before.ndim - 1)),))
        results.append(steps.graph.add(find("where"), (goes_on, after, before)))
    steps.graph.finish(results)
    return Subgraph(ends.graph), Subgraph(steps.graph)


class _Batch:
    """A graph, done for a batch whose size is one more slot (of `counted` the one before the last)."""

    def __init__(
        self, source: Graph, flags: Flags, counted: bool = False, onto: _Batch | None = None
    ) -> None:
        self.source, self.flags = source, flags
        slots = source.slots
        self.graph: Graph = Graph() if onto is None else onto.graph
        self.graph.slots = slots + 1
        self.size: Dim = symbol(slots - counted)
        self._steps = slots - 1 if counted else -1
        known: dict[int, Operand] = {}
        arrays = iter(flags)
        given = iter(onto.arrays if onto is not None else ())
        self.arrays: list[Operand] = []
        for value in source.inputs:
            if value.weak and onto is not None:
                known[id(value)] = onto.numbers[value.slot]
                continue
            flag = not value.weak and next(arrays)
            shape = self._dims(value.shape)
            if onto is not None:
                known[id(value)] = next(given)
                continue
            made = self.graph.add_input(value.dtype, (self.size, *shape) if flag else shape)
            made.weak, made.slot = value.weak, value.slot
            known[id(value)] = Operand(made, flag)
            if not value.weak:
                self.arrays.append(known[id(value)])
        self.numbers: dict[int, Operand] = {v.slot: known[id(v)] for v in source.inputs if v.weak}
        for a, b in source.checks:
            left, right = self._dims((a, b))
            self.graph.require_equal(left, right, "vmap")
        with building(self.graph):
            for node in source.nodes:
                known[id(node.out)] = self._node(node, [known[id(v)] for v in node.inputs])
        self.outputs = [known[id(v)] for v in source.outputs]

    def _dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(substitute(d, self._slot) for d in dims)

    def _slot(self, slot: int) -> Dim:
        return symbol(slot + 1 if slot == self._steps else slot)

    def _node(self, node: Any, operands: list[Operand]) -> Operand:
        attrs = [substitute_attr(a, self._slot) for a in node.attrs]
        if not any(x.batched for x in operands):
            made = self.graph.add(node.op, tuple(x.value for x in operands), tuple(attrs))
            return Operand(made, False)
        return Operand(batched(node.op, operands, attrs, self.size), True)

    def outputs_batched(self) -> list[bool]:
        """Which outputs depend on the sample."""
        return [x.batched for x in self.outputs]

    def close(self, none: None) -> Subgraph:
        """The graph, every output of a batch."""
        self.graph.finish([in_batch(x, self.size) for x in self.outputs])
        return Subgraph(self.graph)

    def plain(self, flags: Flags) -> Graph:
        """The graph of inputs some of which are batched, though nothing depends on that: of the first
        sample.
        """
        graph = Graph()
        graph.slots = self.source.slots + 1
        values: dict[int, Value] = {}
        arrays = iter(flags)
        for value in self.source.inputs:
            flag = not value.weak and next(arrays)
            made = graph.add_input(value.dtype, (self.size, *value.shape) if flag else value.shape)
            made.weak, made.slot = value.weak, value.slot
            if flag:
                first = graph.add(find("slice"), (made,), (0, (0, 1, 1)))
                made = graph.add(find("reshape"), (first,), (value.shape,))
            values[id(value)] = made
        for node in self.source.nodes:
            inputs = tuple(values[id(v)] for v in node.inputs)
            values[id(node.out)] = graph.add(node.op, inputs, node.attrs)
        return graph.finish([values[id(v)] for v in self.source.outputs])
