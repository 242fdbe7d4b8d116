"""Derivatives that composites state, against differences, on the interpreter.

tests/ops/test_table.py traces a composite into what it is made of, whose derivative follows by itself: there
the stated one is not looked at. Here the op is one node of the graph that is differentiated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_table import DIFFERENTIABLE, floats_of, traced

from kiln.graph import graph as g
from kiln.graph.interpret import interpret
from kiln.passes.gradient import Asked, backward
from kiln.table.record import Op


def takes_several(op: Op) -> bool:
    """Whether the rule takes the gradients of several results: tests/ops/test_derivatives.py has those."""
    assert op.gradient is not None
    return "gs" in op.gradient.__code__.co_varnames[: op.gradient.__code__.co_argcount]


STATED = [op for op in DIFFERENTIABLE if op.kind == "composite" and op.gradient and not takes_several(op)]


def as_one_node(op: Op, bound: tuple[Any, ...]) -> g.Graph:
    """The graph of a call as a node for each of its results, of the same inputs."""
    graph, _, outputs = traced(op, bound, {}, "float64")
    kinds = zip(op.params, bound)
    attrs = tuple(tuple(a) if isinstance(a, (list, tuple)) else a for p, a in kinds if p.kind in "SZ")
    whole = g.Graph()
    whole.slots, whole.checks, whole.inputs = graph.slots, graph.checks, graph.inputs
    for value in whole.inputs:
        value.graph = whole
    for y in outputs:
        node = g.Node(op, tuple(whole.inputs), attrs)
        node.out = g.Value(whole, node, y.dtype, y.shape)
        whole.nodes.append(node)
    return whole.finish([node.out for node in whole.nodes])


def stated(op: Op, bound: tuple[Any, ...], given: list[Any], grad: Any, results: list[Any]) -> list[Any]:
    """The gradients by the float inputs from that of the first result, by the stated rule."""
    graph = as_one_node(op, bound)
    back = backward(graph, Asked(floats_of(given), (True, *(False for _ in results[1:]))))
    assert not back.hidden
    known = {"grad": [grad], "input": given, "output": results, "shape": given}
    found = interpret(back.graph, [known[kind][k] for kind, k in back.sources])
    return [found[r] if r >= 0 else None for r in back.results]


def test_there_are_some() -> None:
    assert {"softmax", "convolve_input", "convolve_weight", "flip", "row_distances"} <= {
        o.name for o in STATED
    }


@pytest.mark.parametrize("op", STATED, ids=lambda op: op.name)
def test_stated_derivatives_agree_with_differences(op: Op, rng: Any) -> None:
    assert op.samples is not None
    checked = 0
    for sample in op.samples(rng, "float64"):
        bound = tuple(op.bind(sample.args, sample.kwargs))
        graph, given, outputs = traced(op, bound, {}, "float64")
        wrt, results = floats_of(given), interpret(graph.finish(outputs), given)
        if outputs[0].dtype != "float64" or not wrt:
            continue
        grad = rng.normal(size=results[0].shape)
        for k, got in zip(wrt, stated(op, bound, given, grad, results), strict=True):
            direction, eps = rng.normal(size=given[k].shape), 1e-6
            sides = []
            for sign in (eps, -eps):
                moved = [np.asarray(x + sign * direction) if j == k else x for j, x in enumerate(given)]
                sides.append(float((interpret(graph, moved)[0] * grad).sum()))
            expected = (sides[0] - sides[1]) / (2 * eps)
            computed = float((got * direction).sum()) if got is not None else 0.0
            assert abs(computed - expected) <= 1e-4 * (1 + abs(expected)), (
                f"{op.name}: input {k}: {computed} against {expected}"
            )
            checked += 1
    assert checked
