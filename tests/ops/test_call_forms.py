"""Public functions that stand before an op of their name, which the table's grid calls in their place: every
way of giving their arguments against NumPy, eagerly and recorded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln.testing.compare import close, dtype_name, to_array
from kiln.testing.op_cases import results_of


def norm_of(order: float, axis: Any = None, keepdims: bool = False) -> Callable[..., Any]:
    def reference(x: Any) -> Any:
        if order == np.inf:
            return abs(x).max(axis, keepdims=keepdims)
        if order == 0:
            return (x != 0).sum(axis, keepdims=keepdims).astype(x.dtype)
        return (abs(x) ** order).sum(axis, keepdims=keepdims) ** (1 / order)

    return reference


def scattered(x: Any, index: Any, y: Any) -> Any:
    out = x.copy()
    for row, col in np.ndindex(index.shape):
        out[index[row, col], col] += y[row, col]
    return out


X = np.random.default_rng(1).normal(size=(4, 3))
Y = np.random.default_rng(2).uniform(0.5, 2.0, size=(4, 3))
ROW = np.array([0.5, -1.5, 2.0])
FACTOR = np.tril(np.random.default_rng(3).normal(size=(4, 4)), -1) + 2 * np.eye(4)
TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, -1.0, -1.0]])
CUBE = np.arange(24.0).reshape(2, 3, 4)
PLACES = np.array([[0, 2, 1], [3, 0, 0]])
LABELS = np.array([2, 0, 1, 2])
MASK = np.array([[True, False, True]])
INTS = np.array([[7, -7, 5], [-5, 9, 4]])
# name -> (arrays, a call of the function f with them, what NumPy makes of them)
CALLS: dict[str, list[tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any]]]] = {
    "add": [
        ((X, ROW), lambda f, x, y: f(x, y), lambda x, y: x + y),
        ((X, ROW), lambda f, x, y: f(input=x, other=y, alpha=1), lambda x, y: x + y),
        ((X, ROW), lambda f, x, y: f(x, y, alpha=2.5), lambda x, y: x + 2.5 * y),
        ((INTS,), lambda f, x: f(x, 2, alpha=3), lambda x: x + 6),
    ],
    "sub": [
        ((X, ROW), lambda f, x, y: f(x, other=y), lambda x, y: x - y),
        ((X, ROW), lambda f, x, y: f(x, y, alpha=-2), lambda x, y: x + 2 * y),
        ((INTS,), lambda f, x: f(x, 2, alpha=3), lambda x: x - 6),
    ],
    "div": [
        ((X, Y), lambda f, x, y: f(x, other=y), lambda x, y: x / y),
        ((X, Y), lambda f, x, y: f(x, y, rounding_mode=None), lambda x, y: x / y),
        ((X * 9, Y), lambda f, x, y: f(x, y, rounding_mode="trunc"), lambda x, y: np.trunc(x / y)),
        ((X * 9, Y), lambda f, x, y: f(x, y, rounding_mode="floor"), lambda x, y: np.floor(x / y)),
        ((INTS,), lambda f, x: f(x, 4, rounding_mode="floor"), lambda x: x // 4),
        ((INTS,), lambda f, x: f(x, 4, rounding_mode="trunc"), lambda x: np.trunc(x / 4).astype(x.dtype)),
    ],
    "pow": [
        ((Y, ROW), lambda f, x, y: f(x, exponent=y), lambda x, y: x**y),
        ((ROW,), lambda f, x: f(2.5, x), lambda x: 2.5**x),
        *(((Y,), lambda f, x, n=n: f(x, n), lambda x, n=n: x**n) for n in (0, 1, 2, 3, -1, 0.5, -0.5, 2.0)),
        ((INTS,), lambda f, x: f(x, 2), lambda x: x**2),
        ((INTS,), lambda f, x: f(x, 3), lambda x: x**3),
    ],
    "where": [
        ((MASK, X, ROW), lambda f, c, x, y: f(c, input=x, other=y), np.where),
        ((MASK, X), lambda f, c, x: f(c, x, -1.0), lambda c, x: np.where(c, x, -1.0)),
        ((INTS - 5,), lambda f, x: f(x), lambda x: np.nonzero(x)),
    ],
    "clamp": [
        ((X,), lambda f, x: f(x, -0.5, 0.25), lambda x: np.clip(x, -0.5, 0.25)),
        ((X,), lambda f, x: f(x, 0.25, -0.5), lambda x: np.full_like(x, -0.5)),
        ((X,), lambda f, x: f(x, min=-0.5), lambda x: np.maximum(x, -0.5)),
        ((X,), lambda f, x: f(x, max=0.25), lambda x: np.minimum(x, 0.25)),
        ((X, ROW), lambda f, x, y: f(x, max=y), np.minimum),
        ((X, ROW), lambda f, x, y: f(x, min=y), np.maximum),
        ((X, ROW), lambda f, x, y: f(x, min=y, max=1.0), lambda x, y: np.minimum(np.maximum(x, y), 1.0)),
    ],
    "round": [
        ((X * 9,), lambda f, x: f(input=x), np.round),
        ((X,), lambda f, x: f(x, decimals=2), lambda x: np.round(x, 2)),
        ((X * 99,), lambda f, x: f(x, decimals=-1), lambda x: np.round(x, -1)),
        ((np.array([0.5, 1.5, -2.5]),), lambda f, x: f(x, decimals=0), lambda x: np.array([0.0, 2.0, -2.0])),
    ],
    "clone": [
        ((X,), lambda f, x: f(x), lambda x: x),
        ((X,), lambda f, x: f(x.t(), memory_format=kiln.contiguous_format), lambda x: x.T),
    ],
    "detach": [((X,), lambda f, x: f(x), lambda x: x)],
    "reshape": [
        ((CUBE,), lambda f, x: f(x, (4, -1)), lambda x: x.reshape(4, 6)),
        ((CUBE,), lambda f, x: f(x.transpose(0, 2), shape=(2, 12)), lambda x: x.transpose().reshape(2, 12)),
    ],
    "permute": [
        ((CUBE,), lambda f, x: f(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
        ((CUBE,), lambda f, x: f(x, dims=(-1, 1, 0)), lambda x: x.transpose(2, 1, 0)),
    ],
    "expand": [
        ((ROW,), lambda f, x: f(x, (2, 3)), lambda x: np.stack([x, x])),
        ((X[:1],), lambda f, x: f(x, (2, -1)), lambda x: np.concatenate([x, x])),
    ],
    "stack": [
        ((ROW, ROW + 1), lambda f, x, y: f([x, y]), lambda x, y: np.stack([x, y])),
        ((X, X * 2), lambda f, x, y: f((x, y), dim=-1), lambda x, y: np.stack([x, y], -1)),
    ],
    "as_strided": [
        ((CUBE,), lambda f, x: f(x, (2, 3), (5, 2)), lambda x: x.ravel()[[[0, 2, 4], [5, 7, 9]]]),
        ((CUBE,), lambda f, x: f(x, (2,), (3,), 7), lambda x: x.ravel()[[7, 10]]),
    ],
    "full": [((), lambda f: f((2, 3), 1.5, dtype=kiln.float64), lambda: np.full((2, 3), 1.5))],
    "amax": [
        ((TIES,), lambda f, x: f(x), lambda x: x.max()),
        ((CUBE,), lambda f, x: f(x, (0, -1)), lambda x: x.max((0, 2))),
        ((TIES,), lambda f, x: f(x, dim=1, keepdim=True), lambda x: x.max(1, keepdims=True)),
    ],
    "amin": [
        ((TIES,), lambda f, x: f(x), lambda x: x.min()),
        ((CUBE,), lambda f, x: f(x, (0, -1)), lambda x: x.min((0, 2))),
        ((TIES,), lambda f, x: f(x, dim=1, keepdim=True), lambda x: x.min(1, keepdims=True)),
    ],
    "argmax": [
        ((TIES,), lambda f, x: f(x), lambda x: x.argmax()),
        ((TIES,), lambda f, x: f(x, 1), lambda x: x.argmax(1)),
        ((TIES,), lambda f, x: f(x, dim=0, keepdim=True), lambda x: x.argmax(0)[None]),
        ((TIES,), lambda f, x: f(x, keepdim=True), lambda x: x.argmax()[None, None]),
    ],
    "argmin": [
        ((TIES,), lambda f, x: f(x), lambda x: x.argmin()),
        ((TIES,), lambda f, x: f(x, 1), lambda x: x.argmin(1)),
        ((TIES,), lambda f, x: f(x, dim=0, keepdim=True), lambda x: x.argmin(0)[None]),
        ((TIES,), lambda f, x: f(x, keepdim=True), lambda x: x.argmin()[None, None]),
    ],
    "gather": [
        ((X, PLACES), lambda f, x, i: f(x, 0, i), lambda x, i: np.take_along_axis(x, i, 0)),
        (
            (CUBE[0], PLACES),
            lambda f, x, i: f(x[:2], 1, index=i),
            lambda x, i: np.take_along_axis(x[:2], i, 1),
        ),
    ],
    "scatter_add": [((X, PLACES, Y[:2]), lambda f, x, i, y: f(x, 0, i, y), scattered)],
    "one_hot": [
        ((LABELS,), lambda f, x: f(x), lambda x: np.eye(3, dtype="int64")[x]),
        ((LABELS,), lambda f, x: f(x, 5), lambda x: np.eye(5, dtype="int64")[x]),
        ((LABELS,), lambda f, x: f(x, num_classes=3), lambda x: np.eye(3, dtype="int64")[x]),
    ],
    "norm": [
        *(((X,), lambda f, x, p=p: f(x, p), norm_of(p)) for p in (1, 2, 3, np.inf)),
        ((X,), lambda f, x: f(x), norm_of(2)),
        ((X,), lambda f, x: f(x, "fro", (0, 1)), norm_of(2)),
        ((X,), lambda f, x: f(x, 3, 1), norm_of(3, 1)),
        ((X,), lambda f, x: f(x, p=1, dim=0, keepdim=True), norm_of(1, 0, True)),
        ((TIES,), lambda f, x: f(x, 0, 1), norm_of(0, 1)),
    ],
    "diagonal": [
        ((X,), lambda f, x: f(x), np.diagonal),
        ((X,), lambda f, x: f(x, 1), lambda x: np.diagonal(x, 1)),
        ((X,), lambda f, x: f(x, offset=-2), lambda x: np.diagonal(x, -2)),
        ((CUBE,), lambda f, x: f(x, -1, 2, 0), lambda x: np.diagonal(x, -1, 2, 0)),
    ],
    "unfold": [
        (
            (CUBE,),
            lambda f, x: f(x, 2, 3, 1),
            lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2),
        ),
        (
            (CUBE,),
            lambda f, x: f(x, -1, 2, step=2),
            lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 2)[:, :, ::2],
        ),
    ],
    "flip": [
        ((CUBE,), lambda f, x: f(x, (0, -1)), lambda x: np.flip(x, (0, 2))),
        ((CUBE,), lambda f, x: f(x, dims=(1,)), lambda x: np.flip(x, 1)),
    ],
    "cholesky_solve": [
        ((X, FACTOR), lambda f, b, c: f(b, c), lambda b, c: np.linalg.solve(c @ c.T, b)),
        ((X, FACTOR), lambda f, b, c: f(b, L=c.mT, upper=True), lambda b, c: np.linalg.solve(c @ c.T, b)),
    ],
    "roll": [
        ((CUBE,), lambda f, x: f(x, 5), lambda x: np.roll(x, 5)),
        ((CUBE,), lambda f, x: f(x, -1, 2), lambda x: np.roll(x, -1, 2)),
        ((CUBE,), lambda f, x: f(x, shifts=(1, 3), dims=(0, 2)), lambda x: np.roll(x, (1, 3), (0, 2))),
    ],
    "select": [((CUBE,), lambda f, x: f(x, -1, 1), lambda x: x[..., 1])],
    "unbind": [((X,), lambda f, x: f(x, dim=1), lambda x: tuple(x.T))],
    "split": [((X,), lambda f, x: f(x, [1, x.shape[0] - 1]), lambda x: (x[:1], x[1:]))],
    "split_with_sizes": [((X,), lambda f, x: f(x, [1, x.shape[0] - 1]), lambda x: (x[:1], x[1:]))],
    **{
        name: [
            ((X,), lambda f, x: f(x), lambda x, of=of: of(x, ddof=1)),
            ((X,), lambda f, x: f(x, 1), lambda x, of=of: of(x, 1, ddof=1)),
            ((X,), lambda f, x: f(x, False), lambda x, of=of: of(x)),
            ((X,), lambda f, x: f(x, 0, False, True), lambda x, of=of: of(x, 0, keepdims=True)),
            ((CUBE,), lambda f, x: f(x, (0, 2), correction=2), lambda x, of=of: of(x, (0, 2), ddof=2)),
            (
                (X,),
                lambda f, x: f(x, dim=-1, correction=0, keepdim=True),
                lambda x, of=of: of(x, 1, keepdims=True),
            ),
        ]
        for name, of in (("var", np.var), ("std", np.std))
    },
}


def registry() -> Any:
    importlib.import_module("kiln.table.record").table()
    return importlib.import_module("kiln.table.registry")


@needs_kiln
def test_every_form_has_calls() -> None:
    """An op's public function of its name is the op itself, or has calls here."""
    known = registry()
    others = {n for n, op in known.OPS.items() if known.FUNCTIONS.get(n, op.handle) is not op.handle}
    assert others - {"concat"} == set(CALLS)  # `concat` is another name of cat


def check_calls(name: str, calls: list[Any]) -> None:
    """Dtype, shape and values of calls of a public function, or of an op, as NumPy has them."""
    known = registry()
    function = known.FUNCTIONS[name] if name in known.FUNCTIONS else known.OPS[name].handle
    for number, (arrays, call, reference) in enumerate(calls):
        with np.errstate(all="ignore"):
            want = reference(*arrays)
        want = [np.asarray(y) for y in (want if isinstance(want, tuple) else (want,))]
        for way in (call, kiln.compile(call)):
            given = [kiln.from_numpy(np.array(x)) for x in arrays]
            got = results_of(way(function, *given))
            assert len(got) == len(want)
            for y, expected in zip(got, want):
                label = f"{name}, call {number}: {y} against {expected}"
                assert (dtype_name(y.dtype), tuple(y.shape)) == (expected.dtype.name, expected.shape), label
                assert close(to_array(y), expected, dtype_name(y.dtype)), label


@needs_kiln
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    """Whichever way the arguments are given."""
    check_calls(name, CALLS[name])
