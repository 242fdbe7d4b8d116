"""A gradient is a sum of parts, evaluated once: what is added where, in which order, and who sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln

WIDE, NARROW = 640, 480  # what many rows are kept for


def normal(*shape: int, seed: int = 0, grad: bool = True, dtype: str = "float32") -> Any:
    values = np.random.default_rng(seed).normal(size=shape) * 0.5
    return kiln.from_numpy(values.astype(dtype)).requires_grad_(grad)


def same(a: Any, b: Any) -> None:
    """Both have the same bits, zeros' signs too."""
    assert a.numpy().tobytes() == b.numpy().tobytes()


def rows(*counts: int, seed: int = 3) -> tuple[list[Any], list[Any]]:
    """Inputs of calls, of so many rows each, and the gradients that their results get."""
    xs = [normal(n, NARROW, seed=seed + k, grad=False) for k, n in enumerate(counts)]
    gs = [normal(n, WIDE, seed=100 + seed + k, grad=False) for k, n in enumerate(counts)]
    return xs, gs


def stacked(xs: list[Any], gs: list[Any]) -> Any:
    """The product over all rows, those of later calls first."""
    return kiln.cat(gs[::-1]).t() @ kiln.cat(xs[::-1])


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda x, w: kiln.nn.functional.linear(x, w),
    "transposed at each call": lambda x, w: x @ w.t(),
    "matrix on the left": lambda x, w: (w @ x.t()).t(),
    "addmm": lambda x, w: kiln.addmm(kiln.zeros(WIDE), x, w.t()),
}


@pytest.mark.parametrize("counts", [(1, 1), (3, 1, 2), (1,) * 40, (100, 250, 200, 1), (256,) * 5])
@pytest.mark.parametrize("call", CALLS)
def test_products_with_one_matrix_are_one_product(call: str, counts: tuple[int, ...]) -> None:
    w = normal(WIDE, NARROW)
    xs, gs = rows(*counts)
    ys = [CALLS[call](x, w) for x in xs]
    kiln.autograd.backward(ys, gs)
    same(w.grad, stacked(xs, gs))


def test_many_rows_are_a_product_of_their_own() -> None:
    w = normal(WIDE, NARROW)
    xs, gs = rows(2, 257, 3)
    kiln.autograd.backward([x @ w.t() for x in xs], gs)
    same(w.grad, gs[1].t() @ xs[1] + stacked([xs[0], xs[2]], [gs[0], gs[2]]))


def test_other_contributions_come_before_the_product() -> None:
    w = normal(WIDE, NARROW)
    xs, gs = rows(2, 3)
    kiln.autograd.backward(
        [xs[0] @ w.t(), w * 2, xs[1] @ w.t(), w * 3], [gs[0], w.detach(), gs[1], w.detach()]
    )
    same(w.grad, w.detach() * 3 + w.detach() * 2 + stacked(xs, gs))


def test_both_orientations_are_one_product() -> None:
    w = normal(NARROW, NARROW)
    a, b = (normal(2, NARROW, seed=s, grad=False) for s in (1, 2))
    (a @ w).sum().backward()  # alone, so that what is compared has been evaluated in both ways
    w.grad = None
    ((kiln.nn.functional.linear(a, w)).sum() + (b @ w).sum()).backward()
    ones = kiln.ones(2, NARROW)
    same(w.grad, kiln.cat([b, ones]).t() @ kiln.cat([ones, a]))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_vectors_and_batches_count_as_rows(dtype: str) -> None:
    w = normal(WIDE, NARROW, dtype=dtype)
    vector, batch = normal(NARROW, seed=1, grad=False, dtype=dtype), normal(2, 3, NARROW, seed=2, dtype=dtype)
    batch = batch.detach()
    y, z = kiln.nn.functional.linear(vector, w), kiln.nn.functional.linear(batch, w)
    kiln.autograd.backward([y, z], [kiln.ones_like(y), kiln.ones_like(z)])
    x = kiln.cat([batch.reshape(6, NARROW), vector[None]])
    same(w.grad, kiln.ones(7, WIDE, dtype=x.dtype).t() @ x)


def loop(x: Any, w: Any, u: Any, b: Any) -> Any:
    """A cell that is written by hand, over the rows of x."""
    h = kiln.zeros(2, 3, dtype=x.dtype)
    for t in range(len(x)):
        z = kiln.nn.functional.linear(x[t], w, b) + h @ u
        a, c, d = z.chunk(3, 1)
        h = a.tanh() * c.sigmoid() + d * h
    return h * h


def arguments(steps: int = 6, dtype: str = "float64") -> list[Any]:
    shapes = ((steps, 2, 4), (9, 4), (3, 9), (9,))
    return [normal(*shape, seed=k, dtype=dtype) for k, shape in enumerate(shapes)]


