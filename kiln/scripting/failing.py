"""Exceptions that depend on values: a number says which of them was raised, and the call raises it.

failure = 0               nothing was raised
failure = k               the k-th exception that the program may raise; what follows is computed in vain
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.scripting.context import Context, Leaving, running
from kiln.scripting.numbers import Number, number
from kiln.table.record import find


def _code(context: Context, error: BaseException) -> int:
    if context.trying or context.trying_outside:
        context.refuse("raises, depending on values, inside a try statement")
    context.raised.append(error)
    return len(context.raised)


def fail_where(flag: Number, error: BaseException) -> None:
    """An exception, where a flag holds."""
    fail_in(running(), flag.tensor, error)


def fail_in(context: Context, flag: Any, error: BaseException) -> None:
    """The same in a run, by a tensor."""
    code = _code(context, error)
    before = number(context.failure).tensor
    now = find("where").handle(flag & (before == 0), number(code).tensor, before)
    context.failure = Number(int, now)


def fails(context: Context, code: Any, errors: list[BaseException]) -> None:
    """One of several exceptions, by a number that is 0 where there is none."""
    first = [_code(context, error) for error in errors][0] - 1
    before = number(context.failure).tensor
    now = find("where").handle((before == 0) & (code != 0), code + first, before)
    context.failure = Number(int, now)


def fail(context: Context, error: BaseException) -> Any:
    """An exception, in a branch that depends on values, which ends there."""
    code = _code(context, error)
    if isinstance(context.failure, Number):
        before = context.failure.tensor
        context.failure = Number(int, find("where").handle(before == 0, number(code).tensor, before))
    elif not context.failure:
        context.failure = code
    raise Leaving


def raised(make: Callable[[], Any], cause: Callable[[], Any] | None = None) -> Any:
    """The exception that a `raise` statement raises."""
    context = running()
    before, context.lenient = context.lenient, bool(context.logs)
    try:
        error = make()
        if isinstance(error, type):
            error = error()
        if cause is not None:
            error.__cause__ = cause()
    finally:
        context.lenient = before
    if not context.logs or context.trying:
        return error
    return fail(context, error)
