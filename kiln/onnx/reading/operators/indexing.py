"""Operators that take and put elements by their positions."""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.onnx.reading.operators.table import Array, Number, axis_of, cast, operator
from kiln.onnx.reading.refusal import LoadError

REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def from_first(at: Array, size: Any) -> Array:
    """Positions, those that count from the end as positions from the first."""
    at = cast(at, _core.int64)
    return ops.where(at < 0, at + size, at)


@operator("Gather")
def _gather(x: Array, at: Array, *, axis: int = 0) -> Any:
    dim = axis_of(axis, x.ndim)
    at = from_first(at, x.shape[dim])
    found = ops.index_select(x, dim, at.reshape(-1))
    return found.reshape((*x.shape[:dim], *at.shape, *x.shape[dim + 1 :]))


@operator("GatherElements")
def _gather_elements(x: Array, at: Array, *, axis: int = 0) -> Any:
    dim = axis_of(axis, x.ndim)
    return ops.gather(x, dim, from_first(at, x.shape[dim]))


def _rows(x: Array, at: Array, batch: int) -> tuple[Any, Array, Array]:
    """How many elements positions of several dims select at once, x as rows of so many, and which rows."""
    depth = at.shape[-1]
    if not isinstance(depth, int) or batch + depth > x.ndim:
        raise LoadError(f"positions of {depth} dims in an array of {x.ndim}")
    sizes = x.shape[batch : batch + depth]
    row = ops.zeros(at.shape[:-1], dtype=_core.int64)
    for k, n in enumerate(sizes):
        row = row * n + from_first(at.select(-1, k), n)
    for b in reversed(range(batch)):  # of each sample its own rows
        inner: Any = 1
        for n in x.shape[b + 1 : batch + depth]:
            inner = inner * n
        places = ops.arange(x.shape[b]).reshape(tuple([-1 if d == b else 1 for d in range(row.ndim)]))
        row = row + places * inner
    count: Any = 1
    for n in x.shape[: batch + depth]:
        count = count * n
    rest = x.shape[batch + depth :]
    return rest, x.reshape((count, *rest)), row


@operator("GatherND")
def _gather_nd(x: Array, at: Array, *, batch_dims: int = 0) -> Any:
    rest, rows, row = _rows(x, at, batch_dims)
    return ops.index_select(rows, 0, row.reshape(-1)).reshape((*row.shape, *rest))


@operator("Scatter", "ScatterElements")
def _scatter_elements(x: Array, at: Array, source: Array, *, axis: int = 0, reduction: str = "none") -> Any:
    dim = axis_of(axis, x.ndim)
    at = from_first(at, x.shape[dim])
    if reduction == "none":
        return ops.scatter(x, dim, at, source)
    if reduction not in REDUCED:
        raise LoadError(f"reduction is {reduction!r:.20}")
    return ops.scatter_reduce(x, dim, at, source, REDUCED[reduction], include_self=True)


@operator("ScatterND")
def _scatter_nd(x: Array, at: Array, source: Array, *, reduction: str = "none") -> Any:
    rest, rows, row = _rows(x, at, 0)
    row = row.reshape(-1)
    given = source.reshape((row.shape[0], *rest))
    where = row.reshape((-1, *[1] * len(rest))).expand(given.shape)
    if reduction == "none":
        made = ops.scatter(rows, 0, where, given)
    elif reduction in REDUCED:
        made = ops.scatter_reduce(rows, 0, where, given, REDUCED[reduction], include_self=True)
    else:
        raise LoadError(f"reduction is {reduction!r:.20}")
    return made.reshape(tuple(x.shape))


@operator("TensorScatter")
def _tensor_scatter(x: Array, update: Array, begins: Array | None = None, *, axis: int = -2,
                    mode: str = "linear") -> Any:  # fmt: skip
    dim = axis_of(axis, x.ndim)
    if dim == 0 or mode not in ("linear", "circular"):
        raise LoadError(f"axis {axis} in mode {mode!r:.20}")
    at = ops.arange(update.shape[dim]).unsqueeze(0)
    if begins is not None:
        at = at + cast(begins, _core.int64).unsqueeze(1)
    if mode == "circular":
        at = ops.remainder(at, x.shape[dim])
    shape = [1] * x.ndim
    shape[0], shape[dim] = at.shape
    return ops.scatter(x, dim, at.reshape(tuple(shape)).expand(update.shape), update)


