"""Events of a profile and their table. Times are in microseconds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kiln.absent import leave_out
from kiln.autograd.watch import Call, Layer
from kiln.table.callables import name_helpers as _name_helpers


class Change(NamedTuple):
    """At a moment, in microseconds since the begin, so many bytes came, or went where it is less than 0.

    `held` are then in storages; `loose` is one between kernels.
    """

    time: float
    bytes: int
    held: int
    loose: bool


STACK_METRICS = ("self_cpu_time_total", "self_cuda_time_total", "self_xpu_time_total")


class Told(NamedTuple):
    """What is noted of calls."""

    shapes: bool = False
    stack: bool = False
    modules: bool = False
    flops: bool = False
    memory: bool = False


NOTHING = Told()


class _Times:
    """Names of times, as PyTorch has them, of what has a total, an own part and a count."""

    key: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_memory_usage: int  # bytes that storages hold more after it than before; less than 0: that were freed
    self_cpu_memory_usage: int
    # what is not noted here
    device_time_total = self_device_time_total = cuda_time_total = self_cuda_time_total = 0.0
    device_time = cuda_time = 0.0
    device_time_str = device_time_total_str = self_device_time_total_str = "0.000us"
    device_memory_usage = self_device_memory_usage = self_cuda_memory_usage = 0
    flops = 0
    input_shapes: list[list[int]] | None = None  # of a call's operands; of a number []
    stack: list[str]  # lines of the program, the innermost first

    @property
    def cpu_time(self) -> float:
        """The mean time of one."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def cpu_time_str(self) -> str:
        """The mean time of one, with its unit."""
        return _time(self.cpu_time)

    @property
    def cpu_time_total_str(self) -> str:
        """The total time, with its unit."""
        return _time(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self) -> str:
        """The time without that of events inside, with its unit."""
        return _time(self.self_cpu_time_total)


class FunctionEvent(_Times):
    """One launch of a kernel or one range: from `start` to `end` after the profile's begin.

    `calls` are the calls of ops it does, of a program those of its recording. Of several, `input_shapes`
    are of all of them, one after the other; `stack` is that of the first, and `modules` what is around all.
    """

    count = 1

    def __init__(
        self,
        name: str,
        start: float,
        end: float,
        thread: int,
        is_user_annotation: bool,
        calls: Sequence[Call] = (),
        told: Told = NOTHING,
    ) -> None:
        self.calls = tuple(calls)
        self.modules: tuple[Layer, ...] = common_modules(calls) if told.modules or told.stack else ()
        self.stack = [str(line) for line in calls[0].place.lines] if told.stack and calls else []
        if told.shapes and calls:
            self.input_shapes = [list(x) if dtype else [] for c in calls for dtype, x in c.given]
        self.name = name
        self.key = "ProfilerStep*" if name.startswith("ProfilerStep#") else name  # by which events are one
        self.start, self.end, self.thread = start, end, thread
        self.is_user_annotation = is_user_annotation
        self.cpu_parent: FunctionEvent | None = None
        self.cpu_children: list[FunctionEvent] = []
        self.self_cpu_memory_usage = 0

    @property
    def cpu_time_total(self) -> float:  # type: ignore[override]
        """How long it took."""
        return self.end - self.start

    @property
    def self_cpu_time_total(self) -> float:  # type: ignore[override]
        """How long it took without the events inside."""
        return max(0.0, self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children))

    @property
    def cpu_memory_usage(self) -> int:  # type: ignore[override]
        """How many bytes more storages hold after it than before."""
        return self.self_cpu_memory_usage + sum(child.cpu_memory_usage for child in self.cpu_children)

    def __repr__(self) -> str:
        return f"<FunctionEvent name={self.name} cpu_time={self.cpu_time_str} thread={self.thread}>"


