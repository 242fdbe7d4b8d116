"""`Future`: the value of something that is still being done, by this thread or another.

future.set_result(x)             who did it says so, once
future.wait()                    who needs it waits
future.then(f), collect_all      more futures, of what is to be done then
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from kiln.absent import hint_missing as _hint_missing
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["Future", "collect_all", "wait_all"]

T = TypeVar("T")
S = TypeVar("S")


class Future(Generic[T]):
    """A value that will be there. `devices`, where its tensors would be: RuntimeError for another than the
    CPU.

    >>> future = kiln.futures.Future()
    >>> doubled = future.then(lambda f: 2 * f.wait())
    >>> future.set_result(3)
    >>> doubled.done(), doubled.wait()
    (True, 6)
    """

    def __init__(self, *, devices: list[Any] | None = None) -> None:
        for device in devices or []:
            kind = str(device).partition(":")[0]
            if kind != "cpu":
                raise RuntimeError(f"Future: kiln runs on the CPU, got devices of {kind}")
        self._changed = threading.Condition()
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], Any]] = []

    def done(self) -> bool:
        """Whether there is a value, or an exception."""
        return self._done

    def wait(self) -> T:
        """The value, once it is there; raises what `set_exception` was given."""
        with self._changed:
            while not self._done:
                self._changed.wait()
        return self.value()

    def value(self) -> T:
        """The value that is there. RuntimeError before."""
        if not self._done:
            raise RuntimeError("Future.value: the future is not completed; wait() waits for it")
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """A future of what `callback` gives for this one, which the thread that completes it calls."""
        if not callable(callback):
            raise TypeError(f"then(): expected a function of a future, got {type(callback).__name__}")
        following: Future[S] = Future()

        def call(future: Future[T]) -> None:
            try:
                result = callback(future)
            except Exception as error:
                said = f"Got the following error when running the callback: {type(error).__name__}: {error}"
                failed = RuntimeError(said)
                failed.__cause__ = error
                following._complete(None, failed)
            else:
                following._complete(result, None)

        self._when_done(call)
        return following

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Has `callback` called with this future when it is done. What it raises is shown on stderr."""
        if not callable(callback):
            raise TypeError(
                f"add_done_callback(): expected a function of a future, got {type(callback).__name__}"
            )

        def call(future: Future[T]) -> None:
            try:
                callback(future)
            except Exception:
                print("Got the following error when running the callback:", file=sys.stderr)
                traceback.print_exc()

        self._when_done(call)

    def set_result(self, result: T) -> None:
        """Completes it with a value. RuntimeError the second time."""
        self._complete(result, None)

    def set_exception(self, result: Exception) -> None:
        """Completes it with an exception, which `wait` raises."""
        if not isinstance(result, Exception):
            raise AssertionError(f"{result} is of type {type(result)}, not an Exception.")
        self._complete(None, result)

    def _complete(self, value: Any, error: BaseException | None) -> None:
        for call in self._settle(value, error):
            call(self)

    def _settle(self, value: Any, error: BaseException | None) -> list[Callable[[Future[T]], Any]]:
        """Completes it; what is to be called now."""
        with self._changed:
            if self._done:
                raise RuntimeError(
                    "Attempting to mark a completed Future as complete again. Note that a Future can only be "
                    "marked completed once."
                )
            self._value, self._error, self._done = value, error, True
            waiting, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        return waiting

    def _when_done(self, call: Callable[[Future[T]], Any]) -> None:
        with self._changed:
            if not self._done:
                self._callbacks.append(call)
                return
        call(self)


def collect_all(futures: list[Future[Any]]) -> Future[list[Future[Any]]]:
    """A future of a list of futures, done when all of them are; an exception of one is its exception.

    >>> one = kiln.futures.Future()
    >>> both = kiln.futures.collect_all([one, one.then(lambda f: f.wait() + 1)])
    >>> one.set_result(1)
    >>> [future.wait() for future in both.wait()]
    [1, 2]
    """
    for future in futures:
        if not isinstance(future, Future):
            raise TypeError(f"collect_all: expected a list of futures, got one of {type(future).__name__}")
    all_of_them: Future[list[Future[Any]]] = Future()
    left, lock = [len(futures)], threading.Lock()

    def count(future: Future[Any]) -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            error = next((f._error for f in futures if f._error is not None), None)
            all_of_them._complete(futures, error)

    for future in futures:
        future.add_done_callback(count)
    if not futures:
        all_of_them.set_result(futures)
    return all_of_them


def wait_all(futures: list[Future[Any]]) -> list[Any]:
    """The values of futures when all are there; raises the first exception."""
    return [future.wait() for future in collect_all(futures).wait()]


_name_helpers(globals(), __name__)
_hint_missing(__name__)
