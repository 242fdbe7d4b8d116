"""Pure functions: a call is one op, with the numbers, gradients and results of the Python it stands for."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kiln
from kiln import _core, nn
from kiln.nn import functional as F

Pair = namedtuple("Pair", "first second")


@pytest.fixture(params=[True, False], ids=["checked", "fast"])
def mode(request: Any) -> Iterator[None]:
    """Every call checked, or calls that look alike left to the core."""
    before = _core.set_check(request.param)
    yield
    _core.set_check(before)


@pytest.fixture
def fast() -> Iterator[None]:
    before = _core.set_check(False)
    yield
    _core.set_check(before)


def pure(function: Callable[..., Any]) -> Any:
    return kiln.compile(function, pure=True)


class LSTM(nn.Module):
    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(size, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Any, state: Any) -> Any:
        h, c = state
        i, f, g, o = (self.x(self.drop(x)) + self.h(h)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, (h, c)


class Tree(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.both = nn.Linear(2 * hidden, 5 * hidden)

    def forward(self, left: Any, right: Any) -> Any:
        i, f, g, o, r = self.both(kiln.cat([left[0], right[0]], 1)).chunk(5, 1)
        c = i.sigmoid() * g.tanh() + f.sigmoid() * left[1] + r.sigmoid() * right[1]
        return o.sigmoid() * c.tanh(), c


class GRU(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gates, self.new = nn.Linear(2 * size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Any, h: Any) -> Any:
        r, z = self.gates(kiln.cat([x, h], -1)).sigmoid().split(h.shape[-1], -1)
        n = self.new(kiln.cat([x, r * h], -1)).tanh()
        return (1 - z) * n + z * h


class Attention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(size, 3 * size), nn.Linear(size, size), nn.LayerNorm(size)

    def forward(self, x: Any) -> dict[str, Any]:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, -1)
        return {"y": x + self.out(weights @ v), "weights": weights}


class Perceptron(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(size, size), nn.Linear(size, size)
        self.b.weight = self.a.weight  # shared

    def forward(self, x: Any) -> Any:
        y = F.dropout(F.gelu(self.a(x)), 0.4, self.training)
        y = self.b(y) + y
        y[:, 0] = 0
        y[:, 1:].mul_(2)
        return y, y.argmax(1), (y > 0).sum(), None


def flat(value: Any) -> list[Any]:
    if isinstance(value, kiln.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [x for item in items for x in flat(item)]


def unroll(cell: Any, net: Any, x: Any, h: Any, c: Any) -> list[Any]:
    """Three calls in a chain: what they give, and all gradients."""
    kiln.manual_seed(3)
    net.zero_grad()
    x, h, c = (t.detach().requires_grad_() for t in (x, h, c))
    found = []
    if isinstance(net, LSTM):
        y, state = cell(x, (h, c))
        y, state = cell(x, state)
        found = flat(cell(y, (state[0], c)))
    elif isinstance(net, Tree):
        inner = cell((h, c), (x, c))
        found = flat(cell(inner, cell((x, h), inner)))
    elif isinstance(net, GRU):
        found = flat(cell(x, cell(x, cell(h, x))))
    else:
        first = flat(cell(x))
        found = first + flat(cell(first[0]))
    sum((y.sin() * (k + 1)).sum() for k, y in enumerate(found) if y.requires_grad).backward()
    gradients = [t.grad for t in (x, h, c, *net.parameters())]
    return [*found, *(g for g in gradients if g is not None), kiln.get_rng_state()]


MODULES = [LSTM(4, 4), Tree(4), GRU(4), Attention(4), Perceptron(4)]


@pytest.mark.parametrize("net", MODULES, ids=lambda net: type(net).__name__)
def test_a_cell_gives_the_bits_of_the_python_it_stands_for(net: Any, mode: None) -> None:
    kiln.manual_seed(0)
    x, h, c = (kiln.randn(3, 4) for _ in range(3))
    cell = pure(net)
    expected = unroll(net, net, x, h, c)
    for _ in range(4):
        found = unroll(cell, net, x, h, c)
        assert len(found) == len(expected)
        for a, b in zip(expected, found):
            assert a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


def test_one_call_is_one_node(fast: None) -> None:
    net = Tree(4)
    cell = pure(net)
    state = kiln.randn(1, 4), kiln.randn(1, 4)
    for _ in range(4):
        h, c = cell(state, state)
    assert h.grad_fn is not None and h.grad_fn is c.grad_fn
    calls = cell._kiln_compiled.stats()
    assert calls["calls"] == 4 and calls["variants"] == 1 and calls["checks"] == 2


def step(x: Any, h: Any, w: Any) -> Any:
    return kiln.tanh(x + h @ w), x * h


def test_higher_derivatives_and_maps(mode: None) -> None:
    kiln.manual_seed(1)
    x, h, w = (kiln.randn(3, 3, dtype=kiln.float64).requires_grad_() for _ in range(3))
    cell = pure(step)
    for _ in range(3):
        cell(x, h, w)
    assert kiln.autograd.gradcheck(cell, (x, h, w))
    assert kiln.autograd.gradgradcheck(cell, (x, h, w))
    many = kiln.randn(4, 3, 3, dtype=kiln.float64)
    mapped = kiln.func.vmap(cell, in_dims=(0, None, None))
    expected = kiln.func.vmap(step, in_dims=(0, None, None))(many, h.detach(), w.detach())
    assert all(bool((a == b).all()) for a, b in zip(mapped(many, h.detach(), w.detach()), expected))
    of = [kiln.func.grad(lambda w, f=f: f(many[0], many[1], w)[0].sum()) for f in (cell, step)]
    assert bool((of[0](w.detach()) == of[1](w.detach())).all())
    given = (many[2],), (many[3],)
    tangents = [kiln.func.jvp(lambda w, f=f: f(many[0], many[1], w)[0], *given)[1] for f in (cell, step)]
    assert kiln.allclose(*tangents)


def test_a_cell_is_recorded_and_may_hold_cells(mode: None) -> None:
    kiln.manual_seed(2)
    inner = pure(lambda x: kiln.tanh(x) * 2)
    outer = pure(lambda x: inner(x) + inner(x * 2))
    x = kiln.randn(2, 3).requires_grad_()

    def plain(x: Any) -> Any:
        return kiln.tanh(x) * 2 + kiln.tanh(x * 2) * 2

    region = kiln.compile(lambda x: outer(x * 3).sum(), wait=True)
    (expected,) = kiln.autograd.grad(plain(x * 3).sum(), x)
    for _ in range(4):
        (found,) = kiln.autograd.grad(region(x), x)
        assert bool((found == expected).all())


def test_structures_come_back(mode: None) -> None:
    def f(x: Any, *, scale: float = 2.0, more: Any = None) -> Any:
        return Pair({"a": [x * scale, None, 3]}, (x.argmax(1), "text", x, x.t()))

    cell = pure(f)
    x = kiln.randn(2, 3)
    for _ in range(4):
        y = cell(x, scale=3.0)
        assert type(y) is Pair and y.first["a"][1:] == [None, 3] and y.second[1] == "text"
        assert y.second[2] is x and y.second[3]._base is x
        assert bool((y.first["a"][0] == x * 3).all())
        assert bool((cell(x).first["a"][0] == x * 2).all())
    both = pure(lambda xs: kiln.cat(xs, 1).chunk(2, 1))
    for _ in range(4):
        a, b = both([x, x + 1])
        assert a._base is b._base is not None and not a.is_contiguous() and bool((b == x + 1).all())


def test_what_a_cell_goes_by(mode: None) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    cell = pure(net)
    x = kiln.randn(2, 3)
    for _ in range(4):
        cell(x)
    net.eval()
    assert bool((cell(x) == net(x)).all())
    with kiln.no_grad():
        assert not cell(x).requires_grad
    net[0].weight = nn.Parameter(kiln.ones(3, 3))
    assert bool((cell(x) == net(x)).all())
    net[0] = nn.Linear(3, 3)
    assert bool((cell(x) == net(x)).all())
    net.requires_grad_(False)
    assert not cell(x).requires_grad
    net.double()
    assert cell(x.double()).dtype is kiln.float64
    assert bool((cell(x.double()) == net(x.double())).all())
    for rows in (1, 2, 5):
        assert cell(kiln.ones(rows, 3, dtype=kiln.float64)).shape == (rows, 3)
    assert cell(kiln.ones(3, dtype=kiln.float64)).shape == (3,)
    w = kiln.ones(3, 3)
    again = pure(lambda x: x @ w)
    for x in (w, w, w, 2 * w, kiln.ones(1, 3), w):
        assert bool((again(x) == x @ w).all())
    w.data = w.double()
    assert again(w).dtype is kiln.float64
    branch = pure(lambda x: x * 2 if x.shape[0] > 2 else x + 1)
    for rows in (2, 3, 4, 2, 1):
        x = kiln.ones(rows, 2)
        assert bool((branch(x) == (x * 2 if rows > 2 else x + 1)).all())


def test_positions_are_checked_at_every_call(fast: None) -> None:
    table, x = kiln.randn(4, 3), kiln.randn(3, 4)
    look = pure(lambda i: F.embedding(i, table) * 2)
    loss = pure(lambda x, t: F.cross_entropy(x * 2, t))
    for _ in range(4):
        look(kiln.tensor([1, 2]))
        loss(x, kiln.tensor([1, 2, 0]))
    with pytest.raises(IndexError, match="index out of range"):
        look(kiln.tensor([1, 7]))
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        loss(x, kiln.tensor([1, 9, 0]))


def test_threads_share_a_cell(fast: None) -> None:
    net = GRU(4)
    cell = pure(net)
    x = kiln.randn(2, 4)
    expected = net(x, x)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(50):
            if not bool((cell(x, x) == expected).all()):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_recursion_through_a_cell(mode: None) -> None:
    net = Tree(4)
    cell = pure(net)
    leaf = kiln.randn(1, 4), kiln.randn(1, 4)

    def tree(f: Any, depth: int) -> Any:
        return leaf if depth == 0 else f(tree(f, depth - 1), tree(f, depth - 1))

    found = []
    for f in (net, cell):
        net.zero_grad()
        y = tree(f, 3)[0]
        y.sum().backward()
        found.append([y, *(p.grad for p in net.parameters())])
    assert all(bool((a == b).all()) for a, b in zip(*found))


def test_copies_have_their_own_parameters(mode: None) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = pure(nn.Linear(2, 2))

        def forward(self, x: Any) -> Any:
            return self.cell(x)

    net, x = Net(), kiln.ones(1, 2)
    for _ in range(4):
        net(x)
    other = copy.deepcopy(net)
    with kiln.no_grad():
        other.cell.weight.zero_()
        other.cell.bias.zero_()
    assert bool((other(x) == 0).all()) and not bool((net(x) == 0).all())
    again = pickle.loads(pickle.dumps(pure(nn.Linear(2, 2))))
    assert again(x).shape == (1, 2) and again._kiln_compiled.stats()["calls"] == 1


def test_as_a_decorator_and_a_method(mode: None) -> None:
    class Net:
        def __init__(self) -> None:
            self.w = kiln.ones(2, 2)

        @kiln.compile(pure=True)
        def step(self, x: Any) -> Any:
            return x @ self.w

    a, b = Net(), Net()
    b.w = b.w * 2
    for _ in range(4):
        assert a.step(kiln.ones(1, 2)).tolist() == [[2, 2]] and b.step(kiln.ones(1, 2)).tolist() == [[4, 4]]


def test_memory_and_signatures_are_bounded(fast: None) -> None:
    cell = pure(lambda x, k: x * (k + 1))  # Python reads k
    x = kiln.ones(2)
    for k in range(80):
        assert cell(x, k).tolist() == [k + 1] * 2
    stats = cell.stats()
    assert stats["variants"] <= 64 and stats["forgotten"] >= 8 and stats["calls"] < 80
    assert "ran as Python has them" in kiln.compiler.explain(cell)
    step = pure(lambda x: x * 2 + 1)
    for _ in range(300):
        step(x)
    gc.collect()
    before = _core.memory_stats()["allocated_bytes"]
    for _ in range(10_000):
        step(x)
    assert _core.memory_stats()["allocated_bytes"] <= before + 4096


def test_half_precision(mode: None) -> None:
    def f(x: Any) -> Any:
        return F.gelu(F.softmax(x, 1) @ x.t() * 2)

    cell, x = pure(f), kiln.randn(3, 4).half().requires_grad_()
    for _ in range(3):
        pairs = [(y, kiln.autograd.grad(y.sum(), x)[0]) for y in (f(x), cell(x))]
        assert all(bool((a == b).all()) for a, b in zip(*pairs))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cell_first_called_in_a_batched_block(depth: int, mode: None) -> None:
    """Its first calls are traced and checked on their lines; later ones wait with others."""
    w = kiln.tensor([[0.5, -1.0], [0.25, 2.0]], requires_grad=True)

    def function(x: Any, h: Any) -> Any:
        return (x + h @ w).tanh()

    def run(cell: Any) -> Any:
        w.grad = None
        h = kiln.ones(2)
        steps = []
        for _ in range(5):
            h = cell(kiln.tensor([0.5, 1.0]), h)
            steps.append(h)
        total = kiln.stack(steps).sum()
        total.backward()
        return total.item(), w.grad

    want, gradient = run(function)
    with kiln.batching():
        if depth == 2:
            with kiln.batching():
                got, grad = run(pure(function))
        else:
            got, grad = run(pure(function))
        assert _core.is_batching()
    assert got == want
    assert kiln.allclose(grad, gradient)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.expand(2, *x.shape) * 1.0,
        lambda x: x * x.new_ones(x.shape),
        lambda x: F.layer_norm(x, x.shape),
    ],
    ids=["expand", "new_ones", "layer_norm"],
)
def test_sizes_given_to_ops_as_numbers(function: Any, mode: None) -> None:
    """Another size is another program."""
    cell = pure(function)
    for n in (3, 3, 3, 5, 5, 3):
        x = kiln.arange(4 * n).reshape(n, 4) * 0.5
        assert cell(x).tolist() == function(x).tolist()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[0],
        lambda x: x[1:],
        lambda x: x.view(2, 2),
        lambda x: (x.detach()[None].expand(3, -1), x * 2),
        lambda x: x.unfold(0, 2, 1),
        lambda x: x.view(2, 2).t()[:, None],
        lambda x: x.as_strided((2, 2), (2, 1)),
        lambda x: x.split(2),
        lambda x: (x * 2)[1:3],
    ],
)
def test_views_that_a_cell_returns_are_views_of_samples(function: Any) -> None:
    x = kiln.arange(12.0).reshape(3, 4).requires_grad_()

    def total(y: Any) -> Any:
        return sum((part * 3).sum() for part in (y if isinstance(y, tuple) else (y,)))

    cell = kiln.compile(function, pure=True)
    for _ in range(3):
        made, expected = kiln.vmap(cell)(x), kiln.vmap(function)(x)
        for y, z in zip(*((v if isinstance(v, tuple) else (v,)) for v in (made, expected)), strict=True):
            assert y.tolist() == z.tolist() and y.requires_grad == z.requires_grad
        found, wanted = (kiln.vmap(kiln.func.grad(lambda y, f=f: total(f(y))))(x) for f in (cell, function))
        assert found.tolist() == wanted.tolist()
