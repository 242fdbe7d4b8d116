"""A recording is compared with the one that came next the last time: one that differs from it in one property
of one call is another recording, whose results are eager's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import needs_kiln

import kiln
from kiln.testing.compare import first_difference, freeze

pytestmark = needs_kiln

STEPS = 4
Step = Callable[[Any, Any], Any]


def array(*shape: int, seed: int = 0, **options: Any) -> Any:
    """Normal draws in memory of kiln's own."""
    return kiln.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32), **options)


def plain(x: Any, y: Any) -> Any:
    return x * y + 0.5


# each as `plain` but for one property of what it records
CHANGES: dict[str, Step] = {
    "another function": lambda x, y: x * y - 0.5,
    "a number's kind": lambda x, y: x * y + 1,
    "a number's value": lambda x, y: x * y + 0.25,
    "a number that is a bool": lambda x, y: x * y + True,
    "a number that is an array": lambda x, y: x * y + kiln.tensor(0.5),
    "operands the other way round": lambda x, y: y * x + 0.5,
    "one array twice": lambda x, y: x * x + 0.5,
    "dtype": lambda x, y: x * y.double() + 0.5,
    "strides": lambda x, y: x * y.t() + 0.5,
    "offset": lambda x, y: x * y[1] + 0.5,
    "a dim of 1": lambda x, y: x * y[:, :1] + 0.5,
    "a repeated row": lambda x, y: x * y[:1].expand(4, 4) + 0.5,
    "a shape": lambda x, y: (x.reshape(2, 8) * y.reshape(2, 8) + 0.5).reshape(4, 4),
    "dims of 1": lambda x, y: (x[None] * y + 0.5)[0],
    "a copy": lambda x, y: x * y.clone() + 0.5,
    "another array": lambda x, y: x * (y * 1)[:] + 0.5,
    "a write": lambda x, y: (x * y).add_(0.5),
    "a write of an input": lambda x, y: x * y.mul_(0.5) + 0.5,
    "a result that overlaps": lambda x, y: kiln.add(x * y, 0.5, out=kiln.empty(5, 4)[1:]),
    "gradients": lambda x, y: x * y.detach().requires_grad_() + 0.5,
    "no gradients": lambda x, y: kiln.no_grad()(plain)(x.detach().requires_grad_(), y),
    "a value read": lambda x, y: x * y + float((x * y)[0, 0] > 1e9) + 0.5,
    "one call fewer": lambda x, y: x * y,
    "one call more": lambda x, y: plain(x, y).tanh(),
}


def chain(x: Any, y: Any, steps: list[Step], held: list[Any] | None = None) -> tuple[Any, ...]:
    """The steps one after the other, each on the result before; `held` keeps every one of them."""
    for step in steps:
        x = step(x, y)
        if held is not None:
            held.append(x)
    return x, x.requires_grad, [] if held is None else held


def differ(compiled: Any, steps: list[Step], keeps: bool = False) -> Any:
    """The first difference between a compiled call and an eager one, its inputs afterwards too."""

    def outcome(call: Any) -> Any:
        x, y = array(4, 4), array(4, 4, seed=1)
        out = call(x, y, steps, [] if keeps else None)
        return freeze((out[0].detach(), out[1], [h.detach() for h in out[2]], x, y))

    return first_difference(outcome(chain), outcome(compiled), exact=True)


@pytest.mark.parametrize("place", range(STEPS))
@pytest.mark.parametrize("change", CHANGES)
def test_a_recording_that_differs_in_one_call(change: str, place: int) -> None:
    """After recordings that are alike, by turns with them, and when it is the one that is expected."""
    compiled = kiln.compile(chain, wait=True)
    usual: list[Step] = [plain] * STEPS
    other = list(usual)
    other[place] = CHANGES[change]
    for steps in (usual, usual, other, usual, other, other, other, usual):
        assert differ(compiled, steps) is None


def test_what_lives_afterwards_differs() -> None:
    """One recording, whose results are wanted at some calls and not at others."""
    compiled = kiln.compile(chain, wait=True)
    for keeps in (False, False, True, False, True, True):
        assert differ(compiled, [plain] * STEPS, keeps) is None
        gc.collect()
    assert compiled.stats()["programs"] == 1


def test_sizes_of_one_are_another_recording() -> None:
    """Sizes are no part of a recording, but whether they are 1 is."""
    compiled = kiln.compile(lambda x, y: (x * y + 0.5).sum(0), wait=True)
    for rows in (4, 7, 1, 4, 1, 1, 9):
        x, y = array(rows, 3), array(rows, 3, seed=1)
        assert first_difference(freeze((x * y + 0.5).sum(0)), freeze(compiled(x, y)), exact=True) is None
    assert compiled.stats()["programs"] == 2


def test_recordings_that_follow_each_other_are_expected() -> None:
    """A call of several recordings, cut where values are read, whose order changes from call to call."""

    def cut(x: Any, order: list[int]) -> list[float]:
        return [float((x * k + 0.5).sum() if k % 2 else (x - k).tanh().sum()) for k in order]

    compiled = kiln.compile(cut, wait=True)
    x = array(5)
    for order in ([1, 2, 3], [1, 2, 3], [2, 1, 3], [3], [1, 2, 3, 4], [2, 2, 1], [1, 2, 3]):
        assert compiled(x, order) == cut(x, order)
    assert compiled.stats()["programs"] == 2


def test_a_default_dtype_that_changes() -> None:
    """The functions are the same ones; what they are is not."""

    def steps(x: Any) -> Any:
        return (x.to(kiln.int64) / 3).to(kiln.float64) + kiln.mean(x)

    compiled = kiln.compile(steps, wait=True)
    x = array(6) * 10
    before = kiln.get_default_dtype()
    try:
        for dtype in (kiln.float32, kiln.float32, kiln.float64, kiln.float32, kiln.float64):
            kiln.set_default_dtype(dtype)
            assert first_difference(freeze(steps(x)), freeze(compiled(x)), exact=True) is None
    finally:
        kiln.set_default_dtype(before)


def test_a_recording_that_was_forgotten_is_made_again() -> None:
    """More recordings than a region remembers, the first of them again and again."""
    compiled = kiln.compile(lambda x, count: sum((x * 0.5 for _ in range(count)), x), wait=False)
    x = array(3)
    for count in [*range(1, 300), 1, 2, 1]:
        expected = sum((x * 0.5 for _ in range(count)), x)
        assert first_difference(freeze(expected), freeze(compiled(x, count)), exact=True) is None


def test_writes_that_others_see_copy_nothing() -> None:
    """A call that writes an array of NumPy's runs on its line, on the arrays themselves."""
    memory = np.ones((64, 64), np.float32)
    shared, own = kiln.from_numpy(memory), array(64, 64)
    other = kiln.from_numpy(np.full((64, 64), 2.0, np.float32))

    @kiln.compile(wait=True)
    def write() -> None:
        shared.add_(other)
        own.mul_(2.0)

    for _ in range(3):
        write()
    np.testing.assert_array_equal(memory, 7.0)
    assert "bytes" not in str(write.explain())
