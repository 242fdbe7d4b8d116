"""A model under construction: nodes, constants, names of values, and sizes as tensors."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kiln.graph.graph import Node, Value
from kiln.graph.size import Dim, Size, symbol
from kiln.onnx import protobuf as pb

# Operators by the version they came with, of those that are younger than OLDEST.
OLDEST, CURRENT = 18, 26
WITH_DRAWS = 21  # the last one whose random numbers ONNX Runtime has
SINCE = {
    "Gelu": 20, "Attention": 23, "RMSNormalization": 23, "BitCast": 26, "CumProd": 26,
}  # fmt: skip
END = -(2**62)  # before the first element: where a slice from the back ends
# Of numbers, as `struct` has it.
FORMAT = {
    "float32": "f", "float64": "d", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b",
    "uint8": "B", "uint32": "I", "uint64": "Q", "bool": "?",
}  # fmt: skip
# What dtypes are computed in that runtimes have fewer operators for.
WIDE = {
    "float16": "float32", "bfloat16": "float32", "bool": "int32", "int8": "int32", "uint8": "int32",
    "int16": "int32",
}  # fmt: skip
# What is known of numbers when the model is written, so that conditions on them leave no branch.
FOLDED: dict[str, Callable[..., Any]] = {
    "Equal": operator.eq, "Less": operator.lt, "LessOrEqual": operator.le, "Greater": operator.gt,
    "GreaterOrEqual": operator.ge, "And": operator.and_, "Or": operator.or_, "Xor": operator.xor,
    "Not": operator.not_,
}  # fmt: skip


class Scope:
    """Sizes of one graph as values, and where nodes that compute them go: who sees the graph sees those."""

    def __init__(self, nodes: list[bytes], around: Scope | None = None, given: Sequence[Dim] = ()) -> None:
        self.nodes = nodes
        self.around, self.given = around, given  # of a graph that is called: what its slots are around it
        self.slots: dict[int, tuple[str, int]] = {}  # of which input and dim each is the size
        self.sizes: dict[Dim, str] = {}  # vectors of one element
        self.layers: dict[Any, list[str]] = {}  # results of recurrent layers
        self.needed: Sequence[Node] = ()  # the nodes that are written
        self.calls: dict[Any, dict[int, str]] = {}  # results of calls of graphs


class Builder:
    """What rules and forms build with; a value of the model is its name."""

    def __init__(self, opset: int) -> None:
        if not OLDEST <= opset <= CURRENT:
            raise ValueError(f"to_onnx: expected an opset from {OLDEST} to {CURRENT}, got {opset}")
        self.opset = opset
        self.nodes: list[bytes] = []
        self.scope = Scope(self.nodes)
        self.tensors: dict[str, bytes] = {}  # by name
        self.read: set[str] = set()  # names of what operators are given
        self.names: dict[int, str] = {}  # of values of graphs, by id
        self.taken: set[str] = set()  # names that are given, not made
        self.draws: dict[tuple[Any, ...], str] = {}  # random numbers, by where kiln would draw them
        self.streams: set[str] = set()  # names of what says where that is: no operator has them
        self.constants: dict[tuple[Any, ...], str] = {}
        self.numbers: dict[str, Any] = {}  # those of no dims as Python has them
        self.count = 0
        self.what = "the graph"  # the op at hand, for errors

    def has(self, kind: str) -> bool:
        """Whether the model's version of the operators has one."""
        return self.opset >= SINCE.get(kind, OLDEST)

    def fresh(self, what: str = "t") -> str:
        """A new name, of all graphs of the model."""
        self.count += 1
        name = f"{what}_{self.count}"
        return name if name not in self.taken else self.fresh(what)

    def refuse(self, why: str) -> ValueError:
        """The error for what has no form."""
        return ValueError(f"to_onnx: {self.what} {why}")

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The result of an operator; its name begins as the operator's does."""
        if kind in FOLDED and all(x in self.numbers for x in inputs):
            return self.constant(FOLDED[kind](*(self.numbers[x] for x in inputs)), "bool")
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, results: int, *inputs: str, **attributes: Any) -> list[str]:
        """The results of an operator; an input that is not there is ""."""
        if not self.has(kind):
            raise self.refuse(
                f"needs {kind}, which came with opset {SINCE[kind]}, and the model is of {self.opset}"
            )
        name = self.fresh(kind)
        outputs = [name, *(self.fresh(kind) for _ in range(1, results))]
        self.add(kind, name, inputs, outputs, attributes)
        return outputs

    def add(
        self, kind: str, name: str, inputs: Sequence[str], outputs: Sequence[str], attributes: dict[str, Any]
    ) -> None:
        """An operator whose results have these names."""
        if not self.streams.isdisjoint(inputs):
            raise self.refuse("computes its random numbers in a way that has no ONNX form")
        self.read.update(inputs)
        self.nodes.append(pb.node(kind, name, inputs, outputs, attributes))

    @contextmanager
    def body(self) -> Iterator[list[bytes]]:
        """While it lasts, nodes are those of a graph that a node calls, which sees what is around it."""
        around, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = around

    @contextmanager
    def called(self, given: Sequence[Dim]) -> Iterator[Scope]:
        """While it lasts, sizes are those of a graph that is called; around it they are `given`."""
        around, self.scope = self.scope, Scope(self.nodes, self.scope, given)
        try:
            yield self.scope
        finally:
            self.scope = around

    @contextmanager
    def _in(self, scope: Scope) -> Iterator[None]:
        """While it lasts, nodes go where a scope's go."""
        before = self.scope, self.nodes
        self.scope, self.nodes = scope, scope.nodes
        try:
            yield
        finally:
            self.scope, self.nodes = before

    def no_leaf(self, scalar: Any) -> str:
        """For expressions of constants."""
        raise AssertionError(f"{self.what}: reads {scalar.op}")

    # -- constants ----------------------------------------------------------------------------------

    def constant(self, values: Any, dtype: str = "int64") -> str:
        """A number of the model, or a list of them; equal ones are one."""
        several = isinstance(values, (list, tuple))
        numbers = values if several else (values,)
        take = bool if dtype == "bool" else float if FORMAT[dtype] in "efd" else int
        raw = struct.pack(f"<{len(numbers)}{FORMAT[dtype]}", *map(take, numbers))
        name = self.tensor(dtype, (len(numbers),) if several else (), raw)
        if not several:
            (self.numbers[name],) = struct.unpack(f"<{FORMAT[dtype]}", raw)
        return name

    def tensor(self, dtype: str, shape: Iterable[int], raw: bytes) -> str:
        """An array of the model by its bytes."""
        key = dtype, tuple(shape), raw
        if key not in self.constants:
            self.constants[key] = name = self.fresh("constant")
            self.tensors[name] = pb.tensor(name, dtype, key[1], raw)
        return self.constants[key]

    def cast(self, x: str, source: str, target: str) -> str:
        """A value in another dtype; a number that both have is a number there."""
        if source == target:
            return x
        if x in self.numbers and target in FORMAT:
            with suppress(struct.error, OverflowError, ValueError):
                return self.constant(self.numbers[x], target)
        return self.op("Cast", x, to=pb.TYPES[target])

    # -- sizes --------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> str:
        """A size as a vector of one int64."""
        if not isinstance(dim, Size):
            return self.constant([dim])
        sizes = self.scope.sizes
        if dim not in sizes:
            with self._in(self.scope):
                sizes[dim] = self._sum(dim)
        return sizes[dim]

    def _sum(self, size: Size) -> str:
        total = ""
        for monomial, factor in size.terms:
            parts = [self._atom(atom) for atom in monomial]
            if factor != 1 or not parts:
                parts.append(self.constant([factor]))
            term = parts[0]
            for part in parts[1:]:
                term = self.op("Mul", term, part)
            total = term if not total else self.op("Add", total, term)
        return total

    def _atom(self, atom: Any) -> str:
        scope, slot = self.scope, atom.slot
        if slot < 0:
            return self.op("Div", self.size(atom.numerator), self.size(atom.denominator))
        own = symbol(slot)
        if own not in scope.sizes:
            if slot in scope.slots:
                name, d = scope.slots[slot]
                scope.sizes[own] = self.op("Shape", name, start=d, end=d + 1)
            elif scope.around is not None:
                with self._in(scope.around):
                    scope.sizes[own] = self.size(scope.given[slot])
            else:
                raise self.refuse("has a size that depends on values")
        return scope.sizes[own]

    def shape(self, dims: Sequence[Dim]) -> str:
        """A shape as a vector of int64."""
        if not any(isinstance(d, Size) for d in dims):
            return self.constant(list(dims))
        return self.op("Concat", *(self.size(d) for d in dims), axis=0)

    def scalar_size(self, dim: Dim) -> str:
        """A size as a 0-d int64."""
        if not isinstance(dim, Size):
            return self.constant(dim)
        return self.op("Squeeze", self.size(dim))

    # -- what many rules need -----------------------------------------------------------------------

    def of(self, value: Value) -> str:
        """The name of a value of the graph."""
        return self.names[id(value)]

    def wide(self, dtype: str) -> str:
        """The dtype that one is computed in."""
        return WIDE.get(dtype, dtype)

    def reshape(self, x: str, dims: Sequence[Dim]) -> str:
        """An array of another shape."""
        return self.op("Reshape", x, self.shape(dims), allowzero=1)

    def part(self, x: str, dim: int, start: Dim, end: Dim, step: int = 1) -> str:
        """A slice along one dim."""
        bounds = self.size(start), self.size(end)
        return self.op("Slice", x, *bounds, self.constant([dim]), self.constant([step]))
