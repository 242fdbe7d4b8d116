"""Random programs over trees and values that are read, in every way of running; a soak."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from backend import kiln, needs_kiln, torch

from kiln.testing.dynamic_programs import CALLS, EAGER, WAYS, check_ways, failures, observe
from kiln.testing.dynamic_writer import DynamicProgram, write_dynamic_program
from kiln.testing.random_programs import compiled_text
from kiln.testing.soak import soak

pytestmark = needs_kiln

COUNT = 1000 if os.environ.get("KILN_TEST_FULL") == "1" else 4
SECONDS = 60.0 if os.environ.get("KILN_TEST_FULL") == "1" else 3.0


@pytest.mark.parametrize("first", range(0, COUNT, 4))
def test_dynamic_programs(first: int, request: pytest.FixtureRequest) -> None:
    """Four programs from `first` (plus a thousand times --seed); failures are reported shrunk."""
    base = 1000 * int(request.config.getoption("--seed")) + first
    found = [f.report() for f in failures(4, base, kiln, torch) if f is not None]
    assert not found, "\n" + "\n".join(found)


BODY = (
    "    h = a[0] @ u",
    "    if h.sum() > 0:",
    "        h = h * 2",
    "    x0 = K.tanh(h)",
)
PROGRAM = DynamicProgram(0, (BODY, ("total.backward()",)), ("x0",))


@pytest.mark.parametrize("way", ["batched", "mapped"])
def test_the_check_can_fail(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that computes something else, by however little, is noticed."""
    ways = tuple(w for w in WAYS if w.name == way)
    assert check_ways(PROGRAM, kiln, ways, CALLS[:1]) is None
    original = kiln.Tensor.__matmul__

    def wrong(x: Any, y: Any) -> Any:
        return original(x, y) * (1 + 2**-20 if kiln._core.is_batching() else 1)

    monkeypatch.setattr(kiln.Tensor, "__matmul__", wrong)
    failure = check_ways(PROGRAM, kiln, ways, CALLS[:1])
    assert failure is not None and failure.kind == way


DRAWN = {
    "a tree": r"\(tree, 0\)",
    "a cell with weights it finds": r"@run\.cell",
    "a cell kept from call to call": r"@run\.kept",
    "a cell called": r"= cell\d\(",
    "a loop over rows": r"for q in ",
    "a loop until a value": r"while ",
    "a branch on a value": r"if (h|x\d+|bool|float).*(sum\(\)|item\(\)|all\(\)|argmax|\[0\])",
    "a value as an index": r"e\[(int\()?x?\w+\.arg",
    "items inside items": r"run\.each\(lambda",
    "a write in place": r"\.(mul|add|zero|copy)_\(|\] = |\+= ",
    "its own gradient": r"own\.extend",
    "a gradient of gradients": r"create_graph=True",
    "a hook": r"register_hook",
    "a gradient that is kept": r"retain_grad\(\)",
    "an exception": r"raise ValueError",
    "no_grad": r"no_grad",
    "backward in a block": r"with run\.block\(\):\n +total\.backward",
    "random numbers": r"K\.rand\(",
}


@pytest.mark.parametrize("what", DRAWN)
def test_what_is_drawn(what: str) -> None:
    """One program of fifty, at least, holds each thing that a way of running must get right."""
    assert sum(bool(re.search(DRAWN[what], write_dynamic_program(n).source)) for n in range(200)) >= 4


def test_what_is_drawn_happens() -> None:
    """Programs run to their ends, gradients reach the weights, values steer."""
    seen = [
        observe(EAGER, {}, compiled_text(write_dynamic_program(n)), kiln, CALLS[0], True) for n in range(16)
    ]
    assert sum(isinstance(s.values["result"][0], list) for s in seen) >= 12
    assert sum(any(g is not None for g in s.values["gradients"][2]) for s in seen) >= 8


def test_a_short_soak() -> None:
    """Exceptions, threads and hooks: values stay right, and nothing is kept. `make soak` adds Ctrl-C."""
    assert " raised" in soak(SECONDS, 0, interrupts=False)
