"""Colours on a light and on a dark page. A picture's attributes are those of a light one, which every
reader of SVG understands; a style in it exchanges them where the page is dark, for those that know CSS.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
GREY = "#8a93a0"  # on white and on black
INK, FAINT = "#16202c", "#465160"
DARK_PAGE, DARK_INK, DARK_FAINT = "#15191f", "#e8edf3", "#aab4c0"

# How pages say that they are dark or light without CSS's own word for it: Jupyter, VS Code, Sphinx, GitHub.
_DARK = (
    ':is([data-jp-theme-light="false"],.vscode-dark,[data-vscode-theme-kind="vscode-dark"],'
    '[data-theme="dark"],[data-color-mode="dark"],html.dark)'
)
_LIGHT = (
    ':is([data-jp-theme-light="true"],.vscode-light,[data-vscode-theme-kind="vscode-light"],'
    '[data-theme="light"],[data-color-mode="light"],html.light)'
)
_numbers = count(1)


def new_name() -> str:
    """A name for ids and classes of one picture: several may stand on a page."""
    return f"kiln-{next(_numbers)}"


def style(name: str, rules: Iterable[tuple[str, str, str]], more: str = "") -> str:
    """The style of the picture whose class is `name`: fills as (selector, on a light page, on a dark one).

    A page is dark where CSS says so of it (`color-scheme`), or one of the marks above does; a picture that
    is a file of its own, where the reader's system or the page that shows it is.
    """
    fills = "".join(f".{name} {part}{{fill:light-dark({light},{dark})}}" for part, light, dark in rules)
    pages = f"{_DARK} .{name}{{color-scheme:dark}}{_LIGHT} .{name}{{color-scheme:light}}"
    return f"<style>{more}{fills}svg.{name}:root{{color-scheme:light dark}}{pages}</style>"


def mixed(colour: str, other: str, share: float) -> str:
    """`colour` with so much of `other` in it."""
    pairs = zip(_parts(colour), _parts(other))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _parts(colour: str) -> list[int]:
    return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
