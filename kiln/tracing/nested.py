"""Programs inside programs: a trace that meets a program's call follows its steps, one by one; in a graph
that control flow calls, its nodes become nodes.

So a program that was composed of programs is one graph, which saves, loads and differentiates like any other.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kiln import _core
from kiln.graph.graph import current
from kiln.graph.size import Size, substitute
from kiln.late import later
from kiln.tracing.answers import Condition
from kiln.tracing.captured import Captured, Expected, Kept, Raises
from kiln.tracing.trees import build, constants

_read = later("kiln.tracing.reads", "Read")
_called = later("kiln.tracing.ops", "called")
_inline = later("kiln.capture.pure.function", "inline")
_outside = later("kiln.func.subgraph", "outside")
_made_size = later("kiln.tracing.symbolic", "made_size")


def within(found: Captured, recorder: Any, tensors: list[Any]) -> tuple[Any, ...]:
    """The results of a program's steps, as a trace sees them."""
    wholes = [_whole(x) for x in tensors]
    numbers = found.draw(tensors)
    made = found.replay(wholes, numbers, recorder.shape_of, partial(_call, recorder))
    for check in found.checks:  # what ops ask the recorder finds again
        if isinstance(check, Expected):
            recorder.expect(made[check.which], check.error, check.text)
        elif isinstance(check, Raises):
            recorder.fails(made[check.which], list(check.errors))
        elif isinstance(check, Condition):
            recorder.state_again(check, wholes)
        elif isinstance(check, Kept):
            looked = wholes[check.which] if check.kind == "operand" else made[check.which]
            recorder.read_values.append(_read(recorder.value(looked), check.example, check.line))
    return tuple(map(recorder.wrapped, made))


def _whole(x: Any) -> Any:
    """The tensor without values that stands for one some of whose sizes vary."""
    return x if issubclass(type(x), _core.Tensor) else x.whole


def _call(recorder: Any, step: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """One step; the recorder is told the sizes as the program has them."""
    if isinstance(step.op, str) or step.op.kind == "called":
        seen = tuple([recorder.wrapped(x) if isinstance(x, _core.Tensor) else x for x in given])
        return tuple(map(_whole, _called(step._replace(structure=_seen(recorder, step.structure)), seen)))
    recorder.pending = step.op, list(given)
    try:
        concrete = tuple([recorder.value_of(x) if isinstance(x, Size) else x for x in given])
        made: tuple[Any, ...] = _called(step, concrete)
        return made
    finally:
        recorder.pending = None


def _seen(recorder: Any, x: Any) -> Any:
    """Sizes as a function sees them."""
    if isinstance(x, tuple):
        return tuple([_seen(recorder, item) for item in x])
    return _made_size(recorder, x) if isinstance(x, Size) else x


def inlined(found: Captured, operands: list[Any]) -> Any:
    """The results for values of the graph under construction."""
    if found.random or found.mutated or found.checks:
        what = (
            "draws random numbers"
            if found.random
            else "writes its state"
            if found.mutated
            else "checks values"
        )
        raise RuntimeError(f"{found.name}: {what}, which what runs under control flow cannot")
    graph = current()
    values = [_outside(graph, x) for x in operands]
    made = _inline(graph, found.graph, values)[: len(found.outputs)]
    slots = [n for x in values for n in x.shape]
    tree = constants(found.out_tree, lambda x: substitute(x, slots.__getitem__) if isinstance(x, Size) else x)
    return build(tree, iter(made))
