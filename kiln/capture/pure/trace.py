"""Follows one run of a function, op by op, into steps; what tensors hold meanwhile: `values.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kiln import _core, ops
from kiln.capture.pure.steps import Argument, Step, Steps, using
from kiln.capture.pure.values import Values, Viewed, names_of
from kiln.errors import is_own
from kiln.late import later
from kiln.table.kinds import FLOATS
from kiln.table.record import Op

_applied = later("kiln.tracing.functions", "applied")
_of_tensors = later("kiln.tracing.answers", "of_tensors")
# what calls that look alike have in common
_LOOKS = {"sizes", "requires_grad", "is_contiguous", "stride"}
_MODES = {
    "is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "get_autocast_dtype",
    "is_autocast_cache_enabled", "get_default_dtype",
}  # fmt: skip
_CHANGING = {
    "_version": "how often its memory was written, which changes from call to call",
    "data_ptr": "where its memory lies, which changes from call to call",
    "untyped_storage": "which may hold more than the tensor",
}
# what says the same, or all of it
_AS = {"_is_view": "_base", "grad_fn": "is_leaf", "storage_offset": "offset"}


def asks(what: str, frame: FrameType | None, scripted: bool = False) -> bool:
    """Whether the user's program asks, of whom kiln's function of that name is a part; `scripted`: also by
    what makes the calls of a script.
    """
    while frame is not None and is_own(frame):
        by_script = scripted and frame.f_globals.get("__name__", "").startswith("kiln.scripting.")
        if frame.f_code.co_name != what and not by_script:
            return False
        frame = frame.f_back
    return frame is not None


class Tracer(Values):
    """What `_core.trace` tells of the ops of one run; see the module's text."""

    # -- what the core tells ----------------------------------------------------------------------------

    def called(
        self,
        op: Op,
        structure: tuple[Any, ...],
        operands: tuple[Any, ...],
        out: tuple[Any, ...],
        results: tuple[Any, ...],
        history: bool,
    ) -> None:
        """An op has run."""
        if self._quiet:
            return
        if op.name in ("as_strided", "write") or op.tests.sees_layout:
            self._expect_whole(operands[0])
        args = tuple([self._argument(name, x) for name, x in zip(names_of(op, structure), operands)])
        if op.kind == "slice":
            self.by_value.update((args[0][1], d) for d in structure[1])
        elif op.kind in ("reshape", "expand", "as_strided") or any(p.kind == "Z" for p in op.params):
            self.by_value.update((k, -1) for kind, k in args if kind == "value")
            self.numbers_seen.update(int(x) for kind, x in args if kind == "number" and type(x) is int)
        made = [self._new() for _ in results]
        dtypes = [str(y.dtype).rpartition(".")[2] for y in results]
        if out:
            self._write(op, structure, args, out, made, history)
            return
        shapes = [_core.place(y)[2] for y in results]
        self._append(op, structure, args, made, dtypes, shapes, history)
        for which, (k, y) in enumerate(zip(made, results)):
            self._hold(y, k)
            source = next((x for x in operands if self._shares(x, y)), None)
            if source is not None:
                modes = history, _core.modes()[1]
                self._views[id(y)] = Viewed(source, op, structure, operands, which, modes)
            else:
                self._made.add(_core.place(y)[0])

    def asked(self, tensor: Any, what: str, frame: FrameType | None = None) -> None:
        """The program has asked a tensor for its sizes, or whether it requires a gradient, or the like. Calls
        look alike only where layouts are the same, and all that a tensor is made of requires a gradient or
        does not; other answers are conditions, or change with each call.
        """
        if what == "sizes":
            self.by_value.add((self.value(tensor), -1))
        elif not self._quiet and what not in _LOOKS and asks(what, frame or sys._getframe(1)):
            self._asked(tensor, what)

    def _asked(self, tensor: Any, what: str) -> None:
        made = _core.place(tensor)[0] in self._made
        if what in _CHANGING and not (made and what == "_version"):
            self.refuse(f"asks {what} of a tensor, {_CHANGING[what]}")
        if not made:
            self._assume(self._owner(tensor), what)

    def asked_mode(self, what: str, answer: Any) -> Any:
        """What is switched on was asked: a condition, where calls that look alike may have it otherwise."""
        if not self._quiet and what not in _MODES and asks(what, sys._getframe(1).f_back):
            self.assumed.setdefault((-1, what), (None, getattr(answer, "name", answer)))
        return answer

    def _owner(self, tensor: Any) -> Any:
        """The argument, or tensor that was met, whose memory it shows."""
        known = self._on.get(_core.place(tensor)[0])
        return tensor if known is None or any(x is tensor for x in self.operands) else known[0]

    def _assume(self, tensor: Any, what: str) -> None:
        self._quiet = True
        try:
            self.kept.append(tensor)
            answer = _of_tensors()[_AS.get(what, what)](tensor)
        finally:
            self._quiet = False
        self.assumed.setdefault((id(tensor), _AS.get(what, what)), (tensor, answer))

    def read(self, tensor: Any, for_others: bool) -> Any:
        """The program reads a tensor's values."""
        self.refuse("a value was read")

    def expect_modes(self, begun: Any) -> None:
        """Refuses a run that has left other modes on than it began with, which are no result."""
        if _core.modes() != begun:
            self.refuse("leaves grad mode or autocast switched for its caller: switch it in a `with`", "it")

    # -- functions with a derivative of their own ------------------------------------------------------

    def applied(self, cls: Any, args: tuple[Any, ...]) -> Any:
        """A call of an autograd.Function."""
        return _applied(self, cls, args)

    def needs_gradient(self, tensor: Any) -> bool:
        """Whether a gradient may be asked for; in a backward, that of any."""
        return bool(tensor.requires_grad) or (
            self._before_backward is not None and bool(tensor.dtype.is_floating_point)
        )

    def held(self) -> dict[int, int]:
        """What every tensor holds now, by its id."""
        return self._value.copy()

    def seed(self, like: Any) -> tuple[Any, int]:
        """A stand-in for the gradient of a tensor, and its value."""
        self._quiet = True
        try:
            made = ops.zeros(tuple(like.shape), dtype=like.dtype)
        finally:
            self._quiet = False
        k = self._new()
        self._hold(made, k)
        self._made.add(_core.place(made)[0])
        self.dtypes[k] = self._dtype(made)
        self._sealed[_core.place(made)[0]] = "the gradient that a backward is given"
        return made, k

    @contextmanager
    def beside(self, known: dict[int, int]) -> Iterator[list[Step]]:
        """The steps that are done meanwhile, which belong to something else than the function's run."""
        start, made = len(self.steps), self._made.copy()
        stale = self._stale.copy()
        steps: list[Step] = []
        around, self._before_backward = self._before_backward, made
        try:
            yield steps
        finally:
            self._before_backward = around
        steps += self.steps[start:]
        del self.steps[start:], self.lines[start:]
        first = self._first
        self._value.update({key: k for key, k in known.items() if self._value.get(key) != k and k >= first})
        self._stale = stale

    def tensor_of(self, k: int) -> Any:
        """A tensor that holds a value."""
        return next(x for x in reversed(self.kept) if self._value[id(x)] == k and id(x) not in self._stale)

    def share(self, y: Any, made: Any, name: str) -> None:
        """What stands for `y`, in memory of its own: neither may be written if others see that memory."""
        storage = _core.place(y)[0]
        if storage not in self._made or any(x is not y for x in self._on[storage]):
            for place_of in (storage, _core.place(made)[0]):
                self._sealed[place_of] = f"memory that the result of {name} shares with other tensors"

    def wrapped(self, result: Any) -> Any:
        """Results as the function is to see them."""
        return result

    # -- the end ----------------------------------------------------------------------------------------

    def facts(self) -> Any:
        """What two runs have in common besides steps and operands."""
        return self.numbers, self.by_value, self.numbers_seen, self.dtypes, self.sizes, self.states()

    def lift(self, places: dict[tuple[int, int], int], letters: Sequence[str]) -> None:
        """Makes numbers of the operation of those at (step, argument), each that one of the call's."""
        own: dict[int, int] = {}
        for (at, i), k in places.items():
            if k not in own:
                own[k] = len(self.numbers)
                self.numbers.append(("argument", k))
                self.letters += letters[k]
            args = list(self.steps[at].args)
            args[i] = ("operand", own[k])
            self.steps[at] = self.steps[at]._replace(args=tuple(args))

    def finish(self, results: Sequence[int]) -> Steps:
        """The steps that the results need, with operands and values numbered one after another."""
        tensors = len(self.operands)
        found = Steps(tensors, self.letters, tuple(self.steps), tuple(results)).needed()
        seen: set[int] = set()
        again = [k for _, k in using(found.steps, tensors) if k in seen or seen.add(k)]  # type: ignore[func-returns-value]
        again = [k for k in again if str(self.operands[k].dtype).rpartition(".")[2] in FLOATS]
        found = self._numbered(found, len(again))
        return found._replace(tensors=tensors + len(again), again=tuple(again))

    def finish_all(self) -> Steps:
        """The same, with those that no result needs."""
        return self._numbered(Steps(len(self.operands), self.letters, tuple(self.steps), ()), 0)

    def _numbered(self, found: Steps, again: int) -> Steps:
        tensors = len(self.operands) + again

        def argument(arg: Argument) -> Argument:
            kind, x = arg
            if kind in ("number", "size"):
                return arg
            return kind, self._number(x, again) if kind == "value" else x + tensors

        def step(s: Step) -> Step:
            outs = tuple([self._number(k, again) for k in s.outs])
            return s._replace(args=tuple(map(argument, s.args)), outs=outs)

        results = tuple([self._number(k, again) for k in found.results])
        return found._replace(steps=tuple(map(step, found.steps)), results=results)

    def _number(self, k: int, again: int = 0) -> int:
        if k < self._first:
            return k
        return k - self._first + len(self.operands) + again + len(self.numbers)

    def numbered_sizes(self) -> list[tuple[int, tuple[int, ...]]]:
        """The sizes of every value, as `finish` numbers them."""
        return [(self._number(k), sizes) for k, sizes in self.sizes.items()]

    def numbered(self, again: int) -> list[tuple[int, tuple[int, ...]]]:
        """The same, as `finish` numbers them where so many operands are used again."""
        return [(self._number(k, again), sizes) for k, sizes in self.sizes.items()]

    def reads(self, k: int, dim: int) -> bool:
        """Whether the size of a value, as `finish` numbers it, became a number."""
        return not self._read().isdisjoint({(k, dim), (k, -1)})

    def _read(self) -> set[tuple[int, int]]:
        return {(self._number(k), d) for k, d in self.by_value}
