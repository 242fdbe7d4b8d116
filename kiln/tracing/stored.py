"""The op of a program that was read before: the core knows it by its identity, and finds what it compiled.

What follows its steps is read when it is asked for: a gradient that is not on disk, a graph, vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.table.record import REQUIRED, Op, Param


def parameters(numbers: int) -> tuple[Param, ...]:
    """The parameters of a program's op: tensors, then what it draws."""
    tensors = Param("tensors", "L", REQUIRED)
    return (tensors, Param("numbers", "Z", REQUIRED)) if numbers else (tensors,)


class StoredOp(Op):
    """An op whose steps are elsewhere: `whole` gives the op that has them."""

    __slots__ = ("_found", "_whole", "structure")

    def __init__(
        self, name: str, identity: str, tensors: int, numbers: int, whole: Callable[[], Any]
    ) -> None:
        self._whole, self._found = whole, None
        self.structure = (tensors, numbers) if numbers else (tensors,)
        super().__init__(name, "composite", parameters(numbers), self._traced, listed=False)
        self.identity = identity
        self.public = False

    def whole(self) -> Any:
        """The op with its steps."""
        if self._found is None:
            self._found = self._whole()
        return self._found

    def make_function(self, structure: tuple[Any, ...]) -> Any:
        """What the core asks for."""
        return self.whole().make_function(structure)

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        return self.whole().body(*args, **kwargs)
