"""What depends on sizes that vary: conditions on them, loops as long as they are, lists that such loops make.

Asked     a comparison of sizes: a number, so that both sides of a branch are kept; one of Python's where it
          has to be, which the program then checks at each call
Each      what a loop goes through: at each step the parts of some tensors at one index of their first dim
Rows      stands in a list for the items that a loop of such a length has added
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core, ops
from kiln.graph.size import Dim, Size
from kiln.scripting.arithmetic import of_numbers
from kiln.scripting.context import running
from kiln.scripting.failing import fail_where
from kiln.scripting.numbers import Number, Tensor, dtype_of, number, own, shape_of
from kiln.tracing.recorder import Recorder
from kiln.tracing.symbolic import plain

_NAMES = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
Item = Callable[[list[Any]], Any]


class Asked(Number):
    """The answer to a question about sizes."""

    __slots__ = ("question", "recorder")

    def __init__(self, recorder: Recorder, left: Any, sign: str, right: Any) -> None:
        answer = of_numbers(_NAMES[sign], recorder.size(left), recorder.size(right))
        super().__init__(bool, answer.tensor)
        self.recorder, self.question = recorder, (left, sign, right)

    def __bool__(self) -> bool:
        """The answer for the trace's sizes, which each call checks."""
        return self.recorder.decide(*self.question, None, True)


class Each:
    """What a loop goes through, as many steps as a size says."""

    def __init__(self, length: Dim, parts: list[Any], item: Item) -> None:
        self.length, self.parts, self.item = length, parts, item

    def __iter__(self) -> Any:
        return running().refuse(
            f"goes through {running().recorder.known.text(self.length)} items outside a for statement or the "
            "one loop of a list comprehension"
        )

    def rest(self) -> Each:
        """The steps after the first."""
        size = running().recorder.known.work.canonical(self.length - 1)
        return Each(size, [p[1:] for p in self.parts], self.item)

    def positions(self) -> Positions:
        """Its steps by their positions, where a loop may end before the last."""
        return Positions(self)

    def reversed(self) -> Each:
        """The same from the end."""
        return Each(self.length, [ops.flip(p, (0,)) for p in self.parts], self.item)


class Positions:
    """A range that gives the items at its positions."""

    def __init__(self, each: Each) -> None:
        self.each = each
        self.start, self.stop, self.step = 0, running().recorder.size(each.length), 1

    def item(self, at: Any) -> Any:
        """The item at a position."""
        recorder, rows = running().recorder, [p[number(at).tensor] for p in self.each.parts]
        for p, row in zip(self.each.parts, rows):
            recorder.may_be(own(row), own(p))
        return self.each.item(rows)


class Rows:
    """See the module's text. `leaves`: tensors, of each a row is in an item; no length while the loop is
    followed.
    """

    def __init__(
        self, length: Dim | None = None, leaves: Any = (), item: Item | None = None, kind: Any = None
    ) -> None:
        self.length, self.leaves, self.item = length, list(leaves), item
        self.kind = kind  # of an item that is a tensor or a number

    def _read(self, *args: Any) -> Any:
        why = "while it grows" if self.length is None else "whose length is a size that varies"
        return running().refuse(f"reads a list {why}: stack or concatenate it, or go through it with for")

    __bool__ = __len__ = __iter__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _read
    __getitem__ = __setitem__ = __call__ = __neg__ = __abs__ = __float__ = __int__ = __repr__ = _read
    __contains__ = __matmul__ = __rmatmul__ = __pow__ = __hash__ = _read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "whole":
            raise AttributeError(name)
        return self._read()

    def each(self) -> Each:
        """What a loop over the items goes through."""
        if self.length is None or self.item is None:
            return self._read()  # type: ignore[no-any-return]
        return Each(self.length, self.leaves, self.item)


def has_rows(value: Any) -> bool:
    """Whether a list holds as many items as a size says."""
    if type(value) in (list, tuple, dict):
        return any(map(has_rows, value.values() if type(value) is dict else value))
    return type(value) is Rows


def varies(x: Any) -> bool:
    """Whether something is a size that varies."""
    return isinstance(x, Size)


def each_of(x: Any) -> Each | None:
    """What a loop over something goes through, if its length is a size that varies."""
    if isinstance(x, Each):
        return x
    if isinstance(x, Tensor):
        shape = shape_of(x)
        return Each(shape[0], [x], lambda p: p[0]) if shape and varies(shape[0]) else None
    if type(x) in (list, tuple) and len(x) == 1 and type(x[0]) is Rows:
        return x[0].each()
    return None


def steps(start: Any, stop: Any, step: Any) -> Each | None:
    """range(start, stop, step), if it goes one by one and sizes alone say how far; else None."""
    if any(isinstance(x, Number) for x in (start, stop, step)) or step not in (1, -1):
        return None
    recorder = running().recorder
    length = recorder.known.work.canonical((plain(stop) - plain(start)) * step)
    if not varies(length) or recorder.known.known(length, ">=", 0) is not True:
        return None
    counted: Any = ops.arange(recorder.size(length)) * step + start
    return Each(length, [counted], lambda p: Number(int, p[0]))


def length_of(held: Any) -> Any:
    """len(held)"""
    found: Any = 0
    for x in held:
        found = found + (running().recorder.size(x.each().length) if type(x) is Rows else 1)
    return found


