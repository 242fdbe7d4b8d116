"""Sizes that a captured program reads, and ints that it is given, with `dynamic=True`: numbers that know what
they were made of.

    x.shape[0] * 3  ->  Number(12), made of (mul, Number(4), 3); that 4 is dim 0 of an input
                    ->  in a step's arguments Term(mul, SizePlace("input", 0, 0), 3)
                    ->  in the graph  mul(s0, 3),  s0 a placeholder

A number is an int: Python runs at each call, so a program may compare and print it, and goes where it goes.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.capture.capturing import STATE
from kiln.fx.graph import Graph
from kiln.fx.node import Node, map_arg
from kiln.fx.values import Place, Value
from kiln.types import SymInt

__all__ = [
    "Number",
    "Source",
    "SizePlace",
    "Symbols",
    "Term",
    "Terms",
    "given_number",
    "read_size",
    "read_sizes",
    "tell_looks",
]


class _AsInt(type):
    """`type(number) == int`; `is` does not ask (kiln/fx/types.py)."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is int

    def __hash__(cls) -> int:
        return hash(int)


class Number(int, metaclass=_AsInt):
    """A size or an argument, or what arithmetic made of these, in one call. `made`: a `Source`, or function,
    operands.
    """

    capture: Any  # a weak reference to the call's
    made: Any

    def __new__(cls, value: int, capture: Any, made: Any) -> Number:
        number = super().__new__(cls, value)
        number.capture, number.made = capture, made
        return number

    def __reduce__(self) -> Any:
        return int, (int(self),)

    def __copy__(self) -> int:
        return int(self)

    def __deepcopy__(self, memo: Any) -> int:
        return int(self)


def _arithmetic(name: str) -> Any:
    function, own = getattr(operator, name), getattr(int, f"__{name}__")

    def method(self: Number, *other: Any) -> Any:
        return _made(self, own(self, *other), function, (self, *other))

    return method


def _swapped(name: str) -> Any:
    function, own = getattr(operator, name), getattr(int, f"__r{name}__")

    def method(self: Number, other: Any) -> Any:
        return _made(self, own(self, other), function, (other, self))

    return method


def _made(number: Number, value: Any, function: Any, operands: tuple[Any, ...]) -> Any:
    capture = number.capture()
    if type(value) is not int or capture is None or STATE.capture is not capture:
        return value
    if not all(type(x) is int or type(x) is Number for x in operands):
        return value
    return Number(value, number.capture, (function, *operands))


for _name in "add sub mul floordiv mod".split():
    setattr(Number, f"__{_name}__", _arithmetic(_name))
    setattr(Number, f"__r{_name}__", _swapped(_name))
Number.__neg__ = _arithmetic("neg")  # type: ignore[method-assign]


class Source:
    """A dim of what a value stands for: of a step in a segment, later of a tensor."""

    def __init__(self, value: Value, dim: int, segment: Any) -> None:
        self.value, self.dim, self.index = weakref.ref(value), dim, value.index
        self.segment = weakref.ref(segment)


class Argument:
    """An int among the arguments: of no tensor."""

    index, dim = None, 0

    def value(self) -> None:
        """Whose size it is."""
        return None


def given_number(n: int, capture: Any) -> int:
    """An int argument as the program sees it: 0, 1 and what is less than 0 are ints, as of sizes."""
    return Number(n, capture.reference, Argument()) if n >= 2 else n


def read_size(value: Value, dim: int) -> int:
    """A size as the program sees it: sizes of 0 and 1, which broadcast, and those of modules are ints."""
    size = value.value.shape[dim]
    capture = value.tracer
    if size < 2 or value.fixed or capture.passing or not capture.owner.dynamic:
        return int(size)
    return Number(size, capture.reference, Source(value, dim, capture.segment))


def read_sizes(value: Value) -> Any:
    """All sizes."""
    return _core.Size([read_size(value, d) for d in range(value.value.dim())])


class SizePlace(Place):
    """A dim of a step or an input among a step's arguments; of a number that was read before, the number."""

    def __init__(self, kind: str, number: int, dim: int) -> None:
        super().__init__(kind, number)
        self.dim = dim

    def of(self, sources: dict[str, Any]) -> Any:
        found = super().of(sources)
        return found if self.kind == "number" else found.shape[self.dim]

    def frozen(self) -> Any:
        return (SizePlace, self.kind, self.number, self.dim)


