"""Functions as graphs: an op at a structure, or the derivative of one, captured for operands that look like
given ones.

The core describes an operand as ("float32", (0, 1, ...) with a 1 where a size is 1, stride classes or None
where
contiguous), or as the letter of a number: "f", "i" or "b". Slots of a captured graph's environment follow the
operands: an array has one per dim for its sizes, then, unless contiguous, one per dim for its strides; a
number has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from typing import Any, Union

from kiln.graph.graph import Graph, Node, Value, building
from kiln.graph.size import Dim, Size, single_slot, substitute, symbol, terms
from kiln.passes.by_rows import own_rows, rows_of_saved
from kiln.passes.control import with_history
from kiln.passes.gradient import Asked, Backward
from kiln.passes.pipeline import DERIVATIVE, HIDDEN, OP, REPLAY, run
from kiln.passes.rewrite import append, clone, reachable, substitute_attr
from kiln.table.kinds import ROUNDED, VIEWS, broadcast
from kiln.table.record import Op, find

Described = Union[str, tuple[str, tuple[int, ...], Union[tuple[int, ...], None]]]
Operands = tuple[Described, ...]
Reads = list[list[int]]
Rows = tuple[int, list[tuple[int, int]]]

GRADIENT, LEFT, RIGHT, ROWS = range(4)  # what a derivative gives of an operand; in native/call/op.h too
NUMBER = {"f": "float64", "i": "int64", "b": "bool"}


class Function:
    """What the core can ask for: a graph for operands that look like given ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._graphs: dict[tuple[Operands, bool], Graph] = {}

    def graph(self, operands: Operands, hidden: bool = False) -> Graph:
        """The graph; with `hidden`, with the extra outputs a derivative reads."""
        found = self._graphs.get((operands, hidden))
        if found is None:
            found = self._graphs[operands, hidden] = self.capture(operands, hidden)
        return found

    def capture(self, operands: Operands, hidden: bool) -> Graph:
        """Builds the graph."""
        raise NotImplementedError


