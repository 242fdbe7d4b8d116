"""Modules made without drawing starting values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from kiln.nn.module import Module
from kiln.table.callables import name_all as _name_all

M = TypeVar("M", bound=Module)


def skip_init(module_cls: Callable[..., M], *args: Any, **kwargs: Any) -> M:
    """A module of a class, whose parameters and buffers have any values: for who fills them at once.

    `device` goes to the class, as the other arguments. RuntimeError for a class that is no Module, or whose
    constructor takes no `device`.

    >>> import kiln
    >>> layer = kiln.nn.utils.skip_init(kiln.nn.Linear, 5, 1)
    >>> layer.weight.shape
    kiln.Size([1, 5])
    """
    if not isinstance(module_cls, type) or not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    made: Any = module_cls(*args, **kwargs)
    made.to_empty(device=kwargs.get("device", "cpu"))
    module: M = made
    return module


_name_all(globals(), __name__)
