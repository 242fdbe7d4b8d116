"""Regions that stop recording: where nothing repeats, while a program is compiled, where whole calls lose.

Programs run alone here: under the check nothing is given up, so that everything is compared.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

import kiln
from kiln import _core
from kiln.capture import background, policy

FIRST_REST = 128  # calls


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    before = _core.set_check(False)
    yield
    _core.set_check(before)


@pytest.fixture
def busy() -> Iterator[Event]:
    """The compiling thread has something else to do until the event is set."""
    background.wait()
    done = Event()
    background.submit(lambda checkpoint: done.wait() and None, lambda: None)
    yield done
    done.set()
    background.wait()


def pattern(t: Any, n: int, ops: int = 12) -> Any:
    """A chain of ops that is another one for every number."""
    for k in range(ops):
        t = t * 2 if n >> k & 1 else t + 1
    return t


def told(compiled: Any) -> Any:
    return compiled._region.describe(False)


def test_what_never_repeats_is_given_up_within_ten_calls() -> None:
    """And is called as it is: the same results, no recording made or remembered."""
    compiled = kiln.compile(pattern)
    x = kiln.ones(3)
    for n in range(FIRST_REST):
        assert compiled(x, n).tolist() == pattern(x, n).tolist()
    assert compiled.stats()["off"]
    assert told(compiled)["made"] <= 10
    text = compiled.explain()
    assert "switched off: hardly any recording was seen again" in text
    assert f"after {FIRST_REST - (FIRST_REST - 8)} more calls it is recorded again" in text


def test_looks_become_rare() -> None:
    """Each rest is twice as long as the one before, and a look is a small part of it."""
    compiled = kiln.compile(pattern)
    x = kiln.ones(3)
    made = []
    for n in range(4000):
        if n in (100, 1000):
            made.append(told(compiled)["made"])
        compiled(x, n)
    made.append(told(compiled)["made"])
    assert made[0] == 8
    assert made[1] - made[0] <= 900 / 25
    assert made[2] - made[1] <= 3000 / 25


def test_a_steady_call_is_found_after_a_rest() -> None:
    """A program that settles is recorded again, compiled, and run by its program."""
    compiled = kiln.compile(pattern)
    x = kiln.ones(3)
    for n in range(20):
        compiled(x, n)
    assert compiled.stats()["off"]
    for _ in range(FIRST_REST + 4):
        assert compiled(x, 5).tolist() == pattern(x, 5).tolist()
        compiled.wait()
    assert compiled.stats()["runs"] > 0


def test_what_comes_again_after_many_calls_is_found() -> None:
    """Looks grow with rests, so a cycle of forty recordings is found too."""
    compiled = kiln.compile(lambda t, n: pattern(t, n, 6))
    x = kiln.ones(3)
    for n in range(12000):
        compiled(x, n % 40)
        if any(recording["pending"] for recording in told(compiled)["recordings"]):
            break  # a slow machine might not compile it within so many calls
    compiled.wait()
    assert compiled.stats()["compiles"]


@pytest.mark.parametrize("several", [1, 3])
def test_what_repeats_is_compiled_at_second_sight(several: int) -> None:
    """One recording, or several in turn."""
    compiled = kiln.compile(pattern)
    x = kiln.ones(3, dtype=kiln.float64)
    for _ in range(2):
        for n in range(several):
            compiled(x, 8 * several + n)
    compiled.wait()
    for n in range(8 * several, 9 * several):
        assert compiled(x, n).tolist() == pattern(x, n).tolist()
    assert compiled.stats()["compiles"] == compiled.stats()["runs"] == several


def test_a_region_that_waits_for_its_program_does_not_record(busy: Event) -> None:
    """Until the program is there: then it is used at once."""
    compiled = kiln.compile(pattern)
    x = kiln.ones(3)
    for _ in range(50):
        assert compiled(x, 9).tolist() == pattern(x, 9).tolist()
    assert compiled.stats()["replays"] < 25
    assert "switched off: its programs are being compiled" in compiled.explain()
    busy.set()
    compiled.wait()
    compiled(x, 9)
    assert compiled.stats()["runs"] == 1
    assert "switched off" not in compiled.explain()


def test_long_programs_do_not_wait_for_each_other(busy: Event) -> None:
    """One is compiled at a time; another recording is asked for again when that is done."""
    first, second = (kiln.compile(lambda t, n=n: pattern(t, n, 300)) for n in (1, 2))
    x = kiln.zeros(3)
    for _ in range(3):
        first(x)
        second(x)
    assert [r["pending"] for f in (first, second) for r in told(f)["recordings"]] == [True, False]
    del first, second
    busy.set()


def test_what_is_given_up_is_not_compiled(busy: Event) -> None:
    """A chance repeat has asked for a program that nobody needs any more."""
    compiled = kiln.compile(pattern)
    x = kiln.ones(3)
    for n in (0, 0, *range(1, 20)):
        compiled(x, n)
    assert "hardly any" in compiled.explain()
    busy.set()
    compiled.wait()
    assert compiled.stats()["compiles"] == 0
    assert not any(r["pending"] for r in told(compiled)["recordings"])


def test_whole_calls_decide() -> None:
    """By the times of calls recorded and not, with no tolerance."""
    assert policy.judge("f", 2e-6, 2e-6) is None
    assert policy.judge("f", 2.1e-6, 2e-6) == "a call takes 2.1 us recorded and 2.0 us not"


def test_a_small_call_ends_as_a_call_of_the_function() -> None:
    """A tiny op cannot gain: after some calls none is recorded, until it is looked at again."""
    compiled = kiln.compile(lambda t: t + 1)
    x = kiln.ones(3)
    for _ in range(3):
        for _ in range(100):
            compiled(x)
        compiled.wait()
    stats = compiled.stats()
    assert stats["off"]
    assert stats["runs"] + stats["replays"] < 100
    assert "calls it is recorded again for a few" in compiled.explain()


@pytest.mark.parametrize("calls", [1, 40], ids=["recorded", "resting"])
def test_errors_show_the_users_lines_alone(calls: int) -> None:
    def failing(t: Any, n: int) -> Any:
        if n < 0:
            raise KeyError("mine")
        return pattern(t, n)

    compiled = kiln.compile(failing)
    for n in range(calls - 1):
        compiled(kiln.ones(3), n)
    with pytest.raises(KeyError, match="mine") as caught:
        compiled(kiln.ones(3), n=-1)
    names = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_errors_show_the_users_lines_alone", "failing"]
    with pytest.raises(TypeError):
        compiled()


MANY = """
import kiln
ops = (kiln.neg, kiln.tanh, kiln.exp, kiln.relu)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

@kiln.compile
def f(x, number):
    y = x
    for _ in range(2):  # the same at every call
        for _ in range(60):
            y = y.neg()
        assert y.sum() > 0
    for _ in range(50):  # these are others at every call
        y = ops[number % 4](y) if number else y.neg()
        number //= 4
    return y

x, before = kiln.ones(20000), 0
for k in range(1600):
    if k == 600:
        before = resident()
    f(x, k + 4096)
    if k == 3:
        kiln.compiler.wait()
print(f._region.describe(False)["made"], f.stats()["programs"], resident() - before)
"""


def test_a_thousand_different_recordings_do_not_grow_memory() -> None:
    """The newest are remembered, of which each takes ten thousand bytes; beside them a long one repeats."""
    done = subprocess.run([sys.executable, "-P", "-c", MANY], capture_output=True, text=True, check=True)
    made, known, grown = map(int, done.stdout.split())
    assert made > 1600 and known == 256
    assert grown < 3_000_000
