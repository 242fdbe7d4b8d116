"""Derivatives of control flow: of each call of graphs one of the graphs of their gradients.

    cond         a cond of the branches' gradients; what one of them does not read gets zeros from it
    scan         a scan the other way round, over the states it had (`history`), which a call leaves as
                 further results: the gradient of the state goes back through the body, that of what all steps
                 read is added up on the way
    while_loop   a `counted` graph: with the number of steps known, the loop is a scan, and has its derivative
    counted      the same call, of the gradient of the graph at its end

A sum over steps begins with -0.0, which changes no bit of what is added to it, and goes on contribution by
contribution, from the last step to the first: the order in which backward adds in the loop written out. All
of these are control flow again, so there are derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.graph.control import Attrs, add
from kiln.graph.graph import Graph, Node, Shape, Value, building
from kiln.graph.size import Dim, symbol
from kiln.graph.text import Subgraph
from kiln.passes.rewrite import append, begun, clone, reachable, substitute_attr
from kiln.table.kinds import FLOATS
from kiln.table.record import CONSTANT, CONTROL, constant, find

# A reverse sweep: over the first nodes of a graph, for targets, from outputs with their gradients by number,
# and from sums by id of their targets; the total of each target.
Accumulate = Callable[
    [Graph, int, "list[Value]", "list[Value]", "dict[int, Value]", "dict[int, Value]"], "list[Value | None]"
]
Given = dict[int, Value]  # gradients by the number of the result


def rule(
    accumulate: Accumulate, node: Node, nodes: list[Node], given: Given, wanted: list[bool]
) -> list[Value | None]:
    """The gradients of a call's inputs; `nodes`: its results in the graph."""
    call = Attrs(*node.attrs)
    wrt = [k for k, v in enumerate(node.inputs) if wanted[k] and v.dtype in FLOATS]
    found = _RULES[node.op.name](_Call(accumulate, node, nodes, call), given, wrt)
    return [found.get(k) for k in range(len(node.inputs))]


def with_history(graph: Graph) -> Graph:
    """A graph whose scans also give the states they had, should their derivative read these."""
    known = {(n.op.name, tuple(map(id, n.inputs)), n.attrs) for n in graph.nodes if n.op.kind == "control"}
    for node in [n for n in graph.nodes if n.op.name == "scan" and n.op.kind == "control"]:
        call = Attrs(*node.attrs)
        for k in range(call.results, call.results + call.counts[0]):
            attrs = (k, *node.attrs[1:])
            key = node.op.name, tuple(map(id, node.inputs)), attrs
            if key not in known:
                known.add(key)
                graph.add(node.op, node.inputs, attrs)
    return graph


def history_as_parts(graph: Graph) -> Graph:
    """A graph whose scans give the states they had, where those are read, as parts of each step: results like
    all others, which a program can hold.
    """
    read = {_of_call(n) for n in graph.nodes if n.op.name == "scan" and _is_history(n)}
    if not read:
        return graph
    made, values = begun(graph)
    longer: dict[int, Subgraph] = {}
    for node in graph.nodes:
        inputs = tuple([values[id(v)] for v in node.inputs])
        copy = append(made, node, inputs)
        if node.op.name == "scan" and _of_call(node) in read:
            call = Attrs(*node.attrs)
            body = call.graphs[0]
            if id(body) not in longer:
                work, now = clone(body.graph)
                state = work.inputs[: call.counts[0]]
                longer[id(body)] = Subgraph(work.finish([*(now[id(v)] for v in body.graph.outputs), *state]))
            assert copy.node is not None
            copy.node.attrs = (*node.attrs[:-1], (longer[id(body)],))
        values[id(node.out)] = copy
    return made.finish([values[id(v)] for v in graph.outputs])


def _is_history(node: Node) -> bool:
    call = Attrs(*node.attrs)
    return call.which >= call.results


def _of_call(node: Node) -> Any:
    """What the results of one call have in common."""
    return tuple(map(id, node.inputs)), node.attrs[1:]