class Forward(Function):
    """An op at a structure: what the core passed with the call besides arrays and numbers."""

    def __init__(self, op: Op, structure: tuple[Any, ...]) -> None:
        super().__init__(op.name)
        self.op = op
        self.structure = structure
        self._primal: dict[Operands, Graph] = {}
        self._everywhere: dict[Operands, bool] = {}  # whether it is pointwise, whatever the shape
        self._derivatives: dict[tuple[Any, ...], Derivative] = {}

    def capture(self, operands: Operands, hidden: bool) -> Graph:
        if not hidden:
            return self._trace([declare, *operands])
        primal = self.primal(operands)
        graph, twins = clone(primal)
        extra = self.hidden(operands, Asked.everything(primal))
        return relaid(graph.finish([twins[id(v)] for v in (*primal.outputs, *extra)]), operands)

    def _trace(self, declared: list[Any]) -> Graph:
        """The op applied to inputs that `declared[0]` makes of the operands after it."""
        graph = Graph()
        make, *operands = declared
        values = [make(graph, d) for d in operands]
        with building(graph):
            if self.op.kind == "composite":
                outputs = self.whole(graph, values)
            else:
                outputs = [graph.add(self.op, *self.arguments(values))]
        return graph.finish(outputs)

    def whole(self, graph: Graph, values: list[Value]) -> list[Value]:
        """The results of a composite on values of a graph."""
        return rounded_once(graph, values, self._body)

    def _body(self, values: list[Value]) -> list[Value]:
        assert self.op.body is not None
        result = self.op.body(*self.op.lifted(list(self.bound(values))))
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def bound(self, values: list[Value]) -> Iterator[Any]:
        """The arguments in parameter order, from values and structure (see Arguments in
        native/binding/arguments.cpp).
        """
        rest, entries = iter(values), iter(self.structure)
        for param in self.op.params:
            if self.op.kind == "pointwise" and param.kind != "S":
                yield next(rest)
                continue
            entry = next(entries)
            if param.kind == "S":
                yield entry[0] if self.op.kind == "slice" else entry
            elif param.kind == "Z":
                yield tuple(symbol(next(rest).slot) for _ in range(entry))
            elif param.kind == "L":
                yield [next(rest) for _ in range(entry)]
            else:
                yield None if entry is None else next(rest)

    def arguments(self, values: list[Value]) -> tuple[tuple[Value, ...], tuple[Any, ...]]:
        """Inputs and attributes of the op as one node."""
        inputs: list[Value] = []
        attrs: list[Any] = []
        for param, value in zip(self.op.params, self.bound(values)):
            if param.kind in "SZ":
                attrs.append(value)
            elif param.kind == "L":
                inputs += value
            elif value is not None:
                inputs.append(value)
        return tuple(inputs), tuple(attrs)

    def explain(self, graph: Graph, values: list[Value]) -> None:
        """Raises what is wrong with the sizes of `values`, in the op's own words if it has any."""
        with building(graph):
            if self.op.explain is not None:
                error = self.op.explain(*self.bound(values))
                if error is not None:
                    raise error
            if self.op.kind == "composite":
                self._body(values)
            else:
                graph.add(self.op, *self.arguments(values))

    # -- what derivatives are taken of ----------------------------------------------------------------

    def is_pointwise(self, operands: Operands) -> bool:
        """Whether one kernel computes the function at every point of its broadcast operands, of any shape."""
        if self.op.kind != "composite":
            return self.op.kind == "pointwise"
        if operands not in self._everywhere:
            here = classify(self.graph(operands)) == "pointwise"
            self._everywhere[operands] = here and self._is_pointwise_at_a_point(operands)
        return self._everywhere[operands]

    def _is_pointwise_at_a_point(self, operands: Operands) -> bool:
        try:
            return classify(self._trace([declare_point, *operands])) == "pointwise"
        except (IndexError, RuntimeError):  # it asks for more dims
            return False

    def primal(self, operands: Operands) -> Graph:
        """The graph derivatives are taken of, inputs contiguous; the op as one node if it states its
        derivative.

        A pointwise function is differentiated at one point: all arrays have one shape, and the engine sums
        over what was broadcast.
        """
        operands = tuple(d if isinstance(d, str) else (d[0], d[1], None) for d in operands)
        found = self._primal.get(operands)
        if found is None:
            make = declare_point if self.is_pointwise(operands) else declare
            found = self._trace([make, *operands])
            if self.op.kind == "composite" and self.op.gradient is not None:
                found = self._as_one_node(found)
            found = with_history(found)
            found = self._primal.setdefault(operands, found)  # another thread's: values are told by identity
        return found

    def _as_one_node(self, graph: Graph) -> Graph:
        whole = Graph()
        whole.slots, whole.checks, whole.inputs = graph.slots, graph.checks, graph.inputs
        for value in graph.inputs:
            value.graph = whole
        for y in graph.outputs:  # a node has one output: as many nodes of the same inputs
            node = Node(self.op, *self.arguments(graph.inputs))
            node.out = Value(whole, node, y.dtype, y.shape)
            whole.nodes.append(node)
        return whole.finish([node.out for node in whole.nodes])

    def derivative(self, operands: Operands, asked: Asked) -> Derivative:
        """The gradients asked for, of a call of such operands."""
        found = self._derivatives.get((operands, asked))
        if found is None:
            found = self._derivatives[operands, asked] = Derivative(self, operands, asked)
        return found

    def gradients(self, operands: Operands, asked: Asked, calls: bool = False) -> Backward:
        """What a derivative is made of; with `calls`, of what is called one by one."""
        given = self.primal(operands), asked
        found: Backward = run(REPLAY, *given, True) if calls else run(DERIVATIVE, *given)
        return found

    def hidden(self, operands: Operands, asked: Asked) -> tuple[Value, ...]:
        """The values that a call gives besides its results, where these gradients are wanted."""
        found: Backward = run(HIDDEN, self.primal(operands), asked)
        return found.hidden

    def saves(self, operands: Operands) -> tuple[int, Reads, Reads, Reads, list[int]]:
        """What backward reads of a call: how many hidden outputs; per operand the operands, outputs and
        hidden outputs that its gradient reads; and those that have a gradient at all."""
        everything = Asked.everything(self.primal(operands))
        kinds = "input", "output", "hidden"
        reads: dict[str, Reads] = {kind: [[] for _ in operands] for kind in kinds}
        if not self.op.differentiable or not any(everything.defined) or not everything.wrt:
            return 0, *reads.values(), []  # type: ignore[return-value]
        found = self.derivative(operands, everything)
        read = found.reads()
        for i, more in self.derivative(operands, everything._replace(redo=True)).reads().items():
            read[i] |= more
        for i, sources in read.items():
            for kind, k in sorted(sources):
                if kind in kinds:
                    reads[kind][i].append(k)
        return found.hidden, reads["input"], reads["output"], reads["hidden"], sorted(read)


