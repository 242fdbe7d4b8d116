"""What a program in a worker can ask about itself, and give its loader without a copy. For what a worker does
see service.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln import _core, ops

SMALL = 4 << 10  # bytes: less memory than this is sent by copying, as mapping a page costs more
MP_STATUS_CHECK_INTERVAL = 5.0  # seconds between looks at whether the other process is still there


class WorkerInfo(NamedTuple):
    """What a worker knows: its number, how many there are, its seed and its copy of the data set."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    worker_method: str = "multiprocessing"


_worker_info: WorkerInfo | None = None
_channel: Any = None  # to the loader


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a DataLoader: its `id` from 0 on, `num_workers`, `seed` and `dataset`, the copy it has.

    None in any other process. A data set that is a stream asks here which part of it is this worker's.

    >>> import kiln
    >>> print(kiln.utils.data.get_worker_info())
    None
    """
    return _worker_info


def new_shared(nbytes: int) -> Any:
    """Memory for a tensor that goes to the loader's process as it is: uint8. None for one that is copied."""
    if _channel is None:  # a program that only says that this is a worker
        return ops.empty(nbytes, dtype=_core.uint8).share_memory_()
    return _channel.take(nbytes) if nbytes >= SMALL else None


def _generate_state(base_seed: int, worker_id: int) -> tuple[int, ...]:
    """Worker's seed of NumPy's generator: four numbers of 32 bits, of NumPy's SeedSequence.

    That generator is Python's own algorithm, which another seed keeps from drawing the same numbers.
    """
    import numpy.random

    entropy = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return tuple(map(int, numpy.random.SeedSequence(entropy).generate_state(4)))
