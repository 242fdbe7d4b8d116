"""Images of other sizes: interpolate, one dim after the other, from the last.

An element of the result lies at a place between elements of the input; those it is made of are read by their
places, and weighed by how far they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from types import ModuleType
from typing import Any

from kiln.errors import warn
from kiln.ops.creation.constants import filled
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.comparison import eq
from kiln.ops.elementwise.elementary import floor
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.indexing.gathering import gather, scatter_add
from kiln.ops.nn.byte_images import resample_bytes
from kiln.ops.views.core_views import permute, slice_
from kiln.ops.windows.adaptive_pools import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from kiln.ops.windows.geometry import require
from kiln.table import drawn as d
from kiln.table.arguments import (
    answerable,
    dtype_name,
    fixed_count,
    is_float,
    number,
    surely_equal,
    type_name,
)
from kiln.table.public import public
from kiln.table.record import Number, Sample, Sizes, Structure, Tensor, composite, find
from kiln.table.registry import forms

# "nearest" of a size that is `span` times the input's, a power of two: places are exact, and each element is
# seen by so many neighbours
_WHOLE = "nearest whole"
_CUBIC = -0.75  # the slope of cubic weights one element away


def _spots(np: ModuleType, n: int, out: int, scale: float, how: str) -> Any:
    """Where the results' elements lie, in NumPy; clamped where nothing in front of the first is seen."""
    i = np.arange(out, dtype=np.float32 if how.startswith("nearest") else np.float64)
    if how in ("nearest", _WHOLE, "linear corners", "cubic corners"):
        return i * i.dtype.type(scale)
    at = (i + i.dtype.type(0.5)) * i.dtype.type(scale)
    return at if how == "nearest-exact" else at - 0.5 if how == "cubic" else np.maximum(at - 0.5, 0)


def _reference(
    np: ModuleType, x: Any, dim: int, size: Any, over: float, under: float, how: str, span: int = 0
) -> Any:
    """resample, or resample_cubic, in NumPy."""
    n = x.shape[dim]
    at = _spots(np, n, size[0], over / under, how)
    low = np.floor(at).astype(np.int64)
    if how.startswith("nearest"):
        return np.take(x, np.minimum(low, n - 1), dim)
    t = (at - low).reshape(-1, *(1,) * (x.ndim - dim - 1))
    weights = (1 - t, t) if how.startswith("linear") else [cubic_weight(abs(t - k)) for k in (-1, 0, 1, 2)]
    first = 0 if how.startswith("linear") else -1
    return sum(w * np.take(x, np.clip(low + first + k, 0, n - 1), dim) for k, w in enumerate(weights)).astype(
        x.dtype
    )


def cubic_weight(t: Any) -> Any:
    """The weight of an element at a distance of 0 to 2 (NumPy)."""
    near = ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1
    far = ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC
    return near * (t <= 1) + far * (t > 1)


def _samples(rng: Any, t: str) -> list[Any]:
    x = d.array(rng, (2, 5, 3), t)
    cases = ((1, 8, 5, 8, "linear", 6), (2, 7, 2, 6, "linear corners", 8), (1, 3, 5, 3, "nearest", 3),
             (1, 7, 1.0, 1.4, "nearest-exact", 4), (2, 40, 3, 40, "linear", 13),
             (2, 40, 3, 40, "nearest", 13), (1, 10, 1, 2, _WHOLE, 2),
             (2, 12, 1.0, 4.0, _WHOLE, 4))  # fmt: skip
    return [Sample((x, dim, (size,), *apart, how, span)) for dim, size, *apart, how, span in cases]


def _cubic_samples(rng: Any, t: str) -> list[Any]:
    x = d.array(rng, (2, 5, 3), t)
    return [Sample((x, 1, (9,), 1.0, 2.0, "cubic")), Sample((x, 2, (2,), 2, 1, "cubic corners"))]