class Derivative(Function):
    """The gradients of some operands of a function, as a function of gradients and saved values.

    `sources`: where each input comes from; `targets`: what each result is: an operand and GRADIENT, its
    gradient, or LEFT or RIGHT, factors of a product that is a part of it; `passes`: the input that is that
    result as it is, or in another shape, or -1: then it is computed; `products`: which products each target's
    gradient has as parts, of each the operands' dims whose product is how many rows it has; `scattered`: the
    targets whose gradient is an array scattered into zeros.

    Of a launch on rows, the operands that its calls share (`asked.shared`) have ROWS as gradients, one for
    each call, where they can be told apart. `hidden_rows`: the hidden outputs that have rows too; None:
    one has them elsewhere than in front.
    """

    def __init__(self, forward: Forward, operands: Operands, asked: Asked) -> None:
        super().__init__(f"{forward.name} backward")
        self.at_a_point = forward.is_pointwise(operands)
        everything = Asked.everything(forward.primal(operands))
        wrt = tuple(i for i in asked.wrt if i in everything.wrt)
        self.forward = forward
        self._wrt, self._shared = wrt, asked.shared
        self._of = operands, asked._replace(wrt=wrt, shared=-1)
        self._found = found = forward.gradients(*self._of)
        hidden = () if asked.redo else forward.hidden(operands, everything)
        place = {id(v): k for k, v in enumerate(hidden)}
        self.hidden = len(hidden)
        self.sources: list[tuple[str, int]] = []
        for kind, k in found.sources:
            if kind in ("input", "shape") and isinstance(operands[k], str):
                kind = "number"
            self.sources.append((kind, place[id(found.hidden[k])] if kind == "hidden" else k))
        self.targets, values = _results(found, wrt)
        dims = _dims_of_slots(forward.primal(operands))
        self.products = {i: [_factors(n, dims) for n in rows] for i, rows in zip(wrt, found.products)}
        self.scattered = {i for i, is_so in zip(wrt, found.scattered) if is_so}
        self.contiguous = found.graph
        self.hidden_rows: list[int] | None = []
        if self._shared >= 0:
            self.hidden_rows = _hidden_rows(found, place)
            self.contiguous, self.targets, values = _of_each(found, self.targets, values, self._shared)
        graph = self.contiguous
        if asked.factored or self._shared >= 0 or not graph.nodes:
            self.passes = [
                _pass(value, graph) if role != GRADIENT or not graph.nodes else -1
                for (_, role), value in zip(self.targets, values)
            ]
        else:
            self.passes = [-1] * len(values)
        self.contiguous.outputs = [y for y, k in zip(values, self.passes) if k < 0]

    def reads(self) -> dict[int, set[tuple[str, int]]]:
        """For each operand that has a gradient: the sources of what that gradient is computed from."""
        below = {id(x): 1 << k for k, x in enumerate(self._found.graph.inputs)}
        for node in self._found.graph.nodes:
            below[id(node.out)] = reduce(or_, [below[id(x)] for x in node.inputs], 0)
        # what comes to a matrix through its transposition is a part of it as a pair of factors alone
        found: dict[int, set[tuple[str, int]]] = {i: set() for i, rows in self.products.items() if rows}
        for (i, _), value in zip(*_results(self._found, self._wrt)):
            bits = below[id(value)]
            own = {source for k, source in enumerate(self.sources) if bits >> k & 1}
            found[i] = found.get(i, set()) | own
        return found

    def calls(self, operands: Operands) -> Graph:
        """The graph that is replayed under `create_graph`, with all results: composites that state their own
        derivative stay calls, if what backward reads is the same.
        """
        if self.at_a_point:
            return self.graph(operands)
        found = self.forward.gradients(*self._of, calls=True)
        if found.sources != self._found.sources or not self._gives_the_same(found):
            found = self._found
        targets, values = _results(found, self._wrt)
        if self._shared >= 0:
            graph, _, outputs = _of_each(found, targets, values, self._shared)
            graph.outputs = outputs
            return relaid(graph, operands)
        whole, twins = clone(found.graph)
        whole.outputs = [twins[id(y)] for y in values]
        return relaid(whole, operands)

    def _gives_the_same(self, found: Backward) -> bool:
        targets, values = _results(found, self._wrt)
        if self._shared >= 0:
            targets = _of_each(found, targets, values, self._shared)[1]
        return targets == self.targets

    def capture(self, operands: Operands, hidden: bool) -> Graph:
        if not self.at_a_point:
            return relaid(self.contiguous, operands)
        graph = Graph()
        values = [declare(graph, d) for d in operands]
        return graph.finish(copy_pointwise(graph, self.contiguous, values))


