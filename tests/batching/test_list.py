"""Automatic batching: calls on a list, run in launches; bits, gradients, and what must not break."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln import _core
from kiln.table.public import records
from kiln.table.record import table
from kiln.testing.compare import same_bits, to_array
from kiln.testing.op_cases import Entry, results_of, tensors

pytestmark = needs_kiln
FULL = os.environ.get("KILN_TEST_FULL") == "1"
SIZE = 6


@pytest.fixture(autouse=True)
def counts_anew() -> Iterator[None]:
    """Nothing is left on the list, and counts begin anew."""
    _core.clear_batching_statistics()
    yield
    _core.run_pending()


def launches() -> dict[str, tuple[int, int]]:
    """Of each function, how many calls ran in how many launches."""
    found: dict[str, tuple[int, int]] = {}
    for name, calls, times, _, _ in _core.batching_statistics()[1]:
        before = found.get(name, (0, 0))
        found[name] = before[0] + calls, before[1] + times
    return found


def rows(count: int, *shape: int, grad: bool = False, seed: int = 0) -> list[Any]:
    """Tensors of fixed random values."""
    rng = np.random.default_rng(seed)
    return [kiln.tensor(rng.normal(size=shape).astype("float32"), requires_grad=grad) for _ in range(count)]


def parameters() -> dict[str, Any]:
    """Those of a small tree model."""
    n = SIZE
    shapes = {
        "emb": (11, n),
        "wl": (3 * n, n),
        "bl": (3 * n,),
        "wn": (5 * n, 2 * n),
        "bn": (5 * n,),
        "wo": (3, n),
    }
    drawn = {name: rows(1, *shape, grad=True, seed=k)[0] for k, (name, shape) in enumerate(shapes.items())}
    return {name: (x.detach() * 0.4).requires_grad_() for name, x in drawn.items()}


def tree(rng: Any, words: int) -> Any:
    """A random binary tree over words."""
    if words == 1:
        return int(rng.integers(11))
    left = int(rng.integers(1, words))
    return tree(rng, left), tree(rng, words - left)


def encode(p: dict[str, Any], t: Any) -> tuple[Any, Any]:
    """The state and memory of a tree, by recursion."""
    linear = kiln.nn.functional.linear
    if isinstance(t, int):
        i, o, u = linear(p["emb"][t], p["wl"], p["bl"]).chunk(3)
        c = kiln.sigmoid(i) * kiln.tanh(u)
    else:
        (hl, cl), (hr, cr) = encode(p, t[0]), encode(p, t[1])
        i, fl, fr, o, u = linear(kiln.cat((hl, hr)), p["wn"], p["bn"]).chunk(5)
        c = kiln.sigmoid(i) * kiln.tanh(u) + kiln.sigmoid(fl) * cl + kiln.sigmoid(fr) * cr
    return kiln.sigmoid(o) * kiln.tanh(c), c


def tree_loss(p: dict[str, Any], seed: int = 0) -> Any:
    """The loss of seven trees."""
    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(7):
        h, _ = encode(p, tree(rng, int(rng.integers(2, 9))))
        target = kiln.tensor(int(rng.integers(3)))
        losses.append(kiln.nn.functional.cross_entropy(kiln.nn.functional.linear(h, p["wo"]), target))
    return kiln.stack(losses).sum()


def close(a: Any, b: Any) -> None:
    """Within rounding of sums in another order."""
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_trees_have_the_same_bits_in_few_launches() -> None:
    """Values bit for bit, gradients within rounding, and calls of all trees together."""
    p, q = parameters(), parameters()
    want = tree_loss(p)
    with kiln.batching():
        got = tree_loss(q)
        assert got.shape == () and got.requires_grad
        got.backward()
    want.backward()
    assert got.item() == want.item()
    for name in p:
        close(q[name].grad, p[name].grad)
    found = launches()
    assert found["cross_entropy_classes"][1] == 1, found  # trees of all heights end together
    assert found["tanh"][1] < found["tanh"][0] / 3, found


def sampled() -> list[Any]:
    """Every op and function of the table with samples."""
    everything: list[Any] = [*table(), *records()]
    return [r for r in everything if r.samples is not None]


def mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with their tensors changed."""
    if isinstance(x, kiln.Tensor):
        return change(x)
    return type(x)(mapped(v, change) for v in x) if isinstance(x, (list, tuple)) else x


