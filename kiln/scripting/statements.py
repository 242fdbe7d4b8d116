"""Statements: `if`, `while`, `for`, `return`, `try`, `assert`, and annotations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kiln.errors import place
from kiln.scripting.arithmetic import of_numbers
from kiln.scripting.blocks import UNSET, Slot, branch
from kiln.scripting.conditions import Thunk, and_, failure_slot, or_
from kiln.scripting.context import Context, running
from kiln.scripting.failing import fail_where, raised
from kiln.scripting.items import changes
from kiln.scripting.loops import Loop, Scan
from kiln.scripting.lower import LEFT, PREFIX, VALUE
from kiln.scripting.numbers import Number, Tensor, of_item
from kiln.scripting.sizes import Asked, Rows, each_of, has_rows, truth, varies

_NAMES = {VALUE: "what the function returns", LEFT: "whether the function returns"}


class Range:
    """range(...) of numbers that depend on values."""

    def __init__(self, *args: Any) -> None:
        given = [of_item(a) if isinstance(a, Tensor) else a for a in args]
        found: Any = (0, given[0], 1) if len(given) == 1 else (*given, 1) if len(given) == 2 else given
        self.start, self.stop, self.step = found
        for x in given:
            if varies(x):
                continue
            if (x.kind if isinstance(x, Number) else type(x)) is float:
                raise TypeError("'float' object cannot be interpreted as an integer")

    def __iter__(self) -> Any:
        return running().refuse("goes through a range whose length depends on the value of a tensor")

    __len__ = __getitem__ = __contains__ = __iter__


def _slots(
    names: tuple[str, ...], get: Callable[[], list[Any]], put: Callable[[list[Any]], None]
) -> list[Slot]:
    def slot(k: int, name: str) -> Slot:
        def write(value: Any) -> None:
            values = get()
            values[k] = value
            put(values)

        return Slot(_NAMES.get(name, name), lambda: get()[k], write, name.startswith(PREFIX))

    return [slot(k, name) for k, name in enumerate(names)]


def _lose(context: Context, slots: list[Slot], lost: dict[int, str], get: Any, line: int) -> None:
    where = place(get.__code__.co_filename, line)
    for k, why in lost.items():
        slots[k].write(UNSET)
        name = VALUE if slots[k].name == _NAMES[VALUE] else slots[k].name
        context.unset[name] = f"{slots[k].name} {why} ({where})"


def if_(test: Any, yes: Thunk, no: Thunk, get: Any, put: Any, names: tuple[str, ...], line: int) -> None:
    """if test: yes() else: no()"""
    held = truth(test)
    if not isinstance(held, Number):
        (yes if held else no)()
        return
    context = running()
    slots = [*_slots(names, get, put), failure_slot(context)]
    lost = branch(context, held, slots, yes, no, isinstance(held, Asked))
    if lost is None:  # one side, and a check of the sizes at each call
        (yes if held else no)()
        return
    _lose(context, slots, lost, get, line)


def while_(test: Thunk, body: Thunk, get: Any, put: Any, names: tuple[str, ...], line: int) -> None:
    """while test(): body()"""
    while True:
        held = truth(test())
        if isinstance(held, Number):
            break
        if not held:
            return
        body()
    _loop(test, body, get, put, names, line, [])


def _loop(test: Thunk, body: Thunk, get: Any, put: Any, names: Any, line: int, more: list[Slot]) -> None:
    context = running()
    slots = [*_slots(names, get, put), *more, failure_slot(context)]
    _lose(context, slots, Loop(context, slots, test, body).run() or {}, get, line)


def for_(
    over: Any,
    body: Callable[[Any], None],
    go: Thunk | None,
    targets: tuple[str, ...],
    get: Any,
    put: Any,
    names: tuple[str, ...],
    line: int,
) -> None:
    """for item in over: body(item); `go()` before each step, where there are ways out."""
    each = each_of(over)
    if each is not None and go is None:
        context = running()
        slots = [*_slots(names, get, put), failure_slot(context)]
        lost = Scan(context, slots, each, body).run()
        if lost is not None:
            _lose(context, slots, lost, get, line)
        elif context.recorder.decide(each.length, ">", 0, None, True):
            # a name has another type or shape after the first step: that one is done by itself
            body(each.item([p[0] for p in each.parts]))
            rest = each.rest()
            if isinstance(rest.length, int):
                for_(
                    range(rest.length),
                    lambda k: body(rest.item([p[k] for p in rest.parts])),
                    go,
                    targets,
                    get,
                    put,
                    names,
                    line,
                )
                return
            lost = Scan(context, slots, rest, body, True).run()
            _lose(context, slots, lost or {}, get, line)
        return
    if isinstance(over, Range) or each is not None:
        _for_range(over if each is None else each.positions(), body, go, get, put, names, line)
        return
    item: Any
    for item in entered_in(over):
        if type(item) is Rows:
            for_(item.each(), body, go, targets, get, put, names, line)
            continue
        held = True if go is None else go()
        if not isinstance(held, Number):
            if not held:
                return
            body(item)
            continue
        if_(held, functools.partial(body, item), lambda: None, get, put, names, line)


def _for_range(over: Any, body: Any, go: Any, get: Any, put: Any, names: Any, line: int) -> None:
    if isinstance(over.step, Number) or over.step == 0:
        none: Any = of_numbers("eq", over.step, 0)
        fail_where(none, ValueError("range() arg 3 must not be zero"))
    cell: list[Any] = [over.start]
    item = getattr(over, "item", lambda i: i)

    def write(value: Any) -> None:
        cell[0] = value

    def more() -> Any:
        by: Any = over.step
        if type(by) is Number:
            inside = or_(
                and_(of_numbers("gt", by, 0), lambda: cell[0] < over.stop), lambda: cell[0] > over.stop
            )
        else:
            inside = of_numbers("lt" if over.step > 0 else "gt", cell[0], over.stop)
        return inside if go is None else and_(go(), lambda: inside)

    def step() -> None:
        i = cell[0]
        cell[0] = i + over.step
        body(item(i))

    counter = Slot("the position in a range", lambda: cell[0], write, True)
    _loop(more, step, get, put, names, line, [counter])


def returned(left: Any, value: Thunk) -> Any:
    """What a function returns, if it came to a return."""
    if left is False:
        return None
    found = value()
    if left is not True and found is not None:
        running().refuse("returns something on one path and, depending on values, nothing on another")
    return found


@contextmanager
def trying() -> Iterator[None]:
    """The body of a `try` statement."""
    context = running()
    context.trying += 1
    try:
        yield
    finally:
        context.trying -= 1


def assert_(test: Any, message: Thunk | None) -> None:
    """assert test, message()"""
    held = truth(test)
    context = running()
    if held is True:
        return
    before, context.lenient = context.lenient, isinstance(held, Number)
    try:
        error = AssertionError() if message is None else AssertionError(message())
    finally:
        context.lenient = before
    if not isinstance(held, Number):
        raise raised(lambda: error)
    fail_where(Number(bool, ~held.tensor), error)


def annotated(value: Any, told: str) -> Any:
    """A value of an annotated name, which is believed, and checked where the type is a plain one."""
    wanted = {"int": int, "float": float, "bool": bool, "str": str}.get(told)
    if wanted is not None:
        kind = value.kind if isinstance(value, Number) else type(value)
        if issubclass(kind, Tensor) or (kind in (int, float, bool, str) and not _fits(kind, wanted)):
            running().refuse(f"gives a name of type {told} a {kind.__name__}")
    elif told.rpartition(".")[2] == "Tensor" and isinstance(value, (Number, bool, int, float, str)):
        kind = value.kind if isinstance(value, Number) else type(value)
        running().refuse(f"gives a name of type Tensor a {kind.__name__}")
    return value


def _fits(kind: type, wanted: type) -> bool:
    return kind is wanted or (wanted is float and kind is int) or (wanted is int and kind is bool)


def shown(x: Any) -> Any:
    """A value in an f-string."""
    if isinstance(x, (Tensor, Number)) and running().lenient:
        return _Shown()
    return x


class _Shown:
    """Stands for the text of a tensor in a message that is only shown later."""

    def __format__(self, how: str) -> str:
        return "?"

    def __repr__(self) -> str:
        return "?"


def over(x: Any) -> Any:
    """What a comprehension goes through."""
    if has_rows(x):
        running().refuse("goes through a list whose length is a size that varies, beside another loop")
    return entered_in(x)


def listed(x: Any, make: Callable[[Any], list[Any]], line: int) -> list[Any]:
    """[f(v) for v in x], as make(x)"""
    context = running()
    if each_of(x) is None and not has_rows(x):
        made: list[Any] = context.new(make(x))
        return made
    found: list[Any] = context.new([])

    def body(item: Any) -> None:
        changes(found, True)
        found.extend(make([item]))

    def get() -> list[Any]:
        return []

    for_(x, body, None, (), get, lambda values: None, (), line)
    return found


def entered_in(x: Any) -> Any:
    """What a loop goes through: an iterator that is there before the call would be left further on."""
    if hasattr(type(x), "__next__"):
        running().touch(x)
    return x
