"""Names for annotations, as `torch.types` has them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Real
from typing import IO, Any, TypeAlias, Union

from kiln._core import Size, Tensor
from kiln._core import dtype as _DType
from kiln.absent import leave_out as _leave_out
from kiln.device import device as _Device
from kiln.errors import describe as _describe
from kiln.ops.views.storage import TypedStorage, UntypedStorage
from kiln.table.callables import name_all as _name_all

__all__ = ["Device", "FileLike", "Number", "Size", "Storage", "SymBool", "SymFloat", "SymInt", "Tensor"]

Number: TypeAlias = int | float | bool
Device: TypeAlias = Union[_Device, str, int, None]
FileLike: TypeAlias = Union[str, "os.PathLike[str]", IO[bytes]]
Storage: TypeAlias = Union[TypedStorage, UntypedStorage]
_size: TypeAlias = Union[Size, list[int], tuple[int, ...]]
_device, _dtype = _Device, _DType
_int, _float, _bool = int, float, bool
_TensorOrTensors: TypeAlias = Union[Tensor, Sequence[Tensor]]


class _Sizes(type):
    """Sizes that vary are of the class, whatever they are made of."""

    def __instancecheck__(cls, x: object) -> bool:
        return hasattr(type(x), "terms")


class _Symbolic:
    """Of numbers that are left open while a program is read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}: such numbers come from shapes that vary")


class SymInt(_Symbolic, metaclass=_Sizes):
    """A size that varies: of `kiln.graph.placeholder("x", ("n",))`, of a trace with `dynamic_shapes`, in the
    graphs that a backend is given with `dynamic=True`.

    >>> isinstance(kiln.graph.placeholder("x", ("n",)).shape[0], kiln.SymInt)
    True
    """


class SymFloat(_Symbolic):
    """A number that is not known yet: no value is one."""


class SymBool(_Symbolic):
    """A truth that is not known yet: no value is one."""


def _numbers(name: str, *given: Any) -> tuple[Any, ...]:
    """Numbers as `max` and `min` compare them: all floats where one is. TypeError for what is none."""
    for x in given:
        if not (isinstance(x, Real) or hasattr(x, "terms")):
            raise TypeError(f"{name}: expected a number, got {_describe(x)}")
    return tuple(map(float, given)) if any(isinstance(x, float) for x in given) else given


def sym_max(a: Any, b: Any) -> Any:
    """The larger of two numbers or sizes, a float where one of them is.

    >>> kiln.sym_max(1, 2.0)
    2.0
    """
    return max(_numbers("sym_max", a, b))


def sym_min(a: Any, b: Any) -> Any:
    """The smaller of two numbers or sizes, a float where one of them is.

    >>> kiln.sym_min(1, 2.0)
    1.0
    """
    return min(_numbers("sym_min", a, b))


def sym_int(a: Any) -> Any:
    """A number as a whole one, towards zero; a size as it is.

    >>> kiln.sym_int(-2.7)
    -2
    """
    return a if hasattr(a, "terms") else int(a)


def sym_float(a: Any) -> float:
    """A number or a size as a float.

    >>> kiln.sym_float(3)
    3.0
    """
    return float(a)


def sym_not(a: Any) -> bool:
    """Whether something is not true.

    >>> kiln.sym_not(3 > 4)
    True
    """
    return not a


def sym_ite(b: Any, t: Any, f: Any) -> Any:
    """`t` if `b` holds, else `f`; AssertionError where they are of two types, or `b` is no truth.

    >>> kiln.sym_ite(3 > 4, 1, 2)
    2
    """
    assert isinstance(b, bool), f"expected SymBool or bool, got {type(b)}"
    assert type(t) is type(f), f"type mismatch: {type(t)} vs {type(f)}"
    return t if b else f


def sym_sum(*args: Any) -> Any:
    """The sum of numbers or sizes, given by themselves or as a list.

    >>> kiln.sym_sum([1, 2, 3])
    6
    """
    return sum(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args)


def sym_sqrt(a: Any) -> float:
    """The root of a number or a size; ValueError for one below 0.

    >>> kiln.sym_sqrt(4)
    2.0
    """
    return math.sqrt(a)


_leave_out(
    _Symbolic, "as_integer_ratio bit_length conjugate hex is_integer", "numbers that vary have no digits"
)


_name_all(globals(), __name__)
