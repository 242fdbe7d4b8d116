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
_begun: list[_Steps] = []  # what was done before the fork under way, in order


def at_fork(
    place: int, before: Callable[[], object], in_parent: Callable[[], object], in_child: Callable[[], object]
) -> None:
    """Registers what one part does, at its place in the order."""
    _steps[place] = _Steps(before, in_parent, in_child)


def _before() -> None:
    _begun.clear()
    for place in (PENDING, THREAD, GENERATOR):  # what runs may register what comes after it
        if place in _steps:
            step = _steps[place]
            step.before()
            _begun.append(step)


def _in_parent() -> None:
    while _begun:
        _begun.pop().in_parent()


def _in_child() -> None:
    _begun.clear()
    for place in sorted(_steps, reverse=True):  # each starts anew, what was registered meanwhile too
        _steps[place].in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
