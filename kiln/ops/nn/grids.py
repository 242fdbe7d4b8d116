"""Images read at places that a grid names: grid_sample, and the grid of an affine map.

A place is computed once for every element of the result, as a number of its plane; the elements around it are
gathered and weighed. So both derivatives are those of gathers, products and sums, of every order.
"""

from __future__ import annotations

from itertools import product as each
from types import ModuleType
from typing import Any

from kiln.errors import warn
from kiln.graph.size import product
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.elementary import floor, round
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.indexing.gathering import gather
from kiln.ops.nn.interpolation import cubic_weight, cubic_weights
from kiln.ops.views.core_views import expand, reshape, slice_
from kiln.ops.windows.geometry import listed, require
from kiln.table import drawn as d
from kiln.table.arguments import answerable, dtype_name, is_float, number, type_name
from kiln.table.public import public
from kiln.table.record import Sample, Sizes, Structure, Tensor, composite, find

# In NumPy


def _bounded(np: ModuleType, at: Any, n: int, padding: str, corners: bool) -> Any:
    """Places along a dim of n elements as the padding mode sees them."""
    if padding == "reflection":
        low, span = (0, n - 1) if corners else (-0.5, n)
        away = np.abs(at - low)
        turns = np.floor(away / span) if span else away * 0
        rest = away - turns * span
        at = np.where(turns % 2 == 0, rest, span - rest) + low if span else at * 0
    return at if padding == "zeros" else np.clip(at, 0, n - 1)


def _reference(np: ModuleType, x: Any, grid: Any, mode: str, padding: str, corners: bool) -> Any:
    """sampled in NumPy: one tap at a time."""
    sizes, images = x.shape[2:], np.arange(len(x)).reshape(-1, *(1,) * (grid.ndim - 2))
    spots = []
    for k, n in enumerate(sizes):
        c = grid[..., len(sizes) - 1 - k].astype(np.float64)
        at = (c + 1) / 2 * (n - 1) if corners else ((c + 1) * n - 1) / 2
        at = at if mode == "bicubic" else _bounded(np, at, n, padding, corners)
        low = np.round(at) if mode == "nearest" else np.floor(at)
        offsets = {"nearest": (0,), "bilinear": (0, 1), "bicubic": (-1, 0, 1, 2)}[mode]
        weigh = {"nearest": lambda t: t * 0 + 1, "bilinear": lambda t: 1 - t, "bicubic": cubic_weight}[mode]
        spots.append([(low + o, weigh(np.abs(at - low - o))) for o in offsets])
    total: Any = 0.0
    for taps in each(*spots):
        weight: Any = 1.0
        place = []
        for (at, share), n in zip(taps, sizes):
            at = _bounded(np, at, n, padding, corners) if mode == "bicubic" else at
            weight = weight * share * ((at >= 0) & (at < n))
            place.append(np.clip(at, 0, n - 1).astype(np.int64))
        total = total + np.moveaxis(x[(images, slice(None), *place)], -1, 1) * weight[:, None]
    return total.astype(x.dtype)


def _affine_reference(np: ModuleType, theta: Any, sizes: Any, corners: bool) -> Any:
    """affine_places in NumPy."""
    along = [(2 * np.arange(n) - (n - 1)) / (max(n - 1, 1) if corners else n) for n in sizes]
    base = np.stack([*reversed(np.meshgrid(*along, indexing="ij")), np.ones(sizes)], -1)
    return np.einsum("...k,njk->n...j", base, theta).astype(theta.dtype)


def _samples(rng: Any, t: str) -> list[Any]:
    def sample(shape: Any, out: Any, *settings: Any) -> Any:
        grid = d.array(rng, (shape[0], *out, len(out)), t, -1.6, 1.6)
        return Sample((d.array(rng, shape, t), grid, *settings))

    return [
        sample((2, 2, 4, 3), (3, 5), "bilinear", "zeros", False),
        sample((2, 1, 3, 4, 2), (2, 2, 3), "bilinear", "border", True),
        sample((1, 2, 5, 3), (4, 2), "nearest", "reflection", False),
    ]


# The ops


