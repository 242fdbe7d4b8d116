"""What a user looks at: `graph` draws the graph behind a tensor. It is read when it is first asked for, as
`kiln.profile` lives here too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kiln.absent import no_attribute

if TYPE_CHECKING:
    from kiln.viz.drawing import Drawing as Drawing
    from kiln.viz.drawing import graph as graph

__all__ = ["Drawing", "graph"]


def _found(name: str) -> Any:
    """`__getattr__`, which type checkers do not see."""
    if name not in __all__:
        no_attribute(__name__, name)
    globals()[name] = value = getattr(import_module("kiln.viz.drawing"), name)
    return value


if not TYPE_CHECKING:
    __getattr__ = _found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
