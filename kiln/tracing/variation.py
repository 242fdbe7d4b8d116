"""What is varied when a function is followed the second time, so that what it makes of it shows.

    types     arguments are of another subclass of Tensor, and know which other attributes they are asked for
    kinds     arguments are Parameters instead of Tensors, and Tensors instead of Parameters: a run of its own
    order     keyword arguments come in another order
    around    more references to arguments, more frames on the stack
    copies    contiguous() gives another object than the argument
    without   arguments have not the user's attribute of that name: a run of its own for each
    same      arguments that look alike are one tensor: a run of its own, for it hides which of them is used

Where the two graphs differ, the function is followed again, with one thing varied at a time: what matters
becomes a condition of the program; what changes with every call is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln import _core
from kiln.errors import is_own
from kiln.graph.size import Size
from kiln.nn.parameter import Parameter
from kiln.table.arguments import recorder_here


class Variation(NamedTuple):
    """Which of these."""

    types: bool = False
    order: bool = False
    around: bool = False
    same: bool = False
    copies: bool = False
    kinds: bool = False
    without: str = ""


NONE, TYPES, ORDER, AROUND = Variation(), Variation(True), Variation(order=True), Variation(around=True)
SAME, COPIES, KINDS = Variation(same=True), Variation(copies=True), Variation(kinds=True)
ALL_BUT_SAME = Variation(True, True, True, copies=True)


class _Varied(_core.Tensor):
    """An argument that says to the program that it is of the other type: a Parameter for a Tensor, and the
    other way round.
    """

    def __getattr__(self, name: str) -> Any:
        recorder = recorder_here()
        if recorder is None:
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        return recorder.attribute_asked(self, name, sys._getframe(1))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        own, other = (_core.Tensor, Parameter) if self._is_plain else (Parameter, _core.Tensor)
        return own if is_own(sys._getframe(1)) else other


class _OfTensor(_Varied):
    _is_plain = True


class _OfParameter(_Varied):
    _is_plain = False


def other_type(kind: type, how: Variation) -> type | None:
    """The type that stands for an argument's: it is no such thing; of types of the user's the same."""
    others: dict[type, type] = {}
    if how.types:
        others = {_core.Tensor: _OfTensor, Parameter: _OfParameter}
    elif how.kinds:
        others = {_core.Tensor: Parameter, Parameter: _core.Tensor}
    return others.get(kind, kind) if others else None


def merged(distinct: list[Any], shapes: dict[int, Any], written: frozenset[int]) -> dict[int, int]:
    """Of arguments that look as an earlier one does: which that is. None that is written."""
    found: dict[int, int] = {}
    if written:
        return found
    first: dict[Any, int] = {}
    for k, x in enumerate(distinct):
        shape = shapes.get(id(x)) or tuple(x.shape)
        told = tuple([(id(n),) if isinstance(n, Size) else n for n in shape])  # (the same size is one object)
        look = (type(x), x.dtype, x.requires_grad, told)
        if first.setdefault(look, k) != k:
            found[k] = first[look]
    return found


def canonical(steps: Any, one: dict[int, int]) -> tuple[list[Any], list[Any]]:
    """Steps and results by what they say, where operands are `one` with others."""
    tensors = steps.tensors - len(steps.again)
    base = steps.tensors + len(steps.numbers)

    def value(k: int) -> tuple[str, int]:
        return ("given", one.get(k, k)) if k < tensors else ("made", k - base)

    def argument(kind: str, x: Any) -> Any:
        return value(x) if kind == "value" else (kind, x - steps.tensors if kind == "operand" else x)

    told = []
    for s in steps.steps:
        arguments = tuple([argument(*arg) for arg in s.args])
        told.append(s._replace(args=arguments, outs=tuple(map(value, s.outs))).what())
    return told, [value(k) for k in steps.results]


def deeper(call: Callable[[], Any]) -> Any:
    """What a call gives, from a frame more."""
    return (lambda: (lambda: call())())()
