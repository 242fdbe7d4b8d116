"""Pure cells in a batching block: one entry each, launched for rows; bits, gradients, checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln import _core
from kiln.table.record import find
from kiln.testing.compare import same_bits

pytestmark = needs_kiln
SIZE = 4


@pytest.fixture(params=[False, True], ids=["unchecked", "checked"])
def checked(request: Any) -> Iterator[bool]:
    """Whether every call is checked, as with KILN_CHECK=1; counts of batching begin anew."""
    before = _core.set_check(request.param)
    _core.clear_batching_statistics()
    yield request.param
    _core.set_check(before)
    _core.run_pending()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Calls are checked as in a program."""
    before = _core.set_check(False)
    _core.clear_batching_statistics()
    yield
    _core.set_check(before)
    _core.run_pending()


def launches(name: str) -> tuple[int, int]:
    """How many calls of a function ran in how many launches."""
    rows = [row for row in _core.batching_statistics()[1] if row[0] == name]
    return sum(row[1] for row in rows), sum(row[2] for row in rows)


def fixed(module: Any) -> Any:
    """The module with fixed random parameters."""
    rng = np.random.default_rng(3)
    with kiln.no_grad():
        for p in module.parameters():
            p.copy_(kiln.tensor(rng.normal(size=tuple(p.shape)).astype("float32") * 0.5))
    return module


def rows(count: int, *shape: int, seed: int = 0) -> list[Any]:
    """Tensors of fixed random values."""
    rng = np.random.default_rng(seed)
    return [kiln.tensor(rng.normal(size=shape).astype("float32")) for _ in range(count)]


def gradients(of: Any) -> list[Any]:
    """Of a module's parameters, taken off them."""
    found = [p.grad.numpy().copy() for p in of.parameters()]
    for p in of.parameters():
        p.grad = None
    return found


class Leaf(kiln.nn.Module):
    """A word's number -> its state and memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gates = kiln.nn.Embedding(7, SIZE), kiln.nn.Linear(SIZE, 3 * SIZE)

    def forward(self, word: Any) -> tuple[Any, Any]:
        i, o, u = self.gates(self.embedding(word)).chunk(3, dim=1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Node(kiln.nn.Module):
    """Two states with their memories -> one."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = kiln.nn.Linear(2 * SIZE, 5 * SIZE)

    def forward(self, h1: Any, c1: Any, h2: Any, c2: Any) -> tuple[Any, Any]:
        i, f1, f2, o, u = self.gates(kiln.cat((h1, h2), dim=1)).chunk(5, dim=1)
        c = i.sigmoid() * u.tanh() + f1.sigmoid() * c1 + f2.sigmoid() * c2
        return o.sigmoid() * c.tanh(), c


def tree(rng: Any, words: int) -> Any:
    """A random binary tree over words."""
    if words == 1:
        return int(rng.integers(7))
    left = int(rng.integers(1, words))
    return tree(rng, left), tree(rng, words - left)


def read(leaf: Any, node: Any, t: Any) -> tuple[Any, Any]:
    """The state and memory of a tree, by recursion."""
    if isinstance(t, int):
        return leaf(kiln.tensor([t]))  # type: ignore[no-any-return]
    return node(*read(leaf, node, t[0]), *read(leaf, node, t[1]))  # type: ignore[no-any-return]


def test_trees(checked: bool) -> None:
    """Of trees: values bit for bit, gradients within rounding, and few launches of each cell."""
    leaf, node = fixed(Leaf()), fixed(Node())
    both = kiln.nn.ModuleList([leaf, node])
    pure_leaf, pure_node = kiln.compile(leaf, pure=True), kiln.compile(node, pure=True)
    rng = np.random.default_rng(1)
    trees = [tree(rng, int(rng.integers(4, 10))) for _ in range(9)]
    want = kiln.cat([read(leaf, node, t)[0] for t in trees])
    want.square().sum().backward()
    expected = gradients(both)
    for _ in range(2):
        _core.clear_batching_statistics()
        with kiln.batching():
            got = kiln.cat([read(pure_leaf, pure_node, t)[0] for t in trees])
        got.square().sum().backward()
        assert same_bits(got.detach().numpy(), want.detach().numpy())
        for a, b in zip(gradients(both), expected):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    if not checked:
        calls, times = launches("Node")
        assert calls > 40 and times < 12, kiln.batching.explain()
        assert launches("Leaf")[1] == 1, kiln.batching.explain()


