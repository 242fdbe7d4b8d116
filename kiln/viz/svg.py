"""A picture as SVG text: readable on a light and on a dark page, details in tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kiln.viz import theme, words
from kiln.viz.layout import Layout, Point
from kiln.viz.picture import Box, Picture

# kind -> fill, border, what the legend calls it
COLOURS = {
    "leaf": ("#d3f0d9", "#3f9a5b", "leaf"),
    "data": ("#f4f5f7", "#98a1ad", "no gradient"),
    "pointwise": ("#dceafc", "#5b93d6", "pointwise"),
    "product": ("#fde4cc", "#dd8a3e", "product"),
    "reduction": ("#e8dff8", "#9474d0", "reduction"),
    "op": ("#d8f0f2", "#3f9ea8", "other op"),
    "view": ("#e6eaef", "#8493a5", "view"),
    "write": ("#fbdada", "#d3606a", "in-place write"),
    "function": ("#fadcef", "#c765a6", "your Function"),
    "chain": ("#e4e7f4", "#6f7bb0", "chain of ops"),
    "module": ("#d5e3f7", "#3f72b8", "module"),
    "graph": ("#dfe7df", "#5f8a6b", "graph that is run"),
    "saved": ("#fffbe8", "#b9a55a", "saved"),
    "more": ("#f4f5f7", "#98a1ad", "left out"),
    "given": ("#f4f5f7", "#98a1ad", "given"),
    "result": ("#fff0b3", "#cda11e", "result"),
}
_DASHED = ("data", "saved", "more", "given")
_TITLE, _LINE = 13.0, 11.0  # sizes of type
_MARGIN = 12.0
_GREY = theme.GREY


def size_of(box: Box) -> tuple[float, float]:
    """The width and height of a box, by its text."""
    widest = words.width(box.title, _TITLE, bold=True)
    widest = max([widest, *(words.width(line, _LINE) for line in box.lines)])
    return round(max(widest + 20.0, 34.0), 1), 13.0 + _TITLE + 14.5 * len(box.lines)


def svg(picture: Picture, layout: Layout, opens: dict[int, str] | None = None) -> str:
    """The text of the SVG file; `opens`: boxes that are links, to the ids of parts of a page."""
    name = theme.new_name()
    sizes = [size_of(box) for box in picture.boxes]
    kinds = [kind for kind in COLOURS if any(box.kind == kind for box in picture.boxes)]
    legend, legend_width = _legend(kinds)
    note_width = words.width(picture.note, _LINE)
    width = max(layout.width, legend_width, note_width) + 2 * _MARGIN
    shift = (width - layout.width) / 2
    below = layout.height + 2 * _MARGIN + 10
    height = below + 14 + (20 if picture.note else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{theme.FONT}" role="img" '
        f'aria-label="graph of recorded operations">',
        theme.style(name, _rules(kinds)),
        f'<defs><marker id="kiln-arrow" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0.8 L8 4 L0 7.2 z" fill="{_GREY}"/></marker></defs>',
        f'<g transform="translate({shift:.1f} {_MARGIN:.1f})">',
        f'<g fill="none" stroke="{_GREY}" stroke-width="1.3">',
    ]
    parts += _paths(picture, layout.curves)
    parts.append("</g>")
    for k, drawn in enumerate(zip(picture.boxes, sizes, layout.centres)):
        box = _box(*drawn)
        parts.append(f'<a href="#{opens[k]}">{box}</a>' if opens and k in opens else box)
    parts.append("</g>")
    parts.append(
        f'<g transform="translate({_MARGIN:.1f} {below:.1f})" font-size="{_LINE:.0f}" fill="{_GREY}">'
    )
    parts += legend
    if picture.note:
        parts.append(f'<text x="0" y="30">{escape(picture.note)}</text>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _rules(kinds: Sequence[str]) -> list[tuple[str, str, str]]:
    """Fills on a light and on a dark page."""
    rules = [("g[class] text", theme.INK, theme.DARK_INK), ("g[class] .line", theme.FAINT, theme.DARK_FAINT)]
    for kind in kinds:
        fill, border, _ = COLOURS[kind]
        dark = theme.mixed(border, theme.DARK_PAGE, 0.72)
        rules += [(f".{kind} rect", fill, dark), (f"rect.{kind}", fill, dark)]
    return rules


def _paths(picture: Picture, curves: Sequence[Sequence[Point]]) -> list[str]:
    """The arrows; pieces that several have in common are drawn once."""
    paths = []
    drawn: set[tuple[Point, ...]] = set()
    for arrow, points in zip(picture.arrows, curves):
        pieces = [tuple(points[k : k + 4]) for k in range(0, len(points) - 3, 3)]
        while len(pieces) > 1 and pieces[0] in drawn:
            del pieces[0]
        drawn.update(pieces)
        d = f"M{_at(pieces[0][0])} C" + " ".join(_at(p) for piece in pieces for p in piece[1:])
        kept = picture.boxes[arrow.source].kind == "saved"
        look = ' stroke-dasharray="2 3"' if kept else ' marker-end="url(#kiln-arrow)"'
        tip = f"<title>{escape(arrow.tip)}</title>" if arrow.tip else ""
        paths.append(f'<path d="{d}"{look}>{tip}</path>')
    return paths


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _box(box: Box, size: tuple[float, float], centre: Point) -> str:
    fill, border, _ = COLOURS[box.kind]
    (width, height), (x, y) = size, centre
    left, top = x - width / 2, y - height / 2
    dashed = ' stroke-dasharray="4 3"' if box.kind in _DASHED else ""
    round_ = height / 2 if box.kind in ("leaf", "result") else 5
    texts = [
        f'<text y="{top + 6 + _TITLE:.1f}" x="{x:.1f}" font-size="{_TITLE:.0f}" font-weight="600" '
        f'fill="{theme.INK}">{escape(box.title)}</text>'
    ]
    for k, line in enumerate(box.lines):
        texts.append(
            f'<text y="{top + 20.5 + _TITLE + 14.5 * k:.1f}" x="{x:.1f}" font-size="{_LINE:.0f}" '
            f'class="line" fill="{theme.FAINT}">{escape(line)}</text>'
        )
    return (
        f'<g text-anchor="middle" class="{box.kind}"><title>{escape(box.tip)}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}" rx="{min(round_, 14):.0f}" fill="{fill}" '
        f'stroke="{border}" stroke-width="1.3"{dashed}/>{"".join(texts)}</g>'
    )


def _legend(kinds: list[str]) -> tuple[list[str], float]:
    """A row of small boxes with what their colours mean, and how wide it is."""
    parts, x = [], 0.0
    for kind in kinds:
        fill, border, name = COLOURS[kind]
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="1" width="12" height="10" rx="3" fill="{fill}" '
            f'stroke="{border}"/>'
            f'<text x="{x + 17:.1f}" y="10">{name}</text>'
        )
        x += 17 + words.width(name, _LINE) + 14
    return parts, x
