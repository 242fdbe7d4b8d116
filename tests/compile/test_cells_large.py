"""Calls of many operands, results and values that backward keeps: one op like any other."""

from __future__ import annotations

from typing import Any

import kiln


def same(found: Any, expected: Any) -> bool:
    pairs = [(a.detach().contiguous(), b.detach().contiguous()) for a, b in zip(found, expected)]
    return all(kiln._core.same_bytes(a, b) for a, b in pairs)


def first_and_second(function: Any, xs: list[Any]) -> tuple[Any, Any]:
    firsts = kiln.autograd.grad(function(xs), xs)
    graph = kiln.autograd.grad(function(xs), xs, create_graph=True)
    return firsts, kiln.autograd.grad(sum((g * g).sum() for g in graph), xs)


def test_a_cell_that_keeps_200_values() -> None:
    kiln.manual_seed(0)
    xs = [kiln.rand(2, requires_grad=True) for _ in range(200)]

    def f(xs: list[Any]) -> Any:  # backward reads the sums, which are neither arguments nor results
        y = kiln.zeros(2)
        for a, b in zip(xs[::2], xs[1::2]):
            y = y + a.sum() * b.sum() * a
        return y.sum()

    cell = kiln.compile(f, pure=True)
    for _ in range(3):
        cell(xs)
    node = cell(xs).grad_fn
    assert node.name().endswith("FBackward0") and len(node.next_functions) >= 200
    (first, second), expected = first_and_second(cell, xs), first_and_second(f, xs)
    assert same(first, expected[0]) and same(second, expected[1])


def test_a_weight_of_many_products_is_summed_as_without_the_cell() -> None:
    kiln.manual_seed(1)
    w, b = kiln.randn(64, 64, requires_grad=True), kiln.randn(64, requires_grad=True)
    x = kiln.randn(40, 2, 64)

    def f(x: Any) -> Any:
        h = kiln.zeros(2, 64)  # whose number of rows is no argument's
        for t in range(40):
            h = (h @ w * 0.1 + x[t] + b).tanh()
        return h.sum()

    cell = kiln.compile(f, pure=True)
    for _ in range(3):
        found = kiln.autograd.grad(cell(x), (w, b))
    assert same(found, kiln.autograd.grad(f(x), (w, b)))


def test_a_branch_of_100_results_and_operands() -> None:
    kiln.manual_seed(2)
    xs = [kiln.rand(2, requires_grad=True) for _ in range(100)]

    def f(flag: Any, xs: list[Any]) -> Any:
        if flag > 0:
            ys = [x * x for x in xs]
        else:
            ys = [x + 1 for x in xs]
        return ys

    scripted = kiln.jit.script(f)
    for flag in (kiln.tensor(1.0), kiln.tensor(-1.0)):
        made, expected = scripted(flag, xs), f(flag, xs)
        assert len(made) == 100 and same(made, expected)
        one, two = (
            kiln.autograd.grad(sum(y.sum() for y in ys), xs, create_graph=bool(flag > 0))
            for ys in (made, expected)
        )
        assert same(one, two)
        if flag > 0:
            pair = [kiln.autograd.grad(sum((g * g).sum() for g in gs), xs) for gs in (one, two)]
            assert same(*pair)
    # of a few results alone
    (some,) = kiln.autograd.grad(scripted(kiln.tensor(1.0), xs)[90].sum(), xs[90])
    assert same([some], [2 * xs[90]])