@operator("Compress")
def _compress(x: Array, condition: Array, *, axis: int | None = None) -> Any:
    if axis is None:
        x, axis = x.reshape(-1), 0
    at = ops.nonzero(condition).reshape(-1)
    return ops.index_select(x, axis_of(axis, x.ndim), at)


@operator("NonZero")
def _nonzero(x: Array) -> Any:
    return ops.nonzero(x).t()


@operator("TopK")
def _top_k(x: Array, count: Number | None = None, *, k: int | None = None, axis: int = -1, largest: int = 1,
           sorted: int = 1) -> Any:  # fmt: skip
    wanted, dim = (k if count is None else count), axis_of(axis, x.ndim)
    if wanted is None:
        raise LoadError("its k is missing")
    values, at = ops.sort(x, dim=dim, descending=bool(largest), stable=True)  # of equal ones the first
    return values.narrow(dim, 0, wanted), at.narrow(dim, 0, wanted)


@operator("Unique")
def _unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> Any:
    if axis is None:
        values, back, counts = ops.unique(x.reshape(-1), return_inverse=True, return_counts=True)
        dim, size = 0, x.numel()
    else:
        dim = axis_of(axis, x.ndim)
        values, back, counts = ops.unique(x, return_inverse=True, return_counts=True, dim=dim)
        size = x.shape[dim]
    back = back.reshape(-1)
    first = ops.full((counts.shape[0],), size, dtype=_core.int64)
    first = ops.scatter_reduce(first, 0, back, ops.arange(size), "amin", include_self=True)
    if not sorted:
        order = ops.argsort(first)
        values, counts, first = ops.index_select(values, dim, order), counts[order], first[order]
        back = ops.argsort(order)[back]
    return values, first, back, counts


@operator("ReverseSequence")
def _reverse_sequence(x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    if {batch_axis, time_axis} != {0, 1}:
        raise LoadError(f"axes are {batch_axis} and {time_axis}")
    at = ops.arange(x.shape[time_axis]).unsqueeze(batch_axis)
    length = cast(lengths, _core.int64).unsqueeze(time_axis)
    at = ops.where(at < length, length - 1 - at, at)
    shape = (*at.shape, *[1] * (x.ndim - 2))
    return ops.gather(x, time_axis, at.reshape(shape).expand(x.shape))


@operator("ArgMax")
def _arg_max(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return _arg(x, axis, keepdims, select_last_index, ops.argmax)


@operator("ArgMin")
def _arg_min(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return _arg(x, axis, keepdims, select_last_index, ops.argmin)


def _arg(x: Array, axis: int, keepdims: int, last: int, function: Any) -> Any:
    dim = axis_of(axis, x.ndim)
    if not last:
        return function(x, dim, keepdim=bool(keepdims))
    return x.shape[dim] - 1 - function(x.flip(dim), dim, keepdim=bool(keepdims))


@operator("NonMaxSuppression")
def _non_max_suppression(
    boxes: Array, scores: Array, most: Number | None = None, overlap: Number | None = None,
    least: Number | None = None, *, center_point_box: int = 0,
) -> Any:  # fmt: skip
    limit, found = int(most or 0), []
    for b in range(boxes.shape[0]):
        corners = [_corners(box, center_point_box) for box in boxes[b].tolist()]
        for c, own in enumerate(scores[b].tolist()):
            order = sorted(range(len(own)), key=lambda k: -own[k])
            kept: list[int] = []
            for k in order:
                if len(kept) == limit or least is not None and own[k] <= least:
                    break
                if all(_shared(corners[k], corners[j]) <= (overlap or 0.0) for j in kept):
                    kept.append(k)
            found += [[b, c, k] for k in kept]
    return ops.tensor(found, dtype=_core.int64).reshape(-1, 3)


def _corners(box: list[float], is_center: int) -> tuple[float, float, float, float]:
    """A box by its lowest and highest corner."""
    if is_center:
        x, y, width, height = box
        return y - height / 2, x - width / 2, y + height / 2, x + width / 2
    y, x, y1, x1 = box
    return min(y, y1), min(x, x1), max(y, y1), max(x, x1)


def _shared(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The part of two boxes' union that both have."""
    height, width = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if height <= 0 or width <= 0:
        return 0.0
    both = height * width
    whole = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / whole if whole > 0 else 0.0
