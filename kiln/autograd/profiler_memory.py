"""What a profile tells of memory: how many bytes came and went, and in which events.

    looks       before the call | kernel 1 | kernel 2 |  before the next call
    held             100        |   164    |   164    |        64
    changes                     |   +64    |    0     |      -100: of the range around, or of none

A look is a moment and the bytes in storages then. Looks are sorted by time, so what another thread takes
or gives back meanwhile is counted with what stands there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kiln.autograd.profiler_events import Change, FunctionEvent


class Held(NamedTuple):
    """A look: the moment, the bytes in storages, and the kernel that has just ended, if one has."""

    time: float
    bytes: int
    event: FunctionEvent | None


def changes_of(looks: Iterable[Held], begun: float) -> list[Change]:
    """Gives kernels what came in them, and returns what came and went outside of kernels and in them, by
    time since the profile's begin in microseconds.
    """
    ordered = sorted(looks, key=lambda look: look.time)
    found = []
    for before, look in zip(ordered, ordered[1:]):
        change = look.bytes - before.bytes
        if look.event is not None:
            look.event.self_cpu_memory_usage = change
        if change:
            found.append(Change((look.time - begun) * 1e6, change, look.bytes, look.event is None))
    return found


def loose_events(
    changes: Sequence[Change], events: Sequence[FunctionEvent], thread: int
) -> list[FunctionEvent]:
    """What came and went between kernels, given to the innermost range around it; events of those around
    which there is none.
    """
    ranges = sorted((e for e in events if e.is_user_annotation), key=lambda e: -e.start)  # the next one last
    around: list[FunctionEvent] = []
    found = []
    for change in changes:
        if not change.loose:
            continue
        while ranges and ranges[-1].start <= change.time:
            around.append(ranges.pop())
        around = [r for r in around if change.time <= r.end]
        if around:
            event = min(around, key=lambda r: r.end - r.start)
        else:
            event = FunctionEvent("[memory]", change.time, change.time, thread, False)
            found.append(event)
        event.self_cpu_memory_usage += change.bytes
    return found
