"""`kiln.compile(fn, backend=callable)`: what a backend is given, and that no call is silently another one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import kiln

SCALE, SHIFT = 2, kiln.ones(2)


class Backend:
    """Keeps the graphs that it was given."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.inputs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Any, **more: Any) -> Any:
        self.graphs.append(gm)
        self.inputs.append(example_inputs)
        self.more = more
        return gm.forward


def test_a_backend_gets_graph_and_tensors_and_what_it_returns_runs() -> None:
    seen = Backend()

    @kiln.compile(backend=seen, mode="reduce-overhead", options={"a": 1})
    def f(a, b):
        x = a / (kiln.abs(a) + 1)
        return x * b, {"n": x.shape[0], "same": a}

    x, y = kiln.ones(2), kiln.ones(2)
    product, rest = f(x, y)
    assert product.tolist() == [0.5, 0.5] and rest["n"] == 2 and rest["same"] is x
    assert f(x * 3, y)[0].tolist() == [0.75, 0.75] and len(seen.graphs) == 1
    assert [n.op for n in seen.graphs[0].graph.nodes][:2] == ["placeholder"] * 2
    assert seen.inputs[0][0] is x and seen.more == {"mode": "reduce-overhead", "options": {"a": 1}}
    assert [n.target for n in seen.graphs[0].graph.nodes if n.op == "call_function"][0] is kiln.abs

    def other(gm: Any, inputs: Any) -> Any:
        return lambda *args: (args[0] * 7,)

    assert kiln.compile(lambda x: x + 1, backend=other)(kiln.ones(1)).tolist() == [7.0]


def test_another_look_is_captured_anew() -> None:
    seen = Backend()
    f = kiln.compile(lambda x, n: x * n, backend=seen)
    for x, n in [(kiln.ones(2), 2), (kiln.ones(3), 2), (kiln.ones(2).double(), 2), (kiln.ones(2), 3)]:
        assert kiln.equal(f(x, n), x * n)
    f(kiln.ones(2, requires_grad=True), 2).sum().backward()
    with kiln.no_grad():
        f(kiln.ones(2), 2)
    assert len(seen.graphs) == 6
    f(kiln.ones(2), 2)
    assert len(seen.graphs) == 6


def test_modules_have_parameters_as_inputs_and_keep_their_state() -> None:
    kiln.manual_seed(0)
    model = kiln.nn.Sequential(kiln.nn.Linear(2, 3), kiln.nn.BatchNorm1d(3), kiln.nn.Dropout(0.5))
    twin = kiln.nn.Sequential(kiln.nn.Linear(2, 3), kiln.nn.BatchNorm1d(3), kiln.nn.Dropout(0.5))
    twin.load_state_dict(model.state_dict())
    seen = Backend()
    compiled = kiln.compile(model, backend=seen)
    x = kiln.randn(4, 2)
    for _ in range(2):
        kiln.manual_seed(1)
        ours = compiled(x)
        kiln.manual_seed(1)
        theirs = twin(x)
        assert kiln.equal(ours, theirs)
    assert all(kiln.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values()))
    ours.sum().backward()
    theirs.sum().backward()
    assert kiln.equal(model[0].weight.grad, twin[0].weight.grad)
    assert any("modules_0_parameters_weight" in n.name for n in seen.graphs[0].graph.nodes)
    compiled.eval()
    assert kiln.equal(compiled(x), twin.eval()(x)) and len(seen.graphs) == 2


