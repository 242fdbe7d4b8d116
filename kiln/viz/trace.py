"""What the core knows of the graph behind some results, as plain data: nothing here keeps that graph alive.

    Call    a recorded op: what it is called, what went in, what it saved, where its line is
    Leaf    a tensor in whose .grad gradients are added up
    Trace   calls by the time they were recorded, latest first, with the shapes of what they gave

A node does not know the shape of its results. Who consumed them does: shapes come down from the results,
consumers before producers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple, Union

from kiln._core import Tensor
from kiln.errors import describe, message

MOST_READ = 100_000  # calls; what is behind them stays unread

Shape = Union[tuple[int, ...], None]


class Saved(NamedTuple):
    """A tensor kept for backward: `memory` tells tensors of one storage, 0 is with saved-tensor hooks."""

    role: str
    place: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    memory: int


class Input(NamedTuple):
    """An argument: a number, or a tensor that output `output` of `source` gave (None: has no history)."""

    source: Call | Leaf | None
    output: int
    dtype: str
    shape: Shape
    like_result: bool = False  # surely of the results' shape
    number: Any = None


class Leaf:
    """A tensor without history that requires gradients."""

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.shape: Shape = None
        self.dtype = ""


class Call:
    """A recorded op, or a call of a user's Function."""

    __slots__ = (
        "dtype", "freed", "inputs", "line", "name", "named", "order", "record", "saved", "shapes",
        "structure", "title",
    )  # fmt: skip

    def __init__(self, node: Any, facts: tuple[Any, ...]) -> None:
        self.order, name, self.record, self.structure, self.freed, _, saved = facts
        self.name: str = name
        self.title: str = node.name()
        self.line: str = node.line
        self.inputs: list[Input] = []
        self.saved = [Saved(role, k, shape, dtype.name, *rest) for role, k, shape, dtype, *rest in saved]
        self.shapes: dict[int, Shape] = {s.place: s.shape for s in self.saved if s.role == "output"}
        self.dtype = ""
        self.named: dict[int, str] = {}  # outputs the user named

    def sources(self) -> Iterator[Call | Leaf]:
        """What its arguments came from, in their order; one used twice comes twice."""
        return (i.source for i in self.inputs if i.source is not None)


class Root(NamedTuple):
    """A result: what it is called and where it came from."""

    name: str
    source: Call | Leaf | None
    output: int
    shape: Shape
    dtype: str


class Trace(NamedTuple):
    """All of it; `unread` says that there were more calls than are read."""

    roots: list[Root]
    calls: list[Call]
    names_of_memory: dict[tuple[int, Shape], str]
    unread: bool


class _Reader:
    """Walks from the results to the leaves, latest call first."""

    def __init__(self, params: Any) -> None:
        self.known: dict[Any, Call | Leaf] = {}  # by node
        self.waiting: list[tuple[int, int, Call, list[Any]]] = []
        self.names: dict[tuple[Any, int], str] = {}
        self.names_of_memory: dict[tuple[int, Shape], str] = {}
        for name, tensor in _named(params):
            node, output, memory = tensor._edge()
            if node is None:
                self.names_of_memory[memory, tuple(tensor.shape)] = name
            else:
                self.names.setdefault((node, output), name)

    def find(self, node: Any) -> Call | Leaf:
        """The call or leaf of a node, which waits to be read if it is new."""
        if node in self.known:
            return self.known[node]
        facts = node.facts()
        found = Leaf(self.names.get((node, 0), "")) if facts is None else Call(node, facts)
        self.known[node] = found
        if isinstance(found, Call) and facts is not None:
            heappush(self.waiting, (-found.order, len(self.known), found, facts[5]))
        return found

    def read(self) -> list[Call]:
        """All calls, or the latest MOST_READ of them."""
        calls: list[Call] = []
        while self.waiting and len(calls) < MOST_READ:
            _, _, call, inputs = heappop(self.waiting)
            calls.append(call)
            for given in inputs:
                if not isinstance(given, tuple):
                    call.inputs.append(Input(None, 0, "", None, number=given))
                    continue
                node, output, shape, dtype, like_result = given
                source = None if node is None else self.find(node)
                call.inputs.append(Input(source, output, dtype.name, shape, like_result))
        for (node, output), name in self.names.items():
            found = self.known.get(node)
            if isinstance(found, Call):
                found.named[output] = name
        return calls


