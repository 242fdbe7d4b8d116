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
from test_call_forms import CUBE, INTS, ROW, TIES, X, Y, check_calls, norm_of

Call = tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any]]

POINT = np.array(2.5)


def rotated(k: int, *dims: int) -> Call:
    return (
        (CUBE,),
        lambda f, x: f(x, k, *((dims,) if dims else ())),
        lambda x: np.rot90(x, k, *((dims,) if dims else ())),
    )


def cosines(count: int, alpha: float, beta: float) -> Any:
    return alpha - beta * np.cos(2 * np.pi * np.arange(count) / count)


def ij(x: Any, y: Any) -> Any:
    return tuple(np.meshgrid(x, y, indexing="ij"))


def bits(x: Any, dtype: str) -> Any:
    """What a float result is to the last bit."""
    return x.view(getattr(kiln, dtype)) if hasattr(x, "requires_grad") else x.view(dtype)


def edges(dtype: str) -> Any:
    """Floats at which the next one is made in another way, each with each."""
    info = np.finfo(dtype)
    some = [0.0, -0.0, 1.0, -1.0, 1.5, -2.0, np.inf, -np.inf, info.max, -info.max, info.tiny, -info.tiny]
    some += [
        float(info.smallest_subnormal),
        -float(info.smallest_subnormal),
        3.0 * float(info.smallest_subnormal),
    ]
    some += [np.nextafter(np.array(info.tiny, dtype), np.array(x, dtype)) for x in (0, 1)]
    values = np.array(some, dtype)
    return tuple(np.ascontiguousarray(x) for x in np.meshgrid(values, values))


def log_slopes(x: Any, y: Any) -> Any:
    """The gradients of x log(1 + y) but for the first element."""
    return np.where(x == 0, 0, np.log1p(abs(y))), np.where(x == 0, 0, x / (1 + abs(y)))


def polynomial(kind: str, x: Any, n: Any) -> Any:
    """Chebyshev's of four kinds, by the recurrence that they share."""
    before, last = np.ones_like(x), {"t": x, "u": 2 * x, "v": 2 * x - 1, "w": 2 * x + 1}[kind]
    found = np.where(n == 0, before, 0.0)
    for k in range(1, int(n.max()) + 1):
        found = np.where(n == k, last, found)
        before, last = last, 2 * x * last - before
    return found


