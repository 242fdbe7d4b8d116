"""Several processes that run one function, and the error of the first that fails."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from kiln.errors import warn

log = logging.getLogger(__name__)


class ProcessException(Exception):
    """A process that failed: which of them (`error_index`), and its pid (`error_pid`)."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> Any:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """One whose function raised: its traceback is the message."""


class ProcessExitedException(ProcessException):
    """One that ended by a signal (`signal_name`) or by another `exit_code` than 0."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> Any:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)


def _run(fn: Callable[..., Any], index: int, args: tuple[Any, ...], error_file: str) -> None:
    """A process: the function, and its traceback for the parent."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        fn(index, *args)
    except KeyboardInterrupt:
        pass  # the parent's too
    except Exception:
        with open(error_file, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(traceback.format_exc())
        sys.exit(1)


def _follow_parent() -> None:
    """Interrupts this process when its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


class ProcessContext:
    """Processes that were started together: `processes`, and `join` to wait for them."""

    def __init__(self, processes: Sequence[Any], error_files: Sequence[str]) -> None:
        self.error_files = error_files
        self.processes = processes
        self.sentinels = {process.sentinel: index for index, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """The pid of each."""
        return [int(process.pid) for process in self.processes]

    def _join_all(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits until one fails, all have ended, or `timeout` seconds are over; whether all have ended.

        When one fails the others have `grace_period` seconds to end by themselves and are ended then.
        ProcessRaisedException, ProcessExitedException: what failed first.
        """
        failed = None
        for sentinel in connection.wait(list(self.sentinels), timeout) if self.sentinels else ():
            index = self.sentinels.pop(sentinel)
            self.processes[index].join()
            if self.processes[index].exitcode != 0:
                failed = index
                break
        if failed is None:
            return not self.sentinels
        if grace_period is not None:
            self._join_all(grace_period)
        for end in ("terminate", "kill"):
            for process in self.processes:
                if process.is_alive():
                    log.warning("Ending process %s: %s", process.pid, end)
                    getattr(process, end)()
            self._join_all(30 if grace_period is None else grace_period)
        raise self._error(failed)

    def _error(self, index: int) -> ProcessException:
        """What a process failed by."""
        process, path = self.processes[index], self.error_files[index]
        try:
            with open(path, encoding="utf-8") as file:
                told = file.read()
            os.unlink(path)
        except FileNotFoundError:
            code = process.exitcode
            if code >= 0:
                text = f"process {index} terminated with exit code {code}"
                return ProcessExitedException(text, index, process.pid, code)
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"<Unknown signal {-code}>"
            text = f"process {index} terminated with signal {name}"
            return ProcessExitedException(text, index, process.pid, code, name)
        text = f"\n\n-- Process {index} terminated with the following error:\n{told}"
        return ProcessRaisedException(text, index, process.pid)


class SpawnContext(ProcessContext):
    """An old name of ProcessContext, with a warning."""

    def __init__(self, processes: Sequence[Any], error_files: Sequence[str]) -> None:
        warn("SpawnContext is renamed to ProcessContext since 1.4 release.")
        super().__init__(processes, error_files)


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Starts `nprocs` processes, of which process i runs `fn(i, *args)`, and waits for them if `join`.

    Gives a ProcessContext to wait with otherwise. When one fails the others are ended, and its error is
    raised with its traceback as the message: ProcessRaisedException; ProcessExitedException, if it was ended
    by a signal or its exit code is not 0.
    """
    context = multiprocessing.get_context(start_method)
    processes, files = [], []
    folder = tempfile.gettempdir()
    for index in range(nprocs):
        # written only by a process that fails, and by nobody else: its name is not known beforehand
        descriptor, path = tempfile.mkstemp(prefix="kiln-error-", suffix=".txt", dir=folder)
        os.close(descriptor)
        os.unlink(path)
        process = context.Process(target=_run, args=(fn, index, args, path), daemon=daemon)  # type: ignore[attr-defined]
        process.start()
        processes.append(process)
        files.append(path)
    started = ProcessContext(processes, files)
    if not join:
        return started
    while not started.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Starts `nprocs` processes by the method spawn, of which process i runs `fn(i, *args)`; see
    `start_processes`.

    Each is a new interpreter: `fn` must be a function of a module, and the program's main module must guard
    what it runs by `if __name__ == "__main__"`.
    """
    if start_method != "spawn":
        warn(
            f"This method only supports start_method=spawn (got: {start_method}); use start_processes for "
            "others",
            FutureWarning,
        )
    return start_processes(fn, args, nprocs, join, daemon, "spawn")
