"""Follows one run of a function, op by op, into steps.

    tensor -> value       what it holds, with its history, now; a write gives it another one, and with it
                          every tensor over the same memory
    tensor -> source      of a view: the tensor it was made of, and the step: results are handed out so

A tensor nobody has seen is a parameter, a buffer or another tensor that lay about: it becomes an operand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from kiln import _core, ops
from kiln.capture.pure.errors import PurityError
from kiln.capture.pure.steps import CAST, DETACH, STRIDED, WRITE, Argument, Step, Steps, using
from kiln.errors import is_own, place
from kiln.graph.graph import Shape
from kiln.late import later
from kiln.table.kinds import FLOATS
from kiln.table.record import Op

_MOVES = {"a value was read": "reads a value", "of a write": "writes to memory that others can see"}
_applied = later("kiln.tracing.functions", "applied")
_attribute = later("kiln.tracing.answers", "attribute")
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
_HINT = "kiln.compile without pure=True runs any Python"


def user_line() -> str:
    """The line of the user's program that is running."""
    frame = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown line" if frame is None else place(frame.f_code.co_filename, frame.f_lineno)


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


class Viewed(NamedTuple):
    """How a tensor came to share another one's memory."""

    source: Any
    op: Op | None  # None: an alias without history
    structure: tuple[Any, ...]
    args: tuple[Any, ...]  # of the op; `source` stands for itself
    which: int


