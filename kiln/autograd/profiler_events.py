"""Events of a profile and their table. Times are in microseconds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


class _Times:
    """Names of times, as PyTorch has them, of what has a total, an own part and a count."""

    key: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    # what is not noted here
    device_time_total = self_device_time_total = cuda_time_total = self_cuda_time_total = 0.0
    cpu_memory_usage = self_cpu_memory_usage = device_memory_usage = self_device_memory_usage = 0
    flops = 0
    input_shapes: tuple[()] = ()
    stack: tuple[()] = ()

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
    """One launch of a kernel or one range: from `start` to `end` after the profile's begin."""

    count = 1

    def __init__(self, name: str, start: float, end: float, thread: int, is_user_annotation: bool) -> None:
        self.name = name
        self.key = "ProfilerStep*" if name.startswith("ProfilerStep#") else name  # by which events are one
        self.start, self.end, self.thread = start, end, thread
        self.is_user_annotation = is_user_annotation
        self.cpu_parent: FunctionEvent | None = None
        self.cpu_children: list[FunctionEvent] = []

    @property
    def cpu_time_total(self) -> float:  # type: ignore[override]
        """How long it took."""
        return self.end - self.start

    @property
    def self_cpu_time_total(self) -> float:  # type: ignore[override]
        """How long it took without the events inside."""
        return max(0.0, self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children))

    def __repr__(self) -> str:
        return f"<FunctionEvent name={self.name} cpu_time={self.cpu_time_str} thread={self.thread}>"


class FunctionEventAvg(_Times):
    """Events of one name: how often, how long in all, and without the events inside."""

    def __init__(self, key: str = "Total") -> None:
        self.key = key
        self.count = 0
        self.cpu_time_total = 0.0
        self.self_cpu_time_total = 0.0
        self.is_user_annotation = False

    def add(self, event: _Times) -> FunctionEventAvg:
        """Adds another's count and times."""
        self.count += event.count
        self.cpu_time_total += event.cpu_time_total
        self.self_cpu_time_total += event.self_cpu_time_total
        self.is_user_annotation |= getattr(event, "is_user_annotation", False)
        return self

    def __repr__(self) -> str:
        return f"<FunctionEventAvg key={self.key} count={self.count} cpu_time={self.cpu_time_str}>"


class EventList(list[Any]):
    """Events, or averages of them; `str()` of it is its table."""

    def __init__(self, events: Iterable[Any], begun: float = 0.0, seconds: float = 0.0) -> None:
        super().__init__(events)
        self.begun, self.seconds = begun, seconds
        if self and isinstance(self[0], FunctionEvent):
            self.sort(key=lambda e: (e.start, -e.end))
            _nest(self)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Events of one name as one. Shapes and lines are not noted, so nothing is told apart by them."""
        found: dict[str, FunctionEventAvg] = {}
        for event in self:
            found.setdefault(event.key, FunctionEventAvg(event.key)).add(event)
        return EventList(found.values(), self.begun, self.seconds)

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
        cells = [_cells(row, whole, max_name_column_width, time_unit) for row in rows]
        widths = [max(12, *(len(row[k]) for row in [_TITLES, *cells])) for k in range(len(_TITLES))]
        line = "  ".join("-" * width for width in widths)
        text = [header, line] if header else [line]
        text += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [_TITLES]]
        text += [line]
        text += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in cells]
        return "\n".join([*text, line, f"Self CPU time total: {_time(whole, time_unit)}", ""])

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str) -> None:
        """Writes the events as JSON that chrome://tracing and Perfetto show."""
        import json

        process = os.getpid()
        events = [
            {
                "ph": "X",
                "cat": "user_annotation" if e.is_user_annotation else "cpu_op",
                "name": e.name,
                "pid": process,
                "tid": e.thread,
                "ts": self.begun * 1e6 + e.start,
                "dur": e.end - e.start,
            }
            for e in self
        ]
        text = json.dumps({"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": events})
        if path.endswith(".gz"):
            import gzip

            with gzip.open(path, "wt", encoding="utf-8") as file:
                file.write(text)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)


_TITLES = ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls")


def _cells(row: Any, whole: float, name_width: int, unit: str | None) -> tuple[str, ...]:
    name = row.key if len(row.key) <= name_width else row.key[: name_width - 3] + "..."
    own, total = row.self_cpu_time_total, row.cpu_time_total
    return (
        name,
        _share(own, whole),
        _time(own, unit),
        _share(total, whole),
        _time(total, unit),
        _time(row.cpu_time, unit),
        str(row.count),
    )


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