@composite(public=False, samples=_samples, reference=d.reference(_reference))
def sampled(input: Tensor, grid: Tensor, mode: Structure, padding: Structure, corners: Structure) -> Any:
    """grid_sample, of arrays that fit.

    >>> x = kiln.tensor([[[[1.0, 3.0]]]])
    >>> kiln.nn.functional.grid_sample(x, kiln.tensor([[[[0.0, 0.0]]]]), align_corners=False)
    tensor([[[[2.]]]])
    """
    x, sizes, out = wide(input), tuple(input.shape)[2:], tuple(grid.shape)[1:-1]
    images, channels, many = grid.shape[0], input.shape[1], product(out)
    flat = reshape(x, (input.shape[0], channels, product(sizes)))
    spots = []
    for k, n in enumerate(sizes):
        c = slice_(wide(p.by_steps(grid)), grid.ndim - 1, (len(sizes) - 1 - k, 1, 1))
        spots.append(_around(reshape(c, (images, 1, many)), n, mode, padding, corners))
    total: Any = None
    for taps in each(*spots):
        place = inside = weight = None
        for k, (at, within, share) in enumerate(taps):
            own = at * number(x, product(sizes[k + 1 :]))
            place = own if place is None else place + own
            inside = within if inside is None else inside & within
            weight = share if weight is None else weight * share
        part = p.where(inside, gather(flat, 2, expand(place, (images, channels, many))), 0)
        part = part * weight
        total = part if total is None else total + part
    return narrow(reshape(total, (images, channels, *out)), input.dtype)


def _around(c: Any, n: Any, mode: str, padding: str, corners: bool) -> list[tuple[Any, Any, Any]]:
    """The elements around coordinates along a dim of n: each one's place, whether it is one, its weight."""
    last = number(c, n - 1)
    at = (c + 1) / 2 * last if corners else ((c + 1) * number(c, n) - 1) / 2
    if mode != "bicubic":
        at = _within(at, n, padding, corners)
    low = round(at) if mode == "nearest" else floor(at)
    share = at - low
    taps: list[tuple[int, Any]] = (
        [(0, p.overwrite(at, number(at, 1)))] if mode == "nearest" else [(0, 1 - share), (1, share)]
    )
    found = []
    for offset, weight in cubic_weights(share) if mode == "bicubic" else taps:
        place = low + offset
        place = _within(place, n, padding, corners) if mode == "bicubic" else place
        inside = (place >= 0) & (place <= last)
        found.append((p.convert(p.where(inside, place, 0), "int64"), inside, weight))
    return found


def _within(at: Any, n: Any, padding: str, corners: bool) -> Any:
    """Places as the padding mode sees them; without a gradient on the border and beyond, as PyTorch's."""
    if padding == "zeros":
        return at
    last = number(at, n - 1)
    if padding == "reflection":
        if n == 1 and corners:
            return p.overwrite(at, number(at, 0))
        low, span = (0, last) if corners else (-0.5, number(at, n))
        away = at - low
        away = p.where(away < 0, -away, away)
        turns = floor(away / span)
        rest = away - turns * span
        at = p.where(turns - 2 * floor(turns / 2) < 1, rest, span - rest) + low
    return p.where(at <= 0, 0, p.where(at >= last, last, at))


@composite(
    public=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 2, 3), t), (3, 4), False), {}),
        lambda rng, t: ((d.array(rng, (2, 2, 3), t), (1, 3), True), {}),
        lambda rng, t: ((d.array(rng, (1, 3, 4), t), (2, 1, 3), False), {}),
    ),
    reference=d.reference(_affine_reference),
)
def affine_places(theta: Tensor, sizes: Sizes, corners: Structure) -> Any:
    """affine_grid for images of `sizes`, of matrices that fit.

    >>> kiln.nn.functional.affine_grid(kiln.eye(2, 3)[None], (1, 1, 1, 2), align_corners=False)
    tensor([[[[-0.5000,  0.0000],
              [ 0.5000,  0.0000]]]])
    """
    x, dims = wide(theta), len(sizes)
    ones = (1,) * dims

    def column(k: int) -> Any:
        return reshape(slice_(x, 2, (k, 1, 1)), (theta.shape[0], *ones, dims))

    total = expand(column(dims), (theta.shape[0], *sizes, dims))
    for k, n in enumerate(sizes):
        last = number(x, n - 1)
        along = x.graph.add(find("iota"), (), ((1, *ones[:k], n, *ones[k + 1 :], 1), 1 + k))
        count = p.maximum(last, 1) if corners else number(x, n)
        total = total + p.convert(2 * along - last, x.dtype) / p.convert(count, x.dtype) * column(
            dims - 1 - k
        )
    return narrow(total, theta.dtype)