@composite(
    public=False,
    samples=_samples,
    reference=d.reference(_reference),
)
def resample(
    input: Tensor, dim: Structure, size: Sizes, over: Number, under: Number, how: Structure, span: Structure
) -> Any:
    """`input` with `size` elements along `dim`, the i-th at scale * i ("nearest", "nearest whole", "linear
    corners") or scale * (i + 0.5) - 0.5 ("linear"; "nearest-exact" without the last half) of its own, where
    scale is over / under. `span`: no element is seen by more.

    >>> kiln.nn.functional.interpolate(kiln.tensor([[[1.0, 3.0]]]), 4, mode="linear")
    tensor([[[1.0000, 1.5000, 2.5000, 3.0000]]])
    """
    shape = (*input.shape[:dim], *size, *input.shape[dim + 1 :])
    low, high, share = _seen(input, shape, dim, input.shape[dim], over / under, how)
    if share is None:
        return gather(input, dim, low)
    x = wide(input)
    return narrow(gather(x, dim, low) * (1 - share) + gather(x, dim, high) * share, input.dtype)


def _place(i: Any, scale: Any, how: str) -> Any:
    """Where the i-th element lies."""
    if how in ("nearest", _WHOLE) or how.endswith("corners"):
        return i * scale
    return (i + 0.5) * scale if how == "nearest-exact" else (i + 0.5) * scale - 0.5


def _precision(how: str, dtype: str) -> str:
    """The dtype that places are computed in: nearest ones in float32, as PyTorch does."""
    return "float32" if how.startswith("nearest") or dtype != "float64" else "float64"


def _seen(x: Tensor, shape: Any, dim: int, n: Any, scale: Any, how: str) -> tuple[Any, Any, Any]:
    """For a result of `shape` the positions along `dim`, of n, in front and behind; the latter's share."""
    i = x.graph.add(find("iota"), (), (shape, dim))
    at, last = _place(p.convert(i, _precision(how, x.dtype)), scale, how), number(x, n - 1)
    if how.startswith("nearest"):
        return p.minimum(p.convert(floor(at), "int64"), last), None, None
    at = p.maximum(at, 0)
    low = p.convert(floor(at), "int64")
    return p.minimum(low, last), p.minimum(low + 1, last), at - floor(at)


_CHAIN = 12  # elements that see one, at most, for a gradient that gathers them; of more, they are scattered


@resample.derivative
def _(g: Tensor, input: Tensor, dim: Any, over: Any, under: Any, how: Any, span: Any) -> Any:
    shape, scale = tuple(input.shape), over / under
    if how == _WHOLE:
        total: Any = 0
        for k in range(span):
            total = slice_(g, dim, (k, shape[dim], span)) + total
        return total, None, None
    if span <= _CHAIN:
        return _gathered(g, shape, dim, scale, how, span), None, None
    low, high, share = _seen(g, tuple(g.shape), dim, shape[dim], scale, how)
    zeros = filled(g.graph, 0, shape, g.dtype)
    if share is None:
        return scatter_add(zeros, dim, low, g), None, None
    return scatter_add(scatter_add(zeros, dim, low, g * (1 - share)), dim, high, g * share), None, None


def _gathered(g: Tensor, shape: Any, dim: int, scale: Any, how: str, span: int) -> Any:
    """The gradient of every element from those that see it, which follow one another."""
    exact = _precision(how, g.dtype)
    j = g.graph.add(find("iota"), (), (shape, dim))
    last, count = number(g, shape[dim] - 1), number(g, g.shape[dim])
    end = number(g, g.shape[dim] - 1)
    before = 1 if how.startswith("linear") else 0
    half = 0 if how == "nearest" or how.endswith("corners") else 0.5
    own = p.convert(j, exact) - before + (half if before else 0)
    start = p.convert(floor(own / scale - half), "int64") - (1 - before)
    total: Any = None
    for k in range(span):
        i = start + k
        at = _place(p.convert(i, exact), scale, how)
        if before:
            away = p.minimum(p.maximum(at, 0), p.convert(last, exact)) - p.convert(j, exact)
            weight = p.maximum(1 - p.maximum(away, -away), 0)
        else:
            weight = eq(p.minimum(p.convert(floor(at), "int64"), last), j)
        part = gather(g, dim, p.minimum(p.maximum(i, 0), end))
        inside = (i >= 0) & (i < count)
        part = p.where(inside, part * weight, 0) if before else p.where(inside & weight, part, 0)
        total = part if total is None else total + part
    return total