def with_condition(condition: Graph, body: Graph, state: int) -> Graph:
    """The body of a loop, which also gives whether the loop goes on after it."""
    work, values = clone(body)
    arrays = [v for v in work.inputs if not v.weak]
    numbers = {v.slot: v for v in work.inputs if v.weak}
    outputs = [values[id(v)] for v in body.outputs]
    given = iter([*outputs, *arrays[state:]])
    for value in condition.inputs:
        if not value.weak:
            values[id(value)] = next(given)
            continue
        if value.slot not in numbers:
            made = numbers[value.slot] = work.add_input(value.dtype, ())
            made.weak, made.slot = True, value.slot
        values[id(value)] = numbers[value.slot]
    for node in condition.nodes:
        values[id(node.out)] = append(work, node, tuple([values[id(v)] for v in node.inputs]))
    return work.finish([*outputs, *(values[id(v)] for v in condition.outputs)])


class _Call:
    """A call, in the graph its gradients are added to."""

    def __init__(self, accumulate: Accumulate, node: Node, nodes: list[Node], call: Attrs) -> None:
        self.accumulate, self.node, self.call = accumulate, node, call
        self.graph = node.out.graph
        self.inputs = list(node.inputs)
        self.made = {n.attrs[0]: n.out for n in nodes}

    def add(self, name: str, inputs: list[Value], **changed: Any) -> list[Value]:
        """Another call in the same graph, with attributes of this one."""
        return add(self.graph, CONTROL[name], inputs, self.call._replace(**changed))

    def result(self, which: int) -> Value:
        """A result; behind those of a scan are the states it had, stacked."""
        if which not in self.made:
            self.made[which] = self.graph.add(self.node.op, self.node.inputs, (which, *self.node.attrs[1:]))
        return self.made[which]


class _Derivative:
    """The gradients of a graph's inputs `wrt` as a graph over the same slots.

    Its inputs are those of the graph, a gradient for each of the outputs `seeds` (in the order they are added
    where several reach one value; those behind the outputs are the first inputs themselves), and the sums so
    far of the inputs `begun`.
    """

    def __init__(
        self, accumulate: Accumulate, graph: Graph, wrt: list[int], seeds: list[int], begun: list[int]
    ) -> None:
        self.work, copies = clone(graph)
        work = self.work
        self.numbers = [v for v in work.inputs if v.weak]
        self.own = work.inputs = [v for v in work.inputs if not v.weak]
        outputs = [copies[id(y)] for y in graph.outputs] + self.own
        work.inputs = []
        self.seeds = [work.add_input(outputs[k].dtype, outputs[k].shape) for k in seeds]
        self.begun = [work.add_input(self.own[k].dtype, self.own[k].shape) for k in begun]
        sums = {id(self.own[k]): v for k, v in zip(begun, self.begun)}
        targets = [self.own[k] for k in wrt]
        with building(work):
            given = dict(zip(seeds, self.seeds))
            self.totals = accumulate(work, len(work.nodes), targets, outputs, given, sums)

    def close(self, inputs: list[Value], outputs: list[Value]) -> Subgraph:
        """The graph, of these inputs and then numbers."""
        self.work.inputs = [*inputs, *self.numbers]
        self.work.finish(outputs)
        alive = reachable(outputs)
        self.work.nodes = [n for n in self.work.nodes if id(n.out) in alive]
        return Subgraph(self.work)


def _filled(graph: Graph, shape: Shape, dtype: str, number: float) -> Value:
    return graph.add(find("full"), (constant(graph, number),), (shape, dtype))


def _like(x: Value, number: float) -> Value:
    return _filled(x.graph, x.shape, x.dtype, number)


def _cond(call: _Call, given: Given, wrt: list[int]) -> dict[int, Value]:
    inputs, seeds = call.inputs[1:], list(given)
    own = [k - 1 for k in wrt if k > 0]
    branches = [_Derivative(call.accumulate, g.graph, own, seeds, []) for g in call.call.graphs]
    reached = [any(b.totals[k] is not None for b in branches) for k in range(len(own))]
    graphs = []
    for branch in branches:
        outputs = [
            _like(branch.own[k], 0.0) if total is None else total
            for k, total, here in zip(own, branch.totals, reached)
            if here
        ]
        graphs.append(branch.close([*branch.own, *branch.seeds], outputs))
    if not any(reached):
        return {}
    results = call.add("cond", [call.inputs[0], *inputs, *given.values()], graphs=tuple(graphs))
    return dict(zip([k + 1 for k, here in zip(own, reached) if here], results))