def _results(found: Backward, wrt: tuple[int, ...]) -> tuple[list[tuple[int, int]], list[Value]]:
    """What the results of a derivative are, and their values: of each target its gradient, then factors."""
    targets: list[tuple[int, int]] = []
    values: list[Value] = []
    for i, place, pairs in zip(wrt, found.results, found.factors):
        parts = [(GRADIENT, place), *(part for a, b in pairs for part in ((LEFT, a), (RIGHT, b)))]
        for role, k in parts:
            if k >= 0:
                targets.append((i, role))
                values.append(found.values[k])
    return targets, values


def _rows_of(found: Backward) -> Dim:
    """How many rows a launch has: every result has them in front."""
    graph = found.graph
    of_results = zip(graph.inputs, found.sources)
    return next((x.shape[0] for x, (kind, _) in of_results if kind == "grad" and x.ndim), -1)


def _of_each(
    found: Backward, targets: list[tuple[int, int]], values: list[Value], shared: int
) -> tuple[Graph, list[tuple[int, int]], list[Value]]:
    """A copy of the graph, what its results are, and their values: of shared operands a row for each call."""
    graph, twins = clone(found.graph)
    made = [twins[id(y)] for y in values]
    kinds = list(targets)
    for k, (i, role) in enumerate(targets):
        if role == GRADIENT and shared >> i & 1:
            own = own_rows(made[k], _rows_of(found))
            if own is not None:
                made[k], kinds[k] = own, (i, ROWS)
    alive = reachable(made)
    graph.nodes = [n for n in graph.nodes if id(n.out) in alive]
    return graph, kinds, made


def _hidden_rows(found: Backward, place: dict[int, int]) -> list[int] | None:
    having: list[int] = []
    rows = None
    for x, (kind, k) in zip(found.graph.inputs, found.sources):
        if kind == "hidden":
            rows = _rows_of(found) if rows is None else rows
            has = rows_of_saved(x, rows)
            if has < 0:
                return None
            if has:
                having.append(place[id(found.hidden[k])])
    return having


def _dims_of_slots(graph: Graph) -> dict[int, tuple[int, int]]:
    """Which input's which dim a slot is the size of."""
    found: dict[int, tuple[int, int]] = {}
    for i, value in enumerate(graph.inputs):
        for d, size in enumerate(value.shape):
            found.setdefault(single_slot(size), (i, d))
    return found


def _factors(size: Dim, dims: dict[int, tuple[int, int]]) -> Rows | None:
    """The number and the dims whose product a size is; None for other sizes."""
    if isinstance(size, int):
        return size, []
    if len(terms(size)) != 1:
        return None
    ((monomial, count),) = terms(size)
    found = [dims.get(atom.slot, (-1, -1)) for atom in monomial]
    return (count, found) if count > 0 and (-1, -1) not in found else None


def _pass(value: Value, graph: Graph) -> int:
    """The input that a value is, in whatever shape, or -1."""
    while value.node is not None and value.node.op.kind == "reshape":
        value = value.node.inputs[0]
    return next((k for k, v in enumerate(graph.inputs) if v is value), -1)


