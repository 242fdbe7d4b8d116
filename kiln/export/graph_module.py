"""A program's calls as a `kiln.fx.GraphModule`: `ExportedProgram.graph_module`.

Parameters, buffers and constants are inputs, before the arguments: `graph_signature` says which is which.
What is written in place is an output, before the results.
"""

from __future__ import annotations

import operator
from typing import Any

from kiln import _core
from kiln.capture.pure.steps import CAST, DETACH, STRIDED
from kiln.export.graph_signature import (
    ExportGraphSignature,
    OutputKind,
    OutputSpec,
    TensorArgument,
    input_specs,
    output_kind,
)
from kiln.fx import Graph, GraphModule, Node
from kiln.graph.size import Dim, evaluate
from kiln.nn import Module
from kiln.table.record import find
from kiln.tracing.captured import Captured
from kiln.tracing.graphs import bound_of


def lifted(found: Captured) -> tuple[GraphModule, ExportGraphSignature]:
    """The graph of a program, and what its inputs and outputs are."""
    made = _Lifted(found)
    return GraphModule(Module(), made.graph, found.name.rpartition(".")[2] or "GraphModule"), made.signature


def node_names(found: Captured) -> dict[int, str]:
    """What that graph calls the value of each number."""
    return {k: node.name for k, node in _Lifted(found).values.items() if isinstance(node, Node)}


class Steps:
    """Steps of a program as nodes of a `kiln.fx.Graph`."""

    def __init__(self, dims: dict[str, Any], shapes: dict[int, Any]) -> None:
        self.graph, self.dims, self.shapes = Graph(), dims, shapes
        self.sizes: dict[Any, Any] = {}
        self.values: dict[int, Any] = {}

    def _argument(self, kind: str, x: Any) -> Any:
        """The node of an argument of a step, or what is no tensor."""
        raise NotImplementedError

    def _place(self, slot: int) -> tuple[Node, int]:
        """The node whose size a slot is, and at which dim."""
        raise NotImplementedError

    def _like(self, dtype: str, shape: tuple[Dim, ...]) -> Any:
        """A tensor without memory, of the sizes of the example."""
        slots = {d.slot: evaluate_example(d) for d in self.dims.values()}
        sizes = [evaluate(n, slots.__getitem__) for n in shape]
        return _core.from_nested(0, dtype).expand(tuple(sizes))

    def add(self, step: Any) -> None:
        given = [self._size(x) if kind == "size" else self._argument(kind, x) for kind, x in step.args]
        if isinstance(step.op, str):
            made = self._memory(step, given)
        else:
            function = step.op.caller if step.op.kind == "called" else step.op.handle
            made = self.graph.call_function(function, tuple(bound_of(step.op, step.structure, given)))
        outs = (
            [made]
            if len(step.outs) == 1
            else [self.graph.call_function(operator.getitem, (made, k)) for k in range(len(step.outs))]
        )
        for k, dtype, node in zip(step.outs, step.dtypes, outs):
            if (shape := self.shapes.get(k)) is not None:
                node.meta["val"] = self._like(dtype, shape)
            self.values[k] = node

    def _memory(self, step: Any, given: list[Any]) -> Node:
        """A step that is no op of the table."""
        x = given[0]
        if step.op == DETACH:
            return self.graph.call_function(find("detach").handle, (x,))
        structure = self._sizes(step.structure)
        if step.op == CAST:
            made = self.graph.call_method("to", (x, getattr(_core, step.dtypes[0])))
            return self.graph.call_function(find("expand").handle, (made, structure[0]))
        sizes, strides, offset = structure
        if step.op == STRIDED:
            return self.graph.call_function(find("as_strided").handle, (x, sizes, strides, (offset,)))
        return self.graph.call_function(find("write").handle, (x, given[1], strides, (offset,)))

    def _sizes(self, x: Any) -> Any:
        return tuple(map(self._sizes, x)) if isinstance(x, tuple) else self._size(x)

    def _size(self, dim: Any) -> Any:
        """A size, from those of the inputs."""
        if isinstance(dim, (int, str, type(None))):
            return dim
        if dim not in self.sizes:
            total: Any = None
            for monomial, many in dim.terms:
                term: Any = None if many != 1 and monomial else many
                for atom in monomial:
                    factor = self._atom(atom)
                    term = (
                        factor
                        if term is None or term == 1
                        else self.graph.call_function(operator.mul, (term, factor))
                    )
                if many != 1 and monomial:
                    term = self.graph.call_function(operator.mul, (term, many))
                total = term if total is None else self.graph.call_function(operator.add, (total, term))
            self.sizes[dim] = 0 if total is None else total
        return self.sizes[dim]

    def _atom(self, atom: Any) -> Any:
        if atom.slot < 0:
            return self.graph.call_function(
                operator.floordiv, (self._size(atom.numerator), self._size(atom.denominator))
            )
        if atom not in self.sizes:
            node, d = self._place(atom.slot)
            self.sizes[atom] = self.graph.call_method("size", (node, d))
        return self.sizes[atom]


class _Lifted(Steps):
    def __init__(self, found: Captured) -> None:
        super().__init__(found.dims, found.shapes)
        specs = input_specs(found)
        self.signature = ExportGraphSignature(specs, [])
        nodes = {id(s): self.graph.placeholder(s.arg.name) for s in specs}
        for s in specs:  # a name may have been taken
            s.arg = TensorArgument(nodes[id(s)].name)
        by_target = {s.target: nodes[id(s)] for s in specs if s.target is not None}
        rest = [nodes[id(s)] for s in specs if s.target is None]
        operands = [*rest[: len(found.inputs)], *(by_target[s.name] for s in found.state)]
        looks = [(x.dtype, x.shape) for x in found.inputs]
        looks += [(s.tensor.dtype.name, tuple(s.tensor.shape)) for s in found.state]
        self.places: dict[int, Any] = {}
        for node, first, (dtype, shape) in zip(operands, found.firsts, looks):
            node.meta["val"] = self._like(dtype, shape)
            self.places.update({first + d: (node, d) for d in range(len(shape))})
        tensors = [*operands, *(operands[k] for k in found.again)]
        self.values = dict(enumerate([*tensors, *rest[len(found.inputs) :]]))
        for step in found.steps.steps:
            self.add(step)
        results = [self.values[k] for k in found.steps.results]
        count = len(found.outputs)
        outputs = []
        for (kind, which), node in zip(found.mutated, results[count:]):
            outputs.append(node)
            self.signature.output_specs.append(
                OutputSpec(
                    output_kind(found, kind, which)[0],
                    TensorArgument(node.name),
                    output_kind(found, kind, which)[1],
                )
            )
        for k in range(count):
            same = found.same.get(k)
            node = (
                results[k]
                if same is None
                else operands[same[1] + (len(found.inputs) if same[0] == "state" else 0)]
            )
            outputs.append(node)
            self.signature.output_specs.append(
                OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)
            )
        self.graph.output(tuple(outputs))

    def _argument(self, kind: str, x: Any) -> Any:
        return x if kind == "number" else self.values[x]

    def _place(self, slot: int) -> tuple[Node, int]:
        node, dim = self.places[slot]
        return node, dim


def evaluate_example(dim: Any) -> int:
    """The example's size at the slot that a named size is read from."""
    at: int = dim.example
    while evaluate(dim.symbol, {dim.slot: at}.__getitem__) < dim.example:
        at += 1
    return at
