"""Eager and compiled calls are one: the same errors on the same lines, the same metadata, nothing written by
a call that raises. `make scan` asks it of every function; here of what is known to be hard, and of a sample.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import _core
from kiln.table import registry
from kiln.testing.mode_cases import Arguments, Call, names
from kiln.testing.mode_scan import differences, outcome, scan

EVERY = 1 if os.environ.get("KILN_TEST_FULL") else 701  # of so many calls of the scan one


def _ints() -> Any:
    return kiln.arange(1, 5)


def _floats() -> Any:
    return kiln.ones(4)


def _bools() -> Any:
    return kiln.tensor([True, False, True, False])


# what a program may try to write, and into what
WRITES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "mul_": (_ints, lambda x: x.mul_(1.37)),
    "add_": (_ints, lambda x: x.add_(0.5)),
    "*=": (_ints, lambda x: x.__imul__(1.5)),
    "/=": (_ints, lambda x: x.__itruediv__(2)),
    "out of add": (_ints, lambda x: kiln.add(kiln.ones(4), kiln.ones(4), out=x)),
    "out of sum": (_ints, lambda x: kiln.sum(kiln.ones(2, 4), 0, out=x)),
    "out of matmul": (_ints, lambda x: kiln.matmul(kiln.ones(4, 2), kiln.ones(2), out=x)),
    "bool add_": (_bools, lambda x: x.add_(1)),
    "bool sub_": (_bools, lambda x: x.sub_(x)),
    "bool neg_": (_bools, lambda x: x.neg_()),
    "bool frac_": (_bools, lambda x: x.frac_()),
    "bits of floats": (_floats, lambda x: x.bitwise_and_(1)),
    "bits of floats inverted": (_floats, lambda x: x.bitwise_not_()),
    "addcdiv_ of integers": (_ints, lambda x: x.addcdiv_(x, x)),
    "a shape": (_floats, lambda x: x.add_(kiln.ones(2, 4))),
    "a leaf": (lambda: kiln.ones(4, requires_grad=True), lambda x: x.add_(1)),
    "an expanded target": (_floats, lambda x: x[:1].expand(4).add_(1)),
    "a shifted operand": (_floats, lambda x: x[1:].add_(x[:-1])),
    "a position": (_floats, lambda x: x.index_fill_(0, kiln.tensor([9]), 1.0)),
    "the second of two": (
        _floats,
        lambda x: kiln.sort(kiln.ones(4) * 2, out=(x, kiln.zeros(4, dtype=kiln.bool))),
    ),
    "the shape of the second": (
        _floats,
        lambda x: kiln.aminmax(kiln.ones(3, 4), dim=0, out=(x, kiln.ones(3))),
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_is_wrong_raises_on_its_line(name: str) -> None:
    """Inside a `try` of the compiled function, before the version moves; the values stay as they were."""
    make, write = WRITES[name]

    def caught(x: Any) -> Any:
        try:
            write(x)
        except (RuntimeError, NotImplementedError, IndexError) as error:
            return type(error), str(error)
        return None

    first = make()
    before, expected = first.tolist(), caught(first)
    assert expected is not None
    compiled = kiln.compile(caught, wait=True)
    for _ in range(3):
        x = make()
        assert compiled(x) == expected
        assert (x.tolist(), x._version) == (before, 0)
    assert (first.tolist(), first._version) == (before, 0)


def test_the_line_is_the_writes() -> None:
    """The traceback ends where the write stands, not at the region's end."""

    def step(x: Any) -> Any:
        y = x * 2
        y.mul_(1.5)  # this line
        return y + 1

    for function in (step, kiln.compile(step, wait=True)):
        with pytest.raises(RuntimeError, match="can't be cast") as raised:
            function(_ints())
        lines = [frame.line for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert "y.mul_(1.5)  # this line" in lines


def test_what_the_check_mode_sees_of_errors() -> None:
    """An op that passes on its line and raises when it runs is an error of kiln's that names op and line."""
    cube = registry.op("cube").handle  # of bool it has no kernel, which no check on the line says

    def step(x: Any) -> Any:
        return cube(x)

    with pytest.raises(
        SystemError, match=r"KILN_CHECK: .*: cube of line .*test_modes\.py:\d+ raised nothing"
    ):
        kiln.compile(step)(_bools())


# ---- elements that share memory ----


def _written(memory: Any, shape: Any, strides: Any, values: Any) -> Any:
    """The memory after `values` were written one by one, in logical order."""
    memory = memory.copy()
    for place in np.ndindex(*shape):
        memory[sum(i * s for i, s in zip(place, strides))] = values[place]
    return memory


OVERLAPPING = [((5, 2), (1, 1)), ((2, 2), (1, 1)), ((3, 4), (2, 1)), ((4, 3), (1, 2)), ((2, 3, 2), (3, 1, 2))]
APART = [((2, 3), (3, 2)), ((3, 2), (2, 5)), ((2, 2, 2), (1, 4, 2))]
OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mul_": (lambda x, y: x.mul_(2), lambda x, y: x * 2),
    "copy_": (lambda x, y: x.copy_(y), lambda x, y: y),
    "add_": (lambda x, y: x.add_(y), lambda x, y: x + y),
    "out=": (lambda x, y: kiln.add(x, y, out=x), lambda x, y: x + y),
    "cumsum_": (lambda x, y: x.cumsum_(-1), lambda x, y: np.cumsum(x, -1, dtype=x.dtype)),
}


