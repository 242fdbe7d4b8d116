"""Arithmetic of Numbers, among themselves and beside tensors; `Number` gets its operators here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.graph.size import Size
from kiln.scripting.failing import fail_where
from kiln.scripting.numbers import HALVES, Number, Tensor, cast, dtype_of, number
from kiln.tracing.symbolic import FIRST


def _is_plain(x: Any) -> bool:
    return isinstance(x, (bool, int, float, Size))


def _arithmetic(name: str, reflected: bool) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any) -> Any:
        if isinstance(other, Tensor):
            a, b = (other, self) if reflected else (self, other)
            return beside_tensor(name, a, b)
        if not isinstance(other, Number) and not _is_plain(other):
            return NotImplemented
        a, b = (other, self) if reflected else (self, other)
        return of_numbers(name, a, b)

    return method


def beside_tensor(name: str, a: Any, b: Any) -> Any:
    """An operator of a tensor and a Number."""
    tensor = a if isinstance(a, Tensor) else b
    x, y = (v.beside(tensor) if isinstance(v, Number) else v for v in (a, b))
    made = getattr(x, f"__{name}__")(y)
    if made is NotImplemented:
        made = getattr(y, f"__r{name}__")(x)
    own = dtype_of(tensor)
    return cast(made, own) if own in HALVES and dtype_of(made) == "float32" else made


def of_numbers(name: str, a: Any, b: Any) -> Any:
    """An operator of numbers, as Python has it."""
    x, y = number(a), number(b)
    floats = float in (x.kind, y.kind)
    if name in _COMPARED:
        kind: type = float if floats else int
        return Number(bool, getattr(x.as_kind(kind).tensor, f"__{name}__")(y.as_kind(kind).tensor))
    if name in ("and", "or", "xor") and x.kind is y.kind is bool:
        return Number(bool, getattr(x.tensor, f"__{name}__")(y.tensor))
    if name in ("and", "or", "xor", "lshift", "rshift") and floats:
        raise TypeError(f"unsupported operand type(s) for {name}: 'float'")
    kind = float if floats or name == "truediv" else int
    if name == "pow" and (floats or not isinstance(b, int) or b < 0):
        return x.read("takes a power of, or to, ")
    x, y = x.as_kind(kind), y.as_kind(kind)
    if name in ("truediv", "floordiv", "mod"):
        what = "division by zero" if name == "truediv" or kind is int else f"float {name}"
        fail_where(Number(bool, y.tensor == 0), ZeroDivisionError(what))
    return Number(kind, getattr(x.tensor, f"__{name}__")(y.tensor))


_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift",
    "matmul",
):  # fmt: skip
    setattr(Number, f"__{_name}__", _arithmetic(_name, False))
    setattr(Number, f"__r{_name}__", _arithmetic(_name, True))
FIRST.add(Number)
for _name in _COMPARED:
    setattr(Number, f"__{_name}__", _arithmetic(_name, False))
