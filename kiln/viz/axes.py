"""An axis of a chart: numbers to pixels, and where its marks stand."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, inf, isfinite, log10


class Axis:
    """From `low` to `high`, linear or logarithmic, on pixels from `start` to `end`."""

    def __init__(self, low: float, high: float, log: bool, start: float, end: float) -> None:
        self.log, self.start, self.end = log, start, end
        if log:
            low, high = log10(low), log10(high)
        if not high > low:  # one value: room on both sides
            room = abs(low) * 0.05 or 0.5
            low, high = low - room, high + room
        self.low, self.high = low, high

    def at(self, value: float) -> float:
        """The pixel of a value."""
        value = log10(value) if self.log else value
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int) -> Iterator[tuple[float, str]]:
        """Round values with their words, about so many."""
        if self.log and self.high - self.low >= 1:
            first, last = ceil(self.low - 1e-9), floor(self.high + 1e-9)
            for exponent in range(first, last + 1, max(1, round((last - first) / about))):
                yield 10.0**exponent, _decade(exponent)
            return
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        step = _round_step((high - low) / about)
        digits = max(0, -floor(log10(step) + 1e-9))
        for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1):
            value = k * step
            if not self.log or value > 0:
                yield value, number(value, digits)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** floor(log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def _decade(exponent: int) -> str:
    return number(10.0**exponent, max(0, -exponent)) if -4 < exponent < 5 else f"1e{exponent}"


def number(value: float, digits: int) -> str:
    """A round value in few characters."""
    if value and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:.{digits}f}" if abs(value) > 1e-12 else "0"


def extent(values: Iterator[float], log: bool) -> tuple[float, float] | None:
    """The least and the largest of finite values (on a logarithmic axis, of positive ones)."""
    low, high = inf, -inf
    for value in values:
        if isfinite(value) and (value > 0 or not log):
            low, high = min(low, value), max(high, value)
    return (low, high) if low <= high else None