def slopes(program: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a function's sum by all its float arguments."""

    def call(f: Any, *tensors: Any) -> Any:
        leaves = [t.detach().requires_grad_() for t in tensors]
        return kiln.autograd.grad(program(f, *leaves).sum(), leaves)

    return call


def bend(program: Callable[..., Any]) -> Callable[..., Any]:
    """The second derivative of a function of one array, element by element."""

    def call(f: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        (slope,) = kiln.autograd.grad(program(f, x).sum(), x, create_graph=True)
        return kiln.autograd.grad(slope.sum(), x)

    return call


def normalized(x: Any, mean: Any, var: Any) -> Any:
    """instance_norm in training with a momentum of 0.3: its result and the new statistics."""
    m, v = x.mean(2), x.var(2)
    unbiased = x.var(2, ddof=1).mean(0)
    y = (x - m[..., None]) / np.sqrt(v + 1e-5)[..., None]
    return y, 0.7 * mean + 0.3 * m.mean(0), 0.7 * var + 0.3 * unbiased


def logits_loss(x: Any, y: Any, weight: Any = 1.0, positive: Any = 1.0) -> Any:
    """-(positive y log(p) + (1 - y) log(1 - p)) of p = 1 / (1 + exp(-x)), times the weight."""
    p = 1 / (1 + np.exp(-x))
    return -weight * (positive * y * np.log(p) + (1 - y) * np.log(1 - p))


def likelihood(x: Any, labels: Any, weight: Any, ignored: int = -100) -> Any:
    """The weighted mean of -x at the labels, (n, c, d) and (n, d)."""
    total = weights = 0.0
    for n, place in np.ndindex(labels.shape):
        label = labels[n, place]
        if label != ignored:
            total, weights = total - weight[label] * x[n, label, place], weights + weight[label]
    return np.array(total / weights)


def distances(p: float) -> Callable[..., Any]:
    return lambda x, y: (abs(x[:, None] - y[None]) ** p).sum(-1) ** (1 / p)


def reduced(how: Any, own: bool) -> Callable[..., Any]:
    """Elements of a vector joined with those of another that go to their places."""

    def reference(x: Any, index: Any, y: Any) -> Any:
        parts = [([x[k]] if own else []) + list(y[index == k]) for k in range(len(x))]
        return np.array([how(p) if p else x[k] for k, p in enumerate(parts)], x.dtype)

    return reference


def at_places(x: Any, y: Any, places: Any) -> Any:
    """x with y at places of its memory."""
    memory = x.ravel().copy()
    memory[places] = y
    return memory.reshape(x.shape)


def single(x: Any) -> Any:
    return x.astype("float32")


TARGET = np.linspace(0.0, 1.0, 12).reshape(4, 3)
W = Y[::-1] + 0.25
SQUARE = np.array([[4.0, 1.0, 0.0, 2.0], [0.0, 3.0, 1.0, 1.0], [1.0, 0.0, 5.0, 0.0], [2.0, 1.0, 0.0, 4.0]])

CALLS: dict[str, list[Call]] = {
    "rot90": [rotated(k, *dims) for k in (-2, 0, 3, 4, 5) for dims in ((), (2, 0))],
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
    "hann_window": [
        ((), lambda f: f(8, False, dtype=kiln.float64), lambda: np.hanning(8)),
        ((), lambda f: f(8, dtype=kiln.float64), lambda: np.hanning(9)[:8]),
        ((), lambda f: f(1, False, dtype=kiln.float64), lambda: np.ones(1)),
        ((), lambda f: f(0, dtype=kiln.float64), lambda: np.ones(0)),
        ((), lambda f: f(2, False, dtype=kiln.float64), lambda: np.zeros(2)),
    ],
    "hamming_window": [
        ((), lambda f: f(8, False, dtype=kiln.float64), lambda: np.hamming(8)),
        ((), lambda f: f(8, True, 0.7, 0.2, dtype=kiln.float64), lambda: cosines(8, 0.7, 0.2)),
        ((), lambda f: f(8, beta=0.1, dtype=kiln.float64), lambda: cosines(8, 0.54, 0.1)),
    ],
    "blackman_window": [((), lambda f: f(8, False, dtype=kiln.float64), lambda: np.blackman(8))],
    "bartlett_window": [((), lambda f: f(8, False, dtype=kiln.float64), lambda: np.bartlett(8))],
    "kaiser_window": [
        ((), lambda f: f(8, False, dtype=kiln.float64), lambda: np.kaiser(8, 12.0)),
        ((), lambda f: f(8, False, beta=3.0, dtype=kiln.float64), lambda: np.kaiser(8, 3.0)),
    ],
    "logspace": [
        ((), lambda f: f(0.5, 2, 4, dtype=kiln.float64), lambda: np.logspace(0.5, 2, 4)),
        ((), lambda f: f(-1, 2, 4, 2, dtype=kiln.float64), lambda: np.logspace(-1, 2, 4, base=2)),
        ((), lambda f: f(0, 1, 0), lambda: np.zeros(0, "float32")),
    ],
    "gather": [
        ((POINT, np.array(0)), lambda f, x, i: f(x, 0, i), lambda x, i: x),
        ((POINT, np.array([0, 0])), lambda f, x, i: f(x, 0, i), lambda x, i: np.stack([x, x])),
        ((ROW, np.array(2)), lambda f, x, i: f(x, 0, i), lambda x, i: x[2]),
        ((X, np.zeros((0, 3), "int64")), lambda f, x, i: f(x, 0, i), lambda x, i: x[:0]),
    ],
    "scatter_add": [
        ((POINT, np.array(0), POINT), lambda f, x, i, y: f(x, 0, i, y), lambda x, i, y: x + y),
        ((ROW, np.array(2), ROW), lambda f, x, i, y: f(x, 0, i, y), lambda x, i, y: x + [0.0, 0.0, 0.5]),
        ((X, np.zeros((0, 3), "int64"), X), lambda f, x, i, y: f(x, 0, i, y), lambda x, i, y: x),
    ],
    "scatter": [
        ((POINT, np.array(0), ROW[:1]), lambda f, x, i, y: f(x, 0, i, y[0]), lambda x, i, y: y[0]),
        (
            (ROW, np.array(1), POINT),
            lambda f, x, i, y: f(x, 0, i, y),
            lambda x, i, y: np.array([0.5, 2.5, 2.0]),
        ),
    ],
    "index_add": [
        ((POINT, np.array(0), ROW[:1]), lambda f, x, i, y: f(x, 0, i, y[0]), lambda x, i, y: x + y[0]),
        ((ROW, np.array(1), POINT), lambda f, x, i, y: f(x, 0, i, y), lambda x, i, y: x + [0.0, 2.5, 0.0]),
    ],
    "index_copy": [
        ((POINT, np.array(0), ROW[:1]), lambda f, x, i, y: f(x, 0, i, y[0]), lambda x, i, y: y[0])
    ],
    "index_fill": [((POINT, np.array(0)), lambda f, x, i: f(x, 0, i, -1.0), lambda x, i: np.array(-1.0))],
    "pad": [
        ((X,), lambda f, x: f(x, (1, 2)), lambda x: np.pad(x, ((0, 0), (1, 2)))),
        (
            (X,),
            lambda f, x: f(x, (1, 0, 0, 2), value=-1.5),
            lambda x: np.pad(x, ((0, 2), (1, 0)), constant_values=-1.5),
        ),
        ((X,), lambda f, x: f(x, (2, 1), "circular"), lambda x: np.pad(x, ((0, 0), (2, 1)), "wrap")),
        ((X,), lambda f, x: f(x, (-1, 1), "circular"), lambda x: np.pad(x[:, 1:], ((0, 0), (0, 1)), "wrap")),
        ((X,), lambda f, x: f(x, (2, 1), "reflect"), lambda x: np.pad(x, ((0, 0), (2, 1)), "reflect")),
        (
            (X,),
            lambda f, x: f(x, (2, -1), "reflect"),
            lambda x: np.pad(x, ((0, 0), (2, 0)), "reflect")[:, :-1],
        ),
        ((X,), lambda f, x: f(x, (0, -1), "reflect"), lambda x: x[:, :-1]),
        (
            (CUBE,),
            lambda f, x: f(x, (1, 0, 2, 1), "replicate"),
            lambda x: np.pad(x, ((0, 0), (2, 1), (1, 0)), "edge"),
        ),
        ((X,), lambda f, x: f(x, (0, 0), "replicate"), lambda x: x),
        ((ROW,), lambda f, x: f(x, (-1, 0)), lambda x: x[1:]),
        ((ROW,), lambda f, x: f(x, (-1, 2)), lambda x: np.pad(x[1:], (0, 2))),
    ],
    "cross": [
        ((X, ROW[None]), lambda f, x, y: f(x, y), np.cross),
        ((X.T, X.T[::-1]), lambda f, x, y: f(x, y), lambda x, y: np.cross(x, y, axis=0)),
        ((X.T, X.T[::-1]), lambda f, x, y: f(x, y, dim=0), lambda x, y: np.cross(x, y, axis=0)),
    ],
    "normalize": [
        ((X,), lambda f, x: f(x), lambda x: x / norm_of(2, 1, True)(x)),
        ((X,), lambda f, x: f(x, 1, 0, 99.0), lambda x: x / 99.0),
    ],
    **{
        name: [
            (
                (X, Y, W),
                lambda f, x, y, w: f(x, y, weight=w),
                lambda x, y, w, of=of: np.average(of(x - y), weights=w),
            ),
            ((X, Y, W), lambda f, x, y, w: f(x, y, "sum", w), lambda x, y, w, of=of: (of(x - y) * w).sum()),
            (
                (X, Y, W),
                lambda f, x, y, w: f(x, y, reduction="none", weight=w),
                lambda x, y, w, of=of: of(x - y) * w,
            ),
        ]
        for name, of in (("mse_loss", np.square), ("l1_loss", np.abs))
    },
    "linear": [
        ((X, ROW), lambda f, x, w: f(x, w), lambda x, w: x @ w),
        ((X, X[:2]), lambda f, x, w: f(x, w), lambda x, w: x @ w.T),
        ((ROW, X, SQUARE[0]), lambda f, x, w, b: f(x, w, b), lambda x, w, b: x @ w.T + b),
        ((CUBE, SQUARE, SQUARE[:3]), lambda f, x, w, b: f(x, w, b), lambda x, w, b: x @ w.T + b),
        ((CUBE, SQUARE, CUBE[:, :1]), lambda f, x, w, b: f(x, w, b), lambda x, w, b: x @ w.T + b),
    ],
    "threshold": [
        ((INTS,), lambda f, x: f(x, 4, -3), lambda x: np.where(x > 4, x, -3)),
        ((X,), lambda f, x: f(x, 0.25, -3.5), lambda x: np.where(x > 0.25, x, -3.5)),
    ],
    "hardtanh": [
        ((INTS,), lambda f, x: f(x, -2, 5), lambda x: np.clip(x, -2, 5)),
        ((X,), lambda f, x: f(x, max_val=0.25), lambda x: np.clip(x, -1, 0.25)),
    ],
    "hstack": [
        ((POINT, ROW), lambda f, x, y: f([x, y]), lambda x, y: np.hstack([x, y])),
        ((ROW, ROW), lambda f, x, y: f((x, y)), lambda x, y: np.hstack([x, y])),
        ((X, X[:, :1]), lambda f, x, y: f((x, y)), lambda x, y: np.hstack([x, y])),
        ((CUBE, CUBE), lambda f, x, y: f((x, y)), lambda x, y: np.hstack([x, y])),
    ],
    "meshgrid": [
        ((ROW, X[:, 0]), lambda f, x, y: f(x, y, indexing="ij"), ij),
        ((ROW, X[:, 0]), lambda f, x, y: f([x, y], indexing="ij"), ij),
        ((ROW, X[:, 0]), lambda f, x, y: f((x, y), indexing="xy"), lambda x, y: tuple(np.meshgrid(x, y))),
        ((ROW,), lambda f, x: f(x, indexing="xy"), lambda x: x),
        ((ROW,), lambda f, x: f([x], indexing="ij"), lambda x: x),
        ((ROW, POINT), lambda f, x, y: f(x, y, indexing="xy"), lambda x, y: tuple(np.meshgrid(x, y))),
        (
            (ROW, X[:, 0], X[0, :2]),
            lambda f, x, y, z: f(x, y, z, indexing="xy"),
            lambda x, y, z: tuple(np.meshgrid(x, y, z)),
        ),
    ],
    "neighbour": [
        (
            edges(dtype),
            lambda f, x, y, t=dtype, i=whole: bits(f(x, y, t), i),
            lambda x, y, i=whole: bits(np.where(x == y, y, np.nextafter(x, y)), i),
        )
        for dtype, whole in (("float16", "int16"), ("float32", "int32"), ("float64", "int64"))
    ],
    "mantissa_of": [
        ((edges(t)[0][0],), lambda f, x: f(x), lambda x: np.frexp(x)[0]) for t in ("float32", "float64")
    ],
    "exponent_of": [
        ((x[np.isfinite(x)],), lambda f, x: f(x, "int32"), lambda x: np.frexp(x)[1])
        for x in (edges(t)[0][0] for t in ("float32", "float64"))
    ],
    "chebyshev": [
        (
            tuple(
                map(
                    np.ravel,
                    np.meshgrid(
                        [-1.5, -1.0, -0.7, 0.0, 0.3, 1.0, 1.2], [-1.0, 0.0, 1.0, 2.0, 7.0, 16.0, 25.0]
                    ),
                )
            ),
            lambda f, x, n, kind=kind: f(x, n, kind) / (1 + abs(x) * 1.5) ** n.clamp(0),
            lambda x, n, kind=kind: polynomial(kind, x, n) / (1 + abs(x) * 1.5) ** np.maximum(n, 0),
        )
        for kind in "tuvw"
    ],
    "replaced": [
        (
            (np.array([np.nan, np.inf, -np.inf, 2.0]),),
            lambda f, x: f(x, 0.5, 9.0, -7.0),
            lambda x: np.array([0.5, 9.0, -7.0, 2.0]),
        ),
        (
            (np.array([np.nan, np.inf, -np.inf, 2.0]),),
            slopes(lambda f, x: f(x, 0.5, 9.0, -7.0) * 3),
            lambda x: np.array([0.0, 0.0, 0.0, 3.0]),
        ),
    ],
    "root": [((np.array([0.0, 4.0]),), slopes(lambda f, x: f(x)), lambda x: np.array([0.0, 0.25]))],
    "sinc": [
        ((np.array([0.0, 1.0]),), slopes(lambda f, x: f(x)), lambda x: np.array([0.0, -1.0])),
        ((np.array([0.0, 1.0]),), bend(lambda f, x: f(x)), lambda x: np.array([-(np.pi**2) / 3, 2.0])),
    ],
    "xlog1py": [
        ((np.array([0.0, 2.0]), np.array([-1.0, 1.0])), slopes(lambda f, x, y: f(x[1:], y[1:])), log_slopes),
        (
            (np.array([0.0, 2.0]), np.array([-1.0, 1.0])),
            lambda f, x, y: slopes(lambda f, x: f(x, y))(f, x),
            lambda x, y: np.array([0.0, np.log(2.0)]),
        ),
    ],
    "binary_entropy": [
        (
            (np.array([0.0, 0.5, 1.0]), np.array([0.25, 0.25, 0.25])),
            lambda f, x, y: slopes(lambda f, y: f(x, y))(f, y),
            lambda x, y: np.array([100.0, 0.0, -100.0]),
        ),
    ],
    "reduce_along": [
        (
            (np.array([1, 2, 3], dtype), np.array([0, 2, 2, 0]), np.array(values, dtype)),
            lambda f, x, i, y, how=how, own=own: f(x, 0, i, y, how, own),
            reduced(of, own),
        )
        for dtype in ("int8", "uint8", "int64", "float32")
        for values in ([4, 5, 2, 7], [0, 0, 0, 0])
        for own in (True, False)
        for how, of in (("amax", max), ("amin", min), ("sum", sum), ("prod", np.prod))
    ],
    "instance_norm": [
        (
            (CUBE + np.sin(CUBE), np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.5])),
            lambda f, x, mean, var: (f(x, mean, var, None, None, True, 0.3), mean, var),
            normalized,
        ),
    ],
    "binary_cross_entropy_with_logits": [
        ((X, TARGET), lambda f, x, y: f(x, y), lambda x, y: logits_loss(x, y).mean()),
        ((X, TARGET, W), lambda f, x, y, w: f(x, y, w), lambda x, y, w: logits_loss(x, y, w).mean()),
        (
            (X, TARGET, W[0]),
            lambda f, x, y, w: f(x, y, pos_weight=w, reduction="none"),
            lambda x, y, w: logits_loss(x, y, 1.0, w),
        ),
        (
            (X, TARGET, W, W[0]),
            lambda f, x, y, w, v: f(x, y, w, "sum", v),
            lambda x, y, w, v: logits_loss(x, y, w, v).sum(),
        ),
    ],
    "nll_loss": [
        ((CUBE, np.array([[0, 2, 1, 1], [2, 2, 0, 1]]), ROW + 2), lambda f, x, t, w: f(x, t, w), likelihood),
        (
            (CUBE, np.array([[0, 2, 1, 1], [2, 2, 0, 1]]), ROW + 2),
            lambda f, x, t, w: f(x, t, w, ignore_index=2),
            lambda x, t, w: likelihood(x, t, w, 2),
        ),
    ],
    "cosine_embedding_loss": [
        (
            (np.zeros((2, 3)), np.zeros((2, 3)), np.array([1.0, -1.0])),
            lambda f, x, y, t: f(x, y, t, reduction="none"),
            lambda x, y, t: np.array([1.0, 0.0]),
        ),
    ],
    "einsum": [
        ((X, SQUARE), lambda f, x, y: f(x, [1, 0], y, [1, 2], [0, 2]), lambda x, y: x.T @ y),
        ((X, SQUARE), lambda f, x, y: f(x, [1, 0], y, [1, 2]), lambda x, y: x.T @ y),
        ((CUBE, SQUARE), lambda f, x, y: f(x, [..., 51], y, [51, 0], [..., 0]), lambda x, y: x @ y),
        ((X, SQUARE), lambda f, x, y: f("ij,ik->kj", [x, y]), lambda x, y: y.T @ x),
        ((X, ROW, POINT), lambda f, x, y, z: f("ij,j,->i", x, y, z), lambda x, y, z: x @ y * z),
    ],
    "tensordot": [
        ((CUBE, SQUARE), lambda f, x, y: f(x, y, 1), lambda x, y: x @ y),
        (
            (CUBE, X),
            lambda f, x, y: f(x, y, ([-1, 1], [0, 1])),
            lambda x, y: np.tensordot(x, y, ([2, 1], [0, 1])),
        ),
        ((X, CUBE), lambda f, x, y: f(x, y, ([-1], [-2])), lambda x, y: np.tensordot(x, y, ([1], [1]))),
        ((X, CUBE), lambda f, x, y: f(x, y, (0, -1)), lambda x, y: np.tensordot(x, y, ([0], [2]))),
    ],
    "cdist": [
        *(
            ((X, Y), lambda f, x, y, p=p, mode=mode: f(x, y, p, mode), distances(p))
            for p in (1.0, 2.0, 3.0)
            for mode in (None, 0, 1, 2, "donot_use_mm_for_euclid_dist")
        ),
        ((np.tile(X, (7, 1)), Y), lambda f, x, y: f(x, y), distances(2.0)),
    ],
    "as_strided_scatter": [  # of what does not fill its memory from the start on
        (
            (X, Y[:2, :2]),
            lambda f, x, y: f(x.T, y, (2, 2), (5, 1), 1),
            lambda x, y: at_places(x, y, [[1, 2], [6, 7]]).T,
        ),
        (
            (X, Y[0]),
            lambda f, x, y: f(x[2:], y, (3,), (2,)),
            lambda x, y: at_places(x, y, [6, 8, 10])[2:],
        ),
        (
            (X, Y[0]),
            lambda f, x, y: f(x[:2, 1:], y, (3,), (4,), 2),
            lambda x, y: at_places(x, y, [2, 6, 10])[:2, 1:],
        ),
    ],
    "stack": [
        ((INTS, INTS * 0.5), lambda f, x, y: f([x, y]), lambda x, y: np.stack([x, y])),
        ((INTS, INTS > 0), lambda f, x, y: f([x, y], -1), lambda x, y: np.stack([x, y], -1)),
    ],
    "fill_": [
        ((X, POINT), lambda f, x, y: f(x, y), lambda x, y: np.full_like(x, y)),
        ((X, INTS), lambda f, x, y: f(x.T, y[0, 0]), lambda x, y: np.full_like(x.T, y[0, 0])),
    ],
    **{
        name: [
            ((INTS,), lambda f, x: f(x, dtype=kiln.float64), lambda x, of=of: of(x, dtype="float64")),
            ((INTS,), lambda f, x: f(x, 1, dtype=kiln.int32), lambda x, of=of: of(x, 1, dtype="int32")),
            ((X,), lambda f, x: f(x, 0, True, dtype=kiln.float32), lambda x, of=of: single(of(x, 0)[None])),
        ]
        for name, of in (("sum", np.sum), ("prod", np.prod))
    },
    "unique": [
        ((X[:0],), lambda f, x: f(x, dim=0), lambda x: x),
        ((INTS[[1, 0, 1]],), lambda f, x: f(x, dim=0), lambda x: np.unique(x, axis=0)),
    ],
    "combinations": [
        ((ROW,), lambda f, x, r=r: f(x, r), lambda x, r=r: np.array(list(itertools.combinations(x, r))))
        for r in (1, 3)
    ],
    "fold": [
        (
            (np.ones((4, 6)),),
            lambda f, x: f(x, (3, 4), (2,), (1,), (0,), (1,)),
            lambda x: np.outer([1.0, 2, 1], [1, 2, 2, 1])[None],
        )
    ],
    "beta_slope": [  # of a second concentration of 1 the distribution is z**a
        (
            np.meshgrid(np.array([0.01, 0.3, 0.5, 0.9]), np.array([0.01, 0.5, 1.0, 40.0, 1e4]))[:2],
            lambda f, z, a: (
                (
                    f(z.reshape(-1), a.reshape(-1), kiln.ones(20, dtype=kiln.float64)).reshape(5, 4)
                    / (-z * z.log() / (a * (1 - z)))
                    - 1
                ).abs()
                < 1e-10
            ),
            lambda z, a: z < 1,
        )
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
