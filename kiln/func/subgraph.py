"""Functions as graphs that are called: the function runs once on values, and what it does becomes nodes.

What the function meets on its way and was not given becomes a further input: tensors, values of the graphs
around it, and numbers of those.
"""

from __future__ import annotations

from _thread import _local
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kiln import _core
from kiln.capture.pure.function import described, function_for, inline
from kiln.errors import place
from kiln.func.tree import flatten
from kiln.graph.control import Attrs
from kiln.graph.graph import Graph, OpLike, Value, building, current
from kiln.graph.size import Dim, slots_named, substitute, symbol
from kiln.graph.text import Subgraph
from kiln.passes.rewrite import slots_in, substitute_attr
from kiln.table.kinds import ROUNDED
from kiln.table.record import INTERPRETERS, Op, constant, find

Tensor = _core.Tensor


class Inside(Graph):
    """The graph of a function that is called inside another, in whose sizes it is built."""

    def __init__(self, around: Graph) -> None:
        super().__init__()
        self.around = around
        self.slots, self.equal = around.slots, around.equal.copy()
        self.lifted: dict[int, tuple[Any, Value]] = {}  # by id of what is outside: itself, its value here

    def lift(self, x: Any) -> Any:
        """What stands here for a tensor, a value of another graph or, in a list, for several."""
        if isinstance(x, (list, tuple)) and any(isinstance(v, (Tensor, Value)) for v in x):
            made = [self.lift(v) for v in x]
            return x if all(a is b for a, b in zip(made, x)) else type(x)(made) if type(x) is tuple else made
        if not isinstance(x, (Tensor, Value)) or (isinstance(x, Value) and x.graph is self):
            return x
        found = self.lifted.get(id(x))
        if found is None:
            found = self.lifted[id(x)] = x, self._made(x)
        return found[1]

    def _made(self, x: Any) -> Value:
        if isinstance(x, Value) and x.weak:
            if x.node is not None:
                return self.add(x.node.op, tuple(map(self.lift, x.node.inputs)), x.node.attrs)
            made = self.add_input(x.dtype, ())
            made.weak, made.slot = True, x.slot
            return made
        looks = outside(self.around, x)
        return self.add_input(looks.dtype, looks.shape)

    def add(self, op: OpLike, inputs: tuple[Value, ...], attrs: tuple[Any, ...] = ()) -> Value:
        return super().add(op, tuple(map(self.lift, inputs)), attrs)


def outside(graph: Graph, x: Any) -> Value:
    """The value of `graph` that stands for something a function inside it met."""
    if isinstance(graph, Inside):
        made: Value = graph.lift(x)
        return made
    if isinstance(x, Value):
        if x.graph is not graph:
            raise RuntimeError("a value of another graph was used: build and use it inside the same function")
        return x
    if not isinstance(graph, Root):
        raise TypeError(
            "a graph that is built from placeholders cannot hold a tensor: give it to the function as an "
            "operand, or make a placeholder of it"
        )
    return graph.tensor(x)


class Root(Graph):
    """The graph of a call on tensors, which are its inputs in the order they are met."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed  # sizes are those of the tensors
        self.met: list[Any] = []  # tensors that were no operands
        self._known: dict[int, Value] = {}

    def operand(self, x: Any) -> Value:
        """An input for a tensor."""
        sizes = [self.new_symbol() for _ in x.shape]
        # (a size that varies is neither)
        known = [isinstance(n, int) and (self.fixed or n == 1) for n in x.shape]
        shape = tuple(int(n) if own else s for n, s, own in zip(x.shape, sizes, known))
        return self.add_input(x.dtype.name, shape)

    def tensor(self, x: Any) -> Value:
        """The input that stands for a tensor a function met."""
        if id(x) not in self._known:
            self._known[id(x)] = self.operand(x)
            self.met.append(x)
        return self._known[id(x)]


class _Building(_local):
    """Of a thread: the graphs of functions inside others it is building, the innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Inside] = []


_building = _Building()


