"""How long the arrays of a plan live, as a picture: a row each, from the launch that writes it to the last
that reads it, and below what lives at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple

from kiln.viz import theme, words

_COLOURS = {
    "input": ("#d3f0d9", "#3f9a5b"),
    "temporary": ("#dceafc", "#5b93d6"),
    "output": ("#fff0b3", "#cda11e"),
}
_LEFT, _ROW, _CHART, _MARGIN = 130.0, 19.0, 90.0, 12.0
_MOST = 60  # rows; of more, the largest


class Array(NamedTuple):
    """An array of a plan: "input", "output" or "temporary", its size in bytes, and as text, and the first
    and the last launch that need it.
    """

    name: str
    kind: str
    nbytes: int
    size: str
    first: int
    last: int


def lives(arrays: Sequence[Array], launches: Sequence[str], title: str) -> str:
    """The text of the SVG file."""
    shown = sorted(sorted(arrays, key=lambda a: -a.nbytes)[:_MOST], key=list(arrays).index)
    count = max(len(launches), 1)
    step = min(max(560.0 / count, 4.0), 90.0)
    name = theme.new_name()
    width, top = _LEFT + step * count + 110.0 + 2 * _MARGIN, 2 * _MARGIN + 16
    below = top + _ROW * len(shown) + 26
    height = below + _CHART + 40
    rules = [("text", theme.INK, theme.DARK_INK)]
    for kind, (fill, border) in _COLOURS.items():
        rules.append((f".{kind}", fill, theme.mixed(border, theme.DARK_PAGE, 0.72)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{theme.FONT}" font-size="11" role="img" '
        f'aria-label="memory of a plan">',
        theme.style(name, rules),
        f'<text x="{_MARGIN:.0f}" y="{_MARGIN + 8:.0f}" font-size="13" font-weight="600" fill="{theme.INK}">'
        f"{escape(title)}</text>",
    ]
    for k, a in enumerate(shown):
        y = top + _ROW * k
        first, last = (0, count - 1) if a.kind == "input" else (a.first, a.last)
        fill, border = _COLOURS[a.kind]
        told = f"{a.name}: {words.amount(a.nbytes)} ({a.size}), launches {first} to {last}"
        x, wide = _LEFT + step * first, step * (last - first + 1)
        parts.append(
            f'<text x="{_LEFT - 8:.0f}" y="{y + 13:.1f}" text-anchor="end" fill="{theme.INK}">'
            f"{escape(words.printable(a.name, 20))}</text>"
            f'<g><title>{escape(told)}</title><rect class="{a.kind}" x="{x:.1f}" y="{y + 2:.1f}" '
            f'width="{wide:.1f}" height="{_ROW - 4:.1f}" rx="3" fill="{fill}" stroke="{border}"/></g>'
            f'<text x="{_LEFT + step * count + 8:.1f}" y="{y + 13:.1f}" fill="{theme.INK}">'
            f"{words.amount(a.nbytes)}</text>"
        )
    parts += _together(arrays, launches, step, below)
    return "\n".join([*parts, "</svg>", ""])


def held_at_once(arrays: Sequence[Array], launches: int) -> list[int]:
    """The bytes of temporaries at each launch."""
    more = [0] * (launches + 1)  # than at the launch before
    for a in arrays:
        if a.kind == "temporary":
            more[a.first] += a.nbytes
            more[a.last + 1] -= a.nbytes
    return list(accumulate(more[:-1]))


def _together(arrays: Sequence[Array], launches: Sequence[str], step: float, top: float) -> list[str]:
    """Columns: the bytes of temporaries at each launch, and the line of all of them together."""
    held = held_at_once(arrays, len(launches))
    total = sum(a.nbytes for a in arrays if a.kind == "temporary")
    fill, border = _COLOURS["temporary"]
    end = _LEFT + step * len(launches)
    parts = [
        _text(_LEFT - 8, top + 12, "temporaries", "end"),
        _text(_LEFT - 8, top + 27, "at once", "end"),
        f'<path d="M{_LEFT:.1f} {top + _CHART:.1f} H{end:.1f}" stroke="{theme.GREY}"/>',
    ]
    for k, (n, told) in enumerate(zip(held, launches)):
        high = _CHART * n / total if total else 0.0
        tip = f"launch {k}: {told}\n{words.amount(n)} in temporaries"
        parts.append(
            f'<g><title>{escape(tip)}</title><rect class="temporary" x="{_LEFT + step * k + 0.5:.1f}" '
            f'y="{top + _CHART - high:.1f}" width="{max(step - 1, 1):.1f}" height="{high:.1f}" fill="{fill}" '
            f'stroke="{border}"/></g>'
        )
    if total:
        parts.append(
            f'<path d="M{_LEFT:.1f} {top:.1f} H{end:.1f}" stroke="{theme.GREY}" stroke-dasharray="4 3"/>'
            + _text(end + 8, top + 4, f"{words.amount(total)} without reuse")
        )
        peak = max(held)
        y = top + _CHART - _CHART * peak / total
        parts.append(
            f'<text x="{end + 8:.1f}" y="{max(y + 4, top + 19):.1f}" fill="{theme.INK}">'
            f"{words.amount(peak)} with reuse</text>"
        )
    parts.append(
        f'<text x="{_LEFT:.1f}" y="{top + _CHART + 16:.1f}" fill="{theme.INK}">launches, in order</text>'
    )
    return parts


def _text(x: float, y: float, told: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{theme.INK}">{escape(told)}</text>'