def gradients(fn: Callable[..., Any], given: list[Any], **options: Any) -> list[Any]:
    return list(kiln.autograd.grad(fn(*given).sum(), given, **options))


def test_every_way_gives_the_same_bits() -> None:
    given = arguments(dtype="float32")
    want = gradients(loop, given)
    for _ in range(2):
        for a, b in zip(gradients(loop, given, create_graph=True), want):
            same(a.detach(), b)
    compiled = kiln.compile(lambda *args: gradients(loop, list(args)), wait=True)
    for _ in range(3):
        for a, b in zip(compiled(*given), want):
            same(a, b)
    loss = loop(*given).sum()
    for _ in range(2):
        for x in given:
            x.grad = None
        loss.backward(retain_graph=True)
        for x, b in zip(given, want):
            same(x.grad, b)
    with kiln.autograd.detect_anomaly():
        for a, b in zip(gradients(loop, given), want):
            same(a, b)


def test_products_of_what_is_no_leaf_are_added_as_arrays() -> None:
    """So that a value has the bits of its gradient wherever it is made, inside a cell for one."""
    w = normal(WIDE, NARROW)
    xs, gs = rows(1, 2, 3)
    inner = w * 1
    kiln.autograd.backward([x @ inner.t() for x in xs], gs)
    same(w.grad, gs[2].t() @ xs[2] + gs[1].t() @ xs[1] + gs[0].t() @ xs[0])

    def fn(*args: Any) -> Any:
        return loop(*(x * 1 for x in args))

    given = arguments(dtype="float32")
    want = gradients(fn, given)
    for run in (kiln.compile(fn, pure=True), kiln.jit.trace(fn, tuple(given)), kiln.compile(fn, wait=True)):
        for _ in range(3):
            for a, b in zip(gradients(run, given), want):
                same(a, b)


def test_derivatives_of_sums() -> None:
    assert kiln.autograd.gradcheck(loop, arguments(3))
    assert kiln.autograd.gradgradcheck(loop, arguments(2))


def test_hooks_see_the_whole_sum() -> None:
    given = arguments(dtype="float32")
    inner = [x * 1 for x in given]
    want = gradients(loop, inner)
    seen: list[Any] = []
    for x in (*inner, *given):
        x.register_hook(lambda g: seen.append(g.clone()))
    for x in inner:
        x.retain_grad()
    done: list[Any] = []
    given[1].register_post_accumulate_grad_hook(lambda p: done.append(p.grad.clone()))
    loop(*inner).sum().backward()
    assert len(seen) == 2 * len(given) and len(done) == 1
    for x, y, b in zip(given, inner, want):
        same(x.grad, b)
        same(y.grad, b)
        assert sum(g.shape == b.shape and bool((g == b).all()) for g in seen) >= 2
    same(done[0], want[1])


def test_transposition_with_a_hook_is_not_passed_by() -> None:
    w = normal(WIDE, NARROW)
    xs, gs = rows(1, 2)
    seen = []
    wt = w.t()
    wt.register_hook(lambda g: seen.append(g) or g * 2)
    kiln.autograd.backward([x @ wt for x in xs], gs)
    arrays = gs[1].t() @ xs[1] + gs[0].t() @ xs[0]
    same(seen[0].t().contiguous(), arrays)
    same(w.grad, arrays * 2)
    asked = w.t()
    (found,) = kiln.autograd.grad([x @ asked for x in xs], asked, gs)
    same(found.t().contiguous(), arrays)


def test_hook_that_changes_a_factor_comes_too_late() -> None:
    """What a product needs is copied when its node is passed: a hook may write weights then."""
    u, v = normal(NARROW, NARROW, seed=1), normal(NARROW, NARROW, seed=2)

    def clear(p: Any) -> None:
        p.data.zero_()

    def step(hooked: bool) -> list[Any]:
        own = [u.detach().clone().requires_grad_(), v.detach().clone().requires_grad_()]
        for p in own if hooked else ():
            p.register_post_accumulate_grad_hook(clear)
        x = normal(2, NARROW, seed=3, grad=False)
        for _ in range(3):
            x = (x @ (own[0] @ own[1])).tanh()
        x.sum().backward()
        return [p.grad for p in own]

    for a, b in zip(step(True), step(False)):
        same(a, b)


def test_slices_are_added_at_their_places() -> None:
    x = normal(6, 4)
    parts = [x[1:4], x[2], x[::2, 1:], x[:, :2], x[5:0:-1] if False else x[1:6], x.t()[3]]
    gs = [normal(*p.shape, seed=50 + k, grad=False) for k, p in enumerate(parts)]
    kiln.autograd.backward(parts, gs)
    want = kiln.zeros(6, 4)
    places = [want[1:4], want[2], want[::2, 1:], want[:, :2], want[1:6], want.t()[3]]
    for place, g in reversed(list(zip(places, gs))):
        place += g
    same(x.grad, want)