def test_lstm_steps_of_texts_of_all_lengths(checked: bool) -> None:
    """Texts of many lengths through one LSTM cell: step t of all that have one is one launch."""
    cell = fixed(kiln.nn.LSTMCell(3, SIZE))
    pure = kiln.compile(cell, pure=True)
    texts = [rows(n, 1, 3, seed=n) for n in (2, 5, 3, 6, 4, 6)]

    def last(step: Any, text: list[Any]) -> Any:
        h = c = kiln.zeros(1, SIZE)
        for x in text:
            h, c = step(x, (h, c))
        return h

    want = kiln.cat([last(cell, text) for text in texts])
    want.square().sum().backward()
    expected = gradients(cell)
    for _ in range(2):
        _core.clear_batching_statistics()
        with kiln.batching():
            got = kiln.cat([last(pure, text) for text in texts])
        got.square().sum().backward()
        assert same_bits(got.detach().numpy(), want.detach().numpy())
        for a, b in zip(gradients(cell), expected):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    if not checked:
        assert launches("LSTMCell") == (26, 6), kiln.batching.explain()


W, B = kiln.full((SIZE, SIZE), 0.25, requires_grad=True), kiln.full((SIZE,), 0.5, requires_grad=True)


def detaches(x: Any) -> Any:
    return (x @ W).tanh() * (x @ W).detach() + B


def pools(x: Any) -> dict[str, Any]:
    y = (x @ W).unsqueeze(0).softmax(-1)
    return {"mean": y.mean(), "top": y.amax(1), "sums": y.cumsum(1).transpose(0, 1)}


def half(x: Any) -> Any:
    return ((x * 1.1).half() * 1.3 + B.half()).sigmoid()


def of_another(x: Any) -> Any:
    return kiln.where(x > 0, x * INNER(x), x.new_ones(()))


def with_number(x: Any) -> Any:
    return kiln.stack([x.sum() * 2 + k for k in range(3)]) / x.shape[0]


def writes(x: Any) -> Any:
    y = x * 2
    y[0] = 1.0
    return y.exp_()


INNER = kiln.compile(detaches, pure=True)


@pytest.mark.parametrize("function", [detaches, pools, half, of_another, with_number, writes])
def test_functions(function: Callable[..., Any], unchecked: None) -> None:
    """Values, and gradients of what is the same for all and of each row, as without a cell and a block."""
    cell = kiln.compile(function, pure=True)

    def run(call: Callable[..., Any], block: Any) -> tuple[list[Any], list[Any]]:
        xs = [x.requires_grad_() for x in rows(5, SIZE)]
        with block:
            given = [call(x + 0) for x in xs]  # a leaf would be the same array for all calls
        outs = [y for made in given for y in (made.values() if isinstance(made, dict) else (made,))]
        total = sum((y.float().square().sum() for y in outs), kiln.zeros(()))
        grads = kiln.autograd.grad(total, [*xs, W, B], allow_unused=True)
        return [y.detach().numpy() for y in outs], [None if g is None else g.numpy() for g in grads]

    values, grads = run(function, nullcontext())
    for _ in range(2):
        _core.clear_batching_statistics()
        got, their = run(cell, kiln.batching())
        for a, b in zip(got, values):
            assert same_bits(a, b)
        for a, b in zip(their, grads):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-3 if function is half else 2e-5, atol=2e-6)
    calls, times = launches(function.__name__)
    assert calls == 5 and times == (5 if function is writes else 1), kiln.batching.explain()


def test_checks_in_a_block_compare_what_python_does(unchecked: None) -> None:
    """One of 256 calls is looked at, which runs no list; what a function does differently is told."""

    class Odd:
        way = 0

    odd = {"one": Odd()}

    def f(x: Any) -> Any:
        y, z = x * 2, x + 1
        return ((y, z), (z, y), (y, y * 2))[odd["one"].way]

    for way in (1, 2):
        odd["one"].way = 0
        cell = kiln.compile(f, pure=True)
        x = rows(1, SIZE)[0]
        _core.clear_batching_statistics()
        with kiln.batching():
            for _ in range(600):
                cell(x)
        runs = _core.batching_statistics()[0]
        assert runs <= 4 and cell.stats()["checks"] >= 4, (runs, cell.stats())
        odd["one"].way = way
        with pytest.raises(kiln.compiler.PurityError, match="gone on since call"), kiln.batching():
            for _ in range(600):
                cell(x)


@pytest.mark.parametrize(
    "sizes, parts",
    [
        ([(3, 0, 1)], []),
        ([(0, 2, 1)], []),
        ([], [("leaf", 1)]),
        ([], [("leaf", -1)]),
        ([], [("argument", 0)]),
    ],
)
def test_a_part_that_no_call_has_is_refused(sizes: list[Any], parts: list[Any]) -> None:
    """What the core is told of a cell's calls is checked when it is told."""
    cell, none, tanh = _core.Cell(lambda *_: None), _core.Guards([]), find("tanh").handle
    given = [
        (kiln.zeros(1, 4),),
        {},
        none,
        none,
        sizes,
        parts,
        0,
        tanh,
        (),
        True,
        None,
        [],
        {},
    ]
    with pytest.raises(ValueError, match="Cell: a (size|part) .*that the call has not"):
        cell.add(*given, set(), [])
    given[4:6] = [(0, 1, 4)], [("leaf", 0)]
    assert cell.add(*given, set(), [])