def check_op(record: Any, dtype: str, pending: bool) -> None:
    """The samples of three seeds, listed together, against themselves one by one: the same bits."""
    entry = Entry(record)
    if dtype not in entry.dtypes:
        return
    change = (lambda x: x.clone()) if pending else (lambda x: x)

    def results(case: Any) -> list[Any]:
        args, kwargs = mapped(case.args, change), {k: mapped(v, change) for k, v in case.kwargs.items()}
        return [y for y in results_of(entry.function(*args, **kwargs)) if isinstance(y, kiln.Tensor)]

    groups = list(zip(*(entry.cases(dtype, seed) for seed in range(3))))
    for group in groups if FULL else groups[:1]:
        cases = [tensors(kiln, case, dtype) for case in group]
        kiln.manual_seed(0)
        try:
            want = [results(case) for case in cases]
        except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError):
            continue
        kiln.manual_seed(0)
        with kiln.batching():
            got = [results(case) for case in cases]
        for ys, xs in zip(got, want, strict=True):
            for y, x in zip(ys, xs, strict=True):
                assert y.shape == x.shape and y.dtype == x.dtype, group[0].label
                assert same_bits(to_array(y), to_array(x)), group[0].label


# one op of each kind and way of being done for rows
SOME = {
    *"add where matmul linear mm bmm softmax layer_norm sum mean var cumsum sort argmax gather".split(),
    *"scatter cat stack chunk permute reshape expand index_select embedding conv1d".split(),
    *"cross_entropy norm max squeeze t".split(),
}


@pytest.mark.parametrize("dtype", ("float32", "int64", "bfloat16") if FULL else ("float32",))
@pytest.mark.parametrize("part", range(8 if FULL else 1))
def test_every_op_has_the_bits_it_has_alone(part: int, dtype: str) -> None:
    """Ops of the table, of values that are there and that are pending."""
    chosen = sampled()[part::8] if FULL else [r for r in sampled() if r.name in SOME]
    assert len(chosen) > 20
    for record in chosen:
        for pending in (False, True) if FULL else (True,):
            check_op(record, dtype, pending)
    raised = [r for r in _core.batching_statistics()[1] if "raised" in r[4]]
    assert not raised, raised


def program(seed: int, p: dict[str, Any], xs: list[Any]) -> Any:
    """A random program over rows: any order, values used twice, views, parameters at several depths."""
    rng = np.random.default_rng(seed)
    pool = [kiln.nn.functional.linear(x, p["wl"], p["bl"]).chunk(3)[k % 3] for k, x in enumerate(xs)]
    for _ in range(60):
        a, b = (pool[int(k)] for k in rng.integers(len(pool), size=2))
        which = int(rng.integers(8))
        if which == 0:
            made = a * b
        elif which == 1:
            made = kiln.tanh(a) + b * 0.5
        elif which == 2:
            made = kiln.nn.functional.linear(a, p["wl"], p["bl"])[SIZE : 2 * SIZE]
        elif which == 3:
            made = kiln.cat((a[:2], b[2:]))
        elif which == 4:
            made = kiln.softmax(a, 0) * b.sum()
        elif which == 5:
            made = kiln.tanh(a.reshape(2, 3).t().reshape(SIZE))
        elif which == 6:
            with kiln.no_grad():
                made = a * 0.1
        else:
            made = kiln.where(a > b, a, b * 0.9)
        pool.append(kiln.tanh(made))
    return kiln.stack(pool).sum()


