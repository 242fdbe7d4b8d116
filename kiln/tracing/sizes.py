"""What a recorder knows of sizes that vary: of every value its sizes in general, and what may be asked of
them.

A question whose answer does not follow from the declared ranges is answered as for the sizes the trace is
made with, and becomes a guard: the program raises where the answer would be another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.graph.graph import Graph, Node, Shape, Value, building
from kiln.graph.size import Dim, Size, evaluate, quotient, slots_named, symbol, terms
from kiln.graph.text import dim_text
from kiln.late import later
from kiln.table.kinds import VIEWS
from kiln.table.record import Op
from kiln.tuples import NamedTuple

_arguments, _bound_of = later("kiln.tracing.graphs", "arguments"), later("kiln.tracing.graphs", "bound_of")
_WAYS = "declare it with that size, or leave it out of dynamic_shapes"
_NO_END = float("inf")


class Guard(NamedTuple):
    """A question about sizes, and the answer that the program was made with."""

    left: Dim
    sign: str
    right: Dim
    answer: bool
    line: str

    def holds(self, slots: Callable[[int], int]) -> bool:
        """Whether the answer is the same for these sizes."""
        a, b = evaluate(self.left, slots), evaluate(self.right, slots)
        return bool(SIGNS[self.sign](a, b)) == self.answer


SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Looks(NamedTuple):
    """Of an op's results: shapes, the views that each is of an operand (None: it is none), and which sizes
    must be equal beyond what is known.
    """

    shapes: list[Shape]
    checks: list[tuple[Dim, Dim]]
    views: list[list[Node] | None]


class Sizes:
    """The sizes of one trace."""

    def __init__(self) -> None:
        self.hints: dict[int, int] = {}  # slot -> the size the trace is made with
        self.ranges: dict[int, tuple[int, float]] = {}  # slot -> least and most
        self.names: dict[int, str] = {}
        self.open: dict[int, str] = {}  # slots whose sizes the program may say more of; their names
        self.guards: dict[tuple[Dim, str, Dim], Guard] = {}
        self.ties: list[tuple[Dim, Dim]] = []  # what ops need equal of open sizes
        self.work = Graph()  # where shapes are inferred

    def value_of(self, dim: Dim) -> int:
        """A size as the trace is made with."""
        return evaluate(dim, self.hints.__getitem__)

    def text(self, dim: Dim) -> str:
        """A size in the user's names."""
        found = dim_text(dim)
        for slot in sorted(self.names, reverse=True):
            found = found.replace(f"s{slot}", self.names[slot])
        return found

    def bounds(self, dim: Dim) -> tuple[float, float]:
        """The least and the most a size may be."""
        if isinstance(dim, int):
            return dim, dim
        low = high = 0.0
        for monomial, many in dim.terms:
            least: float = 1
            most: float = 1
            a: float
            b: float
            for atom in monomial:
                if atom.slot >= 0:
                    a, b = self.ranges.get(atom.slot, (0, _NO_END))
                else:
                    (n0, n1), (d0, d1) = self.bounds(atom.numerator), self.bounds(atom.denominator)
                    a = max(n0, 0) // d1 if d1 != _NO_END else 0
                    b = n1 // max(d0, 1) if n1 != _NO_END else _NO_END
                least, most = least * a, most * b if b else 0.0
            ends = (many * least, many * most)
            low, high = low + min(ends), high + max(ends)
        return low, high

    def known(self, left: Dim, sign: str, right: Dim) -> bool | None:
        """The answer that follows from the ranges; None if it depends on the sizes."""
        difference = self.work.canonical(left - right)
        if isinstance(difference, int):
            return SIGNS[sign](difference, 0)
        low, high = self.bounds(difference)
        if low > 0:
            return SIGNS[sign](1, 0)
        if high < 0:
            return SIGNS[sign](-1, 0)
        if sign in ("<", ">=") and low >= 0:
            return sign == ">="
        if sign in (">", "<=") and high <= 0:
            return sign == "<="
        return None

    def guard(self, left: Dim, sign: str, right: Dim, line: str) -> bool:
        """The answer for the trace's sizes, kept."""
        answer = SIGNS[sign](self.value_of(left), self.value_of(right))
        self.guards.setdefault((left, sign, right), Guard(left, sign, right, answer, line))
        return answer

    def without_factors(self, left: Dim, right: Dim) -> tuple[Dim, Dim]:
        """Two sizes without the open ones that are factors of both, which are taken not to be 0."""
        for slot in self.open:
            while slot in slots_named(left) and slot in slots_named(right):
                divided = [quotient(dim, symbol(slot)) for dim in (left, right)]
                if any(found * symbol(slot) is not dim for found, dim in zip(divided, (left, right))):
                    break
                left, right = divided
        return left, right

    def may_say(self, left: Dim, right: Dim) -> bool:
        """Whether a program may ask two sizes to be equal: all of them are left to it."""
        return slots_named(left - right) <= self.open.keys()

    def solved(self, left: Dim, right: Dim) -> tuple[str, tuple[str, int, int] | None] | None:
        """What an open size is where two sizes are equal, if that is a number, or another size times a
        number, plus one: its name, and that. Of two open sizes the first keeps its name.
        """
        difference = left - right
        for slot in sorted(slots_named(difference) & self.open.keys(), reverse=True):
            own = symbol(slot)
            many = dict(terms(difference)).get(own.terms[0][0], 0)
            rest = own * many - difference
            if not many or slot in slots_named(rest):
                continue
            parts = [(monomial, *divmod(n, many)) for monomial, n in terms(rest)]
            if any(left for *_, left in parts):
                continue
            plus = sum(n for monomial, n, _ in parts if not monomial)
            sizes = [(monomial, n) for monomial, n, _ in parts if monomial]
            if not sizes:
                return self.open[slot], None
            (monomial, times), *more = sizes
            name = self.names.get(monomial[0].slot, "")
            if not more and len(monomial) == 1 and times > 0 and name.isidentifier():
                return self.open[slot], (name, times, plus)
        return None

    def fixed_names(self, *dims: Dim) -> str:
        """The names in some sizes, for messages."""
        slots = sorted({s for d in dims if isinstance(d, Size) for s in slots_named(d)})
        return " and ".join(repr(self.names.get(s, f"s{s}")) for s in slots)

    # -- shapes of results ------------------------------------------------------------------------------

    def looks(self, op: Op, structure: tuple[Any, ...], given: list[Any]) -> Looks:
        """What results an op gives; arrays are given as (dtype, shape)."""
        graph = self.work
        first = len(graph.checks)
        with building(graph):
            values = [Value(graph, None, *x) if isinstance(x, tuple) else x for x in given]
            if op.kind == "composite":
                assert op.body is not None
                result = op.body(*op.lifted(_bound_of(op, structure, values)))
                results = list(result) if isinstance(result, (tuple, list)) else [result]
            else:
                results = [graph.add(op, *_arguments(graph, op, structure, values))]
        graph.nodes.clear()
        shapes = [tuple([graph.canonical(d) for d in y.shape]) for y in results]
        return Looks(shapes, graph.checks[first:], list(map(_views, results)))


def _views(value: Value) -> list[Node] | None:
    """The views that a value is of an operand, one of another; None if it is computed."""
    found: list[Node] = []
    while value.node is not None:
        if value.node.op.kind not in VIEWS:
            return None
        found.append(value.node)
        value = value.node.inputs[0]
    return found[::-1]