# What is called

_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def _corners(given: bool | None) -> bool:
    if given is None:
        warn(
            "Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. "
            "Please specify align_corners=True if the old behavior is desired. See the documentation of "
            "grid_sample for details."
        )
    return bool(given)


def _check(input: Tensor, grid: Tensor, mode: str) -> None:
    shape, other = tuple(input.shape), tuple(grid.shape)
    require(
        dtype_name(input.dtype) == dtype_name(grid.dtype),
        f"expected scalar type {type_name(dtype_name(input.dtype))} but found "
        f"{type_name(dtype_name(grid.dtype))}",
    )
    require(
        len(shape) in (4, 5) and len(other) == len(shape),
        "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, but got input with "
        f"sizes {listed(shape)} and grid with sizes {listed(other)}",
    )
    if not answerable(*shape, *other):
        return
    require(
        shape[0] == other[0],
        "grid_sampler(): expected grid and input to have same batch size, but got input with sizes "
        f"{listed(shape)} and grid with sizes {listed(other)}",
    )
    require(
        other[-1] == len(shape) - 2,
        f"grid_sampler(): expected grid to have size {len(shape) - 2} in last dimension, but got grid with "
        f"sizes {listed(other)}",
    )
    for k, n in enumerate(shape[2:], 2):
        require(
            n > 0,
            "grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes "
            f"{listed(shape)} with dimension {k} being empty",
        )


@public(
    "grid_sample",
    method=False,
    layer=True,
    dtypes="float32 bfloat16",
    samples=d.samples(
        lambda rng, t: (
            (d.array(rng, (2, 2, 4, 3), t), d.array(rng, (2, 3, 2, 2), t, -1.5, 1.5)),
            {"align_corners": True},
        ),
        lambda rng, t: (
            (
                d.array(rng, (1, 2, 2, 3, 3), t),
                d.array(rng, (1, 2, 2, 2, 3), t, -1.5, 1.5),
                "nearest",
                "border",
            ),
            {"align_corners": False},
        ),
    ),
    failures=d.failures(
        ((d.Zeros(1, 1, 3), d.Zeros(1, 2, 1)), {}, RuntimeError, "expected 4D or 5D input"),
        ((d.Zeros(1, 1, 3, 3), d.Zeros(1, 2, 2, 3)), {}, RuntimeError, "to have size 2 in last dimension"),
        ((d.Zeros(1, 1, 3, 3), d.Zeros(2, 2, 2, 2)), {}, RuntimeError, "to have same batch size"),
        ((d.Zeros(1, 1, 0, 3), d.Zeros(1, 2, 2, 2)), {}, RuntimeError, "non-empty spatial dimensions"),
        ((d.Zeros(1, 1, 3, 3), d.Zeros(1, 2, 2, 2), "cubic"), {}, ValueError, "expected mode to be"),
        ((d.Zeros(1, 1, 3, 3), d.Zeros(1, 2, 2, 2), "nearest", "x"), {}, ValueError, "expected padding_mode"),
        (
            (d.Zeros(1, 1, 3, 3, 3), d.Zeros(1, 2, 2, 2, 3), "bicubic"),
            {},
            RuntimeError,
            "bicubic interpolation only supports 4D input",
        ),
    ),
    differs="places of 16-bit floats are computed in float32; derivatives of every order",
    tests=d.Tests(history="of nearest elements the grid's gradient leads to zeros; PyTorch's leads nowhere"),
)
def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """[N, C, H, W] at the places of a grid [N, h, w, 2] as [N, C, h, w], or so with three dims: x, y (z) from
    -1 to 1 over the image, whose corners are the centres of its outermost elements (`align_corners`) or
    their edges.

    `mode`: "bilinear", "nearest", "bicubic" (two dims). `padding_mode`, what is beyond the image: "zeros",
    "border", "reflection". RuntimeError for shapes or dtypes that do not fit, ValueError for another mode.

    >>> x = kiln.arange(4.0).reshape(1, 1, 2, 2)
    >>> kiln.nn.functional.grid_sample(x, kiln.tensor([[[[1.0, -1.0], [0.0, 0.0]]]]), align_corners=True)
    tensor([[[[1.0000, 1.5000]]]])
    """
    name = "nn.functional.grid_sample(): expected "
    message = f"{name}mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'"
    require(mode in _MODES, message, ValueError)
    message = f"{name}padding_mode to be 'zeros', 'border', or 'reflection', but got: '{padding_mode}'"
    require(padding_mode in _PADDINGS, message, ValueError)
    corners = _corners(align_corners)
    _check(input, grid, mode)
    require(
        mode != "bicubic" or input.ndim == 4, "grid_sampler(): bicubic interpolation only supports 4D input"
    )
    if not is_float(input):
        kind = type_name(dtype_name(input.dtype))
        raise NotImplementedError(f"\"grid_sampler_{input.ndim - 2}d_cpu\" not implemented for '{kind}'")
    return sampled.handle(input, grid, mode, padding_mode, corners)


