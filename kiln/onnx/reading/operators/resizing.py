"""Operators that sample images between their pixels: Resize, GridSample, RoiAlign, DeformConv."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kiln import _core, ops
from kiln.nn import functional as F
from kiln.onnx.reading.operators.table import Array, Ints, axis_of, cast, kind, operator
from kiln.onnx.reading.operators.windows import window
from kiln.onnx.reading.refusal import LoadError, UnsupportedError

# -- resize -----------------------------------------------------------------------------------------


def _length(size: Any, scale: float) -> Any:
    """A size times a scale, rounded down."""
    if isinstance(size, int):
        return math.floor(size * scale)
    if scale.is_integer():
        return size * int(scale)
    if (1 / scale).is_integer():
        return size // int(1 / scale)
    raise UnsupportedError(f"a size that varies is scaled by {scale}")


def _coordinates(mode: str, size: Any, length: Any, scale: Any, roi: tuple[Any, Any]) -> Array:
    """Where along one dim of the input the places of the output lie, as float64: [length]."""
    at = cast(ops.arange(length), _core.float64)
    wanted = scale * size
    if mode == "align_corners":
        return at * 0.0 if _is_one(wanted) else at * (size - 1) / (wanted - 1)
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        if _is_one(wanted):
            return at * 0.0 + (end - start) * (size - 1) / 2 + start * (size - 1)
        return at * (end - start) * (size - 1) / (wanted - 1) + start * (size - 1)
    if mode == "pytorch_half_pixel" and _is_one(wanted):
        return at - 0.5
    shift: Any = 0.0
    if mode == "half_pixel_symmetric":
        shift = size / 2 * (1 - length / wanted)
    elif mode not in ("half_pixel", "pytorch_half_pixel"):
        raise LoadError(f"coordinate_transformation_mode is {mode!r:.40}")
    return (at + 0.5) / scale - 0.5 + shift


def _is_one(n: Any) -> bool:
    return isinstance(n, (int, float)) and n == 1


ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: ops.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: ops.floor(at + 0.5),
    "floor": ops.floor,
    "ceil": ops.ceil,
}


def _linear(distance: Array) -> Array:
    """The weight of a pixel at a distance."""
    return ops.clamp(1 - ops.abs(distance), min=0)


def _cubic(a: float) -> Callable[[Array], Array]:
    def weight(distance: Array) -> Array:
        x = ops.abs(distance)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return ops.where(x <= 1, near, ops.where(x < 2, far, ops.zeros_like(x)))

    return weight


def _weights(at: Array, size: Any, reach: int, weight: Callable[[Array], Array], scale: float,
             excluded: int) -> Array:  # fmt: skip
    """How much of each element every place gets, [length, size]; beyond the ends are the outermost ones."""
    first = ops.ceil(at) - 1
    inside = ops.arange(size).unsqueeze(0)
    many = math.ceil(reach / scale)
    taps = [first + k for k in range(1 - many, many + 1)]
    factors = [weight((tap - at) * scale) for tap in taps]
    if excluded:
        factors = [
            ops.where(ops.logical_and(tap >= 0, tap < size), f, ops.zeros_like(f))
            for tap, f in zip(taps, factors)
        ]
    total = sum(factors[1:], factors[0])
    found: Any = 0
    for tap, factor in zip(taps, factors):
        place = ops.clamp(tap, min=0)
        place = ops.where(place > size - 1, ops.zeros_like(place) + (size - 1), place)
        part = (factor / total).unsqueeze(1)
        found = found + ops.where(place.unsqueeze(1) == inside, part, ops.zeros_like(part))
    return found


def _along(x: Array, dim: int, length: Any, scale: Any, roi: tuple[Any, Any], how: dict[str, Any]) -> Array:
    """Resized along one dim."""
    size = x.shape[dim]
    at = _coordinates(how["coordinates"], size, length, scale, roi)
    if how["mode"] == "nearest":
        place = ROUNDED[how["nearest"]](at)
        place = cast(ops.clamp(place, min=0), _core.int64)
        place = ops.where(place > size - 1, ops.zeros_like(place) + (size - 1), place)
        found = ops.index_select(x, dim, place)
    else:
        reach, weight = (1, _linear) if how["mode"] == "linear" else (2, _cubic(how["cubic"]))
        shrunk = min(scale, 1.0) if how["antialias"] else 1.0
        given = x if kind(x) == _core.float64 else cast(x, _core.float32)
        factors = cast(_weights(at, size, reach, weight, shrunk, how["excluded"]), kind(given))
        found = ops.matmul(given.movedim(dim, -1), factors.t()).movedim(-1, dim)
        found = found if kind(x).is_floating_point else ops.round(found)
        found = cast(found, kind(x))
    if how["coordinates"] == "tf_crop_and_resize":
        outside = ops.logical_or(at < 0, at > size - 1)
        outside = outside.reshape(tuple([-1 if d == dim else 1 for d in range(x.ndim)]))
        found = ops.where(outside, ops.full_like(found, how["beyond"]), found)
    return found


def _resized(x: Array, dims: Sequence[int], lengths: Sequence[Any], scales: Sequence[Any], roi: Any,
             how: dict[str, Any]) -> Array:  # fmt: skip
    if how["mode"] not in ("nearest", "linear", "cubic") or how["nearest"] not in ROUNDED:
        raise LoadError(f"mode is {how['mode']!r:.20}, nearest_mode {how['nearest']!r:.20}")
    cropped = how["coordinates"] == "tf_crop_and_resize"
    if cropped and (roi is None or len(roi) != 2 * len(dims)):
        raise LoadError("its roi does not fit its dims")
    for k, (d, length, scale) in enumerate(zip(dims, lengths, scales)):
        if not cropped and _is_one(scale) and isinstance(length, int) and length == x.shape[d]:
            continue
        x = _along(x, d, length, scale, (roi[k], roi[k + len(dims)]) if cropped else (0, 1), how)
    return x


@operator("Resize", since=11)
def _resize(
    x: Array, roi: Ints | None = None, scales: Ints | None = None, sizes: Ints | None = None, *,
    antialias: int = 0, axes: Any = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:  # fmt: skip
    dims = list(range(x.ndim)) if axes is None else [axis_of(d, x.ndim) for d in axes]
    how = {
        "mode": mode, "coordinates": coordinate_transformation_mode, "nearest": nearest_mode,
        "cubic": cubic_coeff_a, "antialias": antialias, "excluded": exclude_outside,
        "beyond": extrapolation_value,
    }  # fmt: skip
    if sizes:
        lengths, factors = _kept_aspect(list(sizes), [x.shape[d] for d in dims], keep_aspect_ratio_policy)
    elif scales:
        factors = [float(s) for s in scales]
        lengths = [_length(x.shape[d], s) for d, s in zip(dims, factors)]
    else:
        raise LoadError("neither sizes nor scales are given")
    if len(lengths) != len(dims) or any(isinstance(s, float) and s <= 0 for s in factors):
        raise LoadError(f"{len(lengths)} sizes or scales for {len(dims)} dims")
    return _resized(x, dims, lengths, factors, roi, how)


def _kept_aspect(wanted: list[Any], sizes: list[Any], policy: str) -> tuple[list[Any], list[Any]]:
    """Lengths, and what they are of the sizes, where these are to keep their ratio too."""
    if len(wanted) != len(sizes) or not all(isinstance(n, int) for n in (*wanted, *sizes)):
        raise UnsupportedError("an image is resized to, or from, sizes that vary")
    factors = [n / m for n, m in zip(wanted, sizes)]
    if policy == "stretch":
        return wanted, factors
    if policy not in ("not_larger", "not_smaller"):
        raise LoadError(f"keep_aspect_ratio_policy is {policy!r:.20}")
    scale = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(scale * m + 0.5) for m in sizes], [scale] * len(sizes)


@operator("Resize", since=10)
@operator("Upsample", since=7)
def _upsample(x: Array, given: Ints | None = None, *, mode: str = "nearest", scales: Any = None) -> Any:
    factors = [float(s) for s in (scales if given is None else given) or ()]
    if len(factors) != x.ndim:
        raise LoadError(f"{len(factors)} scales for {x.ndim} dims")
    how = {"mode": mode, "coordinates": "asymmetric", "nearest": "floor", "cubic": -0.75, "antialias": 0,
           "excluded": 0, "beyond": 0.0}  # fmt: skip
    lengths = [_length(n, s) for n, s in zip(x.shape, factors)]
    return _resized(x, list(range(x.ndim)), lengths, factors, None, how)


# -- grids ------------------------------------------------------------------------------------------


@operator("GridSample", since=16)
def _grid_sample(x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear",
                 padding_mode: str = "zeros") -> Any:  # fmt: skip
    named = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.grid_sample(x, grid, mode=named, padding_mode=padding_mode, align_corners=bool(align_corners))


@operator("AffineGrid", since=20)
def _affine_grid(theta: Array, size: Ints, *, align_corners: int = 0) -> Any:
    return F.affine_grid(theta, tuple(size), align_corners=bool(align_corners))


def _corners(x: Array, y: Array, across: Array) -> list[tuple[Array, Array]]:
    """The four pixels around places of [batch, places], [batch, channels, places], and what each weighs."""
    height, width = x.shape[2:]
    flat = x.reshape((x.shape[0], x.shape[1], -1))
    low, left = ops.floor(y), ops.floor(across)
    found = []
    for row, weight_y in ((low, 1 - (y - low)), (low + 1, y - low)):
        for column, weight_x in ((left, 1 - (across - left)), (left + 1, across - left)):
            inside = (row >= 0).logical_and(row < height).logical_and(column >= 0).logical_and(column < width)
            at = cast(ops.where(inside, row * width + column, ops.zeros_like(row)), _core.int64)
            value = ops.gather(flat, 2, at.unsqueeze(1).expand((at.shape[0], x.shape[1], at.shape[1])))
            weight = ops.where(inside, weight_y * weight_x, ops.zeros_like(row))
            found.append((value, weight.unsqueeze(1)))
    return found


@operator("DeformConv", since=19)
def _deform_conv(
    x: Array, weight: Array, offset: Array, bias: Array | None = None, mask: Array | None = None, *,
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, offset_group: int = 1, pads: Any = None,
    strides: Any = None,
) -> Any:  # fmt: skip
    kernel = list(weight.shape[2:])
    if len(kernel) != 2:
        raise UnsupportedError("DeformConv of other than images")
    over = window(x, kernel, strides, dilations, pads, "NOTSET")
    n, channels, (rows, columns) = x.shape[0], x.shape[1], offset.shape[2:]
    taps = kernel[0] * kernel[1]
    moved = offset.reshape((n, offset_group, taps, 2, rows, columns))
    each = channels // offset_group
    parts = []
    for g in range(offset_group):
        own, taken = x.narrow(1, g * each, each), []
        for k in range(taps):
            row, column = divmod(k, kernel[1])
            y = ops.arange(rows) * over.strides[0] - over.before[0] + row * over.dilations[0]
            across = ops.arange(columns) * over.strides[1] - over.before[1] + column * over.dilations[1]
            y = y.reshape(1, -1, 1) + moved[:, g, k, 0]
            across = across.reshape(1, 1, -1) + moved[:, g, k, 1]
            corners = _corners(own, y.reshape(n, -1), across.reshape(n, -1))
            value = sum(v * w for v, w in corners)
            if mask is not None:
                factor = mask.reshape((n, offset_group, taps, -1))[:, g, k]
                value = value * factor.unsqueeze(1)
            taken.append(value)
        parts.append(ops.stack(taken, 2))
    gathered = ops.cat(parts, 1)  # [batch, channels, taps, places]
    grouped = gathered.reshape((n, group, channels // group * taps, rows * columns))
    factors = weight.reshape((1, group, weight.shape[0] // group, -1))
    y = ops.matmul(factors, grouped).reshape((n, weight.shape[0], rows, columns))
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


@operator("RoiAlign", since=10)
def _roi_align(
    x: Array, rois: Array, batches: Array, *, coordinate_transformation_mode: str | None = None,
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0, opset: int = 16,
) -> Any:  # fmt: skip
    named = coordinate_transformation_mode or ("half_pixel" if opset >= 16 else "output_half_pixel")
    if named not in ("half_pixel", "output_half_pixel") or mode not in ("avg", "max"):
        raise LoadError(f"mode is {mode!r:.20}, coordinate_transformation_mode {named!r:.20}")
    corners = rois * spatial_scale - (0.5 if named == "half_pixel" else 0.0)
    left, top = corners[:, 0], corners[:, 1]
    width, height = corners[:, 2] - left, corners[:, 3] - top
    if named != "half_pixel":
        width, height = ops.clamp(width, min=1.0), ops.clamp(height, min=1.0)
    shape = (output_height, output_width)
    if sampling_ratio > 0:
        grid = (sampling_ratio, sampling_ratio)
        return _aligned(x, batches, (top, height), (left, width), shape, grid, mode)
    found = []
    for k in range(rois.shape[0]):  # each has as many samples as it has pixels
        own = slice(k, k + 1)
        grid = math.ceil(height[k].item() / shape[0]), math.ceil(width[k].item() / shape[1])
        found.append(
            _aligned(x, batches[own], (top[own], height[own]), (left[own], width[own]), shape, grid, mode)
        )
    return ops.cat(found, 0)


def _samples(start: Array, span: Array, count: int, each: int, size: Any) -> tuple[Array, Array]:
    """Places of samples along one dim, [rois, count * each], and which are near the image at all."""
    steps = (ops.arange(count * each) + 0.5) / each
    at = start.unsqueeze(1) + cast(steps.unsqueeze(0), kind(span)) * (span / count).unsqueeze(1)
    return ops.clamp(at, 0, size - 1), ops.logical_and(at >= -1, at <= size)


def _aligned(x: Array, batches: Array, rows: Any, columns: Any, shape: Any, grid: Any, mode: str) -> Array:
    count, channels = batches.shape[0], x.shape[1]
    y, y_near = _samples(rows[0], rows[1], shape[0], grid[0], x.shape[2])
    across, x_near = _samples(columns[0], columns[1], shape[1], grid[1], x.shape[3])
    places = (count, y.shape[1], across.shape[1])
    flat = [v.expand(places).reshape((count, -1)) for v in (y.unsqueeze(2), across.unsqueeze(1))]
    near = ops.logical_and(y_near.unsqueeze(2), x_near.unsqueeze(1)).reshape((count, 1, -1))
    images = ops.index_select(x, 0, cast(batches, _core.int64))
    parts = [ops.where(near, v * w, ops.zeros_like(v)) for v, w in _corners(images, *flat)]
    if mode == "avg":
        values = sum(parts[1:], parts[0])
    else:
        values = ops.amax(ops.stack(parts), 0)
    values = values.reshape((count, channels, shape[0], grid[0], shape[1], grid[1]))
    return ops.mean(values, (3, 5)) if mode == "avg" else ops.amax(values, (3, 5))