@pytest.mark.parametrize("seed", range(40 if FULL else 6))
def test_random_programs(seed: int) -> None:
    """Bits of values, gradients of parameters and of rows."""
    p, q = parameters(), parameters()
    xs, ys = rows(5, SIZE, grad=True), rows(5, SIZE, grad=True)
    want = program(seed, p, xs)
    with kiln.batching():
        got = program(seed, q, ys)
    assert got.item() == want.item()
    want.backward()
    got.backward()
    for a, b in zip([*xs, p["wl"], p["bl"]], [*ys, q["wl"], q["bl"]]):
        close(b.grad, a.grad)


def both(function: Callable[[], list[Any]]) -> None:
    """What a function gives without and with batching is the same, within rounding."""
    want = function()
    with kiln.batching():
        got = function()
    for a, b in zip(got, want, strict=True):
        close(a, b)


def test_second_derivatives_and_gradients_of_rows() -> None:
    """create_graph, and the gradient of a value in the middle."""
    p = parameters()

    def function() -> list[Any]:
        xs = rows(4, SIZE, grad=True)
        hs = [kiln.tanh(kiln.nn.functional.linear(x, p["wl"], p["bl"])) for x in xs]
        total = kiln.stack([(h * h).sum() for h in hs]).sum()
        first = kiln.autograd.grad(total, [*xs, hs[1], p["wl"]], create_graph=True)
        squares = kiln.stack([(g * g).sum() for g in first]).sum()
        return [*first, *kiln.autograd.grad(squares, [p["wl"], xs[0]])]

    both(function)


def test_hooks_and_kept_gradients_see_the_whole_sum() -> None:
    """Of a row that was used before they were set."""
    p = parameters()

    def function() -> list[Any]:
        seen: list[Any] = []
        xs = rows(4, SIZE, grad=True)
        hs = [kiln.nn.functional.linear(x, p["wl"], p["bl"]) for x in xs]
        sums = [(h * h).sum() + h.sum() for h in hs]
        float(sums[0].detach())
        hs[2].register_hook(lambda g: (seen.append(g.clone()), g * 2)[1])
        hs[1].retain_grad()
        kiln.stack(sums).sum().backward()
        return [*seen, hs[1].grad, *(x.grad for x in xs)]

    both(function)


def test_writes_and_views() -> None:
    """What is pending has the values from before a write; a row that is written leaves the others alone."""

    def function() -> list[Any]:
        xs = rows(3, 4)
        ys = [x * 2 for x in xs]
        zs = [y + 1 for y in ys]
        xs[0].zero_()
        ys[1][:2] = 7
        more = [y * y for y in ys]
        ys[2].detach().numpy()[:] = 3
        return [*ys, *zs, *more, *(y + z for y, z in zip(ys, zs))]

    both(function)


def test_writes_in_history() -> None:
    """In place on a row, and through a view of it, where gradients are recorded."""

    def function() -> list[Any]:
        xs = rows(3, 4, grad=True)
        ys = [x * 2 for x in xs]
        views = [y[1:3] for y in ys]
        zs = [y + 1 for y in ys]
        ys[0].mul_(3)
        views[1].add_(1)
        total = kiln.stack([(y.sin() * z).sum() for y, z in zip(ys, zs)]).sum()
        total.backward()
        return [total, views[1], *(x.grad for x in xs)]

    both(function)


def test_modes_are_each_calls_own() -> None:
    """no_grad, detach and a leaf made in the middle."""

    def function() -> list[Any]:
        xs = rows(4, 4, grad=True)
        with kiln.no_grad():
            still = [x * 2 for x in xs]
        moving = [x * 2 for x in xs]
        cut = [m.detach() * 3 for m in moving]
        leaf = [s.requires_grad_() for s in still]
        total = kiln.stack([(m * c * s).sum() for m, c, s in zip(moving, cut, leaf)]).sum()
        assert [x.requires_grad for x in (cut[0], moving[0], leaf[0])] == [False, True, True]
        total.backward()
        return [*(x.grad for x in xs), *(s.grad for s in leaf)]

    both(function)


