"""`kiln.compile(fn, backend=callable)`: what a backend is given, and that no call is silently another one."""

from __future__ import annotations

import copy
import functools
import os
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

    @kiln.compile(backend=seen, options={"a": 1})
    def f(a, b):
        x = a / (kiln.abs(a) + 1)
        return x * b, {"n": x.shape[0], "same": a}

    x, y = kiln.ones(2), kiln.ones(2)
    product, rest = f(x, y)
    assert product.tolist() == [0.5, 0.5] and rest["n"] == 2 and rest["same"] is x
    assert f(x * 3, y)[0].tolist() == [0.75, 0.75] and len(seen.graphs) == 1
    assert [n.op for n in seen.graphs[0].graph.nodes][:2] == ["placeholder"] * 2
    assert seen.inputs[0][0] is x and seen.more == {"options": {"a": 1}}
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


@pytest.mark.parametrize("f", [_branches, _reads, _masks, _numpy, _backward])
def test_where_a_value_is_read_another_graph_begins(f: Any) -> None:
    """With fullgraph=True it raises, but for NumPy, which PyTorch keeps in one graph."""
    seen = Backend()
    compiled = kiln.compile(f, backend=seen)
    for x in (kiln.ones(2), -kiln.ones(2), kiln.ones(2)):
        assert kiln.equal(compiled(x), f(x))
    assert len(seen.graphs) in (1, 2, 3)
    if f is _numpy:
        return
    with pytest.raises(RuntimeError, match="fullgraph=True, but .*test_fx_backends"):
        kiln.compile(f, backend=seen, fullgraph=True)(kiln.ones(2))


def test_what_python_does_is_done_at_each_call(capsys: Any) -> None:
    """In one graph; what is kept are tensors, as what is returned."""
    seen, KEPT[:] = Backend(), []
    x = kiln.ones(2)
    for f in (_prints, _keeps):
        compiled = kiln.compile(f, backend=seen, fullgraph=True)
        for _ in range(3):
            assert compiled(x).tolist() == [2.0, 2.0]
    assert capsys.readouterr().out.count("seen") == 3 and len(seen.graphs) == 2
    assert len(KEPT) == 3 and all(k is x for k in KEPT)

    class Holder:
        kept: Any = None

    holder, cells = Holder(), []

    def keep(x):
        y = x * 2
        holder.kept = y
        KEPT.append((y, {"a": {y}}))
        cells.append(lambda: y)
        return [y]

    KEPT[:] = []
    (y,) = kiln.compile(keep, backend=seen)(x)
    assert type(y) is kiln.Tensor and holder.kept is y and KEPT[0][0] is y and cells[0]() is y
    assert KEPT[0][1]["a"] == {y}


