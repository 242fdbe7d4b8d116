"""Backward through what ran together: who is told of it, and sums in the order of the loop."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln.testing.compare import same_bits

pytestmark = needs_kiln
F = kiln.nn.functional if kiln else None


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    """Leaves of random values whose sums show their order."""
    rng = np.random.default_rng(seed)
    return [kiln.tensor(rng.normal(size=s).astype("float32"), requires_grad=True) for s in shapes]


# -- who is told -----------------------------------------------------------------------------------------


def hooks_of_rows(batch: bool) -> list[Any]:
    """What hooks see where one of three rows that run together is asked for."""
    seen: list[Any] = []
    (w,) = drawn((3, 4))
    others = drawn((4,), (4,), seed=1)
    with kiln.batching() if batch else nullcontext():
        rows = [x.exp() for x in (w[0], *others)]
        for k, row in enumerate(rows):
            row.register_hook(lambda g, k=k: seen.append((k, g is None)))
        results = [kiln.tanh(row).sum() for row in rows]
    for k, x in enumerate(others):
        x.register_hook(lambda g, k=k: seen.append((f"leaf {k}", g is None)))
    results[0].backward()
    seen.append([x.grad is None for x in others])
    return seen


def test_hooks_of_other_rows_are_not_called() -> None:
    """Calls that ran in one launch are as apart as they are without it."""
    assert hooks_of_rows(True) == hooks_of_rows(False) == [(0, False), [True, True]]


@pytest.mark.parametrize("batch", [False, True])
def test_hooks_of_a_cells_other_operands_are_not_called(batch: bool) -> None:
    """A result of a cell depends on some of its operands."""

    def both(h: Any, c: Any) -> Any:
        return kiln.tanh(h + h), kiln.tanh(c + c)

    def hooked(fn: Callable[..., Any]) -> list[Any]:
        seen: list[Any] = []
        e, c = drawn((3, 4), (4,))
        rows = [e[k] * 1 for k in range(3)]
        with kiln.batching() if batch else nullcontext():
            for x in (e, *rows):
                x.register_hook(lambda g: seen.append(g is None))
            total = sum(fn(x, c)[1].sum() for x in rows)
        total.backward()
        return [*seen, e.grad, c.grad.tolist()]

    cell = kiln.compile(both, pure=True)
    assert hooked(cell) == hooked(cell) == hooked(both)


def test_a_users_function_that_nothing_depends_on() -> None:
    """Its backward is not run for rows that nobody asked for."""
    ran: list[int] = []

    class Square(kiln.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            ran.append(1)
            (x,) = ctx.saved_tensors
            return 2 * x * g

    a, b = drawn((4,), (4,))
    with kiln.batching():
        results = [kiln.tanh(Square.apply(x)).sum() for x in (a, b)]
    results[0].backward()
    assert ran == [1] and b.grad is None
    results[1].backward()
    assert ran == [1, 1] and b.grad.any()


# -- in which order --------------------------------------------------------------------------------------


def gradients(
    way: str, program: Callable[..., Any], *shapes: tuple[int, ...], inside: bool = True
) -> list[Any]:
    """The gradients of a program of items: (leaves, item) -> a tensor."""
    leaves = drawn(*shapes)
    fn = lambda n: program(n, *leaves)  # noqa: E731
    if way == "map":
        out = kiln.batching.map(fn, range(5))
    else:
        with kiln.batching() if way == "block" else nullcontext():
            out = [fn(n) for n in range(5)]
            if inside:
                total = kiln.stack([(y * y.cos()).sum() for y in out]).sum()
    if way == "map" or not inside:
        total = kiln.stack([(y * y.cos()).sum() for y in out]).sum()
    total.backward()
    return [x.grad for x in leaves]


def picked(n: int, e: Any, u: Any) -> Any:
    """Rows picked twice, slices and a matrix of the same leaf."""
    i = kiln.tensor([n % 3, 0, 0][: 1 + n % 3])
    return kiln.cat([e[i].sum(0), e.index_select(0, i).mean(0), F.embedding(i, e)[0], e[n % 4] @ u])


def reads(n: int, e: Any, u: Any) -> Any:
    """A value read between two uses: items take turns there."""
    h = e[n % 4] * u[0]
    if h.sum().item() > 0:
        h = h * u[1] + e[0]
    return h @ u


def transposed(n: int, e: Any, u: Any) -> Any:
    """A row's own matrix, transposed at each use."""
    m = kiln.tanh(u * float(n + 1))
    h = e[n % 4]
    for k in range(3):
        h = (e[k] @ m.t()) * h.sigmoid()
    return h


def one_by_one(n: int, e: Any, u: Any) -> Any:
    """Chains of which the first is run ahead: what is left runs alone, later than it stands."""
    h = e[0]
    for _ in range(n % 3 + 1):
        h = CELL(h, u)
    return h


CELL = kiln.compile(lambda h, u: kiln.tanh(u @ h), pure=True) if kiln else None


@pytest.mark.parametrize("inside", [True, False], ids=["in the block", "after it"])
@pytest.mark.parametrize("way", ["block", "map"])
@pytest.mark.parametrize("program", [picked, reads, transposed, one_by_one], ids=lambda f: f.__name__)
def test_sums_in_the_order_of_the_loop(program: Callable[..., Any], way: str, inside: bool) -> None:
    """Gradients have the loop's bits, whoever ran when."""
    want = gradients("loop", program, (4, 4), (4, 4))
    for a, b in zip(gradients(way, program, (4, 4), (4, 4), inside=inside), want, strict=True):
        assert same_bits(a.numpy(), b.numpy())