def truth(x: Any) -> Any:
    """Whether something holds: of a tensor or Number a Number, of anything else Python's bool."""
    if isinstance(x, Number):
        return x.as_kind(bool)
    if isinstance(x, Tensor):
        if x.numel() != 1:
            how = "more than one value" if x.numel() else "no values"
            raise RuntimeError(f"Boolean value of Tensor with {how} is ambiguous")
        x = x.reshape(())
        x = x if dtype_of(x) == "bool" else x != 0
        context = running()
        if context.pinned:
            context.pin()
            return bool(x)
        return Number(bool, x)
    if type(x) in (list, tuple) and has_rows(x):
        return truth(length_of(x) != 0)
    return bool(x)


# -- Python's functions -----------------------------------------------------------------------------


def _enumerate(x: Any, start: Any = 0) -> Any:
    each = each_of(x)
    if each is None:
        return NotImplemented
    counted: Any = ops.arange(running().recorder.size(each.length)) + start
    return Each(each.length, [counted, *each.parts], lambda p: (Number(int, p[0]), each.item(p[1:])))


def _zip(*many: Any, **kwargs: Any) -> Any:
    found = [each_of(x) for x in many]
    if all(e is None for e in found):
        return NotImplemented
    first = found[0]
    alike = [e for e in found if e is not None and first is not None and e.length is first.length]
    if len(alike) < len(many) or kwargs:
        running().refuse("zips things of different lengths, of which some are sizes that vary")
    ends = [0]
    for e in alike:
        ends.append(ends[-1] + len(e.parts))

    def item(p: list[Any]) -> Any:
        return tuple([e.item(p[a:b]) for e, a, b in zip(alike, ends, ends[1:])])

    return Each(alike[0].length, [p for e in alike for p in e.parts], item)


def _reversed(x: Any) -> Any:
    each = each_of(x)
    return NotImplemented if each is None else each.reversed()


def _len(x: Any) -> Any:
    if isinstance(x, Each):
        return running().recorder.size(x.length)
    if has_rows(x):
        return length_of(x)
    each = each_of(x) if isinstance(x, Tensor) else None
    return NotImplemented if each is None else running().recorder.size(each.length)


def _int(x: Any = 0, *args: Any) -> Any:
    return x if varies(x) else NotImplemented


def _float(x: Any = 0.0) -> Any:
    return number(x).as_kind(float) if varies(x) else NotImplemented


def _isinstance(x: Any, kind: Any) -> Any:
    return issubclass(int, kind) if varies(x) else NotImplemented


def _type(*args: Any) -> Any:
    return int if len(args) == 1 and varies(args[0]) else NotImplemented


OF_SIZES: dict[Any, Callable[..., Any]] = {
    enumerate: _enumerate, zip: _zip, reversed: _reversed, len: _len, int: _int, float: _float,
    isinstance: _isinstance, type: _type,
}  # fmt: skip


# -- lists ------------------------------------------------------------------------------------------


def _some(items: Any, error: Exception) -> None:
    """Raises, at each call, what an op says of a list that has no items."""
    if len(items) == 1:
        recorder, length = running().recorder, items[0].each().length
        if recorder.known.known(length, ">", 0) is True:
            return
        if recorder.may_raise:
            fail_where(Asked(recorder, length, "==", 0), error)
        elif not recorder.decide(length, ">", 0, None, True):
            raise error


def _stacked(items: Any, dim: Any = 0) -> Any:
    _some(items, RuntimeError("stack expects a non-empty TensorList"))
    parts = [_tensors(x) if type(x) is Rows else ops.unsqueeze(x, 0) for x in items]
    made = ops.cat(parts, 0)
    return made if dim == 0 else ops.movedim(made, 0, dim).contiguous()


def _joined(items: Any, dim: Any = 0) -> Any:
    _some(items, ValueError("torch.cat(): expected a non-empty list of Tensors"))
    parts = []
    for x in items:
        if type(x) is Rows:
            rows = _tensors(x)
            at = dim % (rows.ndim - 1)
            x = ops.flatten(ops.movedim(rows, 0, at), at, at + 1)
        parts.append(x)
    return ops.cat(parts, dim)


def _of_numbers(items: Any, dtype: Any = None, **kwargs: Any) -> Any:
    if len(items) != 1 or kwargs or items[0].kind not in (int, float, bool):
        running().refuse("makes a tensor of a list that holds more than the numbers that a loop added")
    each = items[0].each()
    (made,) = each.parts
    if not running().recorder.decide(each.length, ">", 0, None, True):
        return ops.zeros((0,))
    dtype = _core.get_default_dtype() if dtype is None and items[0].kind is float else dtype
    return made.clone() if dtype is None else made.to(dtype, copy=True)


def _tensors(rows: Rows) -> Any:
    each = rows.each()
    if rows.kind is not Tensor:
        running().refuse("takes for tensors the items of a list that are none")
    return each.parts[0]


OF_LISTS: dict[str, Callable[..., Any]] = {
    "stack": _stacked, "cat": _joined, "concat": _joined, "concatenate": _joined, "tensor": _of_numbers,
    "as_tensor": _of_numbers,
}  # fmt: skip
# what knows nothing of the items
COPIES = (list, tuple, id, isinstance, type, callable, hasattr)
ADDS = ("append", "extend", "copy", "clear")
