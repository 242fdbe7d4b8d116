"""Colours on a light and on a dark page: a picture's own attributes are those of a light one, and a style in it
changes them where the page, or without one the reader's system, is dark.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
GREY = "#8a93a0"  # on white and on black
INK, FAINT = "#16202c", "#465160"
DARK_PAGE, DARK_INK, DARK_FAINT = "#15191f", "#e8edf3", "#aab4c0"

# How pages say that they are dark or light: Jupyter, VS Code, Sphinx and other sites.
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


def style(name: str, dark: Iterable[tuple[str, str]], more: str = "") -> str:
    """The style of the picture whose class is `name`: rules for a dark page, as (selector, declarations)."""
    rules = list(dark)
    by_system = "".join(f".{name}:not({_LIGHT} *) {part}{{{look}}}" for part, look in rules)
    by_page = "".join(f"{_DARK} .{name} {part}{{{look}}}" for part, look in rules)
    return f"<style>{more}@media (prefers-color-scheme:dark){{{by_system}}}{by_page}</style>"


def mixed(colour: str, other: str, share: float) -> str:
    """`colour` with so much of `other` in it."""
    pairs = zip(_parts(colour), _parts(other))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _parts(colour: str) -> list[int]:
    return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
