"""Automatic batching: `with kiln.batching():`, and `kiln.batching.map` across values that are read.

A program is written for one sample, with loops, recursion and branches as it likes, and called for many:

    with kiln.batching():
        losses = [loss(model(tree)) for tree in trees]
        kiln.stack(losses).sum().backward()

Calls of ops inside wait; where a value is needed, those that are alike run together, as one call on rows.
Values and gradients have the bits they have without the block; gradients of gradients agree within rounding.
"""

import sys
from types import ModuleType

from kiln.batching.explained import explain as explain
from kiln.batching.map import map as map
from kiln.capture.batched import Batching as Batching


class _Callable(ModuleType):
    def __call__(self) -> Batching:
        return Batching()

    __call__.__qualname__ = "batching"  # as Python's errors name it


sys.modules[__name__].__class__ = _Callable
