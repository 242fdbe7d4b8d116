"""Threads of kiln's own: a stack that LLVM fits, whatever the program chose for its threads.

`threading.Thread.start` waits until the thread runs, for ever where that fails for want of memory. Nobody
waits for these to begin: what one did not begin, whoever needs it does.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable

STACK = 4 << 20  # bytes of address space, of which memory is taken as it is used


class Helper:
    """A thread that does one thing, once."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = _thread.allocate_lock()  # held while it works
        self._begun = False

    def start(self) -> None:
        """Starts the thread. RuntimeError where there can be no more of them."""
        chosen = _thread.stack_size(STACK)
        try:
            _thread.start_new_thread(self.finish, ())
        finally:
            _thread.stack_size(chosen)

    def finish(self) -> None:
        """Returns when the work is done: here, if the thread has not begun it."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._work()
