"""Scripts of modules, what they raise and print, when they are made anew, and as parts of other programs."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

import kiln
from kiln import nn
from kiln.testing.script_programs import check

X = [1.0, 2.0]


class Net(nn.Module):
    """A module whose way depends on values, with a buffer it counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)
        self.register_buffer("calls", kiln.tensor(0))
        self.limit = 1

    def pick(self, x: Any) -> Any:
        if x.mean() > 0:
            return self.a(x)
        return self.b(x)

    def forward(self, x: Any) -> Any:
        self.calls += 1
        x = self.pick(x)
        while x.abs().max() > self.limit:
            x = x / 2
        return x

    @kiln.jit.export
    def sign(self, x: Any) -> Any:
        """Another way in."""
        if x.sum() > 0:
            return 1
        return -1


def net() -> Net:
    """A module with the same weights every time."""
    kiln.manual_seed(3)
    return Net()


def test_module() -> None:
    module, eager = net(), net()
    script = kiln.jit.script(module)
    assert isinstance(script, kiln.jit.ScriptModule)
    for x in (X, [-3.0, 1.0], [40.0, 3.0]):
        a, b = script(kiln.tensor(x)), eager(kiln.tensor(x))
        assert a.tolist() == b.tolist()
        a.sum().backward()
        b.sum().backward()
    for p, q in zip(script.parameters(), eager.parameters()):
        assert p.grad is not None and q.grad is not None
        assert kiln.allclose(p.grad, q.grad, rtol=1e-6)
    assert module.calls.item() == eager.calls.item() == 3
    assert script.sign(kiln.tensor(X)) == 1 and script.sign(kiln.tensor([-5.0, 2.0])) == -1
    assert list(script.state_dict()) == list(eager.state_dict())
    assert script.original_name == "Net" and "while" in script.code and script.graph.nodes
    script.eval()
    assert not module.training and not module.a.training
    script.limit = 100
    assert script(kiln.tensor([40.0, 3.0])).tolist() == module(kiln.tensor([40.0, 3.0])).tolist()
    other = copy.deepcopy(script)
    with kiln.no_grad():
        other.a.weight.zero_()
    assert module.a.weight.abs().sum() > 0
    assert other(kiln.tensor(X)).tolist() == other._original(kiln.tensor(X)).tolist()


def test_file() -> None:
    script = kiln.jit.script(net())
    x = kiln.tensor([40.0, 3.0])
    expected = script(x)
    held = io.BytesIO()
    kiln.jit.save(script, held)
    held.seek(0)
    program = kiln.jit.load(held)
    assert program(x).tolist() == expected.tolist()
    assert program(-x).tolist() == script(-x).tolist()


def test_file_of_what_raises() -> None:
    script = kiln.jit.script(guarded)
    expected = script(kiln.tensor(X))
    held = io.BytesIO()
    script.save(held)
    held.seek(0)
    program = kiln.jit.load(held)
    assert program(kiln.tensor(X)).tolist() == expected.tolist()
    with pytest.raises(ValueError, match="is below 0.0"):
        program(kiln.tensor([-1.0, 3.0]))


def guarded(x: Any, low: float = 0.0) -> Any:
    """Raises for some values."""
    assert x.sum() < 100, f"too much: {x.sum()}"
    while x.max() < 10:
        if x.min() < low:
            raise ValueError(f"{x.min().item()} is below {low}")
        x = x * 2 - 1
    return x


def test_raises_what_the_function_does() -> None:
    script = kiln.jit.script(guarded)
    for given in (X, [0.5, 9.0], [0.25, 0.25], [-1.0, 3.0], [99.0, 9.0], [-9.0, 30.0]):
        x = kiln.tensor(given)
        try:
            expected = guarded(x)
        except (AssertionError, ValueError) as error:
            with pytest.raises(type(error)) as caught:
                script(x)
            assert str(caught.value) == str(error)
        else:
            assert script(x).tolist() == expected.tolist()


def test_raises_as_part_of_a_trace() -> None:
    script = kiln.jit.script(guarded)
    trace = kiln.jit.trace(lambda x: script(x) + 1, kiln.tensor(X))
    assert trace(kiln.tensor(X)).tolist() == (guarded(kiln.tensor(X)) + 1).tolist()
    with pytest.raises(ValueError, match="is below"):
        trace(kiln.tensor([-1.0, 3.0]))


def test_position_out_of_range() -> None:
    @kiln.jit.script
    def pick(x, n):
        for i in range(n):
            x = x + x[i]
        return x

    assert pick(kiln.tensor(X), kiln.tensor(2)).tolist() == [5.0, 6.0]
    with pytest.raises(IndexError, match="index 2 is out of bounds"):
        pick(kiln.tensor(X), kiln.tensor(3))


def test_parts_of_programs() -> None:
    script = kiln.jit.script(net())
    x = kiln.tensor([40.0, 3.0])
    program = kiln.export.export(script, (x,))
    fresh = net()
    for given in (x, -x):
        assert program(given).tolist() == fresh(given).tolist()
    chain = nn.Sequential(nn.Identity(), script)
    assert chain(x).tolist() == fresh(x).tolist()
    trace = kiln.jit.trace(chain, x)
    assert trace(-x).tolist() == fresh(-x).tolist()

    @kiln.jit.script_if_tracing
    def positive(x):
        return x if x.sum() > 0 else -x

    assert positive(-x).tolist() == x.tolist()
    assert kiln.jit.trace(positive, x)(-x).tolist() == x.tolist()


FACTOR = 2


def test_made_anew_when_python_changes(monkeypatch: Any) -> None:
    @kiln.jit.script
    def f(x, k=1):
        return x * FACTOR * k if x.sum() > 0 else x

    x = kiln.tensor(X)
    assert f(x).tolist() == [2.0, 4.0] and f(x, 3).tolist() == [6.0, 12.0]
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert f(x).tolist() == [5.0, 10.0]
    assert f(kiln.ones(3)).tolist() == [5.0] * 3
    assert f(x.double()).dtype == kiln.float64


def test_prints_at_every_call(capsys: Any) -> None:
    @kiln.jit.script
    def f(x):
        print("sum", x.sum())
        return x

    for given in (X, [3.0, 4.0]):
        f(kiln.tensor(given))
    assert capsys.readouterr().out == "sum tensor(3.)\nsum tensor(7.)\n"


def test_names_that_programs_use() -> None:
    @kiln.jit.ignore
    def plain(x):
        return x + 1

    @kiln.script
    def f(x):
        if kiln.jit.is_scripting():
            x = plain(x)
        return x if x.sum() > 0 else kiln.jit.annotate(kiln.Tensor, -x)

    assert isinstance(f, kiln.jit.ScriptFunction) and f.name == "f" and "def f(x)" in f.code
    assert f(kiln.tensor(X)).tolist() == [2.0, 3.0]
    assert copy.deepcopy(f)(kiln.tensor(X)).tolist() == [2.0, 3.0]
    assert kiln.jit.script(f) is f


def test_lines_stay() -> None:
    def f(x):
        if x.sum() > 0:
            y = x.view(3, 3)
        else:
            y = x
        return y

    with pytest.raises(RuntimeError) as caught:
        kiln.jit.script(f)(kiln.tensor(X))
    lines = [t.lineno for t in caught.traceback if str(t.path).endswith("test_scripted.py")]
    assert f.__code__.co_firstlineno + 1 in lines  # (counted from 0)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    assert check(seed, interpreted=True) == ""
