"""What a cell goes by besides tensors, and what it may write: attributes, numbers, buffers, autocast."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kiln
from kiln import _core, nn


@pytest.fixture(autouse=True)
def fast() -> Iterator[None]:
    before = _core.set_check(False)
    yield
    _core.set_check(before)


def pure(function: Callable[..., Any]) -> Any:
    return kiln.compile(function, pure=True)


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


class Net(nn.Module):
    factor = 1.0  # of the class

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.layers = [nn.Linear(2, 2)]
        self.more = nn.ModuleList([nn.Linear(2, 2)])
        self.scale, self.flag = 2.0, False
        self.settings, self.names = {"shift": 1.0, "deep": [1.0]}, {"a"}

    def forward(self, x: Any) -> Any:
        for layer in (*self.layers, *self.more):
            x = layer(x)
        x = self.inner(x) * self.scale * self.factor + self.settings["shift"] * self.settings["deep"][0]
        x = x + len(self.names)
        return -x if self.flag or not self.training else x


def _new_forward(self: Any, x: Any) -> Any:
    return x * 7


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda net: setattr(net, "scale", 3.0),
    "a flag": lambda net: setattr(net, "flag", True),
    "eval": lambda net: net.eval(),
    "a list replaced": lambda net: setattr(net, "layers", [nn.Linear(2, 2), nn.Linear(2, 2)]),
    "a list grown": lambda net: net.layers.append(nn.Linear(2, 2)),
    "an item of a list": lambda net: net.layers.__setitem__(0, nn.Linear(2, 2)),
    "a ModuleList grown": lambda net: net.more.append(nn.Linear(2, 2)),
    "a dict's entry": lambda net: net.settings.update(shift=4.0),
    "a list in a dict": lambda net: net.settings["deep"].__setitem__(0, 4.0),
    "a set grown": lambda net: net.names.add("b"),
    "a submodule": lambda net: setattr(net, "inner", nn.Linear(2, 2)),
    "a parameter": lambda net: setattr(net.inner, "weight", nn.Parameter(kiln.ones(2, 2))),
    "a parameter gone": lambda net: setattr(net.inner, "bias", None),
    "a hook": lambda net: net.inner.register_forward_hook(lambda m, x, y: y * 2),
    "a hook before": lambda net: net.inner.register_forward_pre_hook(lambda m, x: (x[0] * 2,)),
    "a class's attribute": lambda net: setattr(type(net), "factor", 5.0),
    "one that hides it": lambda net: setattr(net, "factor", 6.0),
    "a method": lambda net: setattr(type(net), "forward", _new_forward),
    "a layer's forward": lambda net: setattr(net.inner, "forward", lambda x: x * 3),
}


def test_a_change_of_a_module_is_seen_at_the_next_call() -> None:
    x = kiln.arange(4.0).reshape(2, 2)
    for name, change in CHANGES.items():
        of = type("Net", (Net,), {"forward": Net.forward})
        net = of()
        cell = pure(net)
        for _ in range(4):
            before = cell(x)
        assert same(before, net(x))
        change(net)
        after = net(x)
        assert not bool((after == before).all()), name
        assert same(cell(x), after), name
        assert same(cell(x), after), name


def test_hooks_of_every_module_are_seen() -> None:
    net, x = nn.Linear(2, 2), kiln.ones(1, 2)
    cell = pure(net)
    for _ in range(4):
        before = cell(x)
    handles = [nn.modules.module.register_module_forward_hook(lambda m, x, y, k=k: y * k) for k in (2, 3)]
    try:
        assert same(cell(x), net(x))
        handles.pop().remove()
        assert same(cell(x), net(x)) and not same(cell(x), before)
    finally:
        for handle in handles:
            handle.remove()
    assert same(cell(x), before)


def test_what_does_not_matter_makes_no_variants() -> None:
    net, x = Net(), kiln.ones(1, 2)
    cell = pure(net)
    for epoch in range(50):
        net.epoch = epoch
        net.last = cell(x)
    assert kiln.compiler.stats(cell)["variants"] == 1


def test_a_number_that_only_ops_see_is_theirs() -> None:
    w = kiln.ones(2).requires_grad_()
    cell = pure(lambda x, t, s: (x * w * t + s).tanh())
    x = kiln.ones(2)
    for t in range(1000):
        y = cell(x, t, t * 0.25)
        if t % 100 == 7:
            expected = (x * w * t + t * 0.25).tanh()
            assert same(y, expected)
            assert same(*(kiln.autograd.grad(z.sum(), w)[0] for z in (y, expected)))
    stats = kiln.compiler.stats(cell)
    assert stats["variants"] == 1 and stats["checks"] < 20
    assert "2 numbers" in kiln.compiler.explain(cell)


READ: dict[str, Callable[..., Any]] = {
    "branch": lambda x, t: x * t if t > 2 else x + t,
    "range": lambda x, t: sum((x * k for k in range(t)), x),
    "size": lambda x, t: x.expand(t + 1, 2),
    "place": lambda x, t: kiln.arange(9.0)[t] * x,
    "text": lambda x, t: x * len(f"{'a' * t}"),
    "type": lambda x, t: x * t if type(t) is int else x,
    "returned": lambda x, t: (x * t, t)[0] * (1 if t else 2),
    "divided by": lambda x, t: x.long() // (t + 1) * x,
    "unused": lambda x, t: x * 2,
}


@pytest.mark.parametrize("name", READ)
def test_a_number_that_python_reads_is_part_of_the_call(name: str) -> None:
    function, x = READ[name], kiln.ones(2)
    cell = pure(function)
    for t in (0, 1, 2, 3, 4, 3, 2, 1, 0, 4):
        assert same(cell(x, t), function(x, t))


def test_numbers_keep_their_kind() -> None:
    cell, x = pure(lambda x, t: x * t), kiln.arange(3)
    for _ in range(3):
        for t in (2, 2.5, True, -0.0, 3):
            found, expected = cell(x, t), x * t
            assert same(found, expected) and found.signbit().tolist() == expected.signbit().tolist()
    step = pure(lambda x, n: x // n)
    for n in (2, 3, 4, 5):
        assert same(step(x, n), x // n)
    with pytest.raises(RuntimeError, match="divided by 0"):
        step(x, 0)


class Average(nn.Module):
    """Keeps state of several kinds: a moving average, a count, a row that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", kiln.zeros(3))
        self.register_buffer("count", kiln.zeros((), dtype=kiln.int64))
        self.weight = nn.Parameter(kiln.ones(3))

    def forward(self, x: Any) -> Any:
        with kiln.no_grad():
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            self.count.add_(1)
            self.mean[0] = 5.0
        return x * self.weight * self.mean, self.count