@public(
    "affine_grid",
    method=False,
    layer=True,
    dtypes="float32 bfloat16",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 2, 3), t), (2, 1, 3, 4)), {"align_corners": False}),
        lambda rng, t: ((d.array(rng, (1, 3, 4), t), (1, 2, 2, 3, 2)), {"align_corners": True}),
    ),
    failures=d.failures(
        ((d.Zeros(1, 3, 3), (1, 1, 2, 2)), {}, ValueError, "batch of 2D affine matrices of shape Nx2x3"),
        ((d.Zeros(1, 2, 3), (1, 1, 2)), {}, NotImplementedError, "only supports 4D and 5D sizes"),
        ((d.Zeros(1, 2, 3), (1, 1, 0, 2)), {}, ValueError, "Expected non-zero, positive output size"),
        ((d.Zeros(2, 2, 3), (1, 1, 2, 2)), {}, RuntimeError, "Expected size for first two dimensions"),
        ((d.Zeros(1, 2, 3, dtype="int64"), (1, 1, 2, 2)), {}, ValueError, "to have floating point type"),
    ),
)
def affine_grid(theta: Any, size: Any, align_corners: bool | None = None) -> Any:
    """The grid for `grid_sample` of the affine maps `theta` [N, 2, 3] onto images of `size` (N, C, H, W):
    [N, H, W, 2]; or [N, 3, 4] for (N, C, D, H, W): [N, D, H, W, 3].

    ValueError, NotImplementedError or RuntimeError for matrices and sizes that do not fit.

    >>> kiln.nn.functional.affine_grid(kiln.eye(2, 3)[None], (1, 1, 1, 3), align_corners=True)
    tensor([[[[-1.,  0.],
              [ 0.,  0.],
              [ 1.,  0.]]]])
    """
    corners, size, shape = _corners(align_corners), tuple(size), tuple(theta.shape)
    message = f"Expected theta to have floating point type, but got {theta.dtype}"
    require(is_float(theta), message, ValueError)
    require(
        len(size) in (4, 5),
        "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. Got size "
        f"{size}.",
        NotImplementedError,
    )
    dims = len(size) - 2
    require(
        len(shape) == 3 and shape[1:] == (dims, dims + 1),
        f"Expected a batch of {dims}D affine matrices of shape Nx{dims}x{dims + 1} for size {size}. Got "
        f"{listed(shape)}.",
        ValueError,
    )
    require(
        all(not isinstance(n, int) or n > 0 for n in size),
        f"Expected non-zero, positive output size. Got {size}",
        ValueError,
    )
    require(
        not answerable(size[0], shape[0]) or size[0] == shape[0],
        f"Expected size for first two dimensions of batch2 tensor to be: [{size[0]}, {dims + 1}] but got: "
        f"[{shape[0]}, {dims + 1}].",
    )
    if corners and 1 in size[2:]:
        warn(
            "Since version 1.3.0, affine_grid behavior has changed for unit-size grids when "
            "align_corners=True. This is not an intended use case of affine_grid. See the documentation of "
            "affine_grid for details."
        )
    return affine_places.handle(theta, size[2:], corners)
