"""What a user looks at: `graph` draws the graph behind a tensor, `curves` how numbers went along training.
They are read when they are first asked for, as `kiln.profile` and `kiln.summary` live here too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kiln.absent import hidden, no_attribute

if TYPE_CHECKING:
    from kiln.viz.chart import Curves as Curves
    from kiln.viz.chart import curves as curves
    from kiln.viz.drawing import Drawing as Drawing
    from kiln.viz.drawing import graph as graph

__all__ = ["Curves", "Drawing", "curves", "graph"]


def _found(name: str) -> Any:
    """`__getattr__`, which type checkers do not see."""
    if name not in __all__:
        no_attribute(__name__, name)
    module = "chart" if name.lower() == "curves" else "drawing"
    globals()[name] = value = getattr(import_module(f"kiln.viz.{module}"), name)
    return value


if not TYPE_CHECKING:
    __getattr__ = hidden(_found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