class Term(Place):
    """What arithmetic makes of sizes, among a step's arguments."""

    def __init__(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        super().__init__("term", 0)
        self.function, self.operands = function, operands

    def of(self, sources: dict[str, Any]) -> Any:
        return self.function(*(x.of(sources) if isinstance(x, Place) else x for x in self.operands))

    def frozen(self) -> Any:
        operands = (x.frozen() if isinstance(x, Place) else x for x in self.operands)
        return (Term, self.function.__name__, *operands)


class Symbols:
    """The sizes of a segment's inputs as symbols. Equal sizes have one symbol, as in PyTorch, so a graph is
    for all sizes of which those are equal that were so in its first call.
    """

    def __init__(self, segment: Any) -> None:
        self.feeds: list[Any] = []  # of a graph's placeholders: (input, dim), (None, number), or an input
        self.first: dict[int, tuple[Any, int]] = {}  # of each size where it is found first
        self.equal: list[tuple[Any, Any]] = []  # what is equal besides
        for k, tensor in enumerate(segment.inputs):
            if k not in segment.fixed:
                for d, n in enumerate(tensor.shape):
                    self._found(n, (k, d))
            self.feeds.append(k)
        for k, n in enumerate(segment.numbers):
            self._found(n, (None, k))

    def _found(self, n: int, at: tuple[Any, int]) -> None:
        if n >= 2 and n not in self.first:
            self.first[n] = at
            self.feeds.append(at)
        elif n >= 2:
            self.equal.append((self.first[n], at))

    def hold(self, segment: Any) -> bool:
        """Whether sizes of another segment of the same steps are equal where these are."""
        return all(_size(segment, a) == _size(segment, b) for a, b in self.equal)

    def given(self, tensors: Any, numbers: Any) -> list[Any]:
        """What a graph is called with."""
        return [
            tensors[f] if isinstance(f, int) else numbers[f[1]] if f[0] is None else tensors[f[0]].shape[f[1]]
            for f in self.feeds
        ]


def _size(segment: Any, at: tuple[Any, int]) -> int:
    return int(segment.numbers[at[1]] if at[0] is None else segment.inputs[at[0]].shape[at[1]])


class Terms:
    """Nodes for sizes in a graph."""

    def __init__(self, graph: Graph, segment: Any, placed: dict[str, list[Node]]) -> None:
        self.graph, self.segment, self.placed = graph, segment, placed
        self.symbols: dict[int, Node] = {}  # by the size that they have in the first call
        self.made: dict[Any, Any] = {}

    def add(self, at: tuple[Any, int]) -> None:
        """A placeholder for a size."""
        n = _size(self.segment, at)
        self.symbols[n] = node = self.graph.placeholder(f"s{len(self.symbols)}", SymInt)
        node.meta["example_value"] = node.meta["val"] = n

    def node(self, term: Any) -> Any:
        """The node of a term; a number as it is."""
        if not isinstance(term, Place):
            return term
        key = term.frozen()
        if key not in self.made:
            self.made[key] = self._make(term)
        return self.made[key]

    def _make(self, term: Any) -> Any:
        if isinstance(term, Term):
            operands = tuple(map(self.node, term.operands))
            return self.graph.create_node("call_function", term.function, operands, {})
        if term.kind == "step":
            return self.graph.create_node("call_method", "size", (self.placed["step"][term.number], term.dim))
        at = (None, term.number) if term.kind == "number" else (term.number, term.dim)
        n = _size(self.segment, at)
        return self.symbols.get(n, n)


def tell_looks(graph: Graph, inputs: list[Any], fixed: set[int]) -> None:
    """Has the nodes of a graph say what they give for any sizes (`meta["example_value"]`), where ops can be
    followed without values; elsewhere what they gave for the example stays there.
    """
    from kiln.symbolic.definition import placeholder

    names = {n.meta["example_value"]: n.name for n in graph.nodes if n.type is SymInt}
    known: dict[Node, Any] = {}
    sizes: dict[str, Any] = {}
    tensors = [n for n in graph.nodes if n.op == "placeholder" and n.type is not SymInt]
    modes, state = _core.modes(), _core.random_state()

    def follow(node: Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    for k, (node, tensor) in enumerate(zip(tensors, inputs)):
        vary = {} if k in fixed else names
        known[node] = placeholder(node.name, tuple(vary.get(n, n) for n in tensor.shape), tensor.dtype)
        sizes.update((vary[n], s) for n, s in zip(tensor.shape, known[node].shape) if n in vary)
    for name in names.values():
        if name not in sizes:
            sizes[name] = placeholder(f"{name}_", (name,)).shape[0]
    try:
        for node in graph.nodes:
            if node.type is SymInt:
                known[node] = sizes[node.name]
            elif node.op.startswith("call"):
                try:
                    known[node] = follow(node)
                except Exception:
                    continue
            if node in known:
                node.meta["example_value"] = node.meta["val"] = known[node]
    finally:
        _core.set_modes(*modes)
        _core.set_random_state(*state)
