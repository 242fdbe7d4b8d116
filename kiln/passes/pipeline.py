"""The order of the passes: what runs when, for everything that the core asks for.

    an op            OP           of float16 and bfloat16, when its body has been traced
    a derivative     DERIVATIVE   of an op's graph
    what is saved    HIDDEN       the hidden outputs that all derivatives of an op's graph read
    one to replay    REPLAY       a derivative that is differentiated itself: ops, called one by one
    a program        PROGRAM      any graph: an op's, a derivative's, a recorded region's
    pointwise        none         one kernel is made of the graph as it is (kiln/capture/programs.py)

A region is made of the graphs of its ops and derivatives, so their passes have run. In the check mode
(KILN_CHECK, which the core reads) the verifier of what a pass makes runs after it, and names it; what is
planned is verified in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kiln import _core
from kiln.graph.graph import Graph
from kiln.graph.verify import VerifyError, verify
from kiln.passes.control import without_custom
from kiln.passes.fuse import fuse
from kiln.passes.gradient import Backward, backward
from kiln.passes.narrow import narrow
from kiln.passes.plan import Plan, plan
from kiln.passes.prepare import prepare
from kiln.passes.simplify import simplify
from kiln.passes.verify import verify_fusion, verify_plan


class Pass(NamedTuple):
    """One pass; `verify` raises VerifyError where what it made breaks a rule."""

    name: str
    run: Callable[..., Any]
    verify: Callable[[Any], object]


def _narrow_gradient(found: Backward) -> Backward:
    """`narrow` on the graph of the gradients."""
    narrow(found.graph)
    return found


def _verify_gradient(found: Backward) -> None:
    verify(found.graph)


def _verify_called(graph: Graph) -> None:
    verify(graph, called=True)


GRADIENT = Pass("gradient", backward, _verify_gradient)
SIMPLIFY = Pass("simplify", simplify, verify)

OP = (Pass("narrow", narrow, verify),)
DERIVATIVE = (GRADIENT, Pass("narrow", _narrow_gradient, _verify_gradient))
HIDDEN = (GRADIENT,)
REPLAY = (GRADIENT,)
PLANNING = (
    Pass("prepare", prepare, verify),
    Pass("fuse", fuse, verify_fusion),
    Pass("plan", plan, verify_plan),
)
PROGRAM = (SIMPLIFY, *PLANNING)
SIMPLIFY_CALLED = Pass("simplify", simplify, _verify_called)
PLANNING_CALLED = (Pass("prepare", prepare, _verify_called), *PLANNING[1:])


def run(passes: tuple[Pass, ...], *given: Any) -> Any:
    """What the last of the passes makes; each but the first takes what the one before made."""
    for step in passes:
        made = step.run(*given)
        if _core.checking():
            try:
                step.verify(made)
            except VerifyError as error:
                raise VerifyError(f"after {step.name}: {error}") from error
        given = (made,)
    return given[0]


def program(graph: Graph, updates: dict[int, int] | None = None, called: bool = False) -> Plan:
    """The plan of a graph; `updates`: more outputs that are written where an input lies; `called`: by a node
    of control flow, which says what its slots hold.
    """
    simple: Graph = run((SIMPLIFY_CALLED if called else SIMPLIFY,), without_custom(graph))
    simple.updates.update(updates or {})
    return lower(simple, called)


def lower(graph: Graph, called: bool = False) -> Plan:
    """The plan of a graph that is simple already."""
    found: Plan = run(PLANNING_CALLED if called else PLANNING, verify(graph, called))
    return found
