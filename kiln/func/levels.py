"""The functions being mapped on this thread, outermost first; what a transform gives."""

from __future__ import annotations

from _thread import _local
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from kiln import _core

RANDOMNESS = ("error", "same", "different")


class Level:
    """One run of a mapped function: how deep it is, the size of its batch, what random numbers are."""

    __slots__ = ("alive", "number", "randomness", "size")

    def __init__(self, number: int, size: int, randomness: str) -> None:
        self.number, self.size, self.randomness = number, size, randomness
        self.alive = True


class _Levels(_local):
    def __init__(self) -> None:
        self.levels: list[Level] = []


_levels = _Levels()


def levels() -> list[Level]:
    """The levels there are, outermost first."""
    return _levels.levels


@contextmanager
def mapping(size: int, randomness: str) -> Iterator[Level]:
    """One level more, while a function of one sample runs."""
    level = Level(len(_levels.levels) + 1, size, randomness)
    _levels.levels.append(level)
    _core.hold_turns(1)  # of kiln.batching.map, which a transform knows nothing of
    try:
        yield level
    finally:
        _core.hold_turns(-1)
        level.alive = False
        _levels.levels.pop()


def callable_like(func: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """What a transform made of a function, under its name. Its errors show no lines of kiln's."""
    if hasattr(func, "__name__"):
        made = wraps(func)(made)
        vars(made).pop("__kiln_name__", None)  # the errors are those of the transform
    return _core.Function(made, True)
