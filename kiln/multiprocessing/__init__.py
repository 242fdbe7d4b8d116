"""Python's multiprocessing, whose queues, pipes, pools and arguments of processes send tensors by sharing
them.

Every name of `multiprocessing` is here, and is Python's own: importing this module is what makes it send
tensors so, and `spawn` starts several processes and waits for them. A tensor that was sent is the same memory
in both processes; what one writes, the other sees. With the start method fork a process has copies of what
its parent has, but of tensors that were shared before (`share_memory_`, `Module.share_memory`).
"""

from __future__ import annotations

from multiprocessing import *  # noqa: F403
from multiprocessing import __all__ as _theirs

from kiln.absent import hint_missing as _hint_missing
from kiln.multiprocessing import reductions
from kiln.multiprocessing.spawn import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)

__all__ = [
    *_theirs,
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "reductions",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
]

_strategy = "file_descriptor"


def get_all_sharing_strategies() -> set[str]:
    """The names that `set_sharing_strategy` takes.

    >>> sorted(kiln.multiprocessing.get_all_sharing_strategies())
    ['file_descriptor', 'file_system']
    """
    return {"file_descriptor", "file_system"}


def get_sharing_strategy() -> str:
    """What `set_sharing_strategy` was given last."""
    return _strategy


def set_sharing_strategy(new_strategy: str) -> None:
    """Takes what PyTorch's programs say here: memory is shared by descriptors in any case, without names that
    a killed process could leave behind.

    AssertionError for a name that is none of `get_all_sharing_strategies`.
    """
    global _strategy
    if new_strategy not in get_all_sharing_strategies():
        raise AssertionError(
            f"invalid sharing strategy {new_strategy!r}, expected one of "
            f"{sorted(get_all_sharing_strategies())}"
        )
    _strategy = new_strategy


_hint_missing(__name__)
