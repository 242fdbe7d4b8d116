"""Random programs: eager against recorded in every bit, against PyTorch within rounding; and that this
can fail.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, torch

from kiln.capture import programs
from kiln.testing.backend import Framework
from kiln.testing.gradient_writer import write_gradient_program
from kiln.testing.program_writer import Program, write_program
from kiln.testing.random_programs import (
    CALLS,
    check_peer,
    check_recorded,
    compiled_text,
    failures,
    observe,
    shrink,
)

COUNT = int(os.environ.get("KILN_RANDOM_PROGRAMS", "300"))
BATCH = 10


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_random_programs(first: int, request: pytest.FixtureRequest) -> None:
    """BATCH programs from `first` (plus a thousand times --seed); all failures are reported at once,
    shrunk.
    """
    base = 1000 * int(request.config.getoption("--seed")) + first
    found = [f.report() for f in failures(min(BATCH, COUNT - first), base, kiln, torch) if f is not None]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is not installed")
@pytest.mark.parametrize("first", range(0, COUNT, 10 * BATCH))
def test_gradient_programs(first: int, request: pytest.FixtureRequest) -> None:
    """Programs of histories, views and writes have PyTorch's gradients; one of ten is recorded too."""
    base = 1000 * int(request.config.getoption("--seed")) + first
    found: list[str] = []
    for number in range(base, base + min(10 * BATCH, COUNT - first)):
        program = write_gradient_program(number)
        failure = check_peer(program, kiln, torch)
        if failure is None and number % 10 == 0:
            failure = check_recorded(program, kiln, CALLS[1:4])
        if failure is not None:
            found.append(shrink(failure, kiln, torch).report())
    assert not found, "\n" + "\n".join(found)


@pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is not installed")
@pytest.mark.parametrize("bug", ["a write is not recorded", "a kept gradient is lost"])
def test_gradient_programs_can_fail(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong history is found out within a hundred programs."""
    if bug == "a write is not recorded":
        monkeypatch.setattr(
            kiln.Tensor, "copy_", lambda self, source: self.data.mul_(0).add_(source.detach())
        )
    else:
        monkeypatch.setattr(kiln.Tensor, "retain_grad", lambda self: None)
    assert any(check_peer(write_gradient_program(n), kiln, torch) is not None for n in range(100))


class Planted(Framework):
    """A framework whose `compile` has one bug of the kind recording must not have."""

    def __init__(self, bug: str) -> None:
        super().__init__(kiln.name)
        self.bug = bug

    def compile(self, fn: Any) -> Any:
        """`fn` with the planted bug."""
        first: list[Any] = []

        def stale_number(
            K: Any, F: Any, a: Any, b: Any, w: Any, v: Any, z: Any, i: Any, n: Any, s: float, *rest: Any
        ) -> Any:
            first.append(s)
            return fn(K, F, a, b, w, v, z, i, n, first[0], *rest)

        def private_memory(K: Any, F: Any, a: Any, b: Any, *rest: Any) -> Any:
            return fn(K, F, a, b.clone(), *rest)

        return {"stale number": stale_number, "private memory": private_memory}[self.bug]


@pytest.mark.parametrize("bug", ["stale number", "private memory"])
def test_the_check_can_fail(bug: str) -> None:
    """A planted bug is found within a hundred programs, and shrinks to a few lines that still show it."""
    broken = Planted(bug)
    failure = next(
        (f for n in range(100) if (f := check_recorded(write_program(n), broken)) is not None), None
    )
    assert failure is not None
    short = shrink(failure, broken, None)
    assert len(short.program.blocks) <= 6
    assert check_recorded(short.program, broken) is not None
    assert check_recorded(short.program, kiln) is None


@pytest.mark.op_by_op
def test_a_region_that_runs_op_by_op_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program whose recording the compiler refuses is a failure, though its values are right."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("cannot be computed")

    program = Program(0, (("x0 = K.tanh(b) + 1",),), ("x0",))
    assert check_recorded(program, kiln) is None
    monkeypatch.setattr(programs, "program", refuse)
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))  # where the program is not kept
    failure = check_recorded(program, kiln)
    assert failure is not None
    assert "runs op by op" in failure.detail


@pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is not installed")
def test_the_peer_check_can_fail() -> None:
    """A framework that computes something else than its peer is noticed."""

    class Wrong(Framework):
        def tanh(self, x: Any) -> Any:
            return kiln.sigmoid(x)

    program = Program(0, (("x0 = K.tanh(b)",),), ("x0",))
    assert check_peer(program, Wrong(kiln.name), torch) is not None
    assert check_peer(program, kiln, torch) is None


# what programs must hold so that the rules of recording are put to the test
DRAWN = {
    "memory from NumPy": r"K\.from_numpy\(n\)",
    "memory given to NumPy": r"\.detach\(\)\.numpy\(\)",
    "a write through NumPy": r"\bn\d*\[(\.\.\.\] = 1|:1\] \+= 2)",
    "numbers equal by accident": r"(?s)\bs\b.*\bt\b|\bt\b.*\bs\b",
    "a kept tensor": r"log\.append\(x\d+\)",
    "a kept error": r"log\.append\(error\)",
    ".data": r"\.data\.mul_",
    "try around a gather": r"    \w+ = \w+\.gather\(1, i\[:, None\] [+-] 99",
    "another thread": r"in_thread\(",
    "a view": r"\.(unsqueeze|transpose|permute|expand|detach)\(|= \w+\[",
    "a write in place": r"\.(mul|add|zero|copy)_\(|\] = |\+= ",
    "a write through a view": r"\[[^\]]+\]\.\w+_\(",
    "a branch on a value": r"if (bool\(|\w+\.sum\(\)\.item)",
    "a branch on a size": r"if .*shape",
    "a read in the middle": r"say\(\w|\.item\(\)\)",
    "backward": r"\.backward\(",
    "create_graph": r"create_graph=True",
    "no_grad": r"no_grad",
    "a dropped name": r"del \w",
    "random numbers": r"K\.rand\(",
}


@pytest.mark.parametrize("what", DRAWN)
def test_what_is_drawn(what: str) -> None:
    """One program of fifty, at least, holds each thing that breaks naive recorders."""
    holding = [n for n in range(500) if re.search(DRAWN[what], body(write_program(n)))]
    assert len(holding) >= 10


def body(program: Program) -> str:
    """The program's text without its head."""
    return program.source.split("\n", 1)[1]


def test_what_is_drawn_happens() -> None:
    """Programs run to their ends, gradients reach leaves, bad indices raise, other threads do their work."""
    seen = [observe(compiled_text(write_program(n)), kiln, CALLS[0], True).values for n in range(100)]
    logs = [item for s in seen for item in s["log"]]
    assert sum(isinstance(s["result"], list) for s in seen) >= 80
    assert sum(any(g is not None for g in s["gradients"]) for s in seen) >= 15
    assert logs.count("bad index") + logs.count({"raised": "RuntimeError"}) >= 3
    assert logs.count("write refused") >= 3


@pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is not installed")
@pytest.mark.parametrize("error", [1e-3, 1e-4])
def test_a_small_difference_from_the_peer_is_noticed(error: float) -> None:
    """What the peer does not decide is what its rounding moves, not what is a little wrong."""

    class Wrong(Framework):
        def exp(self, x: Any) -> Any:
            return kiln.exp(x) * (1 + error)

    blocks = ("x0 = K.exp(b)",), ("x1 = F.layer_norm(x0 * 2, x0.shape[-1:]) + x0.sum(0)",)
    program = Program(0, blocks, ("x0", "x1"))
    assert check_peer(program, Wrong(kiln.name), torch) is not None
    assert check_peer(program, kiln, torch) is None


def test_programs_are_reproducible_and_valid_python() -> None:
    """A seed gives one text, and every text compiles."""
    for number in range(200):
        program = write_program(number)
        assert program == write_program(number)
        compiled_text(program)
