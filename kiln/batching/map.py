"""`map`: a function of many items that take turns, so that what they wait for runs together.

Each item runs in a strand (strands.py) until it reads a value that is not there yet: `item`, `if`, `print`,
`tolist`. When all that have begun wait or have ended, everything that is pending runs, batched, and all go
on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kiln import _core
from kiln.batching.output import Output
from kiln.batching.strands import Stopped, Strand, strand
from kiln.capture.batched import Batching
from kiln.errors import describe, message
from kiln.table.callables import hide_frames

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map(
    fn: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    limit: int | None = None,
    return_exceptions: bool = False,
) -> list[_Result]:
    """`[fn(item) for item in items]`, where what the items compute runs batched although they read values.

    An item that reads a value which is not there yet (`item`, `if`, `print`, `tolist`, `numpy`) waits until
    all others wait too or have ended; then everything that is pending runs, calls of the same op together,
    and all go on. So decoders, rollouts and searches written for one sample run for many at once. Results
    have the bits of the loop. `limit`: how many items run at once, which bounds what they hold in memory;
    default all of them. Results do not depend on it. With the package greenlet (`pip install
    "kiln[batching]"`) an item's turn costs a microsecond; without it, items are threads that take turns, at
    ten times that and more. What gains is work of few rows (decoders, agents, trees); items whose own calls
    are of tens of rows and more run about as quickly one by one.

    Items are independent. What one writes to a tensor no other may read or write: RuntimeError. Each has its
    own grad mode, inference mode, autocast, default dtype, hooks on saved tensors and context variables: it
    finds those of the caller, and what it sets goes with it. What it prints comes in the order of items. Each
    has random numbers of its own: the default generator of item i starts from a hash of the caller's seed and
    position and of i, and the caller's moves on by one number, whatever the items draw.

    An exception of one item lets the others run to their end; then that of the first item which had one is
    raised, with a note that says which item it was and which others failed. `return_exceptions`: none is
    raised, and exceptions stand among the results. Ctrl-C and SystemExit end all items at once.

    ValueError for a limit below 1.

    >>> def halvings(x):
    ...     steps = 0
    ...     while x > 1:
    ...         x, steps = x / 2, steps + 1
    ...     return steps
    >>> kiln.batching.map(halvings, kiln.tensor([1.0, 8.0, 1000.0]))
    [0, 3, 10]
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(message("map", "a limit that is an int or None", describe(limit)))
    if limit is not None and limit < 1:
        raise ValueError(message("map", "a limit of 1 or more", str(limit)))
    if not callable(fn):
        raise TypeError(message("map", "a function as its first argument", describe(fn)))
    run = _Run(fn, limit)
    return run.results(run.go(iter(items)), return_exceptions)


class _Run:
    """One call of `map`."""

    def __init__(self, function: Callable[[Any], Any], limit: int | None) -> None:
        self.function, self.limit = function, limit
        self.alone = _core.hold_turns(0) > 0 or _core.recording()  # then items run one by one
        self.output = Output()
        self.closed = False  # all items have ended, and own nothing any more
        self._random = _core.next_random(1)

    def random_state(self, index: int) -> tuple[int, int]:
        """Where the default generator of an item begins."""
        name = struct.pack("<qqQ", *self._random, index)
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True), 0

    def go(self, items: Any) -> list[_Turn]:
        """Runs all items to their end."""
        turns: list[_Turn] = []
        active: list[_Turn] = []
        interrupted = False
        with Batching():
            try:
                more = True
                while more or active:
                    while more and (self.limit is None or len(active) < self.limit):
                        try:
                            item = next(items)
                        except StopIteration:
                            more = False
                            break
                        turns.append(_Turn(self, len(turns), item))
                        active.append(turns[-1])
                        if turns[-1].go_on():
                            active.pop()
                    if active:
                        _core.wait_for_turn()  # in an item of another `map`: what is pending there runs too
                        self._run_pending()
                    active = [turn for turn in active if not turn.go_on()]
            finally:
                while not self.closed:  # Ctrl-C may come at any line of these
                    try:
                        self._close(turns)
                    except KeyboardInterrupt:
                        interrupted = True
                if interrupted:
                    raise KeyboardInterrupt
        return turns

    @staticmethod
    def _run_pending() -> None:
        """Runs all that is pending. What fails leaves the list: the item that reads its value is told."""
        while True:
            try:
                return _core.run_pending()
            except MemoryError:
                raise
            except Exception:
                continue

    def _close(self, turns: list[_Turn]) -> None:
        """Ends all items."""
        for turn in turns:
            turn.stop()
        self.output.close()
        for turn in turns:
            turn.close()
        self.closed = True

    def results(self, turns: list[_Turn], return_exceptions: bool) -> list[Any]:
        """What the items gave; raises the first exception among it unless they are asked for."""
        failed = [turn for turn in turns if turn.error is not None]
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        for turn in failed:
            turn.error.add_note(f"in item {turn.index} of {len(turns)} of kiln.batching.map({name})")  # type: ignore[union-attr]
        if failed and not return_exceptions:
            error = failed[0].error
            assert error is not None
            for turn in failed[1:]:
                said = f"{type(turn.error).__name__}: {turn.error}".splitlines()[0]
                error.add_note(f"item {turn.index} failed too: {said}")
            try:
                raise error
            finally:
                del error, failed, turn, turns  # the traceback has this frame
        return [turn.result if turn.error is None else turn.error for turn in turns]


class _Turn:
    """One item: its strand, and what is its own while it runs (`_core.Turn`)."""

    __slots__ = ("_item", "_own", "_run", "_strand", "error", "index", "result")

    def __init__(self, run: _Run, index: int, item: Any) -> None:
        self.index = index
        self.result: Any = None
        self.error: BaseException | None = None
        self._run: _Run | None = run
        self._item = item
        self._own = _core.Turn(*run.random_state(index), index, *run.output.streams(index))
        self._strand: Strand | None = None
        if not run.alone:
            self._strand = strand(self._body)
            self._own.waits(self._strand.wait, self._strand.handle, self._strand.here)

    def go_on(self) -> bool:
        """Lets it run until it waits or has ended: True. Raises what ends a program."""
        if self._strand is None:
            self._body()
        else:
            self._strand.turn()
            if not self._strand.ended:
                return False
        assert self._run is not None
        self._run.output.end(self.index)
        self._run = self._item = self._strand = None
        if self.error is not None:
            self.error.__traceback__ = _from_user(self.error.__traceback__)
            if not isinstance(self.error, Exception):
                raise self.error
        return True

    def stop(self) -> None:
        """Ends it where it waits."""
        if self._strand is not None:
            self._own.stop()
            self._strand.stop()

    def close(self) -> None:
        """All items have ended."""
        self._own.end()

    def _body(self) -> None:
        assert self._run is not None
        try:
            self.result = self._own.call(self._run.function, self._item)
        except Stopped:
            pass
        except BaseException as error:
            self.error = error


def _from_user(traceback: Any) -> Any:
    """A traceback without the lines of this file it begins with."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


hide_frames(globals(), ["map"])
