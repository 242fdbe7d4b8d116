"""Functions of the standard that search, sort, pick elements and find distinct ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln import _core, ops
from kiln.array_api import common as _common
from kiln.errors import describe as _describe
from kiln.errors import message as _message


def _positions(indices: Any, name: str) -> Any:
    if _common.rank_of(_common.array(indices, name).dtype) != 1:
        raise TypeError(_message(name, "an array of integers", _describe(indices)))
    return indices.to(_core.int64)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """The elements along an axis at positions (negative ones from the end): one dim of `indices`.
    IndexError for a position that is not there, ValueError without an axis unless the array has one dim.
    """
    if axis is None and _common.array(x, "take").ndim != 1:
        raise ValueError(_message("take", "an axis for an array that has not one dim", f"{x.ndim} dims"))
    dim = _common.place(0 if axis is None else axis, x.ndim, "take")
    return x[(*[slice(None)] * dim, _positions(indices, "take"))]


def take_along_axis(x: _core.Tensor, indices: Any, /, *, axis: int = -1) -> _core.Tensor:
    """Along each line of an axis, the elements at that line's positions; both broadcast along other axes."""
    dim = _common.place(axis, _common.array(x, "take_along_axis").ndim, "take_along_axis")
    found = _positions(indices, "take_along_axis")
    if found.ndim != x.ndim:
        raise ValueError(_message("take_along_axis", f"indices of {x.ndim} dims", f"{found.ndim} dims"))
    return ops.take_along_dim(x, found, dim)


def argmax(x: _core.Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """The place of the first greatest element along an axis (None: in the flattened array): int64."""
    return _extreme("argmax", ops.argmax, x, axis, keepdims)


def argmin(x: _core.Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """The place of the first least element along an axis (None: in the flattened array): int64."""
    return _extreme("argmin", ops.argmin, x, axis, keepdims)


def _extreme(name: str, function: Any, x: _core.Tensor, axis: Any, keepdims: bool) -> Any:
    ndim = _common.array(x, name).ndim
    dim = None if axis is None else _common.place(axis, ndim, name)
    if 0 in (x.shape if dim is None else (x.shape[dim],)):
        raise ValueError(_message(name, "at least one element", f"shape {tuple(x.shape)}"))
    return function(x, dim, keepdims)


def nonzero(x: _core.Tensor, /) -> tuple[Any, ...]:
    """The places of nonzero elements: one int64 array for each dim. ValueError for an array without dims."""
    if not _common.array(x, "nonzero").ndim:
        raise ValueError(_message("nonzero", "an array of at least one dim", "0 dims"))
    return tuple(ops.nonzero(x, as_tuple=True))


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> _core.Tensor:
    """Where in the sorted vector `x1` (sorted by the positions `sorter`) elements of `x2` belong: int64."""
    if side not in ("left", "right"):
        raise ValueError(_message("searchsorted", "side 'left' or 'right'", _describe(side)))
    if _common.array(x1, "searchsorted").ndim != 1:
        raise ValueError(_message("searchsorted", "a vector to search in", f"{x1.ndim} dims"))
    x1, x2 = _common.promote("searchsorted", x1, x2)
    if sorter is not None:
        x1 = x1[_positions(sorter, "searchsorted")]
    return ops.searchsorted(x1, x2, right=side == "right")


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """x1 where the bool `condition` holds, else x2 (arrays, or one a number); broadcast and promoted."""
    return ops.where(_common.array(condition, "where"), *_common.promote("where", x1, x2))


def sort(
    x: _core.Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> _core.Tensor:
    """The elements in order along an axis."""
    dim = _common.place(axis, _common.array(x, "sort").ndim, "sort")
    return ops.sort(x, dim=dim, descending=descending, stable=stable)[0]


def argsort(
    x: _core.Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> _core.Tensor:
    """The positions that put elements in order along an axis: int64; equal ones keep their order."""
    dim = _common.place(axis, _common.array(x, "argsort").ndim, "argsort")
    return ops.argsort(x, dim=dim, descending=descending, stable=stable)


class _All(NamedTuple):
    """Distinct values, where each is first, where each element is among them, and how often each is there."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class _Counts(NamedTuple):
    """Distinct values and how often each is there."""

    values: Any
    counts: Any


class _Inverse(NamedTuple):
    """Distinct values and where each element is among them."""

    values: Any
    inverse_indices: Any


def unique_all(x: _core.Tensor, /) -> Any:
    """Distinct values in order, the place of the first of each in the flattened array, the place of each
    element among them (of x's shape), how often each is there. Every NaN is a value of its own.
    """
    array = _common.array(x, "unique_all")
    values, inverse, counts = ops.unique(array, return_inverse=True, return_counts=True)
    order = ops.argsort(inverse.reshape(-1), stable=True)
    return _All(values, order[ops.cumsum(counts, 0) - counts], inverse, counts)


def unique_counts(x: _core.Tensor, /) -> Any:
    """Distinct values in order, and how often each is there."""
    return _Counts(*ops.unique(_common.array(x, "unique_counts"), return_counts=True))


def unique_inverse(x: _core.Tensor, /) -> Any:
    """Distinct values in order, and the place of each element among them, of x's shape."""
    return _Inverse(*ops.unique(_common.array(x, "unique_inverse"), return_inverse=True))


def unique_values(x: _core.Tensor, /) -> _core.Tensor:
    """Distinct values in order."""
    return ops.unique(_common.array(x, "unique_values"))
