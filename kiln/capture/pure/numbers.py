"""Which of a call's numbers only ops see: those may be others in the next call of the same variant.

    cell(x, 3)    run once on 3, and once on what stands in for it
                  steps alike but for the number given to ops there   -> a number of the op's, at each call
                  Python read it (a branch, range, arithmetic)        -> part of how the call looks

What stands in is no int or float: whatever asks for its value, in Python or in C, comes by its methods. Only
an op that takes it as a number does not. It has another value than the number has, so that a way by which it
came to an op that knew its value would be seen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.capture.pure.call import Call
from kiln.capture.pure.steps import Step
from kiln.capture.pure.trace import Tracer

Places = dict[tuple[int, int], int]  # (step, argument) -> which of the numbers it is

_READS = (
    "add sub mul truediv floordiv mod divmod pow lshift rshift and or xor matmul radd rsub rmul rtruediv "
    "rfloordiv rmod rdivmod rpow rlshift rrshift rand ror rxor rmatmul eq ne lt le gt ge"
).split()
_ASKS = (
    "bool int float complex index hash repr str format neg pos abs invert round trunc floor ceil len iter "
    "reduce_ex sizeof dir bytes"
).split()


class StandIn:
    """Stands in for a number."""

    __slots__ = ("_kind", "read", "stands_in")

    def __init__(self, value: Any) -> None:
        self.stands_in = value
        self._kind = type(value)
        self.read = False

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._kind

    def __getattr__(self, name: str) -> Any:
        self.read = True
        raise AttributeError(name)


class _Read(Exception):
    """Somebody asks for a value that only ops may see."""


def _add_methods() -> None:
    def asks(self: StandIn, *args: Any) -> Any:
        self.read = True
        raise _Read

    def reads(self: StandIn, other: Any, *more: Any) -> Any:
        if isinstance(other, _core.Tensor):
            return NotImplemented  # what it does with numbers is an op
        return asks(self)

    for name in _READS:
        setattr(StandIn, f"__{name}__", reads)
    for name in _ASKS:
        setattr(StandIn, f"__{name}__", asks)


_add_methods()
_core.set_stand_in(StandIn)


def letters_of(numbers: list[Any]) -> str:
    """A letter for each: "f" or "i"."""
    return "".join("f" if isinstance(x, float) else "i" for x in numbers)


def fits_number(x: Any) -> bool:
    """Whether an op can be given it as a number."""
    return isinstance(x, float) or abs(x) < 1 << 62


def same_number(a: Any, b: Any) -> bool:
    """Whether two numbers are the same in kind and bits."""
    if type(a) is not type(b):
        return False
    return struct.pack("<d", a) == struct.pack("<d", b) if isinstance(a, float) else bool(a == b)


def flowing(
    call: Call, first: Tracer, outcome: Any, run: Callable[[Call], tuple[Tracer, Any]]
) -> tuple[tuple[int, ...], Places]:
    """(the numbers that only ops see, where ops are given them), of a call whose trace was `first`.

    `run` traces another call; `outcome` is what it gives besides steps.
    """
    left = [k for k, x in enumerate(call.numbers) if fits_number(x)]
    while left:
        numbers = list(call.numbers)
        for k in left:
            numbers[k] = StandIn(_other(call.numbers[k], k))
        found: Any = None
        try:
            found = _alike(first, outcome, *run(call.instead(call.leaves, numbers)), call.numbers, numbers)
        except Exception:  # what it is told of, it read; the rest is the first run's to tell
            pass
        dropped = {k for k in left if numbers[k].read}
        if isinstance(found, int):
            dropped.add(found)
        elif found is not None and not dropped:
            return tuple(left), found
        if not dropped:
            break
        left = [k for k in left if k not in dropped]
    return (), {}


def _other(number: Any, k: int) -> Any:
    """A number of the same type, small enough for any dtype, unlike it and unlike those of other places."""
    if isinstance(number, float):
        return 0.8125 + k / 4096 + (0.03125 if 0.75 < number < 1.5 else 0.0)
    return 60 + 2 * (k % 20) + (number % 2 == 0)


def _alike(
    first: Tracer, outcome: Any, again: Tracer, came: Any, numbers: list[Any], others: list[Any]
) -> Places | int | None:
    """Where the second run has others in place of the first one's numbers; one that is seen otherwise than as
    it is; None if the runs differ in more.
    """
    same = outcome == came and first.facts() == again.facts() and len(first.steps) == len(again.steps)
    if not same or any(a is not b for a, b in zip(first.operands, again.operands)):
        return None
    places: Places = {}
    by_value = {k for k, x in enumerate(others) if not isinstance(x, StandIn)}
    for at, (a, b) in enumerate(zip(first.steps, again.steps)):
        if a._replace(args=()).what() != b._replace(args=()).what() or len(a.args) != len(b.args):
            return None
        for i, (x, y) in enumerate(zip(a.args, b.args)):
            if repr(x) == repr(y):
                continue
            if x[0] != "number" or y[0] != "number":
                return None
            k = next((k for k, o in enumerate(others) if k not in by_value and y[1] == o.stands_in), None)
            if k is None:
                return None
            if not same_number(x[1], numbers[k]) or not same_number(y[1], others[k].stands_in):
                return k
            if _looks_at_values(a):
                return k
            places[at, i] = k
    return places


def _looks_at_values(step: Step) -> bool:
    """Whether an op refuses some values, which are looked at before it runs."""
    return not isinstance(step.op, str) and (step.op.checks is not None or step.op.divides)