def test_errors_of_shapes_are_raised_on_their_line() -> None:
    """And leave the list as it is."""
    with kiln.batching():
        ys = [x * 2 for x in rows(3, 4)]
        with pytest.raises(RuntimeError, match="must match"):
            ys[0] + kiln.ones(5)
        zs = [y + 1 for y in ys]
    assert [z.shape[0] for z in zs] == [4] * 3


def test_positions_are_looked_at_on_their_line() -> None:
    """IndexError where the call stands, for positions that are there and such that are pending."""
    table_ = kiln.ones(4, 2)
    with kiln.batching():
        with pytest.raises(IndexError):
            kiln.nn.functional.embedding(kiln.tensor(9), table_)
        computed = kiln.tensor(5) + 4
        with pytest.raises(IndexError):
            kiln.nn.functional.embedding(computed, table_)


def test_an_exception_in_the_block() -> None:
    """What is pending runs when it is read."""
    with pytest.raises(ZeroDivisionError), kiln.batching():
        ys = [x * 2 for x in rows(3, 4)]
        raise ZeroDivisionError
    assert not _core.is_batching()
    assert ys[1].tolist() == (rows(3, 4)[1] * 2).tolist()


def test_ctrl_c_in_a_run_loses_nothing(monkeypatch: Any) -> None:
    """What did not run stays, and runs when it is read."""
    xs = rows(4, 4)
    with pytest.raises(KeyboardInterrupt), kiln.batching():
        ys = [kiln.tanh(x * 2) + k for k, x in enumerate(xs)]
        _interrupt(ys)
    for k, (x, y) in enumerate(zip(xs, ys)):
        assert y.tolist() == (kiln.tanh(x * 2) + k).tolist()


def _interrupt(ys: list[Any]) -> None:
    """Ctrl-C while the list runs: the handler is called when the core looks."""
    signal.raise_signal(signal.SIGINT)
    ys[0].item()


def test_another_thread_reads() -> None:
    """A pending value of this thread's list; and that thread's calls are not listed."""
    found: list[Any] = []
    with kiln.batching():
        y = rows(1, 4)[0] * 2
        thread = threading.Thread(target=lambda: found.append((y.tolist(), _core.is_batching())))
        thread.start()
        thread.join()
    assert found == [((rows(1, 4)[0] * 2).tolist(), False)]


def test_threads_have_lists_of_their_own() -> None:
    """Each batches, and ends with what it listed."""
    found: dict[int, Any] = {}

    def work(k: int) -> None:
        p = parameters()
        for _ in range(3):
            with kiln.batching():
                loss = tree_loss(p, k)
            found[k] = loss.item()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: tree_loss(parameters(), k).item() for k in range(3)}


def test_nothing_is_listed_inside_compiled_functions() -> None:
    """Their ops are recorded; values from the list are there for them."""

    @kiln.compile
    def inner(x: Any) -> Any:
        assert not _core.is_batching() or _core.recording()
        return kiln.tanh(x) * 2

    with kiln.batching():
        ys = [inner(x * 3) for x in rows(3, 4)]
    assert [y.tolist() for y in ys] == [(kiln.tanh(x * 3) * 2).tolist() for x in rows(3, 4)]


def test_compiled_with_batch() -> None:
    """`kiln.compile(f, batch=True)`, as a decorator too; a module is refused."""
    f = kiln.compile(lambda xs: [kiln.tanh(x * 2) for x in xs], batch=True)
    assert [y.tolist() for y in f(rows(3, 4))] == [kiln.tanh(x * 2).tolist() for x in rows(3, 4)]
    assert launches()["tanh"] == (3, 1)

    @kiln.compile(batch=True)
    def g(x: Any) -> bool:
        return _core.is_batching()

    assert g(1) and not _core.is_batching()
    with pytest.raises(TypeError, match="takes a function"):
        kiln.compile(kiln.nn.Linear(2, 2), batch=True)


