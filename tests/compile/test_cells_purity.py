"""What a pure function may not do is refused, with its line; what it promised is looked at again."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import _core, nn
from kiln.compiler import PurityError
from kiln.nn import functional as F

LIST: list[int] = []
DICT: dict[str, int] = {}
BUFFER = kiln.zeros(3)
COUNT = 0


@pytest.fixture
def fast() -> Iterator[None]:
    before = _core.set_check(False)
    yield
    _core.set_check(before)


def pure(function: Callable[..., Any]) -> Any:
    return kiln.compile(function, pure=True)


def writes_global(x: Any) -> Any:
    global COUNT
    COUNT += 1
    return x * 2


def writes_around() -> Any:
    count = 0

    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        return x * 2

    return f


class WritesAttribute(nn.Module):
    def forward(self, x: Any) -> Any:
        self.last = x
        return x * 2


def changes_dict(x: Any) -> Any:
    DICT["a"] = len(DICT)
    return x * 2


def catches(x: Any) -> Any:
    try:
        return x * x.sum().item()
    except Exception:
        return x


VIOLATIONS = {
    "item": (lambda x: x * x.sum().item(), "reads a value"),
    "item of an argument": (lambda x: x * x[0].item(), "reads a value"),
    "bool": (lambda x: x if x.sum() > 0 else -x, "reads a value"),
    "float": (lambda x: x * float(x[0]), "reads a value"),
    "tolist": (lambda x: x * x.tolist()[0], "reads a value"),
    "numpy": (lambda x: x * x.detach().numpy()[0], "reads a value"),
    "asarray": (lambda x: x * np.asarray(x.detach())[0], "reads a value"),
    "print": (lambda x: print(x) or x, "reads a value"),
    "caught": (catches, "reads a value"),
    "a write of an argument": (lambda x: x.detach().mul_(2), "writes an argument in place"),
    "a write of a buffer": (lambda x: x + BUFFER.add_(1), "writes a tensor made elsewhere in place"),
    "batch norm": (nn.BatchNorm1d(3, momentum=None), "reads a value"),
    "a global": (writes_global, "writes a global, COUNT"),
    "a variable around": (writes_around(), "writes a variable of the function around it"),
    "an attribute": (WritesAttribute(), "writes the attribute last of a WritesAttribute"),
    "a list": (lambda x: LIST.append(1) or x * 2, "changes a list that outlives it"),
    "a dict": (changes_dict, "changes a dict that outlives it"),
    "random": (lambda x: x * random.random(), "draws random numbers from Python"),
    "randint": (lambda x: x * random.randint(0, 9), "draws random numbers from Python"),
    "numpy's random": (lambda x: x * np.random.rand(), "draws random numbers from NumPy"),
    "backward": (lambda x: (x * 2).sum().backward(), "calls backward"),
    "grad": (lambda x: kiln.autograd.grad((x * 2).sum(), x)[0], "calls backward"),
    "an object": (lambda x: object(), "returns object"),
    "computed positions": (lambda x: F.embedding(x.long() + 1, kiln.ones(9, 2)), "positions"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_refused_at_the_first_call(name: str, fast: None) -> None:
    function, what = VIOLATIONS[name]
    x = kiln.rand(3).requires_grad_() if name != "batch norm" else kiln.rand(2, 3)
    before = x.tolist()
    with pytest.raises(PurityError, match=what) as raised:
        pure(function)(x)
    kiln_line = name == "batch norm"
    assert kiln_line or "outlives" in what or "test_cells_purity.py:" in str(raised.value)
    assert x.tolist() == before and BUFFER.tolist() == [0, 0, 0]


def test_a_generator_of_the_programs_own_is_noticed(fast: None) -> None:
    g = kiln.Generator().manual_seed(3)
    cell = pure(lambda x: x + kiln.rand(3, generator=g))
    with pytest.raises(PurityError):
        for _ in range(3):
            cell(kiln.ones(3))


def test_errors_of_the_function_come_as_they_are(fast: None) -> None:
    with pytest.raises(ZeroDivisionError):
        pure(lambda x: x * (1 / 0))(kiln.ones(2))
    cell = pure(lambda x, y: x @ y)
    for _ in range(4):
        cell(kiln.ones(2, 3), kiln.ones(3, 2))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        cell(kiln.ones(2, 3), kiln.ones(2, 2))


def test_what_changes_outside_is_noticed_at_the_next_call(fast: None) -> None:
    box = {"factor": 2.0}

    def f(x: Any) -> Any:
        return x * box["factor"]

    cell, x = pure(f), kiln.ones(2)
    for _ in range(300):
        assert cell(x).tolist() == [2, 2]
    box["factor"] = 3.0
    with pytest.raises(
        PurityError, match=r"mul\(., 3.0\).* instead of mul\(., 2.0\).*since call \d+"
    ) as raised:
        cell(x)
    assert "test_cells_purity.py:" in str(raised.value)
    assert cell(x).tolist() == [3, 3]  # as it is now, written down anew


class Slots:
    __slots__ = ("factor",)


def test_what_no_guard_sees_is_noticed_at_a_sampled_call(fast: None) -> None:
    hidden = Slots()
    hidden.factor = 2.0
    cell, x = pure(lambda x: x * hidden.factor), kiln.ones(2)
    for _ in range(300):
        assert cell(x).tolist() == [2, 2]
    hidden.factor = 3.0
    with pytest.raises(PurityError, match=r"mul\(., 3.0\).* instead of mul\(., 2.0\).*since call \d+"):
        for _ in range(300):
            cell(x)


def test_check_mode_looks_at_every_call() -> None:
    before = _core.set_check(True)
    try:
        box = {"factor": 2.0}
        cell, x = pure(lambda x: x * box["factor"]), kiln.ones(2)
        for _ in range(5):
            cell(x)
        assert cell.stats()["checks"] == 5
        box["factor"] = 3.0
        with pytest.raises(PurityError):
            cell(x)
    finally:
        _core.set_check(before)


def test_an_op_more_is_noticed() -> None:
    box = {"more": False}
    cell, x = pure(lambda x: (x * 2).exp() if box["more"] else x * 2), kiln.ones(2)
    before = _core.set_check(True)
    try:
        cell(x)
        box["more"] = True
        with pytest.raises(PurityError, match="2 ops instead of 1"):
            cell(x)
    finally:
        _core.set_check(before)


def test_random_numbers_are_those_of_eager_calls(fast: None) -> None:
    def f(x: Any) -> Any:
        return F.dropout(x, 0.5) + kiln.rand_like(x) + kiln.randn(2, 3)

    cell, x = pure(f), kiln.ones(2, 3)
    for seed in (1, 1, 2, 2, 3, 3):
        found = []
        for g in (f, cell):
            kiln.manual_seed(seed)
            found.append([g(x).tolist(), g(x).tolist(), kiln.rand(2).tolist()])
        assert found[0] == found[1]


def test_a_generator_function_is_refused() -> None:
    with pytest.raises(TypeError, match="generator"):

        @kiln.compile(pure=True)
        def f(x: Any) -> Any:
            yield x


def test_explain_tells_what_it_is(fast: None) -> None:
    cell = pure(lambda x: x * 2 + 1)
    for _ in range(5):
        cell(kiln.ones(2))
    text = kiln.compiler.explain(cell)
    assert "5 calls" in text and "2 were checked" in text and "2 ops on 1 tensors" in text


COLLECTED = 0


def test_what_the_collector_calls_is_not_the_functions() -> None:
    def collected(phase: str, _: Any) -> None:
        global COLLECTED
        COLLECTED += 1

    before = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        cell = kiln.compile(lambda x: [[] for _ in range(50)] and x * 3, pure=True)
        assert cell(kiln.ones(2)).tolist() == [3.0, 3.0]
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
    assert COLLECTED and gc.isenabled()
