"""Calls of graphs as If, Loop and Scan, whose bodies see what is around them by name.

    cond(flag, x ..)           If(flag) { yes } { no }
    while_loop(state .., x ..) Loop("", condition(state .., x ..), state ..) { state = body; condition }
    counted                    that Loop with a count of its steps, then the graph that has it as a size
    scan(state .., each .., x ..)
                               Loop(length, "", state ..) { state .., part .. = body }
    custom                     the results that stand beside their derivative

What a called graph is given is bound to names, so states alone are inputs of a body. The results of
one call are one operator, and have those that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kiln.graph.control import Attrs, siblings
from kiln.graph.graph import Graph, Node, Shape, Value
from kiln.graph.size import Dim, Size, substitute, symbol
from kiln.onnx import protobuf as pb
from kiln.onnx.builder import END, Builder

Look = tuple[str, Shape]  # a dtype and a shape
Write = Callable[[Graph, Sequence[Value]], None]  # the nodes that some values of a graph need


def passed_on(node: Node) -> Value:
    """The operand that a node `custom` gives."""
    call = Attrs(*node.attrs)
    return node.inputs[call.counts[0] + call.which]


def result(builder: Builder, node: Node, write: Write) -> str:
    """The value of a node that is one result of a call."""
    if node.op.name == "custom":
        return builder.of(passed_on(node))
    calls, key = builder.scope.calls, (node.op.name, tuple(map(id, node.inputs)), node.attrs[1:])
    if key not in calls:
        wanted = sorted({n.attrs[0] for n in siblings(node, builder.scope.needed)})
        made = CALLS[node.op.name](_Caller(builder, node, write), wanted)
        calls[key] = dict(zip(wanted, made))
    return calls[key][node.attrs[0]]


class _Caller:
    """A call whose operator is written."""

    def __init__(self, builder: Builder, node: Node, write: Write) -> None:
        self.builder, self.write = builder, write
        self.call = Attrs(*node.attrs)
        self.line = node.line
        self.x = [builder.of(v) for v in node.inputs]
        self.inputs = node.inputs

    def graph(
        self, k: int, x: Sequence[str], steps: str = "", outputs: Sequence[int] | None = None
    ) -> list[str]:
        """What graph k gives, written where nodes go now; `steps`: how many there are, as a vector."""
        b, graph = self.builder, self.call.graphs[k].graph
        wanted = graph.outputs if outputs is None else [graph.outputs[j] for j in outputs]
        with b.called(self.call.sizes) as scope:
            if steps:
                scope.sizes[symbol(len(self.call.sizes))] = steps
            b.names.update({id(v): name for v, name in zip(graph.inputs, x, strict=True)})
            self.write(graph, wanted)
            return [b.of(v) for v in wanted]

    def look(self, value: Value) -> Look:
        """What a value of a called graph looks like around it."""
        sizes = self.call.sizes
        return value.dtype, tuple([substitute(n, sizes.__getitem__) for n in value.shape])

    def cond(self, wanted: list[int]) -> list[str]:
        """The results of one of two graphs, or of the one that it is known to be."""
        b, branches = self.builder, []
        known = b.numbers.get(self.x[0])
        if known is not None:
            return self.graph(0 if known else 1, self.x[1:], outputs=wanted)
        for k in (0, 1):
            looks = [self.look(self.call.graphs[k].graph.outputs[j]) for j in wanted]
            with b.body() as nodes:
                made = _copies(b, self.graph(k, self.x[1:], outputs=wanted))
                branches.append(pb.graph(b.fresh("branch"), nodes, [], [], _infos(made, looks)))
        return b.several("If", len(wanted), self.x[0], then_branch=branches[0], else_branch=branches[1])

    def while_loop(self, wanted: list[int]) -> list[str]:
        """The states at the end of a loop."""
        ends = self._loop()
        return [ends[k] for k in wanted]

    def counted(self, wanted: list[int]) -> list[str]:
        """What the last graph gives, which knows how many steps a loop has."""
        return self.graph(2, self.x, self.builder.reshape(self._loop(True)[-1], [1]), wanted)

    def _loop(self, counts: bool = False) -> list[str]:
        """The states at the end of a loop; behind them how many steps there were, where that is asked."""
        b, (state, _, rest) = self.builder, self.call.counts
        start, fixed = self.x[:state], self.x[state : state + rest]
        looks = list(map(_look, self.inputs[:state]))
        if counts:
            start, looks = [*start, b.constant(0)], [*looks, ("int64", ())]

        def step(index: str, now: list[str]) -> tuple[str, list[str]]:
            after = self.graph(1, [*now[:state], *fixed])
            (again,) = self.graph(0, [*after, *fixed])
            return again, [*after, *(b.op("Add", n, b.constant(1)) for n in now[state:])]

        (first,) = self.graph(0, [*start[:state], *fixed])
        return _looped(b, "", first, start, looks, step)

    def scan(self, wanted: list[int]) -> list[str]:
        """The last states and the stacked parts; behind them the states before each step."""
        b, (state, each, _), (length, reverse) = self.builder, self.call.counts, self.call.steps
        outputs = self.call.graphs[0].graph.outputs
        stacked = [k for k in wanted if k >= state]
        parts = [(*outputs, *outputs[:state])[k] for k in stacked]

        def step(index: str, now: list[str]) -> tuple[list[str], list[str]]:
            each_part = [b.op("Gather", x, index, axis=0) for x in self.x[state : state + each]]
            found = self.graph(0, [*now, *each_part, *self.x[state + each :]])
            return found[:state], [(*found, *now)[k] for k in stacked]

        starts = list(map(_look, self.inputs[:state]))
        ends = scanned(b, length, reverse, self.x[:state], starts, list(map(self.look, parts)), step)
        places = dict(zip([*range(state), *stacked], ends))
        return [places[k] for k in wanted]


CALLS: dict[str, Callable[[_Caller, list[int]], list[str]]] = {
    "cond": _Caller.cond,
    "while_loop": _Caller.while_loop,
    "counted": _Caller.counted,
    "scan": _Caller.scan,
}


# -- loops ------------------------------------------------------------------------------------------


def scanned(
    b: Builder, length: Dim, reverse: bool, start: Sequence[str], looks: Sequence[Look],
    parts: Sequence[Look], step: Callable[[str, list[str]], tuple[list[str], list[str]]],
) -> list[str]:  # fmt: skip
    """The last states, then the parts stacked along a new first dim, of states, parts = step(index, states)
    for every index below a length, or from the last to the first.

    `looks`: of the states, `parts`: of one part each. ONNX's Scan would say this, but ONNX Runtime refuses
    one of no steps.
    """
    last = b.scalar_size(length - 1)

    def then(index: str, now: list[str]) -> tuple[str, list[str]]:
        states, made = step(b.op("Sub", last, index) if reverse else index, now)
        return b.constant(True, "bool"), [*states, *made]

    ends = _looped(b, b.scalar_size(length), "", start, [*looks, *parts], then)
    stacked = ends[len(start) :]
    if reverse:
        stacked = [b.part(x, 0, -1, END, -1) for x in stacked]
    shaped = [b.reshape(x, (length, *shape)) for x, (_, shape) in zip(stacked, parts)]  # also of no parts
    return [*ends[: len(start)], *shaped]


def _looped(
    b: Builder, trips: str, first: str, start: Sequence[str], looks: Sequence[Look],
    step: Callable[[str, list[str]], tuple[str, list[str]]],
) -> list[str]:  # fmt: skip
    """A Loop of whether to go on and values = step(index, states): as many of the values are the next states,
    the others are stacked. `trips`, `first`: how many steps at most, whether there is a first; "": any, yes.
    """
    count = len(start)
    index, again, *now = (b.fresh(what) for what in ("index", "again", *["state"] * count))
    inputs = _infos([index, again, *now], [("int64", ()), ("bool", ()), *looks[:count]])
    with b.body() as nodes:
        goes_on, after = step(index, now)
        made = _copies(b, [goes_on, *after])
        body = pb.graph(b.fresh("body"), nodes, [], inputs, _infos(made, [("bool", ()), *looks]))
    return b.several("Loop", len(looks), trips, first, *start, body=body)


def _look(value: Value) -> Look:
    return value.dtype, value.shape


def _infos(names: Sequence[str], looks: Sequence[Look]) -> list[bytes]:
    """Inputs or outputs of a body."""
    return [
        pb.value_info(name, dtype, [None if isinstance(n, Size) else n for n in shape])
        for name, (dtype, shape) in zip(names, looks, strict=True)
    ]


def _copies(b: Builder, names: Sequence[str]) -> list[str]:
    """Values under new names, as outputs of a body are."""
    return [b.op("Identity", x) for x in names]