class Tracer:
    """What `_core.trace` tells of the ops of one run; see the module's text."""

    def __init__(
        self, name: str, leaves: Sequence[Any], is_buffer: Callable[[Any], bool] = lambda x: True
    ) -> None:
        self.name = name
        self._is_buffer = is_buffer
        self.failure: PurityError | None = None
        # what was asked, by (id of a tensor or -1, what) -> the tensor, the answer
        self.assumed: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.steps: list[Step] = []
        self.lines: list[str] = []
        self.operands: list[Any] = []  # tensors
        # ("seed", 0), ("position", how far behind the start), ("argument", which of those that only ops see)
        self.numbers: list[tuple[str, int]] = []
        self.letters = ""  # of the numbers: "i" or "f"
        self.by_value: set[tuple[int, int]] = set()  # (value, dim, or -1: all) whose sizes became numbers
        self.sizes: dict[int, tuple[int, ...]] = {}  # of every value
        self.dtypes: dict[int, str] = {}  # of the values that steps made
        self.numbers_seen: set[int] = set()  # sizes that ops were given as numbers
        self.shapes: dict[int, Shape] = {}  # of values some of whose sizes vary: here none do
        self.random = _core.random_state()
        self.modes = _core.modes()  # around the run
        self.apart = 0  # how many forwards of autograd.Functions are being followed
        self._before_backward: set[int] | None = None  # storages, while a backward is followed
        self._sealed: dict[int, str] = {}  # storages that may not be written -> why
        self._quiet = False  # what is called is not the program's
        self.kept: list[Any] = []  # so that ids and addresses stay theirs
        self._value: dict[int, int] = {}  # id of a tensor -> its value
        self._views: dict[int, Viewed] = {}
        self._on: dict[int, list[Any]] = {}  # storage -> the tensors over it, the whole first
        self._stale: set[int] = set()  # ids of tensors over memory that was written since
        self._made: set[int] = set()  # storages of results
        self._written_to: dict[int, str] = {}  # storages of buffers that were written -> the line
        self._first = 1 << 20  # values of results are numbered from here until the operands are known
        self._next = self._first
        self._arguments = {id(x) for x in leaves}
        for x in leaves:
            self.value(x)

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
                self._views[id(y)] = Viewed(source, op, structure, operands, which)
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

    def attribute_missed(self, tensor: Any, name: str) -> None:
        """An attribute that a tensor has not, and that the program may give it."""
        if not self._quiet and _core.place(tensor)[0] not in self._made:
            owner = self._owner(tensor)
            self.assumed.setdefault((id(owner), _attribute(name)), (owner, []))

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

    def refuse(self, what: str, line: str = "") -> NoReturn:
        """The program does what a pure function does not."""
        self.failure = PurityError(
            f"{self.name}: {line or user_line()} {_MOVES.get(what, what)}, so it is not pure; {_HINT}"
        )
        raise self.failure

    # -- values -----------------------------------------------------------------------------------------

    def value(self, tensor: Any) -> int:
        """What a tensor holds now."""
        known = self._value.get(id(tensor))
        if known is None:
            return self._meet(tensor)
        if id(tensor) in self._stale:
            return self._look_again(tensor)
        return known

    def source(self, tensor: Any) -> Viewed | None:
        """Of a view: what it was made of."""
        return self._views.get(id(tensor))

    def is_argument(self, tensor: Any) -> bool:
        """Whether it is one of the arguments."""
        return id(tensor) in self._arguments

    def result(self, tensor: Any) -> bool:
        """Whether its memory holds what an op made, all of it."""
        storage, offset, sizes, strides = _core.place(tensor)
        return storage in self._made and offset == 0 and self._on[storage][0] is tensor

    def _meet(self, tensor: Any) -> int:
        storage = _core.place(tensor)[0]
        others = self._on.get(storage)
        if others is not None and id(tensor) not in self._arguments:
            same = self._alias_of(tensor, others)
            if same is not None:
                return self._alias(tensor, same)
            if storage in self._made:
                self.refuse("makes a view of a tensor in a way that cannot be followed")
        self.operands.append(tensor)
        k = len(self.operands) - 1
        self._hold(tensor, k)
        return k

    def _alias_of(self, tensor: Any, others: list[Any]) -> Any:
        """The tensor that this one, which no op has made, shows without history; None if there is none."""
        where = _core.place(tensor)[1:]
        if tensor.requires_grad:
            return None
        return next((x for x in others if _core.place(x)[1:] == where and x.dtype == tensor.dtype), None)

    def _alias(self, tensor: Any, same: Any) -> int:
        where = _core.place(tensor)[1:]
        source = self.value(same)
        k = self._new()
        self._append(DETACH, (), (("value", source),), [k], [self._dtype(tensor)], [where[1]], True)
        self._hold(tensor, k)
        self._views[id(tensor)] = Viewed(same, None, (), (), 0)
        return k

    def _hold(self, tensor: Any, k: int) -> None:
        storage, _, sizes, _ = _core.place(tensor)
        self.kept.append(tensor)
        self._value[id(tensor)] = k
        self.sizes[k] = sizes
        self._on.setdefault(storage, []).append(tensor)

    def _new(self) -> int:
        self._next += 1
        return self._next - 1

    def _shares(self, x: Any, y: Any) -> bool:
        return isinstance(x, _core.Tensor) and _core.place(x)[0] == _core.place(y)[0]

    def _dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).rpartition(".")[2]

    def _append(
        self,
        op: Any,
        structure: tuple[Any, ...],
        args: tuple[Argument, ...],
        made: list[int],
        dtypes: list[str],
        shapes: Sequence[tuple[int, ...]],
        history: bool,
    ) -> None:
        ones = tuple([tuple([d for d, size in enumerate(shape) if size == 1]) for shape in shapes])
        self.steps.append(Step(op, structure, args, tuple(made), tuple(dtypes), ones, history))
        self.lines.append(user_line())
        self.sizes.update(zip(made, shapes))
        self.dtypes.update(zip(made, dtypes))

    def _argument(self, name: str, x: Any) -> Argument:
        if isinstance(x, _core.Tensor):
            return "value", self.value(x)
        if type(x) is int and name in ("position", "seed"):
            (seed, start), now = self.random, _core.random_state()[1]
            drawn = now > start and (x == seed if name == "seed" else start <= x < now)
            if drawn:  # else they belong to a generator of the program's, which a check notices, or to none
                self.numbers.append((name, 0 if name == "seed" else x - start))
                self.letters += "i"
                return "operand", len(self.numbers) - 1
        return "number", x

    # -- writes -----------------------------------------------------------------------------------------

    def _expect_whole(self, tensor: Any) -> None:
        if not tensor.is_contiguous() or _core.place(tensor)[1]:
            self.refuse("sees a tensor by its place in memory")

    def _write(
        self,
        op: Op,
        structure: tuple[Any, ...],
        args: tuple[Argument, ...],
        out: tuple[Any, ...],
        made: list[int],
        history: bool,
    ) -> None:
        for target in out:
            self.value(target)
            storage = _core.place(target)[0]
            if storage in self._sealed:
                self.refuse(f"writes {self._sealed[storage]}")
            inside = self._before_backward
            if inside is not None and (storage in inside or storage not in self._made):
                self.refuse("writes, in a backward, what was made outside it")
            if not self.may_write(storage):
                self._expect_buffer(storage)
        dtypes = [self._dtype(target) for target in out]
        raw = [self._new() for _ in out]
        shapes = [_core.place(target)[2] for target in out]
        # what the op gives is cast and repeated to what it is written into
        self.steps.append(Step(op, structure, args, tuple(raw), tuple(dtypes), ((),) * len(raw), history))
        self.lines.append(user_line())
        for target, k, r, dtype, shape in zip(out, made, raw, dtypes, shapes):
            self._append(CAST, (shape,), (("value", r),), [k], [dtype], [shape], history)
            self.numbers_seen.update(shape)
            self._written(target, k, history)

    def may_write(self, storage: int) -> bool:
        """Whether what lies in a storage may be written: what ops of this run made."""
        return storage in self._made

    def _expect_buffer(self, storage: int) -> None:
        """Refuses a write to what was not made here, unless it is a module's buffer."""
        if self._is_of_argument(storage):
            self.refuse("writes an argument in place")
        whole = self._on[storage][0]
        if whole.grad_fn is not None:
            whole.detach_()
            self.refuse("writes to a buffer what has a gradient")
        if whole.requires_grad or not self._is_buffer(whole):
            self.refuse("writes a tensor made elsewhere in place")
        self._expect_whole(whole)
        self._written_to.setdefault(storage, user_line())

    def states(self) -> list[tuple[int, int]]:
        """(operand, value) of the buffers that were written, with what is in them now."""
        found = []
        for storage, line in self._written_to.items():
            over = [k for k, x in enumerate(self.operands) if _core.place(x)[0] == storage]
            if len(over) > 1:
                raise PurityError(
                    f"{self.name}: {line} writes a buffer whose memory another tensor that it uses shares"
                )
            found.append((over[0], self.value(self.operands[over[0]])))
        return found

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

    def _is_of_argument(self, storage: int) -> bool:
        return any(id(x) in self._arguments for x in self._on[storage])

    def _written(self, target: Any, k: int, history: bool) -> None:
        storage, offset, sizes, strides = _core.place(target)
        whole = self._on[storage][0]
        others = [x for x in self._on[storage] if x is not target]
        self._value[id(target)] = k
        self._stale.discard(id(target))
        if whole is not target:
            before = self.value(whole)
            root = self._new()
            self.numbers_seen.update(sizes, strides, (offset,))
            self.by_value.add((before, -1))
            shape = _core.place(whole)[2]
            args = (("value", before), ("value", k))
            self._append(WRITE, self._where(target), args, [root], [self._dtype(whole)], [shape], history)
            self._value[id(whole)] = root
            others = [x for x in others if x is not whole]
        self._stale.update(id(x) for x in others)
        self._stale.discard(id(whole))

    def _where(self, tensor: Any) -> tuple[Any, Any, Any]:
        """Sizes, strides and offset of a view in the memory of the whole."""
        _, offset, sizes, strides = _core.place(tensor)
        return sizes, strides, offset

    def _look_again(self, tensor: Any) -> int:
        """What a view sees of memory that was written since it was made."""
        storage, offset, sizes, strides = _core.place(tensor)
        whole = self.value(self._on[storage][0])
        self.by_value.add((whole, -1))
        self.numbers_seen.update(sizes, strides)
        k = self._new()
        history = tensor.requires_grad
        own, args = self._where(tensor), (("value", whole),)
        self._append(STRIDED, own, args, [k], [self._dtype(tensor)], [sizes], history)
        self._value[id(tensor)] = k
        self._stale.discard(id(tensor))
        return k

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

    def dtype_of(self, k: int) -> str:
        """The dtype of a value."""
        return self._dtype_of(k)

    def _dtype_of(self, k: int) -> str:
        if k in self.dtypes:
            return self.dtypes[k]
        return str(self.operands[k].dtype).rpartition(".")[2]

    def wrapped(self, result: Any) -> Any:
        """Results as the function is to see them."""
        return result

    # -- the end ----------------------------------------------------------------------------------------

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


def names_of(op: Op, structure: tuple[Any, ...]) -> Iterator[str]:
    """The parameter that each operand is given for."""
    entries = iter(structure)
    for param in op.params:
        if op.kind == "pointwise" and param.kind != "S":
            yield param.name
            continue
        entry = next(entries)
        if param.kind in "ZL":
            yield from (param.name,) * entry
        elif param.kind != "S" and entry is not None:
            yield param.name
