"""`ProcessGroup`: ranks that communicate, one call after the other; `Work`: a call that goes on.

Calls of a group run in the order they are made in. A call that is waited for runs on the caller's thread; one
with `async_op` on the group's own, and so do those behind it. What fails for one rank fails for all: a group
that lost a rank, or whose rank came too late, is of no use any more, and says so.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kiln import _core
from kiln.autograd import inference_mode
from kiln.distributed.board import Board, Mismatch, SentBoard, SharedBoard
from kiln.distributed.collectives import Steps
from kiln.distributed.errors import DistBackendError
from kiln.distributed.links import Deadline, Late, Links, Lost, connect
from kiln.distributed.mail import Mail
from kiln.futures import Future
from kiln.late import later

_by_mpi = later("kiln.distributed.mpi", "connect")


class Work:
    """A call that goes on, or was done."""

    def __init__(self, result: Any = None) -> None:
        self._future: Future[Any] = Future()
        self._result = result
        self._ended = threading.Event()
        self._source = -1
        self._cancel: Callable[[], None] = lambda: None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True when the call is done; raises what it raised. RuntimeError where that takes longer than
        `timeout`, which ends nothing.
        """
        seconds = timeout.total_seconds() if timeout else None
        if not self._ended.wait(seconds or None):
            raise DistBackendError(f"Work.wait: the call was not done within {seconds:g} s")
        self._future.value()
        return True

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self._future.done()

    def is_success(self) -> bool:
        """Whether it is done well."""
        return self._future.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What it raised."""
        return self._future._error

    def result(self) -> list[Any]:
        """The tensors it wrote."""
        self.wait()
        return _listed(self._result)

    def get_future(self) -> Future[Any]:
        """A future of the tensors it writes."""
        return self._future

    def source_rank(self) -> int:
        """Of a receive: the rank that sent."""
        return self._source

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            self._complete(error)
        else:
            self._complete(None)

    def _complete(self, error: BaseException | None) -> None:
        """Whoever waits goes on. What follows is called by a thread of its own: it may wait for more calls of
        the group.
        """
        if not (error is None or isinstance(error, Exception)):
            error = DistBackendError(f"interrupted: {error!r}")
        calls = self._future._settle(None if error else _listed(self._result), error)
        self._ended.set()
        if calls:
            follow = threading.Thread(target=lambda: [call(self._future) for call in calls], daemon=True)
            follow.start()


def _listed(x: Any) -> list[Any]:
    return [] if x is None else x if isinstance(x, list) else [x]


class ProcessGroup:
    """Ranks that communicate. `ranks`: those of the whole program that are in it, in its order."""

    def __init__(
        self,
        store: Any,
        ranks: list[int],
        rank: int,
        name: str,
        backend: str,
        timeout: timedelta,
        number: int = 0,
    ) -> None:
        self.ranks, self._rank, self.group_name, self._backend = ranks, rank, name, backend
        self.store, self.timeout, self._number = store, timeout, number
        self._process = os.getpid()
        self._lost: str | None = None  # why it is of no use
        self._calls = 0
        self._lock = threading.Lock()  # of whose call runs
        self._queue: deque[tuple[Work, Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._links, self._board, self.mail = self._connect()

    def _connect(self) -> tuple[list[Any], Any, Any]:
        deadline = Deadline(self.timeout.total_seconds())
        size = len(self.ranks)
        if self._backend == "mpi":
            by_mpi, messages = _by_mpi(self.ranks, self._number)
            return [by_mpi], SentBoard(self._rank, size, by_mpi), messages
        if size == 1:
            alone = Links({})
            return [], SentBoard(0, 1, alone), Mail(alone, str)
        links, here = connect(self.store, self._rank, size, deadline, 2)
        board: Board
        if here:
            board = SharedBoard(self._rank, size, links[0], deadline)
        else:
            board = SentBoard(self._rank, size, links[0])
        return links, board, Mail(links[1], self._name_lost)

    # ---- what it is ----

    def rank(self) -> int:
        """Of this process, in the group."""
        return self._rank

    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    def name(self) -> str:
        """The name of its backend."""
        return self._backend

    def __repr__(self) -> str:
        return f"<kiln.distributed.ProcessGroup {self.group_name!r}: rank {self._rank} of {len(self.ranks)}>"

    def number(self, rank: int, what: str) -> int:
        """The place in the group of a rank of the program."""
        if rank not in self.ranks:
            raise ValueError(f"{what}: Global rank {rank} is not part of group {self}")
        return self.ranks.index(rank)

    # ---- calls ----

    def run(
        self,
        text: str,
        work: Callable[[Steps], Any],
        asynchronous: bool,
        result: Any = None,
        timeout: timedelta | None = None,
    ) -> Work | None:
        """Runs a collective after those before it; `text` says what it is, the same on every rank."""
        self.expect_usable(text)
        seconds = (timeout or self.timeout).total_seconds()
        if not asynchronous and not _core.recording() and self._lock.acquire(blocking=False):
            try:
                if not self._queue:
                    self._collective(text, work, seconds)
                    return None
            finally:
                self._lock.release()
        handle = Work(result)
        self._enqueue(handle, lambda: self._collective(text, work, seconds))
        if asynchronous:
            return handle
        handle.wait()
        return None

    def _collective(self, text: str, work: Callable[[Steps], Any], seconds: float) -> None:
        """One, on this thread."""
        self.expect_usable(text)
        try:
            self._calls += 1
            with inference_mode():
                work(Steps(self._board, self._calls, text, Deadline(seconds)))
        except Mismatch:
            raise  # every rank knows of it
        except Late as error:
            ranks = [self.ranks[q] for q in error.ranks]
            missing = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks}"
            raise self._fail(text, f"{missing} did not come within {seconds:g} s") from None
        except Lost as error:
            raise self._fail(text, self._name_lost(error)) from None
        except DistBackendError as error:
            raise self._fail(text, str(error)) from None
        except BaseException as error:
            self._fail(text, f"rank {self.ranks[self._rank]} failed in {text}: {error!r}")
            raise

    def _name_lost(self, error: Lost) -> str:
        """Says whom the group lost, as the first that noticed it says."""
        return self._agreed(f"rank {self.ranks[error.rank]} is gone: {error}")

    def _agreed(self, why: str) -> str:
        """What the first rank to notice says is wrong with the group."""
        with suppress(Exception):  # the store may be gone as well
            before = self.store.timeout
            self.store.set_timeout(timedelta(seconds=5))
            try:
                return bytes(self.store.compare_set("lost", "", why)).decode()
            finally:
                self.store.set_timeout(before)
        return why

    def _fail(self, text: str, why: str) -> DistBackendError:
        """The group is of no use from now on; other ranks see that this one is out of it, and why."""
        self._lost = self._agreed(why)
        for links in self._links:
            links.part()
        return DistBackendError(f"{text}: {self._lost}")

    def expect_usable(self, what: str) -> None:
        """DistBackendError in a group that lost a rank, or in a process that was forked."""
        if self._lost is not None:
            raise DistBackendError(f"{what}: the process group is of no use any more ({self._lost})")
        if os.getpid() != self._process:
            raise DistBackendError(
                f"{what}: the process group is that of the process this one was forked from"
            )

    # ---- the group's own thread ----

    def _enqueue(self, handle: Work, work: Callable[[], Any]) -> None:
        with self._changed:
            self._queue.append((handle, work))
            if self._thread is None:
                name = f"kiln group {self.group_name}"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    waited = self._lost is None and self._changed.wait(60.0)
                    if not waited and not self._queue:
                        self._thread = None
                        return
                handle, work = self._queue[0]
            with self._lock:
                handle._run(work)
                with self._changed:  # only now: a call of another thread goes behind it
                    self._queue.popleft()

    def close(self) -> None:
        """Waits for the calls that were made, and leaves the other ranks."""
        with self._changed:
            left = [handle for handle, _ in self._queue]
        for handle in left:
            with suppress(Exception):
                handle.wait()
        self._lost = self._lost or "it was destroyed"
        self.mail.close()
        for links in self._links:
            links.close()
        self._links, self._board, self.mail = [], None, None  # their memory goes now
        with self._changed:
            self._changed.notify()
