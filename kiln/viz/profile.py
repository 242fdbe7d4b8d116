"""Where the time went: launches and seconds per function, shape, line and module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import NamedTuple

from kiln import _core
from kiln.autograd import profiler as _ranges
from kiln.autograd.profiler_events import EventList, FunctionEvent, Told, common_modules
from kiln.errors import message, place
from kiln.table.labels import split
from kiln.viz.flame import Block, FlameGraph

_BY = ("function", "shape", "line", "module")


class Line(NamedTuple):
    """The launches of one function's kernels, or of one line's or module's, and the seconds they took."""

    name: str
    launches: int
    seconds: float


class Lines(list[Line]):
    """Lines by time; printed, a table."""

    def __init__(self, title: str, lines: Iterable[Line]) -> None:
        super().__init__(sorted(lines, key=lambda line: -line.seconds))
        self._title = title

    def __repr__(self) -> str:
        width = max([len(line.name) for line in self] + [len(self._title)])
        seconds = sum(line.seconds for line in self)
        rows = [f"{self._title:{width}}  launches  total ms   mean us      %"]
        for line in self:
            mean = line.seconds / line.launches * 1e6
            share = 100 * line.seconds / max(seconds, 1e-12)
            times = f"{line.seconds * 1e3:8.2f}  {mean:8.2f}  {share:5.1f}"
            rows.append(f"{line.name:{width}}  {line.launches:8}  {times}")
        launches = sum(line.launches for line in self)
        rows.append(f"{'all':{width}}  {launches:8}  {seconds * 1e3:8.2f}")
        return "\n".join(rows)


