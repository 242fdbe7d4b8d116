"""A model as it is read: graphs of nodes whose names are checked, before anything runs.

bytes -> messages (wire.py) -> Model(graph, versions, functions)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kiln.onnx.reading.refusal import LoadError, UnsupportedError
from kiln.onnx.reading.weights import Weights, dtype_name
from kiln.onnx.reading.wire import Message, parse, text

NEWEST, OLDEST = 28, 1  # versions of the operators whose meaning is known
OWN = ("", "ai.onnx")  # names of the domain that ONNX's operators are in


class Node(NamedTuple):
    """A call of an operator: names of what it is given ("": nothing) and gives, and its attributes."""

    kind: str
    domain: str
    where: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class Input(NamedTuple):
    """What a model is given: a tensor's dtype and sizes (a number, a name, None), None where it says none."""

    name: str
    dtype: str
    shape: list[Any] | None


class Graph(NamedTuple):
    """Nodes in an order in which they can run; `tensors`: those of its own, by name."""

    name: str
    inputs: list[Input]
    outputs: list[str]
    tensors: dict[str, Any]
    nodes: list[Node]


class Reference(NamedTuple):
    """An attribute of a function's node that is an argument of the function."""

    name: str


class Function(NamedTuple):
    """An operator that the model has of its own."""

    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    nodes: list[Node]
    versions: dict[str, int]


class Model(NamedTuple):
    """A graph, the version of each domain of operators, and functions by domain and name."""

    graph: Graph
    versions: dict[str, int]
    functions: dict[tuple[str, str], Function]


def read(data: memoryview, folder: str | None) -> Model:
    """The model of a file's bytes. LoadError for what is none."""
    message = parse(data)
    if message["graph"] is None or not message["opsets"]:
        raise LoadError("the file is no ONNX model: it has no graph, or does not say which operators it uses")
    reader = _Reader(Weights(folder))
    functions = {(_domain(f["domain"]), f["name"]): reader.function(f) for f in message["functions"]}
    graph = reader.graph(message["graph"], set())
    return Model(graph, _versions(message["opsets"]), functions)


def _domain(name: str) -> str:
    return "" if name in OWN else name


def _versions(opsets: list[Message]) -> dict[str, int]:
    """The version of each domain."""
    found = {_domain(x["domain"]): x["version"] for x in opsets}
    own = found.get("", NEWEST)
    if not OLDEST <= own <= NEWEST:
        raise UnsupportedError(f"the model is of opset {own}; kiln reads {OLDEST} to {NEWEST}")
    return found


class _Reader:
    """Makes graphs of messages."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def graph(self, message: Message, around: set[str]) -> Graph:
        """A graph that sees the names around it."""
        if message["sparse"]:
            raise UnsupportedError("a graph has sparse tensors, which kiln does not read")
        tensors = {t["name"]: self.weights.value(t) for t in message["tensors"]}
        inputs = [self._input(v) for v in message["inputs"] if v["name"] not in tensors]
        names = [x.name for x in inputs]
        if len(set(names)) != len(names):
            raise LoadError(f"graph {message['name']!r:.80}: two inputs have one name")
        seen = around | set(names) | set(tensors)
        nodes = self.nodes(message["nodes"], seen)
        outputs = [v["name"] for v in message["outputs"]]
        for name in outputs:
            if name not in seen:
                raise LoadError(f"graph {message['name']!r:.80}: no node gives its output {name!r:.80}")
        return Graph(message["name"], inputs, outputs, tensors, nodes)

    def nodes(self, messages: Iterable[Message], seen: set[str]) -> list[Node]:
        """Nodes each of which reads names that are there; their results are put into `seen`."""
        nodes = []
        for k, message in enumerate(messages):
            node = self._node(message, k, seen)
            for name in node.inputs:
                if name and name not in seen:
                    raise LoadError(f"{node.where} reads {name!r:.80}, which no node before it gives")
            seen.update(filter(None, node.outputs))
            nodes.append(node)
        return nodes

    def function(self, message: Message) -> Function:
        """An operator of the model's own."""
        own: dict[str, Any] = dict.fromkeys(message["attributes"])
        own.update((a["name"], self._attribute(a, "a default", set())) for a in message["defaults"])
        seen = set(message["inputs"])
        nodes = self.nodes(message["nodes"], seen)
        for name in message["outputs"]:
            if name not in seen:
                raise LoadError(f"function {message['name']!r:.80}: no node gives its output {name!r:.80}")
        return Function(message["inputs"], message["outputs"], own, nodes, _versions(message["opsets"]))

    def _node(self, message: Message, k: int, seen: set[str]) -> Node:
        kind = message["kind"]
        where = f"node {k}, {kind:.80}" + (f" {message['name']!r:.80}" if message["name"] else "")
        attributes = {a["name"]: self._attribute(a, where, seen) for a in message["attributes"]}
        return Node(
            kind, _domain(message["domain"]), where, message["inputs"], message["outputs"], attributes
        )

    def _attribute(self, message: Message, where: str, seen: set[str]) -> Any:
        """The value of an attribute; of a string its text, of a tensor its value, of a graph that."""
        if message["refers"]:
            return Reference(message["refers"])
        kind, what = message["type"], f"{where}: attribute {message['name']!r:.80}"
        if kind == 3:
            return text(message["string"], "attribute")
        if kind == 8:
            return [text(s, "attribute") for s in message["strings"]]
        if kind in (4, 5):
            held = message["tensor" if kind == 4 else "graph"]
            if held is None:
                raise LoadError(f"{what} holds nothing")
            return self.weights.value(held) if kind == 4 else self.graph(held, set(seen))
        if kind in (1, 2, 6, 7):
            return message[{1: "float", 2: "int", 6: "floats", 7: "ints"}[kind]]
        raise UnsupportedError(f"{what} is of type {kind}, which kiln does not read")

    def _input(self, message: Message) -> Input:
        """What is known of an input."""
        name, kind = message["name"], message["type"]
        tensor = kind["tensor"] if kind is not None else None
        if tensor is None:
            absent = [
                k
                for k in ("sequence", "map", "optional", "sparse")
                if kind is not None and kind[k] is not None
            ]
            return Input(name, absent[0] if absent else "", None)
        what = f"input {name!r:.80}"
        dtype = dtype_name(tensor["dtype"], what) if tensor["dtype"] else ""
        if tensor["shape"] is None:
            return Input(name, dtype, None)
        shape = [d["name"] or d["size"] for d in tensor["shape"]["dims"]]
        if any(isinstance(n, int) and not 0 <= n < 1 << 62 for n in shape):
            raise LoadError(f"{what} has the shape {str(shape):.80}")
        return Input(name, dtype, shape)
