"""What a run of rewritten code knows: the recorder that follows it, its branches, what may be raised."""

from __future__ import annotations

from _thread import _local
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from kiln import _core
from kiln.capture.pure.guards import entries_of
from kiln.late import later
from kiln.tracing.recorder import Recorder, TracingError

_asked, _fails = later("kiln.scripting.sizes", "Asked"), later("kiln.scripting.failing", "fails")
_fail_in = later("kiln.scripting.failing", "fail_in")


class Leaving(BaseException):
    """Ends a branch in which an exception of the program's was raised."""


class Context:
    """One run of rewritten code."""

    def __init__(self, recorder: Recorder, prints: bool = False, pinned: bool = False) -> None:
        self.recorder = recorder
        self.pinned = pinned  # values that are read are those of the example, which every call checks
        self.trying = self.trying_outside = 0  # `try` statements around, in this branch and outside it
        self.branches = 0  # how many were followed
        self.deepest = 0  # how often a function was as deep in itself as it may be
        self.calls: list[Any] = []  # of rewritten functions, one inside another: their code
        self.lenient = False  # texts of tensors are made, for errors that are only raised later
        self.failure: Any = 0  # a number: which exception was raised, 0 for none
        self.raised: list[BaseException] = []
        self.logs: list[dict[Any, tuple[Any, Any]]] = []  # of each branch: what it changes, as it was
        self.made: dict[int, tuple[Any, int]] = {}  # containers and objects of this run: in which branch
        self.given: dict[int, Any] | None = None  # ids of objects that were there before
        self.roots: list[Any] = []
        self.unset: dict[str, str] = {}  # names that have no value, and why
        self.ran: dict[Any, dict[str, Any]] = {}  # code -> globals
        self.patched: list[tuple[dict[str, Any], str]] = []
        self.grows = False  # whether lists have as many items as a size says
        self.prints: list[Any] | None = [] if prints else None
        # what is changed that was there before the call, as it was; None where nothing may be
        self.effects: dict[Any, tuple[Any, Any]] | None = {} if prints else None

    def refuse(self, what: str, line: str = "") -> NoReturn:
        """Raises that a script cannot do something, with the line."""
        self.recorder.refuse(what, line)

    @property
    def asked(self) -> Any:
        """What makes the answer to a question about sizes."""
        return _asked

    def pin(self) -> None:
        """A value is about to be read, which every call will check."""
        if len(self.recorder.read_values) >= _READS:
            self.refuse(f"reads more than {_READS} values")

    def new(self, thing: Any) -> Any:
        """A container or object that was just made."""
        self.made[id(thing)] = thing, len(self.logs)
        return thing

    def change(self, thing: Any, key: Any, slot: Any, what: str) -> None:
        """Something is about to be changed: a branch keeps what it was."""
        depth = self.made.get(id(thing), (None, -1))[1]
        if self.logs and depth < len(self.logs):
            self.logs[-1].setdefault((id(thing), key), (slot, slot.read()))
        if depth >= 0 or not self._was_there(thing):
            return
        if self.effects is None:
            self.refuse(f"{what}, which is there before the call: that would happen once, at the capture")
        elif not self.logs:
            self.effects.setdefault((id(thing), key), (slot, slot.read()))

    def outside(self, thing: Any, key: Any, slot: Any) -> None:
        """A place outside that is about to be changed."""
        if self.effects is None:
            self.refuse(f"sets {slot.name}, which is there before the call")
        else:
            self.effects.setdefault((id(thing), key), (slot, slot.read()))

    def touch(self, thing: Any) -> None:
        """Something that Python gives no way to put back is about to change."""
        if self._was_there(thing):
            kind = type(thing).__name__
            self.refuse(
                f"changes a {kind}, which is there before the call: that would happen once, at the capture"
            )

    def take_effects(self) -> list[tuple[Any, Any, Any]]:
        """Of each place that was there before the call and is changed: its key, it, what it holds now."""
        found = []
        for key, (slot, _) in (self.effects or {}).items():
            after = slot.read()
            if isinstance(after, (list, dict)) and key[1] is None:
                after = list(after) if isinstance(after, list) else dict(after)
            found.append((key, slot, after))
        return found

    def undo(self) -> None:
        """Puts back what was there before the call: every call changes it by itself."""
        for slot, before in reversed(list((self.effects or {}).values())):
            slot.write(before)
        self.effects = None

    def changed(self, key: Any, slot: Any, old: Any) -> None:
        """A branch has changed something: to the one around it that is a change too."""
        depth = self.made.get(key[0], (None, -1))[1]
        if self.logs:
            if depth < len(self.logs):
                self.logs[-1].setdefault(key, (slot, old))
        elif depth < 0:
            if self.effects is None:
                self.refuse(f"changes {slot.name}, which is there before the call, in a branch on values")
            else:
                self.effects.setdefault(key, (slot, old))

    def finish(self) -> None:
        """Ends the run: what was raised, depending on values, is a result of the program."""
        if isinstance(self.failure, int) and not self.failure:
            return
        if isinstance(self.failure, int):
            raise self.raised[self.failure - 1]
        script, self.recorder.script = self.recorder.script, None
        self.recorder.fails(self.failure.tensor, list(self.raised))
        self.recorder.script = script

    def fails(self, code: Any, errors: list[BaseException]) -> None:
        """A program that is called here raises one of these: their number is `code`."""
        _fails(self, code, errors)

    def expect(self, holds: Any, error: Exception) -> None:
        """What an op asks of values: in a branch or loop, which may not run, it fails there, and a `try`
        around it is to see it.
        """
        trying = self.trying or self.trying_outside
        if trying and self.pinned:
            if not bool(holds):
                raise error
        elif trying or self.logs:
            _fail_in(self, ~holds, error)
        else:
            self.recorder.expect_at_end(holds, type(error), str(error))

    def may_call(self, name: str) -> bool:
        """Whether a function that a library computes, and that may raise, becomes a step of the program;
        else it runs with the values of the call that is followed.
        """
        if self.trying or self.trying_outside:
            if self.pinned:
                return False
            self.refuse(f"calls {name}, which may raise, inside a try statement")
        if self.logs:
            self.refuse(f"calls {name} in a branch or loop that depends on values, which no graph can")
        return True

    def _was_there(self, thing: Any) -> bool:
        if self.given is None:
            self.given = reachable(self.roots)
        return id(thing) in self.given


