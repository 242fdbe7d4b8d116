"""Data type functions of the standard."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln import _core
from kiln.array_api.common import KINDS as _KINDS
from kiln.array_api.common import UNIONS as _UNIONS
from kiln.array_api.common import array as _array
from kiln.array_api.common import check_device as _check_device
from kiln.array_api.common import common_dtype as _common_dtype
from kiln.array_api.common import kind_of as _kind_of
from kiln.errors import describe as _describe
from kiln.errors import message as _message
from kiln.ops.creation import dtypes as _dtypes


class _FloatInfo(NamedTuple):
    """The limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any


class _IntInfo(NamedTuple):
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Any


def _limits(kind: Any, info: Any, type: Any) -> Any:
    dtype = type.dtype if isinstance(type, _core.Tensor) else type
    found = info(dtype)
    return kind(*(getattr(found, field) for field in kind._fields[:-1]), dtype)


def finfo(type: Any, /) -> Any:
    """bits, eps, max, min, smallest_normal and dtype of a float dtype or of an array's."""
    return _limits(_FloatInfo, _dtypes.finfo, type)


def iinfo(type: Any, /) -> Any:
    """bits, max, min and dtype of an integer dtype or of an array's."""
    return _limits(_IntInfo, _dtypes.iinfo, type)


def astype(x: _core.Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> _core.Tensor:
    """The array as another dtype; with `copy=False` itself if that is its dtype."""
    _check_device(device)
    return _array(x, "astype").to(dtype, copy=copy)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether a dtype, or an array's, promotes to another: within its kind, or uint8 to a wider integer."""
    dtype = from_.dtype if isinstance(from_, _core.Tensor) else from_
    for given in (dtype, to):
        if not isinstance(given, _core.dtype):
            raise TypeError(_message("can_cast", "dtypes", _describe(given)))
    kinds = {_kind_of(dtype), _kind_of(to)}
    alike = len(kinds) == 1 or kinds == set(_UNIONS["integral"])
    return alike and _core.promote_types(dtype, to) == to


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is another, is of a kind ("bool", "signed integer", "unsigned integer", "integral",
    "real floating", "complex floating", "numeric"), or either of a tuple of such. float16 and bfloat16 are
    real floating. ValueError for an unknown kind.
    """
    if not isinstance(dtype, _core.dtype):
        raise TypeError(_message("isdtype", "a dtype", _describe(dtype)))
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, _core.dtype):
        return bool(dtype == kind)
    if not isinstance(kind, str):
        raise TypeError(_message("isdtype", "a dtype, a kind or a tuple of them", _describe(kind)))
    if kind not in _KINDS and kind not in _UNIONS:
        raise ValueError(_message("isdtype", f"one of {', '.join((*_KINDS, *_UNIONS))}", repr(kind)))
    return _kind_of(dtype) in _UNIONS.get(kind, (kind,))


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype of a computation with arrays, dtypes and Python numbers; a number gives way to an array or
    dtype of its kind or above. ValueError for numbers alone.
    """
    return _common_dtype("result_type", arrays_and_dtypes)
