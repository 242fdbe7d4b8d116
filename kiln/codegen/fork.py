"""What is done around a fork, in an order that does not depend on who was imported first.

    before:          what is pending is run -> the compiling thread rests -> the generator's lock is taken
    after, in both:  the same backwards

Each waits for threads that may need what comes after it, which nobody holds yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

PENDING, THREAD, GENERATOR = range(3)


class _Steps(NamedTuple):
    before: Callable[[], object]
    in_parent: Callable[[], object]
    in_child: Callable[[], object]


_steps: dict[int, _Steps] = {}


def at_fork(
    place: int, before: Callable[[], object], in_parent: Callable[[], object], in_child: Callable[[], object]
) -> None:
    """Registers what one part does, at its place in the order."""
    _steps[place] = _Steps(before, in_parent, in_child)


def _before() -> None:
    for place in sorted(_steps):
        _steps[place].before()


def _in_parent() -> None:
    for place in sorted(_steps, reverse=True):
        _steps[place].in_parent()


def _in_child() -> None:
    for place in sorted(_steps, reverse=True):
        _steps[place].in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
