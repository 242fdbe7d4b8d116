"""Pointwise factors of products: computed in the product's kernel, of which no array is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend import kiln, recorded
from plan_checks import check, check_updates, launches, normal, temporaries

from kiln import ops
from kiln.table.record import find
from kiln.testing.compare import first_difference, freeze

relu, convert, product_wide = ops.relu, find("convert"), find("product_wide")
X, W, G = normal(5, 17), normal(17, 6), normal(5, 6)
CODES = np.random.default_rng(0).integers(-128, 127, (5, 17)).astype(np.int8)
HALF = X.astype(np.float16), W.astype(np.float16)
WHOLE = np.rint(W * 2)  # sums of which are exact, in any order
LOW, LOW_W = ((np.rint(x * 2).view(np.uint32) >> 16).astype(np.uint16) for x in (X, W))


def turn(x: Any) -> Any:
    """The transposed matrix, contiguous."""
    return np.ascontiguousarray(x.T)


# (function, arguments, launches, temporaries)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], int, int]] = {
    "first": (lambda x, w: relu(x) @ w, (X, W), 1, 0),
    "second": (lambda x, w: x @ relu(w), (X, W), 1, 0),
    "both, a number": (lambda x, w, n: relu(x) @ (w * n), (X, W, 0.3), 1, 0),
    "cast": (lambda x, w: convert(x, "float32") @ w, (CODES, W), 1, 0),
    "cast of both": (lambda x, w: convert(x, "float32") @ convert(w, "float32"), HALF, 1, 0),
    "halves round": (lambda x, w: (x * 0.3) @ (w + w), HALF, 1, 0),
    "transposed": (lambda x, w: relu(x).t() @ relu(w).t(), (normal(17, 5), normal(6, 17)), 1, 0),
    "transposed below": (lambda x, w: relu(x.t()) @ w, (normal(17, 5), W), 1, 0),
    "scaled rows": (lambda x, s, w: (x * s) @ w, (X, normal(5, 1), W), 1, 0),
    "scaled batch": (lambda x, s, w: (x * s) @ w, (normal(3, 5, 7), normal(3, 1, 1), normal(3, 7, 6)), 1, 0),
    "outer": (lambda x, y, w: (x * y) @ w, (normal(5, 1), normal(17), W), 1, 0),
    "masked": (lambda g, y, w: (g * (y > 0)) @ w, (X, X * 2 - 1, W), 1, 0),
    "part": (lambda x, w: relu(find("slice")(x, 1, (3, 17, 1))) @ w, (normal(5, 24), W), 1, 0),
    "an epilogue": (lambda x, w, b: relu(relu(x) @ w + b), (X, W, normal(6)), 1, 0),
    "two products": (lambda x, w, g: (relu(x) @ w, relu(x).t() @ g), (X, W, G), 2, 0),
    "of a sum": (lambda x, w: (x.sum(0), relu(x) @ w), (X, W), 2, 0),
    "beside a row": (lambda x, w: x @ convert(w, "float32"), (X[:1].copy(), CODES.T.copy()), 1, 0),
    "beside a row, transposed": (lambda x, w: x @ relu(w).t(), (X[:1].copy(), X), 1, 0),
    "beside a column": (lambda x, w, b: relu(relu(x) @ w + b), (X, W[:, :1].copy(), normal(5, 1)), 1, 0),
    "beside a column, transposed": (lambda x, w: relu(x).t() @ w, (X, normal(5, 1)), 1, 0),
    "halves beside a column": (lambda x, w: relu(x).t() @ w, (HALF[0], HALF[0][:, :1].copy()), 1, 0),
    "transposed halves": (lambda x, w: x @ relu(w).t(), (HALF[0], np.ascontiguousarray(HALF[1].T)), 1, 0),
    "transposed halves beside a column": (lambda x, w: relu(x) @ w, (HALF[0], HALF[1][:, :1].copy()), 1, 0),
    # on tiles, where there are any
    "tiles": (lambda x, w: relu(x) @ relu(w), (LOW, LOW_W), 1, 0),
    "tiles, transposed": (lambda x, w: relu(x).t() @ relu(w).t(), (turn(LOW), turn(LOW_W)), 1, 0),
    "tiles, an epilogue": (lambda x, w, b: relu(relu(x) @ w + b), (LOW, LOW_W, LOW_W[0].copy()), 1, 0),
    "tiles, cast of the second": (lambda x, w: x @ convert(w, "bfloat16"), (LOW, WHOLE), 1, 0),
    "tiles, codes": (lambda x, q, s: x @ convert(q * s, "bfloat16"), (LOW, turn(CODES), WHOLE[:, :1]), 1, 0),
    "tiles, beside a row": (lambda x, w: x @ convert(w, "bfloat16"), (LOW[:1].copy(), WHOLE), 1, 0),
    "tiles, beside a column": (lambda x, w: convert(x, "bfloat16") @ w, (WHOLE, turn(LOW[:1, :6])), 1, 0),
    "tiles, a batch": (lambda x, w: x @ relu(w), (np.stack([LOW] * 3), np.stack([LOW_W] * 3)), 1, 0),
    "tiles of bytes": (lambda x, w: product_wide(relu(x), w), (CODES, CODES.T.copy()), 1, 0),
    # arrays all the same
    "costly": (lambda x, w: x.tanh() @ w, (X, W), 2, 1),
    "epilogue of another": (lambda x, w, v: relu(x @ w) @ v, (X, W, normal(6, 4)), 2, 1),
    "many reads": (lambda x, y, z, w: (x * y + z) @ w, (X, X, X, W), 2, 1),
    "two reads, twice": (lambda x, y, w, v: ((x + y) @ w, (x + y) @ v), (X, X + 1, W, W + 1), 3, 1),
    "unlike": (lambda x, y, w: (x + y.t()) @ w, (X, normal(17, 5), W), 2, 1),
    "repeated": (lambda x, w: relu(x).expand(3, 5, 7) @ w, (normal(5, 7), normal(3, 7, 6)), 2, 1),
    "one row": (lambda x, w: relu(x) @ w, (X[:1].copy(), W), 2, 1),
    "one column": (lambda x, w: x @ relu(w), (X, W[:, :1].copy()), 2, 1),
    "numbers": (lambda x, w: (x * 2) @ (w * 2), (X[:1].copy(), X.T[:, :1].copy()), 3, 2),
    "tiles, cast of the first": (lambda x, w: convert(x, "bfloat16") @ w, (X, LOW_W), 2, 1),
    "tiles, first of two": (lambda g, y, w: (g * (y > 0)) @ w, (LOW, LOW, LOW_W), 2, 1),
    "tiles, dear first": (lambda x, w: (x * 2 + 1) @ w, (LOW, LOW_W), 2, 1),
    "tiles, one row": (lambda x, w: relu(x) @ w, (LOW[:1].copy(), LOW_W), 2, 1),
    "kept": (lambda x, w: (relu(x), relu(x) @ w), (X, W), 2, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """The interpreter's bits in the expected number of launches and temporaries."""
    function, arguments, expected, temps = PROGRAMS[name]
    plan = check(function, *arguments)
    assert (launches(plan), temporaries(plan)) == (expected, temps), plan.text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_and_recordings(dtype: str) -> None:
    """Recorded as op by op, on one thread as on several, gradients too."""

    def step(x: Any, w: Any, mask: Any) -> Any:
        y = ((x.relu() @ (w * 0.5)) + (x * mask) @ codes.to(x.dtype)).relu()
        return (y, *kiln.autograd.grad((y * y).sum(), [x, w]))

    run = recorded(step)
    x, w = (
        kiln.tensor(normal(*s)).to(getattr(kiln, dtype)).requires_grad_() for s in ((300, 700), (700, 90))
    )
    codes = kiln.tensor(np.random.default_rng(0).integers(-128, 127, (700, 90)).astype(np.int8))
    mask = kiln.tensor(normal(300, 700, seed=3)) > 0
    before = kiln.get_num_threads()
    try:
        kiln.set_num_threads(1)
        expected = [freeze(y) for y in step(x, w, mask)]
        for threads in (1, 4):
            kiln.set_num_threads(threads)
            for _ in range(3):
                assert first_difference(expected, [freeze(y) for y in run(x, w, mask)], exact=True) is None
    finally:
        kiln.set_num_threads(before)


@pytest.mark.parametrize("updated", [0, 1])
def test_in_place(updated: int) -> None:
    """A product into the memory that its own factor is computed from goes through a temporary."""
    square = normal(5, 5), normal(5, 5, seed=1)
    plan = check_updates(lambda a, b: relu(a) @ (b * 2), {0: updated}, *square)
    assert (launches(plan), temporaries(plan)) == (2, 1)


def test_all_sizes() -> None:
    """Of one plan, 0 included."""
    function = PROGRAMS["both, a number"][0]
    for m, k, n in ((0, 3, 4), (5, 0, 7), (3, 4, 0), (60, 520, 40)):
        check(function, normal(m, k), normal(k, n), 0.3)
