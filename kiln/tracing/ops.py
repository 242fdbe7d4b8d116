"""A captured function as an op: content decides what it is, so answers are kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.capture.pure.function import CellFunction, CellOp, Given, Walk
from kiln.capture.pure.steps import CAST, DETACH, STRIDED, Step, Steps
from kiln.codegen.store.identity import digest
from kiln.graph.graph import Graph, Value
from kiln.graph.size import Dim, Size, substitute
from kiln.graph.text import dim_text, text
from kiln.table.record import Op, find
from kiln.tracing.stored import parameters


class ProgramOp(CellOp):
    """Steps as an op of a list of tensors and a list of numbers; sizes in the steps are those of its tensors.

    `firsts`: of every tensor, the slot of its first size in the sizes of the steps; `same`: pairs of sizes
    that are known to be equal.
    """

    __slots__ = ("firsts", "same")

    def __init__(
        self, name: str, cell: Steps, firsts: list[int], same: list[tuple[Dim, Dim]], key: str
    ) -> None:
        self.cell, self.firsts, self.same = cell, firsts, same
        Op.__init__(self, name, "composite", parameters(len(cell.numbers)), self._traced, listed=False)
        self.identity = key or None
        self.public = False

    @property
    def structure(self) -> tuple[Any, ...]:
        """What the core passes with a call besides operands."""
        count = len(self.cell.numbers)
        return (self.cell.tensors, count) if count else (self.cell.tensors,)

    def make_function(self, structure: tuple[Any, ...]) -> CellFunction:
        return CellFunction(self, structure)

    def _traced(self, tensors: Any, numbers: Any = ()) -> Any:
        values = [*tensors, *numbers]
        graph = next(v.graph for v in values if isinstance(v, Value))
        return [*self.walk(graph, values, hidden=False).results()]

    def walk(self, graph: Graph, given: list[Given], hidden: bool) -> Walk:
        place: dict[int, Dim] = {}
        for first, value in zip(self.firsts, given):
            for d, size in enumerate(value.shape):  # (an operand that is given once more has the same)
                graph.require_equal(place.setdefault(first + d, size), size, self.name)

        def of(slot: int) -> Dim:
            return place[slot]

        for a, b in self.same:
            graph.require_equal(substitute(a, of), substitute(b, of), self.name)
        return Walk(graph, resolved(self.cell, of), given, hidden)


def resolved(cell: Steps, of: Any) -> Steps:
    """Steps whose sizes are those of given tensors."""

    def put(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(put, x))
        return substitute(x, of) if isinstance(x, Size) else x

    def step(s: Step) -> Step:
        if not any(kind == "size" for kind, _ in s.args) and not isinstance(s.op, str):
            return s
        args = tuple([("number", substitute(x, of)) if kind == "size" else (kind, x) for kind, x in s.args])
        return s._replace(args=args, structure=put(s.structure) if isinstance(s.op, str) else s.structure)

    return cell._replace(steps=tuple(map(step, cell.steps)))


def identity_of(graph: Graph, cell: Steps, same: list[tuple[Dim, Dim]]) -> str:
    """The same text for the same computation in every process; "" if an op has none."""
    if any(not isinstance(s.op, str) and s.op.identity is None for s in cell.steps):
        return ""

    def shown(kind: str, x: Any) -> Any:
        return kind, dim_text(x) if kind == "size" else repr(x)

    steps = [(s.name, s.history, [shown(*arg) for arg in s.args], s.outs, s.ones) for s in cell.steps]
    known = [(dim_text(a), dim_text(b)) for a, b in same]
    told = repr((cell.tensors, cell.numbers, steps, cell.results, cell.again, known))
    return f"program {digest(b'program', (text(graph) + told).encode()).hex()}"


_known: dict[str, ProgramOp] = {}


def program_op(
    name: str, graph: Graph, cell: Steps, firsts: list[int], same: list[tuple[Dim, Dim]]
) -> ProgramOp:
    """The op of these steps; the same for the same steps, as ops live as long as the process."""
    key = identity_of(graph, cell, same)
    if not key:
        return ProgramOp(name, cell, firsts, same, key)
    found = _known.get(key)
    if found is None:
        found = _known[key] = ProgramOp(name, cell, firsts, same, key)
    return found


def called(step: Step, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """One step on tensors and numbers."""
    if not isinstance(step.op, str):
        if step.op.kind == "called":
            made: tuple[Any, ...] = step.op.run(step.structure, given)
            return made
        return _core.call_op(step.op.handle, step.structure, given)
    x = given[0]
    if step.op == DETACH:
        return (x.detach(),)
    if step.op == CAST:
        (sizes,) = step.structure
        wanted = step.dtypes[0]
        x = x if str(x.dtype).rpartition(".")[2] == wanted else find("convert").handle(x, wanted)
        return (x if tuple(x.shape) == tuple(sizes) else find("expand").handle(x, tuple(sizes)),)
    sizes, strides, offset = step.structure
    if step.op == STRIDED:
        return (find("as_strided").handle(x.contiguous(), sizes, strides, (offset,)),)
    return (find("write").handle(x, given[1], strides, (offset,)),)


def replay(
    steps: Steps,
    firsts: list[int],
    tensors: list[Any],
    numbers: list[int],
    shape_of: Callable[[Any], Any],
    call: Callable[[Step, tuple[Any, ...]], tuple[Any, ...]] | None,
) -> tuple[Any, ...]:
    """The results of steps, each `call`ed by itself; `firsts`: of each tensor, the slot of its first size.
    Steps have histories where gradients are on around the call.
    """
    recorded = _core.grad_enabled()
    sizes = {first + d: n for first, x in zip(firsts, tensors) for d, n in enumerate(shape_of(x))}
    values: dict[int, Any] = dict(enumerate([*tensors, *numbers]))
    for step in resolved(steps, sizes.__getitem__).steps:
        given = tuple([x if kind == "number" else values[x] for kind, x in step.args])
        before = _core.set_grad_enabled(recorded and step.history)
        try:
            values.update(zip(step.outs, (call or called)(step, given)))
        finally:
            _core.set_grad_enabled(before)
    return tuple([values[k] for k in steps.results])
