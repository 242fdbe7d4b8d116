"""A graph as steps again: the other direction of `graphs.graph_of`, for programs that are read from a file.

A graph says what is computed; steps say so as the core is called, so that a program that was read is the op
that a traced one is: the same kernels, the same bits, gradients in the same order.
"""

from __future__ import annotations

from typing import Any

from kiln.capture.called import CALLED
from kiln.capture.function import NUMBER
from kiln.capture.pure.steps import DETACH, STRIDED, WRITE, Argument, Step, Steps, using
from kiln.graph.control import Attrs, add
from kiln.graph.graph import Graph, Node, Shape, Value
from kiln.graph.size import Dim, Size, symbol
from kiln.graph.text import TextError, text
from kiln.passes.fold import fold_pointwise
from kiln.table.kinds import FLOATS
from kiln.tracing.expand import call_of, expanded, literal, whole_of

_FIRST = 1 << 20  # what steps make is numbered from here until it is known how many operands there are


class Restored:
    """The calls that a graph's nodes stand for, with what `capture` knows of a run besides."""

    def __init__(self, graph: Graph) -> None:
        self._all = graph.values()
        self.operands = [v for v in graph.inputs if not v.weak]
        self.numbers = [v for v in graph.inputs if v.weak]
        self.steps: list[Step] = []
        self.sizes: dict[int, tuple[Any, ...]] = {}
        self.dtypes: dict[int, str] = {}
        self.values: dict[int, Value] = dict(enumerate(self.operands))
        self._number = {id(v): k for k, v in enumerate(self.operands)}
        self._by_call: dict[
            tuple[Any, ...], tuple[int, set[int]]
        ] = {}  # of several results: step, those seen
        for value, k in zip(self.operands, range(len(self.operands))):
            self.sizes[k], self.dtypes[k] = tuple(value.shape), value.dtype
        self.begins: list[int] = []  # how many steps stand before each node, and at the end
        for node in graph.nodes:
            self.begins.append(len(self.steps))
            if node.op.kind != "constant":
                self._add(node)
        self.begins.append(len(self.steps))
        self.results = [self._value(v) for v in graph.outputs]

    def _value(self, value: Value) -> int:
        found = self._number.get(id(value))
        if found is None:
            raise TextError("a program's results are tensors, not numbers")
        return found

    def number_of(self, value: Value) -> int | None:
        """The number of a value; None of one that is a number, or of which nothing is made."""
        return self._number.get(id(value))

    def _argument(self, x: Any) -> Argument:
        if not isinstance(x, Value):
            return "size" if isinstance(x, Size) else "number", x
        if x.weak and x.node is None:
            return "operand", next(k for k, v in enumerate(self.numbers) if v is x)
        if x.weak:
            return "number", _number(x)
        return "value", self._value(x)

    def _add(self, node: Node) -> None:
        out = node.out
        if out.weak:
            return  # whoever uses it says so
        if node.op.name == "detach":
            self._append(DETACH, (), (self._argument(node.inputs[0]),), node, 0)
            return
        if node.op.kind == "control":
            self._control(node)
            return
        if node.op.kind in ("as_strided", "write") and node.op.name == node.op.kind:
            self._memory(node)
            return
        op, which = whole_of(node.op)
        inputs = [literal(v) for v in node.inputs]
        structure, operands = call_of(op, inputs, node.attrs)
        args = tuple(map(self._argument, operands))
        if op is node.op:
            self._append(op, structure, args, node, 0)
            return
        key = op.name, structure, args
        at, given = self._by_call.get(key, (-1, set()))
        if at < 0 or which in given:  # the same call once more is a call of its own: gradients count it
            self._by_call[key] = len(self.steps), {which}
            self._append(op, structure, args, node, which)
            return
        given.add(which)
        self.steps[at] = self._with(self.steps[at], node, which)

    def _control(self, node: Node) -> None:
        """Control flow as the call of a graph that holds nothing else; its results are all of the node's."""
        call = Attrs(*node.attrs)
        if call.which >= call.results:
            raise TextError(f"{node.op.name}: a result that only derivatives read")
        key = node.op.name, tuple(map(id, node.inputs)), call[1:]
        at, given = self._by_call.get(key, (-1, set()))
        if at < 0 or call.which in given:
            graph, sizes = alone(node, call)
            operands = [*node.inputs, *sizes]
            args = tuple(map(self._argument, operands))
            step = Step(CALLED, (len(node.inputs), text(graph), len(sizes)), args, (), (), (), True)
            around = node.out.graph
            for k in range(call.results):
                step = self._with_result(step, *node.op.infer(around, node.inputs, (k, *call[1:])))
            at, given = len(self.steps), set()
            self._by_call[key] = at, given
            self.steps.append(step)
        given.add(call.which)
        self._name(self.steps[at].outs[call.which], node.out)

    def _memory(self, node: Node) -> None:
        args = tuple(map(self._argument, node.inputs))
        if node.op.name == "write":
            strides, (offset,) = node.attrs
            self._append(WRITE, (tuple(node.inputs[1].shape), strides, offset), args, node, 0)
            return
        sizes, strides, (offset,) = node.attrs
        self._append(STRIDED, (sizes, strides, offset), args, node, 0)

    def _append(
        self, op: Any, structure: tuple[Any, ...], args: tuple[Argument, ...], node: Node, which: int
    ) -> None:
        self.steps.append(self._with(Step(op, structure, args, (), (), (), True), node, which))

    def _with(self, step: Step, node: Node, which: int) -> Step:
        """The step with the value of a node as its result number `which`."""
        while len(step.outs) <= which:
            dtype, shape = node.out.dtype, node.out.shape
            if len(step.outs) < which:  # one that no node gives
                dtype, shape = step.op.result(len(step.outs)).infer(node.out.graph, node.inputs, node.attrs)
            step = self._with_result(step, dtype, shape)
        self._name(step.outs[which], node.out)
        return step

    def _with_result(self, step: Step, dtype: str, shape: Shape) -> Step:
        """The step with a result more."""
        ones = tuple([d for d, size in enumerate(shape) if size == 1])
        out = self._new(dtype, shape)
        return step._replace(outs=(*step.outs, out), dtypes=(*step.dtypes, dtype), ones=(*step.ones, ones))

    def _name(self, k: int, value: Value) -> None:
        self._number[id(value)] = k
        self.values[k] = value

    def _new(self, dtype: str, shape: tuple[Any, ...]) -> int:
        k = _FIRST + len(self.dtypes) - len(self.operands)
        self.dtypes[k], self.sizes[k] = dtype, tuple(shape)
        return k

    def sizes_of(self, k: int) -> Shape:
        """The sizes of a value, those that vary in general."""
        return self.sizes[k]

    def shapes(self, steps: Steps) -> dict[int, Any]:
        """The sizes of what steps make, by the number that `finish` gave it."""
        first = steps.tensors + len(self.numbers)
        return {k - _FIRST + first: shape for k, shape in self.sizes.items() if k >= _FIRST}

    def places(self, steps: Steps) -> dict[int, int]:
        """By its place among the graph's inputs and nodes: the number that `finish` gave a value."""
        first = steps.tensors + len(self.numbers)
        found = {at: self._number.get(id(v)) for at, v in enumerate(self._all)}
        return {at: k if k < _FIRST else k - _FIRST + first for at, k in found.items() if k is not None}

    def finish(self, results: list[int]) -> Steps:
        """The steps that these values need, numbered one after another."""
        letters = {dtype: letter for letter, dtype in NUMBER.items()}
        tensors = len(self.operands)
        found = Steps(
            tensors, "".join(letters[v.dtype] for v in self.numbers), tuple(self.steps), tuple(results)
        )
        found = found.needed()
        seen: set[int] = set()
        again: list[int] = []
        for _, k in using(found.steps, tensors):
            if k in seen and self.dtypes[k] in FLOATS:
                again.append(k)
            seen.add(k)
        whole = tensors + len(again)
        first = whole + len(self.numbers)

        def number(k: int) -> int:
            return k if k < _FIRST else k - _FIRST + first

        def step(s: Step) -> Step:
            args = [
                (kind, x if kind in ("number", "size") else number(x) if kind == "value" else x + whole)
                for kind, x in s.args
            ]
            return s._replace(args=tuple(args), outs=tuple(map(number, s.outs)))

        steps = tuple(map(step, found.steps))
        return Steps(whole, found.numbers, steps, tuple(map(number, results)), tuple(again))