class FunctionEventAvg(_Times):
    """Events of one name: how often, how long in all, and without the events inside."""

    def __init__(self, key: str = "Total") -> None:
        self.key = key
        self.stack: list[str] = []
        self.count = 0
        self.cpu_time_total = 0.0
        self.self_cpu_time_total = 0.0
        self.cpu_memory_usage = self.self_cpu_memory_usage = 0
        self.is_user_annotation = False

    def add(self, event: _Times) -> FunctionEventAvg:
        """Adds another's count, times, bytes and operations."""
        self.count += event.count
        self.cpu_time_total += event.cpu_time_total
        self.self_cpu_time_total += event.self_cpu_time_total
        self.flops += event.flops
        self.cpu_memory_usage += event.cpu_memory_usage
        self.self_cpu_memory_usage += event.self_cpu_memory_usage
        self.is_user_annotation |= getattr(event, "is_user_annotation", False)
        return self

    def __repr__(self) -> str:
        return f"<FunctionEventAvg key={self.key} count={self.count} cpu_time={self.cpu_time_str}>"


class EventList(list[Any]):
    """Events, or averages of them; `str()` of it is its table."""

    def __init__(
        self,
        events: Iterable[Any],
        begun: float = 0.0,
        seconds: float = 0.0,
        memory: Sequence[Change] | None = None,
    ) -> None:
        super().__init__(events)
        self.begun, self.seconds = begun, seconds
        self.memory = memory  # what came and went, if it was noted
        if self and isinstance(self[0], FunctionEvent):
            self.sort(key=lambda e: (e.start, -e.end))
            _nest(self)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Events of one name as one; told apart by the shapes of their operands, and by the innermost lines
        of the program, where that is asked for and was noted.
        """
        found: dict[tuple[str, ...], FunctionEventAvg] = {}
        for event in self:
            lines = event.stack[:group_by_stack_n] if group_by_stack_n > 0 else []
            key = (event.key, str(event.input_shapes) if group_by_input_shape else "", *lines)
            if key not in found:
                found[key] = FunctionEventAvg(event.key)
                found[key].stack = lines
                if group_by_input_shape:
                    found[key].input_shapes = event.input_shapes
            found[key].add(event)
        return EventList(found.values(), self.begun, self.seconds, self.memory)

    def total_average(self) -> FunctionEventAvg:
        """All events as one."""
        total = FunctionEventAvg()
        for event in self:
            total.add(event)
        return total

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all events, none counted twice."""
        return float(sum(event.self_cpu_time_total for event in self))

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Rows of names with their times, the `row_limit` first by `sort_by`, or in the order of their start.

        `sort_by` is the name of a time, "count" or "key"; AttributeError for any other.

        >>> with kiln.profiler.profile() as p:
        ...     y = kiln.ones(3).exp()
        >>> p.key_averages().table(sort_by="cpu_time_total", row_limit=1).splitlines()[1].split()[0]
        'Name'
        """
        rows = [e for e in self if not (top_level_events_only and getattr(e, "cpu_parent", None))]
        if sort_by is not None:
            for row in rows[:1]:
                getattr(row, sort_by)
            rows.sort(key=lambda row: getattr(row, sort_by), reverse=sort_by not in ("key", "name"))
        rows = rows if row_limit < 0 else rows[:row_limit]
        whole = self.self_cpu_time_total
        more = _Columns(rows, max_shapes_column_width, max_src_column_width)
        held = ("CPU Mem", "Self CPU Mem") if self.memory is not None else ()
        own = [*_TITLES[:-1], *held, _TITLES[-1]]
        titles = [*own, *more.titles]
        cells = [
            [*_cells(row, whole, max_name_column_width, time_unit, bool(held)), *more.cells(row)]
            for row in rows
        ]
        widths = [max(12, *(len(row[k]) for row in [titles, *cells])) for k in range(len(titles))]

        def line(row: Sequence[str]) -> str:
            padded = [cell.rjust(w) for cell, w in zip(row, widths)]
            return "  ".join(padded)

        bar = "  ".join("-" * width for width in widths)
        text = [*([header] if header else []), bar, line(titles), bar]
        for row, shown in zip(rows, cells):
            text.append(line(shown))
            text += [line([""] * len(own) + below) for below in more.below(row)]
        return "\n".join([*text, bar, f"Self CPU time total: {_time(whole, time_unit)}", ""])

    def export_stacks(self, path: str, metric: str) -> None:
        """Writes stacks as tools that draw flame graphs read them: lines of the program from the outermost to
        the innermost, separated by ";", then the metric in whole microseconds. ValueError for no metric.
        """
        if metric not in STACK_METRICS:
            raise ValueError(f"metric should be one of: {list(STACK_METRICS)}")
        clean = str.maketrans(" ;\t\n", "____")
        with open(path, "w", encoding="utf-8") as file:
            for event in self:
                value = int(getattr(event, metric))
                if event.stack and value:
                    stack = ";".join(entry.translate(clean) for entry in reversed(event.stack))
                    file.write(f"{stack} {value}\n")

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str) -> None:
        """Writes the events as JSON that chrome://tracing and Perfetto show."""
        import json

        process = os.getpid()
        begun = self.begun * 1e6
        events = [
            {
                "ph": "X",
                "cat": "user_annotation" if e.is_user_annotation else "cpu_op",
                "name": e.name,
                "pid": process,
                "tid": e.thread,
                "ts": begun + e.start,
                "dur": e.end - e.start,
                **_arguments(e),
            }
            for e in self
        ]
        events += _module_spans(self, process, begun)
        events += [_instant(change, process, begun) for change in self.memory or ()]
        text = json.dumps({"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": events})
        if path.endswith(".gz"):
            import gzip

            with gzip.open(path, "wt", encoding="utf-8") as file:
                file.write(text)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)