@pytest.mark.parametrize("first", ["slice", "array"])
def test_a_sum_with_slices_begins_at_zero(first: str) -> None:
    """-0.0 of one part is 0.0, whichever part comes first; without slices it stays."""
    x = normal(4)
    minus = kiln.full((4,), -0.0)
    parts = [x[:2], x * 1] if first == "array" else [x * 1, x[:2]]
    kiln.autograd.backward(parts, [minus[: len(p)] for p in parts])
    same(x.grad, kiln.zeros(4))
    for graph in (False, True):
        (alone,) = kiln.autograd.grad(x[:2], x, minus[:2], create_graph=graph)
        same(alone.detach(), kiln.zeros(4))
    (whole,) = kiln.autograd.grad(x * 1, x, minus)
    same(whole, minus)


def test_picked_rows_are_added_at_their_places() -> None:
    table = normal(8, 3)
    picks = [kiln.tensor(p) for p in ([1, 1, 7], [0], [1, 2, 1, 0], [[3, 1], [1, 3]])]
    ys = [kiln.nn.functional.embedding(picks[0], table), table[picks[1]], table.index_select(0, picks[2])]
    ys.append(kiln.nn.functional.embedding(picks[3], table))
    gs = [normal(*y.shape, seed=60 + k, grad=False) for k, y in enumerate(ys)]
    kiln.autograd.backward([*ys, table[2:4]], [*gs, kiln.ones(2, 3)])
    want = kiln.zeros(8, 3)
    want[2:4] += 1
    for pick, g in reversed(list(zip(picks, gs))):
        want.index_add_(0, pick.reshape(-1), g.reshape(-1, 3))
    same(table.grad, want)
    (again,) = kiln.autograd.grad(
        [*ys[:0], table[picks[2]], table[picks[0]]], table, [gs[2], gs[0]], create_graph=True
    )
    half = kiln.zeros(8, 3).index_add_(0, picks[0], gs[0]).index_add_(0, picks[2], gs[2])
    same(again.detach(), half)


def test_what_others_hold_is_not_added_to() -> None:
    """The gradient that goes to two inputs as it is, one given by the caller, and one that a hook kept."""
    a, b = normal(3), normal(3, seed=1)
    given = kiln.ones(3)
    kept: list[Any] = []
    c = a + b
    c.register_hook(kept.append)
    d = c + a
    d.register_hook(kept.append)
    (d + a).backward(given)
    same(given, kiln.ones(3))
    assert all((g == 1).all() for g in kept)
    same(a.grad, kiln.full((3,), 3.0))
    same(b.grad, kiln.ones(3))
    b.grad.add_(1)
    same(a.grad, kiln.full((3,), 3.0))


def test_gradients_accumulate_over_backwards() -> None:
    given = arguments(dtype="float32")
    once = gradients(loop, given)
    for _ in range(2):
        loop(*given).sum().backward()
    for x, g in zip(given, once):
        same(x.grad, g + g)


def test_written_factors_are_noticed() -> None:
    w = normal(NARROW, NARROW)
    x = normal(2, NARROW, seed=1, grad=False)
    y = x @ w + (x * 2) @ w
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    assert w.grad is None


def test_errors_leave_nothing_behind() -> None:
    """A pass that ends in the middle has kept products; the next one does not see them."""
    w = normal(NARROW, NARROW)
    x = normal(2, NARROW, seed=1)
    armed = [True]

    def fail(g: Any) -> None:
        if armed[0]:
            raise ValueError("here")

    h = x @ w
    h.register_hook(fail)
    loss = (h @ w).sum()
    with pytest.raises(ValueError, match="here"):
        loss.backward(retain_graph=True)
    assert w.grad is None
    armed[0] = False
    loss.backward()
    (want,) = kiln.autograd.grad(((x @ w) @ w).sum(), w)
    same(w.grad, want)


def test_backward_inside_a_hook_has_sums_of_its_own() -> None:
    w = normal(NARROW, NARROW)
    x = normal(2, NARROW, seed=1, grad=False)
    inner: list[Any] = []

    def nested(g: Any) -> None:
        with kiln.enable_grad():
            inner.append(kiln.autograd.grad((x @ w).sum() + ((x * 2) @ w).sum(), w)[0])

    y = x @ w
    y.register_hook(nested)
    z = (x * 3) @ w
    (y.sum() + z.sum()).backward()
    ones = kiln.ones(2, NARROW)
    same(w.grad, kiln.cat([x * 3, x]).t() @ kiln.cat([ones, ones]))
    same(inner[0], kiln.cat([x * 2, x]).t() @ kiln.cat([ones, ones]))