def _number(value: Value) -> Any:
    """What arithmetic on literals gives."""
    node = value.node
    if node is not None and node.op.kind == "constant":
        return node.attrs[0]
    literals = [] if node is None else [_number(v) for v in node.inputs]
    found = None
    if node is not None and all(isinstance(n, (bool, int, float)) for n in literals):
        found = fold_pointwise(node, literals)
    if found is None:
        what = "numbers that vary" if node is None else f"{node.op.name} of numbers alone"
        raise TextError(f"{what}: a program computes with tensors")
    return found


def alone(node: Node, call: Attrs) -> tuple[Graph, list[Dim]]:
    """A graph of one call of control flow on its own inputs, and the sizes it is given besides: those that
    vary and are no size of an input.
    """
    graph = Graph()
    known: dict[Dim, Dim] = {}
    inputs = []
    for value in node.inputs:
        shape: list[Dim] = []
        for n in value.shape:
            own = graph.new_symbol()
            shape.append(known.setdefault(n, own) if isinstance(n, Size) else n)
        inputs.append(graph.add_input(value.dtype, tuple(shape)))
    further: list[Dim] = []

    def of(size: Dim) -> Dim:
        if isinstance(size, Size) and size not in known:
            further.append(size)
            known[size] = symbol(graph.add_number("int64").slot)
        return known[size] if isinstance(size, Size) else size

    sizes = tuple(map(of, call.sizes))
    steps = of(call.steps[0]), call.steps[1]
    graphs = tuple(map(expanded, call.graphs))
    graph.finish(add(graph, node.op, inputs, call._replace(sizes=sizes, steps=steps, graphs=graphs)))
    return graph, further
