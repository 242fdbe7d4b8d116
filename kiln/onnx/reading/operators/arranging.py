"""Operators that arrange elements: shapes, parts, copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln import _core, ops
from kiln.onnx.reading.known import Known
from kiln.onnx.reading.operators.table import (
    Array,
    Ints,
    Number,
    as_array,
    as_items,
    axis_of,
    cast,
    kind,
    operator,
    zeros,
)
from kiln.onnx.reading.refusal import LoadError, UnsupportedError


@operator("Reshape")
def _reshape(x: Array, sizes: Ints | None = None, *, shape: Any = None, allowzero: int = 0) -> Any:
    wanted = list(shape if sizes is None else sizes)
    for d, n in enumerate(wanted):
        if isinstance(n, int) and n == 0 and not allowzero:
            if d >= x.ndim:
                raise LoadError(f"size {d} is to be that of the input, which has {x.ndim} dims")
            wanted[d] = x.shape[d]
    return x.reshape(tuple(wanted))


@operator("Flatten")
def _flatten(x: Array, *, axis: int = 1) -> Any:
    first = axis if axis == x.ndim else axis_of(axis, x.ndim)
    rows: Any = 1
    for n in x.shape[:first]:
        rows = rows * n
    columns: Any = 1
    for n in x.shape[first:]:
        columns = columns * n
    return x.reshape((rows, columns))


@operator("Squeeze")
def _squeeze(x: Array, dims: Ints | None = None, *, axes: Any = None) -> Any:
    given = axes if dims is None else dims
    if given is None:
        given = [d for d, n in enumerate(x.shape) if n == 1]
    gone = {axis_of(d, x.ndim) for d in given}
    if any(x.shape[d] != 1 for d in gone):
        raise LoadError(f"dims {sorted(gone)} of {tuple(x.shape)} are not all of size 1")
    return x.reshape(tuple([n for d, n in enumerate(x.shape) if d not in gone]))


@operator("Unsqueeze")
def _unsqueeze(x: Array, dims: Ints | None = None, *, axes: Any = None) -> Any:
    given = axes if dims is None else dims
    if given is None:
        raise LoadError("its axes are missing")
    ndim = x.ndim + len(given)
    new = {axis_of(d, ndim) for d in given}
    if len(new) != len(given):
        raise LoadError(f"axes {given} name one dim twice")
    rest = iter(x.shape)
    return x.reshape(tuple([1 if d in new else next(rest) for d in range(ndim)]))


@operator("Transpose")
def _transpose(x: Array, *, perm: Any = None) -> Any:
    return x.permute(tuple(reversed(range(x.ndim))) if perm is None else tuple(perm))


def broadcast_shape(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """The shape that two broadcast to."""
    ndim = max(len(a), len(b))
    a, b = (*[1] * (ndim - len(a)), *a), (*[1] * (ndim - len(b)), *b)
    return tuple([n if isinstance(m, int) and m == 1 else m for m, n in zip(a, b)])


@operator("Expand")
def _expand(x: Array, shape: Ints) -> Any:
    return x.expand(broadcast_shape(x.shape, shape))


@operator("Tile")
def _tile(x: Array, repeats: Ints) -> Any:
    return ops.repeat(x, tuple(repeats)) if x.ndim else x


@operator("Concat")
def _concat(*arrays: Array, axis: int = 1) -> Any:
    if len({kind(x) for x in arrays}) > 1:
        raise LoadError("expected arrays of one dtype")
    return ops.cat(list(arrays), axis)


@operator("Split")
def _split(x: Array, lengths: Ints | None = None, *, axis: int = 0, split: Any = None,
           num_outputs: int | None = None, outputs: int = 1) -> Any:  # fmt: skip
    given = split if lengths is None else lengths
    count = outputs if num_outputs is None else num_outputs
    dim = axis_of(axis, x.ndim)
    if given is None:
        each = -(-x.shape[dim] // count)
        bounds = [min(k * each, x.shape[dim]) if isinstance(each, int) else k * each for k in range(count)]
        given = [b - a for a, b in zip(bounds, [*bounds[1:], x.shape[dim]])]
    parts, at = [], 0
    for n in given:
        parts.append(x.narrow(dim, at, n))
        at = at + n
    return tuple(parts)


def _bound(value: Any, size: Any, step: int, is_end: bool) -> Any:
    """A bound of a slice as a position from the first; beyond what there is, the last."""
    if isinstance(value, int) and isinstance(size, int):
        return (
            slice(None, value, step).indices(size)[1] if is_end else slice(value, None, step).indices(size)[0]
        )
    return value


def sliced(x: Array, dim: int, start: Any, end: Any, step: int) -> Array:
    """A part of a tensor along one dim, forwards or backwards."""
    size = x.shape[dim]
    if step > 0:
        return x[(*[slice(None)] * dim, slice(start, end, step))]
    # backwards: start, start + step, .. of the tensor are size - 1 - start .. of the reversed one
    if not isinstance(size, int) or not all(isinstance(n, int) for n in (start, end)):
        if (
            not isinstance(start, int)
            or not isinstance(end, int)
            or start < -1
            or start >= 0
            and start < 1 << 31
        ):
            raise UnsupportedError("a part that is taken backwards from where sizes decide")
        if end > -(1 << 31):
            raise UnsupportedError("a part that is taken backwards to where sizes decide")
        return sliced(x.flip(dim), dim, 0, None, -step)
    first, last, _ = slice(start, end, step).indices(size)
    return sliced(x.flip(dim), dim, size - 1 - first, max(size - 1 - last, 0), -step)


@operator("Slice")
def _slice(x: Array, begin: Ints | None = None, stop: Ints | None = None, dims: Ints | None = None,
           steps: Ints | None = None, *, starts: Any = None, ends: Any = None,
           axes: Any = None) -> Any:  # fmt: skip
    first, last = (starts if begin is None else begin), (ends if stop is None else stop)
    if first is None or last is None:
        raise LoadError("its starts or ends are missing")
    named = axes if dims is None else dims
    named = list(range(len(first))) if named is None else named
    each = [1] * len(first) if steps is None else steps
    if not len(first) == len(last) == len(named) == len(each) or 0 in each:
        raise LoadError("starts, ends, axes and steps do not fit each other")
    for dim, start, end, step in zip(named, first, last, each):
        x = sliced(x, axis_of(dim, x.ndim), start, end, step)
    return x


MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@operator("Pad")
def _pad(x: Array, amounts: Ints | None = None, fill: Array | None = None, axes: Ints | None = None, *,
         mode: str = "constant", pads: Any = None, value: float = 0.0) -> Any:  # fmt: skip
    given = pads if amounts is None else amounts
    dims = list(range(x.ndim)) if axes is None else [axis_of(d, x.ndim) for d in axes]
    if given is None or len(given) != 2 * len(dims) or mode not in MODES:
        raise LoadError(f"pads {given} of {len(dims)} dims in mode {mode!r:.20}")
    filled = ops.full((), value, dtype=kind(x)) if fill is None else fill.reshape(())
    for d, before, after in zip(dims, given, given[len(dims) :]):
        x = _padded(x, d, before, after, mode, filled)
    return x


def _padded(x: Array, dim: int, before: Any, after: Any, mode: str, fill: Array) -> Array:
    """Padded along one dim; a negative amount is taken off."""
    if isinstance(before, int) and before < 0:
        x, before = x.narrow(dim, -before, x.shape[dim] + before), 0
    if isinstance(after, int) and after < 0:
        x, after = x.narrow(dim, 0, x.shape[dim] + after), 0
    if isinstance(before, int) and isinstance(after, int) and before == after == 0:
        return x
    size = x.shape[dim]
    if mode == "constant":
        sides = [fill.expand((*x.shape[:dim], n, *x.shape[dim + 1 :])) for n in (before, after)]
        return ops.cat([sides[0], x, sides[1]], dim)
    at = ops.arange(size + before + after) - before
    if mode == "edge":
        at = ops.clamp(at, 0, size - 1)
    elif mode == "wrap":
        at = ops.remainder(at, size)
    else:  # as between two mirrors
        turn = max(2 * (size - 1), 1) if isinstance(size, int) else 2 * (size - 1)
        at = ops.remainder(at, turn)
        at = ops.minimum(at, turn - at)
    return ops.index_select(x, dim, at)


@operator("CenterCropPad")
def _center_crop_pad(x: Array, shape: Ints, *, axes: Any = None) -> Any:
    dims = range(x.ndim) if axes is None else axes
    for d, n in zip((axis_of(d, x.ndim) for d in dims), shape):
        size = x.shape[d]
        if size >= n:
            x = x.narrow(d, (size - n) // 2, n)
        else:
            before = (n - size) // 2
            x = _padded(x, d, before, n - size - before, "constant", ops.zeros((), dtype=kind(x)))
    return x


@operator("DepthToSpace")
def _depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        x = x.reshape((n, b, b, c // (b * b), h, w)).permute(0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        x = x.reshape((n, c // (b * b), b, b, h, w)).permute(0, 1, 4, 2, 5, 3)
    else:
        raise LoadError(f"mode is {mode!r:.20}")
    return x.reshape((n, c // (b * b), h * b, w * b))


@operator("SpaceToDepth")
def _space_to_depth(x: Array, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b = blocksize
    if mode not in ("DCR", "CRD"):
        raise LoadError(f"mode is {mode!r:.20}")
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape((n, c, h // b, b, w // b, b)).permute(order).reshape((n, c * b * b, h // b, w // b))


@operator("Trilu")
def _trilu(x: Array, k: Number | None = None, *, upper: int = 1) -> Any:
    return (ops.triu if upper else ops.tril)(x, 0 if k is None else k)


@operator("ConstantOfShape")
def _constant_of_shape(shape: Ints, *, value: Any = None) -> Any:
    if value is None:
        return ops.zeros(tuple(shape))
    return as_array(value).reshape(()).expand(tuple(shape))


@operator("Range")
def _range(start: Array, limit: Number, delta: Number, *, stash_type: int = 1) -> Any:
    first = as_items(start)[0]
    if delta == 0:
        raise LoadError("its delta is 0")
    count = -((limit - first) // -delta)
    if isinstance(count, (int, float)):
        count = max(int(count), 0)
    return cast(start + ops.arange(count) * delta, kind(start))


@operator("Shape")
def _shape(x: Array, *, start: int = 0, end: int | None = None) -> Any:
    return Known("int64", tuple(x.shape)[start:end], True)


@operator("Size")
def _size(x: Array) -> Any:
    return Known("int64", [x.numel()], False)


@operator("OneHot")
def _one_hot(at: Array, depth: Number, values: Array, *, axis: int = -1) -> Any:
    dim = axis_of(axis, at.ndim + 1)
    count = int(depth) if isinstance(depth, float) else depth
    at = cast(at, _core.int64)
    at = ops.where(at < 0, at + count, at)
    places = ops.arange(count).reshape(tuple([-1 if d == dim else 1 for d in range(at.ndim + 1)]))
    return ops.where(at.unsqueeze(dim) == places, values[1], values[0])


@operator("Col2Im")
def _col2im(x: Array, image: Ints, block: Ints, *, dilations: Any = None, pads: Any = None,
            strides: Any = None) -> Any:  # fmt: skip
    count = len(image)
    steps, gaps = strides or [1] * count, dilations or [1] * count
    around = pads or [0] * (2 * count)
    padded = [n + a + b for n, a, b in zip(image, around, around[count:])]
    windows = [(n - g * (k - 1) - 1) // s + 1 for n, k, s, g in zip(padded, block, steps, gaps)]
    total, size = 1, 1
    for n in block:
        size *= n
    for n in padded:
        total *= n
    channels = x.shape[1] // size
    # places[block position, window]: where in the image an element lies
    places = ops.zeros((1, 1), dtype=_core.int64)
    for n, k, s, g, w in zip(padded, block, steps, gaps, windows):
        own = ops.arange(k).unsqueeze(1) * g + ops.arange(w).unsqueeze(0) * s
        rows, columns = places.shape
        places = places.reshape(rows, 1, columns, 1) * n + own.reshape(1, k, 1, w)
        places = places.reshape(rows * k, columns * w)
    flat = x.reshape(x.shape[0], channels, -1)
    at = places.reshape(1, 1, -1).expand(flat.shape)
    made = zeros((x.shape[0], channels, total), x).scatter_add(2, at, flat)
    made = made.reshape((x.shape[0], channels, *padded))
    for d, (n, a) in enumerate(zip(image, around)):
        made = made.narrow(2 + d, a, n)
    return made
