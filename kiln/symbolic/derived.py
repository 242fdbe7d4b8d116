"""Graphs made of graphs: passes by name, gradients, parts."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from kiln.capture.pure.function import CellFunction, described, function_for, inline
from kiln.capture.pure.steps import Steps
from kiln.export.reading import follow
from kiln.graph.graph import Graph, Value, building
from kiln.graph.size import Size, slots_named, substitute
from kiln.graph.verify import verify
from kiln.passes.control import history_as_parts
from kiln.passes.gradient import Asked
from kiln.passes.narrow import narrow
from kiln.passes.prepare import prepare
from kiln.passes.rewrite import append, begun, clone, reachable, slots_in
from kiln.passes.simplify import simplify
from kiln.symbolic.literals import literals
from kiln.symbolic.sizes import linear_of, respelled
from kiln.table.kinds import FLOATS
from kiln.table.record import constant, find
from kiln.tracing.captured import Captured, Input, State
from kiln.tracing.expand import expand
from kiln.tracing.ops import program_op
from kiln.tracing.trees import LEAF, Tree

# -- passes ---------------------------------------------------------------------------------------------


def _copy(graph: Graph) -> Graph:
    made, values = clone(graph)
    return made.finish([values[id(v)] for v in graph.outputs])


def without_dead(graph: Graph) -> Graph:
    """A graph without the nodes that no output needs."""
    alive = reachable(graph.outputs)
    made, values = begun(graph)
    for node in graph.nodes:
        if id(node.out) in alive:
            values[id(node.out)] = append(made, node, tuple(values[id(v)] for v in node.inputs))
    return made.finish([values[id(v)] for v in graph.outputs])


def without_twins(graph: Graph) -> Graph:
    """A graph in which equal ops of equal operands and attributes are one node."""
    made, values = begun(graph)
    known: dict[Any, Value] = {}
    for node in graph.nodes:
        inputs = tuple(values[id(v)] for v in node.inputs)
        key = node.op.name, tuple(map(id, inputs)), repr(node.attrs), node.out.dtype
        if key not in known:
            known[key] = append(made, node, inputs)
        values[id(node.out)] = known[key]
    return made.finish([values[id(v)] for v in graph.outputs])


def _simplified(graph: Graph) -> Graph:
    """A graph with fewer nodes, which has the same values and derivatives."""
    return simplify(graph, differentiable=True)


PASSES: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "expand": (expand, "composites as what they are made of: products, reductions, pointwise ops, views"),
    "simplify": (
        _simplified,
        "fewer nodes with the same bits: literals, neutral elements, views, equal nodes, dead code",
    ),
    "cse": (without_twins, "equal ops of equal operands are one node"),
    "dce": (without_dead, "nodes that no output needs are dropped"),
    "literals": (literals, "arrays of one number as that number"),
    "narrow": (
        lambda graph: narrow(_copy(graph)),
        "float16 and bfloat16 stay so where they move, and in products",
    ),
    "prepare": (prepare, "as the planner wants it: long sums in blocks, writes in a row as one"),
}


def run_pass(name: str, graph: Graph) -> Graph:
    """The graph after a pass, verified. ValueError for a name that is none."""
    if name not in PASSES:
        raise ValueError(f"Graph.apply: no pass is called {name!r}; there are {', '.join(PASSES)}")
    made = PASSES[name][0](graph)
    return verify(made)


# -- graphs as programs ---------------------------------------------------------------------------------


def kept_outputs(found: Captured) -> list[Value]:
    """The results of a graph, without what checks look at."""
    return found.graph.outputs[: len(found.outputs) + len(found.mutated)]


def restored(base: Captured, graph: Graph, out_tree: Tree, outputs: list[str], name: str = "") -> Captured:
    """A graph with the inputs and the state of another one as what runs. TextError for one whose nodes are
    not ops that are called.
    """
    made = _like(base, name)
    made.out_tree, made.outputs = out_tree, outputs
    if out_tree is getattr(base, "out_tree", None):
        made.mutated, made.same, made.asks = base.mutated, base.same, base.asks
    made.number_sizes()
    results = follow(made, graph)
    if not made.same:
        made.same = _given_back(made, results[: len(outputs)])
    return made


def _given_back(made: Captured, results: list[int]) -> dict[int, tuple[str, int]]:
    """The results that are an input or a state as it came."""
    count = len(made.inputs)
    operands = count + len(made.state)
    return {
        k: ("input", x) if x < count else ("state", x - count) for k, x in enumerate(results) if x < operands
    }


def shown(base: Captured, graph: Graph) -> Captured:
    """A graph that is shown and not run: it may have ops that only passes know."""
    made = _like(base)
    made.outputs, made.mutated, made.out_tree = base.outputs, base.mutated, base.out_tree
    made.steps, made.graph = base.steps, graph
    made.number_sizes()
    return made


def with_state(base: Captured, tensors: list[Any]) -> Captured:
    """A graph whose state is these tensors."""
    made = copy(base)
    made.state = [State(s.name, s.kind, x) for s, x in zip(base.state, tensors)]
    return made


def _like(base: Captured, name: str = "") -> Captured:
    made = Captured(name or base.name)
    for kept in ("inputs", "in_tree", "state", "parameters", "aliases", "distinct", "guards", "dims"):
        setattr(made, kept, getattr(base, kept))
    made.random, made.drawn, made.gives_sizes = base.random, base.drawn, base.gives_sizes
    return made


def cut(graph: Graph, outputs: list[Value]) -> Graph:
    """A copy that gives these values."""
    made, twins = clone(graph)
    return made.finish([twins[id(v)] for v in outputs])


def part(base: Captured, raw: Graph, values: list[Value]) -> Captured:
    """What computes these values of a graph from the inputs that they need: those, and those whose sizes they
    need.
    """
    graph = without_dead(cut(raw, values))
    arrays = [v for v in graph.inputs if not v.weak]
    alive = reachable(graph.outputs)
    count = len(base.inputs)
    keep = {k for k, v in enumerate(arrays[:count]) if id(v) in alive}
    slots: set[int] = set()
    for value in (*graph.outputs, *(n.out for n in graph.nodes)):
        slots_in(value.shape, slots)
    for node in graph.nodes:
        slots_in(node.attrs, slots)
    for slot in slots:
        if not any(linear_of(n)[0] == slot for k in keep for n in arrays[k].shape if isinstance(n, Size)):
            keep.add(max(k for k, first in enumerate(base.firsts[:count]) if first <= slot))
    return _narrowed(base, graph, sorted(keep))


def _narrowed(base: Captured, graph: Graph, keep: list[int]) -> Captured:
    """A graph with some of its inputs alone."""
    arrays = [v for v in graph.inputs if not v.weak]
    alive = reachable(graph.outputs)
    count = len(base.inputs)
    state = [k for k in range(count, len(arrays)) if id(arrays[k]) in alive]
    numbers = [(v, drawn) for v, drawn in zip([v for v in graph.inputs if v.weak], base.random)]
    made = Captured("part")
    of, made.dims = respelled(base.dims.values(), [arrays[k].shape for k in keep])

    def moved(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(moved, x))
        return substitute(x, lambda slot: of.get(slot, 0)) if isinstance(x, Size) else x

    work, values = Graph(), dict[int, Value]()
    for k in [*keep, *state]:
        for _ in arrays[k].shape:
            work.new_symbol()
        values[id(arrays[k])] = work.add_input(arrays[k].dtype, moved(arrays[k].shape))
    for value, drawn in numbers:
        if id(value) in alive:
            values[id(value)] = work.add_number(value.dtype)
            made.random.append((drawn[0], moved(drawn[1])))
    for node in graph.nodes:
        value = append(work, node, tuple(values[id(v)] for v in node.inputs))
        value.shape = moved(value.shape)
        assert value.node is not None
        value.node.attrs = moved(node.attrs) if node.op.kind != "control" else _control(node.attrs, moved)
        values[id(node.out)] = value
    work.finish([values[id(v)] for v in graph.outputs])
    made.inputs = [
        Input(base.inputs[k].name, base.inputs[k].dtype, moved(base.inputs[k].shape)) for k in keep
    ]
    made.state = [base.state[k - count] for k in state]
    made.in_tree = Tree("tuple", (Tree("tuple", (LEAF,) * len(keep)), Tree("dict")))
    made.parameters = [x.name for x in made.inputs]
    made.aliases, made.distinct = tuple(range(len(keep))), list(range(len(keep)))
    made.drawn = moved(base.drawn)
    for guard in base.guards:
        if all(slots_named(n) <= of.keys() for n in (guard.left, guard.right) if isinstance(n, Size)):
            made.guards.append(guard._replace(left=moved(guard.left), right=moved(guard.right)))
    outputs = [f"output[{k}]" for k in range(len(graph.outputs))]
    tree = Tree("tuple", (LEAF,) * len(outputs))
    return restored(made, work, tree, outputs)


def _control(attrs: tuple[Any, ...], moved: Callable[[Any], Any]) -> tuple[Any, ...]:
    which, counts, steps, sizes, graphs = attrs
    return which, counts, moved(steps), moved(sizes), graphs


# -- gradients ------------------------------------------------------------------------------------------


def gradient(base: Captured, y: int, wrt: list[int]) -> Graph:
    """The graph of the gradients of the sum of output number `y` for some operands: the derivatives that
    backward would call, added in its order.
    """
    steps = _operands_once(base.steps)
    steps = steps._replace(results=(steps.results[y],)).needed()
    pairs = [(a, b) for a, b in (base.op.same if base.op is not None else [])]
    op = program_op(base.name, base.graph, steps, base.firsts, pairs)
    work, values = _begun(base)
    given: list[Any] = [*values, *(v for v in work.inputs if v.weak)]
    function = function_for(op, op.structure)
    assert isinstance(function, CellFunction)
    operands = tuple(map(described, given))
    walk = function.walk(operands)
    if walk.graph.outputs[0].dtype not in FLOATS:
        raise ValueError(
            f"Graph.gradient: the output is {walk.graph.outputs[0].dtype}, which has no gradient"
        )
    backward = function.gradients(operands, Asked(tuple(wrt), (True,)))
    forward, twins = clone(walk.graph)
    forward.finish([twins[id(v)] for v in (*walk.graph.outputs, *backward.hidden)])
    with building(work):
        made = inline(work, forward, given)
        one = work.add(find("convert"), (constant(work, 1.0),), (made[0].dtype,))
        seed = work.add(find("expand"), (one,), (made[0].shape,)) if made[0].ndim else one
        read = []
        for kind, k in backward.sources:
            if kind == "grad":
                read.append(seed)
            elif kind in ("output", "hidden"):
                read.append(made[k + (kind == "hidden")])
            else:
                read.append(given[k])
        grads = inline(work, backward.graph, read)
        found = []
        for k, at in zip(wrt, backward.results):
            value = grads[at] if at >= 0 else _zeros(work, values[k])
            if value is values[k] or value.weak:
                value = work.add(find("convert"), (value,), (values[k].dtype,))
            found.append(value)
    return _simplified(literals(_simplified(history_as_parts(work.finish(found)))))


def _zeros(work: Graph, like: Value) -> Value:
    zero = work.add(find("convert"), (constant(work, 0.0),), (like.dtype,))
    return work.add(find("expand"), (zero,), (like.shape,)) if like.ndim else zero


def _begun(base: Captured) -> tuple[Graph, list[Value]]:
    """A graph with the inputs of another one, sizes as they are declared."""
    work = Graph()
    values = []
    for own in [v for v in base.graph.inputs if not v.weak]:
        for _ in own.shape:
            work.new_symbol()
        values.append(work.add_input(own.dtype, own.shape))
    for own in [v for v in base.graph.inputs if v.weak]:
        work.add_number(own.dtype)
    return work, values


def _operands_once(steps: Steps) -> Steps:
    """The steps with one operand for each tensor, however many steps use it: gradients are added inside."""
    more = len(steps.again)
    first = steps.tensors - more
    own = {first + j: k for j, k in enumerate(steps.again)}

    def number(k: int) -> int:
        return own[k] if k in own else k if k < first else k - more

    changed = tuple([
        s._replace(
            args=tuple([(kind, number(x) if kind in ("value", "operand") else x) for kind, x in s.args]),
            outs=tuple(map(number, s.outs)),
        )
        for s in steps.steps
    ])  # fmt: skip
    results = tuple(map(number, steps.results))
    return Steps(first, steps.numbers, changed, results, ())
