"""Derivatives through blocks, cells and items that take turns, against differences; batches of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from backend import needs_kiln

import kiln
from kiln.autograd import grad, gradcheck, gradgradcheck
from kiln.nn import functional as F

pytestmark = needs_kiln


def step(h: Any, x: Any, w: Any) -> Any:
    """A state's next one."""
    return kiln.tanh(F.linear(h, w) * x.sigmoid() + x)


CELL = kiln.compile(step, pure=True)


def chains(next_state: Callable[..., Any], x: Any, w: Any, each: Callable[..., Any]) -> Any:
    """Chains of different lengths over the rows of x [4, 3], one matrix at all places, a value read."""

    def chain(n: int) -> Any:
        h = x[n]
        for k in range(n + 1):
            h = next_state(h, x[k], w)
            if h.sum().item() > 100:
                break
        return h

    return kiln.stack(each(chain, range(3)))


def looped(fn: Callable[..., Any], items: Any) -> list[Any]:
    """A loop."""
    return [fn(item) for item in items]


def plain(x: Any, w: Any) -> Any:
    return chains(step, x, w, looped)


def cells(x: Any, w: Any) -> Any:
    return chains(CELL, x, w, looped)


def batched(x: Any, w: Any) -> Any:
    with kiln.batching.Batching():
        return chains(step, x, w, looped)


def batched_cells(x: Any, w: Any) -> Any:
    with kiln.batching.Batching():
        return chains(CELL, x, w, looped)


def mapped(x: Any, w: Any) -> Any:
    return chains(step, x, w, kiln.batching.map)


def mapped_cells(x: Any, w: Any) -> Any:
    return chains(CELL, x, w, kiln.batching.map)


WAYS = [cells, batched, batched_cells, mapped, mapped_cells, kiln.compile(plain, batch=True)]
NAMES = ["cells", "batched", "batched cells", "mapped", "mapped cells", "compiled with batch=True"]


def inputs() -> tuple[Any, Any]:
    """x [4, 3] and w [3, 3] in double precision."""
    kiln.manual_seed(0)
    return tuple(kiln.randn(n, 3, dtype=kiln.float64).requires_grad_() for n in (4, 3))  # type: ignore[return-value]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_gradients(way: Callable[..., Any]) -> None:
    """Against differences."""
    assert gradcheck(way, inputs())


@pytest.mark.parametrize("way", [cells, batched, mapped_cells], ids=["cells", "batched", "mapped cells"])
def test_second_derivatives(way: Callable[..., Any]) -> None:
    """Against differences of the first."""
    assert gradgradcheck(way, inputs())


@pytest.mark.parametrize("way", [cells, batched, batched_cells], ids=["cells", "batched", "batched cells"])
def test_a_batch_of_gradients(way: Callable[..., Any]) -> None:
    """`is_grads_batched` gives the rows that calls of `grad` give one by one, and those of the plain loop."""
    x, w = inputs()
    rows = kiln.randn(3, 3, 3, dtype=kiln.float64)
    y = way(x, w)
    together = grad(y, (x, w), rows, retain_graph=True, is_grads_batched=True)
    want = plain(x, w)
    for k in range(3):
        alone = grad(y, (x, w), rows[k], retain_graph=True)
        of_loop = grad(want, (x, w), rows[k], retain_graph=True)
        for a, b, c in zip(together, alone, of_loop, strict=True):
            kiln.testing.assert_close(a[k], b)
            kiln.testing.assert_close(b, c)