_TITLES = ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls")


class _Columns:
    """Columns of a table that are there where something was noted: shapes, lines, operations."""

    def __init__(self, rows: Sequence[Any], shapes_width: int, source_width: int) -> None:
        self._shapes = any(row.input_shapes for row in rows)
        self._lines = any(row.stack for row in rows)
        self._flops = any(row.flops for row in rows)
        self._widths = shapes_width, source_width
        self.titles = [
            *(["Input Shapes"] if self._shapes else []),
            *(["Source Location"] if self._lines else []),
            *(["Total FLOPs"] if self._flops else []),
        ]

    def cells(self, row: Any) -> list[str]:
        """Of the row itself."""
        shapes_width, source_width = self._widths
        cells = [_cut(str(row.input_shapes or []), shapes_width)] if self._shapes else []
        if self._lines:
            cells.append(_tail(row.stack[0], source_width) if row.stack else "")
        return [*cells, *([f"{row.flops}" if row.flops else "--"] if self._flops else [])]

    def below(self, row: Any) -> list[list[str]]:
        """Lines under the row: of its stack."""
        before, after = [""] * self._shapes, [""] * self._flops
        return [[*before, _tail(line, self._widths[1]), *after] for line in row.stack[1:5]]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _tail(text: str, width: int) -> str:
    """The end of a line of the program, which says more than its folder."""
    return text if len(text) <= width else "..." + text[len(text) - width + 3 :]


def common_modules(calls: Sequence[Call]) -> tuple[Layer, ...]:
    """The modules around all calls."""
    found = calls[0].place.modules if calls else ()
    for call in calls[1:]:
        same = 0
        for a, b in zip(found, call.place.modules):
            if a != b:
                break
            same += 1
        found = found[:same]
    return found


def _arguments(event: FunctionEvent) -> dict[str, Any]:
    """What was noted of an event, by the names that PyTorch's traces have."""
    args: dict[str, Any] = {}
    if event.input_shapes is not None:
        args["Input Dims"] = event.input_shapes
        args["Input type"] = [dtype or "Scalar" for call in event.calls for dtype, _ in call.given]
    if event.stack:
        args["Call stack"] = ";".join(reversed(event.stack))
    if event.modules:
        args["Module Hierarchy"] = ".".join([event.modules[0].kind, *filter(None, [event.modules[-1].name])])
    if len(event.calls) > 1:
        args["Operations"] = [call.name for call in event.calls]
        places = dict.fromkeys(str(call.place.lines[0]) for call in event.calls if call.place.lines)
        if event.stack:
            args["Lines"] = list(places)
    if event.flops:
        args["flops"] = event.flops
    return {"args": args} if args else {}


