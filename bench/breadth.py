"""The lines of the table's breadth: plain ops at sizes where memory or arithmetic counts.

One function per line, written once for any framework of PyTorch's names; `lines()` says what each moves and
what its bars are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bench.measure import Work
from bench.workloads import Make, normal

BIG, SMALL, MILLION, POINTS = 1 << 22, 1 << 14, 1 << 20, 200_000
ROWS, COLUMNS, CLASSES = 4096, 1024, 1000


class Line(NamedTuple):
    """A line's name, its program, the bytes it moves at least, its bar against PyTorch, one of the copy
    bandwidth that passes too, and how many ops the program has, if its time is given for one.
    """

    name: str
    make: Make
    nbytes: int
    ratio: float
    share: float = 0.0
    per: int = 1


def of(statement: str, operands: Callable[[Any], dict[str, Any]], compared: str = "") -> Make:
    """A program of one statement over operands and `k`, the framework; results are compared as `compared`."""

    def make(framework: Any) -> Work:
        names = {"k": framework, "f": framework.nn.functional, **operands(framework)}
        return Work(statement, names, compared or statement)

    return make


def _flat(count: int, positive: bool = False) -> Callable[[Any], dict[str, Any]]:
    """Normal draws a and b of `count` elements; `positive`: their sizes and a bit."""

    def operands(framework: Any) -> dict[str, Any]:
        a, b = normal(framework, count), normal(framework, count, seed=1)
        return {"a": a.abs() + 0.1, "b": b.abs() + 0.1} if positive else {"a": a, "b": b}

    return operands


def _matrix(framework: Any) -> dict[str, Any]:
    x = normal(framework, ROWS, COLUMNS)
    names = {"x": x, "turned": normal(framework, COLUMNS, ROWS, seed=5)}
    names |= {"row": normal(framework, COLUMNS, seed=1), "column": normal(framework, ROWS, 1, seed=2)}
    target = framework.from_numpy(np.random.default_rng(3).integers(0, CLASSES, ROWS))
    return {**names, "logits": normal(framework, ROWS, CLASSES), "target": target}


def _positions(framework: Any) -> dict[str, Any]:
    """A million values, as many random positions among them, and half of them chosen; positions are in the
    framework's own memory, as those that a program draws or computes.
    """
    rng = np.random.default_rng(4)
    index = framework.from_numpy(rng.integers(0, MILLION, MILLION)).clone()
    return {
        "x": normal(framework, MILLION),
        "index": index,
        "rows": normal(framework, MILLION // 64, 64),
        "chosen": framework.from_numpy(rng.integers(0, MILLION // 64, MILLION // 64)).clone(),
        "mask": framework.from_numpy(rng.integers(0, 2, MILLION).astype(bool)),
        "zero": framework.zeros(MILLION),
    }


def bandwidth_lines() -> Iterator[Line]:
    """What the memory alone decides at 4M elements."""
    flat, four = _flat(BIG), 4 * BIG
    yield Line("4M add", of("a + b", flat), 3 * four, 1.0)
    yield Line("4M copy", of("a.clone()", flat), 2 * four, 1.0)
    yield Line("4M cast to float64", of("a.to(k.float64)", flat), 3 * four, 1.0)
    low = of("a.to(k.bfloat16)", flat, "a.bfloat16().float()")
    yield Line("4M cast to bfloat16", low, four + four // 2, 1.0)
    yield Line("4M cast to int32", of("a.to(k.int32)", flat), 2 * four, 1.0)
    yield Line("4M copy transposed", of("x.t().contiguous()", _matrix), 2 * four, 1.0)
    yield Line("4M add transposed", of("x.t() + turned", _matrix), 3 * four, 1.0)
    yield Line("4M every other column", of("x[:, ::2] + 1.0", _matrix), four + four // 2, 1.0)
    yield Line("4M add a row", of("x + row", _matrix), 2 * four, 1.0)
    yield Line("4M add a column", of("x + column", _matrix), 2 * four, 1.0)
    yield Line("4M sum", of("a.sum()", flat), four, 1.0)
    yield Line("4M sum of rows", of("x.sum(1)", _matrix), four, 1.0)
    yield Line("4M sum of columns", of("x.sum(0)", _matrix), four, 1.0)


def function_lines() -> Iterator[Line]:
    """Functions of one element, where memory decides and where arithmetic does."""
    statements = {"exp": "a.exp()", "log": "a.log()", "tanh": "a.tanh()", "erf": "k.erf(a)",
                  "sigmoid": "a.sigmoid()", "softplus": "f.softplus(a)", "pow": "k.pow(a, b)",
                  "sin": "a.sin()"}  # fmt: skip
    for name, statement in statements.items():
        arrays = 3 if name == "pow" else 2
        yield Line(f"4M {name}", of(statement, _flat(BIG, name in ("log", "pow"))), 4 * BIG * arrays, 1.0)
    for name, statement in statements.items():
        bar = 1.0 if name in ("exp", "log") else 1.3
        yield Line(f"16k {name}", of(statement, _flat(SMALL, name in ("log", "pow"))), 0, bar)


def row_lines() -> Iterator[Line]:
    """Normalisations and reductions over either axis of a matrix, and the loss over classes."""
    four = 4 * ROWS * COLUMNS
    for dim, which in ((1, "rows"), (0, "columns")):
        yield Line(f"softmax of {which}", of(f"k.softmax(x, {dim})", _matrix), 2 * four, 1.5, 0.75)
        yield Line(f"log_softmax of {which}", of(f"k.log_softmax(x, {dim})", _matrix), 2 * four, 1.5, 0.75)
        shape = "(x.shape[1],)" if dim else None
        text = f"f.layer_norm(x, {shape})" if dim else f"f.layer_norm(x.t(), ({ROWS},))"
        yield Line(f"layer_norm of {which}", of(text, _matrix), 2 * four, 1.5, 0.90)
        yield Line(f"var of {which}", of(f"k.var(x, {dim})", _matrix), four, 1.5, 0.75)
        yield Line(f"logsumexp of {which}", of(f"k.logsumexp(x, {dim})", _matrix), four, 1.5, 0.75)
    loss = of("f.cross_entropy(logits, target)", _matrix)
    yield Line("cross_entropy (4096, 1000)", loss, 4 * ROWS * CLASSES, 1.5, 0.75)


def place_lines() -> Iterator[Line]:
    """What moves elements about, at a million of them."""
    four = 4 * MILLION
    for name, text, nbytes in (
        ("sort", "k.sort(x)[0]", 4 * four),
        ("topk 100", "k.topk(x, 100)[0]", four),
        ("cumsum", "k.cumsum(x, 0)", 2 * four),
        ("gather", "k.gather(x, 0, index)", 4 * four),
        ("scatter_add", "k.scatter_add(zero, 0, index, x)", 5 * four),
        ("index_select", "k.index_select(x, 0, index)", 4 * four),
        ("index_select of rows", "k.index_select(rows, 0, chosen)", 2 * four),
        ("cat", "k.cat([x, x])", 4 * four),
        ("cat of columns", "k.cat([rows, rows], 1)", 4 * four),
        ("masked_fill", "x.masked_fill(mask, 0.5)", 2 * four + MILLION),
        ("boolean indexing", "x[mask]", four + four // 2 + MILLION),
    ):
        yield Line(f"1M {name}", of(text, _positions), nbytes, 1.0)


def _points(width: int) -> Callable[[Any], dict[str, Any]]:
    return lambda framework: {"x": normal(framework, POINTS, width)}


def point_lines() -> Iterator[Line]:
    """Rows of two or three elements: points, pairs, colours."""
    for width in (2, 3):
        row, one = 4 * width * POINTS, 4 * POINTS
        for name, text, nbytes in (
            ("sum", "x.sum(-1)", row + one),
            ("amax", "x.amax(-1)", row + one),
            ("argmax", "x.argmax(-1)", row + 2 * one),
            ("prod", "x.prod(-1)", row + one),
            ("norm", "x.norm(dim=-1)", row + one),
            ("softmax", "x.softmax(-1)", 2 * row),
            ("flip", "x.flip(-1)", 2 * row),
            ("add a row", "x + x[0]", 2 * row),
            ("sum of columns", "x.sum(0)", row),
        ):
            yield Line(f"200k rows of {width}, {name}", of(text, _points(width)), nbytes, 1.0)


def lines() -> Iterator[Line]:
    """Every line of this file, in the order of the table."""
    for part in (bandwidth_lines, function_lines, row_lines, place_lines, point_lines):
        yield from part()