@pytest.mark.parametrize("op", OPS)
def test_overlapping_targets(op: str) -> None:
    """As if everything were read before anything is written; of elements at one place the last one stays."""
    write, reference = OPS[op]

    def step(memory: Any, values: Any, shape: Any, strides: Any) -> Any:
        write(memory.as_strided(shape, strides), values)
        return memory * 1

    compiled = kiln.compile(step, wait=True)
    for shape, strides in OVERLAPPING + APART:
        memory = np.arange(20, dtype=np.float32)
        values = np.arange(100, 100 + np.prod(shape), dtype=np.float32).reshape(shape)
        seen = np.lib.stride_tricks.as_strided(memory, shape, [4 * s for s in strides])
        expected = _written(memory, shape, strides, reference(seen, values))
        for function in (step, *[compiled] * 3):
            found = function(kiln.tensor(memory.tolist()), kiln.tensor(values.tolist()), shape, strides)
            assert found.tolist() == expected.tolist(), (shape, strides)


def test_overlapping_targets_are_written_in_order_by_all_threads() -> None:
    """A large one as well, whose rows several threads would share."""
    n = 100_000
    values = kiln.arange(2 * n).view(n, 2)

    def step(memory: Any) -> Any:
        memory.unfold(0, 2, 1).copy_(values)
        return memory

    expected = [*range(0, 2 * n, 2), 2 * n - 1]
    for function in (step, kiln.compile(step, wait=True)):
        assert function(kiln.zeros(n + 1, dtype=kiln.int64)).tolist() == expected


def test_overlapping_targets_with_gradients() -> None:
    """Refused before anything is written: the gradient of two elements at one place is nobody's."""

    def step(x: Any) -> Any:
        y = x * 1
        before = y._version
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            y.unfold(0, 2, 1).mul_(2)
        assert y._version == before
        return y * 1

    for function in (step, kiln.compile(step, wait=True)):
        assert function(kiln.ones(6, requires_grad=True)).tolist() == [1.0] * 6


# ---- dims of size 0 and 1 ----


def test_strides_of_small_dims() -> None:
    """Those of the result's sizes, whatever the operands' are there."""

    def step(x: Any) -> Any:
        row, nothing = x[::2][:1], x[:, :0].t()
        given = [row + 1, row * row, row.exp(), kiln.where(row > 0, row, 1.0), row.sum(0, keepdim=True)]
        return [y.stride() for y in (*given, nothing + 1, -nothing)]

    x = kiln.ones(10, 5)
    expected = [(5, 1)] * 5 + [(10, 1)] * 2
    compiled = kiln.compile(step, wait=True)
    assert [step(x), *(compiled(x) for _ in range(3))] == [expected] * 4


# ---- one wrong call does not spoil the next ----


def test_equal_numbers_of_other_types() -> None:
    """1.0 is not 1 where a dim, a size or a count is meant, though it is equal and hashes alike."""
    x, w = kiln.ones(1, 2, 9), kiln.ones(3, 2, 3)
    calls = {
        "sum": lambda k: kiln.sum(x, k(1)),
        "flip": lambda k: kiln.flip(x, (k(1),)),
        "softmax": lambda k: kiln.softmax(x, k(1)),
        "sort": lambda k: kiln.sort(x, k(1))[0],
        "conv1d": lambda k: kiln.nn.functional.conv1d(x, w, padding=k(2)),
        "strided": lambda k: kiln.nn.functional.conv1d(x, w, stride=(k(2),)),
    }
    for call in calls.values():
        with pytest.raises((TypeError, AttributeError, RuntimeError)):
            call(float)
        call(int)


# ---- the scan ----


def test_what_the_scan_sees() -> None:
    """A function that raises after writing, one whose error is lost, and one that gives other strides."""

    def writes_and_raises(x: Any) -> Any:
        x.add_(1)
        raise ValueError("no")

    def raises_eagerly(x: Any) -> Any:
        if not _core.recording():
            raise ValueError("no")
        return x

    def other_strides(x: Any) -> Any:
        return x.t() if _core.recording() else x.t().contiguous()

    for function, words in (
        (writes_and_raises, "and wrote"),
        (raises_eagerly, "raised 'nothing'"),
        (other_strides, "strides"),
    ):
        call = Call(words, function, lambda: Arguments([kiln.ones(2, 3)], {}))
        assert any(words in line for line in differences(call))


def test_the_scan_leaves_arguments_recordable() -> None:
    """Looking at them must not make their memory public: writes to that are not recorded."""

    def step(x: Any) -> Any:
        return x.add_(1)

    compiled = kiln.compile(lambda function, args, kwargs: function(*args, **kwargs), wait=True)
    recorded = outcome(Call("", step, lambda: Arguments([kiln.ones(2, 3)], {})), compiled)
    assert not recorded.raised
    assert compiled.stats()["runs"] == 1


def test_a_sample_of_the_scan() -> None:
    """One call in a few hundred, of every kind of argument and every dtype."""
    assert scan(names(), ("float32", "int64", "bool"), EVERY) == []


def test_the_scan_in_the_next_process(tmp_path: Path) -> None:
    """Programs that one process kept on disk serve the next, from its first call."""
    code = (
        "from kiln.testing.mode_scan import scan\n"
        "print(scan(['add', 'clamp', 'cumsum', 'scatter', 'sort', 'addcdiv'], ('float32', 'int64'), 7))"
    )
    variables = {**os.environ, "KILN_CACHE_DIR": str(tmp_path), "KILN_CHECK": "1"}
    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
        assert ran.stdout == "[]\n", ran.stdout + ran.stderr
