"""Functions run by several ranks: processes forked from the test's, which find each other by a file."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import kiln
import kiln.distributed as dist
from kiln.distributed import process_group

LONG = 60.0  # seconds until a rank that says nothing counts as hanging


class Gone:
    """What is known of a rank that ended without a result."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def __repr__(self) -> str:
        return f"Gone({self.code})"


def _rank(function: Callable[..., Any], rank: int, size: int, path: str, sent: bool, seconds: float,
          args: tuple[Any, ...], answer: Any) -> None:  # fmt: skip
    kiln.set_num_threads(1)
    if sent:  # as if the ranks were on machines of their own
        connect = process_group.connect
        process_group.connect = lambda *a: (connect(*a)[0], False)
    try:
        store = dist.FileStore(path, size)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
        )
        found = function(rank, size, *args)
        if dist.is_initialized():
            dist.destroy_process_group()
        answer.send((True, found))
    except BaseException:
        answer.send((False, traceback.format_exc()))
    answer.close()
    os._exit(0)


def run(
    function: Callable[..., Any],
    size: int,
    folder: Path,
    *args: Any,
    sent: bool = False,
    seconds: float = 30.0,
) -> list[Any]:
    """What `function(rank, size, *args)` gives on each rank, or Gone; AssertionError with the traceback of
    one that raised. `sent`: over connections instead of shared memory.
    """
    context = multiprocessing.get_context("fork")
    path = str(folder / f"store-{len(list(folder.iterdir()))}")
    started = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        given = (function, rank, size, path, sent, seconds, args, theirs)
        process = context.Process(target=_rank, args=given)
        process.start()
        theirs.close()
        started.append((process, ours))
    results: list[Any] = []
    failed = []
    for rank, (process, answer) in enumerate(started):
        try:
            end = time.monotonic() + LONG
            while not answer.poll(0.02) and process.is_alive():  # (whom it forked may keep the pipe open)
                if time.monotonic() > end:
                    break
            if process.is_alive() and not answer.poll(0):
                failed.append(f"rank {rank} hangs")
                process.kill()
                continue
            if not answer.poll(0):
                raise EOFError
            good, found = answer.recv()
            results.append(found)
            if not good:
                failed.append(f"rank {rank}:\n{found}")
        except EOFError:
            process.join(LONG)
            results.append(Gone(process.exitcode))
    for process, _ in started:
        process.join(LONG)
        process.close()
    assert not failed, "\n".join(failed)
    return results
