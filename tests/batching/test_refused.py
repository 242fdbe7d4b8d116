"""A backward that refuses what was overwritten or freed changes no .grad, in whatever way calls ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln


def eager(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    return [fn(x) for x in items]


def batched(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    with kiln.batching():
        return [fn(x) for x in items]


def mapped(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    return list(kiln.batching.map(fn, items))


def recorded(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    return list(kiln.compile(lambda: eager(fn, items))())


def pure(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    return eager(kiln.compile(fn, pure=True), items)


WAYS = [eager, batched, mapped, recorded, pure]


def leaves() -> tuple[Any, Any, Any]:
    w = kiln.full((3,), 0.5).requires_grad_()
    w.grad = kiln.full((3,), 7.0)
    late = kiln.full((3,), 2.0).requires_grad_()
    return w, late, [kiln.full((3,), float(n), requires_grad=True) for n in range(4)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", [0, 3])
def test_overwritten(way: Callable[..., Any], which: int) -> None:
    """What eager passes before it comes to the refused call is left as it was too."""
    w, late, items = leaves()
    states = [x * 1 for x in items]
    results = way(lambda h: (h * w).tanh() * h, states)
    hidden = results[0] * late
    hidden.retain_grad()
    states[which].detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        kiln.stack([hidden, *results[1:]]).sum().backward()
    assert w.grad.tolist() == [7.0] * 3 and late.grad is None and hidden.grad is None
    assert all(x.grad is None for x in items)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_time(way: Callable[..., Any]) -> None:
    """Of a graph that was freed; what is passed before it, is not."""
    w, late, items = leaves()
    total = kiln.stack(way(lambda h: (h * w).tanh() * h, items)).sum()
    total.backward(retain_graph=True)
    total.backward()
    before = [x.grad.clone() for x in (w, *items)]
    with pytest.raises(RuntimeError, match="second time"):
        (total * late.sum()).backward()
    assert late.grad is None
    assert all(x.grad.equal(y) for x, y in zip((w, *items), before))


def test_what_may_be_refused_but_is_not() -> None:
    """No gradient comes to the call whose operand was overwritten: all is as ever."""

    class Nothing(kiln.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> None:
            return None

    x, y = (kiln.full((2,), n).requires_grad_() for n in (2.0, 3.0))
    seen: list[Any] = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    z = x * 1
    product = y * y
    product.retain_grad()
    total = Nothing.apply(z * z).sum() + product.sum()
    z.detach().zero_()
    total.backward()
    assert seen == [[6.0, 6.0]] * 2 and x.grad is None and product.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("way", [eager, batched, mapped])
def test_what_fails_later_is_told_to_who_needs_it(way: Callable[..., Any]) -> None:
    """Where its value is read or differentiated, in the item that it is of."""
    w = kiln.ones(3, requires_grad=True)

    def one(x: Any) -> Any:
        with kiln.inference_mode():
            y = x * 2
        try:
            total = (y * w).sum() if x[0].item() else (x * w).sum()
            total.backward()
        except RuntimeError as error:
            return str(error)[:38]
        return (x + 1).sum().item()

    items = [kiln.full((3,), float(n)) for n in (1, 0, 2)]
    refused = "Inference tensors cannot be saved for "
    assert way(one, items) == [refused, 3.0, refused]


def test_derivatives_of_items_are_apart() -> None:
    """kiln.func.grad in items of a map: what it gives has no history, as in a loop."""
    w = kiln.ones(3, 3)
    derivative = kiln.func.grad(lambda q: (q @ w).tanh().sum())
    items = [kiln.full((3,), n / 4) for n in range(3)]
    for got, want in zip(mapped(derivative, items), eager(derivative, items)):
        assert got.equal(want) and not got.requires_grad