def rounded_once(
    graph: Graph, values: list[Value], body: Callable[[list[Value]], list[Value]]
) -> list[Value]:
    """What a composite's body gives; of float16 and bfloat16 it computes in float32 and rounds at its end."""
    if not any(v.dtype in ROUNDED for v in values):
        return body(values)
    trial, twins = clone(graph)
    with building(trial):
        dtypes = [v.dtype for v in body([twins[id(v)] for v in values])]
    convert = find("convert")
    wide = [graph.add(convert, (v,), ("float32",)) if v.dtype in ROUNDED else v for v in values]
    outputs = [graph.add(convert, (v,), (d,)) if v.dtype != d else v for v, d in zip(body(wide), dtypes)]
    run(OP, graph)
    return outputs


def declare(graph: Graph, described: Described) -> Value:
    """A described operand as an input of `graph`."""
    if isinstance(described, str):
        return graph.add_number(NUMBER[described])
    dtype, ones, classes = described
    sizes = [graph.new_symbol() for _ in ones]
    shape: tuple[Dim, ...] = tuple(1 if one else size for one, size in zip(ones, sizes))
    if classes is None:
        return graph.add_input(dtype, shape)
    strides = [graph.new_symbol() for _ in ones]
    return graph.add_input(dtype, shape, tuple(s if c == 2 else c for c, s in zip(classes, strides)))


def declare_point(graph: Graph, described: Described) -> Value:
    """A described operand of a pointwise function, all arrays of one shape [n]."""
    if isinstance(described, str):
        return graph.add_number(NUMBER[described])
    graph.new_symbol()
    shared = next((v.shape for v in graph.inputs if not v.weak), (symbol(graph.slots - 1),))
    value = graph.add_input(described[0], shared)
    value.scalar = not described[1]
    return value


def classify(graph: Graph) -> str:
    """How the core may run a graph: "pointwise", "replay" (views only), or "program"."""
    kinds = {n.op.kind for n in graph.nodes}
    if not kinds - VIEWS:
        return "replay"
    shapes = {v.shape for v in graph.inputs if not v.weak}
    made = any(n.op.kind == "full" and n.out.shape not in shapes for n in graph.nodes)
    made = made or any(n.op.kind == "constant" and isinstance(n.attrs[0], Size) for n in graph.nodes)
    read = {id(v) for n in graph.nodes for v in n.inputs}
    out = graph.outputs[0].shape
    made = made or any(not v.weak and id(v) not in read and v.shape != out for v in graph.inputs)
    return "program" if made or kinds - {"pointwise", "constant", "full"} else "pointwise"


def copy_pointwise(graph: Graph, source: Graph, inputs: list[Value]) -> list[Value]:
    """The nodes of a pointwise graph on `inputs`, in `graph`: shapes are inferred anew, for any ranks."""
    values = {id(own): given for own, given in zip(source.inputs, inputs)}
    shape = broadcast(graph, [v.shape for v in inputs], "a pointwise function")
    for node in source.nodes:
        attrs = (shape, node.attrs[1]) if node.op.kind == "full" else node.attrs
        made = graph.add(node.op, tuple(values[id(v)] for v in node.inputs), attrs)
        made.weak = node.out.weak
        values[id(node.out)] = made
    return [values[id(v)] for v in source.outputs]


def relaid(graph: Graph, operands: Operands) -> Graph:
    """A graph of contiguous inputs with its inputs laid out as described: other slots, the same nodes."""
    new = Graph()
    place: dict[int, Dim] = {}
    values: dict[int, Value] = {}
    first = 0
    for value, described in zip(graph.inputs, operands):
        start = new.slots
        values[id(value)] = made = declare(new, described)
        count = 1 if value.weak else value.ndim
        place.update({first + k: symbol(start + k) for k in range(count)})
        first += count
        made.scalar = value.scalar

    def replace(slot: int) -> Dim:
        return place[slot]

    for value in graph.inputs:
        values[id(value)].shape = tuple(substitute(d, replace) for d in value.shape)
    for node in graph.nodes:
        values[id(node.out)] = made = append(new, node, tuple(values[id(v)] for v in node.inputs))
        made.shape = tuple(substitute(d, replace) for d in made.shape)
        assert made.node is not None
        made.node.attrs = tuple(substitute_attr(a, replace) for a in node.attrs)
    new.checks = [(substitute(a, replace), substitute(b, replace)) for a, b in graph.checks]
    new.outputs = [values[id(v)] for v in graph.outputs]
    return new
