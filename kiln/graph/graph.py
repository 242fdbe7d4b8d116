"""The graph: what every way of running is made from.

    graph  := inputs nodes outputs checks
    value  := dtype shape             -- produced by one node, or an input
            | number                  -- a Python number given at run time ("weak": it does not promote)
    node   := op(values; attrs) -> one value
    checks := pairs of dims that must be equal for the graph to be right for its inputs

Attributes are structure (hashable, part of every key). A shape is a tuple of `Dim`. An input may state
its strides (`layout`); without, it is contiguous. Ops are opaque here: see `OpLike`.
"""

from __future__ import annotations

from _thread import _local
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kiln.graph.equal import Equalities
from kiln.graph.size import Dim, Size, reduced, symbol

Shape = tuple[Dim, ...]


class OpLike(Protocol):
    """What the graph asks of an op."""

    name: str
    kind: str
    rule: str  # what its kind leaves open: how dtypes promote, which result it is
    algorithm: str  # of the kinds that have several: which

    def infer(self, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
        """The dtype and shape of the result; states what must hold through `graph.require_equal`."""


class Value:
    """An array (or number) in a graph: `dtype` a dtype's name, `shape` a tuple of dims."""

    __slots__ = ("dtype", "graph", "layout", "node", "scalar", "shape", "slot", "weak")

    def __init__(self, graph: Graph, node: Node | None, dtype: str, shape: Shape) -> None:
        self.graph = graph
        self.node = node
        self.dtype = dtype
        self.shape = shape
        self.layout: tuple[Dim, ...] | None = None  # strides of a non-contiguous input
        self.weak = False  # a Python number
        self.scalar = False  # stands for a 0-d array, though its shape is that of the point it is read at
        self.slot = -1  # of a number: the slot that holds its bits

    @property
    def ndim(self) -> int:
        """How many dims the value has."""
        return len(self.shape)

    def __bool__(self) -> bool:
        raise TypeError("a captured function may not branch on a value: use where(condition, a, b)")

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        if isinstance(self.shape[0], Size):
            raise TypeError(
                "a captured function may not iterate over a value whose first size varies: compute with the "
                "whole value, or use kiln.graph.map or scan"
            )
        value: Any = self  # (indexing comes from the table)
        return iter([value[k] for k in range(self.shape[0])])

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" if not self.weak else f"{self.dtype} number"


class Node:
    """One application of an op."""

    __slots__ = ("attrs", "inputs", "line", "op", "out")

    def __init__(self, op: OpLike, inputs: tuple[Value, ...], attrs: tuple[Any, ...], line: str = "") -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.line = line  # of the program that made it, where that is known
        self.out: Value


class Graph:
    """A list of nodes in an order that runs, with its inputs, outputs and checks."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []
        self.checks: list[tuple[Dim, Dim]] = []
        self.updates: dict[int, int] = {}  # output j is written into the memory of input updates[j]
        self.slots = 0
        self.equal = Equalities()  # what the checks say
        self.called: Any = None  # the call of graphs that was last found to fit (graph/control.py)
        self.calls = False  # composites that state their derivative become nodes, not what they are made of

    def new_symbol(self) -> Dim:
        """A fresh run-time integer: the next slot of the graph's environment."""
        self.slots += 1
        return symbol(self.slots - 1)

    def add_input(self, dtype: str, shape: Shape, layout: tuple[Dim, ...] | None = None) -> Value:
        """An array input of the given shape; `layout` holds its strides if it is not contiguous."""
        value = Value(self, None, dtype, shape)
        value.layout = layout
        self.inputs.append(value)
        return value

    def add_number(self, dtype: str) -> Value:
        """A Python number given at run time: dtype "float64", "int64" or "bool", in a slot of its own."""
        value = Value(self, None, dtype, ())
        value.weak = True
        value.slot = self.slots
        self.slots += 1
        self.inputs.append(value)
        return value

    def add(self, op: OpLike, inputs: tuple[Value, ...], attrs: tuple[Any, ...] = ()) -> Value:
        """Appends op(inputs; attrs) and returns its value."""
        node = Node(op, inputs, attrs)
        dtype, shape = op.infer(self, inputs, attrs)
        node.out = Value(self, node, dtype, tuple(self.canonical(d) for d in shape))
        node.out.weak = is_weak(op, inputs)
        self.nodes.append(node)
        return node.out

    def canonical(self, dim: Dim) -> Dim:
        """`dim` with every symbol replaced by what the checks say it equals."""
        return dim if isinstance(dim, int) else self.equal.canonical(dim)

    def same(self, a: Dim, b: Dim) -> bool:
        """Whether two dims are known to be equal."""
        return a is b or a == b or self.canonical(a) == self.canonical(b)

    def same_shape(self, a: Shape, b: Shape) -> bool:
        """Whether two shapes are known to be equal."""
        return len(a) == len(b) and all(self.same(x, y) for x, y in zip(a, b))

    def require_equal(self, a: Dim, b: Dim, what: str) -> None:
        """States that two dims are equal: checked at every call, and known from here on."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise ValueError(f"{what}: {a} and {b} differ")
        a, b = reduced(a, b)
        self.checks.append((a, b))
        self.equal.state(a, b)

    def unstated(self, first: int, stated: list[tuple[Dim, Dim]]) -> list[tuple[Dim, Dim]]:
        """Takes the checks from number `first` on out of the graph; gives those `stated` does not imply."""
        new = self.checks[first:]
        if not new:
            return []
        del self.checks[first:]
        known = {frozenset((self.canonical(a), self.canonical(b))) for a, b in stated}
        new = [(a, b) for a, b in new if frozenset((self.canonical(a), self.canonical(b))) not in known]
        if new:
            alone = Equalities()
            for a, b in stated:
                alone.state(a, b)
            new = [(a, b) for a, b in new if alone.canonical(a) != alone.canonical(b)]
        return new

    def values(self) -> list[Value]:
        """Its inputs, then what its nodes make."""
        return [*self.inputs, *(node.out for node in self.nodes)]

    def finish(self, outputs: list[Value]) -> Graph:
        """Sets the outputs and brings every shape to its canonical form."""
        self.outputs = outputs
        for value in self.values():
            value.shape = tuple(self.canonical(d) for d in value.shape)
            if value.layout is not None:
                value.layout = tuple(self.canonical(d) for d in value.layout)
        for node in self.nodes:
            node.attrs = _canonical_attrs(self, node.attrs)
        return self


def is_weak(op: OpLike, inputs: tuple[Value, ...]) -> bool:
    """Whether a result is a Python number still: arithmetic on numbers alone; a cast makes an array of it."""
    numbers = op.kind == "pointwise" and op.rule not in ("cast", "index")
    return op.kind == "constant" or (numbers and bool(inputs) and all(v.weak for v in inputs))


def takes(op: OpLike, inputs: int, attrs: int) -> bool:
    """Whether an op has parameters for so many inputs and attributes (an op that declares none takes any)."""
    kinds = [p.kind for p in getattr(op, "params", ())]
    if not kinds:
        return True
    least = sum(k in "TVN" for k in kinds)
    most = inputs if "L" in kinds else least + kinds.count("O")
    return least <= inputs <= most and attrs == sum(k in "SZ" for k in kinds)


def _canonical_attrs(graph: Graph, attrs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Attributes with the sizes in them brought to canonical form."""
    return tuple(
        tuple(graph.canonical(d) if isinstance(d, Size) else d for d in a)
        if isinstance(a, tuple)
        else graph.canonical(a)
        if isinstance(a, Size)
        else a
        for a in attrs
    )


class _UnderConstruction(_local):
    """Of a thread: the graphs it has under construction, the innermost last."""

    def __init__(self) -> None:
        self.building: list[Graph] = []


_under_construction = _UnderConstruction()


@contextmanager
def building(graph: Graph) -> Iterator[Graph]:
    """Makes `graph` the one that ops without array inputs (iota, full) are added to."""
    _under_construction.building.append(graph)
    try:
        yield graph
    finally:
        _under_construction.building.pop()


def current() -> Graph:
    """The graph under construction."""
    if not _under_construction.building:
        raise RuntimeError("no graph is under construction")
    return _under_construction.building[-1]


def capturing() -> bool:
    """Whether a graph is under construction on this thread."""
    return bool(_under_construction.building)
