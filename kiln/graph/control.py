"""Control flow: nodes that call whole graphs.

    cond(flag, x ..; yes, no)                 the graph `yes` of x .., where the flag holds, else `no`
    while_loop(state .., x ..; condition, body)
                                              state = body(state .., x ..) while condition(state .., x ..)
    scan(state .., each .., x ..; body)       state, parts = body(state .., a part of each .., x ..), for
                                              every index of the first dim; the parts are stacked
    counted(state .., x .., rest ..; condition, body, then)
                                              the graph `then` of all of them, which knows as one more size
                                              how many steps that while_loop has
    custom(x .., result .., read ..; backward, results)
                                              the results, whose derivative is the graph `backward`: of what
                                              is read, the results and their gradients it gives those of x ..

A node has one result: a call has as many nodes, of the same inputs and attributes but for the first, which
says which result it is. Behind the results of a scan come the states it had before each step, stacked.
`counted` is what derivatives of a while_loop are made of: a loop whose number of steps is known is a scan,
and that has a derivative of any order. `custom` computes nothing: plans have its results where they are read.

    attrs := which, (state, each, x), (length, reverse), sizes, graphs
    of custom: which, (x, result, read), (0, once), sizes, graphs     once: its derivative has none

The graphs are closed. Their slots are their own: slot k is the size `sizes[k]` of the graph around them (or
the bits of a number there); of `then` one more is the number of steps. Their inputs are arrays, contiguous
and in the order of the node's, then numbers. Nothing they check is checked by them: the graph around them
does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kiln.graph.graph import Graph, Node, OpLike, Shape, Value
from kiln.graph.size import Dim, Size, slots_named, substitute
from kiln.graph.text import Subgraph, dim_text, type_text

RESULTS_FROM = {
    "cond": 0,
    "while_loop": 1,
    "scan": 0,
    "counted": 2,
    "custom": 1,
}  # the graph that gives the results
GRAPHS = {"cond": 2, "while_loop": 2, "scan": 1, "counted": 3, "custom": 2}


class Attrs(NamedTuple):
    """The attributes of a control node, by name."""

    which: int
    counts: tuple[int, int, int]
    steps: tuple[Dim, bool]
    sizes: tuple[Dim, ...]
    graphs: tuple[Subgraph, ...]

    @property
    def results(self) -> int:
        """How many results the call has."""
        return len(self.graphs[-1].graph.outputs)


def siblings(node: Node, nodes: Iterable[Node]) -> list[Node]:
    """The nodes among `nodes` that are results of one call, in the order of the nodes."""
    inputs, attrs = tuple(map(id, node.inputs)), node.attrs[1:]

    def is_one(n: Node) -> bool:
        if n.op is not node.op or n.attrs[1:] != attrs:
            return False
        return n.inputs is node.inputs or tuple(map(id, n.inputs)) == inputs

    return list(filter(is_one, nodes))


def add(graph: Graph, op: Any, inputs: list[Value], attrs: Attrs) -> list[Value]:
    """A call in a graph: every result."""
    given, shared = tuple(attrs)[1:], tuple(inputs)
    return [graph.add(op, shared, (k, *given)) for k in range(attrs.results)]


def infer(op: OpLike, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """The dtype and shape of one result; ValueError where the graphs do not fit each other or the inputs."""
    call = _checked(op, attrs)
    place = _Place(call.sizes)
    siblings_of = op, tuple(map(id, inputs)), attrs[1:]
    if graph.called != siblings_of:  # of many results the first asks for all
        _check(op.name, graph, inputs, call, place)
        graph.called = siblings_of
    state, name = call.counts[0], op.name
    keeps = call.graphs[1 if name == "counted" else RESULTS_FROM[name]].graph
    results = call.graphs[-1].graph.outputs
    kept = name == "scan" and call.which >= len(results)
    out = keeps.outputs[call.which - len(results)] if kept else results[call.which]
    shape = tuple(map(place.of, out.shape))
    if name == "scan" and call.which >= state:
        shape = (call.steps[0], *shape)
    return out.dtype, shape


def _check(name: str, graph: Graph, inputs: tuple[Value, ...], call: Attrs, place: _Place) -> None:
    """Raises ValueError unless graphs and inputs fit each other; states what must be equal for that."""
    state, each, rest = call.counts
    fits = {
        "cond": call.counts == (0, 0, 0),
        "while_loop": each == 0 and state + rest == len(inputs),
        "scan": state + each + rest == len(inputs),
        "counted": each == 0 and state + rest <= len(inputs),
        "custom": state + each + rest == len(inputs),
    }
    _require(fits[name], f"{name}: {len(inputs)} inputs are not {state} + {each} + {rest}")
    offset = 1 if name == "cond" else 0
    if name == "cond":
        _require(bool(inputs), f"{name}: there is no flag")
        _fits(graph, f"{name}: the flag", inputs[0], "bool", ())
    given = inputs[offset:]
    for j, sub in enumerate(call.graphs):
        arrays = [v for v in sub.graph.inputs if not v.weak]
        taken = given
        if name == "counted" and j < 2:
            taken = given[: state + rest]
        elif name == "custom":
            taken = given[state : state + each]
            taken = (*given[state + each :], *taken, *taken) if j == 0 else taken
        _require(len(arrays) == len(taken), f"{name}: a graph of {len(arrays)} arrays is given {len(taken)}")
        for k, (own, value) in enumerate(zip(arrays, taken)):
            shape = value.shape
            if name == "scan" and state <= k < state + each:
                _require(value.ndim > 0, f"{name}: input {k} has no dims to go along")
                graph.require_equal(value.shape[0], call.steps[0], f"{name}: the length of input {k}")
                shape = value.shape[1:]
            _require(not value.weak, f"{name}: input {k} is a number")
            _agree(graph, f"{name}: input {k}", own, place, value.dtype, shape)
        for a, b in sub.graph.checks:
            graph.require_equal(place.of(a), place.of(b), name)
    if name in ("while_loop", "counted"):
        (flag,) = call.graphs[0].graph.outputs
        _require((flag.dtype, flag.shape) == ("bool", ()), f"{name}: the condition gives {flag!r}, no flag")
    keeps = call.graphs[1 if name == "counted" else RESULTS_FROM[name]].graph
    for k in range(state if name != "custom" else 0):
        _agree(graph, f"{name}: state {k}", keeps.outputs[k], place, given[k].dtype, given[k].shape)
    results = call.graphs[-1].graph.outputs
    if name == "cond":
        for one, other in zip(call.graphs[0].graph.outputs, results):
            shape = tuple(map(place.of, other.shape))
            _agree(graph, f"{name}: a result", one, place, other.dtype, shape)


def _checked(op: OpLike, attrs: tuple[Any, ...]) -> Attrs:
    """The attributes, if they are what a control node has."""
    which, counts, steps, sizes, graphs = attrs
    right = (
        isinstance(graphs, tuple)
        and len(graphs) == GRAPHS[op.name]
        and all(isinstance(g, Subgraph) for g in graphs)
        and isinstance(counts, tuple)
        and len(counts) == 3
        and all(type(n) is int and n >= 0 for n in counts)
        and isinstance(steps, tuple)
        and len(steps) == 2
        and _is_dim(steps[0])
        and isinstance(steps[1], bool)
        and isinstance(sizes, tuple)
        and all(map(_is_dim, sizes))
    )
    _require(right, f"{op.name}: not the attributes of control flow")
    call = Attrs(which, counts, steps, sizes, graphs)
    for k, sub in enumerate(graphs):
        slots = len(sizes) + (k == 2)
        _require(sub.graph.slots == slots, f"{op.name}: a graph of {sub.graph.slots} slots gets {slots}")
        _require(not sub.graph.updates, f"{op.name}: a graph that writes into its inputs")
        _require(all(v.layout is None for v in sub.graph.inputs), f"{op.name}: an input with strides")
        kinds = [v.weak for v in sub.graph.inputs]
        _require(kinds == sorted(kinds), f"{op.name}: a number before an array")
    state, results = counts[0], call.results
    least = 0 if op.name in ("cond", "counted", "custom") else state
    _require(
        type(which) is int and 0 <= which < results + (state if op.name == "scan" else 0),
        f"{op.name}: there is no result {which}",
    )
    if op.name == "while_loop":
        _require(results == state, f"{op.name}: the body gives {results} values for {state}")
    if op.name == "custom":
        _require(not any(v.weak for g in graphs for v in g.graph.inputs), f"{op.name}: a number")
        _require(results == counts[1], f"{op.name}: {counts[1]} results are {results}")
        _require(
            len(graphs[0].graph.outputs) == state, f"{op.name}: not a gradient for each of {state} inputs"
        )
    if op.name == "cond":
        _require(len(graphs[0].graph.outputs) == results, f"{op.name}: the branches differ in their results")
    if op.name in ("while_loop", "counted"):
        _require(len(graphs[0].graph.outputs) == 1, f"{op.name}: a condition gives one flag")
        _require(len(graphs[1].graph.outputs) == state, f"{op.name}: the body does not give its state")
    _require(results >= least, f"{op.name}: the body gives {results} values for {state}")
    return call


def _is_dim(value: Any) -> bool:
    return isinstance(value, Size) or (type(value) is int)


class _Place:
    """Sizes of a graph that is called as sizes of the one around it."""

    def __init__(self, sizes: tuple[Dim, ...]) -> None:
        self.sizes = sizes

    def of(self, dim: Dim) -> Dim:
        """A size."""
        if any(slot >= len(self.sizes) for slot in slots_named(dim)):
            raise ValueError(f"a size outside depends on how many steps there are: {dim_text(dim)}")
        return substitute(dim, self.sizes.__getitem__)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _fits(graph: Graph, what: str, value: Value, dtype: str, shape: Shape) -> None:
    if value.dtype != dtype or not graph.same_shape(value.shape, shape):
        raise ValueError(f"{what}: {value!r} where {type_text(dtype, shape)} belongs")


def _agree(graph: Graph, what: str, own: Value, place: _Place, dtype: str, shape: Shape) -> None:
    """States that a value inside looks like that outside."""
    inside = tuple(map(place.of, own.shape))
    if own.dtype != dtype or len(inside) != len(shape):
        raise ValueError(f"{what}: {type_text(own.dtype, inside)} where {type_text(dtype, shape)} belongs")
    for a, b in zip(inside, shape):
        graph.require_equal(a, b, what)


def closed(graph: Graph, inputs: list[Value], outputs: list[Value], slots: int) -> Graph:
    """Makes a graph that was built over its own inputs one that can be called: arrays first, then numbers."""
    graph.inputs = [*inputs, *(v for v in graph.inputs if v.weak)]
    graph.slots = slots
    return graph.finish(outputs)
