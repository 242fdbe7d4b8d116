"""Reductions along a product's rows that its kernel carries along: when, and with which bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend import kiln, recorded
from plan_checks import check, check_updates, launches, normal, temporaries

from kiln import ops
from kiln.passes.plan import Plan
from kiln.passes.products import GemmKernel
from kiln.table.record import find
from kiln.testing.compare import first_difference, freeze

relu = ops.relu
X, W, C, G = normal(5, 17), normal(17, 300), normal(300), normal(5, 300)
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int8"]


def carried(plan: Plan) -> int:
    """How many arrays of accumulators products leave."""
    kernels = [kernel for kernel in plan.kernels if isinstance(kernel, GemmKernel)]
    return sum(operand.folds for kernel in kernels for operand in kernel.spec.operands)


# (function, arguments, arrays of accumulators, launches, temporaries)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], int, int, int]] = {
    "sum": (lambda x, w: (x @ w).sum(-1), (X, W), 1, 2, 1),
    "kept dim": (lambda x, w: (x @ w).mean(-1, True) * 2 + 1, (X, W), 1, 2, 1),
    "prod": (lambda x, w: (x @ w).prod(-1), (X, W[:, :20].copy()), 1, 2, 1),
    "all": (lambda x, w: ((x @ w) > -9).all(-1), (X, W), 1, 2, 1),
    "any": (lambda x, w: ((x @ w) > 9).any(-1), (X, W), 1, 2, 1),
    "two": (lambda x, w: (y := x @ w).sum(-1) + y.amax(-1), (X, W), 2, 2, 2),
    "argmin": (lambda x, w: (relu(x) @ w).argmin(-1), (X, W), 2, 2, 2),
    "argmax and amax": (lambda x, w: ((y := x @ w).argmax(-1), y.amax(-1)), (X, W), 3, 2, 3),
    "an epilogue": (lambda x, w, c: relu(x @ w + c).amax(-1), (X, W, C), 1, 2, 1),
    "an epilogue, kept": (lambda x, w, c: (y := relu(x @ w + c), y.amin(-1)), (X, W, C), 1, 2, 1),
    "error of a row": (lambda x, w, g: ((x @ w - g) * (x @ w - g)).mean(-1), (X, W, G), 1, 2, 1),
    "of two products": (lambda x, w, v: ((x @ w) * (x @ v)).sum(-1), (X, W, W + 1), 1, 3, 2),
    "batch": (lambda x, w: (x @ w).amax(-1), (normal(3, 5, 17), normal(3, 17, 40)), 1, 2, 1),
    "two batch dims": (lambda x, w: (x @ w).amax(-1), (normal(2, 3, 5, 17), normal(2, 3, 17, 40)), 1, 2, 1),
    "a shared factor": (lambda x, w: (x @ w).amax(-1), (normal(2, 1, 3, 5, 17), W), 1, 2, 1),
    "on to a product": (lambda x, w: (x @ w).sum(-1) @ w, (normal(17, 17), W), 1, 3, 2),
    "a loss": (lambda x, w, c: (relu(x @ w).amax(-1) - c).mean(), (X, W, normal(5)), 1, 5, 3),
    "of the transposed": (lambda x, w: (x @ w).t().sum(-1), (X, W), 1, 2, 1),
    # kernels of their own
    "sums wanted as they are": (lambda x, w: (y := x @ w, y.sum(-1)), (X, W), 0, 2, 0),
    "reduced again": (lambda x, w: ops.softmax(x @ w, -1), (X, W), 0, 2, 1),
    "two passes": (lambda x, w: ((x @ w) - (x @ w).amax(-1, True)).sum(-1), (X, W), 0, 2, 1),
    "read again": (lambda x, w, c: (y := relu(x @ w) + c) * y.sum(-1, True), (X, W, C), 0, 2, 1),
    "columns": (lambda x, w: (x @ w).sum(0), (X, W), 0, 2, 1),
    "everything": (lambda x, w: (x @ w).sum(), (X, W), 0, 4, 2),
    "one row": (lambda x, w: (x @ w).sum(-1), (X[:1].copy(), W), 0, 4, 2),
    "one column": (lambda x, w: (x @ w).sum(-1), (X, W[:, :1].copy()), 0, 1, 0),
    "positions": (lambda x, w: find("triu")(x @ w, 0).sum(-1), (X, W), 0, 2, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """The interpreter's bits in the expected number of accumulators, launches and temporaries."""
    function, arguments, *expected = PROGRAMS[name]
    plan = check(function, *arguments)
    assert [carried(plan), launches(plan), temporaries(plan)] == expected, plan.text()


