"""What a user looks at: `graph` draws the graph behind a tensor, `curves` how numbers went along training.
They are read when they are first asked for, as `kiln.profile` and `kiln.summary` live here too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kiln.absent import no_attribute

if TYPE_CHECKING:
    from kiln.viz.curves import Curves as Curves
    from kiln.viz.curves import curves as curves
    from kiln.viz.drawing import Drawing as Drawing
    from kiln.viz.drawing import graph as graph

__all__ = ["Curves", "Drawing", "curves", "graph"]


def _found(name: str) -> Any:
    """`__getattr__`, which type checkers do not see."""
    if name not in __all__:
        no_attribute(__name__, name)
    module = import_module(f"kiln.viz.{'curves' if name.lower() == 'curves' else 'drawing'}")
    for own in [own for own in __all__ if hasattr(module, own)]:
        globals()[own] = getattr(module, own)  # also in place of the module of the name
    return globals()[name]


if not TYPE_CHECKING:
    __getattr__ = _found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
