"""Conditions and what is made of them: `and`, `or`, `not`, `in`, `a if c else b`, chained comparisons.

If they do not depend on the value of a tensor, they are Python's own. If they do, both sides are followed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from kiln.scripting.blocks import FAILURE, UNSET, Slot, branch, follow, unchanged
from kiln.scripting.context import Context, running
from kiln.scripting.numbers import Number, Tensor
from kiln.scripting.sizes import Asked, has_rows, truth

Thunk = Callable[[], Any]


def just(x: Any) -> Thunk:
    """A function that gives a value."""
    return lambda: x


def clear(*flags: Any) -> Any:
    """Whether no flag is set."""
    held: Any = False
    for flag in flags:
        if held is True or flag is True:
            held = True
        elif held is False or flag is False:
            held = flag if held is False else held
        else:
            held = Number(bool, held.tensor | flag.tensor)
    return not_(held)


def not_(x: Any) -> Any:
    """not x"""
    held = truth(x) if isinstance(x, (Tensor, Number)) or has_rows(x) else x
    return Number(bool, ~held.tensor) if isinstance(held, Number) else not held


def and_(a: Any, b: Thunk) -> Any:
    """a and b()"""
    if not isinstance(a, (Tensor, Number)) or running().pinned:
        return b() if truth(a) else a
    return _both(a, b, False)


def or_(a: Any, b: Thunk) -> Any:
    """a or b()"""
    if not isinstance(a, (Tensor, Number)) or running().pinned:
        return a if truth(a) else b()
    return _both(a, b, True)


def _is_flag(x: Any) -> bool:
    return isinstance(x, bool) or (isinstance(x, Number) and x.kind is bool)


def _both(a: Any, b: Thunk, decides: bool) -> Any:
    """`a or b()` where `decides`, else `a and b()`; b is computed where a does not decide."""
    flag, context = truth(a), running()
    if _is_flag(a) or (isinstance(a, Tensor) and a.dtype == flag.tensor.dtype and not a.ndim):
        cell: list[Any] = []
        slots = [Slot("", lambda: cell[-1] if cell else UNSET, lambda _: None), failure_slot(context)]
        found = follow(context, slots, lambda: cell.append(b()))
        value, failure = found.left
        effects = found.dead or found.written or found.extra or not unchanged(failure, context.failure)
        if not effects and len(found.steps) <= _CHEAP and _is_flag(value):
            value = b()
            if isinstance(value, bool):
                return (True if value else flag) if decides else (flag if value else False)
            return Number(bool, flag.tensor | value.tensor if decides else flag.tensor & value.tensor)
    lost, value = _chosen(flag, (lambda: a) if decides else b, b if decides else (lambda: a))
    if not lost:
        return value
    # of unlike values, what they hold as conditions
    sides = (lambda: truth(a)), (lambda: truth(b()))
    return choose(flag, *(sides if decides else sides[::-1]), 0)


_CHEAP = 8  # steps that are rather done than branched over


def python(x: Any) -> bool:
    """A condition that has to be one of Python's."""
    held = truth(x)
    if isinstance(held, Number) and not isinstance(held, Asked):
        running().refuse("branches on a value in a comprehension, or beside a := of one")
    return bool(held)


def choose(test: Any, yes: Thunk, no: Thunk, line: int) -> Any:
    """yes() if test else no()"""
    held = truth(test)
    if not isinstance(held, Number):
        return yes() if held else no()
    lost, value = _chosen(held, yes, no)
    if lost and isinstance(held, Asked):
        return yes() if held else no()
    if lost:
        running().refuse(f"has a conditional expression on values that {lost}")
    return value


def _chosen(flag: Number, yes: Thunk, no: Thunk) -> tuple[str, Any]:
    """(why there is no value, the value)"""
    cell: list[Any] = [UNSET]
    context = running()

    def put(value: Any) -> None:
        cell[0] = value

    slot = Slot("what a conditional expression gives", lambda: cell[0], put, True)
    slots, asked = [slot, failure_slot(context)], isinstance(flag, Asked)
    lost = branch(context, flag, slots, lambda: put(yes()), lambda: put(no()), asked)
    return ("has no one value", None) if lost is None else (lost.get(0, ""), cell[0])


_SIGNS = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne, "Is": operator.is_, "IsNot": operator.is_not,
}  # fmt: skip


def compared(sign: str, a: Any, b: Any) -> Any:
    """a < b, or another comparison by the name it has in a syntax tree."""
    if has_rows(a) or has_rows(b):
        running().refuse("compares a list whose length is a size that varies")
    return _SIGNS[sign](a, b)


def chain(signs: tuple[str, ...], first: Any, *rest: Thunk) -> Any:
    """first < a() < b() .."""
    left, right = first, rest[0]()
    sign = signs[0]
    if sign in ("In", "NotIn"):
        held = contains(right, left)
        held = held if sign == "In" else not_(held)
    else:
        held = compared(sign, left, right)
    return held if len(rest) == 1 else and_(held, lambda: chain(signs[1:], right, *rest[1:]))


def contains(held: Any, x: Any) -> Any:
    """x in held"""
    if has_rows(held):
        running().refuse("looks for something in a list whose length is a size that varies")
    if isinstance(held, Tensor) and isinstance(x, (Tensor, Number, bool, int, float)):
        equal: Any = held == x
        return truth(equal.any())
    symbolic = isinstance(x, (Tensor, Number))
    if isinstance(held, (list, tuple)) and (symbolic or any(isinstance(v, (Tensor, Number)) for v in held)):
        found: Any = False
        for v in held:
            one: Any = True if v is x else truth(v == x)
            found = or_(found, just(one))
        return found
    if isinstance(held, (dict, set)) and isinstance(x, Number):
        return running().refuse("looks up a number that depends on the value of a tensor")
    return x in held


def failure_slot(context: Context) -> Slot:
    def write(value: Any) -> None:
        context.failure = value

    return Slot(FAILURE, lambda: context.failure, write, True)
