"""A graph as steps again: the other direction of `graphs.graph_of`, for programs that are read from a file.

A graph says what is computed; steps say so as the core is called, so that a program that was read is the op
that a traced one is: the same kernels, the same bits, gradients in the same order.
"""

from __future__ import annotations

from typing import Any

from kiln.capture.function import NUMBER
from kiln.capture.pure.steps import DETACH, STRIDED, WRITE, Argument, Step, Steps, using
from kiln.graph.graph import Graph, Node, Value
from kiln.graph.size import Size
from kiln.graph.text import TextError
from kiln.table.kinds import FLOATS
from kiln.tracing.expand import call_of, literal, whole_of

_FIRST = 1 << 20  # what steps make is numbered from here until it is known how many operands there are


class Restored:
    """The calls that a graph's nodes stand for, with what `capture` knows of a run besides."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.operands = [v for v in graph.inputs if not v.weak]
        self.numbers = [v for v in graph.inputs if v.weak]
        self.steps: list[Step] = []
        self.sizes: dict[int, tuple[Any, ...]] = {}
        self.shapes: dict[int, tuple[Any, ...]] = {}  # a recorder's sizes that vary: here all are in `sizes`
        self.dtypes: dict[int, str] = {}
        self.values: dict[int, Value] = dict(enumerate(self.operands))
        self._number = {id(v): k for k, v in enumerate(self.operands)}
        self._by_call: dict[
            tuple[Any, ...], tuple[int, set[int]]
        ] = {}  # of several results: step, those seen
        for value, k in zip(self.operands, range(len(self.operands))):
            self.sizes[k], self.dtypes[k] = tuple(value.shape), value.dtype
        for node in graph.nodes:
            if node.op.kind != "constant":
                self._add(node)
        self.results = [self._value(v) for v in graph.outputs]

    def _value(self, value: Value) -> int:
        found = self._number.get(id(value))
        if found is None:
            raise TextError("a program's results are tensors, not numbers")
        return found

    def _argument(self, x: Any) -> Argument:
        if not isinstance(x, Value):
            return "size" if isinstance(x, Size) else "number", x
        if x.weak and x.node is None:
            return "operand", next(k for k, v in enumerate(self.numbers) if v is x)
        if x.weak:
            assert x.node is not None
            if x.node.op.kind != "constant":
                raise TextError(f"{x.node.op.name} of numbers alone: a program computes with tensors")
            return "number", x.node.attrs[0]
        return "value", self._value(x)

    def _add(self, node: Node) -> None:
        out = node.out
        if out.weak:
            return  # whoever uses it says so
        if node.op.name == "detach":
            self._append(DETACH, (), (self._argument(node.inputs[0]),), node, 0)
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
        outs, dtypes, ones = list(step.outs), list(step.dtypes), list(step.ones)
        while len(outs) <= which:
            dtype, shape = node.out.dtype, node.out.shape
            if len(outs) < which:  # one that no node gives
                dtype, shape = step.op.result(len(outs)).infer(node.out.graph, node.inputs, node.attrs)
            outs.append(self._new(dtype, shape))
            dtypes.append(dtype)
            ones.append(tuple([d for d, size in enumerate(shape) if size == 1]))
        self._number[id(node.out)] = outs[which]
        self.values[outs[which]] = node.out
        return step._replace(outs=tuple(outs), dtypes=tuple(dtypes), ones=tuple(ones))

    def _new(self, dtype: str, shape: tuple[Any, ...]) -> int:
        k = _FIRST + len(self.dtypes) - len(self.operands)
        self.dtypes[k], self.sizes[k] = dtype, tuple(shape)
        return k

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