def _most(over: Any, under: Any, how: str) -> int:
    """How many elements see one at most, where they lie over / under apart; some more, for how places are
    rounded. `_CHAIN` + 1 stands for all beyond that.
    """
    wide, most = 2 if how.startswith("linear") else 1, _CHAIN + 1
    if isinstance(over, float):
        return min(ceil(wide / (over / under)) + 2 if over else most, most)
    found = (wide * under + over - 1) // over + 2 if over > 0 else most
    return most if found > _CHAIN else fixed_count(found, "taken for how many elements see one")


@composite(
    public=False,
    samples=_cubic_samples,
    reference=d.reference(_reference),
)
def resample_cubic(
    input: Tensor, dim: Structure, size: Sizes, over: Number, under: Number, how: Structure
) -> Any:
    """`resample` by cubics through four elements: "cubic" or "cubic corners".

    >>> x = kiln.tensor([[[[1.0, 3.0]]]])
    >>> kiln.nn.functional.interpolate(x, (1, 3), mode="bicubic")
    tensor([[[[0.8264, 2.0000, 3.1736]]]])
    """
    shape = (*input.shape[:dim], *size, *input.shape[dim + 1 :])
    i = p.convert(input.graph.add(find("iota"), (), (shape, dim)), _precision(how, input.dtype))
    at, last = _place(i, over / under, how), number(input, input.shape[dim] - 1)
    low, share = p.convert(floor(at), "int64"), at - floor(at)
    x, total = wide(input), None
    for offset, weight in cubic_weights(share):
        part = gather(x, dim, p.minimum(p.maximum(low + offset, 0), last)) * weight
        total = part if total is None else total + part
    return narrow(total, input.dtype)


def cubic_weights(t: Any) -> list[tuple[int, Any]]:
    """What the elements around a place weigh that lies the share t behind the one in front."""

    def near(t: Any) -> Any:
        return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1

    def far(t: Any) -> Any:
        return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC

    return [(-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))]


def _smooth_samples(rng: Any, t: str) -> list[Any]:
    x = d.array(rng, (2, 5, 3), t)
    return [Sample((x, 1, (2,), 5, 2, "linear")), Sample((x, 2, (7,), 3, 7, "cubic"))]


def _smooth_reference(
    np: ModuleType, x: Any, dim: int, size: Any, over: float, under: float, how: str
) -> Any:
    """resample_smooth in NumPy."""
    scale = over / under
    away = np.arange(x.shape[dim]) + 0.5 - scale * (np.arange(size[0])[:, None] + 0.5)
    away = abs(away / max(scale, 1))
    near = (1.5 * away - 2.5) * away * away + 1
    far = ((-0.5 * away + 2.5) * away - 4) * away + 2
    cubic = np.where(away < 1, near, np.where(away < 2, far, 0))
    weights = cubic if how == "cubic" else np.maximum(1 - away, 0)
    weights = weights / weights.sum(1, keepdims=True)
    return np.moveaxis(np.tensordot(weights, x, (1, dim)), 0, dim).astype(x.dtype)


