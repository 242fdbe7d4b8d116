"""Calls of public functions that no sample of the table makes, found by mutants that no check had seen
(kiln/testing/mutation_scan.py): against NumPy, eagerly and recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln
from test_forms import CUBE, INTS, ROW, TIES, X, check_calls, norm_of

Call = tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any]]

POINT = np.array(2.5)


def norm_of64(order: float) -> Callable[..., Any]:
    return lambda x: norm_of(order)(x.astype("float64"))


def turned(k: int, *dims: int) -> Call:
    return (
        (CUBE,),
        lambda f, x: f(x, k, *((dims,) if dims else ())),
        lambda x: np.rot90(x, k, *((dims,) if dims else ())),
    )


CALLS: dict[str, list[Call]] = {
    "linalg.norm": [
        ((X,), lambda f, x: f(x, dim=(0, 1)), norm_of(2)),
        ((X,), lambda f, x: f(x, None, 1), norm_of(2, 1)),
        ((X,), lambda f, x: f(x, 3, [1], True), norm_of(3, 1, True)),
        ((X,), lambda f, x: f(x, np.inf, (0, 1)), lambda x: np.linalg.norm(x, np.inf)),
        ((CUBE,), lambda f, x: f(x, "fro", (0, 2), True), lambda x: np.linalg.norm(x, "fro", (0, 2), True)),
        ((ROW,), lambda f, x: f(x, 1), norm_of(1)),
        ((ROW.astype("float32"),), lambda f, x: f(x, dtype=kiln.float64), norm_of64(2)),
        ((ROW.astype("float32"),), lambda f, x: f(x, 3, 0, dtype=kiln.float64), norm_of64(3)),
    ],
    "rot90": [turned(k, *dims) for k in (-2, 0, 3, 4, 5) for dims in ((), (2, 0))],
    "unravel_index": [
        (
            (abs(INTS).astype("int32"),),
            lambda f, x: f(x, (2, 3, 4)),
            lambda x: np.unravel_index(x, (2, 3, 4)),
        ),
        ((abs(INTS),), lambda f, x: f(x, 20), lambda x: np.unravel_index(x, 20)),
    ],
    **{
        name: [
            ((TIES,), lambda f, x: f(x), lambda x, of=of: of(x)),
            (
                (TIES,),
                lambda f, x: f(x, 1, True),
                lambda x, of=of, at=at: (of(x, 1)[:, None], at(x, 1)[:, None]),
            ),
            ((TIES,), lambda f, x: f(x, dim=0), lambda x, of=of, at=at: (of(x, 0), at(x, 0))),
            ((POINT,), lambda f, x: f(x, 0), lambda x: (x, np.array(0))),
            ((POINT,), lambda f, x: f(x, -1, True), lambda x: (x, np.array(0))),
            ((X, ROW), lambda f, x, y: f(x, y), pair),
            ((X, ROW), lambda f, x, y: f(x, other=y), pair),
        ]
        for name, of, at, pair in (
            ("max", np.max, np.argmax, np.maximum),
            ("min", np.min, np.argmin, np.minimum),
        )
    },
    "sort": [((POINT,), lambda f, x: f(x), lambda x: (x, np.array(0)))],
    "argsort": [((POINT,), lambda f, x: f(x), lambda x: np.array(0))],
    "topk": [((POINT,), lambda f, x: f(x, 1), lambda x: (x, np.array(0)))],
    "kthvalue": [((POINT,), lambda f, x: f(x, 1), lambda x: (x, np.array(0)))],
    "median": [
        ((np.array([1.0, np.nan, 0.0]),), lambda f, x: f(x), lambda x: np.array(np.nan)),
        (
            (np.array([[1.0, np.nan], [2.0, 0.0]]),),
            lambda f, x: f(x, 1)[0],
            lambda x: np.array([np.nan, 0.0]),
        ),
    ],
    "slice_scatter": [
        ((CUBE, -CUBE[:1]), lambda f, x, y: f(x, y, start=1), lambda x, y: np.stack([x[0], -x[0]])),
        ((X, X[:0]), lambda f, x, y: f(x, y, 0, 2, 1), lambda x, y: x),
    ],
}


@needs_kiln
@pytest.mark.parametrize("name", CALLS)
def test_more_calls(name: str) -> None:
    """Dtype, shape and values as NumPy's."""
    check_calls(name, CALLS[name])


SHAPES = ((2, 3, 4), (4, 1, 6), (24,), (0, 3))
VIEWS = (
    (24,),
    (6, 4),
    (2, 12),
    (3, 8),
    (2, 3, 4),
    (4, 6),
    (1, 24),
    (4, 3, 2),
    (8, 3),
    (0,),
    (3, 0),
    (1,),
    (2, 2, 6),
)


@needs_kiln
def test_view_of_other_layouts() -> None:
    """`view` succeeds where NumPy changes the shape without a copy, and gives what it shows."""
    for shape in SHAPES:
        base = np.arange(float(np.prod(shape))).reshape(shape)
        for order, step, size in itertools.product(itertools.permutations(range(len(shape))), (1, 2), VIEWS):
            array = base.transpose(order)[::step]
            tensor = kiln.from_numpy(base).permute(order)[::step]
            if np.prod(size) != array.size:
                continue
            seen = array.reshape(size)
            if array.size and not np.shares_memory(seen, array):
                with pytest.raises(RuntimeError, match="not compatible with input tensor's size and stride"):
                    tensor.view(size)
            else:
                assert tensor.view(size).tolist() == seen.tolist(), (shape, order, step, size)
