"""Gradients under batching: the bits of the program without it, whatever ran together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln import _core
from kiln.testing.compare import same_bits

pytestmark = needs_kiln
Tensors = dict[str, Any]
Program = Callable[[Tensors], Any]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Counts begin anew, and nothing is left on the list."""
    _core.clear_batching_statistics()
    yield
    _core.run_pending()


def drawn(seed: int = 0, **shapes: tuple[int, ...]) -> Tensors:
    """Leaves of fixed random values, of sizes between 1e-3 and 1e3: sums in another order show."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes.items():
        values = rng.normal(size=shape) * 10.0 ** rng.uniform(-1, 1, size=shape)
        made[name] = kiln.tensor(values.astype("float32"), requires_grad=True)
    return made


def copies(leaves: Tensors) -> Tensors:
    """Leaves of the same values."""
    return {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}


def data(count: int, *shape: int, seed: int = 1) -> list[Any]:
    """Tensors without gradients."""
    rng = np.random.default_rng(seed)
    return [kiln.tensor(rng.normal(size=shape).astype("float32")) for _ in range(count)]


def same_gradients(
    program: Program, leaves: Tensors, batched: bool = True, create_graph: bool = False
) -> None:
    """A program's value and gradients with and without batching, bit for bit."""
    plain, together = copies(leaves), copies(leaves)
    want = program(plain)
    with kiln.batching():
        got = program(together)
        got.backward(create_graph=create_graph)
    want.backward(create_graph=create_graph)
    assert same_bits(got.detach().numpy(), want.detach().numpy())
    for name in plain:
        a, b = together[name].grad, plain[name].grad
        assert (a is None) == (b is None), name
        assert a is None or same_bits(a.detach().numpy(), b.detach().numpy()), (
            name,
            float((a - b).abs().max()),
        )
    if batched:
        calls, runs = (sum(row[k] for row in _core.batching_statistics()[1]) for k in (1, 2))
        assert runs < calls, "nothing ran together"


linear = kiln.nn.functional.linear if kiln else None
COUNT = 9


def shared_bias(p: Tensors) -> Any:
    """Rows of two lengths plus one bias, a scale multiplied, and a number of no dims."""
    short, long = data(COUNT, 5), data(COUNT, 3, 5, seed=2)
    parts = [(kiln.tanh(x * p["s"] + p["b"]) * p["c"]).sum() for pair in zip(short, long) for x in pair]
    return kiln.stack(parts).sum()


def layer_norms(p: Tensors) -> Any:
    """Layer norm's weights, of one row and of several."""
    f = kiln.nn.functional
    parts = []
    for x, y in zip(data(COUNT, 5), data(COUNT, 3, 5, seed=2)):
        parts.append((f.layer_norm(x, (5,), p["g"], p["b"]) * p["s"]).sum())
        parts.append(f.layer_norm(y * p["s"], (5,), p["g"], p["b"]).square().sum())
    return kiln.stack(parts).sum()


def embeddings(p: Tensors) -> Any:
    """Rows picked by positions, some of them twice, and by a number."""
    f = kiln.nn.functional
    rng = np.random.default_rng(3)
    parts = []
    for i in range(COUNT):
        words = kiln.tensor(rng.integers(0, 7, size=4))
        parts.append((f.embedding(words, p["e"]) * p["s"]).sum())
        parts.append(kiln.tanh(f.embedding(kiln.tensor(int(rng.integers(7))), p["e"]) * p["s"]).sum())
        parts.append((p["e"][i % 7] * p["s"]).sum())
    return kiln.stack(parts).sum()


def weights_once(p: Tensors) -> Any:
    """A weight that few rows are multiplied with, in calls of one row and of three."""
    parts = []
    for x, y in zip(data(COUNT, 12), data(COUNT, 3, 12, seed=2)):
        parts.append(kiln.tanh(linear(x, p["w"], p["wb"])).sum())
        parts.append(kiln.tanh(y @ p["w"].t()).sum())
    return kiln.stack(parts).sum()


