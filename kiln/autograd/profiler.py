"""What ran and how long, as PyTorch's profiler tells it: kernels, and ranges that the program names.

    record_function("forward")      a range, while something profiles
    profile()                       kernels and ranges between entry and exit
    EventList                       of them; key_averages() by name, .table(), .export_chrome_trace(file)

An event is one launch of a kernel, or one range; those inside it in time are its children. Views launch no
kernel, and functions that NumPy or SciPy compute are none of kiln's: they have no event of their own. In a
compiled function a kernel may do several operations, and is named by them: what is told of it is told of
these.

Memory is what storages hold, in whole blocks of the allocator. It is looked at before each call, after each
kernel, and where ranges begin and end: what came and went from a call's begin to its kernel's end is the
kernel's, what went in between is the range's around it, or an event "[memory]" of its own.

Shapes, lines and modules are noted where they are asked for. Then the interpreter is asked at each call,
which takes some microseconds; the kernels' own times stay what they are. In backward lines and modules are
those of the forward call whose derivative runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from kiln import _core
from kiln.autograd import watch
from kiln.autograd.profiler_events import NOTHING, EventList, FunctionEvent, FunctionEventAvg, Told
from kiln.autograd.profiler_memory import Held, changes_of, loose_events
from kiln.table.labels import split

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "profile", "record_function"]

PROGRAM = "region: "  # begins the names of launches of a recording's program

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
    calls: watch.Calls | None = None  # what is noted of calls
    memory: list[Held] | None = None  # if it is noted
    told = NOTHING


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
        _look()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Ranges.on:
            _look()
            Ranges.ended.append(_Range(self.name, self._start, time.perf_counter(), threading.get_ident()))

    def __call__(self, function: _F) -> _F:
        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name, self.args):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]


def start(told: Told = NOTHING, flops: Callable[[Any, tuple[Any, ...]], int] | None = None) -> float:
    """Begins to note kernels and ranges, and of calls what `told` says; the moment. RuntimeError if that goes
    on already.
    """
    if Ranges.on:
        raise RuntimeError("profile: expected one profiler at a time; another has not ended")
    _core.flush()
    Ranges.on, Ranges.ended, Ranges.told = True, [], told
    if told._replace(memory=False) != NOTHING:
        Ranges.calls = watch.Calls(flops)
        watch.begin(Ranges.calls)
    if told.memory:
        Ranges.memory = []
        watch.begin(_look)
        _look()
    _core.profile_start(True)
    return time.perf_counter()


def stop(begun: float) -> EventList:
    """Ends it; what ran since `begun`."""
    try:
        _core.flush()
    finally:
        ended = time.perf_counter()
        launches = _core.profile_stop()
        Ranges.on = False
        noted, Ranges.calls = Ranges.calls, None
        if noted is not None:
            watch.end(noted)
        if Ranges.memory is not None:
            _look()
            watch.end(_look)
        memory, Ranges.memory = Ranges.memory, None
    here = threading.get_ident()
    calls_of = _finder(noted or watch.Calls(), launches)
    found = []
    counted: set[int] = set()  # a call may launch several kernels: its operations are the first one's
    for told, _, took, begin, number, held in launches:
        name, calls = split(told)[0], calls_of(told, number)
        flops = sum(call.flops for call in calls if call.number not in counted)
        counted.update(call.number for call in calls)
        event = FunctionEvent(
            name,
            (begin - begun) * 1e6,
            (begin + took - begun) * 1e6,
            calls[0].thread if calls else here,
            False,
            calls,
            Ranges.told,
        )
        event.flops = flops
        found.append(event)
        if memory is not None:
            memory.append(Held(begin + took, held, event))
    for r in Ranges.ended:
        since = (max(r.start, begun) - begun) * 1e6, (r.end - begun) * 1e6
        found.append(FunctionEvent(r.name, *since, r.thread, True))
    Ranges.ended = []
    if memory is None:
        return EventList(found, begun, ended - begun)
    changes = changes_of(memory, begun)
    found += loose_events(changes, found, here)
    return EventList(found, begun, ended - begun, changes)


def _look(*call: Any) -> None:
    """Notes what storages hold now, where somebody asked for memory; a watcher of calls."""
    if Ranges.memory is not None:
        Ranges.memory.append(Held(time.perf_counter(), _core.memory_stats()["allocated_bytes"], None))


def _finder(calls: watch.Calls, launches: list[Any]) -> Callable[[str, int], tuple[watch.Call, ...]]:
    """Which calls a launch did, by what it is called and its number: the one, or those of a recording that
    its label names; all of the recording's, should it have been recorded otherwise than it was called.
    """
    programs = calls.of_programs(number for told, *_, number, _ in launches if told.startswith(PROGRAM))

    def find(told: str, number: int) -> tuple[watch.Call, ...]:
        if not told.startswith(PROGRAM):
            return (calls.of[number],) if number in calls.of else ()
        known, own = programs.get(number, ()), split(told)[1]
        if all(k < len(known) and known[k].name == name for k, name in own):
            return tuple(known[k] for k, _ in own)
        return known

    return find


class profile:
    """Kernels and ranges between entry and exit; `enabled=False` notes nothing.

    `record_shapes`, `with_stack` and `with_modules` note of each kernel what it is given and where in the
    program it was asked for, `profile_memory` what storages came to hold. Other arguments are taken, and
    change nothing.

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
        self._told = told(options)
        self.function_events = EventList([], 0.0, 0.0)
        self._begun = 0.0

    def __enter__(self) -> profile:
        if self.enabled:
            self._begun = start(self._told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.enabled:
            self.function_events = stop(self._begun)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Events of one name as one; see EventList.key_averages."""
        return self.function_events.key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> FunctionEventAvg:
        """All events as one."""
        return self.function_events.total_average()

    def table(self, sort_by: str | None = None, row_limit: int = 100, **options: Any) -> str:
        """The events' table; see EventList.table."""
        return self.function_events.table(sort_by, row_limit, **options)

    def export_chrome_trace(self, path: str) -> None:
        """Writes what ran for chrome://tracing or Perfetto."""
        self.function_events.export_chrome_trace(path)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Writes the lines that asked for kernels, for tools that draw flame graphs; needs `with_stack`."""
        if not self._told.stack:
            raise AssertionError("export_stacks() requires with_stack=True")
        self.function_events.export_stacks(path, metric)

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all events in microseconds, none counted twice."""
        return self.function_events.self_cpu_time_total

    def __repr__(self) -> str:
        return str(self.function_events)


def told(options: dict[str, Any]) -> Told:
    """What keywords of PyTorch's ask to be told of calls."""
    names = ("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory")
    return Told(*(bool(options.get(name)) for name in names))


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
