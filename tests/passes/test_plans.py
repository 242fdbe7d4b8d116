"""Plans to be read: golden texts, structure, and random programs.

Golden texts are rewritten by KILN_UPDATE_GOLDEN=1.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_checks import check, launches, normal
from plan_runner import describe, trace
from test_passes import FORWARD
from test_simplify import F

import kiln
from kiln import ops
from kiln.passes.pipeline import lower
from kiln.passes.plan import Plan
from kiln.passes.simplify import simplify
from kiln.scalars.scalar import LEAVES, REDUCE
from kiln.table.record import find

GOLDEN = Path(__file__).parents[1] / "golden"


def structure(plan: Plan) -> str:
    """The text of a plan; of scalars only what is loaded, numbered, positioned and reduced."""
    kept = []
    for line in plan.text().split("\n"):
        scalar = re.match(r"    (%\d+:|->)", line)
        if scalar is None:
            kept.append(re.sub(r" grain .*", "", line))  # depends on what the mathematics costs
        elif found := re.search(rf"= ({'|'.join(sorted(LEAVES | REDUCE))})\b( \d+)?", line):
            kept.append("    " + found[0].removeprefix("= "))
    return "\n".join(kept)


@pytest.mark.parametrize("name", ["pointwise", "softmax", "sum", "columns", "embedding", "concat"])
def test_golden(name: str) -> None:
    """The text of a plan: buffers, kernels, launches."""
    function, arguments, *_ = FORWARD[name]
    written = structure(lower(simplify(trace(function, *map(describe, arguments)))))
    path = GOLDEN / f"plan_{name}.txt"
    if os.environ.get("KILN_UPDATE_GOLDEN"):
        path.write_text(written)
    assert written == path.read_text(), f"set KILN_UPDATE_GOLDEN=1 to accept the new text of {path.name}"


def test_structure_of_softmax() -> None:
    """One nest over rows with two reductions; no temporary."""
    plan = lower(simplify(trace(lambda a: ops.softmax(a, 1), F)))
    (kernel,) = plan.kernels
    assert kernel.text().startswith("nest pr")
    assert kernel.text().count(" = max ") == kernel.text().count(" = sum ") == 1
    assert not any(b.kind == "temp" for b in plan.buffers)


def test_what_is_written_over_stays_in_the_cache() -> None:
    """The zeros around a padded array are stored for what is written into them; an array of ones is not."""
    for function, small in ((lambda a: ops.pad(a, (1, 1)), 1), (lambda a: ops.full_like(a, 1), 0)):
        plan = lower(simplify(trace(function, F)))
        assert sum(" small" in kernel.text().split("\n")[0] for kernel in plan.kernels) == small


def test_dims_are_merged() -> None:
    """Contiguous work of any rank is one flat dim; a broadcast keeps what it must."""
    four = ("float32", (False,) * 4)
    plan = lower(simplify(trace(lambda a, b: a + b, four, four)))
    assert plan.kernels[0].text().startswith("nest p ")
    plan = lower(simplify(trace(lambda a, b: a + b, four, ("float32", (False,)))))
    assert plan.kernels[0].text().startswith("nest pp ")
    plan = lower(simplify(trace(lambda a: a.sum((2, 3)), four)))
    assert plan.kernels[0].text().startswith("nest pr ")


def test_deep_graphs() -> None:
    """Ten thousand nodes neither recurse too deeply nor become one kernel."""

    def chain(a: Any, b: Any) -> Any:
        for _ in range(1000):
            a = (a * b + b).tanh() - a
        return a

    graph = simplify(trace(chain, F, F))
    assert len(graph.nodes) == 4000
    assert launches(lower(graph)) > 4


@pytest.mark.parametrize(
    ("equation", "dims"),
    [
        ("ij,kj->ik", (2, 2)),
        ("ij,ik->jk", (2, 2)),
        ("bij,kj->bik", (3, 2)),
        ("bij,bkj->bik", (3, 3)),
        ("bhqd,bhkd->bhqk", (4, 4)),
        ("bhqk,bhkd->bhqd", (4, 4)),
        ("ij,j->i", (2, 1)),
        ("bi,bi->b", (2, 2)),
    ],
)
def test_einsum_is_one_product(equation: str, dims: tuple[int, ...]) -> None:
    """Factors are read where they lie: transposed, by batches of several dims."""
    plan = lower(
        simplify(trace(lambda *x: ops.einsum(equation, *x), *[("float32", (False,) * n) for n in dims]))
    )
    assert launches(plan) == 1
    assert not any(b.kind == "temp" for b in plan.buffers)


def test_an_output_holds_sums_unless_its_memory_is_an_inputs() -> None:
    """Of two segments of k: those of the first must not stand where the second factor's row is still read."""
    weight, bias, x, total = (normal(*shape) for shape in ((600, 70), (70,), (90, 600), (90, 70)))
    fresh = trace(lambda x, w, b: ops.add(ops.matmul(x, w), b), *map(describe, (x, weight, bias)))
    assert "sums in 2" in lower(simplify(fresh)).text()

    def update(total: Any, x: Any, weight: Any) -> Any:
        return total.addmm_(x, weight)

    given = kiln.from_numpy(total)
    expected = kiln.from_numpy(x) @ kiln.from_numpy(weight) + given
    for f in (update, kiln.compile(update, wait=True)):
        for _ in range(2):
            into = kiln.tensor(total)
            assert kiln.equal(f(into, kiln.from_numpy(x), kiln.from_numpy(weight)), expected)


