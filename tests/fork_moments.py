"""Forks while one of a program's threads stands still in the middle of a first compile.

    python fork_moments.py caller|compiler all|imports|shared n [n ...]   n: a number or "file:function event"

For each n a process of its own, with an empty cache, runs a compiled function for the first time in a thread
that is not the main one. The n-th event in kiln's Python (a call, a return, either of a C function) in that
thread, or in those that kiln starts, holds the thread; the main thread forks. `shared` counts the events in
files that hold locks, threads or state of the process, `imports` those in importlib. Where a step before the
fork waits for the thread, it goes on. The child computes, compiles, and ends as a program does; so does its
parent. Prints a line for each n: where it was, or after how many events the work was done.
"""

from __future__ import annotations

import _imp
import _thread
import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SHARED = tuple(
    f"{name}.py"
    for name in (
        *("capture/background", "capture/service", "codegen/cache", "codegen/compile", "codegen/fork"),
        *("codegen/kept", "codegen/llvm", "codegen/thread", "files", "late"),
    )
)
IMPORTLIB = "<frozen importlib"
PATIENCE = 60  # seconds, of which a process that hangs takes twice as many: then it says where, and ends


class Moment:
    """Holds a thread at its n-th event."""

    def __init__(self, n: str, files: tuple[str, ...]) -> None:
        self.n, self.files = n, files
        self.seen, self.place = 0, ""
        self.asked = False  # the thread stands in what the core waits for: a fork does, too
        self.forking = False
        self.reached, self.go_on = threading.Event(), threading.Event()

    def watch(self, work: Callable[[], Any]) -> None:
        """Does the work of a thread, and counts its events."""
        sys.setprofile(self.event)
        try:
            work()
        finally:
            sys.setprofile(None)

    def event(self, frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if not path.endswith(self.files) or not path.startswith((HERE, IMPORTLIB)):
            return
        self.seen += 1
        what = f"{path.removeprefix(HERE)}:{frame.f_code.co_name} {event}"
        if self.n in (str(self.seen), what) and not self.place:
            name = getattr(argument, "__name__", "") if event.startswith("c_") else ""
            self.place = f"{what} {name} in line {frame.f_lineno}"
            self.asked = asked_by_the_core(frame)
            self.reached.set()
            self.go_on.wait()

    def forker(self, frame: FrameType, event: str, argument: Any) -> None:
        """What the forking thread does: lets the other go on if this one is about to wait."""
        if self.go_on.is_set():
            return
        lock = None
        if event == "c_call" and argument.__name__ == "acquire":
            lock = argument.__self__
        elif event == "call":  # of a method that begins with `with self.lock`
            lock = getattr(frame.f_locals.get("self"), "lock", None)
        elif event == "c_call" and argument.__name__ == "before_fork" and self.asked:
            self.go_on.set()
        if lock is not None and not lock.acquire(False):
            self.go_on.set()
        elif lock is not None:
            lock.release()

    def last(self) -> None:
        """What a fork does last before it takes the lock of imports."""
        if self.forking and _imp.lock_held():
            self.go_on.set()


moment = Moment("", ())
os.register_at_fork(before=lambda: moment.last())  # before kiln's: such steps are done in reverse

import kiln  # noqa: E402

HERE = os.path.dirname(os.path.abspath(kiln.__file__)) + os.sep


@kiln.compile
def doubled(x: Any) -> Any:
    return (x * 2 + 1).sum()


def asked_by_the_core(frame: FrameType | None) -> bool:
    """Whether a call of the core's is under way below this frame."""
    while frame is not None:
        if frame.f_code is kiln.capture.service.compile.__code__:
            return True
        frame = frame.f_back
    return False


def program() -> None:
    """What the thread does that is not the main one."""
    x = kiln.arange(4.0)
    for _ in range(3):
        assert doubled(x).item() == 16.0
    kiln.compiler.wait()
    assert doubled(x).item() == 16.0


def look() -> None:
    """Whether everything works in a process."""
    assert (kiln.ones(2) + 1).tolist() == [2.0, 2.0]
    own = kiln.compile(lambda x: x * 3 - 1)
    for _ in range(3):
        assert own(kiln.arange(3.0)).tolist() == [-1.0, 2.0, 5.0]
    program()
    kiln.compiler.wait()
    assert own(kiln.arange(3.0)).tolist() == [-1.0, 2.0, 5.0]
    assert own.stats()["runs"] > 0 and doubled.stats()["runs"] > 0, (own.stats(), doubled.stats())
    assert lets_others_run()


def lets_others_run() -> bool:
    """Whether kernels release the interpreter's lock: nothing else makes this thread do so."""
    x, go, seen = kiln.ones(1 << 20), threading.Lock(), []
    x + 1
    go.acquire()
    thread = threading.Thread(target=lambda: seen.append(go.acquire()))
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    go.release()
    for _ in range(1000):
        x + 1
        if seen:
            break
    found = bool(seen)
    sys.setswitchinterval(interval)
    thread.join()
    return found


def run(who: str, files: tuple[str, ...], n: str) -> None:
    global moment
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(2 * PATIENCE)
    moment = held = Moment(n, files)
    start = _thread.start_new_thread
    if who == "compiler":
        _thread.start_new_thread = lambda f, a, *k: start(lambda: held.watch(lambda: f(*a)), ())  # type: ignore

    def called() -> None:
        try:
            program() if who == "compiler" else held.watch(program)
        finally:
            held.reached.set()

    thread = threading.Thread(target=called)
    thread.start()
    held.reached.wait()
    held.forking = True
    sys.setprofile(held.forker)
    child = os.fork()
    sys.setprofile(None)
    held.forking = False
    _thread.start_new_thread = start
    if child == 0:
        signal.alarm(PATIENCE)
        look()
        return
    print(n, held.place or f"done after {held.seen}", flush=True)
    held.go_on.set()
    thread.join()
    look()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the child ended with {code}"


def main() -> None:
    who, where, *moments = sys.argv[1:]
    files = {"all": (".py",), "shared": SHARED, "imports": (">",)}[where]
    for n in moments:
        os.environ["KILN_CACHE_DIR"] = directory = tempfile.mkdtemp()
        child = os.fork()
        if child == 0:
            return run(who, files, n)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        shutil.rmtree(directory)
        if code != 0:
            sys.exit(f"{who}, {where} {n}: the process ended with {code}")


if __name__ == "__main__":
    main()
