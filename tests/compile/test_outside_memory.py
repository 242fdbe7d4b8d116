"""Memory that NumPy and others hold, in compiled functions: who may write it, when it is copied.

Memory that only its tensor holds is read where it lies; what somebody else holds is copied when it is read.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kiln


def copied(x: kiln.Tensor) -> int:
    """Bytes that a compiled read of x copies at each call."""
    compiled = kiln.compile(lambda x: x * 2 + 1)
    compiled(x)
    known: int = compiled._region.describe(False)["copied"]
    assert ("copied at each call" in compiled.explain()) == bool(known)
    return known


def array() -> np.ndarray[Any, Any]:
    """Sixteen numbers in memory of their own."""
    return np.arange(16, dtype=np.float32).reshape(4, 4).copy()


HELD: dict[str, Callable[[np.ndarray[Any, Any]], tuple[kiln.Tensor, Any]]] = {
    "the array": lambda a: (kiln.from_numpy(a), a),
    "a view of it": lambda a: (kiln.from_numpy(a), a[1:]),
    "the array it is a view of": lambda a: (kiln.from_numpy(a[1:]), a),
    "a sibling": lambda a: (kiln.from_numpy(a[1:]), a[:2]),
    "a weak reference": lambda a: (kiln.from_numpy(a), (weakref.ref(a), setattr(kept, "a", a))),
    "a memoryview": lambda a: (kiln.from_numpy(a), memoryview(a)),
    "another tensor": lambda a: (kiln.from_numpy(a), kiln.from_numpy(a)),
    "an array of the tensor": lambda a: (x := kiln.from_numpy(a), x.numpy()),
    "a capsule": lambda a: (x := kiln.from_numpy(a), x.__dlpack__()),
    "an address": lambda a: (x := kiln.from_numpy(a), x.data_ptr()),
    "an iterator": lambda a: (kiln.from_numpy(a), a.flat),
    "a bytearray": lambda a: (kiln.frombuffer(b := bytearray(a.tobytes()), dtype=kiln.float32), b),
}


class _Kept:
    """Something to hang an array on."""


kept = _Kept()

ALONE: dict[str, Callable[[np.ndarray[Any, Any]], kiln.Tensor]] = {
    "an array": kiln.from_numpy,
    "a view of one": lambda a: kiln.from_numpy(a[1:]),
    "a view of a view": lambda a: kiln.from_numpy(a[1:].T),
    "as_tensor": kiln.as_tensor,
    "bytes": lambda a: kiln.frombuffer(a.tobytes(), dtype=kiln.float32),
    "a bytearray": lambda a: kiln.frombuffer(bytearray(a.tobytes()), dtype=kiln.float32),
    "a reader of bytes": lambda a: kiln.from_numpy(np.frombuffer(a.tobytes(), np.float32)),
}


@pytest.mark.parametrize("holder", HELD)
def test_what_somebody_holds_is_copied(holder: str) -> None:
    x, held = HELD[holder](array())
    assert copied(x) == x.numel() * 4, holder
    del held


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("owner", ALONE)
def test_what_nobody_holds_is_read_where_it_lies(owner: str) -> None:
    x = ALONE[owner](array())  # in an assert the test runner keeps what is written in it
    assert copied(x) == 0


def test_memory_is_private_again_when_the_last_array_goes() -> None:
    x = kiln.ones(4, 4)
    a, capsule = x.numpy(), x.__dlpack__()
    b = a[1:]
    assert copied(x) == 64
    del a
    assert copied(x) == 64
    del b
    assert copied(x) == 64
    del capsule
    assert copied(x) == 0
    x.data_ptr()
    assert copied(x) == 64


def test_a_mapped_file_is_copied(tmp_path: Any) -> None:
    """Others may write the file without an array of this process."""
    array().tofile(tmp_path / "numbers")
    x = kiln.from_numpy(np.memmap(tmp_path / "numbers", np.float32, "r+"))
    assert copied(x) == 64


def test_memory_made_shared_keeps_its_arrays() -> None:
    x = kiln.from_numpy(array())
    x.share_memory_()
    assert copied(x) == 64
    assert x.tolist() == array().tolist()


def test_positions_that_numpy_writes_are_checked_again() -> None:
    """That values are in range is remembered, but not beyond an array through which they can be written."""
    table, positions = kiln.ones(4, 2), kiln.tensor([0, 3, 1])
    for x in (positions, kiln.from_numpy(np.array([0, 3, 1]))):
        table[x]
        a = x.numpy()
        table[x]
        a[1] = 4
        del a
        with pytest.raises(IndexError):
            table[x]


def program(seed: int) -> Callable[[], list[list[float]]]:
    """Reads and writes by either side, with arrays kept and dropped, in an order of the seed."""
    rng = random.Random(seed)
    plan = [(rng.choice(STEPS), rng.randrange(2), rng.randrange(2)) for _ in range(12)]

    def run() -> list[list[float]]:
        tensors = [kiln.from_numpy(array().ravel()), kiln.zeros(16)]
        arrays: list[Any] = [None, None]
        found: list[kiln.Tensor] = []
        for step, i, j in plan:
            x = tensors[i]
            if step == "read":
                found.append(x * 2 + tensors[j])
            elif step == "take":
                arrays[i] = x.numpy()
            elif step == "drop":
                arrays[i] = None
            elif step == "array writes" and arrays[i] is not None:
                arrays[i][j::2] += 1
            elif step == "tensor writes":
                x.add_(tensors[j][0].clone())
            elif step == "wrap" and arrays[i] is not None:
                tensors[j] = kiln.from_numpy(arrays[i])
            elif step == "view":
                found.append(x[j:] - 1)
        return [t.tolist() for t in found]

    return run


STEPS = ("read", "read", "take", "drop", "array writes", "array writes", "tensor writes", "wrap", "view")


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_reads_and_writes_in_any_order(first: int) -> None:
    for seed in range(first, first + 20):
        run = program(seed)
        expected = run()
        compiled = kiln.compile(run)
        for _ in range(4):
            assert compiled() == expected, f"seed {seed}"
            compiled.wait()
