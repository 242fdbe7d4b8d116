"""`kiln.viz.curves`: how numbers went along training, as a picture; nothing else is needed to draw it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite, nan
from typing import Any

from kiln import _core
from kiln.errors import describe, message
from kiln.files import write_atomically
from kiln.table.callables import hide_frames
from kiln.viz import theme, words
from kiln.viz.axes import Axis, extent, number

# on white and on black
_COLOURS = (
    "#3b82d6", "#e0782f", "#2f9a5f", "#c2509b", "#8a6fd1", "#b3902a", "#2c9fae", "#d4525e",
)  # fmt: skip
_TYPE = 11.0
_LEFT, _RIGHT, _TOP, _BELOW = 58.0, 16.0, 16.0, 34.0

Series = tuple[str, list[float], list[float]]  # name, xs, ys


class Curves:
    """A chart of curves; it shows itself in a notebook. It holds text only."""

    def __init__(self, svg: str, summary: str) -> None:
        self.svg, self._summary = svg, summary

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the chart to a file that ends in .svg, in one move; ValueError for another ending."""
        if os.path.splitext(os.fspath(path))[1].lower() != ".svg":
            raise ValueError(message("save", "a path that ends in .svg", repr(os.fspath(path))))
        write_atomically(os.fspath(path), iter([self.svg.encode()]))

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return self._summary


def curves(
    series: Any,
    *,
    x: Any = None,
    log: bool | str = False,
    smooth: float = 0.0,
    title: str = "",
    xlabel: str = "step",
    ylabel: str = "",
    width: int = 720,
    height: int = 320,
) -> Curves:
    """A chart of numbers along training: losses, accuracies, learning rates.

    `series`: numbers; numbers by name (a dict); of each name also a dict of value by step, or pairs
    (step, value); or records in order, a list of dicts of numbers, as a training loop appends them: where a
    record has "step" or "epoch" that is its place. Numbers are Python's, NumPy's, or tensors of one
    element; a 1-d tensor is a series. `x` are the steps of plain series, else 0, 1, 2, ...

    `log`: True or "y" for a logarithmic axis, "x", "xy"; what is not positive has no place there. `smooth`
    between 0 and 1: the weight of what came before in a running mean, for each step of the series with most
    values (each curve as it is is drawn thin behind it). NaNs and infinities are gaps. TypeError for other
    series; ValueError without any number to draw.

    >>> chart = kiln.viz.curves({"train": [2.3, 1.1, 0.7], "test": [2.4, 1.3, 1.0]}, title="loss")
    >>> chart
    curves of 2 series (train, test), 3 steps
    >>> chart.svg[:5]
    '<svg '
    """
    axes = "y" if log is True else "" if log is False else log
    if axes not in ("", "x", "y", "xy", "yx"):
        raise ValueError(message("viz.curves", 'log of True, False, "x", "y" or "xy"', repr(log)))
    if not 0 <= smooth < 1:
        raise ValueError(message("viz.curves", "smooth of at least 0 and less than 1", repr(smooth)))
    found = list(_series(series, x))
    chart = _Chart(found, "x" in axes, "y" in axes, smooth, width, height)
    steps = max((len(ys) for _, _, ys in found), default=0)
    names = [words.printable(name, 40) for name, _, _ in found]
    some = f" ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})" if names != [""] else ""
    summary = f"curves of {len(found)} series{some}, {words.several(steps, 'step')}"
    return Curves(chart.svg(title, xlabel, ylabel), summary)


def _series(given: Any, x: Any) -> Iterable[Series]:
    """Names, steps and values of what a user has."""
    if isinstance(given, Mapping):
        for name, values in given.items():
            yield _one(str(name), values, x)
        return
    items = _listed(given)
    if items and all(isinstance(item, Mapping) for item in items):
        by_name: dict[str, tuple[list[float], list[float]]] = {}
        for k, record in enumerate(items):
            place = next((key for key in ("step", "epoch") if key in record), None)
            for name, value in record.items():
                if name != place and _is_number(value):
                    xs, ys = by_name.setdefault(str(name), ([], []))
                    xs.append(_number(record[place]) if place else float(k))
                    ys.append(_number(value))
        for name, (xs, ys) in by_name.items():
            yield name, xs, ys
    elif items and all(_is_series(item) for item in items):
        for k, item in enumerate(items):
            yield _one(str(k), item, x)
    else:
        yield _one("", items, x)


