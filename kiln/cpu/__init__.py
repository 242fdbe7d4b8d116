"""The CPU, asked as other devices are: it is there, and what is called has run when it returns."""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module
from types import TracebackType
from typing import Any

from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute

__all__ = [
    "Stream", "StreamContext", "current_device", "current_stream", "device_count", "is_available",
    "is_initialized", "set_device", "stream", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """True.

    >>> kiln.cpu.is_available(), kiln.cpu.device_count()
    (True, 1)
    """
    return True


def is_initialized() -> bool:
    """True: there is nothing to initialise."""
    return True


def device_count() -> int:
    """1: all cores are one device."""
    return 1


def current_device() -> str:
    """The name, "cpu"."""
    return "cpu"


def set_device(device: Any) -> None:
    """Chooses the device there is."""


def synchronize(device: Any = None) -> None:
    """Returns when what was called has run: at once."""


class Stream:
    """The order in which kernels run: that of the calls."""

    def __init__(self, priority: int = -1) -> None:
        self.priority = priority

    def wait_stream(self, stream: Stream) -> None:
        """Waits for what was called before: it has run."""

    def record_event(self) -> None:
        """Marks a moment: there is nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Waits for a moment: it has passed."""


_ONE = Stream()


def current_stream(device: Any = None) -> Stream:
    """The stream there is."""
    return _ONE


class StreamContext:
    """`with kiln.cpu.stream(s):` what is called inside runs in the order of the calls, as outside."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def stream(stream: Stream | None) -> StreamContext:
    """Work inside goes to a stream; None is the one there is."""
    return StreamContext(stream)


def _found(name: str) -> _typing.Any:
    """`__getattr__`, which type checkers do not see."""
    if name != "amp":
        _no_attribute(__name__, name)
    return _import_module("kiln.cpu.amp")


if not _typing.TYPE_CHECKING:
    __getattr__ = _hidden(_found)