def test_a_step_of_an_lstm_is_a_product_and_a_kernel() -> None:
    """Forward and back; nothing else is launched and no gate is copied."""
    forward, back = find("lstm_step"), find("lstm_back")
    assert launches(lower(simplify(trace(lambda *x: forward(*x), *[F] * 4)))) == 2
    assert launches(lower(simplify(trace(lambda *x: back(*x), *[F] * 7)))) == 2
    for name, count in (("lstm_gates", 2), ("gru_gates", 3)):
        op = find(name)
        graph = trace(op, *[F] * count)
        assert launches(lower(simplify(graph))) == 1


# -- random programs --------------------------------------------------------------------------------

UNARY = ["exp", "tanh", "neg", "relu", "sigmoid", "square"]


@st.composite
def programs(draw: Any) -> list[tuple[Any, ...]]:
    """Steps on a growing list of values, all (rows, columns) or reduced from such."""
    kinds = [
        "unary",
        "binary",
        "softmax",
        "reduce",
        "total",
        "product",
        "transpose",
        "column",
        "concat",
        "literal",
        "cut",
    ]
    count = draw(st.integers(2, 12))
    pick = st.integers(0, 99)
    return [
        (draw(st.sampled_from(kinds)), draw(pick), draw(pick), draw(st.sampled_from(UNARY)))
        for _ in range(count)
    ]


def run_program(steps: list[tuple[Any, ...]], a: Any, b: Any) -> list[Any]:
    """Builds a program; every value keeps the shape of a, so that all combine."""
    values = [a, b]
    for kind, i, j, name in steps:
        x, y = values[i % len(values)], values[j % len(values)]
        values.append(_step(kind, name, x, y, a))
    return values[-3:]


def _step(kind: str, name: str, x: Any, y: Any, like: Any) -> Any:
    if kind == "unary":
        return getattr(ops, name)(x) if hasattr(ops, name) else -x
    if kind == "binary":
        return {0: x + y, 1: x * y, 2: ops.where(x > y, x, y)}[len(name) % 3]
    if kind == "softmax":
        return ops.softmax(x, len(name) % 2)
    if kind == "reduce":
        return x - (y.mean(1, True) if len(name) % 2 else y.amax(1, True))
    if kind == "column":
        return x * y.sum(0)
    if kind == "total":
        return x + (y.sum() if len(name) % 2 else y.amax())
    if kind == "product":
        return x @ (y.t() @ y) * 0.01
    if kind == "transpose":
        return x.permute(1, 0).reshape(like.shape)
    if kind == "concat":
        joined = ops.cat([x, y], 1)
        return find("slice")(joined, 1, (len(name) % 3, like.shape[1], 1))
    if kind == "cut":
        return find("embed")(find("slice")(x, 1, (0, 1, 1)), 1, (like.shape[1], 0, 1)) + y
    return x * 0.5 + 1


@settings(max_examples=60)
@given(programs(), st.sampled_from([(4, 6), (1, 3), (7, 2), (2, 40)]))
def test_random_programs(steps: list[tuple[Any, ...]], shape: tuple[int, int]) -> None:
    """Any program: the plan's bits are the interpreter's (kernels interpreted by NumPy)."""
    a, b = normal(*shape), normal(*shape, seed=1)
    check(lambda x, y: run_program(steps, x, y), a, b, compiled=False)
