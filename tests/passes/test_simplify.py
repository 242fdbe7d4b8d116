"""simplify: what becomes of graphs, and at what cost."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
from plan_runner import trace

from kiln import ops
from kiln.capture.programs import program
from kiln.graph.graph import Graph
from kiln.graph.verify import verify
from kiln.passes.gradient import Asked, backward
from kiln.passes.pipeline import lower
from kiln.passes.simplify import simplify
from kiln.table.record import find


def simplified(function: Any, *specs: Any) -> list[str]:
    """The names of a function's nodes after simplification."""
    return [n.op.name for n in verify(simplify(verify(trace(function, *specs)))).nodes]


F, I2, I1, U1, B2 = ((dtype, (False, False)) for dtype in "float32 int64 int8 uint8 bfloat16".split())


def _int32(x: Any) -> Any:
    return find("convert")(x, "int32")


@pytest.mark.parametrize(
    ("function", "specs", "expected"),
    [
        (lambda a: a * 1, (F,), []),
        (lambda a: a / 1, (F,), []),
        (lambda a: a - 0, (F,), []),
        (lambda a: a - 0.0, (F,), []),
        (lambda a: a - -0.0, (F,), ["constant", "sub"]),
        (lambda a: a + 0.0, (F,), ["constant", "add"]),
        (lambda a: a * 1.0, (I2,), ["constant", "mul"]),
        (lambda a: a * 0, (F,), ["constant", "mul"]),
        (lambda a: find("convert")(a, "float32"), (F,), []),
        (lambda a: find("convert")(a, "float16"), (F,), ["convert"]),
        (lambda a: a.t().t(), (F,), []),
        (lambda a: a.permute(1, 0).permute(1, 0).reshape(-1), (F,), ["reshape"]),
        (lambda a: a.reshape(-1).reshape(1, -1), (F,), ["reshape"]),
        (lambda a: a.exp() + a.exp(), (F,), ["exp", "add"]),
        (lambda a, n, k: a * n + a * k, (F, "float64", "float64"), ["mul", "mul", "add"]),
        (lambda a, n: a * n + a * n, (F, "float64"), ["mul", "add"]),
        (lambda a: a * -0.0 + a * 0.0, (F,), ["constant", "mul", "constant", "mul", "add"]),
        (lambda a: a * 1 + a * 1.0, (F,), ["add"]),
        (lambda a: (a.exp(), a)[1] + 1, (F,), ["constant", "add"]),
        (lambda a, b: (a @ b).t(), (F, F), ["permute", "permute", "product"]),
        (lambda a: a.sum(1), (("float32", (False, True)),), ["reshape"]),
        (lambda a, b: _int32(a) @ _int32(b).t(), (I1, I1), ["permute", "product_wide"]),
        (lambda a, b: _int32(a) @ _int32(b), (I1, U1), ["convert", "convert", "product"]),
        (
            lambda a, b: ops.matmul(*(find("convert")(x, "float32") for x in (a, b))),
            (B2, B2),
            ["convert", "convert", "product"],
        ),
    ],
)
def test_simplify(function: Any, specs: tuple[Any, ...], expected: list[str]) -> None:
    """Fewer nodes where no bit can change."""
    assert simplified(function, *specs) == expected


GRID = ("float32", (False, False))


def calls_of_python(function: Any) -> int:
    """How many calls of Python functions it takes: a cost that is the same every time."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", ["recurrent", "sums", "wide"])
def test_cost_grows_with_the_graph(kind: str) -> None:
    """Four times the nodes take about four times the work to plan."""

    def build(n: int) -> Graph:
        def body(x: Any, w: Any) -> Any:
            y = x
            for k in range(n):
                if kind == "recurrent":
                    y = ops.tanh(y @ w + x)
                elif kind == "sums":
                    y = (ops.tanh(y) * 1.5 + y.sum()) * 0.5
                else:
                    y = y + ops.tanh(x * (k + 2.0))
            return y

        return simplify(backward(trace(body, GRID, GRID), Asked((0, 1), (True,))).graph)

    small, large = build(30), build(120)
    lower(small)
    costs = [calls_of_python(lambda graph=graph: lower(graph)) for graph in (small, large)]
    assert len(large.nodes) > 3 * len(small.nodes)
    assert costs[1] < 5.5 * costs[0]


def test_ten_thousand_nodes() -> None:
    """A graph of 10 000 nodes is planned whatever the depth, and the plan runs."""
    graph = trace(lambda x: functools.reduce(lambda y, k: ops.tanh(y) * 0.5 + x, range(3400), x), GRID)
    assert len(graph.nodes) > 10_000
    plan = lower(simplify(graph))
    assert len(plan.kernels) < 20


def test_what_runs_is_simplified() -> None:
    """The gradient of a transposed weight is one product: no transposed copy after it."""
    graph = trace(lambda a, b: (a @ b).t(), F, F)
    kernels, *_, steps = program(graph)
    assert len(steps) == len(kernels) == 1
