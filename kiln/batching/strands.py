"""Strands: functions on one thread that take turns, each with the stack of its calls.

A strand runs until it waits, and goes on from there at its next turn. With the package greenlet that is a
switch of stacks (0.4 us). Without it a strand is a thread, of which one runs at a time: who hands over wakes
the other and waits (`_core.Baton`: 11 us of computing a turn, and as long as a sleeping core takes to wake).
"""

from __future__ import annotations

import contextvars
import weakref
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from kiln import _core


class Stopped(BaseException):
    """Raised where a strand waits that is to end: its `finally` and `with` are done."""


class Strand(Protocol):
    """A function that takes turns with whoever gives it one; the function raises nothing."""

    ended: bool
    handle: Any  # what `here` gives where it runs; None where nothing else can run when it is to wait
    here: Callable[[], Any] | None

    @property
    def turn(self) -> Callable[[], Any]:
        """Runs it until it waits or ends."""

    @property
    def wait(self) -> Callable[[], Any]:
        """Called by it: back to who gave the turn, until the next one. Stopped: there is none."""

    def stop(self) -> None:
        """Ends it: `wait` raises. It is not to be called again."""


class _Stacks:
    """A strand as a greenlet of the one that makes it."""

    def __init__(self, module: Any, body: Callable[[], None]) -> None:
        self._body = body
        self.here = module.getcurrent
        self.handle = module.greenlet(self._run)
        self.handle.gr_context = contextvars.copy_context()
        self.turn = self.handle.switch
        self.wait = module.getcurrent().switch
        self.ended = False

    def _run(self) -> None:
        try:
            self._body()
        finally:
            self.ended = True

    def stop(self) -> None:
        if self.handle:  # it has begun and not ended
            self.handle.throw(Stopped)
        while self.handle:
            self.handle.switch()


class _Alive:
    """What a thread holds while it runs."""


class _Threads:
    """A strand as a thread: it and who gives it a turn each wait at a lock while the other runs."""

    handle: Any = None
    here: Callable[[], Any] | None = None

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._turn, self._back, self._guard = _core.Baton(), _core.Baton(), allocate_lock()
        self._turn.take(0.0)
        self._back.take(0.0)
        self._context = contextvars.copy_context()
        self._ident = 0
        self._alive: weakref.ref[_Alive] | None = None  # dead when the thread is gone, however it went
        self._failure: BaseException | None = None
        self.ended = self._stopped = self._returned = False

    def _run(self, alive: _Alive) -> None:
        try:
            try:  # Ctrl-C that is handed on comes anywhere from the first of these lines to the last
                self._ident = get_ident()
                self._body()
            finally:
                self.ended = True
        except BaseException as error:
            self._failure = error
        finally:
            self.ended = True
            try:
                self._give_back()
            except KeyboardInterrupt as error:
                self._failure = error
                self._give_back()

    def _give_back(self) -> None:
        with self._guard:
            self._returned = True
        self._back.give()

    def turn(self) -> None:
        given, alive = False, None
        while True:
            try:
                if not given:  # Ctrl-C comes before or after these lines
                    given, self._returned = True, False
                    if self._alive is not None:
                        self._back.take(0.5, self._turn)
                    else:
                        alive = _Alive()
                        self._alive = weakref.ref(alive)
                        start_new_thread(self._context.run, (self._run, alive))
                alive = None
                while not self._returned:  # by the flag: Ctrl-C may come right after the lock
                    if not self._back.take(0.5):  # a signal may have come to another thread
                        self._look()
                break
            except KeyboardInterrupt:  # the main thread hears of it, but it is meant for who runs
                alive = None
                if not self._interrupt():
                    raise
        if self._failure is not None:
            raise self._failure

    def _interrupt(self) -> bool:
        """Hands Ctrl-C on, unless the turn is over."""
        import ctypes

        while not self._ident and self._is_alive():  # it is about to begin
            pass
        with self._guard:  # the number of a thread that has ended may be another one's by now
            if self._returned or not self._is_alive():
                self._look()
                return False
            ident = ctypes.c_ulong(self._ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))
            return True

    def _is_alive(self) -> bool:
        return self._alive is not None and self._alive() is not None

    def _look(self) -> None:
        """Ends the turn of a thread that is gone: Ctrl-C can end it before its first line, as CPython may
        take a thread that is about to begin for the one that begins it.
        """
        if not self._returned and not self._is_alive():
            self.ended = self._returned = True
            self._failure = KeyboardInterrupt()

    def wait(self) -> None:
        if self._stopped:
            return
        with self._guard:
            self._returned = True
        self._turn.take(-1.0, self._back)
        if self._stopped:
            raise Stopped

    def stop(self) -> None:
        self._stopped = True
        while self._alive is not None and not self.ended:  # it has begun and not ended
            self.turn()


@cache
def greenlet() -> Any:
    """The package greenlet, or None where it is not installed."""
    try:
        import greenlet
    except ImportError:
        return None
    return greenlet


used = False  # whether there was a strand in this process


def strand(body: Callable[[], None]) -> Strand:
    """A strand for a function that raises nothing; it begins at its first turn."""
    global used
    used = True
    module = greenlet()
    return _Threads(body) if module is None else _Stacks(module, body)


def described() -> str:
    """What strands are here, as a sentence."""
    module = greenlet()
    if module is None:
        return (
            "Items take turns as threads, of which one runs at a time, because greenlet is not installed: "
            "pip install 'kiln[batching]' makes a turn some fifteen times as quick."
        )
    return f"Items take turns as greenlets (greenlet {module.__version__})."