def trace(y: Any, params: Any = None) -> Trace:
    """Reads the graph behind `y`: a tensor, a node, or a tuple, list or dict of these."""
    reader = _Reader(params)
    roots = []
    for name, result in _results(y):
        if isinstance(result, Tensor):
            node, output, _ = result._edge()
            shape: Shape = tuple(result.shape)
            dtype = result.dtype.name
        else:
            node, output = result[:2] if isinstance(result, tuple) else (result, 0)
            shape, dtype = None, ""
        roots.append(Root(name, None if node is None else reader.find(node), output, shape, dtype))
    calls = reader.read()
    _give_shapes(roots, calls)
    return Trace(roots, calls, reader.names_of_memory, bool(reader.waiting))


def _results(y: Any) -> Iterator[tuple[str, Any]]:
    """Results with their names, in order."""
    waiting: list[tuple[str, Any]] = [("result", y)]
    while waiting:
        name, item = waiting.pop()
        if hasattr(item, "node") and hasattr(item, "output_nr"):  # a GradientEdge
            yield name, item
        elif isinstance(item, (tuple, list, Mapping)):
            if isinstance(item, Mapping):
                outer = f"{name}." if name != "result" else ""
                inner = [(f"{outer}{key}", value) for key, value in item.items()]
            else:
                inner = [(f"{name}[{k}]", value) for k, value in enumerate(item)]
            waiting += reversed(inner)
        elif isinstance(item, Tensor) or (hasattr(item, "next_functions") and callable(item.name)):
            yield name, item
        elif item is not None or y is None:
            wanted = "a tensor, a grad_fn, or a tuple, list or dict of these"
            raise TypeError(message("viz.graph", wanted, describe(item)))


def _named(params: Any) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a module, of a dict, or of pairs."""
    if params is None:
        return
    pairs = params.named_parameters() if hasattr(params, "named_parameters") else params
    for pair in pairs.items() if isinstance(pairs, Mapping) else pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise TypeError(
                message("viz.graph: params", "a Module, or a dict of tensors by name", describe(pair))
            )
        yield str(pair[0]), pair[1]


def consumers_first(calls: list[Call]) -> list[Call]:
    """The calls so that each stands after all that consumed its results. (A view whose base was written may
    be recorded later than its consumer: the times of recording alone do not tell.)
    """
    uses = dict.fromkeys(calls, 0)
    for call in calls:
        for source in call.sources():
            if isinstance(source, Call) and source in uses:
                uses[source] += 1
    ready = [call for call in reversed(calls) if not uses[call]]
    ordered = []
    while ready:
        call = ready.pop()
        ordered.append(call)
        for source in call.sources():
            if isinstance(source, Call) and source in uses:
                uses[source] -= 1
                if not uses[source]:
                    ready.append(source)
    return ordered


def _give_shapes(roots: list[Root], calls: list[Call]) -> None:
    """Tells calls and leaves the shapes and dtypes of what they gave, and inputs those of what they read."""

    def tell(source: Call | Leaf | None, output: int, shape: Shape, dtype: str) -> None:
        if source is None:
            return
        source.dtype = dtype or source.dtype
        if isinstance(source, Leaf):
            source.shape = shape if source.shape is None else source.shape
        elif shape is not None:
            source.shapes[output] = shape

    for root in roots:
        tell(root.source, root.output, root.shape, root.dtype)
    for call in consumers_first(calls):
        like = [i.shape for i in call.inputs if i.like_result]
        own = next((shape for shape in [*call.shapes.values(), *like] if shape is not None), None)
        call.shapes.setdefault(0, own)
        for k, given in enumerate(call.inputs):
            shape = own if given.like_result and given.shape is None else given.shape
            call.inputs[k] = given._replace(shape=shape)
            tell(given.source, given.output, shape, given.dtype)
