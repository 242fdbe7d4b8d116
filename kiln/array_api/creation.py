"""Creation functions of the standard."""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.array_api import common as _common
from kiln.errors import describe as _describe
from kiln.errors import message as _message


def _must_copy(name: str) -> ValueError:
    return ValueError(_message(name, "memory that can be shared", "copy=False where a copy is needed"))


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> _core.Tensor:
    """The numbers from `start` (0 if `stop` is not given) to before `stop`, by `step`; there may be none."""
    _common.check_device(device)
    start, stop = (0, start) if stop is None else (start, stop)
    if step and (stop - start) / step <= 0:
        floats = any(isinstance(x, float) for x in (start, stop, step))
        return ops.empty(0, dtype=dtype or (_core.get_default_dtype() if floats else _core.int64))
    return ops.arange(start, stop, step, dtype=dtype)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> _core.Tensor:
    """`obj` (a tensor, an array of another library, numbers, nested sequences of them) as an array, sharing
    memory where it can unless `copy`. ValueError if `copy=False` and it cannot.
    """
    _common.check_device(device)
    if isinstance(obj, _core.Tensor):
        source = obj
    elif hasattr(obj, "__array_interface__"):
        source = ops.as_tensor(obj)
    elif hasattr(obj, "__dlpack__"):
        source = ops.from_dlpack(obj)
    elif copy is False:
        raise _must_copy("asarray")
    else:
        return ops.tensor(obj, dtype=dtype)
    if copy is False and dtype is not None and dtype != source.dtype:
        raise _must_copy("asarray")
    return source.to(source.dtype if dtype is None else dtype, copy=bool(copy))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> _core.Tensor:
    """Another library's array as an array that shares its memory, or a copy."""
    return ops.from_dlpack(x, device=device, copy=copy)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of a shape with no values given."""
    _common.check_device(device)
    return ops.empty(shape, dtype=dtype)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of ones."""
    _common.check_device(device)
    return ops.ones(shape, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of zeros."""
    _common.check_device(device)
    return ops.zeros(shape, dtype=dtype)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of one number, whose kind says the dtype if none is given."""
    _common.check_device(device)
    return ops.full((shape,) if isinstance(shape, int) else shape, fill_value, dtype=dtype)


def empty_like(x: _core.Tensor, /, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of x's shape and dtype with no values given."""
    _common.check_device(device)
    return ops.empty_like(_common.array(x, "empty_like"), dtype=dtype)


def ones_like(x: _core.Tensor, /, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of ones of x's shape and dtype."""
    _common.check_device(device)
    return ops.ones_like(_common.array(x, "ones_like"), dtype=dtype)


def zeros_like(x: _core.Tensor, /, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of zeros of x's shape and dtype."""
    _common.check_device(device)
    return ops.zeros_like(_common.array(x, "zeros_like"), dtype=dtype)


def full_like(x: _core.Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """An array of one number, of x's shape and dtype."""
    _common.check_device(device)
    return ops.full_like(_common.array(x, "full_like"), fill_value, dtype=dtype)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> _core.Tensor:
    """Ones on the k-th diagonal of an (n_rows, n_cols) array of zeros."""
    _common.check_device(device)
    rows, columns = ops.arange(n_rows), ops.arange(n_rows if n_cols is None else n_cols)
    return ops.eq(ops.unsqueeze(rows + k, 1), columns).to(dtype or _core.get_default_dtype())


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> _core.Tensor:
    """`num` numbers evenly from `start` to `stop`, or to before it."""
    _common.check_device(device)
    if endpoint:
        return ops.linspace(start, stop, num, dtype=dtype)
    return ops.linspace(start, stop, num + 1, dtype=dtype)[:-1]


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    """Coordinates of a grid from those of its axes: arrays of one dtype and one or no dims. ValueError for
    other arrays or another indexing than "xy" and "ij".
    """
    for x in arrays:
        _common.array(x, "meshgrid")
    if len({x.dtype for x in arrays}) > 1 or any(x.ndim > 1 for x in arrays):
        raise ValueError(_message("meshgrid", "arrays of one dtype and at most one dim", "others"))
    if indexing not in ("xy", "ij"):
        raise ValueError(_message("meshgrid", "indexing 'xy' or 'ij'", _describe(indexing)))
    return list(ops.meshgrid(*(x.reshape(-1) for x in arrays), indexing=indexing)) if arrays else []


def tril(x: _core.Tensor, /, *, k: int = 0) -> _core.Tensor:
    """The array with zeros above the k-th diagonal of its last two axes."""
    return ops.tril(_common.array(x, "tril"), k)


def triu(x: _core.Tensor, /, *, k: int = 0) -> _core.Tensor:
    """The array with zeros below the k-th diagonal of its last two axes."""
    return ops.triu(_common.array(x, "triu"), k)
