"""Scripts of modules, what they raise and print, when they are made anew, and as parts of other programs."""

from __future__ import annotations

import copy
import io
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kiln
import kiln.nn.functional as F
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

    @kiln.jit.export
    def double(self, x: Any) -> Any:
        """One with a name that modules have."""
        return x * 2


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
    assert script.double(kiln.tensor(X)).tolist() == [2 * x for x in X]
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
    assert check(seed, "interpreter") == ""


def test_annotations_are_checked() -> None:
    @kiln.jit.script
    def f(x: kiln.Tensor, n: int, scale: float = 1.0, more: list[kiln.Tensor] | None = None) -> Any:
        return x * n * scale

    x = kiln.tensor(X)
    assert f(x, 2).tolist() == [2.0, 4.0] and f(x, kiln.tensor(3), 2, [x]).tolist() == [6.0, 12.0]
    for wrong, name in (((2, 2), "x"), ((x, "a"), "n"), ((x, 2, x), "scale"), ((x, 2, 1.0, [1]), "more")):
        with pytest.raises(RuntimeError, match=f"Expected a value of type .* for argument '{name}'"):
            f(*wrong)


def test_text_as_source() -> None:
    unit = kiln.jit.CompilationUnit("""
        def double(x: Tensor, limit: Optional[int] = None):
            while bool(x.sum() < (20 if limit is None else limit)):
                x = x * 2
            return x

        def twice(x: Tensor) -> Tensor:
            return double(double(x), 50)
    """)
    assert unit.twice(kiln.tensor(X)).tolist() == [32.0, 64.0]
    with pytest.raises(AttributeError, match="no attribute 'thrice'"):
        _ = unit.thrice

    class Old(kiln.jit.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(kiln.tensor(3.0))
            self.define("def scaled(self, x):\n    return self.scale * x if x.sum() > 0 else x\n")

        @kiln.jit.script_method
        def forward(self, x: Any) -> Any:
            return self.scaled(x)

    for module in (Old(), kiln.jit.script(Old())):
        assert module(kiln.tensor(X)).tolist() == [3.0, 6.0]
        assert module(kiln.tensor([-1.0, 0.0])).tolist() == [-1.0, 0.0]


def test_hooks_and_prepared_modules() -> None:
    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    module = Twice()
    module.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    script = kiln.jit.script(module)
    assert script(kiln.tensor(X)).tolist() == module(kiln.tensor(X)).tolist() == [4.0, 6.0]
    handle = script.register_forward_hook(lambda _, given, result: -result)
    assert script(kiln.tensor(X)).tolist() == module(kiln.tensor(X)).tolist() == [-4.0, -6.0]
    handle.remove()
    assert script(kiln.tensor(X)).tolist() == [4.0, 6.0]

    class Other(nn.Module):
        def __prepare_scriptable__(self) -> Any:
            return nn.ReLU()

    script = kiln.jit.script(nn.Sequential(Other(), nn.Identity()))
    assert script(kiln.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


COUNTS: dict[str, Any] = {}
TOTAL = 0
TABLE = np.array([1.0, 2.0])


def counted(x: Any, items: list[Any], start: int = 0, seen: Any = []) -> Any:  # noqa: B006
    """Changes its argument, its default, a global and a dict; reads an array and the environment."""
    global TOTAL
    TOTAL += 1
    seen.append(start)
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    if x.sum() > 0:
        items.append(x * 2)
    else:
        items[0] = start
    more = float(TABLE[0]) + len(os.environ.get("KILN_TEST_WORD", ""))
    return items, TOTAL + len(seen) + more


def test_what_calls_change(monkeypatch: Any) -> None:
    results = []
    for f in (counted, kiln.jit.script(counted)):
        globals()["TOTAL"], TABLE[0] = 0, 1.0
        monkeypatch.delenv("KILN_TEST_WORD", raising=False)
        COUNTS.clear()
        counted.__defaults__[1].clear()  # type: ignore[index]
        told: list[Any] = []
        for k, x in enumerate((X, [-1.0, 0.0], X, X)):
            items: list[Any] = [7]
            made, n = f(kiln.tensor(x), items)
            assert made is items
            told.append((repr(items), n, TOTAL, dict(COUNTS)))
            if k == 1:
                TABLE[0] = 5.0
                monkeypatch.setenv("KILN_TEST_WORD", "abc")
        results.append(told)
    assert results[0] == results[1]
    monkeypatch.setitem(globals(), "TOTAL", 0)


def _deque(x: Any) -> Any:
    QUEUE.append(1)
    return x + len(QUEUE)


def _iterator(x: Any) -> Any:
    return x + next(NUMBERS)


def _clock(x: Any) -> Any:
    return x.double() + time.perf_counter_ns()


def _shared(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 2


QUEUE: Any = deque()
NUMBERS: Any = iter(range(100))


@pytest.mark.parametrize("function", [_deque, _iterator, _clock, _shared], ids=lambda f: f.__name__)
def test_changes_that_no_call_can_make(function: Any) -> None:
    x = kiln.tensor(X)
    with pytest.raises(RuntimeError, match="there before the call|twice on one example|shares memory"):
        kiln.jit.script(function)(*((x, x[:1]) if function is _shared else (x,)))
    assert x.tolist() == X


def test_dtype_as_setting_in_a_file() -> None:
    script = kiln.jit.script(lambda x: x.sum(0, dtype=kiln.float64))
    expected = script(kiln.tensor(X))
    held = io.BytesIO()
    script.save(held)
    held.seek(0)
    came = kiln.jit.load(held)(kiln.tensor(X))
    assert expected.dtype == came.dtype == kiln.float64 and expected.item() == came.item() == 3.0


def test_exchanged_parameters_and_objects() -> None:
    module, x = net(), kiln.tensor(X)
    script = kiln.jit.script(module)
    for _ in range(3):
        assert script(x).tolist() == module(x).tolist()
    module.a.weight = nn.Parameter(kiln.ones(2, 2))
    assert script(x).tolist() == module(x).tolist()
    module.a = nn.Linear(2, 2)
    assert script(x).tolist() == module(x).tolist()

    class Box:
        def __init__(self, n: int) -> None:
            self.n = n

    @kiln.jit.script
    def times(x, box):
        return x * box.n

    for k in range(4):
        box = Box(k)
        assert times(x, box).tolist() == [k, 2 * k]
        box.n = 7
        assert times(x, box).tolist() == [7, 14]

    @kiln.jit.script
    def contiguous(x):
        return x + 1 if x.is_contiguous() else x

    assert contiguous(kiln.ones(2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    with pytest.raises(RuntimeError, match="lies in memory"):
        contiguous(kiln.ones(2, 3).T)


def _one_hot_in_branch(x: Any, i: Any) -> Any:
    y = i[:, None].expand(2, 3) * 1
    if x.sum() > 0:
        y = F.one_hot(i, 3)
    return y


def _one_hot_in_loop(x: Any, i: Any) -> Any:
    y, k = i[:, None].expand(2, 3) * 1, 0
    while k < 3 and x.sum() > k:
        y = y + F.one_hot(i, 3)
        k += 1
    return y


def _one_hot_before_an_error(x: Any, i: Any) -> Any:
    if x.sum() > 0:
        F.one_hot(i, 3)
        raise ValueError("too much")
    return x


def _one_hot_in_try(x: Any, i: Any) -> Any:
    try:
        if x.sum() > 0:
            return F.one_hot(i, 3)
    except RuntimeError:
        return i
    return x


@pytest.mark.parametrize(
    "f", [_one_hot_in_branch, _one_hot_in_loop, _one_hot_before_an_error, _one_hot_in_try]
)
def test_what_ops_ask_of_values_is_asked_where_they_run(f: Callable[..., Any]) -> None:
    """A position out of range raises in the branch or step that has it, and only there."""
    scripts = [kiln.jit.script(f)]
    if f is not _one_hot_in_try:  # of which one program cannot hold all ways
        scripts.append(kiln.export.export(kiln.jit.script(f), (kiln.ones(2), kiln.tensor([0, 1]))).module())
    for x in (kiln.ones(2), -kiln.ones(2)):
        for i in (kiln.tensor([0, 1]), kiln.tensor([5, 1])):
            for script in scripts:
                assert _outcome(script, x, i) == _outcome(f, x, i)


def _outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args).tolist()
    except (RuntimeError, ValueError) as error:
        return type(error).__name__, str(error).removeprefix("ExportedProgram: ")


def _until_it_is_large(x: Any) -> Any:
    n = 0
    while x.sum() < 3 and n < 5:
        x = x + kiln.rand(2)
        n += 1
    return x, n


def _first_that_fits(x: Any) -> Any:
    n = 0
    while True:
        z = kiln.rand(2)
        n += 1
        if z.sum() > 1.2:
            break
    return z * x, n


def _by_a_coin(x: Any) -> Any:
    return (x * 2 if kiln.rand(1).item() < 0.5 else F.dropout(x)), 0


@pytest.mark.filterwarnings("ignore:.*each way it goes")
@pytest.mark.parametrize("f", [_until_it_is_large, _first_that_fits, _by_a_coin])
def test_what_is_drawn_may_decide(f: Callable[..., Any]) -> None:
    """Values, steps and where the generator is afterwards are the function's, whatever it draws."""
    script = kiln.jit.script(f)
    for seed in range(12):
        found = []
        for call in (f, script):
            kiln.manual_seed(seed)
            y, n = call(kiln.ones(2) * (seed % 3 - 1))
            found.append((y.tolist(), n, kiln.rand(1).item()))
        assert found[0] == found[1]
