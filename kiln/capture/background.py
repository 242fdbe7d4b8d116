"""The compiling thread: takes jobs one after the other, rests while the process forks, stops when it ends.

    submit(job, give_up) -> queue -> thread: job(checkpoint)

A job calls `checkpoint` wherever it may rest, holding no lock: a fork waits until the thread is there, and
keeps it there. A child has no such thread: what its parent's was to do is given up, and asked for again by
whoever still wants it. At the interpreter's end what is left is given up, and the thread joined at its next
checkpoint.
"""

from __future__ import annotations

import _thread
import atexit
import threading
from collections import deque
from collections.abc import Callable

from kiln import _core
from kiln.codegen.fork import THREAD, at_fork
from kiln.codegen.thread import Helper
from kiln.late import free_imports

Checkpoint = Callable[[], None]
Job = Callable[[Checkpoint], None]


class _Stop(BaseException):
    """Raised in a job that is given up."""


class _Worker:
    """The thread, its queue, and who may run."""

    def __init__(self) -> None:
        # Ctrl-C may end any Python function just after its work: `with state` could leave the lock held.
        self.lock = threading.RLock()
        self.state = threading.Condition(self.lock)
        self.jobs: deque[tuple[Job, Callable[[], None]]] = deque()  # the first is being done
        self.thread: Helper | None = None
        self.running = False  # it does work that must not be cut
        self.held: set[int] = set()  # the threads that want it to rest: those that fork
        self.stopped = False

    def submit(self, job: Job, give_up: Callable[[], None]) -> None:
        """Adds a job; starts the thread at the first."""
        free_imports()
        with self.lock:
            if self.stopped:
                return give_up()
            self.jobs.append((job, give_up))
            if self.thread is None:
                self.thread = Helper(self.work)
                self.thread.start()
            self.state.notify_all()

    def work(self) -> None:
        """What the thread does."""
        while True:
            with self.lock:
                self.running = False
                self.state.notify_all()
                self.state.wait_for(lambda: self.stopped or (self.jobs and not self.held))
                if self.stopped:
                    return
                self.running = True
                job, give_up = self.jobs[0]
            try:
                job(self.checkpoint)
            except BaseException:  # nobody is there to see it; whoever asked may ask again
                give_up()
            with self.lock:
                self.jobs.popleft()

    def checkpoint(self) -> None:
        """Rests if it is asked to."""
        if not self.held and not self.stopped:
            return
        with self.lock:
            self.running = False
            self.state.notify_all()
            self.state.wait_for(lambda: self.stopped or not self.held)
            if self.stopped:
                raise _Stop
            self.running = True

    def wait(self) -> None:
        """Until nothing is left to do."""
        free_imports()
        with self.lock:
            self.state.wait_for(lambda: not self.jobs)

    def hold(self) -> None:
        """Makes it rest, until this thread releases it."""
        free_imports()
        with self.lock:
            self.held.add(_thread.get_ident())
            self.state.wait_for(lambda: not self.running)

    def release(self) -> None:
        """Lets it go on, if no other thread holds it."""
        with self.lock:
            self.held.discard(_thread.get_ident())
            self.state.notify_all()

    def stop(self) -> None:
        """Ends it; what is left is given up."""
        free_imports()
        with self.lock:
            self.stopped = True
            self.state.notify_all()
        if self.thread is not None:
            self.thread.finish()
        while self.jobs:
            self.jobs.popleft()[1]()


_worker = _Worker()


def submit(job: Job, give_up: Callable[[], None]) -> None:
    """Has `job` done by the compiling thread; `give_up` is called instead if that cannot be."""
    _worker.submit(job, give_up)


def wait() -> None:
    """Waits until every job is done."""
    _worker.wait()


def _in_child() -> None:
    global _worker
    given_up = _worker.jobs
    while given_up:
        given_up[0][1]()
        given_up.popleft()
    _worker = _Worker()


at_fork(THREAD, lambda: _worker.hold(), lambda: _worker.release(), _in_child)
# A thread still in LLVM when the interpreter is gone aborts the process: Ctrl-C does not leave one there.
atexit.register(_core.call_whole, lambda: _worker.stop())
