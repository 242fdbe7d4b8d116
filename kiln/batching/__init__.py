"""Automatic batching: `with kiln.batching():`, and `kiln.batching.map` across values that are read."""

import sys
from types import ModuleType

from kiln.batching.context import Batching as Batching
from kiln.batching.map import map as map


class _Callable(ModuleType):
    def __call__(self) -> Batching:
        return Batching()


sys.modules[__name__].__class__ = _Callable