@composite(
    public=False,
    samples=_smooth_samples,
    reference=d.reference(_smooth_reference),
)
def resample_smooth(
    input: Tensor, dim: Structure, size: Sizes, over: Number, under: Number, how: Structure
) -> Any:
    """`resample` with antialiasing, along one of the last two dims: an element is the mean of those around
    its place, weighed by a triangle ("linear") or a cubic of slope -1/2 ("cubic"), which are as much wider
    as the result is smaller. It is a product with the matrix [size, n] of the weights.

    >>> x = kiln.tensor([[[[0.0, 2.0, 4.0, 6.0]]]])
    >>> kiln.nn.functional.interpolate(x, (1, 2), mode="bilinear", antialias=True)
    tensor([[[[1.4286, 4.5714]]]])
    """
    n, kind, iota, scale = input.shape[dim], _precision(how, input.dtype), find("iota"), over / under
    shape = (*size, n)
    i, j = (p.convert(input.graph.add(iota, (), (shape, k)), kind) for k in (0, 1))
    wider = p.maximum(p.convert(scale, kind), 1)
    away = (j + 0.5 - (i + 0.5) * scale) / wider
    away = p.maximum(away, -away)
    if how == "cubic":
        near = (away * 1.5 - 2.5) * away * away + 1
        far = ((away * -0.5 + 2.5) * away - 4) * away + 2
        weights = p.where(away < 1, near, p.where(away < 2, far, 0))
    else:
        weights = p.maximum(1 - away, 0)
    weights = weights / find("sum")(weights, (1,), True)
    x, product = wide(input), find("matmul")
    found = product(x, permute(weights, (1, 0))) if dim == input.ndim - 1 else product(weights, x)
    return narrow(found, input.dtype)


_MODES = {"linear": 3, "bilinear": 4, "trilinear": 5}
_LISTED = "nearest | linear | bilinear | bicubic | trilinear | lanczos | area | nearest-exact"


def _check_mode(input: Tensor, mode: str, align_corners: Any, antialias: bool) -> None:
    if mode in ("nearest", "area", "nearest-exact"):
        require(
            align_corners is None,
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic "
            "| trilinear",
            ValueError,
        )
    require(
        not antialias or (mode in ("bilinear", "bicubic") and input.ndim == 4),
        "Anti-alias option is restricted to bilinear, bicubic, and lanczos modes and requires a 4-D tensor "
        "as input",
        ValueError,
    )
    wanted = _MODES.get(mode)
    if input.ndim in (3, 4, 5) and wanted is not None:
        message = f"Got {input.ndim}D input, but {mode} mode needs {wanted}D input"
        require(input.ndim == wanted, message, NotImplementedError)
        return
    known = mode in ("nearest", "nearest-exact", "area") or (mode == "bicubic" and input.ndim == 4)
    require(
        known and input.ndim in (3, 4, 5),
        f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.ndim}D) for the modes: "
        f"{_LISTED} (got {mode})",
        NotImplementedError,
    )


def _sizes(
    input: Tensor, size: Any, factor: Any, recompute: bool | None, always: bool
) -> tuple[tuple[Any, ...], tuple[float | None, ...]]:
    """The sizes of the result, and the factors that places are computed from (None: from the sizes)."""
    dims, sizes = input.ndim - 2, tuple(input.shape)[2:]
    require(size is None or factor is None, "only one of size or scale_factor should be defined", ValueError)
    require(
        size is not None or factor is not None, "either size or scale_factor should be defined", ValueError
    )
    given, name = (size, "output size of") if factor is None else (factor, "scale_factor of shape")
    each = tuple(given) if isinstance(given, Sequence) else (given,) * dims
    require(
        len(each) == dims,
        f"Input and {'output' if factor is None else 'scale_factor'} must have the same number of spatial "
        f"dimensions, but got input with spatial dimensions of {list(sizes)} and {name} {tuple(each)}. "
        "Please provide input tensor in (N, C, d1, d2, ...,dK) format.",
        ValueError,
    )
    if factor is None:
        require(not recompute, "recompute_scale_factor is not meaningful with an explicit size.", ValueError)
        message = f"expected size to be one of int or a tuple of ints, but got size {each}"
        require(not any(isinstance(n, float) or n is None for n in each), message, TypeError)
        return each, (None,) * dims
    found = tuple(_times(n, f) for n, f in zip(sizes, each))
    return found, (None,) * dims if recompute or always else tuple(map(float, each))