def innermost() -> Inside | None:
    """The graph of the function that is being built, if one is and this thread is not at something else."""
    found = _building.graphs[-1] if _building.graphs else None
    return found if found is not None and current() is found else None


def _interpret(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op while a function is built: on what stands for its arguments in the innermost graph."""
    graph = innermost()
    if graph is None:
        return NotImplemented
    given = [graph.lift(a) for a in args]
    named = {k: graph.lift(a) for k, a in kwargs.items()}
    if (
        op.kind == "composite"
        and op.name != "called"
        and any(_is_rounded(a) for a in (*given, *named.values()))
    ):
        return _computed(graph, op, op.bind(tuple(given), named))
    if all(a is b for a, b in zip(given, args)) and all(named[k] is a for k, a in kwargs.items()):
        return NotImplemented
    return op.trace(tuple(given), named)


INTERPRETERS.append(_interpret)


def _is_rounded(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(map(_is_rounded, x))
    return isinstance(x, Value) and x.dtype in ROUNDED


def _computed(graph: Graph, op: Op, bound: list[Any]) -> Any:
    """A composite as it runs by itself: in float16 and bfloat16 it rounds at its end alone."""
    structure: list[Any] = []
    operands: list[Any] = []
    for param, value in zip(op.params, bound):
        if param.kind == "S":
            structure.append(_core.plain(value))
        elif param.kind in "ZL":
            items = list(value) if isinstance(value, (tuple, list)) else [value]
            structure.append(len(items))
            operands += [
                constant(graph, n) if param.kind == "Z" and not isinstance(n, int) else n for n in items
            ]
        elif value is None:
            structure.append(None)
        else:
            structure.append("t" if isinstance(value, Value) and not value.weak else described(value))
            operands.append(value)
    if any(isinstance(x, Value) and x.weak and x.node is not None for x in operands):
        return NotImplemented
    function = function_for(op, tuple(structure))
    made = inline(graph, function.graph(tuple(map(described, operands))), operands)
    return made[0] if len(made) == 1 else tuple(made)


class Traced:
    """What a function became: its graph, what its results look like, and where they were made."""

    def __init__(
        self, graph: Inside, inputs: list[Value], results: list[Any], build: Any, where: str
    ) -> None:
        self.graph, self.inputs, self.results, self.build, self.where = graph, inputs, results, build, where


class DrawsError(RuntimeError):
    """What a function does that no graph does."""


def trace(around: Graph, function: Callable[..., Any], given: Iterable[Any], build: Any, name: str) -> Traced:
    """A function as a graph inside `around`: given (dtype, shape) of each array, which `build` makes its
    arguments of.
    """
    graph = Inside(around)
    inputs = [graph.add_input(dtype, shape) for dtype, shape in given]
    drawn = _core.random_state()
    _building.graphs.append(graph)
    try:
        with building(graph):
            made = function(*build(inputs))
            results, rebuild = flatten(made)
            results = [graph.lift(r) for r in results]
    finally:
        _building.graphs.pop()
    if _core.random_state() != drawn:
        _core.set_random_state(*drawn)
        raise DrawsError(f"{name}: {where_of(function)} draws random numbers: draw them before")
    around.slots = max(around.slots, graph.slots)
    for k, r in enumerate(results):
        if not isinstance(r, (Value, bool, int, float)):
            raise TypeError(
                f"{name}: result {k} of {where_of(function)} is {type(r).__name__}, not a tensor or a number"
            )
    return Traced(graph, inputs, results, rebuild, where_of(function))


def as_value(graph: Graph, x: Any, dtype: str = "") -> Value:
    """A result as an array: a number takes `dtype`, or the one a tensor of it has."""
    value = x if isinstance(x, Value) else constant(graph, x)
    if value.weak:
        own = _core.default_dtype_name() if value.dtype == "float64" else value.dtype
        value = value.graph.add(find("convert"), (value,), (dtype or own,))
    return value


def where_of(function: Any) -> str:
    """A function as an error names it: what it is called, and where it is defined."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return name if code is None else f"{name} ({place(code.co_filename, code.co_firstlineno)})"


def close(
    around: Graph, traced: list[Traced], outputs: list[list[Value]], further: int = 0
) -> tuple[list[Value], tuple[Dim, ...], tuple[Subgraph, ...]]:
    """Graphs that one node calls, with what they met besides their inputs: values of `around`, the sizes that
    they need of it, and the graphs, which all have those arrays as their last inputs.
    """
    met: dict[int, Any] = {}
    for t in traced:
        met.update({key: x for key, (x, v) in t.graph.lifted.items() if not v.weak and v.node is None})
    captured = [outside(around, x) for x in met.values()]
    for t in traced:
        for key, x in met.items():
            if key not in t.graph.lifted:
                t.graph.lift(x)
    arrays = [[*t.inputs, *(t.graph.lifted[key][1] for key in met)] for t in traced]
    return captured, *_numbered([t.graph for t in traced], arrays, outputs)


def numbered(graphs: list[Graph]) -> tuple[tuple[Dim, ...], tuple[Subgraph, ...]]:
    """Graphs in the sizes of the one around them as graphs that one node calls: the sizes that they need of
    it, and the graphs with slots of their own.
    """
    if not any(map(_slots, graphs)):
        return (), tuple(map(Subgraph, graphs))
    arrays = [[v for v in graph.inputs if not v.weak] for graph in graphs]
    return _numbered(graphs, arrays, [graph.outputs for graph in graphs])


def _numbered(
    graphs: Sequence[Graph], arrays: list[list[Value]], outputs: list[list[Value]]
) -> tuple[tuple[Dim, ...], tuple[Subgraph, ...]]:
    order = sorted(set[int]().union(*map(_slots, graphs)))
    names: dict[int, Dim] = {slot: symbol(k) for k, slot in enumerate(order)}
    made = [Subgraph(_renamed(g, own, results, names)) for g, own, results in zip(graphs, arrays, outputs)]
    return tuple(symbol(slot) for slot in order), tuple(made)


def _slots(graph: Graph) -> set[int]:
    """The slots that a graph names."""
    slots: set[int] = set()
    for value in (*graph.inputs, *(n.out for n in graph.nodes)):
        slots_in(value.shape, slots)
        slots.update({value.slot} if value.weak and value.node is None else ())
    for node in graph.nodes:
        slots_in(node.attrs, slots)
    for a, b in graph.checks:
        slots |= slots_named(a) | slots_named(b)
    return slots


def _renamed(graph: Graph, arrays: list[Value], outputs: list[Value], names: dict[int, Dim]) -> Graph:
    """A copy with its own slots, arrays first, then numbers; without what no result needs."""
    new = Graph()
    new.slots = len(names)
    values: dict[int, Value] = {}

    def replace(slot: int) -> Dim:
        return names[slot]

    def moved(dim: Dim) -> Dim:
        return substitute(graph.canonical(dim), replace)

    for value in [*arrays, *(v for v in graph.inputs if v.weak)]:
        values[id(value)] = made = new.add_input(value.dtype, tuple(map(moved, value.shape)))
        if value.weak:
            made.weak, made.slot = True, next(iter(slots_named(names[value.slot])))
    for a, b in graph.checks:
        new.require_equal(substitute(a, replace), substitute(b, replace), "a check")
    for node in graph.nodes:
        attrs = tuple(substitute_attr(a, replace) for a in node.attrs)
        values[id(node.out)] = new.add(node.op, tuple(values[id(v)] for v in node.inputs), attrs)
    new.finish([values[id(v)] for v in outputs])
    alive, stack = set[int](), list(new.outputs)
    while stack:
        value = stack.pop()
        if id(value) not in alive:
            alive.add(id(value))
            stack += value.node.inputs if value.node is not None else ()
    new.nodes = [n for n in new.nodes if id(n.out) in alive]
    return new


def attributes(
    counts: tuple[int, int, int],
    steps: tuple[Dim, bool],
    sizes: tuple[Dim, ...],
    graphs: tuple[Subgraph, ...],
) -> Attrs:
    """The attributes of a node."""
    return Attrs(0, counts, steps, sizes, graphs)
