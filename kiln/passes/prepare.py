"""The graph as lowering wants it: a few nodes become several.

    embed(x; dim, place)          embed(full(0), x; dim, place): like write and scatter_add, it fills a base
    write(write(base, x), y)      write(base, x, y): writes that nobody looks between go to the same memory
    sum(x) over everything        sequence_sum(slice(blocks_sum(x)))

`blocks_sum(x)` holds one partial result per block of 16384 elements; `sequence_sum` adds them in
ascending order: together the order of one long sum, but the blocks can be done by several threads. The last
block is partial: the array has a place more than full blocks, and as many are read as were written.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kiln.graph.graph import Graph, Node, Shape, Value
from kiln.graph.size import Dim
from kiln.passes.layout import numel, squeeze
from kiln.passes.rewrite import append, clone
from kiln.table.kinds import ROUNDED
from kiln.table.order import REDUCE_BLOCK
from kiln.table.record import CONSTANT, find

SPLIT = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_all", "reduce_any")


class Internal:
    """An op that exists between passes only."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.rule, self.algorithm = "promote", ""

    def infer(self, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
        """A filled array has the shape of its base; partial results are one per block, then the total."""
        first, dtype = inputs[0], inputs[0].dtype
        if self.kind != "blocks":
            return dtype, () if self.kind == "reduce" else first.shape
        if self.name in ("blocks_all", "blocks_any"):
            dtype = "bool"
        wide = "float32" if dtype in ROUNDED else dtype
        return wide, (numel(squeeze(first.shape)) // REDUCE_BLOCK + 1,)


_INTERNAL: dict[str, Internal] = {}


def internal(name: str, kind: str) -> Internal:
    """The internal op of a name, always the same object."""
    return _INTERNAL.setdefault(name, Internal(name, kind))


def prepare(graph: Graph) -> Graph:
    """A copy with outputs and updates, rewritten as above."""
    if any(n.op.kind in ("embed", "write") or _splits(n) for n in graph.nodes):
        new = _Prepared(graph).graph
    else:
        new, values = clone(graph)
        new.outputs = [values[id(v)] for v in graph.outputs]
    new.updates = dict(graph.updates)
    return new


def _splits(node: Node) -> bool:
    """Whether a node reduces everything, and more than one block for all we know."""
    if node.op.kind != "reduce" or node.op.name not in SPLIT:
        return False
    shape, dims = node.inputs[0].shape, node.attrs[0]
    size = numel(shape)
    return all(d in dims for d, n in enumerate(shape) if n != 1) and not (
        isinstance(size, int) and size <= REDUCE_BLOCK
    )


def _written_once(graph: Graph) -> set[int]:
    """Results of writes whose only use is to be the base of the next."""
    uses = [id(v) for node in graph.nodes for v in node.inputs] + [id(v) for v in graph.outputs]
    writes = [node for node in graph.nodes if node.op.kind == "write"]
    counts, found = Counter(uses), {id(node.out) for node in writes}
    return {id(n.inputs[0]) for n in writes if id(n.inputs[0]) in found and counts[id(n.inputs[0])] == 1}


class _Prepared:
    """One rewriting."""

    def __init__(self, graph: Graph) -> None:
        empty = Graph()
        empty.inputs, empty.slots = graph.inputs, graph.slots
        empty.checks, empty.equal = graph.checks, graph.equal
        self.graph, values = clone(empty)
        inner, chains = _written_once(graph), dict[int, tuple[tuple[Value, ...], tuple[Any, ...]]]()
        for node in graph.nodes:
            self.line = node.line  # of what is made in its place
            if id(node.out) in inner:
                chains[id(node.out)] = self.chain(node, values, chains)
                continue
            if node.op.kind == "write":
                written, places = self.chain(node, values, chains)
                dtype, shape = node.out.dtype, node.out.shape
                values[id(node.out)] = self.node(internal("write", "write"), written, places, dtype, shape)
                continue
            inputs = tuple(values[id(v)] for v in node.inputs)
            if node.op.kind == "embed":
                out = self.embed(node, inputs[0])
            elif _splits(node):
                out = self.whole(node, inputs[0])
            else:
                out = append(self.graph, node, inputs)
            values[id(node.out)] = out
        self.graph.outputs = [values[id(v)] for v in graph.outputs]

    def node(
        self, op: Any, inputs: tuple[Value, ...], attrs: tuple[Any, ...], dtype: str, shape: Shape
    ) -> Value:
        """A node of known result."""
        node = Node(op, inputs, attrs, self.line)
        node.out = Value(self.graph, node, dtype, shape)
        self.graph.nodes.append(node)
        return node.out

    def chain(
        self, node: Node, values: dict[int, Value], chains: dict[int, tuple[Any, Any]]
    ) -> tuple[tuple[Value, ...], tuple[Any, ...]]:
        """The base of a chain of writes with what is written into it, and where."""
        base, x = node.inputs
        written, places = chains.pop(id(base), None) or ((values[id(base)],), ())
        return (*written, values[id(x)]), (*places, node.attrs)

    def embed(self, node: Node, x: Value) -> Value:
        """embed over zeros."""
        zero = self.node(CONSTANT, (), (0,), "int64", ())
        zero.weak = True
        dtype, shape = node.out.dtype, node.out.shape
        base = self.node(find("full"), (zero,), (shape, dtype), dtype, shape)
        return self.node(internal("embed", "embed"), (base, x), node.attrs, dtype, shape)

    def whole(self, node: Node, x: Value) -> Value:
        """A reduction of everything as partial results and their combination."""
        name = node.op.name.removeprefix("reduce_")
        size = numel(squeeze(x.shape))
        full: Dim = size // REDUCE_BLOCK
        used: Dim = (size + (REDUCE_BLOCK - 1)) // REDUCE_BLOCK
        dtype = "bool" if name in ("all", "any") else x.dtype
        wide = "float32" if dtype in ROUNDED else dtype
        parts = self.node(internal(f"blocks_{name}", "blocks"), (x,), (), wide, (full + 1,))
        some = self.node(find("slice"), (parts,), (0, (0, used, 1)), wide, (used,))
        total = self.node(internal(f"sequence_{name}", "reduce"), (some,), ((0,), False), wide, ())
        if wide != dtype:
            total = self.node(find("convert"), (total,), (dtype,), dtype, ())
        if node.out.shape:
            total = self.node(find("reshape"), (total,), (node.out.shape,), dtype, node.out.shape)
        return total
