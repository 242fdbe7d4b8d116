"""Where the time went: launches and seconds per function."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

from kiln import _core


class Line(NamedTuple):
    """The launches of one function's kernels, and the seconds they took."""

    name: str
    launches: int
    seconds: float


class profile:
    """Counts kernel launches and their time between entry and exit; printed, a table by time.

    >>> x = kiln.ones(1000)
    >>> with kiln.profile() as p:
    ...     y = (x * 2).sum()
    >>> [(line.name, line.launches) for line in p.lines if line.name == "mul"]
    [('mul', 1)]
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def __enter__(self) -> profile:
        _core.flush()
        _core.profile_start(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _core.flush()
        self.lines = sorted(
            (Line(*line[:3]) for line in _core.profile_stop()), key=lambda line: -line.seconds
        )

    @property
    def launches(self) -> int:
        """All launches."""
        return sum(line.launches for line in self.lines)

    @property
    def seconds(self) -> float:
        """The time spent in kernels."""
        return sum(line.seconds for line in self.lines)

    def __repr__(self) -> str:
        width = max([len(line.name) for line in self.lines] + [8])
        rows = [f"{'function':{width}}  launches  total ms   mean us      %"]
        for line in self.lines:
            mean = line.seconds / line.launches * 1e6
            share = 100 * line.seconds / max(self.seconds, 1e-12)
            times = f"{line.seconds * 1e3:8.2f}  {mean:8.2f}  {share:5.1f}"
            rows.append(f"{line.name:{width}}  {line.launches:8}  {times}")
        rows.append(f"{'all':{width}}  {self.launches:8}  {self.seconds * 1e3:8.2f}")
        return "\n".join(rows)
