"""A graph as an op: a call of it is one op of the core, whose identity is the graph's text.

called(operands; text, sizes)      the graph's results, for its arrays, then its integers
"""

from __future__ import annotations

from typing import Any

from kiln.capture.function import Forward
from kiln.capture.pure.function import inline
from kiln.graph.graph import Graph, Value
from kiln.graph.text import parse
from kiln.graph.text import text as to_text
from kiln.table.record import REQUIRED, Op, Param, find

_parsed: dict[str, Graph] = {}


def parsed(text: str) -> Graph:
    """The graph of a text."""
    found = _parsed.get(text)
    if found is None:
        found = _parsed[text] = parse(text, find)
    return found


def differentiated(text: str) -> int:
    """How many of the first arrays of a graph have gradients."""
    last = parsed(text).nodes[-1]
    return int(last.attrs[1][0]) if last.op.name == "custom" else len(last.inputs)


def is_replaced(text: str) -> bool:
    """Whether a graph gives the content of its second array, and the gradient of that to its first."""
    last = parsed(text).nodes[-1]
    if last.op.name != "custom" or last.attrs[1] != (1, 1, 0):
        return False
    backward, results = (sub.graph for sub in last.attrs[4])
    return bool(backward.outputs == backward.inputs[1:] and results.outputs == results.inputs)


def remembered(graph: Graph) -> str:
    """The text of a graph, which is not parsed when it is asked for."""
    made = to_text(graph)
    _parsed.setdefault(made, graph)
    return made


def _results(operands: Any, text: str, sizes: Any) -> list[Value]:
    """The graph's nodes on values."""
    return inline(operands[0].graph, parsed(text), [*operands, *sizes])


class CalledFunction(Forward):
    """A graph as the core asks for it: its ops round each by itself."""

    def whole(self, graph: Graph, values: list[Value]) -> list[Value]:
        return inline(graph, parsed(self.structure[1]), values)

    def explain(self, graph: Graph, values: list[Value]) -> None:
        inline(graph, parsed(self.structure[1]), values)


class CalledOp(Op):
    """See the module's text."""

    def make_function(self, structure: tuple[Any, ...]) -> CalledFunction:
        """What the core asks for."""
        return CalledFunction(self, structure)


CALLED = CalledOp(
    "called",
    "composite",
    (Param("operands", "L", REQUIRED), Param("text", "S", REQUIRED), Param("sizes", "Z", ())),
    _results,
)
CALLED.identity = "called"
CALLED.public = False


def called(text: str, operands: list[Any], sizes: tuple[int, ...] = ()) -> list[Any]:
    """The results of a graph for tensors. ValueError for sizes that do not fit."""
    made = CALLED.handle(operands, text, sizes)
    return list(made) if isinstance(made, (tuple, list)) else [made]
