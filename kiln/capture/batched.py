"""`with kiln.batching():`: calls of ops are put on a list of the core, and run in launches of many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kiln import _core

P = ParamSpec("P")
Result = TypeVar("Result")


class Batching(_core.BatchingSwitch):
    """A block in which calls of ops wait, and those that are alike run together; also a decorator.

    Shapes, dtypes and errors of shapes are there at once. What is pending runs where a value is needed
    (`item`, `print`, NumPy, `backward`, a write) and at the end of the block; after an exception, when it is
    read. Each thread has a list of its own. A call of a function made by `kiln.compile(..., pure=True)`
    is one call that waits; inside a call of another function that `kiln.compile` made nothing is batched.

    >>> w = kiln.ones(2, 3)
    >>> with kiln.batching():
    ...     sums = [(w @ kiln.full((3,), float(n))).sum() for n in range(4)]
    >>> [s.item() for s in sums]
    [0.0, 6.0, 12.0, 18.0]
    """

    def __call__(self, function: Callable[P, Result]) -> Callable[P, Result]:
        """The function, each call of it in such a block."""

        @functools.wraps(function)
        def batched(*args: P.args, **kwargs: P.kwargs) -> Result:
            with self:
                return function(*args, **kwargs)

        return batched