class profile:
    """Counts kernel launches and their time between entry and exit; printed, a table by time.

    With `detail` it notes of each launch what it was given and where in the program it was asked for:
    `by("shape")`, `by("line")`, `by("module")`, `flame_graph()` and `chrome_trace(path)` tell. A call of an
    op then takes some microseconds more, outside of kernels. In backward a line or module is that of the
    forward call whose derivative runs. A kernel of a compiled function is of the lines of all operations
    that it does: it is named by the first and how many more there are, and by the module around all.

    >>> x = kiln.ones(1000)
    >>> with kiln.profile() as p:
    ...     y = (x * 2).sum()
    >>> [(line.name, line.launches) for line in p.lines if line.name == "mul"]
    [('mul', 1)]
    >>> model = kiln.nn.Sequential(kiln.nn.Linear(3, 2), kiln.nn.ReLU())
    >>> x = kiln.ones(4, 3)
    >>> with kiln.profile(detail=True) as p:
    ...     y = model(x)
    >>> sorted(line.name for line in p.by("module"))
    ['Sequential.0 (Linear)', 'Sequential.1 (ReLU)']
    """

    def __init__(self, detail: bool = False) -> None:
        self.lines: list[Line] = Lines("function", [])
        self._detail = detail
        self._begun = 0.0
        self._events: EventList | None = None

    def __enter__(self) -> profile:
        if self._detail:
            self._begun = _ranges.start(Told(True, True, True, False))
        else:
            _core.flush()
            _core.profile_start(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._detail:
            self._events = _ranges.stop(self._begun)
            self.lines = self.by("function")
        else:
            _core.flush()
            found: dict[str, list[float]] = {}
            for told, launches, seconds, *_ in _core.profile_stop():
                total = found.setdefault(split(told)[0], [0, 0.0])
                total[0] += launches
                total[1] += seconds
            lines = (Line(name, int(launches), seconds) for name, (launches, seconds) in found.items())
            self.lines = Lines("function", lines)

    @property
    def launches(self) -> int:
        """All launches."""
        return sum(line.launches for line in self.lines)

    @property
    def seconds(self) -> float:
        """The time spent in kernels."""
        return sum(line.seconds for line in self.lines)

    @property
    def events(self) -> EventList:
        """Every launch, and ranges of `kiln.profiler.record_function`, of a profile with `detail`."""
        if self._events is None:
            raise RuntimeError(
                message("profile", "kiln.profile(detail=True) that has ended", "one that kept no events")
            )
        return self._events

    def _kernels(self) -> Iterator[tuple[FunctionEvent, float]]:
        for event in self.events:
            if not event.is_user_annotation:
                yield event, event.cpu_time_total / 1e6

    def by(self, what: str) -> Lines:
        """Launches and seconds by "function", "shape", "line" or "module": of a module without those inside
        it.

        RuntimeError without `detail`; ValueError for anything else.
        """
        if what not in _BY:
            raise ValueError(message("by", "one of " + ", ".join(map(repr, _BY)), repr(what)))
        name = {"function": _function, "shape": _shape, "line": _line, "module": _module}[what]
        return self._grouped(what, name)

    def _grouped(self, title: str, name: Callable[[FunctionEvent], str]) -> Lines:
        found: dict[str, list[float]] = {}
        for event, seconds in self._kernels():
            found.setdefault(name(event), []).append(seconds)
        return Lines(title, (Line(key, len(times), sum(times)) for key, times in found.items()))

    def flame_graph(self, path: str | os.PathLike[str] | None = None, by: str = "module") -> FlameGraph:
        """Time in kernels as boxes on boxes: by "module" forward and backward, modules inside each other, the
        line, the function; by "line" the lines that called each other, and the function.

        With `path` (.svg or .html) it is saved too. RuntimeError without `detail`; ValueError for another
        `by`.
        """
        if by not in ("module", "line"):
            raise ValueError(message("flame_graph", 'by "module" or "line"', repr(by)))
        root = Block("all", "all")
        for event, seconds in self._kernels():
            root.add(_module_path(event) if by == "module" else _line_path(event), seconds)
        made = FlameGraph(root, f"time in kernels by {by}: {root.seconds * 1e3:.2f} ms")
        if path is not None:
            made.save(path)
        return made

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace for chrome://tracing or Perfetto: kernels with shapes, lines and modules, and
        spans of modules on a track of their own. RuntimeError without `detail`.
        """
        self.events.export_chrome_trace(os.fspath(path))

    def __repr__(self) -> str:
        return repr(self.lines)


def _function(event: FunctionEvent) -> str:
    return event.name


def _shape(event: FunctionEvent) -> str:
    if len(event.calls) != 1:
        return f"{event.name} of {len(event.calls)} calls" if event.calls else event.name
    (call,) = event.calls
    given = [f"{dtype}{list(x)}" if dtype else "number" for dtype, x in call.given]
    return f"{call.name}({', '.join(given)})"


def _line(event: FunctionEvent) -> str:
    lines = dict.fromkeys(call.place.lines[0] for call in event.calls if call.place.lines)
    if not lines:
        return "an unknown line"
    first = next(iter(lines))
    more = f" and {len(lines) - 1} more in one kernel" if len(lines) > 1 else ""
    return place(first.file, first.number) + more


def _module(event: FunctionEvent) -> str:
    modules = common_modules(event.calls)
    if not modules:
        return "no module"
    inner = modules[-1]
    return f"{modules[0].kind}.{inner}" if inner.name else inner.kind


def _phase(event: FunctionEvent) -> str:
    found = {"backward" if call.backward else "forward" for call in event.calls}
    return " and ".join(sorted(found, reverse=True)) or "unknown"


def _kernel(event: FunctionEvent) -> tuple[str, str, str]:
    names = [call.name for call in event.calls]
    label = event.name if len(names) < 2 else f"kernel of {len(names)} calls"
    return "kernel", label, ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names[1:] else ""


def _module_path(event: FunctionEvent) -> Iterator[tuple[str, str, str]]:
    yield "phase", _phase(event), ""
    around = ""
    for layer in common_modules(event.calls):
        label = layer.name.removeprefix(f"{around}.")
        around = layer.name
        yield "module", f"{label} ({layer.kind})" if label else layer.kind, layer.name
    yield "line", _line(event).rpartition("/")[2], _line(event)
    yield _kernel(event)


def _line_path(event: FunctionEvent) -> Iterator[tuple[str, str, str]]:
    yield "phase", _phase(event), ""
    for line in reversed(event.calls[0].place.lines if event.calls else ()):
        where = place(line.file, line.number)
        yield "line", f"{line.function} {where.rpartition('/')[2]}", where
    yield _kernel(event)