def narrow_weight(p: Tensors) -> Any:
    """A weight that is narrower than its rows are many: products are added as arrays."""
    parts = []
    for x, y in zip(data(COUNT, 6, 4), data(COUNT, 9, 4, seed=2)):
        parts.append(kiln.tanh(linear(x, p["v"], p["vb"])).sum())
        parts.append((y @ p["v"].t()).square().sum())
    return kiln.stack(parts).sum()


def both_ways(p: Tensors) -> Any:
    """One matrix from both sides, and as it is."""
    parts = [(p["q"] * p["q"]).sum()]
    transposed = p["q"].t()
    for x, y in zip(data(COUNT, 12), data(COUNT, 2, 12, seed=2)):
        h = kiln.tanh(linear(x, p["q"]))
        parts.append((h @ transposed @ p["q"]).sum())
        parts.append(kiln.tanh(y @ p["q"]).sum())
        parts.append(kiln.tanh(y @ p["q"].t()).sum())
    return kiln.stack(parts).sum()


def loops(p: Tensors) -> Any:
    """Chains of different lengths, whose steps run together; a state is used three times and in slices."""
    parts = []
    for i, x in enumerate(data(COUNT, 12)):
        h = x
        for _ in range(1 + i % 4):
            z = linear(h, p["q"], p["wb"])
            a, b = z.chunk(2)
            h = kiln.cat((kiln.tanh(a) * kiln.sigmoid(b), a[:3] * b[3:], b[1:4])) + z * h[2] - kiln.tanh(z)
        parts.append(h.sum())
        if i % 2:
            parts.append(kiln.softmax(h * p["s2"], 0).square().sum())
    return kiln.stack(parts).sum()


def tree(rng: Any, words: int) -> Any:
    """A random binary tree over words."""
    if words == 1:
        return int(rng.integers(7))
    left = int(rng.integers(1, words))
    return tree(rng, left), tree(rng, words - left)


def node(p: Tensors, left: Any, right: Any) -> Any:
    """What a tree's node is of its children: state and memory."""
    (hl, cl), (hr, cr) = left, right
    i, fl, fr, o, u = linear(kiln.cat((hl, hr)), p["wn"], p["bn"]).chunk(5)
    c = kiln.sigmoid(i) * kiln.tanh(u) + kiln.sigmoid(fl) * cl + kiln.sigmoid(fr) * cr
    return kiln.sigmoid(o) * kiln.tanh(c), c


def trees(p: Tensors, inner: Callable[..., Any] = node) -> Any:
    """Trees of several heights, with their words' rows and a classification of each root."""
    rng = np.random.default_rng(0)

    def encode(t: Any) -> Any:
        if isinstance(t, int):
            x = p["e"][t] if t % 2 else kiln.nn.functional.embedding(kiln.tensor(t), p["e"])
            c = kiln.tanh(linear(x, p["we"], p["be"]))
            return kiln.tanh(c), c
        return inner(p, encode(t[0]), encode(t[1]))

    losses = []
    for _ in range(6):
        h, _ = encode(tree(rng, int(rng.integers(2, 8))))
        target = kiln.tensor(int(rng.integers(3)))
        losses.append(kiln.nn.functional.cross_entropy(linear(h, p["wo"]), target))
    return kiln.stack(losses).sum()


LEAVES: dict[str, tuple[int, ...]] = {
    "s": (5,), "b": (5,), "c": (), "g": (5,), "e": (7, 5), "w": (10, 12), "wb": (12,), "v": (3, 4),
    "vb": (3,), "q": (12, 12), "s2": (12,), "we": (6, 5), "be": (6,), "wn": (30, 12), "bn": (30,),
    "wo": (3, 6),
}  # fmt: skip
PROGRAMS = (shared_bias, layer_norms, embeddings, weights_once, narrow_weight, both_ways, loops, trees)


def leaves_of(program: Program) -> Tensors:
    """The leaves a program reads."""
    if program is weights_once:
        return drawn(w=(10, 12), wb=(10,))
    return drawn(**LEAVES)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients_have_the_same_bits(program: Program) -> None:
    """Programs of many kinds."""
    same_gradients(program, leaves_of(program))