def factors(dtype: str, m: int, k: int, n: int) -> tuple[Any, Any]:
    """Draws of a dtype."""
    if dtype == "bfloat16":
        return normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    return (normal(m, k) * 3).astype(dtype), (normal(k, n) * 3).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_sizes(dtype: str) -> None:
    """On both sides of a vector, a group of columns, a unit, a segment of k and a block of the order."""
    sizes = [(0, 3, 4), (3, 5, 1), (3, 4, 15), (25, 3, 128), (7, 600, 129), (50, 9, 300)]
    for m, k, n in [*sizes, *([(2, 3, 17000), (5, 0, 144)] if dtype != "int8" else [])]:
        x, w = factors(dtype, m, k, n)
        for function in (
            lambda x, w: (relu(x @ w).sum(-1), (x @ w).amin(-1)),
            lambda x, w: (x @ w).argmax(-1),
        ):
            plan = check(function, x, w)
            assert (carried(plan), launches(plan)) == (0 if n == 1 else 2, 1 if n == 1 else 2)


def test_no_columns() -> None:
    check(lambda x, w: ((x @ w).sum(-1), (x @ w).prod(-1)), normal(3, 4), normal(4, 0))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("n", [3, 130, 400])
def test_nan_and_infinities(dtype: str, n: int) -> None:
    """A NaN beats every number, the first of equals wins, a row may hold nothing but -inf."""
    w = normal(6, n).astype(dtype)
    w[0] = -np.inf
    w[1, n // 2 :] = np.nan
    w[2] = 1
    w[3, [1, n - 1]] = np.inf
    w[4] = np.where(np.arange(n) % 2, 0.0, -0.0)
    w[5, [n - 2, n - 1]] = np.nan, np.inf

    def function(x: Any, w: Any) -> Any:
        y = x @ w
        return [y.amax(-1), y.amin(-1), y.argmax(-1), y.argmin(-1), y.sum(-1)]

    for row in range(6):
        assert carried(check(function, np.ones((3, 1), dtype), w[row : row + 1])) == 7


def test_in_place() -> None:
    """What is combined may update an input that the elements are computed from."""

    def function(x: Any, w: Any, c: Any) -> Any:
        return [c + relu(x @ w + c).sum(-1, True)]

    plan = check_updates(function, {0: 2}, X, W, normal(5, 1))
    assert (carried(plan), launches(plan)) == (1, 2)


def test_threads_and_recordings() -> None:
    """Recorded as op by op, on one thread as on several, gradients too."""

    def step(x: Any, w: Any, c: Any) -> Any:
        y = (x @ w + c).relu()
        loss = ((y * y).sum(-1) - y.amax(-1)).mean()
        return (y.argmax(-1), y.sum(-1), *kiln.autograd.grad(loss, [x, w, c]))

    run = recorded(step)
    sizes = ((300, 70), (70, 390), (390,))
    x, w, c = (kiln.tensor(normal(*s), requires_grad=True) for s in sizes)
    before = kiln.get_num_threads()
    try:
        kiln.set_num_threads(1)
        expected = [freeze(y) for y in step(x, w, c)]
        for threads in (1, 2, 3):
            kiln.set_num_threads(threads)
            for _ in range(2):
                assert first_difference(expected, [freeze(y) for y in run(x, w, c)], exact=True) is None
    finally:
        kiln.set_num_threads(before)
