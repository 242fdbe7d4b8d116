"""Calls of functions of matrices that no sample of the table makes, found by mutants that no check had seen
(kiln/testing/mutation_scan.py): against NumPy, eagerly and recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln
from test_call_forms import CUBE, ROW, X, check_calls, norm_of

Call = tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any]]


def norm_of64(order: float) -> Callable[..., Any]:
    return lambda x: norm_of(order)(x.astype("float64"))


def least_squares(a: Any, b: Any) -> Any:
    return np.linalg.lstsq(a, b, None)[0]


SQUARE = np.array([[4.0, 1.0, 0.0, 2.0], [0.0, 3.0, 1.0, 1.0], [1.0, 0.0, 5.0, 0.0], [2.0, 1.0, 0.0, 4.0]])
FLAT = np.diag([4.0, 2.0, 1.0]) @ np.linalg.qr(X[:3])[0]  # singular values 4, 2, 1
SINGULAR = np.array([[[4.0, 1.0], [0.0, 3.0]], [[1.0, 1.0], [1.0, 1.0]]])  # the second

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
    "linalg.pinv": [
        ((FLAT,), lambda f, x: f(x), np.linalg.pinv),
        ((FLAT,), lambda f, x: f(x, 0.6), lambda x: np.linalg.pinv(x, 0.6)),
        ((FLAT,), lambda f, x: f(x, rtol=0.6), lambda x: np.linalg.pinv(x, 0.6)),
        ((FLAT,), lambda f, x: f(x, 0.0, rtol=0.6), lambda x: np.linalg.pinv(x, 0.6)),
        ((FLAT,), lambda f, x: f(x, atol=2.5), lambda x: np.linalg.pinv(x, 2.5 / np.linalg.norm(x, 2))),
        (
            (np.array([[2.0, 9.0, 9.0], [1.0, 3.0, 9.0], [0.5, -1.0, 4.0]]),),
            lambda f, x: f(x, hermitian=True),
            lambda x: np.linalg.inv(np.tril(x) + np.tril(x, -1).T),
        ),
    ],
    "linalg.solve": [
        ((SQUARE, X), lambda f, a, b: f(a, b), np.linalg.solve),
        ((SQUARE, X[:, 0]), lambda f, a, b: f(a, b), np.linalg.solve),
        (
            (np.stack([SQUARE, SQUARE.T]), X[:, :2].T),
            lambda f, a, b: f(a, b),
            lambda a, b: np.linalg.solve(a, b[..., None])[..., 0],
        ),
        (
            (np.stack([SQUARE, SQUARE.T]), X),
            lambda f, a, b: f(a, b),
            lambda a, b: np.linalg.solve(a, np.stack([b, b])),
        ),
    ],
    "linalg.lstsq": [
        *(
            ((X, b), lambda f, a, b, driver=driver: f(a, b, driver=driver)[0], least_squares)
            for driver in (None, "gels", "gelsd", "gelsy", "gelss")
            for b in (X[:, ::-1] + 1, CUBE[0].T[:, :1])
        ),
        ((X.T, X[:3]), lambda f, a, b: f(a, b, driver="gels")[0], least_squares),
        ((X[:0], X[:0]), lambda f, a, b: f(a, b)[0], lambda a, b: np.zeros((3, 3))),
    ],
    "linalg.vector_norm": [
        ((ROW.astype("float32"),), lambda f, x: f(x, 3, dtype=kiln.float64), norm_of64(3)),
        ((CUBE,), lambda f, x: f(x, 1, (0, 2), True), norm_of(1, (0, 2), True)),
    ],
    "ormqr": [
        (
            (CUBE + 9 * np.eye(3, 4), CUBE),
            lambda f, x, y: f(*kiln.geqrf(x), y),
            lambda x, y: np.linalg.qr(x, "complete")[0] @ y,
        ),
        (
            (X, X[:, :1]),
            lambda f, x, y: f(*kiln.geqrf(x), y, transpose=True),
            lambda x, y: np.linalg.qr(x, "complete")[0].T @ y,
        ),
    ],
    "linalg.lu_factor_ex": [
        ((np.zeros((2, *size)),), lambda f, x: f(x)[2], lambda x: np.zeros(2, "int32"))
        for size in ((0, 0), (0, 3), (3, 0))
    ],
    "linalg.solve_ex": [
        ((SINGULAR, X[:2, 0]), lambda f, a, b: f(a, b)[0][0], lambda a, b: np.linalg.solve(a[0], b)),
        ((SINGULAR, X[:2]), lambda f, a, b: f(a, b)[0][0], lambda a, b: np.linalg.solve(a[0], b)),
        ((SINGULAR[1], X[:2, 0]), lambda f, a, b: f(a, b)[0], lambda a, b: np.full(2, np.nan)),
        ((SINGULAR[1], X[:2]), lambda f, a, b: f(a, b)[0], lambda a, b: np.full((2, 3), np.nan)),
    ],
    "linalg.cond": [
        *(
            (
                (SINGULAR,),
                lambda f, x, p=p: f(x, p),
                lambda x, p=p: np.array([np.linalg.cond(x[0], p), np.inf]),
            )
            for p in (1, -1, np.inf, -np.inf, "fro", "nuc")
        ),
        ((X[:1, :1],), lambda f, x: f(x), lambda x: np.array(1.0)),
        ((np.zeros((2, 0, 0)),), lambda f, x: f(x), lambda x: np.zeros(2)),
    ],
}


@needs_kiln
@pytest.mark.parametrize("name", CALLS)
def test_more_calls(name: str) -> None:
    """Dtype, shape and values as NumPy's."""
    check_calls(name, CALLS[name])
