"""What the standard's functions share: checks of arguments, promotion, axes."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from functools import reduce
from typing import Any

from kiln import _core, ops
from kiln.device import CPU as CPU
from kiln.device import device as _device
from kiln.errors import describe, message

# kind -> the dtypes of the standard, then those beside it
KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8",),
    "real floating": ("float32", "float64", "float16", "bfloat16"),
    "complex floating": (),
}
BESIDE = ("float16", "bfloat16")
NAMES = tuple(name for names in KINDS.values() for name in names if name not in BESIDE)
UNIONS = {
    "integral": ("signed integer", "unsigned integer"),
    "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating"),
}
_ORDER = ("bool", *UNIONS["integral"], "real floating")
_NUMBER = {builtins.bool: "bool", builtins.int: "int64", builtins.float: ""}  # "": the default dtype


def public(module: Any) -> dict[str, Any]:
    """The functions of the standard that a module defines: all without an underscore."""
    return {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }


def named(function: Any, name: str, module: str, doc: str) -> Any:
    """A function made in a loop, under the name that it has in the standard."""
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = module, doc
    return function


def check_device(given: Any) -> None:
    """RuntimeError for a device other than the CPU."""
    if given is not None and _device(given).type != "cpu":
        raise RuntimeError(message("device", "'cpu'", repr(str(given)), "there is no other"))


def array(x: Any, name: str) -> _core.Tensor:
    """The array itself. TypeError for anything else."""
    if not isinstance(x, _core.Tensor):
        raise TypeError(message(name, "an array", describe(x)))
    return x


def kind_of(dtype: Any) -> str:
    """The standard's kind of a dtype."""
    return next(kind for kind, names in KINDS.items() if dtype.name in names)


def rank_of(dtype: Any) -> int:
    """bool 0, integers 1, floats 2: a Python number gives way to an array of its rank or above."""
    return (0, 1, 1, 2)[_ORDER.index(kind_of(dtype))]


def common_dtype(name: str, items: Iterable[Any]) -> Any:
    """The dtype of a computation with arrays, dtypes and Python numbers. ValueError for numbers alone."""
    found, numbers = [], []
    for item in items:
        if isinstance(item, (_core.Tensor, _core.dtype)):
            found.append(item if isinstance(item, _core.dtype) else item.dtype)
        elif isinstance(item, (builtins.bool, int, float)):
            numbers.append(_NUMBER[type(item) if type(item) in _NUMBER else float])
        else:
            raise TypeError(message(name, "arrays, dtypes or Python numbers", describe(item)))
    if not found:
        raise ValueError(message(name, "at least one array or dtype", "none"))
    result = reduce(_core.promote_types, found)
    for number in numbers:
        dtype = getattr(_core, number or _core.default_dtype_name())
        if rank_of(dtype) > rank_of(result):
            result = _core.promote_types(result, dtype)
    return result


def promote(name: str, *items: Any) -> list[Any]:
    """Arrays and Python numbers as arrays of one dtype. TypeError if none is an array."""
    if not any(isinstance(item, _core.Tensor) for item in items):
        raise TypeError(message(name, "at least one array", ", ".join(map(describe, items))))
    dtype = common_dtype(name, items)
    return [
        item.to(dtype) if isinstance(item, _core.Tensor) else ops.tensor(item, dtype=dtype) for item in items
    ]


def place(axis: Any, ndim: int, name: str) -> int:
    """An axis counted from the front. IndexError for one that is not there, TypeError for no integer."""
    try:
        index = axis.__index__()
    except AttributeError:
        raise TypeError(message(name, "an integer axis", describe(axis))) from None
    if not -ndim <= index < ndim:
        raise IndexError(message(name, f"an axis in [{-ndim}, {ndim - 1}]", str(index)))
    return int(index) % ndim


def places(axis: Any, ndim: int, name: str) -> tuple[int, ...]:
    """Axes (None: all) counted from the front. ValueError for a repeated one."""
    if axis is None:
        return tuple(range(ndim))
    found = tuple(place(a, ndim, name) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(set(found)) != len(found):
        raise ValueError(message(name, "different axes", str(axis)))
    return found


def reduced(x: _core.Tensor, axis: Any, name: str) -> tuple[Any, tuple[int, ...], bool]:
    """(array, dims, whether there is one to keep): over no axes it is a new last one that is reduced."""
    dims = places(axis, array(x, name).ndim, name)
    return (x, dims, True) if dims else (ops.unsqueeze(x, -1), (-1,), False)


def total_dtype(dtype: Any, asked: Any) -> Any:
    """The dtype of a sum or product: what is asked for, int64 for integers and bool, the array's own."""
    return asked if asked is not None else _core.int64 if rank_of(dtype) < 2 else dtype
