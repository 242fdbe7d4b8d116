"""What follows from a region's measured runs: which recordings run as programs, when it stops recording."""

from __future__ import annotations

from math import isfinite

from kiln.capture.log import log
from kiln.tuples import NamedTuple

MOST_FORGOTTEN = 4 * 256  # from here on recordings must be seen again to pay


class Measured(NamedTuple):
    """A recording that was measured: the shortest times in seconds, infinite if not known.

    `program` is of a run by its program with all that belongs to it, `replay` of the ops as eager calls would
    run them, `record` of recording them.
    """

    number: int
    seen: int
    failed: bool
    slower: bool
    program: float
    record: float
    replay: float

    def recorded(self) -> float:
        """What a call takes that is recorded and runs as the region decided."""
        by_ops = self.slower or self.failed
        return (self.replay if by_ops else self.program) + (self.record if isfinite(self.record) else 0)


def decide(
    name: str, uses: int, number: int, found: list[tuple[int, int, bool, bool, float, float, float]]
) -> tuple[bool, str | None]:
    """After recording `number` was measured: whether it runs op by op from now on, and why the region is
    switched off, None if it is not."""
    known = {times[0]: Measured(*times) for times in found}
    this = known.get(number)
    if this is None or not isfinite(this.replay) or not isfinite(this.recorded()):
        return False, None
    slower = not _pays(this.recorded(), this.replay)
    known[number] = this._replace(slower=slower)
    if slower:
        log(
            0,
            f"{name}: recording {number} takes {microseconds(this.recorded())} as a program, "
            f"{microseconds(this.replay)} op by op: it runs op by op",
        )
    all_known = [times for times in known.values() if isfinite(times.replay)]
    recorded, replayed = sum(t.recorded() for t in all_known), sum(t.replay for t in all_known)
    if 2 * sum(t.seen for t in all_known) < uses or _pays(recorded, replayed):
        return slower, None
    log(
        0,
        f"{name}: recording costs more than it saves ({microseconds(recorded)} against "
        f"{microseconds(replayed)}): the region is switched off",
    )
    return slower, "recording it was measured to cost more than it saves"


def _pays(recorded: float, replayed: float) -> bool:
    """Whether recording is worth it: 5 % are within what measuring can tell."""
    return recorded <= replayed * 1.05


def judge(name: str, recorded: float, plain: float) -> str | None:
    """After whole calls were timed in turn, recorded and not (the shortest, in seconds): why the region is
    switched off, or None."""
    if recorded <= plain:
        return None
    log(
        0,
        f"{name}: a call takes {microseconds(recorded)} recorded, {microseconds(plain)} not: "
        "the region is switched off",
    )
    return f"a call takes {microseconds(recorded)} recorded and {microseconds(plain)} not"


def forgotten(
    name: str, gone: tuple[int, int, int], kept: int, evicted: int, made: int, runs: int, uses: int
) -> str | None:
    """After a recording (number, ops, sights) made room for another: why the region is off, or None."""
    number, ops, seen = gone
    log(0, f"{name}: forgets recording {number} ({ops} ops, seen {seen} times) to keep {kept}")
    if evicted < MOST_FORGOTTEN or 2 * runs >= uses:
        return None
    log(0, f"{name}: {made} recordings, {runs} of {uses} runs by a program: the region is switched off")
    return "hardly any recording was seen again"


def microseconds(seconds: float) -> str:
    """ "12.3 us", or that nobody knows."""
    return f"{seconds * 1e6:.1f} us" if isfinite(seconds) else "an unknown time"
