"""The functions being mapped on this thread, outermost first."""

from __future__ import annotations

from _thread import _local
from collections.abc import Iterator
from contextlib import contextmanager

RANDOMNESS = ("error", "same", "different")


class Level:
    """One run of a mapped function: how deep it is, the size of its batch, what random numbers are."""

    __slots__ = ("alive", "number", "randomness", "size")

    def __init__(self, number: int, size: int, randomness: str) -> None:
        self.number, self.size, self.randomness = number, size, randomness
        self.alive = True


class _State(_local):
    def __init__(self) -> None:
        self.levels: list[Level] = []


_state = _State()


def levels() -> list[Level]:
    """The levels there are, outermost first."""
    return _state.levels


@contextmanager
def mapping(size: int, randomness: str) -> Iterator[Level]:
    """One level more, while a function of one sample runs."""
    level = Level(len(_state.levels) + 1, size, randomness)
    _state.levels.append(level)
    try:
        yield level
    finally:
        level.alive = False
        _state.levels.pop()