def test_threads_share_a_matrix() -> None:
    w = normal(WIDE, NARROW)
    xs, gs = rows(1, 2, 3)
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        for _ in range(20):
            (found[i],) = kiln.autograd.grad([x @ w.t() for x in xs], w, gs)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for g in found:
        same(g, stacked(xs, gs))


def test_rows_kept_are_bounded() -> None:
    """A loop of thousands of steps keeps 512 rows of each factor back, at most."""
    steps, width = 8000, 512
    w, x = normal(2, width), normal(1, width, seed=1, grad=False)
    total = kiln.stack([x @ w.t() for _ in range(steps)]).sum()
    kiln._core.reset_peak_memory_stats()
    before = kiln._core.memory_stats()["allocated_bytes"]
    total.backward()
    assert np.allclose(w.grad.numpy(), np.broadcast_to(steps * x.numpy(), w.shape), rtol=1e-4)
    all_rows = 4 * steps * width
    assert kiln._core.memory_stats()["peak_allocated_bytes"] - before < all_rows / 2


def test_launches_do_not_write_wholes() -> None:
    """Eight times the steps are eight times the launches, each of a step's size but a few."""

    def launched(steps: int) -> int:
        x, w = normal(steps, 2, 4), normal(4, 4, seed=1)
        h = kiln.zeros(2, 4)
        for t in range(steps):
            h = (x[t] @ w + h).tanh()
        loss = h.sum()
        with kiln.profile() as seen:
            loss.backward()
        return int(seen.launches)

    assert launched(64) <= 8 * launched(8)


def test_a_loop_over_slices_takes_memory_of_one_whole() -> None:
    x = normal(200, 100)
    total = kiln.stack([x[t] * t for t in range(len(x))]).sum()
    kiln._core.reset_peak_memory_stats()
    before = kiln._core.memory_stats()["allocated_bytes"]
    total.backward()
    assert kiln._core.memory_stats()["peak_allocated_bytes"] - before < 3 * 4 * x.numel()


def _two_weights(together: list[bool], asked: str) -> dict[str, Any]:
    """Gradients of two weights whose products are added, where `together` says so; `asked` take part."""
    weights = {name: normal(40, 60, seed=k) for k, name in enumerate("vw")}
    for name, weight in weights.items():
        weight.requires_grad_(name in asked)
    h = normal(16, 40, seed=2).detach() / 8
    total = kiln.zeros(())
    for t, both in enumerate(together):
        x = h * (t + 1)
        y = x @ weights["v"] + h @ weights["w"] if both else (x @ weights["v"]).tanh() + (h @ weights["w"])
        total = total + (y * y).sum()
    total.backward()
    return {name: weights[name].grad for name in asked}


@pytest.mark.parametrize("every", [1, 2, 5])
def test_sums_that_share_rows_have_the_bits_of_each_alone(every: int) -> None:
    """Weights with one gradient keep its rows once, until their rows differ, across segments of 512."""
    together = [t % every == 0 for t in range(70)]
    for name, gradient in _two_weights(together, "vw").items():
        alone = _two_weights(together, name)[name]
        assert gradient.numpy().tobytes() == alone.numpy().tobytes()


def test_rows_of_two_weights_with_one_gradient_are_kept_once() -> None:
    def most(weights: int) -> int:
        ws = [normal(128, 512, seed=k) for k in range(weights)]
        x = normal(16, 128, seed=9).detach()
        total = kiln.zeros(())
        for _ in range(31):
            total = total + sum(x @ w for w in ws).sum()
        kiln._core.reset_peak_memory_stats()
        before = kiln._core.memory_stats()["allocated_bytes"]
        total.backward()
        return int(kiln._core.memory_stats()["peak_allocated_bytes"] - before)

    assert most(3) < most(1) + 512 * 512 * 4  # without sharing, twice as much more


def test_a_pure_cell_keeps_no_more_than_its_plain_calls() -> None:
    """Gates that are parts of products are kept as they are read, and not the products besides."""
    size, rows, steps = 32, 16, 12
    w, v, x = normal(4 * size, size), normal(4 * size, size, seed=1), normal(rows, size, seed=2)

    def cell(h: Any, c: Any) -> Any:
        linear = kiln.nn.functional.linear
        i, f, g, o = (linear(x, w) + linear(h, v)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def kept(function: Any) -> int:
        h = c = kiln.zeros(rows, size)
        h, c = function(h, c)
        before = kiln._core.memory_stats()["allocated_bytes"]
        nodes = []
        for _ in range(steps):
            h, c = function(h, c)
            nodes += [h, c]
        return int(kiln._core.memory_stats()["allocated_bytes"]) - before

    pure = kiln.compile(cell, pure=True)
    kept(pure), kept(pure)  # calls of a new cell run its Python, too
    assert kept(pure) <= kept(cell)
