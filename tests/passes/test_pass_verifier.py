"""The verifier of groups and plans: what the passes make is sound; each broken rule is found and named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from plan_checks import normal
from plan_runner import describe, trace

from kiln import _core, ops
from kiln.graph.graph import Graph
from kiln.graph.verify import VerifyError, verify
from kiln.passes import pipeline
from kiln.passes.fuse import fuse
from kiln.passes.gradient import Asked
from kiln.passes.group import Fusion, Group
from kiln.passes.order import ordered
from kiln.passes.plan import Free, Launch, Plan
from kiln.passes.prepare import prepare
from kiln.passes.simplify import simplify
from kiln.passes.verify import verify_fusion, verify_plan

X, W, V = normal(40, 24), normal(24, 32), normal(32, 8)
NARROW = normal(20, 30)


def simple(function: Any, *arguments: Any, updates: dict[int, int] | None = None) -> Graph:
    """A function's graph, simplified."""
    graph = simplify(trace(function, *map(describe, arguments)))
    graph.updates = updates or {}
    return graph


def products() -> Fusion:
    """Three kernels in a row: a product, rows of it, another product."""
    return fuse(prepare(simple(lambda x, w, v: ops.softmax(x @ w, 1) @ v, X, W, V)))


def statistic() -> Fusion:
    """A product that leaves accumulators, and the kernel that combines them."""
    return fuse(prepare(simple(lambda x, w: ops.relu(x @ w).sum(-1), X, W)))


def update() -> Fusion:
    """An input read across its rows before it is overwritten."""
    graph = simple(
        lambda a, b: (a + b, ops.softmax(ops.transpose(a, 0, 1), 1)), NARROW, NARROW, updates={0: 0}
    )
    return fuse(prepare(graph))


def by_kind(fusion: Fusion, kind: str) -> Group:
    """The first group of a kind."""
    return next(g for g in fusion.groups if g.kind == kind)


def last(fusion: Fusion) -> Group:
    """The group of the first output."""
    return next(g for g in fusion.groups if any(r.array is fusion.outputs[0] for r in g.roots))


def _number(fusion: Fusion) -> None:
    fusion.groups[0].number = 1


def _itself(fusion: Fusion) -> None:
    fusion.groups[0].before |= fusion.groups[0].bit


def _not_closed(fusion: Fusion) -> None:
    fusion.groups[2].before = fusion.groups[1].bit


def _too_early(fusion: Fusion) -> None:
    fusion.groups[1].before = fusion.groups[2].before = 0


def _not_stored(fusion: Fusion) -> None:
    fusion.groups[0].roots.clear()


def _said_by_another(fusion: Fusion) -> None:
    fusion.groups[1].roots[0].array.writers |= fusion.groups[0].bit


def _no_array(fusion: Fusion) -> None:
    del fusion.explorer.arrays[id(fusion.groups[0].node.out)]  # type: ignore[union-attr]


def _twice(fusion: Fusion) -> None:
    fusion.groups[1].members.append(fusion.groups[0].members[0])


def _nowhere(fusion: Fusion) -> None:
    exp = next(n for n in fusion.graph.nodes if n.op.name == "exp")
    del fusion.groups[1].inline[id(exp.out)]


def _another_frame(fusion: Fusion) -> None:
    frame = fusion.groups[1].frame
    fusion.groups[1].frame = frame._replace(dims=(*frame.dims, 7))


def _no_output(fusion: Fusion) -> None:
    last(fusion).roots.clear()
    fusion.outputs[0].writers = 0


def _not_left(fusion: Fusion) -> None:
    by_kind(fusion, "matmul").folds.clear()


def _combined_early(fusion: Fusion) -> None:
    by_kind(fusion, "nest").before = 0


def _read_late(fusion: Fusion) -> None:
    last(fusion).before = 0


