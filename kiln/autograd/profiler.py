"""What ran and how long, as PyTorch's profiler tells it: kernels, and ranges that the program names.

    record_function("forward")      a range, while something profiles
    profile()                       kernels and ranges between entry and exit
    EventList                       of them; key_averages() by name, .table(), .export_chrome_trace(file)

An event is one launch of a kernel, or one range; those inside it in time are its children. Views launch no
kernel, and functions that NumPy or SciPy compute are none of kiln's: they have no event of their own. In a
compiled function a kernel may do several operations, and is named by them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from kiln import _core
from kiln.autograd.profiler_events import EventList, FunctionEvent, FunctionEventAvg

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "profile", "record_function"]

_F = TypeVar("_F", bound=Callable[..., Any])


class _Range(NamedTuple):
    name: str
    start: float
    end: float
    thread: int


class Ranges:
    """The ranges that ended while something profiles; nothing is kept before and after."""

    on = False
    ended: list[_Range] = []


class record_function:
    """`with record_function("forward"):` or `@record_function("forward")`: a range by name, while something
    profiles.

    >>> with kiln.autograd.profiler.profile() as p:
    ...     with kiln.autograd.profiler.record_function("double"):
    ...         y = kiln.ones(3) * 2
    >>> [e.count for e in p.key_averages() if e.key == "double"]
    [1]
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args
        self._start = 0.0

    def __enter__(self) -> record_function:
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Ranges.on:
            Ranges.ended.append(_Range(self.name, self._start, time.perf_counter(), threading.get_ident()))

    def __call__(self, function: _F) -> _F:
        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name, self.args):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]


def start() -> float:
    """Begins to note kernels and ranges; the moment. RuntimeError if that goes on already."""
    if Ranges.on:
        raise RuntimeError("profile: expected one profiler at a time; another has not ended")
    _core.flush()
    Ranges.on, Ranges.ended = True, []
    _core.profile_start(True)
    return time.perf_counter()


def stop(begun: float) -> EventList:
    """Ends it; what ran since `begun`."""
    _core.flush()
    ended = time.perf_counter()
    launches = _core.profile_stop()
    Ranges.on = False
    here = threading.get_ident()
    found = [_event(name, begin, begin + took, here, begun) for name, _, took, begin in launches]
    found += [
        _event(r.name, max(r.start, begun), r.end, r.thread, begun, annotation=True) for r in Ranges.ended
    ]
    Ranges.ended = []
    return EventList(found, begun, ended - begun)


def _event(
    name: str, start: float, end: float, thread: int, begun: float, annotation: bool = False
) -> FunctionEvent:
    return FunctionEvent(name, (start - begun) * 1e6, (end - begun) * 1e6, thread, annotation)


class profile:
    """Kernels and ranges between entry and exit; `enabled=False` notes nothing.

    Other arguments are taken, and change nothing: shapes, memory and lines of the program are not noted.

    >>> with kiln.autograd.profiler.profile() as p:
    ...     y = (kiln.ones(1000) * 2).sum()
    >>> "mul" in p.key_averages().table(sort_by="cpu_time_total")
    True
    """

    def __init__(self, enabled: bool = True, **options: Any) -> None:
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"profile: unexpected keyword argument '{min(unknown)}'")
        self.enabled = enabled
        self.function_events = EventList([], 0.0, 0.0)
        self._begun = 0.0

    def __enter__(self) -> profile:
        if self.enabled:
            self._begun = start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.enabled:
            self.function_events = stop(self._begun)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Events of one name as one; see EventList.key_averages."""
        return self.function_events.key_averages()

    def total_average(self) -> FunctionEventAvg:
        """All events as one."""
        return self.function_events.total_average()

    def table(self, sort_by: str | None = None, row_limit: int = 100, **options: Any) -> str:
        """The events' table; see EventList.table."""
        return self.function_events.table(sort_by, row_limit, **options)

    def export_chrome_trace(self, path: str) -> None:
        """Writes what ran for chrome://tracing or Perfetto."""
        self.function_events.export_chrome_trace(path)

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all events in microseconds, none counted twice."""
        return self.function_events.self_cpu_time_total

    def __repr__(self) -> str:
        return str(self.function_events)


class emit_nvtx:
    """`with` it, ranges would be shown to NVIDIA's profiler. RuntimeError: kiln runs on the CPU."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled = enabled

    def __enter__(self) -> Any:
        if self.enabled:
            raise RuntimeError("emit_nvtx: kiln runs on the CPU; kiln.profiler.profile tells where time goes")
        return self

    def __exit__(self, *error: Any) -> None:
        return None


_OPTIONS = {
    "use_cuda", "use_device", "record_shapes", "with_flops", "profile_memory", "with_stack", "with_modules",
    "use_kineto", "use_cpu", "experimental_config", "acc_events", "custom_trace_id_callback",
}  # fmt: skip
