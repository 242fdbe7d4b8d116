"""PyTorch's path of a module that runs a traced program."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse
from kiln.fx import GraphModule
from kiln.nn import Module as _Module

__all__ = ["GraphModule"]

_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


class _CodeOnlyModule(_Module):  # torchvision names both
    """A traced module without its graph. NotImplementedError."""

    def __init__(self, body: Any) -> None:
        _refuse("fx.graph_module._CodeOnlyModule")


def _copy_attr(from_module: Any, to_module: Any, target: str) -> None:
    """Copies an attribute by its dotted name, with modules on the way that are missing."""
    *above, last = target.split(".")
    for name in above:
        found, place = getattr(from_module, name), getattr(to_module, name, None)
        if found is place:
            return
        if place is None:
            place = _Module()
            setattr(to_module, name, place)
        from_module, to_module = found, place
    setattr(to_module, last, getattr(from_module, last))


_hint_missing(__name__)