def _depending(body: Graph, count: int, wrt: list[int]) -> set[int]:
    """The inputs of a body, among its state of `count`, that depend on inputs `wrt` in some step."""
    inputs = [v for v in body.inputs if not v.weak]
    active = set(wrt)
    while True:
        found = {id(inputs[k]) for k in active}
        for node in body.nodes:
            if node.out.dtype in FLOATS and any(id(v) in found for v in node.inputs):
                found.add(id(node.out))
        more = {k for k in range(count) if id(body.outputs[k]) in found and inputs[k].dtype in FLOATS}
        if more <= active:
            return active
        active |= more


def _reaching(body: Graph, count: int, results: set[int]) -> set[int]:
    """The numbers of the state whose value some of the results are computed from, in a later step or this."""
    inputs = [v for v in body.inputs if not v.weak]
    ends = set(results)
    while True:
        values = [inputs[k - len(body.outputs)] if k >= len(body.outputs) else body.outputs[k] for k in ends]
        seen = reachable(values)
        more = {k for k in range(count) if id(inputs[k]) in seen}
        if more <= ends:
            return {k for k in ends if k < count}
        ends |= more


def _scan(call: _Call, given: Given, wrt: list[int]) -> dict[int, Value]:
    state, each, _ = call.call.counts
    (length, reverse), body = call.call.steps, call.call.graphs[0].graph
    count = len(body.outputs)
    active = _depending(body, state, wrt)
    carried = sorted(active & _reaching(body, state, set(given)))
    parts = [k for k in given if k >= state]
    along = [k for k in wrt if state <= k < state + each]
    read = [k for k in wrt if k >= state + each]
    if not carried and not parts:
        return {}
    # (stacked results are made after the last step: their gradients come before that of the state)
    found = _Derivative(call.accumulate, body, [*carried, *along, *read], [*parts, *carried], read)
    totals = iter(found.totals)
    outputs: list[Value] = []
    for k in carried:
        total = next(totals)
        outputs.append(_like(found.own[k], 0.0) if total is None else total)
    of_parts = [(k, next(totals)) for k in along]
    outputs += [before if (total := next(totals)) is None else total for before in found.begun]
    reached = [k for k, total in of_parts if total is not None]
    outputs += [total for _, total in of_parts if total is not None]
    seeds = found.seeds
    graph = found.close(
        [
            *seeds[len(parts) :], *found.begun,
            *found.own[: state + each], *seeds[: len(parts)],
            *found.own[state + each :],
        ],
        outputs,
    )  # fmt: skip
    history = [call.result(count + k) for k in range(state)]
    begin = [given[k] if k in given else _like(call.inputs[k], -0.0) for k in carried]
    begin += [_like(call.inputs[k], -0.0) for k in read]
    given_parts = [given[k] for k in parts]
    results = call.add(
        "scan",
        [*begin, *history, *call.inputs[state : state + each], *given_parts, *call.inputs[state + each :]],
        which=0,
        counts=(len(begin), state + each + len(parts), call.call.counts[2]),
        steps=(length, not reverse),
        graphs=(graph,),
    )
    gradients = dict(zip([*carried, *read], results))
    for k in read:  # of no steps there is no sum
        gradients[k] = _unless_none(gradients[k], length)
    gradients.update(zip(reached, results[len(begin) :]))
    return {k: g for k, g in gradients.items() if k in wrt}


def _size(graph: Graph, size: Dim) -> Value:
    return graph.add(CONSTANT, (), (size,))


def _unless_none(total: Value, length: Dim) -> Value:
    """A sum over so many steps: of none, zeros."""
    if isinstance(length, int) and length > 0:
        return total
    graph = total.graph
    none = graph.add(find("eq"), (_size(graph, length), constant(graph, 0)))
    none = graph.add(find("convert"), (none,), ("bool",))
    return graph.add(find("where"), (none, _like(total, 0.0), total))


