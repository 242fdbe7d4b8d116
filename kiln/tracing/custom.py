"""A call whose derivative is a graph of its own: what an `autograd.Function` is in a program.

custom(operands; counts, backward)    the operands from `counts[0]` on, `counts[1]` of them

The first operands are what the function was given, those after its results what its backward reads.
`backward`: the text of a graph, of what it reads (the operands after the first `counts[0] + counts[1]`) and
the gradients of the results to the gradients of those of the first operands that `counts[2]` names;
`counts[3]`: whether these have no derivative.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kiln.capture.function import Forward, Operands
from kiln.capture.pure.function import inline
from kiln.graph.graph import Graph, Value, building
from kiln.graph.text import parse
from kiln.passes.gradient import Asked, Backward, Sum, finish, given, unbroadcast
from kiln.passes.rewrite import clone
from kiln.table.record import REQUIRED, Op, Param, constant, find
from kiln.tracing.expand import expand


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Graph:
    return expand(parse(text, find))


def _results(operands: Any, counts: Any, backward: str) -> list[Value]:
    """The results as they were computed."""
    first, count = counts[0], counts[1]
    return [x.graph.add(find("detach"), (x,)) for x in operands[first : first + count]]


class _Sweep:
    """What `passes.gradient.finish` asks of a sweep: the graph of the function's backward, on a copy."""

    def __init__(self, forward: Graph, asked: Asked, counts: Any, backward: Graph, once: bool) -> None:
        self.forward = forward
        work, self.copies = clone(forward)
        self.targets = [work.inputs[i] for i in asked.wrt]
        self.seeds, self.begun = given(asked, forward, work)
        first, results, places, _ = counts
        sums = {key: Sum(before) for key, (_, before) in self.begun.items()}
        with building(work):
            grads = [self.seeds.get(k) for k in range(results)]
            read = [
                *work.inputs[first + results :],
                *(_zeros(work, y) if g is None else g for g, y in zip(grads, forward.outputs)),
            ]
            for i, part in zip(places, inline(work, backward, read)):
                like = work.inputs[i]
                part = unbroadcast(part, like)
                if part.dtype != like.dtype:
                    part = work.add(find("convert"), (part,), (like.dtype,))
                if once:
                    part = work.add(ONCE, (part,))
                sums.setdefault(id(like), Sum()).add(part)
        self.sums = {id(x): sums[id(x)] for x in self.targets if id(x) in sums}


def _zeros(work: Graph, like: Value) -> Value:
    zero = work.add(find("convert"), (constant(work, 0.0),), (like.dtype,))
    return work.add(find("expand"), (zero,), (like.shape,))


def _never(g: Any) -> Any:
    raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


ONCE = Op("once", "pointwise", (Param("x", "T", REQUIRED),), lambda x: x)
ONCE.identity = "once"
ONCE.public = False
ONCE.derivative(_never)


class CustomFunction(Forward):
    """A call as the core asks for it."""

    def whole(self, graph: Graph, values: list[Value]) -> list[Value]:
        return _results(values, *self.structure[1:])

    def is_pointwise(self, operands: Operands) -> bool:
        return False

    def gradients(self, operands: Operands, asked: Asked, calls: bool = False) -> Backward:
        forward = self.primal(operands)
        _, counts, text = self.structure
        everything = Asked.everything(forward)

        def sweep(asked: Asked) -> _Sweep:
            return _Sweep(forward, asked, counts, _parsed(text), counts[3])

        return finish(sweep(asked), asked.redo, lambda: sweep(everything))

    def hidden(self, operands: Operands, asked: Asked) -> tuple[Value, ...]:
        return self.gradients(operands, asked).hidden


class CustomOp(Op):
    """See the module's text."""

    __slots__ = ()

    def make_function(self, structure: tuple[Any, ...]) -> CustomFunction:
        """What the core asks for."""
        return CustomFunction(self, structure)


def _body(operands: Any, counts: Any, backward: str) -> Any:
    made = _results(operands, counts, backward)
    return made[0] if len(made) == 1 else made


CUSTOM = CustomOp(
    "custom",
    "composite",
    (Param("operands", "L", REQUIRED), Param("counts", "S", REQUIRED), Param("backward", "S", REQUIRED)),
    _body,
)
CUSTOM.identity = "custom"
CUSTOM.public = False
