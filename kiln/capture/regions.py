"""Recorded regions as graphs: what was recorded, storage by storage, becomes values; writes make new values.

    recorded op := (name, function, hidden, writes, args, outs)
    arg         := (class, dtype, ndim, storage, slot, ones, stride classes)
    class       := number | whole | squeeze | reshape | expand | strided      how it looks at its storage's
    value

Nodes say which recorded op they are of, by its number and name: in plans a launch says it of all it computes.

A storage's value is contiguous. A read through a view is a view node on it; a write through a view makes a
new value of the whole storage, which later reads see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kiln.capture import programs
from kiln.capture.function import Function, classify, copy_pointwise
from kiln.graph.graph import Graph, Value
from kiln.graph.size import Dim, substitute, symbol
from kiln.passes.rewrite import append, substitute_attr
from kiln.table.labels import mark
from kiln.table.record import find


class Arg(NamedTuple):
    """An argument or result of a recorded op."""

    cls: str
    dtype: str
    ndim: int
    storage: int
    slot: int
    ones: int
    classes: int


class Stored(NamedTuple):
    """A storage of a recording."""

    dtype: str
    pending: bool
    written: bool
    live: bool
    flat: bool
    ndim: int
    slot: int
    ones: int
    identity: int = 0  # which storage it was when the recording was first seen, for who shows it


def region(
    ops: list[tuple[Any, ...]],
    storages: list[Any],
    slots: int,
    checkpoint: Callable[[], None] = lambda: None,
) -> tuple[Any, list[int]]:
    """The program of a recording, and the storage of each of its outputs. `checkpoint` is called wherever the
    work may rest.
    """
    builder, ordinals = built(ops, storages, slots, checkpoint)
    return programs.program(builder.graph, lambda i: builder.pointers.get(i, 0)), ordinals


def built(
    ops: list[tuple[Any, ...]],
    storages: list[Any],
    slots: int,
    checkpoint: Callable[[], None] = lambda: None,
) -> tuple[Builder, list[int]]:
    """The graph of a recording, with the storages that its values are of, and those of its outputs."""
    builder = Builder([Stored(*s) for s in storages], slots)
    for k, (name, function, hidden, writes, args, outs) in enumerate(ops):
        checkpoint()
        known = len(builder.graph.nodes)
        builder.call(function, bool(hidden), bool(writes), [Arg(*a) for a in args], [Arg(*a) for a in outs])
        for node in builder.graph.nodes[known:]:
            node.line = mark(k, name)
    return builder, builder.finish()


class Builder:
    """The graph of one recording, built op by op."""

    def __init__(self, storages: list[Stored], slots: int) -> None:
        self.graph = Graph()
        self.graph.slots = slots
        self.storages = storages
        self.values: dict[int, Value] = {}
        self.pointers: dict[int, int] = {}  # input of the graph -> pointer the core passes
        pointer = 0
        for k, stored in enumerate(storages):
            if not stored.pending:
                self.pointers[len(self.graph.inputs)] = pointer
                pointer += 1
                shape = tuple(self._size(stored.slot + d, stored.ones >> d & 1) for d in range(stored.ndim))
                self.values[k] = self.graph.add_input(stored.dtype, shape)

    @staticmethod
    def _size(slot: int, one: int) -> Dim:
        return 1 if one else symbol(slot)

    def call(self, function: Function, hidden: bool, writes: bool, args: list[Arg], outs: list[Arg]) -> None:
        """Adds the function's graph on the arguments and gives its results to their storages."""
        inputs = [self.read(a) for a in args]
        results = self.inline(function.graph(tuple(map(self.describe, args)), hidden), inputs)
        for out, result in zip(outs, results):
            if writes:
                self.write(out, result)
                continue
            if result.weak:  # arithmetic on numbers alone is an array for whoever reads the storage
                result = self.graph.add(find("convert"), (result,), (self.storages[out.storage].dtype,))
            self.values[out.storage] = self.with_ones(result, out.ones)

    def with_ones(self, value: Value, ones: int) -> Value:
        """The value with its sizes of 1 known as such, though they came as numbers."""
        for d, size in enumerate(value.shape):
            if ones >> d & 1:
                self.graph.require_equal(size, 1, "a recorded op")
        value.shape = tuple(self.graph.canonical(size) for size in value.shape)
        return value

    @staticmethod
    def describe(arg: Arg) -> Any:
        """An argument as functions are asked for: every read is contiguous here, as values are."""
        if arg.cls == "number":
            return {"float64": "f", "int64": "i", "bool": "b"}[arg.dtype]
        return arg.dtype, tuple(arg.ones >> d & 1 for d in range(arg.ndim)), None

    def read(self, arg: Arg) -> Value:
        """The value an argument stands for."""
        if arg.cls == "number":
            value = Value(self.graph, None, arg.dtype, ())
            value.weak, value.slot = True, arg.slot
            self.graph.inputs.append(value)
            return value
        value = self.values[arg.storage]
        if arg.cls == "whole":
            return value
        sizes = self._view_sizes(arg, value)
        if arg.cls in ("squeeze", "reshape"):
            return self.graph.add(find("reshape"), (value,), (sizes,))
        if arg.cls == "expand":
            return self.graph.add(find("expand"), (value,), (sizes,))
        return self.graph.add(find("as_strided"), (value,), (sizes, *self._places(arg)))

    def _view_sizes(self, arg: Arg, value: Value) -> tuple[Dim, ...]:
        """The sizes of a view; those that are its storage's own sizes are the same symbols."""
        ones = [arg.ones >> d & 1 for d in range(arg.ndim)]
        if arg.cls == "squeeze":
            own = iter([d for d in value.shape if d != 1])
            return tuple(1 if one else next(own) for one in ones)
        if arg.cls == "expand":
            extra = arg.ndim - value.ndim
            return tuple(
                1
                if one
                else value.shape[d - extra]
                if d >= extra and value.shape[d - extra] != 1
                else symbol(arg.slot + d)
                for d, one in enumerate(ones)
            )
        return tuple(self._size(arg.slot + d, one) for d, one in enumerate(ones))

    def _places(self, arg: Arg) -> tuple[tuple[Dim, ...], tuple[Dim]]:
        """Strides (0 and 1 where the class says so) and offset of a strided view."""
        strides: list[Dim] = []
        for d in range(arg.ndim):
            cls = arg.classes >> 2 * d & 3
            strides.append(symbol(arg.slot + arg.ndim + d) if cls == 2 else cls)
        return tuple(strides), (symbol(arg.slot + 2 * arg.ndim),)

    def write(self, out: Arg, result: Value) -> None:
        """A write in place: a new value of the storage."""
        stored = self.storages[out.storage].dtype
        base = self.values.get(out.storage)
        if base is None:  # fresh memory
            at = self.storages[out.storage]
            base = Value(
                self.graph,
                None,
                stored,
                tuple(self._size(at.slot + d, at.ones >> d & 1) for d in range(at.ndim)),
            )
        if result.weak or result.dtype != stored:
            result = self.graph.add(find("convert"), (result,), (stored,))
        shape = base.shape if out.cls == "whole" else self._view_sizes(out, base)
        if not self.graph.same_shape(result.shape, shape):
            result = self.graph.add(find("expand"), (result,), (shape,))
        if out.cls in ("squeeze", "reshape"):
            result = self.graph.add(find("reshape"), (result,), (base.shape,))
        elif out.cls in ("strided", "expand"):
            result = self.graph.add(find("write"), (base, result), self._places(out))
        self.values[out.storage] = result

    def inline(self, graph: Graph, inputs: list[Value]) -> list[Value]:
        """Copies the nodes of `graph` onto `inputs`; its sizes become theirs."""
        if classify(graph) == "pointwise":
            return copy_pointwise(self.graph, graph, inputs)
        place: dict[int, Dim] = {}
        slot = 0
        values: dict[int, Value] = {}
        for own, given in zip(graph.inputs, inputs):
            values[id(own)] = given
            if own.weak:
                place[slot] = symbol(given.slot)
                slot += 1
                continue
            for size in given.shape:
                place[slot] = size
                slot += 1

        def replace(slot: int) -> Dim:
            return place[slot]

        # Inputs that share a symbol have one size: known inside the function, and from here on outside too.
        for own, given in zip(graph.inputs, inputs):
            for size, actual in zip(own.shape, given.shape):
                self.graph.require_equal(substitute(size, replace), actual, "a recorded op")
        for a, b in graph.checks:
            self.graph.require_equal(substitute(a, replace), substitute(b, replace), "a recorded op")
        for node in graph.nodes:
            made = append(self.graph, node, tuple(values[id(v)] for v in node.inputs))
            made.shape = tuple(self.graph.canonical(substitute(d, replace)) for d in made.shape)
            assert made.node is not None
            made.node.attrs = tuple(substitute_attr(a, replace) for a in node.attrs)
            values[id(node.out)] = made
        return [values[id(v)] for v in graph.outputs]

    def finish(self) -> list[int]:
        """Every live storage is an output, in the memory it has if it has some: which ones."""
        places = {id(v): i for i, v in enumerate(self.graph.inputs)}
        originals = {k: i for i, k in enumerate(k for k, s in enumerate(self.storages) if not s.pending)}
        outputs: list[Value] = []
        ordinals: list[int] = []
        for k, stored in enumerate(self.storages):
            if not stored.live or k not in self.values:
                continue
            value = self.values[k]
            if not stored.pending:
                if id(value) in places and places[id(value)] == originals[k]:
                    continue
                self.graph.updates[len(outputs)] = originals[k]
            outputs.append(value)
            ordinals.append(k)
        self.graph.finish(outputs)
        return ordinals