def _module_spans(events: Sequence[FunctionEvent], process: int, begun: float) -> list[dict[str, Any]]:
    """Spans of modules, from the first to the last of the kernels that follow each other in one, on a track
    of their own beside each thread's.
    """
    found: list[dict[str, Any]] = []
    threads = dict.fromkeys(e.thread for e in events if e.modules)
    for k, thread in enumerate(threads):
        track = 1 + k
        name = {"name": f"modules of thread {thread}"}
        found.append({"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": name})
        open_: list[tuple[Layer, dict[str, Any]]] = []
        backward = False
        for event in events:
            if event.thread != thread or event.is_user_annotation:
                continue
            same = 0
            derived = bool(event.calls) and event.calls[0].backward
            if derived == backward:
                for (layer, _), now in zip(open_, event.modules):
                    if layer != now:
                        break
                    same += 1
            backward = derived
            del open_[same:]
            for layer in event.modules[same:]:
                span: dict[str, Any] = {"ph": "X", "cat": "module", "pid": process, "tid": track}
                span.update(name=f"{layer}{' backward' if backward else ''}", ts=begun + event.start, dur=0.0)
                found.append(span)
                open_.append((layer, span))
            for _, span in open_:
                span["dur"] = begun + event.end - span["ts"]
    return found


def _cells(row: Any, whole: float, name_width: int, unit: str | None, memory: bool) -> tuple[str, ...]:
    name = row.key if len(row.key) <= name_width else row.key[: name_width - 3] + "..."
    own, total = row.self_cpu_time_total, row.cpu_time_total
    held = (row.cpu_memory_usage, row.self_cpu_memory_usage) if memory else ()
    return (
        name,
        _share(own, whole),
        _time(own, unit),
        _share(total, whole),
        _time(total, unit),
        _time(row.cpu_time, unit),
        *map(bytes_text, held),
        str(row.count),
    )


def _instant(change: Change, process: int, begun: float) -> dict[str, Any]:
    """A change of memory, as PyTorch's traces have it."""
    args = {"Bytes": change.bytes, "Total Allocated": change.held}
    common = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": process, "tid": 0}
    return {**common, "ts": begun + change.time, "args": args}


def bytes_text(count: int) -> str:
    """A number of bytes with its unit: the largest of which there is one.

    >>> bytes_text(960), bytes_text(-3143), bytes_text(5 << 30)
    ('960 B', '-3.07 KB', '5.00 GB')
    """
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "0.00%"


def _time(microseconds: float, unit: str | None = None) -> str:
    """A time with its unit: the largest of which there is one, or what is asked for."""
    if unit is None:
        unit = "s" if microseconds >= 1e6 else "ms" if microseconds >= 1e3 else "us"
    return f"{microseconds / {'s': 1e6, 'ms': 1e3, 'us': 1.0}[unit]:.3f}{unit}"


def _nest(events: list[FunctionEvent]) -> None:
    """Makes events the children of those around them in time, on each thread: sorted by their start."""
    around: dict[int, list[FunctionEvent]] = {}
    for event in events:
        open_ = around.setdefault(event.thread, [])
        while open_ and open_[-1].end < event.end:
            open_.pop()
        if open_:
            event.cpu_parent = open_[-1]
            open_[-1].cpu_children.append(event)
        open_.append(event)


leave_out(
    FunctionEvent,
    "append_cpu_child append_kernel set_cpu_parent metadata_json",
    "the profiler puts events together itself",
)


_name_helpers(globals(), __name__)
