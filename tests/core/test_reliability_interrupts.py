"""SIGINT at random moments of first compiled calls, and of the end of a process: see `interrupts.py`.

KILN_TEST_FULL=1 takes many more moments.
"""

from __future__ import annotations

import _imp
import contextlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln
COUNT = "400" if os.environ.get("KILN_TEST_FULL") == "1" else "6"


@pytest.mark.parametrize("what", ["first", "wait", "exit"])
def test_a_process_goes_on_or_ends_by_the_interrupt(what: str, tmp_path: Path) -> None:
    program = str(Path(__file__).parents[1] / "interrupts.py")
    done = subprocess.run(
        [sys.executable, "-P", program, what, "20260", COUNT],
        capture_output=True,
        text=True,
        timeout=3600,
        env={**os.environ, "TMPDIR": str(tmp_path), "KILN_CHECK": "0"},
    )
    assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
    assert len(done.stdout.splitlines()) == int(COUNT) and "Fatal" not in done.stderr


def test_a_call_is_done_whole() -> None:
    """However often Ctrl-C ends it, and the interrupt comes after it."""
    core: Any = kiln._core
    calls = []

    def interrupted(error: BaseException) -> None:
        calls.append(error)
        if len(calls) < 4:
            raise error

    with pytest.raises(KeyboardInterrupt):
        core.call_whole(lambda: interrupted(KeyboardInterrupt()))
    assert len(calls) == 4
    core.call_whole(lambda: interrupted(KeyboardInterrupt()))
    calls.clear()
    with pytest.raises(ValueError, match="own"):  # what it raises itself is not asked for again
        core.call_whole(lambda: interrupted(ValueError("own")))
    assert len(calls) == 1


@pytest.mark.parametrize("way", ["compiled", "waiting"])
def test_an_interrupted_import_keeps_no_other_thread_waiting(way: str) -> None:
    """CPython's lock of imports, and a module's, stay held if Ctrl-C comes just after they were taken."""
    from importlib import _bootstrap  # type: ignore[attr-defined]

    from kiln.capture import background

    lock = _bootstrap._get_module_lock("kiln.not_there")
    background.submit(lambda checkpoint: None, lambda: None)  # the thread is there

    def interrupted() -> None:
        lock.acquire()
        lock.acquire()
        _imp.acquire_lock()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kiln.compile(interrupted)() if way == "compiled" else interrupted()
    if way == "waiting":
        kiln.compiler.wait()
    assert not _imp.lock_held() and lock.owner is None
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(importlib.util.find_spec("kiln.not_there")))
    thread.start()
    thread.join(60)
    assert found == [None]


def test_who_waits_for_a_kernel_gives_back_an_interrupted_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes one may have to import what writes its text: it would wait for this thread."""
    from kiln.codegen import compile as generator
    from kiln.codegen.target import host_target

    begun, go_on, given_back, made = threading.Event(), threading.Event(), threading.Event(), []
    monkeypatch.setattr(generator._Work, "_object", lambda work, part, names, end: part.text().encode())
    free = generator.free_imports
    monkeypatch.setattr(
        generator, "free_imports", lambda: (free(), given_back.set()) if begun.is_set() else None
    )

    def text() -> str:
        begun.set()
        go_on.wait(60)
        if not given_back.wait(60):  # an import would wait for ever
            return "late"
        assert importlib.util.find_spec("kiln.not_there") is None
        return "other"

    def make(written: Any) -> None:
        part = generator.Part(("kernel",), written)
        made.append(generator.compile_parts([part], host_target()))

    other = threading.Thread(target=make, args=(text,), daemon=True)
    other.start()
    assert begun.wait(60)
    _imp.acquire_lock()
    go_on.set()
    try:
        make(lambda: "this")
    finally:
        while _imp.lock_held():
            _imp.release_lock()
    other.join(60)
    assert made == [b"other", b"this"]


def test_imports_under_way_keep_their_locks() -> None:
    """Another thread's, and those of modules that this one is in the middle of."""
    from importlib import _bootstrap  # type: ignore[attr-defined]

    from kiln.late import free_imports

    lock = _bootstrap._get_module_lock("kiln.not_yet_there")
    held, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with lock_of_imports(), lock_of(lock):
            held.set()
            go_on.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(60)
    free_imports()
    assert lock.owner == thread.ident
    go_on.set()
    thread.join()
    module = types.ModuleType("kiln.not_yet_there")
    module.__spec__ = importlib.machinery.ModuleSpec("kiln.not_yet_there", None)
    module.__spec__._initializing = True  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        with lock_of(lock):
            free_imports()
            assert lock.owner == threading.get_ident()
    finally:
        del sys.modules[module.__name__]


@contextlib.contextmanager
def lock_of_imports() -> Any:
    _imp.acquire_lock()
    yield
    _imp.release_lock()


@contextlib.contextmanager
def lock_of(lock: Any) -> Any:
    lock.acquire()
    yield
    lock.release()


def test_no_thread_goes_on_with_a_kernel_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while who compiles waits for its second thread: it has ended when the lock is free."""
    from kiln.codegen import compile as generator
    from kiln.codegen.target import host_target

    begun, go_on, ended = threading.Event(), threading.Event(), []
    main, finish = threading.current_thread(), generator.Helper.finish

    class Work(generator._Work):
        def _object(self, part: Any, names: Any, end: int) -> bytes:
            if threading.current_thread() is main:
                begun.wait(60)
            else:
                begun.set()
                go_on.wait(60)
                ended.append(part)
            return b""

    def finished(helper: Any) -> None:
        if threading.current_thread() is main and not go_on.is_set():
            go_on.set()
            raise KeyboardInterrupt
        finish(helper)

    monkeypatch.setattr(generator, "_Work", Work)
    monkeypatch.setattr(generator.Helper, "finish", finished)
    parts = [generator.Part((name,), lambda: "") for name in ("kernel", "other")]
    with pytest.raises(KeyboardInterrupt):
        generator.compile_parts(parts, host_target())
    assert len(ended) == 1
