"""The processes of a run on this machine: started together, and ended together.

Whatever happens comes as an event of one queue: a process has ended, or a signal has come.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, Any, NamedTuple

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_STREAMS = (("stdout", 1), ("stderr", 2))


class Place(NamedTuple):
    """Which machine this is, and how many processes run where."""

    host: str
    port: int
    run_id: str
    node: int
    nodes: int
    local_size: int
    role: str

    def variables(self, local: int) -> dict[str, str]:
        """The environment of a process: who it is."""
        rank, size = self.node * self.local_size + local, self.nodes * self.local_size
        found = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.node,
            "GROUP_WORLD_SIZE": self.nodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": size,
        }
        return {name: str(value) for name, value in found.items()} | {"ROLE_NAME": self.role}


class Workers:
    """One start of all processes of this machine."""

    def __init__(
        self, command: Sequence[str], place: Place, variables: Mapping[str, str], logs: Path | None
    ) -> None:
        self._command, self._place, self._variables, self._logs = list(command), place, variables, logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self._events: SimpleQueue[tuple[int, int] | signal.Signals] = SimpleQueue()
        self._copies: list[threading.Thread] = []
        self._ends_by = signal.SIGTERM

    def run(
        self, redirects: str, tee: str, grace: float, tells_rank: bool
    ) -> tuple[int, int, int] | signal.Signals | None:
        """None if all ended well; rank, pid and code of the first that failed; or the signal that came.

        `tells_rank`: the program gets its local rank as an argument, --local-rank=0.
        """
        with ExitStack() as stack:
            for number in _FORWARDED:
                stack.callback(signal.signal, number, signal.signal(number, self._signalled))
            stack.callback(self._end, grace)
            starts = _death_signal()
            for local in range(self._place.local_size):
                self._start(local, _streams(redirects, local), _streams(tee, local), starts, tells_rank)
            left = len(self._processes)
            while left:
                event = self._events.get()
                if isinstance(event, signal.Signals):
                    self._ends_by = event
                    return event
                local, code = event
                left -= 1
                if code:
                    rank = self._place.node * self._place.local_size + local
                    return rank, self._processes[local].pid, code
            self._processes.clear()
            return None

    def _signalled(self, number: int, _: FrameType | None) -> None:
        self._events.put(signal.Signals(number))

    def _start(
        self, local: int, redirected: int, teed: int, starts: Callable[[], None] | None, tells_rank: bool
    ) -> None:
        command = self._command
        if tells_rank:
            at = next(i for i, part in enumerate(command) if part not in (command[0], "-u", "-m"))
            command = [*command[: at + 1], f"--local-rank={local}", *command[at + 1 :]]
        environment = {**os.environ, **self._variables, **self._place.variables(local)}
        with ExitStack() as opened:
            files: dict[str, IO[bytes] | int | None] = {}
            for name, bit in _STREAMS:
                files[name] = None
                if (redirected | teed) & bit:
                    file = opened.enter_context(self._log(local, name))
                    files[name] = subprocess.PIPE if teed & bit else file
            process = subprocess.Popen(
                command,
                env=environment,
                start_new_session=True,
                preexec_fn=starts,
                stdout=files["stdout"],
                stderr=files["stderr"],
            )
        self._processes.append(process)
        for name, bit in _STREAMS:
            if teed & bit:
                self._copy(getattr(process, name), self._log(local, name), getattr(sys, name).buffer, local)
        threading.Thread(target=self._watch, args=(local, process), daemon=True).start()

    def _watch(self, local: int, process: subprocess.Popen[bytes]) -> None:
        self._events.put((local, process.wait()))

    def _log(self, local: int, name: str) -> IO[bytes]:
        assert self._logs is not None
        folder = self._logs / str(local)
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{name}.log").open("ab")

    def _copy(self, stream: IO[bytes], file: IO[bytes], shown: IO[bytes], local: int) -> None:
        """Copies lines as they come, to a file and with the process's name to the console."""
        start = f"[{self._place.role}{local}]:".encode()

        def copies() -> None:
            with stream, file:
                for line in stream:
                    file.write(line)
                    file.flush()
                    shown.write(start + line)
                    shown.flush()

        thread = threading.Thread(target=copies, daemon=True)
        thread.start()
        self._copies.append(thread)

    def _end(self, grace: float) -> None:
        """Ends what still runs, with what it started: by a signal, and after a grace by SIGKILL."""
        running = [p for p in self._processes if p.poll() is None]
        if running:
            self._send(self._ends_by)
            until = time.monotonic() + grace
            while any(p.poll() is None for p in running) and time.monotonic() < until:
                with suppress(Empty):
                    self._events.get(timeout=max(until - time.monotonic(), 0.0))
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for thread in self._copies:
            thread.join(grace)

    def _send(self, number: signal.Signals) -> None:
        """Sends a signal to all processes, and to those that they started."""
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)


def _streams(text: str, local: int) -> int:
    """Which streams of a process are meant by "3", or "0:1,1:3": 1 stdout, 2 stderr."""
    try:
        if ":" not in text:
            return int(text)
        pairs = dict(pair.split(":") for pair in text.split(","))
        return int(pairs.get(str(local), "0"))
    except ValueError:
        raise ValueError(f'{text} does not say which streams: expected "3", or "0:1,1:3"') from None


def _death_signal() -> Callable[[], None] | None:
    """What a process calls to be killed when this one ends, however it does; None where there is no such."""
    if sys.platform != "linux":
        return None
    prctl: Any = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def starts() -> None:
        prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # which ended before this was said
            os.kill(os.getpid(), signal.SIGKILL)

    return starts
