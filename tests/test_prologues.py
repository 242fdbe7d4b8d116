"""Pointwise factors of products: computed in the product's kernel, of which no array is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend import kiln, recorded
from test_passes import check, check_updates, launches, normal, temporaries

from kiln import ops
from kiln.ops.record import find
from kiln.testing.compare import first_difference, freeze

relu, convert = ops.relu, find("convert")
X, W, G = normal(5, 17), normal(17, 6), normal(5, 6)
CODES = np.random.default_rng(0).integers(-128, 127, (5, 17)).astype(np.int8)
HALF = X.astype(np.float16), W.astype(np.float16)

# (function, arguments, launches, temporaries)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], int, int]] = {
    "first": (lambda x, w: relu(x) @ w, (X, W), 1, 0),
    "second": (lambda x, w: x @ relu(w), (X, W), 1, 0),
    "both, a number": (lambda x, w, n: relu(x) @ (w * n), (X, W, 0.3), 1, 0),
    "cast": (lambda x, w: convert(x, "float32") @ w, (CODES, W), 1, 0),
    "cast of both": (lambda x, w: convert(x, "float32") @ convert(w, "float32"), HALF, 1, 0),
    "halves round": (lambda x, w: (x * 0.3) @ (w + w), HALF, 1, 0),
    "turned": (lambda x, w: relu(x).t() @ relu(w).t(), (normal(17, 5), normal(6, 17)), 1, 0),
    "turned below": (lambda x, w: relu(x.t()) @ w, (normal(17, 5), W), 1, 0),
    "scaled rows": (lambda x, s, w: (x * s) @ w, (X, normal(5, 1), W), 1, 0),
    "scaled batch": (lambda x, s, w: (x * s) @ w, (normal(3, 5, 7), normal(3, 1, 1), normal(3, 7, 6)), 1, 0),
    "outer": (lambda x, y, w: (x * y) @ w, (normal(5, 1), normal(17), W), 1, 0),
    "masked": (lambda g, y, w: (g * (y > 0)) @ w, (X, X * 2 - 1, W), 1, 0),
    "part": (lambda x, w: relu(find("slice")(x, 1, (3, 17, 1))) @ w, (normal(5, 24), W), 1, 0),
    "an epilogue": (lambda x, w, b: relu(relu(x) @ w + b), (X, W, normal(6)), 1, 0),
    "two products": (lambda x, w, g: (relu(x) @ w, relu(x).t() @ g), (X, W, G), 2, 0),
    "of a sum": (lambda x, w: (x.sum(0), relu(x) @ w), (X, W), 2, 0),
    "beside a row": (lambda x, w: x @ convert(w, "float32"), (X[:1].copy(), CODES.T.copy()), 1, 0),
    "beside a row, turned": (lambda x, w: x @ relu(w).t(), (X[:1].copy(), X), 1, 0),
    "beside a column": (lambda x, w, b: relu(relu(x) @ w + b), (X, W[:, :1].copy(), normal(5, 1)), 1, 0),
    "beside a column, turned": (lambda x, w: relu(x).t() @ w, (X, normal(5, 1)), 1, 0),
    "halves beside a column": (lambda x, w: relu(x).t() @ w, (HALF[0], HALF[0][:, :1].copy()), 1, 0),
    # arrays all the same
    "costly": (lambda x, w: x.tanh() @ w, (X, W), 2, 1),
    "epilogue of another": (lambda x, w, v: relu(x @ w) @ v, (X, W, normal(6, 4)), 2, 1),
    "many reads": (lambda x, y, z, w: (x * y + z) @ w, (X, X, X, W), 2, 1),
    "two reads, twice": (lambda x, y, w, v: ((x + y) @ w, (x + y) @ v), (X, X + 1, W, W + 1), 3, 1),
    "unlike": (lambda x, y, w: (x + y.t()) @ w, (X, normal(17, 5), W), 2, 1),
    "repeated": (lambda x, w: relu(x).expand(3, 5, 7) @ w, (normal(5, 7), normal(3, 7, 6)), 2, 1),
    "one row": (lambda x, w: relu(x) @ w, (X[:1].copy(), W), 2, 1),
    "one column": (lambda x, w: x @ relu(w), (X, W[:, :1].copy()), 2, 1),
    "turned halves": (lambda x, w: x @ relu(w).t(), (HALF[0], np.ascontiguousarray(HALF[1].T)), 2, 1),
    "numbers": (lambda x, w: (x * 2) @ (w * 2), (X[:1].copy(), X.T[:, :1].copy()), 3, 2),
    "turned beside a column": (lambda x, w: relu(x) @ w, (HALF[0], HALF[1][:, :1].copy()), 2, 1),
    "kept": (lambda x, w: (relu(x), relu(x) @ w), (X, W), 2, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """The interpreter's bits in the expected number of launches and temporaries."""
    function, arguments, expected, temps = PROGRAMS[name]
    plan = check(function, *arguments)
    assert (launches(plan), temporaries(plan)) == (expected, temps), plan.text()


def test_products_that_may_run_on_tiles() -> None:
    """Their factors are arrays, on every machine: plans do not depend on it."""
    arrays = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (X, W)]
    plan = check(lambda x, w: relu(x) @ w, *arrays)
    assert (launches(plan), temporaries(plan)) == (2, 1)


def test_threads_and_recordings() -> None:
    """Recorded as op by op, on one thread as on several, gradients too."""

    def step(x: Any, w: Any, mask: Any) -> Any:
        y = ((x * mask) @ (w * 0.5)).relu()
        return (y, *kiln.autograd.grad((y * y).sum(), [x, w]))

    run = recorded(step)
    x, w = (kiln.tensor(normal(*s), requires_grad=True) for s in ((300, 70), (70, 90)))
    mask = kiln.tensor(normal(300, 70, seed=3)) > 0
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
