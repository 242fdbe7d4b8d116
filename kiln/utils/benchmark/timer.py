"""`Timer`: how long a statement takes, with as many threads as it says."""

from __future__ import annotations

import sys
import textwrap
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn

from kiln import _core
from kiln.utils.benchmark.measurement import Measurement, TaskSpec

timer: Callable[[], float] = timeit.default_timer

MOST_OVERHEAD = 1e-4  # of a block of calls: what the loop around them may take
MOST_CALLS = 1 << 30


class Language(Enum):
    """What a statement is written in."""

    PYTHON = 0
    CPP = 1


@contextmanager
def set_torch_threads(n: int) -> Iterator[None]:
    """Within the block, `n` threads compute."""
    before = _core.get_num_threads()
    _core.set_num_threads(n)
    try:
        yield
    finally:
        _core.set_num_threads(before)


class Timer:
    """Measures a statement, a text, after a setup that is not measured.

    `globals` are its names; kiln is among them, as `torch` too. `label`, `sub_label`, `description` and `env`
    say what it is in tables. ValueError for what is no text; NotImplementedError for C++.

    >>> found = kiln.utils.benchmark.Timer("x + 1", globals={"x": kiln.ones(2)}).timeit(5)
    >>> found.number_per_run, len(found.times), found.median > 0
    (5, 1, True)
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = timer,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: Language | str = Language.PYTHON,
    ) -> None:
        if not isinstance(stmt, str):
            raise ValueError("Currently only a `str` stmt is supported.")
        if language not in (Language.PYTHON, "py", "python"):
            raise NotImplementedError(f"Timer: statements are Python's, got language={language!r}")
        if global_setup:
            raise ValueError(
                f"global_setup is C++ only, got `{global_setup}`. Most likely this code can simply be moved "
                "to `setup`."
            )
        stmt, setup = (textwrap.dedent(text).strip("\n").rstrip() for text in (stmt, setup))
        library = sys.modules["kiln"]
        names = {"kiln": library, "torch": sys.modules.get("torch", library), **(globals or {})}
        self._clock = timer
        self._timer = timeit.Timer(stmt, setup, timer, names)
        self._task_spec = TaskSpec(stmt, setup, global_setup, label, sub_label, description, env, num_threads)

    def timeit(self, number: int = 1000000) -> Measurement:
        """One run of `number` calls, after a hundredth as many (2 at least) that are not measured."""
        with set_torch_threads(self._task_spec.num_threads):
            self._timer.timeit(max(number // 100, 2))
            return Measurement(number, [self._timer.timeit(number)], self._task_spec)

    def blocked_autorange(
        self, callback: Callable[[int, float], NoReturn] | None = None, min_run_time: float = 0.2
    ) -> Measurement:
        """Runs of so many calls that the loop does not count, for `min_run_time` seconds in all.

        `callback(calls, seconds)` is called after each run.
        """
        number = self._calls(min_run_time)
        times = self._runs(number, min_run_time, callback, lambda found, total: total < min_run_time)
        return Measurement(number, times, self._task_spec)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Callable[[int, float], NoReturn] | None = None,
    ) -> Measurement:
        """As `blocked_autorange`, until the interquartile range is below `threshold` of the median, or for
        `max_run_time` seconds.
        """
        number = self._calls(min_run_time=0.05)

        def goes_on(times: list[float], total: float) -> bool:
            if total < min_run_time or len(times) < 4 and total < max_run_time:
                return True
            settled = Measurement(number, times, self._task_spec).meets_confidence(threshold)
            return not settled and total < max_run_time

        return Measurement(number, self._runs(number, min_run_time, callback, goes_on), self._task_spec)

    def _calls(self, min_run_time: float) -> int:
        """How many calls a run has."""
        with set_torch_threads(self._task_spec.num_threads):
            loop = min(timeit.Timer("pass", timer=self._clock).timeit(1) for _ in range(5))
            number = 1
            while number < MOST_CALLS:
                taken = self._timer.timeit(number)
                small = taken > 0 and loop / taken <= MOST_OVERHEAD
                if (small and taken >= min_run_time / 1000) or taken > min_run_time:
                    break
                number *= 10
        return number

    def _runs(
        self,
        number: int,
        least: float,
        callback: Callable[[int, float], Any] | None,
        goes_on: Callable[[list[float], float], bool],
    ) -> list[float]:
        times: list[float] = []
        total = 0.0
        with set_torch_threads(self._task_spec.num_threads):
            self._timer.timeit(max(number // 100, 2))
            while not times or goes_on(times, total):
                taken = self._timer.timeit(number)
                times.append(taken)
                total += taken
                if callback is not None:
                    callback(number, taken)
        return times

    def collect_callgrind(self, *args: Any, **kwargs: Any) -> NoReturn:
        """NotImplementedError: no instructions are counted; `blocked_autorange` measures time."""
        raise NotImplementedError(
            "Timer.collect_callgrind: kiln counts no instructions; Timer.blocked_autorange measures time"
        )