def _while_loop(call: _Call, given: Given, wrt: list[int]) -> dict[int, Value]:
    """The gradient of a scan as long as the loop."""
    state, _, captured = call.call.counts
    condition, body = call.call.graphs
    slots = len(call.call.sizes)
    then = Graph()
    then.slots = slots + 1
    arrays = [then.add_input(v.dtype, v.shape) for v in body.graph.inputs if not v.weak]
    seeds = {k: then.add_input(arrays[k].dtype, arrays[k].shape) for k in given}
    own = tuple(symbol(k) for k in range(slots))
    attrs = Attrs(0, (state, 0, captured), (symbol(slots), False), own, (body,))
    with building(then):
        first = add(then, CONTROL["scan"], arrays, attrs)[0].node
        assert first is not None
        found = _scan(_Call(call.accumulate, first, [], attrs), seeds, wrt)
    if not found:
        return {}
    then.finish(list(found.values()))
    alive = reachable(then.outputs)
    then.nodes = [n for n in then.nodes if id(n.out) in alive]
    graphs = condition, body, Subgraph(then)
    results = call.add("counted", [*call.inputs, *given.values()], which=0, graphs=graphs)
    return dict(zip(found, results))


def _counted(call: _Call, given: Given, wrt: list[int]) -> dict[int, Value]:
    *loop, then = call.call.graphs
    found = _Derivative(call.accumulate, then.graph, wrt, list(given), [])
    reached = [(k, total) for k, total in zip(wrt, found.totals) if total is not None]
    if not reached:
        return {}
    graph = found.close([*found.own, *found.seeds], [total for _, total in reached])
    results = call.add("counted", [*call.inputs, *given.values()], which=0, graphs=(*loop, graph))
    return dict(zip([k for k, _ in reached], results))


def _custom(call: _Call, given: Given, wrt: list[int]) -> dict[int, Value]:
    """The graph that the call has for it, on what it reads, its results and their gradients."""
    count, results, _ = call.call.counts
    read = call.inputs[count + results :] + [call.result(k) for k in range(results)]
    read += [given[k] if k in given else _like(call.inputs[count + k], 0.0) for k in range(results)]
    made = _inlined(call.graph, call.call.graphs[0].graph, read, call.call.sizes)
    found = {}
    for k in wrt:
        if k < count:
            part, dtype = made[k], call.inputs[k].dtype
            part = part if part.dtype == dtype else call.graph.add(find("convert"), (part,), (dtype,))
            found[k] = call.graph.add(find("once"), (part,)) if call.call.steps[1] else part
    return found


def _inlined(graph: Graph, source: Graph, arrays: list[Value], sizes: tuple[Dim, ...]) -> list[Value]:
    """The nodes of a graph that is called, in the graph around it."""
    values = {id(own): value for own, value in zip(source.inputs, arrays)}
    for node in source.nodes:
        attrs = tuple([substitute_attr(a, sizes.__getitem__) for a in node.attrs])
        values[id(node.out)] = graph.add(node.op, tuple([values[id(v)] for v in node.inputs]), attrs)
    return [values[id(v)] for v in source.outputs]


def without_custom(graph: Graph) -> Graph:
    """A graph that is not differentiated any more: the results of `custom` as they were computed."""
    if not any(node.op is CONTROL["custom"] for node in graph.nodes):
        return graph
    work, values = begun(graph)
    for node in graph.nodes:
        if node.op is CONTROL["custom"]:
            values[id(node.out)] = values[id(node.inputs[node.attrs[1][0] + node.attrs[0]])]
        else:
            values[id(node.out)] = append(work, node, tuple([values[id(v)] for v in node.inputs]))
    work.updates.update(graph.updates)
    return work.finish([values[id(v)] for v in graph.outputs])


_RULES: dict[str, Callable[[_Call, Given, list[int]], dict[int, Value]]] = {
    "cond": _cond,
    "scan": _scan,
    "while_loop": _while_loop,
    "counted": _counted,
    "custom": _custom,
}
