"""Statistical and utility functions of the standard, and counts."""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.array_api import common as _common
from kiln.errors import message as _message


def _over(name: str, function: Any, x: _core.Tensor, axis: Any, keepdims: bool, *more: Any) -> Any:
    """A reduction of kiln's over axes: `function(x, dims, *more, keepdim)`."""
    x, dims, some = _common.reduced(x, axis, name)
    return function(x, dims, *more, bool(keepdims and some))


def all(x: _core.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether every element along axes is nonzero: bool, true of none."""
    return _over("all", ops.all, _truth(x, "all"), axis, keepdims)


def any(x: _core.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether an element along axes is nonzero: bool, false of none."""
    return _over("any", ops.any, _truth(x, "any"), axis, keepdims)


def _truth(x: _core.Tensor, name: str) -> _core.Tensor:
    return _common.array(x, name).to(_core.bool)


def count_nonzero(x: _core.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements along axes are nonzero: int64."""
    truth = _truth(x, "count_nonzero")
    return _over("count_nonzero", _sum, truth, axis, keepdims, _core.int64)


def _sum(x: _core.Tensor, dims: Any, dtype: Any, keepdim: bool) -> _core.Tensor:
    return ops.sum(x, dims, keepdim, dtype=dtype)


def _prod(x: _core.Tensor, dims: Any, dtype: Any, keepdim: bool) -> _core.Tensor:
    return ops.prod(x, dims, keepdim, dtype=dtype)


def sum(x: _core.Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum along axes; of integers and bool int64, unless a dtype is given."""
    dtype = _common.total_dtype(_common.array(x, "sum").dtype, dtype)
    return _over("sum", _sum, x, axis, keepdims, dtype)


def prod(x: _core.Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The product along axes; of integers and bool int64, unless a dtype is given."""
    dtype = _common.total_dtype(_common.array(x, "prod").dtype, dtype)
    return _over("prod", _prod, x, axis, keepdims, dtype)


def max(x: _core.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The greatest element along axes, NaN if there is one. ValueError over no elements."""
    return _over("max", _filled(ops.amax, "max"), x, axis, keepdims)


def min(x: _core.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The least element along axes, NaN if there is one. ValueError over no elements."""
    return _over("min", _filled(ops.amin, "min"), x, axis, keepdims)


def _filled(function: Any, name: str) -> Any:
    """The reduction, which has no value of no elements."""

    def call(x: Any, dims: Any, keepdim: bool) -> Any:
        if 0 in [x.shape[d] for d in dims]:
            raise ValueError(_message(name, "at least one element", f"shape {tuple(x.shape)}"))
        return function(x, dims, keepdim)

    return call


def mean(x: _core.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean along axes of floats."""
    return _over("mean", ops.mean, x, axis, keepdims)


def _spread(name: str, function: Any, x: _core.Tensor, axis: Any, correction: float, keepdims: bool) -> Any:
    x, dims, some = _common.reduced(x, axis, name)
    return function(x, dims, correction=correction, keepdim=bool(keepdims and some))


def std(x: _core.Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The standard deviation along axes of floats, over n - correction elements."""
    return _spread("std", ops.std, x, axis, correction, keepdims)


def var(x: _core.Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The variance along axes of floats, over n - correction elements."""
    return _spread("var", ops.var, x, axis, correction, keepdims)


def cumulative_sum(
    x: _core.Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """Running sums along an axis (an array of one dim needs none), after a 0 if `include_initial`."""
    return _running("cumulative_sum", ops.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: _core.Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """Running products along an axis (an array of one dim needs none), after a 1 if `include_initial`."""
    return _running("cumulative_prod", ops.cumprod, 1, x, axis, dtype, include_initial)


def _running(
    name: str, function: Any, first: int, x: _core.Tensor, axis: Any, dtype: Any, initial: bool
) -> Any:
    if axis is None and _common.array(x, name).ndim != 1:
        raise ValueError(_message(name, "an axis for an array that has not one dim", f"{x.ndim} dims"))
    dim = _common.place(0 if axis is None else axis, x.ndim, name)
    result = function(x, dim, dtype=_common.total_dtype(x.dtype, dtype))
    if not initial:
        return result
    shape = [*result.shape[:dim], 1, *result.shape[dim + 1 :]]
    return ops.cat([ops.full(shape, first, dtype=result.dtype), result], dim)


def diff(
    x: _core.Tensor, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> _core.Tensor:
    """Differences of neighbours along an axis, n times, with arrays joined before and after."""
    dim = _common.place(axis, _common.array(x, "diff").ndim, "diff")
    parts = [part for part in (prepend, x, append) if part is not None]
    return ops.diff(ops.cat(_common.promote("diff", *parts), dim), n, dim)