def _one(name: str, values: Any, x: Any) -> Series:
    if isinstance(values, Mapping):
        return name, [_number(k) for k in values], [_number(v) for v in values.values()]
    items = _listed(values)
    if items and all(isinstance(item, (tuple, list)) and len(item) == 2 for item in items):
        return name, [_number(a) for a, _ in items], [_number(b) for _, b in items]
    ys = [_number(item) for item in items]
    xs = [float(k) for k in range(len(ys))] if x is None else [_number(item) for item in _listed(x)]
    if len(xs) != len(ys):
        raise ValueError(message("viz.curves", f"{len(ys)} steps for the values of {name!r}", f"{len(xs)}"))
    return name, xs, ys


def _listed(values: Any) -> list[Any]:
    """A list of what can be gone through; of a tensor or an array its numbers."""
    if isinstance(values, _core.Tensor):
        values = values.detach().tolist()
    elif hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(message("viz.curves", "numbers, or numbers by name", describe(values)))
    return list(values)


def _is_series(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and len(item) != 2 or getattr(item, "ndim", 0) == 1


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, str)


def _number(value: Any) -> float:
    if value is None:
        return nan
    if not _is_number(value):
        raise TypeError(message("viz.curves", "a number", describe(value)))
    return float(value)


def _smoothed(xs: Sequence[float], ys: Sequence[float], weight: float, step: float) -> list[float]:
    """The running mean: mean <- w * mean + (1 - w) * y, divided by the sum of its weights; w is `weight` for
    each `step` since the value before.
    """
    total, weights, before, found = 0.0, 0.0, nan, []
    for x, y in zip(xs, ys):
        if not isfinite(y):
            found.append(nan)
            continue
        w = weight ** max((x - before) / step, 1.0) if x - before > 0 else weight
        before = x
        total = w * total + (1 - w) * y
        weights = w * weights + (1 - w)
        found.append(total / weights)
    return found


