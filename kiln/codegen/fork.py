"""What is done around a fork, in an order that does not depend on who was imported first.

    before:          what is pending is run -> the compiling thread rests -> the generator's lock is taken
    after, in both:  the same backwards

Each waits for threads that may need what comes after it, which nobody holds yet. Several threads may fork at
once, and Ctrl-C may come in the middle: then all of it is done again, and CPython reports the interrupt and
goes on. So each step is done once for a thread however often it is called, and taken back if it was done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from kiln import _core
from kiln.tuples import NamedTuple

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
    errors = []  # of what was pending: the fork comes all the same
    for place in (PENDING, THREAD, GENERATOR):  # what runs may register what comes after it
        if place in _steps:
            try:
                _steps[place].before()
            except Exception as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _in_parent() -> None:
    for place in sorted(_steps, reverse=True):
        _steps[place].in_parent()


def _in_child() -> None:
    for place in sorted(_steps, reverse=True):  # each starts anew, what was registered meanwhile too
        _steps[place].in_child()


os.register_at_fork(
    before=partial(_core.call_whole, _before),
    after_in_parent=partial(_core.call_whole, _in_parent),
    after_in_child=partial(_core.call_whole, _in_child),
)