BROKEN: dict[str, tuple[Callable[[], Fusion], Callable[[Fusion], None], str]] = {
    "number": (products, _number, "group 0: its number is 1"),
    "before itself": (products, _itself, "group 0: runs before itself"),
    "not closed": (products, _not_closed, "group 2: runs after 1, not after all that 1 does"),
    "too early": (products, _too_early, "group 1: reads .* before it is written"),
    "not stored": (products, _not_stored, "group 1: reads .*, which nobody writes"),
    "said by another": (products, _said_by_another, "written by 10, says 11"),
    "no array": (products, _no_array, "group 0: writes an array that no value has"),
    "twice": (products, _twice, r"node 0 \(product\): an array, computed by 2 groups"),
    "nowhere": (products, _nowhere, r"node \d+ \(exp\): in no group"),
    "another frame": (products, _another_frame, "group 1: .* not its frame"),
    "no output": (products, _no_output, "output 0: no group writes it"),
    "not left": (statistic, _not_left, "0 groups leave its accumulators"),
    "combined early": (statistic, _combined_early, "combines accumulators before they are left"),
    "read late": (update, _read_late, "group .: reads input 0 after group . has written output 0 there"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_of_groups_is_found(name: str) -> None:
    """Sound before, not after one thing was changed."""
    make, damage, message = BROKEN[name]
    fusion = make()
    assert len(ordered(verify_fusion(fusion))) > 1
    damage(fusion)
    with pytest.raises(VerifyError, match=message):
        verify_fusion(fusion)


def _moved(plan: Plan, kind: type, place: int) -> Plan:
    """The plan with its first step of a kind at another place."""
    steps = list(plan.steps)
    step = next(s for s in steps if isinstance(s, kind))
    steps.remove(step)
    steps.insert(place, step)
    return plan._replace(steps=tuple(steps))


def _launch(plan: Plan, **change: Any) -> Plan:
    steps = [s._replace(**change) if isinstance(s, Launch) else s for s in plan.steps]
    return plan._replace(steps=tuple(steps))


BROKEN_PLANS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "freed first": (lambda p: _moved(p, Free, 0), "step 0: frees buffer ., no temporary in use"),
    "freed early": (lambda p: _moved(p, Free, 1), "step 2: buffer . is freed already"),
    "freed twice": (
        lambda p: p._replace(steps=(*p.steps, p.steps[-1])),
        "step 3: frees buffer ., no temporary in use",
    ),
    "never freed": (
        lambda p: p._replace(steps=tuple(s for s in p.steps if isinstance(s, Launch))),
        "buffer .: never freed",
    ),
    "read first": (lambda p: _moved(p, Launch, 1), "step 0: reads buffer . before anything writes it"),
    "no kernel": (lambda p: _launch(p, kernel=9), "step 0: there is no kernel 9"),
    "no buffer": (lambda p: _launch(p, pointers=((9, 0, 4),) * 3), "step 0: there is no buffer 9"),
    "no output": (lambda p: p._replace(steps=p.steps[::2]), "an output that no launch writes"),
}


@pytest.mark.parametrize("name", BROKEN_PLANS)
def test_a_broken_rule_of_plans_is_found(name: str) -> None:
    """A product, then its softmax: two launches, a temporary."""
    plan = pipeline.lower(simple(lambda x, w: ops.softmax(x @ w, 1), X, W))
    assert [type(s) for s in verify_plan(plan).steps] == [Launch, Launch, Free]
    damage, message = BROKEN_PLANS[name]
    with pytest.raises(VerifyError, match=message):
        verify_plan(damage(plan))


def test_what_exists_between_passes_is_verified_too() -> None:
    """Partial results, and writes into a base, have a dtype and shape that follow from what they read."""

    def function(x: Any, y: Any) -> Any:
        return x.sum(), (x > 0).all(), ops.cat([x, x]).max(), ops.select_scatter(y, y[0], 0, 1)

    for dtype in (np.float32, np.float16, np.int32):
        graph = prepare(simple(function, normal(300, 100).astype(dtype), NARROW))
        assert {"blocks_sum", "blocks_all", "blocks_max", "sequence_sum", "write"} & {
            n.op.name for n in verify(graph).nodes
        }
        for node in graph.nodes:
            kept, node.out.dtype = node.out.dtype, "uint8"
            with pytest.raises(VerifyError, match="says|infers|refuses|weak"):
                verify(graph)
            node.out.dtype = kept


@pytest.mark.parametrize("at", range(len(pipeline.PROGRAM)))
def test_a_pass_that_breaks_a_rule_is_named(at: int, request: pytest.FixtureRequest) -> None:
    """In the check mode a broken pass is named. Without, what is planned is verified still."""
    request.addfinalizer(partial(_core.set_check, _core.set_check(True)))
    step, graph = pipeline.PROGRAM[at], simple(lambda x: ops.softmax(x, 1), X)

    def spoiled(given: Any) -> Any:
        made = step.run(given)
        if isinstance(made, Graph):
            made.nodes[0].out.dtype = "int64"
        elif isinstance(made, Fusion):
            made.groups[0].before = 1
        else:
            made = made._replace(steps=())
        return made

    passes = (*pipeline.PROGRAM[:at], step._replace(run=spoiled))
    with pytest.raises(VerifyError, match=f"after {step.name}: "):
        pipeline.run(passes, graph)
    _core.set_check(False)
    pipeline.run(passes, graph)
    graph.nodes[0].out.dtype = "int64"
    with pytest.raises(VerifyError, match="^node 0"):
        pipeline.lower(graph)


@pytest.mark.parametrize("name", ["OP", "DERIVATIVE", "HIDDEN", "REPLAY"])
def test_graphs_of_ops_and_derivatives_are_verified(name: str) -> None:
    """The same for what is made before a program: a graph whose first node says another dtype."""
    passes = getattr(pipeline, name)
    graph = trace(lambda x: ops.softmax(x, 1), describe(X))
    given = (graph,) if name == "OP" else (graph, Asked((0,), (True,)))
    pipeline.run(passes, *given)
    *before, step = passes

    def spoiled(*given: Any) -> Any:
        made = step.run(*given)
        (made if name == "OP" else made.graph).nodes[0].out.dtype = "int64"
        return made

    with pytest.raises(VerifyError, match=f"after {step.name}: node 0"):
        pipeline.run((*before, step._replace(run=spoiled)), *given)
