"""SIGINT at random moments of first compiled calls, and of the end of a process: see `interrupts.py`.

KILN_TEST_FULL=1 takes many more moments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln
COUNT = "400" if os.environ.get("KILN_TEST_FULL") == "1" else "6"


@pytest.mark.parametrize("what", ["first", "wait", "exit"])
def test_a_process_goes_on_or_ends_by_the_interrupt(what: str, tmp_path: Path) -> None:
    program = str(Path(__file__).parent / "interrupts.py")
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


def test_no_thread_goes_on_with_a_kernel_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while who compiles waits for its second thread: it has ended when the lock is free."""
    from kiln.codegen import compile as generator
    from kiln.codegen.target import host_target

    begun, go_on, ended = threading.Event(), threading.Event(), []
    main, finish = threading.current_thread(), generator.Helper.finish

    class Work(generator._Work):
        def _object(self, part: Any, end: int) -> bytes:
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