@pytest.mark.parametrize(
    "net", [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), Average(), nn.BatchNorm1d(3, affine=False)]
)
def test_buffers_are_written_as_without_a_cell(net: Any) -> None:
    kiln.manual_seed(4)
    other = copy.deepcopy(net)
    cell = pure(net)
    for _ in range(6):
        x = kiln.randn(4, 3).requires_grad_()
        found = []
        for module, call in ((net, cell), (other, other)):
            module.zero_grad()
            y = call(x)
            y = y[0] if isinstance(y, tuple) else y
            (gradient,) = kiln.autograd.grad(y.sin().sum(), x, retain_graph=True)
            if y.requires_grad and list(module.parameters()):
                y.cos().sum().backward()
            found.append([y, gradient, *(p.grad for p in module.parameters()), *module.buffers()])
        assert all(same(a, b) for a, b in zip(*found))
    net.eval(), other.eval()
    for _ in range(3):
        a, b = cell(x), other(x)
        assert all(same(u, v) for u, v in zip(net.buffers(), other.buffers()))
        assert same(a, b) if isinstance(a, kiln.Tensor) else same(a[0], b[0])
    calls = kiln.compiler.stats(cell)
    assert calls["variants"] == 2 and calls["calls"] == 9


def test_state_in_regions_and_batched_blocks() -> None:
    net = nn.BatchNorm1d(3)
    other = copy.deepcopy(net)
    cell = pure(lambda x: net(x) * 2)
    region = kiln.compile(lambda x: cell(x) + 1, wait=True)
    for _ in range(5):
        x = kiln.randn(4, 3)
        assert same(region(x), other(x) * 2 + 1) and same(net.running_var, other.running_var)
    with kiln.batching():
        for _ in range(3):
            x = kiln.randn(4, 3)
            assert same(cell(x), other(x) * 2)
    assert same(net.running_mean, other.running_mean) and net.num_batches_tracked.item() == 8


