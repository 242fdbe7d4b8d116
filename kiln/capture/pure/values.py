"""What tensors hold while one run of a function is followed: values, by their numbers.

    tensor -> value       what it holds, with its history, now; a write gives it another one, and with it
                          every tensor over the same memory
    tensor -> source      of a view: the tensor it was made of, and the step: results are handed out so

A tensor nobody has seen is a parameter, a buffer or another tensor that lay about: it becomes an operand.
A write where gradients are off, or by a name without history, changes what memory holds and not where its
gradients go: a value with the content of one and the history of another (`_with_history`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from kiln import _core
from kiln.capture.pure.errors import PurityError
from kiln.capture.pure.steps import CAST, DETACH, STRIDED, WRITE, Argument, Step
from kiln.errors import is_own, place
from kiln.graph.graph import Shape
from kiln.late import later
from kiln.table.kinds import FLOATS
from kiln.table.record import Op

_MOVES = {"a value was read": "reads a value", "of a write": "writes to memory that others can see"}
_replaced = later("kiln.tracing.functions", "replaced")
_HINT = "kiln.compile without pure=True runs any Python"


def user_line() -> str:
    """The line of the user's program that is running."""
    frame = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown line" if frame is None else place(frame.f_code.co_filename, frame.f_lineno)


class Viewed(NamedTuple):
    """How a tensor came to share another one's memory."""

    source: Any
    op: Op | None  # None: an alias without history
    structure: tuple[Any, ...]
    args: tuple[Any, ...]  # of the op; `source` stands for itself
    which: int
    modes: tuple[bool, bool]  # grad mode, inference mode when it was made

    @property
    def flows(self) -> bool:
        """Whether gradients of it come to the source."""
        return self.op is not None and self.modes == (True, False)


class Values:
    """See the module's text."""

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
        self._storage: dict[int, int] = {}  # id of a tensor -> its storage
        self._flowing: set[int] = set()  # values that gradients may be asked for of
        self._written_to: dict[int, str] = {}  # storages of buffers that were written -> the line
        self._first = 1 << 20  # values of results are numbered from here until the operands are known
        self._next = self._first
        self._arguments = {id(x) for x in leaves}
        for x in leaves:
            self.value(x)

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
        if _core.place(tensor)[0] != self._storage[id(tensor)]:
            self.refuse("gives a tensor other memory (x.data = y)")
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
        if self._may_flow(tensor):
            self._flowing.add(k)
        return k

    def _may_flow(self, operand: Any) -> bool:
        """Whether a gradient may be asked for of an operand."""
        return bool(operand.requires_grad)

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
        self._views[id(tensor)] = Viewed(same, None, (), (), 0, _core.modes()[:2])
        return k

    def _hold(self, tensor: Any, k: int) -> None:
        storage, _, sizes, _ = _core.place(tensor)
        self.kept.append(tensor)
        self._value[id(tensor)] = k
        self._storage[id(tensor)] = storage
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
        self._flow(self.steps[-1])

    def _flow(self, step: Step) -> None:
        """Notes to which of its results gradients may come."""
        if step.flows and any(kind == "value" and k in self._flowing for kind, k in step.args):
            self._flowing.update(k for k, dtype in zip(step.outs, step.dtypes) if dtype in FLOATS)

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

    def dtype_of(self, k: int) -> str:
        """The dtype of a value."""
        return self._dtype_of(k)

    def _dtype_of(self, k: int) -> str:
        if k in self.dtypes:
            return self.dtypes[k]
        return str(self.operands[k].dtype).rpartition(".")[2]

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
        self._flow(self.steps[-1])
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

    def _is_of_argument(self, storage: int) -> bool:
        return any(id(x) in self._arguments for x in self._on[storage])

    def _written(self, target: Any, k: int, history: bool) -> None:
        storage, offset, sizes, strides = _core.place(target)
        whole = self._on[storage][0]
        others = [x for x in self._on[storage] if x is not target]
        before, tied = self.value(whole), self._is_tied(target)
        if whole is target:
            self._value[id(target)] = k if history else self._with_history(before, k)
        else:
            root = self._new()
            self.numbers_seen.update(sizes, strides, (offset,))
            self.by_value.add((before, -1))
            shape = _core.place(whole)[2]
            args = (("value", before), ("value", k))
            self._append(WRITE, self._where(target), args, [root], [self._dtype(whole)], [shape], history)
            self._value[id(whole)] = root if history and tied else self._with_history(before, root)
            self._value[id(target)] = k
            others = [x for x in others if x is not whole]
            if tied and not history and before in self._flowing:
                others.append(target)  # which shows the whole, with its history
        self._stale.discard(id(target))
        self._stale.update(id(x) for x in others)
        self._stale.discard(id(whole))

    def _with_history(self, before: int, k: int) -> int:
        """What memory holds that was written where gradients are off, or by a name that has no history: other
        content, and the history it had.
        """
        if before not in self._flowing:
            return k
        made, shape = self._new(), self.sizes[before]
        op, structure = _replaced(self, before, k)
        args = (("value", before), ("value", k))
        self._append(op, structure, args, [made], [self._dtype_of(before)], [shape], True)
        self.by_value.update(((before, -1), (k, -1)))
        self.numbers_seen.update(shape)
        return made

    def _is_tied(self, tensor: Any) -> bool:
        """Whether gradients of it come to the whole of its memory."""
        viewed = self._views.get(id(tensor))
        while viewed is not None and viewed.flows:
            viewed = self._views.get(id(viewed.source))
        return viewed is None

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
        history = self._shows_history(tensor)
        own, args = self._where(tensor), (("value", whole),)
        self._append(STRIDED, own, args, [k], [self._dtype(tensor)], [sizes], history)
        self._value[id(tensor)] = k
        self._stale.discard(id(tensor))
        return k

    def _shows_history(self, tensor: Any) -> bool:
        """Whether memory that was written has, as this view of it shows it, the history of the whole."""
        self._quiet = True
        try:
            tensor.grad_fn  # noqa: B018  (of one made where gradients are off it raises what eager code does)
        finally:
            self._quiet = False
        return self._is_tied(tensor)


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
