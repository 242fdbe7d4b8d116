"""Traces of modules: eager's bits in values, gradients and buffers; parameters shared; files of weights."""

from __future__ import annotations

import copy
import io
from typing import Any, NamedTuple

import pytest

import kiln
from kiln import nn
from kiln.fx.experimental.proxy_tensor import make_fx


class Pair(NamedTuple):
    """Two tensors."""

    first: Any
    second: Any


def _net() -> Any:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))


def _same(a: Any, b: Any) -> bool:
    return bool((a == b).all()) and a.shape == b.shape


def test_values_gradients_buffers_and_draws_are_eagers() -> None:
    """Two steps in training mode; buffers are updated as eager updates them, noise is drawn anew."""
    kiln.manual_seed(0)
    net, x = _net(), kiln.randn(5, 4)
    twin = copy.deepcopy(net)
    traced = kiln.jit.trace(twin, x)
    assert [name for _, k in traced.captured.mutated for name in [traced.captured.state[k].name]] == [
        "1.running_mean", "1.running_var", "1.num_batches_tracked",
    ]  # fmt: skip
    for seed in (1, 2):
        x = kiln.randn(5, 4)
        kiln.manual_seed(seed)
        expected = net(x)
        kiln.manual_seed(seed)
        came = traced(x)
        assert _same(expected, came)
        expected.sum().backward()
        came.sum().backward()
    for a, b in zip(net.parameters(), traced.parameters(), strict=True):
        assert _same(a.grad, b.grad)
    for name, held in net.state_dict().items():
        assert _same(held, traced.state_dict()[name])
    kiln.manual_seed(3)
    assert not _same(traced(x), traced(x))


def test_a_trace_shares_the_modules_parameters() -> None:
    """What an optimizer or load_state_dict writes is what the trace computes with."""
    net = nn.Linear(2, 1)
    traced = kiln.jit.trace(net, kiln.ones(1, 2))
    assert traced.weight is net.weight and isinstance(traced, nn.Module)
    assert isinstance(traced, kiln.jit.ScriptModule) and traced.original_name == "Linear"
    with kiln.no_grad():
        net.weight.fill_(3.0)
    traced.load_state_dict({"weight": net.weight.detach().clone(), "bias": kiln.ones(1)})
    assert traced(kiln.ones(1, 2)).tolist() == [[7.0]]


def test_in_place_on_an_argument_is_done_to_it() -> None:
    """An argument that the function writes is written by the trace."""

    def f(x: Any) -> Any:
        x.add_(1)
        x[0] = 5
        return x * 2

    traced = kiln.jit.trace(f, kiln.zeros(3))
    x = kiln.zeros(3)
    assert traced(x).tolist() == [10.0, 2.0, 2.0] and x.tolist() == [5.0, 1.0, 1.0]


def test_positions_are_checked_as_eager_checks_them() -> None:
    """Also those computed on the way."""
    table = kiln.randn(4, 2)
    traced = kiln.jit.trace(lambda i: (table[i], nn.functional.embedding(i + 1, table)), kiln.tensor([0, 1]))
    assert _same(traced(kiln.tensor([2, 1]))[0], table[kiln.tensor([2, 1])])
    with pytest.raises(IndexError):
        traced(kiln.tensor([4, 0]))
    with pytest.raises(IndexError):
        traced(kiln.tensor([3, 0]))


def test_containers_and_keywords() -> None:
    """Named tuples, keyword examples, what is returned as it came."""
    traced = kiln.jit.trace(
        lambda p, *, scale: (Pair(p.second, p.first * scale), [p.first]),
        (Pair(kiln.ones(1), kiln.zeros(1)),),
        example_kwarg_inputs={"scale": kiln.ones(1)},
    )
    p = Pair(kiln.ones(1) * 2, kiln.ones(1) * 3)
    pair, (first,) = traced(p, scale=kiln.ones(1) * 4)
    assert type(pair) is Pair and pair.first is p.second and pair.second.item() == 8.0 and first is p.first


def test_many_parameters() -> None:
    """More of them than one call has gradients for."""
    kiln.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(40)])
    x = kiln.randn(1, 2)
    twin = copy.deepcopy(net)
    traced = kiln.jit.trace(twin, x)
    a, b = net(x), traced(x)
    a.sum().backward()
    b.sum().backward()
    assert _same(a, b)
    assert all(_same(p.grad, q.grad) for p, q in zip(net.parameters(), twin.parameters(), strict=True))


