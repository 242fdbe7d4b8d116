"""What this machine can do, measured: how fast it copies arrays of a size and multiplies matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

from kiln._core import float32, get_num_threads
from kiln.autograd.grad_mode import no_grad
from kiln.ops.creation.constants import ones

_SIZES = (1 << 15, 1 << 18, 1 << 21, 1 << 26)  # bytes read and written: from the nearest cache to memory
_SIDE = 512  # of the matrices
_LOOKS = 5


class Limits(NamedTuple):
    """Bytes a second by the bytes that are touched, and operations a second; a multiply-add is two."""

    bandwidth: tuple[tuple[int, float], ...]
    operations: float

    def bandwidth_of(self, nbytes: int) -> float:
        """Of arrays of so many bytes: that of the next larger ones that were measured."""
        return next((found for size, found in self.bandwidth if size >= nbytes), self.bandwidth[-1][1])

    def least(self, nbytes: int, operations: int) -> tuple[float, str]:
        """The seconds that a kernel must take, and what it takes them for."""
        moving, computing = nbytes / self.bandwidth_of(nbytes), operations / self.operations
        return (moving, "memory") if moving >= computing else (computing, "arithmetic")


def limits() -> Limits:
    """Those of the threads that kiln has now."""
    return _measured(get_num_threads())


@lru_cache
def _measured(threads: int) -> Limits:
    with no_grad():
        call = _copying(8)  # what a call costs, however little it copies
        seconds = {size: _copying(size) for size in _SIZES}
        bandwidth = tuple((size, size / max(taken - call, taken / 8)) for size, taken in seconds.items())
        a, b = (ones(_SIDE, _SIDE, dtype=float32) for _ in range(2))
        product = min(_seconds(lambda: a @ b, 1) for _ in range(_LOOKS))
    return Limits(bandwidth, 2 * _SIDE**3 / product)


def _copying(nbytes: int) -> float:
    """The seconds of a copy that reads half of the bytes and writes the other."""
    source, target = (ones(nbytes // 8, dtype=float32) for _ in range(2))
    times = max(1, (1 << 22) // max(nbytes, 1 << 12))
    return min(_seconds(lambda: target.copy_(source), times) for _ in range(_LOOKS))


def _seconds(call: Callable[[], object], times: int) -> float:
    begun = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - begun) / times