@pytest.mark.parametrize("shift", ["class", "set", "order", "partial", "environment", "closure"])
def test_what_changes_between_calls_is_seen(shift: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scale:
        by = 2

    held, order, times = {1, 2}, {"a": 1.0, "b": 2.0}, functools.partial(kiln.mul, other=2)
    count = 1

    def f(x):
        for k in order:
            x = x + 1 if k == "a" else x * 2
        return times(x * Scale.by * len(held)) * count * (2 if os.environ.get("KILN_SHIFT") else 1)

    compiled = kiln.compile(f, backend=Backend(), fullgraph=True)
    x = kiln.ones(2)
    assert kiln.equal(compiled(x), f(x))
    before = f(x)
    if shift == "class":
        Scale.by = 3
    elif shift == "set":
        held.add(3)
    elif shift == "order":
        order["a"] = order.pop("a")
    elif shift == "partial":
        times.keywords["other"] = 5
    elif shift == "environment":
        monkeypatch.setenv("KILN_SHIFT", "1")
    else:
        count = 7
    assert kiln.equal(compiled(x), f(x)) and not kiln.equal(f(x), before)


def test_after_eight_graphs_of_one_place_the_rest_runs_without_the_backend() -> None:
    seen = Backend()
    compiled = kiln.compile(lambda x, n: x * n, backend=seen)
    with pytest.warns(UserWarning, match="without the backend: 8 graphs"):
        for n in range(10):
            assert compiled(kiln.ones(2), n).tolist() == [n, n]
    assert len(seen.graphs) == 8 and compiled.stats() == {"captures": 8}


def test_graphs_of_a_loop_are_one() -> None:
    seen = Backend()

    def f(x):
        for _ in range(20):
            x = x * 2 if x.sum() > 0 else x
        return x

    assert kiln.compile(f, backend=seen)(kiln.ones(1)).item() == 2.0**20 and len(seen.graphs) <= 4


def test_modes_are_part_of_a_graph() -> None:
    """Gradients that are switched off inside, autocast, and what draws random numbers behind a new seed."""

    def f(x):
        with kiln.no_grad():
            y = x * 2
        with kiln.autocast("cpu", dtype=kiln.bfloat16):
            z = x @ x
        return (y + x).sum() + z.sum().float()

    seen = Backend()
    compiled = kiln.compile(f, backend=seen, fullgraph=True)
    grads = []
    for g in (f, compiled, compiled):
        x = kiln.ones(2, 2, requires_grad=True)
        g(x).backward()
        grads.append(x.grad)
    assert kiln.equal(grads[0], grads[1]) and kiln.equal(grads[0], grads[2]) and len(seen.graphs) == 1

    def drawn(x):
        y = x + kiln.rand(2)
        kiln.manual_seed(3)
        return y, kiln.rand(2)

    compiled = kiln.compile(drawn, backend=Backend())
    for _ in range(2):
        kiln.manual_seed(1)
        ours = compiled(kiln.zeros(2))
        kiln.manual_seed(1)
        theirs = drawn(kiln.zeros(2))
        assert all(map(kiln.equal, ours, theirs))


def test_a_tensor_that_lies_about_is_what_it_was_when_it_was_used() -> None:
    """Operators of tensors that are no arguments run at once; what was kept of them runs as it was."""
    held = kiln.ones(2)

    def f(x):
        nonlocal held
        y = x + held
        held += 1
        z = y * held
        held.mul_(2)
        return z + held * 10 + (held + held)

    compiled = kiln.compile(f, backend=Backend())
    for _ in range(3):
        held = kiln.ones(2)
        ours = compiled(kiln.ones(2))
        kept = held.tolist()
        held = kiln.ones(2)
        assert ours.tolist() == f(kiln.ones(2)).tolist() and kept == held.tolist()


def test_what_is_kept_is_written_before_the_programs_modules_are_looked_at() -> None:
    """Modules that are made and copied inside, state dicts, parameters by their list."""

    def f(x):
        kiln.manual_seed(0)
        made = kiln.nn.Linear(2, 1)
        with kiln.no_grad():
            made.weight.mul_(2)
        rows = sum(p * 2 for p in made.parameters())
        copied = copy.deepcopy(made)
        return copied(x) + rows + made.state_dict()["weight"] * 3, type(x) == kiln.Tensor  # noqa: E721

    compiled = kiln.compile(f, backend=Backend())
    for _ in range(2):
        ours, theirs = compiled(kiln.ones(1, 2)), f(kiln.ones(1, 2))
        assert kiln.equal(ours[0], theirs[0]) and ours[1] and theirs[1]


def test_errors_are_the_programs() -> None:
    """And what was done before them stays done."""
    x = kiln.ones(2)

    def f(x):
        x.add_(1)
        return x.view(3)

    for raising in (f, kiln.compile(f, backend=Backend())):
        x = kiln.ones(2)
        with pytest.raises(RuntimeError, match="shape"):
            raising(x)
        assert x.tolist() == [2.0, 2.0]


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


def test_a_stance_runs_functions_as_they_are_and_ends_with_its_block() -> None:
    seen = Backend()
    f = kiln.compile(lambda x: x + 1, backend=seen)

    @kiln.compiler.set_stance("force_eager")
    def called() -> Any:
        return f(kiln.ones(1))

    assert called().tolist() == [2.0] and not seen.graphs
    with kiln.compiler.set_stance("force_eager"):
        assert f(kiln.ones(1)).tolist() == [2.0] and not seen.graphs
    assert f(kiln.ones(1)).tolist() == [2.0] and len(seen.graphs) == 1
    kiln.compiler.set_stance("force_eager")
    f(kiln.ones(1, 1))
    kiln.compiler.set_stance("default")
    assert len(seen.graphs) == 1
    with pytest.raises(RuntimeError, match="invalid stance 'loud'"):
        kiln.compiler.set_stance("loud")
    with pytest.raises(NotImplementedError, match="a call that looks new is compiled"):
        kiln.compiler.set_stance("fail_on_recompile")


def test_a_graph_of_any_size_is_asked_for_once() -> None:
    """With dynamic=True; sizes of 1 broadcast, and a module's tensors have the sizes they have."""

    def f(x, y):
        return (x * 2 + y).relu().sum(dim=0), x.shape[0]

    seen = Backend()
    compiled = kiln.compile(f, backend=seen, dynamic=True)
    for n in (2, 3, 5, 8, 13, 2):
        x, y = kiln.randn(n, 3), kiln.randn(3)
        ours, theirs = compiled(x, y), f(x, y)
        assert kiln.equal(ours[0], theirs[0]) and ours[1] == theirs[1] == n
    assert len(seen.graphs) == 1
    for x in (kiln.randn(1, 3), kiln.randn(4, 3).double(), kiln.randn(3, 4).T):
        assert kiln.equal(compiled(x, y)[0], f(x, y)[0])
    assert len(seen.graphs) == 4

    flat = kiln.compile(lambda x: x.reshape(x.shape[0] * 3), backend=seen, dynamic=True)
    assert [flat(kiln.ones(n, 3)).numel() for n in (2, 4, 2, 4)] == [6, 12, 6, 12] and len(seen.graphs) == 5

    module = kiln.nn.Linear(3, 2)
    linear = kiln.compile(module, backend=seen, dynamic=True)
    for n in range(2, 12):  # more than would be captured one by one
        x = kiln.randn(n, 3)
        assert kiln.equal(linear(x), module(x))
    assert len(seen.graphs) == 6


class _Attributes(kiln.nn.Module):
    """Tensors wherever a module may have them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = kiln.nn.Parameter(kiln.ones(2))
        self.register_buffer("count", kiln.zeros(2))
        self.plain, self.listed = kiln.ones(2), [kiln.ones(2)]

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        self.plain *= 2
        self.listed[0] += x
        seen = self._buffers["count"] + self.__dict__["plain"]
        total = sum(p.sum() for p in self.parameters()) + self.state_dict()["count"]
        return x * self.weight + seen * self.listed[0] + total, getattr(self, "count"), self.plain.clone()  # noqa: B009


def test_modules_are_what_they_were_outside_and_inside() -> None:
    """What a captured program finds in modules, and what others find there then, before and after."""
    model, twin = _Attributes(), _Attributes()
    compiled = kiln.compile(model, backend=Backend())
    for _ in range(3):
        ours, theirs = compiled(kiln.ones(2)), twin(kiln.ones(2))
        assert all(map(kiln.equal, ours, theirs))
        assert ours[1] is model.count and type(model.plain) is kiln.Tensor
        assert kiln.equal(model.listed[0], twin.listed[0])
    assert isinstance(kiln.fx.symbolic_trace(kiln.nn.Linear(2, 2)), kiln.fx.GraphModule)
    again = kiln.compile(model, backend=Backend())
    assert all(map(kiln.equal, again(kiln.ones(2)), twin(kiln.ones(2))))
    with pytest.raises(AttributeError, match="'_Attributes' object has no attribute 'missing'"):
        model.missing  # noqa: B018


def test_the_same_call_with_other_tensors_is_the_same_steps() -> None:
    """Which of its tensors are one, and which are written, is part of what is found again."""
    seen = Backend()

    def f(a, b):
        a.add_(b)
        return a * b

    compiled = kiln.compile(f, backend=seen)
    for _ in range(2):
        for same in (False, True):
            a, b = kiln.ones(2), kiln.full((2,), 3.0)
            c, d = a.clone(), b.clone()
            ours = compiled(a, a if same else b)
            theirs = f(c, c if same else d)
            assert kiln.equal(ours, theirs) and kiln.equal(a, c)
    assert len(seen.graphs) == 2