def test_graphs_keep_composites_and_expand() -> None:
    """The graph is read again from its text, and computes the same expanded."""
    from kiln.graph.text import parse, text
    from kiln.graph.verify import verify
    from kiln.ops import find
    from kiln.tracing.expand import expand

    traced = kiln.jit.trace(_net().eval(), kiln.ones(3, 4))
    written = text(traced.graph)
    assert "linear(" in written and text(parse(written, find)) == written
    whole = verify(expand(traced.graph))
    assert not any(node.op.kind == "composite" for node in whole.nodes)


class _Remembering(nn.Module):
    """A buffer that is read, and assigned anew, in a call whose gradients need what it was."""

    def __init__(self) -> None:
        super().__init__()
        kiln.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("memory", kiln.rand(4))

    def forward(self, x: Any) -> Any:
        h = kiln.tanh(self.linear(x) * self.memory)
        self.memory = h.detach()
        return (h * self.linear(x)).sum()


@pytest.mark.parametrize(
    "way", [lambda m: kiln.jit.trace(m, kiln.ones(4)), kiln.jit.script], ids=["trace", "script"]
)
def test_a_buffer_that_is_assigned_stays_for_derivatives_what_it_was(way: Any) -> None:
    eager, module = _Remembering(), _Remembering()
    program = way(module)
    for _ in range(20):
        x, found = kiln.rand(4), []
        for call, m in ((eager, eager), (program, module)):
            m.zero_grad()
            y = call(x)
            y.backward()
            found.append((y.item(), m.linear.weight.grad.tolist(), m.memory.tolist()))
        assert found[0] == found[1]


class _Returning(nn.Module):
    """Gives back what buffers were before they were assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", kiln.zeros(2))
        self.register_buffer("b", kiln.ones(2))

    def forward(self, x: Any) -> Any:
        before = self.a
        self.a, self.b = self.b, before + x
        return before, {"now": self.a}, before.view(1, 2)


def _loaded(module: nn.Module, x: Any) -> Any:
    file = io.BytesIO()
    kiln.export.save(kiln.export.export(module, (x,)), file)
    file.seek(0)
    return kiln.export.load(file).module()


_WAYS = {
    "trace": kiln.jit.trace,
    "script": lambda m, x: kiln.jit.script(m),
    "export": lambda m, x: kiln.export.export(m, (x,)).module(),
    "unflattened": lambda m, x: kiln.export.unflatten(kiln.export.export(m, (x,))),
    "loaded": _loaded,
    "make_fx": lambda m, x: make_fx(lambda v: m(v))(x),
    "inside": lambda m, x: kiln.jit.trace(nn.Sequential(kiln.jit.trace(m, x)), x),
}


@pytest.mark.parametrize("on", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("way", _WAYS)
def test_a_buffer_that_is_returned_and_assigned_is_given_as_it_was(way: str, on: bool) -> None:
    eager, program = _Returning(), _WAYS[way](_Returning(), kiln.ones(2))
    with kiln.set_grad_enabled(on):
        given = [kiln.tensor([float(k), 1.0]) for k in range(20)]
        pairs = [(eager(x), program(x)) for x in given]
    for expected, found in pairs:  # all calls are over
        for a, b in zip(
            (expected[0], expected[1]["now"], expected[2]), (found[0], found[1]["now"], found[2])
        ):
            assert _same(a, b)


def test_a_file_says_which_buffers_are_assigned() -> None:
    eager, file = _Remembering(), io.BytesIO()
    kiln.export.save(kiln.export.export(_Remembering(), (kiln.ones(4),)), file)
    for _ in range(2):  # read, and known from then
        file.seek(0)
        program = kiln.export.load(file).module()
        eager.memory = program.memory.clone()
        for _ in range(3):
            x, found = kiln.rand(4), []
            for call in (eager, program):
                y = call(x)
                (gradient,) = kiln.autograd.grad(y, [dict(call.named_parameters())["linear.weight"]])
                found.append((y.item(), gradient.tolist()))
            assert found[0] == found[1]