def test_items_inside_items_keep_the_order() -> None:
    """Places of an inner map's items lie among those of the item around it."""

    def outer(n: int, e: Any, u: Any) -> Any:
        return sum(kiln.batching.map(lambda k: reads(n + k, e, u), range(3)))

    def loop(n: int, e: Any, u: Any) -> Any:
        return sum(reads(n + k, e, u) for k in range(3))

    want = gradients("loop", loop, (4, 4), (4, 4))
    for a, b in zip(gradients("map", outer, (4, 4), (4, 4)), want, strict=True):
        assert same_bits(a.numpy(), b.numpy())


@pytest.mark.parametrize("held", [False, True])
def test_a_parameter_transposed_in_each_call(held: bool) -> None:
    """`x @ w.t()` is one launch; a transposition that the program has keeps its own gradient."""
    (w,) = drawn((12, 4))
    xs = [x.detach() for x in drawn(*[(2, 4)] * 5, seed=1)]

    def run(batch: bool) -> tuple[list[Any], Any]:
        w.grad, kept = None, []
        with kiln.batching() if batch else nullcontext():
            out = []
            for x in xs:
                t = w.t()
                if held:
                    kept.append(t)
                out.append(kiln.tanh(x @ t if held else x @ w.t()))
            total = kiln.stack(out).sum()
        for t in kept:
            t.retain_grad()
        total.backward()
        return [w.grad, *(t.grad for t in kept)], total

    kiln.batching.explain(clear=True)
    got, want = run(True)[0], run(False)[0]
    if not held:
        assert "matmul  5 calls in 1 launch" in " ".join(kiln.batching.explain().split("\n")).replace(
            "   ", "  "
        )
    for a, b in zip(got, want, strict=True):
        assert same_bits(a.numpy(), b.numpy())


def test_a_batch_of_gradients_in_items() -> None:
    """`is_grads_batched` inside an item, through what ran together."""
    x, w = drawn((3, 3), (3, 3))

    def jacobian(k: int) -> Any:
        y = kiln.tanh(F.linear(x[k], w) * x[k].sigmoid() + x[k])
        return kiln.autograd.grad(y, x, kiln.eye(3), is_grads_batched=True)[0]

    for a, b in zip(kiln.batching.map(jacobian, range(3)), map(jacobian, range(3)), strict=True):
        kiln.testing.assert_close(a, b)


# -- blocks and streams ----------------------------------------------------------------------------------


def test_no_python_runs_as_a_block_begins_and_ends() -> None:
    """So no signal's handler finds it begun and not yet to be ended."""
    frames: list[str] = []
    block = kiln.batching()
    sys.setprofile(lambda frame, event, arg: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        with block:
            pass
    finally:
        sys.setprofile(None)
    assert frames == []


def test_streams_of_threads_that_map_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Each thread's items print in their order, and `sys.stdout` is in the end what it was."""
    before = sys.stdout, sys.stderr
    meet = threading.Barrier(2, timeout=30)

    def item(k: int) -> None:
        print("a", k)
        meet.wait()  # both threads are in an item now
        print("b", k)
        kiln.ones(2).sum().item()
        print("c", k)
        if k == 1:
            meet.wait()

    def work() -> None:
        kiln.batching.map(item, range(2))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.stdout, sys.stderr) == before
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(2 * [f"{x} {k}" for k in range(2) for x in "abc"])
    assert lines.index("c 0") < lines.index("a 1")


# -- modes around what runs later ------------------------------------------------------------------------


def test_a_checkpoint_does_not_see_what_waited() -> None:
    """Calls that wait before a checkpointed function run inside it, but are none of its own."""
    from kiln.utils.checkpoint import checkpoint

    (w, x) = drawn((4, 4), (3, 4))

    def run(batch: bool) -> list[Any]:
        w.grad = x.grad = None
        with kiln.batching() if batch else nullcontext():
            rows = [kiln.tanh(x[k] @ w) * x[k] for k in range(3)]
            out = [checkpoint(lambda q: kiln.tanh(q @ w) * q, h, use_reentrant=False) for h in rows]
            kiln.stack([(y * y.cos()).sum() for y in out]).sum().backward()
        return [w.grad, x.grad]

    for a, b in zip(run(True), run(False), strict=True):
        assert same_bits(a.numpy(), b.numpy())


def test_gradients_kept_twice_have_no_history() -> None:
    """A backward without `create_graph` adds to a kept gradient as PyTorch does: into a new tensor."""
    (x,) = drawn((4,))
    y = kiln.tanh(x)
    y.retain_grad()
    kiln.autograd.grad((y * y).sum(), x, create_graph=True)
    assert y.grad.requires_grad
    (y * y).sum().backward()
    assert not y.grad.requires_grad and same_bits(y.grad.numpy(), (4 * y).detach().numpy())


def test_hooks_beside_what_is_asked_for() -> None:
    """Of `grad(y, inputs)` only hooks between the two are called, row by row."""
    a, b = drawn((4,), (4,))

    def run(batch: bool) -> list[Any]:
        seen: list[int] = []
        with kiln.batching() if batch else nullcontext():
            rows = [kiln.tanh(p * 1) for p in (a, b)]
            for k, row in enumerate(rows):
                row.register_hook(lambda g, k=k: seen.append(k))
                row.retain_grad()
            total = kiln.stack(rows).sum()
        kiln.autograd.grad(total, (a,))
        return [*seen, *(row.grad is None for row in rows)]

    assert run(True) == run(False) == [0, False, True]
