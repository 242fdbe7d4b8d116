"""What the core calls up for: `compile(request, arguments)`.

function    a handle for an op at a structure, and its identity
classify    how to run a function, and which operand holds positions to check
pointwise   the kernel of a pointwise function at dtypes and layout classes
program     the program of any other function
saves       what backward reads of a call
derivative  the function that computes given gradients ("derivative function": its handle)
recipe      a function as calls of ops
kernel      machine code
explain     the error of a call whose sizes do not fit
view error  the sentence of a view that may not be written
region      the program of a recorded region: now, later (by another thread), stored (if it is on disk)
settle      waits for what is being compiled by another thread
decide      after a recording was measured: whether it runs as a program, and its region goes on recording
forgotten   the latter, after a recording made room for another
judge       the latter, after whole calls were timed, recorded and not
log         a line for the logger

What is asked of a function (KEPT) and of a region is answered in bytes, kept (`kiln.codegen.store.kept`)
under a hash of the whole request: what the function is, what the operands look like. So a process that finds
its answers captures and plans nothing, and does not even import what could: `kiln.capture.make` comes at the
first miss.
"""

from __future__ import annotations

import sys
from typing import Any

from kiln import _core
from kiln.capture.answers import kernels_of
from kiln.capture.handle import Handle, derivative_of, forward_of
from kiln.codegen.fork import PENDING, at_fork
from kiln.codegen.store import kept
from kiln.codegen.store.identity import digest
from kiln.late import later
from kiln.table.record import find

KEPT = frozenset({"classify", "pointwise", "program", "saves", "derivative", "recipe"})

# kernel -> the request whose answer, from disk, named it: made again should its code not be there
_origins: dict[bytes, tuple[str, tuple[Any, ...]]] = {}


# Nothing is pending or in a kernel: the child has nobody to go on with it.
at_fork(PENDING, _core.before_fork, lambda: _core.after_fork(False), lambda: _core.after_fork(True))


def compile(request: str, arguments: tuple[Any, ...]) -> Any:
    """Answers one request of the core; see the module's list."""
    if request in KEPT:
        return _kept(request, arguments)
    return _ANSWERS[request](*arguments)


def _kept(request: str, arguments: tuple[Any, ...]) -> bytes:
    handle: Handle = arguments[0]
    key = None
    if handle.identity is not None:
        key = digest(b"answer", handle.identity, repr((request, arguments[1:])).encode())
        found = kept.load(key)
        if found is not None:
            if request in ("pointwise", "program"):
                for kernel in kernels_of(found):
                    _origins.setdefault(kernel, (request, arguments))
            return found
    made: bytes = _maker().make(request, arguments)
    if key is not None:
        kept.store(key, made)
    return made


def _maker() -> Any:
    """What captures and plans, imported when something has to be."""
    from kiln.capture import make

    return make


def _function(op: Any, structure: tuple[Any, ...]) -> tuple[Handle, bytes]:
    handle = forward_of(op, structure)
    return handle, handle.short


def _derivative_function(*arguments: Any) -> tuple[Handle, bytes]:
    handle = derivative_of(*arguments)
    return handle, handle.short


def _kernel(key: bytes) -> bytes:
    found = kept.load(key)
    if found is None:
        maker = _maker()
        if not maker.knows(key) and key in _origins:
            maker.make(*_origins[key])
        found = maker.kernel_object(key)
    _origins.pop(key, None)
    return bytes(found)


def _region_key(what: str) -> bytes:
    return digest(b"region", what.encode())


def _stored_region(what: str) -> bytes | None:
    """The program of a region if it and all its kernels are on disk."""
    answer = kept.load(_region_key(what))
    for key in () if answer is None else kernels_of(answer):
        if not _core.kernel_known(key):
            code = kept.load(key)
            if code is None:
                return None
            _core.give_kernel(key, code)
    return answer


def _region(what: str, recording: tuple[Any, ...]) -> bytes | None:
    answer: bytes | None = _maker().region(*recording)
    if answer is not None:
        kept.store(_region_key(what), answer)
    return answer


def _region_later(asked: tuple[Any, ...], deliver: Any, wanted: Any) -> None:
    def job(checkpoint: Any) -> None:
        def rest() -> None:
            checkpoint()
            if not wanted():
                raise Unwanted

        rest()
        what, recording = asked
        answer = _maker().region(*recording, rest)
        if answer is not None:
            kept.store(_region_key(what), answer)
        deliver(answer)

    _background().submit(job, lambda: deliver(True))


class Unwanted(BaseException):
    """Ends the compiling of a program that nobody waits for any more."""


def _background() -> Any:
    """The compiling thread, imported when there is something for it."""
    from kiln.capture import background

    return background


def wait() -> None:
    """Waits until nothing is being compiled by the other thread."""
    if "kiln.capture.background" in sys.modules:
        _background().wait()


def _explain(function: Handle, operands: tuple[Any, ...]) -> None:
    try:
        _maker().explain(function, operands)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise error.with_traceback(None) from error.__cause__  # whose frames are not the user's


_ANSWERS: dict[str, Any] = {
    "function": _function,
    "derivative function": _derivative_function,
    "op": lambda name: find(name).handle,
    "kernel": _kernel,
    "explain": _explain,
    "view error": later("kiln.capture.view_errors", "view_error"),
    "stored region": _stored_region,
    "region": _region,
    "region later": _region_later,
    "settle": wait,
    "decide": later("kiln.capture.policy", "decide"),
    "forgotten": later("kiln.capture.policy", "forgotten"),
    "judge": later("kiln.capture.policy", "judge"),
    "log": later("kiln.capture.log", "log"),
}