def test_what_it_found_outside_is_asked_for_again() -> None:
    """Globals, tensors that lie about, attributes, parameters that were exchanged."""
    global SCALE, SHIFT
    f = kiln.compile(lambda x: x * SCALE + SHIFT, backend=Backend())
    x = kiln.ones(2)
    assert f(x).tolist() == [3.0, 3.0]
    SCALE = 3
    assert f(x).tolist() == [4.0, 4.0]
    SHIFT.mul_(5)
    assert f(x).tolist() == [8.0, 8.0]
    SHIFT = kiln.zeros(2)
    assert f(x).tolist() == [3.0, 3.0]
    SCALE, SHIFT = 2, kiln.ones(2)

    class Net(kiln.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.k, self.more = kiln.nn.Linear(2, 2), 1, [1.0]

        def forward(self, x: Any) -> Any:
            for m in self.more:
                x = x * m
            return self.a(x) * self.k

    net = Net()
    compiled = kiln.compile(net, backend=Backend())

    def check() -> None:
        assert kiln.equal(compiled(x), net(x))

    check()
    net.k = 2
    check()
    net.more.append(3.0)
    check()
    net.a = kiln.nn.Linear(2, 2)
    check()
    net.a.weight = kiln.nn.Parameter(kiln.ones(2, 2))
    check()


def test_random_numbers_are_drawn_at_each_call() -> None:
    f = kiln.compile(lambda x: x + kiln.rand(2), backend=Backend())
    kiln.manual_seed(0)
    ours = [f(kiln.zeros(2)), f(kiln.zeros(2))]
    kiln.manual_seed(0)
    assert all(kiln.equal(y, kiln.rand(2)) for y in ours) and not kiln.equal(*ours)


def test_inputs_are_written_once() -> None:
    def f(x):
        x.add_(1)
        x[0] = 7
        x += 1
        return x.max(0)

    z = kiln.zeros(3)
    found = kiln.compile(f, backend=Backend())(z)
    assert z.tolist() == [8.0, 2.0, 2.0] and found.values.item() == 8 and found.indices.item() == 0


KEPT: list[Any] = []


def _branches(x):
    return x * 2 if x.sum() > 0 else x


def _reads(x):
    return x * x.sum().item()


def _masks(x):
    return x[x > 0]


def _prints(x):
    print("seen")
    return x + 1


def _keeps(x):
    KEPT.append(x)
    return x + 1


def _numpy(x):
    return x + x.numpy().sum()


def _backward(x):
    y = x.detach().requires_grad_()
    (y * y).sum().backward()
    return y.grad


@pytest.mark.parametrize("f", [_branches, _reads, _masks, _prints, _keeps, _numpy, _backward])
def test_what_no_graph_holds_runs_as_it_is(f: Any, capsys: Any) -> None:
    """Said once; with fullgraph=True it raises, with the line."""
    seen, KEPT[:] = Backend(), []
    compiled = kiln.compile(f, backend=seen)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for x in (kiln.ones(2), -kiln.ones(2)):
            assert kiln.equal(compiled(x), f(x))
    assert [str(w.message)[:8] for w in said] == ["compile:"] and not seen.graphs
    assert capsys.readouterr().out.count("seen") == (4 if f is _prints else 0)
    assert len(KEPT) == (4 if f is _keeps else 0)
    with pytest.raises(RuntimeError, match="fullgraph=True"):
        kiln.compile(f, backend=seen, fullgraph=True)(kiln.ones(2))


def test_fullgraph_names_the_line() -> None:
    with pytest.raises(RuntimeError, match=r"a value was read at .*test_fx_backends\.py:\d+"):
        kiln.compile(_branches, backend=Backend(), fullgraph=True)(kiln.ones(2))


def test_backends_have_names() -> None:
    kiln.compiler.register_backend(Backend(), name="kept")
    assert "kept" in kiln.compiler.list_backends()
    assert kiln.compile(lambda x: x + 1, backend="kept")(kiln.ones(1)).tolist() == [2.0]
    with pytest.raises(RuntimeError, match="backend"):
        kiln.compile(abs, backend="no such")
    with pytest.raises(TypeError, match="must return a callable"):
        kiln.compile(lambda x: x + 1, backend=lambda gm, inputs: None)(kiln.ones(1))


def test_a_program_may_ask_whether_it_is_captured() -> None:
    asked = []

    def f(x):
        return x + 1 if kiln.compiler.is_compiling() else x - 1

    assert kiln.compile(f, backend=Backend())(kiln.ones(1)).tolist() == [2.0] and f(
        kiln.ones(1)
    ).tolist() == [0.0]
    assert not asked and not kiln.compiler.is_compiling()
