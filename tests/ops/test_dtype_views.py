"""`view(dtype)`: two dtypes over one storage, in random programs that write through either."""

from __future__ import annotations

import random
from typing import Any

import pytest
from backend import kiln, torch

INTEGERS = ["int8", "uint8", "int16", "int32", "int64"]


def some_view(lib: Any, base: Any, rng: random.Random) -> Any:
    """A slice of `base` read as a dtype whose width fits it."""
    for name in rng.sample(INTEGERS, len(INTEGERS)):
        try:
            bits = base.view(getattr(lib, name))
            break
        except RuntimeError:  # the width does not divide what there is
            continue
    count = rng.randint(1, len(bits))
    start = rng.randint(0, len(bits) - count)
    return bits[start : start + count]


def written(lib: Any, seed: int, x: Any) -> list[Any]:
    """What comes of writes through views of other dtypes: an error or not, and the version after each."""
    rng = random.Random(seed)
    seen, found = [x], []
    for _ in range(6):
        kind = rng.randrange(4)
        target = some_view(lib, rng.choice(seen), rng)
        source = some_view(lib, x, rng)
        seen.append(target)
        count = min(len(target), len(source))
        try:
            if kind == 0:
                target[:count].copy_(source[:count])
            elif kind == 1:
                target.add_(source[:1])
            elif kind == 2:
                target[:count].mul_(source[:count])
            else:
                target[:count].copy_(source[:count].flip(0))
            found.append("written")
        except RuntimeError:
            found.append("refused")
        found.append(x._version)
    return found


def start(lib: Any) -> Any:
    return lib.arange(16) * 0x0123456789ABCD


def all_written(lib: Any) -> list[Any]:
    memories = [(seed, start(lib)) for seed in range(150)]
    return [(written(lib, seed, x), x.tolist()) for seed, x in memories]


def test_writes_are_seen_and_counted_by_both(answers: Any) -> None:
    """What is written, refused and counted is what it is in PyTorch."""
    ours = all_written(kiln)
    assert repr(ours) == repr(answers("150 programs", lambda: all_written(torch)))
    assert "'refused'" in repr(ours)


@pytest.mark.parametrize("seed", range(20))
def test_in_recorded_regions(seed: int) -> None:
    """A recorded program leaves the elements that an eager one leaves."""
    step = kiln.compile(lambda x: written(kiln, seed, x))
    for _ in range(3):
        x, y = start(kiln), start(kiln)
        assert written(kiln, seed, x) == step(y)
        assert x.tolist() == y.tolist()


def test_a_write_of_bits_fails_the_backward_that_saved_them() -> None:
    w = kiln.ones(4, requires_grad=True) * 1
    loss = (w * w).sum()
    w.detach().view(kiln.int32).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_bits_of_a_leaf_have_no_history() -> None:
    x = kiln.ones(4, requires_grad=True)
    bits = x.view(kiln.int32)
    bits.add_(1)
    assert x.is_leaf and bits.grad_fn is None and not bits.requires_grad and bits._base is None
    assert x.tolist() == [1.0000001192092896] * 4


def test_a_user_function_that_gives_bits() -> None:
    """Its result is no view to autograd: a write to it does not go back to the argument's history."""

    class Bits(kiln.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view(kiln.float16)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.reshape(-1, 2).sum(-1).float()

    x = kiln.ones(3, requires_grad=True)
    y = Bits.apply(x)
    assert y.shape == (6,) and y._base is None
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("dtype", ["int16", "float64"])
def test_of_no_elements(dtype: str) -> None:
    empty = kiln.zeros(0, 4)
    assert empty.view(getattr(kiln, dtype)).shape == (0, 8 if dtype == "int16" else 2)


def test_memory_that_is_not_aligned() -> None:
    memory = kiln.zeros(17, dtype=kiln.uint8)
    with pytest.raises(RuntimeError, match="storage_offset"):
        memory[1:].view(kiln.int32)
