"""`kiln.compile(fn, fullgraph=True)`: calls that read no value, so that one program is enough.

The core tells of each value that Python reads (`_core.tell_reads`), whether or not it was there already, and
on whichever line: `str(x)`, `int(x)`, `if x`, `.item()`. Ops that read values themselves, as a mask does, end
the recording.
"""

from __future__ import annotations

import sys
from threading import RLock, local
from typing import Any

from kiln import _core
from kiln.capture.compile import Compiled
from kiln.errors import is_own, place


class _State(local):
    calls: tuple[InOne, ...] = ()  # that run in this thread, the innermost last
    error: RuntimeError | None = None  # of the first read in the innermost


_STATE = _State()
# functions of kiln's whose result is what they read; others look at values of arguments they check
_READERS = frozenset(("tensor_repr", "tensor_format", "_contains", "is_nonzero"))
_LOCK = RLock()
_RUNNING = [0]


class InOne(Compiled):
    """One whose calls may not read a value."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = _ends(self._region)
        outer = _STATE.calls, _STATE.error
        _STATE.calls, _STATE.error = (*outer[0], self), None
        _listen(1)
        try:
            result = super().__call__(*args, **kwargs)
        finally:
            _listen(-1)
            error = _STATE.error
            _STATE.calls, _STATE.error = outer
            if error is not None:  # also where the program went on behind it
                raise error from None
        for line, times in _ends(self._region).items():
            if times > before.get(line, 0):
                raise _refusal(self, line)
        return result


def _listen(more: int) -> None:
    """The core tells of reads as long as a call of any thread runs that wants to know."""
    with _LOCK:
        _RUNNING[0] += more
        _core.tell_reads(_read if _RUNNING[0] else None)


def _read() -> None:
    """A value is about to be read by Python: by the program, or by what of kiln's it called."""
    if not _STATE.calls:
        return
    called, frame = "", sys._getframe(1)
    while is_own(frame):
        if frame.f_back is None:
            return
        if frame.f_globals["__name__"] != "kiln.late":  # which only hands the call on
            called = frame.f_code.co_name
        frame = frame.f_back
    if called and called not in _READERS:
        return
    error = _refusal(_STATE.calls[-1], place(frame.f_code.co_filename, frame.f_lineno))
    _STATE.error = _STATE.error or error
    raise error


def _refusal(function: InOne, line: str) -> RuntimeError:
    return RuntimeError(
        f"compile: fullgraph=True, but {function._name} read a value at {line}: .item(), float(), a "
        "print or `if` of a tensor ends a recording; leave fullgraph out to record on behind it"
    )


def _ends(region: Any) -> dict[str, int]:
    """How often values that were read ended a recording, by lines."""
    counts: dict[str, int] = {}
    for recording in region.describe(False)["recordings"]:
        for cause, line, times in recording["ends"]:
            if cause == "a value was read":
                counts[str(line)] = counts.get(str(line), 0) + times
    return counts