def reachable(roots: list[Any]) -> dict[int, Any]:
    """Containers and objects that can be reached from some, by their ids."""
    found: dict[int, Any] = {}
    stack = list(roots)
    while stack and len(found) < _MOST:
        thing = stack.pop()
        if isinstance(thing, _ENDS) or id(thing) in found:
            continue
        found[id(thing)] = thing
        stack += [place.held for place in entries_of(thing)]
    return found


_MOST = 100_000
_READS = 1000  # values that one program checks
_ENDS = (int, float, str, bytes, type(None), type, ModuleType, _core.Tensor)


class _Running(_local):
    """Of a thread: its runs, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []


_running = _Running()


def current() -> Context | None:
    """The run of rewritten code that is under way."""
    return _running.contexts[-1] if _running.contexts else None


def running() -> Context:
    """The same where there is one; TracingError for a number of a script's where none runs."""
    if not _running.contexts:
        raise TracingError(
            "computes, outside a script, with a number that depends on the value of a tensor and that a "
            "script gave: have the script return a tensor"
        )
    return _running.contexts[-1]


@contextmanager
def entered(context: Context) -> Iterator[Context]:
    """Makes a run the one that is under way."""
    _running.contexts.append(context)
    recorder = context.recorder
    before, recorder.running = recorder.running, context
    try:
        yield context
    finally:
        recorder.running = before
        _running.contexts.pop()
        for held, key in reversed(context.patched):
            held.pop(key, None)