def _times(n: Any, factor: float) -> Any:
    """A size times a factor, rounded down; one that varies where that is exact in integers."""
    if isinstance(n, int):
        return int(n * factor)
    over, under = float(factor).as_integer_ratio()
    if over >= _EXACT or under >= _EXACT or over < 0:
        return int(fixed_count(n, f"multiplied by {factor}, which is rounded,") * factor)
    return n * over // under


_EXACT = 1 << 20  # sizes below 2^32 times such a number are exact as floats


def _scale(n: Any, out: Any, factor: float | None, corners: bool) -> tuple[Any, Any]:
    """How far apart the result's elements lie, in elements of the input: the one by the other."""
    if not answerable(n, out):
        raise TypeError("interpolate: how far apart elements lie is not known here")
    if corners:
        return (n - 1, out - 1) if out > 1 else (1, 1)  # the first of one lies at 0 whatever the scale
    return (1.0, float(factor)) if factor is not None and factor > 0 else (n, out)


def _whole(n: Any, out: Any, over: Any, under: Any) -> int:
    """The power of two that a result is larger by, if places follow from it and are exact; else 0."""
    fits = (k for k in (2, 4, 8) if surely_equal(out, k * n) and surely_equal(under, k * over))
    return next(fits, 0)


_AREA = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)
_HOW = {"nearest": "nearest", "nearest-exact": "nearest-exact", "bicubic": "cubic"}


forms(
    "interpolate",
    "(input, size: int | Sequence[int] | None = None, scale_factor=None, mode='nearest', "
    "align_corners=None, recompute_scale_factor=None, antialias=False)",
)