def test_a_buffer_that_would_get_a_history_is_left_alone() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", kiln.zeros(3))
            self.weight = nn.Parameter(kiln.ones(3))

        def forward(self, x: Any) -> Any:
            self.sum.add_(self.weight)
            return x + self.sum

    net = Wrong()
    with pytest.raises(kiln.compiler.PurityError, match="test_cells_state.py:.*has a gradient"):
        pure(net)(kiln.ones(3))
    assert net.sum.tolist() == [0, 0, 0] and not net.sum.requires_grad


def test_autocast_is_part_of_the_call() -> None:
    w = kiln.randn(3, 3).requires_grad_()

    def function(x: Any) -> Any:
        return (x @ w).relu() @ w

    cell, x = pure(function), kiln.randn(2, 3)
    for _ in range(4):
        with kiln.autocast("cpu", dtype=kiln.bfloat16):
            found, expected = cell(x), function(x)
        assert found.dtype is kiln.bfloat16 and same(found, expected)
        assert same(*(kiln.autograd.grad(y.sum(), w)[0] for y in (found, expected)))
        assert cell(x).dtype is kiln.float32
    stats = kiln.compiler.stats(cell)
    assert stats["variants"] == 2 and stats["calls"] == 8


def several(x: Any, w: Any) -> Any:
    return (x @ w).tanh() @ w + x * x + x.sin() @ w.t() + w.sum(0)


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_used_several_times_has_one_gradient(rows: int) -> None:
    """An argument of many uses, a weight of several products: one set of bits, however it is run."""
    kiln.manual_seed(6)
    x, w = kiln.randn(rows, 3).requires_grad_(), kiln.randn(3, 3).requires_grad_()
    ways = several, pure(several), kiln.compile(several, wait=True)
    for chain in (1, 3):
        for _ in range(4):
            found = []
            for call in ways:
                y = x
                for _ in range(chain):
                    y = call(y, w)
                found.append([y, *kiln.autograd.grad(y.cos().sum(), (x, w))])
            for other in found[1:]:
                assert all(same(a, b) for a, b in zip(found[0], other))


DETACHED = {
    "detach": lambda x: x.detach() * x,
    "computed": lambda x: x.sin().detach() * x * x,
    "no_grad": lambda x: _without(x) * x,
}


def _without(x: Any) -> Any:
    with kiln.no_grad():
        return x.exp() * x


@pytest.mark.parametrize("name", DETACHED)
def test_what_is_detached_is_constant_in_second_derivatives(name: str) -> None:
    function, x = DETACHED[name], kiln.tensor([2.0, 3.0]).requires_grad_()
    cell = pure(function)
    for _ in range(3):
        found = []
        for call in (function, cell):
            (g,) = kiln.autograd.grad(call(x).sum(), x, create_graph=True)
            twice = kiln.autograd.grad(g.sum(), x)[0] if g.requires_grad else None
            found.append((g.tolist(), None if twice is None else twice.tolist()))
        assert found[0] == found[1]


def test_positions_used_twice() -> None:
    a, b = (kiln.randn(4, 3).requires_grad_() for _ in range(2))
    embedding = nn.functional.embedding
    cell, i = pure(lambda i: embedding(i, a) + embedding(i, b)), kiln.tensor([1, 2])
    for _ in range(3):
        (g,) = kiln.autograd.grad(cell(i).sum(), a)
        assert g.tolist() == [[0.0] * 3, [1.0] * 3, [1.0] * 3, [0.0] * 3]