def test_random_numbers_are_those_of_the_program() -> None:
    """Drawn in its order."""

    def function() -> list[Any]:
        kiln.manual_seed(1)
        return [kiln.nn.functional.dropout(x, 0.5) + kiln.rand(4) for x in rows(3, 4)]

    both(function)


def test_explained_in_words() -> None:
    """How many calls in how many launches, and why some could not."""
    with kiln.batching():
        ys = [x.square() for x in rows(3, 4)]
        for y in ys:
            kiln.as_strided(y, (2,), (1,))
    text = kiln.batching.explain(clear=True)
    assert "square      3 calls in 1 launch" in text, text
    assert "alone" in text and "places in memory" in text, text
    assert kiln.batching.explain() == "Nothing was batched yet on this thread."


def test_memory_goes_with_the_values() -> None:
    """A hundred steps leave nothing behind."""
    p = parameters()

    def step() -> int:
        with kiln.batching():
            tree_loss(p).backward()
        gc.collect()
        return int(_core.memory_stats()["allocated_bytes"])

    first = [step() for _ in range(3)][-1]
    assert [step() for _ in range(20)][-1] <= first


def test_backward_of_rows_one_after_another() -> None:
    """Rows share a launch, and what it saved: each may be passed by itself."""
    w = kiln.tensor([[0.5, -1.0], [0.25, 2.0]], requires_grad=True)
    xs = [kiln.tensor([1.0 + k, 2.0 - k]) for k in range(3)]
    (want,) = kiln.autograd.grad(kiln.stack([(x @ w).tanh().sum() for x in xs]).sum(), w)
    with kiln.batching():
        losses = [(x @ w).tanh().sum() for x in xs]
    for loss in losses:
        loss.backward()
    assert kiln.allclose(w.grad, want)
    w.grad = None

    def item(x: Any) -> None:
        (x @ w).tanh().sum().backward()

    kiln.batching.map(item, xs)
    assert kiln.allclose(w.grad, want)


def test_what_an_exception_left_is_forgotten() -> None:
    """Calls whose results are gone keep nothing alive; others run when somebody reads them."""

    def fail(keep: bool) -> Any:
        large = kiln.rand(300, 300)
        held = None
        try:
            with kiln.batching():
                pending = [large @ large for _ in range(3)]
                held = pending[0] if keep else None
                del pending
                raise KeyError
        except KeyError:
            return held

    gc.collect()
    before = _core.memory_stats()["allocated_bytes"]
    assert fail(False) is None
    gc.collect()
    assert _core.memory_stats()["allocated_bytes"] - before < 300 * 300 * 4
    held = fail(True)
    assert held.shape == (300, 300) and held.isfinite().all().item()


def test_rows_are_picked_at_positions_of_each_call() -> None:
    """Negative positions and repeated ones; gradients have the bits of the calls one by one."""
    positions = [kiln.tensor(p) for p in ([0, -1, 2, 0], [1, 1, 1, -5], [4, 3, -2, 0])]

    def run(batched: bool) -> list[bytes]:
        xs = [(kiln.arange(15.0).reshape(5, 3) * 0.3 + k).requires_grad_() for k in range(3)]
        with kiln.batching() if batched else nullcontext():
            picked = [(x * 1.5)[at] for x, at in zip(xs, positions)]
            kiln.stack([(y * y * y).sum() for y in picked]).sum().backward()
        return [t.numpy().tobytes() for t in (*[y.detach() for y in picked], *[x.grad for x in xs])]

    kiln.batching.explain(clear=True)
    assert run(True) == run(False)
    assert "take_at  3 calls in 1 launch" in kiln.batching.explain(clear=True)