@pytest.mark.parametrize("program", (shared_bias, both_ways, trees), ids=lambda f: f.__name__)
def test_gradients_to_be_differentiated_have_the_same_bits(program: Program) -> None:
    """Backward with create_graph."""
    same_gradients(program, leaves_of(program), create_graph=True)


def test_gradients_of_pure_cells_have_the_same_bits() -> None:
    """Trees whose nodes are calls of a cell: of what a root gives, the memory gets no gradient."""
    leaves = leaves_of(trees)

    def program(p: Tensors) -> Any:
        cell = kiln.compile(lambda left, right: node(p, left, right), pure=True)
        return trees(p, lambda _, left, right: cell(left, right))

    same_gradients(program, leaves)


def hidden_rows(count: int = 4) -> tuple[Tensors, list[Any]]:
    """Leaves and a softmax of rows, which ran as launches."""
    p = drawn(q=(12, 12), s2=(12,))
    with kiln.batching():
        ys = [kiln.log_softmax(kiln.tanh(linear(x, p["q"])) * p["s2"], 0) for x in data(count, 12)]
    return p, ys


def test_rows_that_got_no_gradient_take_no_part() -> None:
    """NaN and infinity in other rows do not reach a shared weight, nor this row."""
    want = None
    for poison in (1.0, float("inf"), float("nan")):
        p = drawn(q=(12, 12), s2=(12,), e=(7, 12))
        xs = data(4, 12)
        xs[2] = xs[2] * poison
        with kiln.batching():
            hs = [linear(x * p["s2"] + p["e"][k], p["q"]) for k, x in enumerate(xs)]
            ys = [kiln.log_softmax(kiln.exp(h * 0.1), 0).square().sum() for h in hs]
        (ys[0] + ys[3]).backward()
        got = [p[name].grad.numpy() for name in ("q", "s2", "e")]
        want = want or got
        assert all(same_bits(a, b) for a, b in zip(got, want))


def test_rows_are_passed_one_after_the_other() -> None:
    """Each row's backward alone, in any order, adds what it adds without batching; a second one raises."""
    p, ys = hidden_rows()
    q = copies(p)
    zs = [kiln.log_softmax(kiln.tanh(linear(x, q["q"])) * q["s2"], 0) for x in data(4, 12)]
    for k in (2, 0, 3, 1):
        ys[k].square().sum().backward()
        zs[k].square().sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            ys[k].square().sum().backward()
        assert all(same_bits(p[name].grad.numpy(), q[name].grad.numpy()) for name in p)


def test_what_a_launch_saved_is_freed() -> None:
    """By a backward through all rows without retain_graph; one with it leaves it."""
    p, ys = hidden_rows()
    total = kiln.stack(ys).sum()
    total.backward(retain_graph=True)
    total.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        kiln.stack(ys).sum().backward()
    freed = kiln.stack([kiln.tanh(x) for x in data(2, 3)])
    assert not freed.requires_grad and p["q"].grad is not None


@pytest.mark.parametrize("view", (False, True))
@pytest.mark.parametrize("what", ("result", "operand", "row", "other"))
def test_writes_to_what_a_launch_saved_are_refused(what: str, view: bool) -> None:
    """As one by one: at backward, if the write was to a row that it passes; through views too."""

    def attempt() -> str:
        p = drawn(q=(12, 12))
        xs = data(4, 12)
        ys = [linear(x, p["q"]) for x in xs]
        hs = [kiln.tanh(y) for y in ys]
        zs = [(h * h).sum() for h in hs]
        float(zs[0].detach())
        target = {"result": hs[1], "operand": xs[1], "row": ys[1], "other": hs[2]}[what]
        with kiln.no_grad():
            (target[2:5] if view else target).mul_(2.0)
        try:
            zs[1].backward()
        except RuntimeError as error:
            return str(error)[:90]
        return "passed"

    want = attempt()
    with kiln.batching():
        assert attempt() == want
    assert ("modified by an inplace" in want) == (what in ("result", "operand"))
