"""Reductions down the columns that a kernel of rows carries along: when, and with which bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan_checks import check, check_updates, launches, normal

import kiln
from kiln import ops
from kiln.passes.plan import Plan


def carried(plan: Plan) -> int:
    """How many reductions leave their accumulators in a kernel of rows."""
    return sum(
        operand.folds
        for kernel in plan.kernels
        if hasattr(kernel, "nest")
        for operand in kernel.nest.operands
    )


def gradients(g: Any, x: Any, w: Any) -> list[Any]:
    """What a normalisation's derivative looks like: a value per point, and two sums down the columns."""
    outer = tuple(range(x.ndim - 1))
    centered = x - x.mean(-1, True)
    scale = (centered * centered).mean(-1, True) + 1.0
    part = g * w / scale
    return [part - (part * centered).sum(-1, True) * centered, (g * centered).sum(outer), g.sum(outer)]


@pytest.mark.parametrize("shape", [(1, 5), (40, 257), (130, 16), (0, 3), (3, 7, 20), (2, 1, 4, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_gradients(shape: tuple[int, ...], dtype: str) -> None:
    """One kernel over the rows and one that combines; the interpreter's bits."""
    g, x, w = (normal(*s, seed=k).astype(dtype) for k, s in enumerate((shape, shape, shape[-1:])))
    plan = check(gradients, g, x, w)
    assert carried(plan) == (2 if shape[0] != 1 else 0)
    assert launches(plan) == 2 or shape[0] == 1


@pytest.mark.parametrize("name", ["sum", "amax", "amin", "prod", "all", "any"])
def test_every_reduction(name: str) -> None:
    """What is reduced may be the value of the point itself, and be read by what follows."""

    def function(x: Any, w: Any) -> list[Any]:
        y = ops.softmax(x, 1)
        down = getattr(y > 0.05 if name in ("all", "any") else y, name)(0)
        return [y, w * 2 - ops.where(down > 0.5, 1.0, 0.5) if down.dtype == "bool" else w * 2 - down]

    plan = check(function, normal(70, 19), normal(19))
    assert (carried(plan), launches(plan)) == (1, 2)


@pytest.mark.parametrize("name", ["product", "written"])
def test_columns_of_an_array(name: str) -> None:
    """What is reduced down the columns may have to be an array: a product, or one written in parts."""

    def function(x: Any, w: Any) -> list[Any]:
        y = x @ w if name == "product" else ops.cat([x * 2, w + 1], 0)
        return [ops.log_softmax(y, -1), ops.softmax(x @ w if name == "product" else y, 0)]

    check(function, normal(40, 30), normal(30, 30))


def test_more_than_a_block() -> None:
    plan = check(gradients, *(normal(*s, seed=k) for k, s in enumerate(((16500, 3), (16500, 3), (3,)))))
    assert (carried(plan), launches(plan)) == (2, 2)


def test_in_place() -> None:
    """A step of descent joins the combination, in place; the rows overwrite their input."""

    def function(x: Any, w: Any) -> list[Any]:
        y = ops.softmax(x, 1) * w
        return [y, w - (y * x).sum(0) * 0.1]

    plan = check_updates(function, {0: 0, 1: 1}, normal(33, 40), normal(40))
    assert (carried(plan), launches(plan)) == (1, 2)


def test_what_stays_apart() -> None:
    """Rows that are no run of memory, rows that need the columns, a product in between, short rows."""
    split = normal(3, 14, 20).reshape(3, 7, 2, 20)[:, :, 0]
    assert carried(check(lambda x: [x - x.mean(2, True), x.sum((0, 1))], split)) == 0
    assert carried(check(lambda x: [ops.softmax(x - x.sum(0), 1)], normal(9, 20))) == 0

    def around(x: Any, w: Any) -> list[Any]:
        y = ops.softmax(x, 1)
        return [y, ((y @ w) * x).sum(0)]

    assert carried(check(around, normal(9, 20), normal(20, 20))) == 0

    def short(x: Any) -> list[Any]:
        x = x.reshape(-1, 4)
        return [ops.softmax(x, 1), x.sum(0)]

    assert carried(check(short, normal(9, 20))) == 0


def test_columns_that_read_columns() -> None:
    """The second sum of a variance needs the first: no kernel of rows can leave the accumulators of both."""

    def function(x: Any) -> list[Any]:
        mean = x.mean(0)
        centered = x - mean
        return [(centered * centered).sum(0), mean, x.prod(1)]

    assert carried(check(function, normal(6, 300))) == 0


def test_threads_do_not_change_bits() -> None:
    x, g = (kiln.from_numpy(normal(700, 300, seed=k)) for k in range(2))
    w, b = kiln.ones(300, requires_grad=True), kiln.zeros(300, requires_grad=True)
    found = []
    before = kiln.get_num_threads()
    try:
        for threads in (1, 2, 4):
            kiln.set_num_threads(threads)
            w.grad = b.grad = None
            y = kiln.nn.functional.layer_norm(x.requires_grad_(), (300,), w, b)
            y.backward(g)
            found.append([t.numpy().tobytes() for t in (y.detach(), w.grad, b.grad)])
    finally:
        kiln.set_num_threads(before)
    assert found[0] == found[1] == found[2]
    assert np.allclose(np.frombuffer(found[0][2], np.float32), g.numpy().sum(0), atol=1e-4)