def _usual_step(xs: Sequence[float]) -> float:
    """The median of the steps between values; 0 if there are none."""
    steps = sorted(b - a for a, b in zip(xs, xs[1:]) if b > a)
    return steps[len(steps) // 2] if steps else 0.0


class _Chart:
    """Where everything stands."""

    def __init__(
        self, series: list[Series], log_x: bool, log_y: bool, smooth: float, width: int, height: int
    ) -> None:
        self.series, self.smooth, self.width, self.height = series, smooth, width, height
        drawn = [(x, y) for _, xs, ys in series for x, y in zip(xs, ys) if isfinite(x) and isfinite(y)]
        drawn = [(x, y) for x, y in drawn if (x > 0 or not log_x) and (y > 0 or not log_y)]
        across = extent((x for x, _ in drawn), log_x)
        along = extent((y for _, y in drawn), log_y)
        if across is None or along is None:
            raise ValueError(message("viz.curves", "a number to draw", "none that is finite and has a place"))
        if not log_y:  # a little room above and below
            room = (along[1] - along[0]) * 0.04
            along = along[0] - room, along[1] + room
        self._across, self._along = (*across, log_x), (*along, log_y)

    def svg(self, title: str, xlabel: str, ylabel: str) -> str:
        """The text of the chart."""
        name = theme.new_name()
        top = _TOP + (20 if title else 0)
        legend, rows = self._legend(top)
        top += 18 * rows
        self.x = Axis(*self._across, _LEFT, self.width - _RIGHT)
        self.y = Axis(*self._along, self.height - _BELOW, top + 4)
        rules = [("text", theme.FAINT, theme.DARK_FAINT), (".title", theme.INK, theme.DARK_INK)]
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" width="{self.width}" '
            f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" font-family="{theme.FONT}" '
            f'font-size="{_TYPE:.0f}" fill="{theme.FAINT}" role="img" '
            f'aria-label="{escape(title or "curves")}">',
            theme.style(name, rules),
        ]
        if title:
            parts.append(
                f'<text class="title" x="{_LEFT:.0f}" y="{_TOP + 4:.0f}" font-size="14" font-weight="600" '
                f'fill="{theme.INK}">{escape(title)}</text>'
            )
        parts += legend
        parts += self._grid(xlabel, ylabel)
        for k, (label, xs, ys) in enumerate(self.series):
            parts += self._curve(_COLOURS[k % len(_COLOURS)], label, xs, ys)
        return "\n".join([*parts, "</svg>", ""])

    def _legend(self, top: float) -> tuple[list[str], int]:
        """A name for each colour, in rows; none of one series without a name."""
        names = [words.printable(name.replace("\n", " "), 40) for name, _, _ in self.series]
        if names in ([], [""]):
            return [], 0
        parts, x, row = [], _LEFT, 0
        for k, name in enumerate(names):
            wide = 22 + words.width(name, _TYPE) + 14
            if x + wide > self.width - _RIGHT and x > _LEFT:
                x, row = _LEFT, row + 1
            y = top + 2 + 18 * row
            colour = _COLOURS[k % len(_COLOURS)]
            parts.append(
                f'<path d="M{x:.1f} {y:.1f} h16" stroke="{colour}" stroke-width="2.5" '
                f'stroke-linecap="round"/>'
                f'<text x="{x + 22:.1f}" y="{y + 4:.1f}">{escape(name)}</text>'
            )
            x += wide
        return parts, row + 1

    def _grid(self, xlabel: str, ylabel: str) -> list[str]:
        lines, texts = [], []
        bottom, top = self.y.start, self.y.end
        for value, word in self.x.ticks(7):
            at = self.x.at(value)
            lines.append(f"M{at:.1f} {bottom:.1f}V{top:.1f}")
            texts.append(f'<text x="{at:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{word}</text>')
        for value, word in self.y.ticks(5):
            at = self.y.at(value)
            lines.append(f"M{self.x.start:.1f} {at:.1f}H{self.x.end:.1f}")
            texts.append(f'<text x="{self.x.start - 7:.1f}" y="{at + 4:.1f}" text-anchor="end">{word}</text>')
        middle = (self.x.start + self.x.end) / 2
        texts.append(
            f'<text x="{middle:.1f}" y="{self.height - 4:.1f}" text-anchor="middle">{escape(xlabel)}</text>'
        )
        if ylabel:
            across = (bottom + top) / 2
            texts.append(
                f'<text transform="translate(12 {across:.1f}) rotate(-90)" text-anchor="middle">'
                f"{escape(ylabel)}</text>"
            )
        box = f"M{self.x.start:.1f} {top:.1f}V{bottom:.1f}H{self.x.end:.1f}"
        return [
            f'<path d="{"".join(lines)}" stroke="{theme.GREY}" stroke-opacity="0.22" fill="none"/>',
            f'<path d="{box}" stroke="{theme.GREY}" fill="none"/>',
            *texts,
        ]

    def _curve(self, colour: str, label: str, xs: list[float], ys: list[float]) -> list[str]:
        last = next((k for k in range(len(ys) - 1, -1, -1) if isfinite(ys[k])), None)
        if last is None:
            return []
        best = f"least {number(min(y for y in ys if isfinite(y)), 4)}, last {number(ys[last], 4)}"
        tip = f"<title>{escape(', '.join(filter(None, [label, best])))}</title>"
        parts = []
        if self.smooth:
            thin = self._path(xs, ys)
            parts.append(f'<path d="{thin}" fill="none" stroke="{colour}" stroke-opacity="0.3">{tip}</path>')
            step = min((s for s in map(_usual_step, (xs for _, xs, _ in self.series)) if s), default=1.0)
            ys = _smoothed(xs, ys, self.smooth, step)
        line = self._path(xs, ys)
        dots = "".join(f"M{piece}h0" for piece in line.split("M")[1:] if "L" not in piece)
        for d, wide in ((line, 2), (dots, 6)):
            if d:
                parts.append(
                    f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{wide}" '
                    f'stroke-linejoin="round" stroke-linecap="round">{tip}</path>'
                )
        return parts

    def _path(self, xs: list[float], ys: list[float]) -> str:
        """Pieces between gaps; of many values in one pixel the first, the least, the largest and the last."""
        parts: list[str] = []
        column: list[tuple[float, float]] = []
        begins = True

        def put() -> None:
            nonlocal begins
            if not column:
                return
            points = column
            if len(column) > 4:
                wanted = {0, len(column) - 1}
                wanted.add(min(range(len(column)), key=lambda k: column[k][1]))
                wanted.add(max(range(len(column)), key=lambda k: column[k][1]))
                points = [column[k] for k in sorted(wanted)]
            for x, y in points:
                parts.append(f"{'M' if begins else 'L'}{x:.1f} {y:.1f}")
                begins = False
            column.clear()

        for x, y in zip(xs, ys):
            if not isfinite(x) or not isfinite(y) or (self.x.log and x <= 0) or (self.y.log and y <= 0):
                put()
                begins = True
                continue
            point = self.x.at(x), self.y.at(y)
            if column and int(column[0][0]) != int(point[0]):
                put()
            column.append(point)
        put()
        return "".join(parts)


hide_frames(globals(), ("curves",))