@public(
    "interpolate",
    method=False,
    layer=True,
    dtypes="float",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), 7), {"mode": "linear"}),
        lambda rng, t: ((d.array(rng, (2, 3, 4, 3), t),), {"scale_factor": 2}),
        lambda rng, t: ((d.array(rng, (1, 2, 3, 4), t), (5, 6)), {"mode": "bilinear", "align_corners": True}),
        lambda rng, t: ((d.array(rng, (1, 2, 3, 4), t),), {"scale_factor": (1.7, 2.0), "mode": "bicubic"}),
        lambda rng, t: ((d.array(rng, (1, 2, 3, 2, 4), t),), {"scale_factor": 1.5, "mode": "trilinear"}),
        lambda rng, t: ((d.array(rng, (1, 2, 5, 4), t), (2, 3)), {"mode": "area"}),
        lambda rng, t: ((d.array(rng, (1, 2, 5, 4), t), (2, 7)), {"mode": "bicubic", "antialias": True}),
    ),
    failures=d.failures(
        ((d.Zeros(1, 4), 2), {}, NotImplementedError, "Only 3D, 4D and 5D input"),
        ((d.Zeros(1, 1, 4),), {}, ValueError, "either size or scale_factor should be defined"),
        ((d.Zeros(1, 1, 4), 2, 2.0), {}, ValueError, "only one of size or scale_factor"),
        ((d.Zeros(1, 1, 4), (2, 2)), {}, ValueError, "must have the same number of spatial dimensions"),
        ((d.Zeros(1, 1, 4), 2), {"align_corners": True}, ValueError, "align_corners option can only be set"),
        ((d.Zeros(1, 1, 4), 0), {}, RuntimeError, "Input and output sizes should be greater than 0"),
        ((d.Zeros(1, 1, 4, 4), 2), {"mode": "linear"}, NotImplementedError, "linear mode needs 3D input"),
    ),
    differs="no lanczos; linear modes of floats and bytes, nearest ones of every dtype",
)
def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """[N, C, ...] with its last 1 to 3 dims of `size`, or `scale_factor` times as large (rounded down).

    `mode`: "nearest", "nearest-exact", "area", "linear" (3 dims), "bilinear" or "bicubic" (4), "trilinear"
    (5). `align_corners`: the outermost elements stay where they are. `recompute_scale_factor`: places follow
    from the sizes, not from the factor. `antialias` (bilinear and bicubic): where the result is smaller,
    its elements are means of more. ValueError for settings that do not go together, RuntimeError for sizes of
    0, NotImplementedError for another mode.

    >>> kiln.nn.functional.interpolate(kiln.tensor([[[1.0, 3.0]]]), scale_factor=2)
    tensor([[[1., 1., 3., 3.]]])
    """
    if mode not in ("nearest", "area", "nearest-exact") or input.ndim not in (3, 4, 5):
        _check_mode(input, mode, align_corners, antialias)
    out, factors = _sizes(input, size, scale_factor, recompute_scale_factor, mode == "area")
    _check_mode(input, mode, align_corners, antialias)
    shape = tuple(input.shape)
    require(
        all(not isinstance(n, int) or n > 0 for n in (*shape[2:], *out)),
        f"Input and output sizes should be greater than 0, but got input {shape[2:]} output {out}",
    )
    require(
        shape[1] != 0, f"Non-empty {len(shape)}D data tensor expected but got a tensor with sizes {shape}"
    )
    if mode == "area":
        return _AREA[len(out) - 1](input, out)
    corners = bool(align_corners)
    how = _HOW.get(mode, "linear") + (" corners" if corners else "")
    kind, x = dtype_name(input.dtype), input
    if not mode.startswith("nearest"):
        if kind == "uint8" and mode in ("bilinear", "bicubic"):
            return _of_bytes(input, out, factors, mode, corners, antialias)
        if not is_float(input):
            raise NotImplementedError(f"\"upsample_{mode}\" not implemented for '{type_name(kind)}'")
        x = p.convert(input, "float32") if kind in ("float16", "bfloat16") else input
    for k in reversed(range(len(out))):
        apart = _scale(shape[2 + k], out[k], factors[k], corners)
        if antialias:
            kernel = "cubic" if mode == "bicubic" else "linear"
            apart = (0, 1) if corners and out[k] == 1 else apart
            x = resample_smooth.handle(x, 2 + k, (out[k],), *apart, kernel)
            continue
        if how == "linear" or (mode == "nearest" and len(out) == 2):
            if out[k] == shape[2 + k]:  # PyTorch's, whatever the factor
                continue
            apart = (1, 2) if mode == "nearest" and out[k] == 2 * shape[2 + k] else apart
        whole = _whole(shape[2 + k], out[k], *apart) if mode.startswith("nearest") else 0
        if mode == "bicubic":
            x = resample_cubic.handle(x, 2 + k, (out[k],), *apart, how)
        elif whole:
            x = resample.handle(x, 2 + k, (out[k],), *apart, _WHOLE, whole)
        else:
            x = resample.handle(x, 2 + k, (out[k],), *apart, how, _most(*apart, how))
    if x is input:
        return p.clone(x)
    return x if dtype_name(x.dtype) == kind else p.convert(x, kind)


def _of_bytes(input: Any, out: Any, factors: Any, mode: str, corners: bool, antialias: bool) -> Any:
    """interpolate of images of uint8."""
    x = input
    for dim in (3, 2):
        n, wanted = input.shape[dim], out[dim - 2]
        if n != wanted:  # as PyTorch, whatever the factor
            over, under = _scale(n, wanted, factors[dim - 2], corners)
            scale = over / under
            if corners and wanted == 1:
                scale = 0.0
            x = resample_bytes(x, dim, wanted, scale, mode == "bicubic", corners, antialias)
    return p.clone(x) if x is input else x


forms(
    "upsample",
    "(input, size: int | Sequence[int] | None = None, scale_factor=None, mode='nearest', align_corners=None)",
)


@public("upsample", method=False, layer=True)
def upsample(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Any:
    """`interpolate` by its older name, which a warning says.

    >>> kiln.nn.functional.upsample(kiln.tensor([[[1.0, 3.0]]]), 3)
    tensor([[[1., 1., 3.]]])
    """
    warn("`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.")
    return interpolate(input, size, scale_factor, mode, align_corners)
