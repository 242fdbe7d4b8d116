"""Times of a statement, and what they say."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

WIDE, VERY_WIDE = 0.1, 0.25  # an interquartile range beside the median: from here on it is told
LEAST_INTERVAL = 25e-9  # seconds: no clock is better
MOST_FIGURES = 4
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
ENGLISH = {"ns": "nanosecond", "us": "microsecond", "ms": "millisecond", "s": "second"}


def select_unit(t: float) -> tuple[str, float]:
    """The unit in which seconds are a number of one to three digits, and its seconds.

    >>> select_unit(3e-5)
    ('us', 1e-06)
    """
    power = math.floor(math.log10(t) / 3) if t > 0 else -3
    unit = {-3: "ns", -2: "us", -1: "ms"}.get(power, "s" if power >= 0 else "ns")
    return unit, UNITS[unit]


def unit_to_english(u: str) -> str:
    """The name of a unit.

    >>> unit_to_english("us")
    'microsecond'
    """
    return ENGLISH[u]


def trim_sigfig(x: float, n: int) -> float:
    """A number with the first `n` of its digits.

    >>> trim_sigfig(123456.0, 3)
    123000.0
    """
    if n != int(n):
        raise AssertionError("Number of significant figures must be an integer")
    return float(f"{x:.{max(int(n), 1) - 1}e}")


def ordered_unique(elements: Iterable[T]) -> list[T]:
    """Each element once, in the order in which they first come.

    >>> ordered_unique("abac")
    ['a', 'b', 'c']
    """
    return list(dict.fromkeys(elements))


@dataclasses.dataclass(init=True, repr=False, eq=True, frozen=True)
class TaskSpec:
    """What was measured."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label, or the statement where there is none."""
        if self.label is not None:
            return self.label + (f": {self.sub_label}" if self.sub_label else "")
        if "\n" not in self.stmt:
            return self.stmt
        return f"stmt:{f' ({self.sub_label})' if self.sub_label else ''}\n{textwrap.indent(self.stmt, '  ')}"

    def setup_str(self) -> str:
        """The setup as it is shown: nothing of one that does nothing."""
        if self.setup in ("", "pass"):
            return ""
        several = "\n" in self.setup
        return f"setup:\n{textwrap.indent(self.setup, '  ')}" if several else f"setup: {self.setup}"

    def summarize(self) -> str:
        """Title, description and setup, each on its lines."""
        parts = filter(None, (self.title, self.description or "", self.setup_str()))
        return "\n".join(f"{part}\n" if "\n" in part else part for part in parts)


def _quantile(times: list[float], part: float) -> float:
    """Of sorted times, between the nearest two."""
    place = part * (len(times) - 1)
    low = math.floor(place)
    high = min(low + 1, len(times) - 1)
    return times[low] + (times[high] - times[low]) * (place - low)


@dataclasses.dataclass(init=True, repr=False)
class Measurement:
    """Seconds of runs of `number_per_run` calls each, and of what. Names of the task are its own too.

    >>> spec = TaskSpec("x + 1", "pass", description="small")
    >>> found = Measurement(10, [1e-4, 1.1e-4, 1.2e-4, 1.3e-4], spec)
    >>> print("\\n".join(repr(found).splitlines()[1:]))
    x + 1
    small
      Median: 11.50 us
      IQR:    1.50 us (10.75 to 12.25)
      4 measurements, 10 runs per measurement, 1 thread
      WARNING: Interquartile range is 13.0% of the median measurement.
               This could indicate system fluctuation.
    """

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in TaskSpec.__dataclass_fields__:
            return getattr(self.task_spec, name)
        raise AttributeError(f"'Measurement' object has no attribute '{name}'", name=name, obj=self)

    @property
    def times(self) -> list[float]:
        """Seconds of one call, by run."""
        return [t / self.number_per_run for t in self.raw_times]

    def _at(self, part: float) -> float:
        return _quantile(sorted(self.times), part) if self.raw_times else -1.0

    @property
    def median(self) -> float:
        """The median of `times`."""
        return self._at(0.5)

    @property
    def mean(self) -> float:
        """The mean of `times`."""
        return sum(self.times) / len(self.raw_times) if self.raw_times else -1.0

    @property
    def iqr(self) -> float:
        """The range that the middle half of `times` is in."""
        return self._at(0.75) - self._at(0.25)

    @property
    def significant_figures(self) -> int:
        """How many digits of the median can be relied upon: 1 to 4, by a 90 % interval of the middle half."""
        times, count = sorted(self.times), len(self.raw_times)
        middle = times[count // 4 : math.ceil(3 * count / 4)]
        mean = sum(middle) / len(middle)
        deviation = math.sqrt(sum((t - mean) ** 2 for t in middle) / len(middle))
        interval = max(1.645 * deviation / math.sqrt(len(middle)), LEAST_INTERVAL)
        return min(max(math.floor(math.log10(self.median / interval)), 1), MOST_FIGURES)

    @property
    def has_warnings(self) -> bool:
        """Whether the times differ so much that it is told."""
        return not self.meets_confidence()

    def meets_confidence(self, threshold: float = WIDE) -> bool:
        """Whether the interquartile range is below this part of the median."""
        return self.iqr / self.median < threshold

    @property
    def title(self) -> str:
        """The task's."""
        return self.task_spec.title

    @property
    def as_row_name(self) -> str:
        """What a row of a table is called."""
        return self.task_spec.sub_label or self.task_spec.stmt or "[Unknown]"

    def __repr__(self) -> str:
        count, (unit, scale) = len(self.raw_times), select_unit(self.median)
        many = count > 1
        lines = [
            f"<kiln.utils.benchmark.Measurement object at {id(self):#x}>",
            self.task_spec.summarize(),
            f"  {'Median: ' if many else ''}{self.median / scale:.2f} {unit}",
        ]
        if count >= 4:
            ends = f"({self._at(0.25) / scale:.2f} to {self._at(0.75) / scale:.2f})"
            lines.append(f"  IQR:    {self.iqr / scale:.2f} {unit} {ends}")
        threads = f"{self.task_spec.num_threads} thread{'s' if self.task_spec.num_threads > 1 else ''}"
        runs = f"{self.number_per_run} runs {'per measurement,' if many else ','} {threads}"
        lines.append(f"  {count} measurement{'s' if many else ''}, {runs}")
        if self.has_warnings:
            very = not self.meets_confidence(VERY_WIDE)
            hint = (
                "suggests significant environmental influence"
                if very
                else "could indicate system fluctuation"
            )
            part = 100 * self.iqr / self.median
            lines.append(f"  WARNING: Interquartile range is {part:.1f}% of the median measurement.")
            lines.append(f"           This {hint}.")
        return "\n".join(lines)

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """One for each task, of the times of all that measured it."""
        found: dict[TaskSpec, list[float]] = {}
        for one in measurements:
            found.setdefault(one.task_spec, []).extend(one.times)
        return [Measurement(1, times, spec) for spec, times in found.items()]
