"""The largest element of each window, and where it is.

A window's result carries the number of the tap it came from, a byte: the gradient goes there, and indices are
computed from it where they are asked for. A padded place is lower than every element, and never where a
result is from: an array of nothing but the lowest value has its first element there.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.graph.size import product
from kiln.ops.creation.constants import filled
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.comparison import gt, ne
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.indexing.gathering import gather, scatter_add
from kiln.ops.views.core_views import reshape
from kiln.ops.windows.geometry import Ints, Windows, bordered, stages, tap, taps
from kiln.table import arguments
from kiln.table import drawn as d
from kiln.table.arguments import INTEGERS, dtype_name
from kiln.table.public import public
from kiln.table.record import Sample, Sizes, Structure, Tensor, composite, find, primitive

# taps of a window read in one pass
AT_ONCE = 25
NUMBERED = 256  # taps that a byte numbers


def _lowest(dtype: str) -> Any:
    if dtype not in INTEGERS:
        return float("-inf")
    return 0 if dtype == "uint8" else -(1 << (int(dtype[3:]) - 1))


def _reference(
    np: ModuleType,
    x: Any,
    out: Ints,
    after: Ints,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    _: bool,
) -> Any:
    """pool_max in NumPy: one tap at a time."""
    dims = len(kernel)
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    widths = [(0, 0)] * (x.ndim - dims) + [*zip(padding, after)]
    x = np.pad(x, widths, constant_values=low)
    best: Any = None
    for number, place in enumerate(np.ndindex(*kernel)):
        at = tuple(
            slice(t * r, t * r + (n - 1) * s + 1, s) for t, r, n, s in zip(place, dilation, out, stride)
        )
        seen = x[(..., *at)]
        if best is None:
            best, which = seen.copy(), np.zeros(seen.shape, np.uint8)
        better = (seen > best) | (seen != seen)
        best, which = np.where(better, seen, best), np.where(better, number, which)
    return best, which.astype(np.uint8)


def _samples(rng: Any, t: str) -> list[Any]:
    def sample(
        shape: Ints, out: Ints, after: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
    ) -> Any:
        padded = any(padding) or any(after)
        return Sample((d.array(rng, shape, t), out, after, kernel, stride, padding, dilation, padded))

    return [
        sample((2, 7), (3,), (0,), (3,), (2,), (0,), (1,)),
        sample((2, 5, 6), (2, 3), (0, 0), (2, 2), (2, 2), (0, 0), (1, 1)),
        sample((2, 3, 5, 5), (3, 2), (1, 1), (3, 2), (2, 3), (1, 0), (1, 2)),
        sample((2, 4, 5, 3), (2, 2, 1), (0, 0, 0), (3, 3, 3), (1, 2, 1), (0, 0, 0), (1, 1, 1)),
        sample((2, 6, 5), (6, 3), (1, 0), (3, 1), (1, 2), (1, 0), (1, 1)),
    ]


def _taps_of(rng: Any, shape: Ints, first: int) -> Any:
    """Taps `first` and the next one; the first window's is the first of all, though it may be padding."""
    found = rng.integers(first, first + 2, shape).astype("uint8")
    found[..., 0] = 0
    return found


@composite(
    public=False,
    dtypes="numeric",
    samples=_samples,
    reference=d.reference(_reference),
)
def pool_max(
    input: Tensor,
    out: Sizes,
    after: Sizes,
    kernel: Structure,
    stride: Structure,
    padding: Structure,
    dilation: Structure,
    padded: Structure,
) -> tuple[Any, Any]:
    """The largest element of each of `out` windows over the last dims, and the number of its tap (uint8;
    int32 of windows of more than 256). The first of equal ones, the last NaN.

    >>> kiln.nn.functional.max_pool1d(kiln.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[3., 2.]])
    """
    x = bordered(input, _lowest(input.dtype), padding, after) if padded else input
    which: Any = None
    for dims in stages(kernel, AT_ONCE):
        part = slice(dims[0], dims[-1] + 1)
        settings = (input.ndim - len(kernel) + dims[0], stride[part], dilation[part], out[part])
        x, which = _stage(x, which, kernel[part], product(kernel[dims[-1] + 1 :]), *settings)
    return x, p.convert(which, "uint8" if product(kernel) <= NUMBERED else "int32")


def _stage(
    x: Tensor, which: Any, kernel: Ints, weight: Tensor, first: int, stride: Ints, dilation: Ints, out: Any
) -> tuple[Any, Any]:
    """The largest along some dims, whose taps count `weight` each; `which`: what was chosen along others."""
    best = found = None
    for number, place in taps(kernel):
        seen = tap(x, place, first, stride, dilation, out)
        at = arguments.number(x, number * weight)
        if which is not None:
            at = at + tap(which, place, first, stride, dilation, out)
        elif best is None:
            at = filled(x.graph, 0, tuple(seen.shape), "int32")
        if best is None:
            best, found = seen, at
            continue
        better = gt(seen, best)
        if x.dtype not in INTEGERS:
            better = better | ne(seen, seen)
        best, found = p.where(better, seen, best), p.where(better, at, found)
    return best, found


@pool_max.derivative
def _(
    g: Tensor, ys: Any, input: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, padded: Any
) -> Tensor:
    shape, dims = tuple(input.shape), len(kernel)
    if product(kernel) <= NUMBERED:
        apart = all(s >= r * (k - 1) + 1 for k, s, r in zip(kernel, stride, dilation))
        adds = padded or not apart
        counts = tuple(g.shape)[-dims:]
        flat = (*shape[:-dims], product(counts))
        by_plane = reshape(wide(g), flat), reshape(ys[1], flat)
        found = narrow(
            pool_spread(*by_plane, shape, counts, kernel, stride, padding, dilation, adds), g.dtype
        )
    else:
        places = _places(ys[1], shape[-dims:], kernel, stride, padding, dilation)
        found = placed_at(g, places, shape, dims)
    return p.overwrite(input, found)  # see by_steps


def _put_back(
    np: ModuleType,
    g: Any,
    taps: Any,
    shape: Ints,
    counts: Ints,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    adds: bool,
) -> Any:
    """pool_spread in NumPy."""
    g, taps, sizes = g.reshape(-1, g.shape[-1]), taps.reshape(-1, *counts), shape[-len(counts) :]
    places = _placed(np, taps, sizes, kernel, stride, padding, dilation)
    out = np.zeros((len(g), int(np.prod(sizes))), g.dtype)
    np.add.at(out, (np.arange(len(g))[:, None], places.reshape(g.shape)), g)
    return out.reshape(shape)


@primitive(
    "along",
    algorithm="windows",
    dtypes="float32 float64",
    public=False,
    samples=d.samples(
        lambda rng, t: (
            (d.array(rng, (3, 8), t), _taps_of(rng, (3, 8), 0), (3, 17), (8,), (2,), (2,), (0,), (1,), False),
            {},
        ),
        lambda rng, t: (
            (
                d.array(rng, (2, 1, 9), t),
                _taps_of(rng, (2, 1, 9), 4),
                (2, 1, 5, 6),
                (3, 3),
                (3, 3),
                (2, 2),
                (1, 1),
                (1, 1),
                True,
            ),
            {},
        ),
    ),
    reference=d.reference(_put_back),
)
def pool_spread(
    input: Tensor,
    taps: Tensor,
    shape: Sizes,
    counts: Sizes,
    kernel: Structure,
    stride: Structure,
    padding: Structure,
    dilation: Structure,
    adds: Structure,
) -> Any:
    """Zeros of `shape`, and each window's input (float32 or float64; the last dim is the `counts` windows of
    a plane, laid flat) added at its tap (uint8), in ascending order; `adds` False: put there, as no two meet.

    >>> x = kiln.tensor([[1.0, 3.0, 2.0, 0.0]], requires_grad=True)
    >>> kiln.nn.functional.max_pool1d(x, 2).sum().backward()
    >>> x.grad
    tensor([[0., 1., 1., 0.]])
    """


@pool_spread.derivative
def _(
    g: Tensor, taps: Tensor, shape: Any, counts: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    lead, sizes = tuple(shape[: -len(counts)]), tuple(shape[-len(counts) :])
    places = _places(reshape(taps, (*lead, *counts)), sizes, kernel, stride, padding, dilation)
    flat = reshape(g, (*lead, product(sizes)))
    return gather(flat, len(lead), reshape(places, tuple(taps.shape))), None


def _inside(which: Any, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> list[tuple[Any, Any]]:
    """Along each dim where every window begins, and its chosen tap (int64); where that is in the padding, the
    first tap inside: every element is as low.

    Machines divide floats many at a time, integers one by one; with half of one added no quotient is near an
    integer.
    """
    dims, found = len(kernel), []
    rest = p.convert(which, "int64")
    for k, (s, a, r) in enumerate(zip(stride, padding, dilation)):
        weight = product(kernel[k + 1 :])
        own = rest
        if weight != 1:
            own = p.convert((p.convert(rest, "float64") + 0.5) / weight, "int64")
        rest = rest - own * weight
        start = which.graph.add(find("iota"), (), (tuple(which.shape), which.ndim - dims + k))
        start = p.convert(start, "int64") * s - a
        if a:
            first = find("floor_divide")(r - 1 - start, r) if r > 1 else 0 - start
            own = p.where(start + own * r < 0, first, own)
        found.append((start, own))
    return found


def _places(which: Any, sizes: Any, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Any:
    """Where the taps are in an array whose last dims are `sizes`, as one number (int64)."""
    place: Any = None
    for k, (start, own) in enumerate(_inside(which, kernel, stride, padding, dilation)):
        at = (start + own * dilation[k]) * arguments.number(which, product(sizes[k + 1 :]))
        place = at if place is None else place + at
    return place


def placed_at(g: Tensor, places: Any, shape: Any, dims: int) -> Tensor:
    """Zeros of `shape` with every element of g added at its place in the last dims, numbered as one."""
    lead, count = product(tuple(shape[:-dims])), product(tuple(shape[-dims:]))
    flat = (lead, product(tuple(g.shape)[-dims:]))
    zeros = filled(g.graph, 0, (lead, count), g.dtype)
    return reshape(scatter_add(zeros, 1, reshape(places, flat), reshape(g, flat)), shape)


def _placed(
    np: ModuleType, which: Any, sizes: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> Any:
    """pool_places in NumPy."""
    dims, place = len(kernel), np.zeros(which.shape, np.int64)
    starts = np.indices(which.shape)[which.ndim - dims :]
    tap_of = np.unravel_index(which.astype(np.int64), kernel)
    for n, start, t, s, a, r in zip(sizes, starts, tap_of, stride, padding, dilation):
        at = start * s - a + t * r
        place = place * n + np.where(at < 0, at % r, at)
    return place


@composite(
    public=False,
    dtypes="whole",
    differentiable=False,
    samples=d.samples(
        lambda rng, t: (
            (rng.integers(0, 6, (2, 3, 2)).astype(t), (5, 7), (2, 3), (2, 3), (1, 1), (1, 1)),
            {},
        ),
        lambda rng, t: ((rng.integers(0, 2, (2, 3)).astype(t), (6,), (3,), (2,), (1,), (2,)), {}),
        lambda rng, t: (
            (rng.integers(0, 3, (2, 2, 4)).astype(t), (6, 4), (3, 1), (3, 1), (0, 0), (1, 1)),
            {},
        ),
    ),
    reference=d.reference(_placed),
)
def pool_places(
    input: Tensor,
    sizes: Sizes,
    kernel: Structure,
    stride: Structure,
    padding: Structure,
    dilation: Structure,
) -> Any:
    """Where each window's tap of the number `input` is, in an array whose last dims are `sizes`: int64.

    >>> kiln.nn.functional.max_pool1d(kiln.tensor([[1.0, 3.0, 2.0, 0.0]]), 2, return_indices=True)[1]
    tensor([[1, 2]])
    """
    return _places(input, sizes, kernel, stride, padding, dilation)


def _pooled(input: Tensor, windows: Windows, name: str, indices: bool) -> Any:
    if dtype_name(input.dtype) == "bool":
        raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'")
    y, which = pool_max.handle(input, windows.out, windows.after, *windows.settings)
    if not indices:
        return y
    return y, pool_places.handle(which, windows.sizes, *windows.settings[:4])


_DOC = """The largest element of each window over the last {0} of [C, {1}] or [N, C, {1}]: the first of equal
    ones; NaN if there is one.

    `stride` None is the window's; `padding` (at most half a window) adds places lower than any element;
    `ceil_mode`: also windows that reach over the end. With `return_indices` also where each is in its plane
    (int64){2}. RuntimeError for sizes or settings that do not fit, NotImplementedError for bool.

    >>> kiln.nn.functional.{3}(kiln.arange({4}).reshape({5}), 2)
    tensor({6})
    """


def _cases(dims: int) -> Any:
    """Samples of a pool of no two equal elements: plain, padded with every setting, of one item."""

    def make(rng: Any, t: str) -> Any:
        plain, wide = ((2, *(n,) * dims) for n in (4, 5))
        settings = {"stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True}
        return [
            Sample((d.distinct(rng, (2, *plain), t), 2)),
            Sample((d.distinct(rng, wide, t), 2), {"stride": 1, "padding": 1}),
            Sample((d.distinct(rng, wide, t), (2,) * dims), settings),
            Sample((d.distinct(rng, wide, t), (3,) + (1,) * (dims - 1), 1)),
        ]

    return make


def pool_failures(dims: int, name: str, *more: Any) -> Any:
    """What every pool refuses, and more."""
    x = d.Zeros(1, 2, *(4,) * dims)
    return d.failures(
        ((d.Zeros(1, 1, 1, *(4,) * dims), 2), {}, RuntimeError, "batch mode"),
        ((x, 5), {}, RuntimeError, "Output size is too small"),
        ((x, (2,) * (dims + 1)), {}, RuntimeError, f"{name}: kernel_size must either be a single int"),
        ((x, 2, 0), {}, RuntimeError, "stride should not be zero"),
        ((x, 2, 1, 2), {}, RuntimeError, "at most half of effective kernel size"),
        ((x, 2, 1, -1), {}, RuntimeError, "must be non-negative"),
        *more,
    )


def described(text: str, name: str, dims: int, result: str, *more: str) -> str:
    """A pool's docstring, with an example of an array of 0, 1, 2 ... with sides of two."""
    sizes = ("one dim", "two dims", "three dims")[dims - 1], ("L", "H, W", "D, H, W")[dims - 1]
    shape = ", ".join(map(str, (1, *(2,) * dims)))
    return text.format(*sizes, *more, name, 2**dims, shape, "[" * (dims + 1) + result + "]" * (dims + 1))


def _max_pool(dims: int, by_default: bool) -> Any:
    """max_pool1d to max_pool3d, or the function that gives indices whether asked or not."""
    name = f"max_pool{dims}d"

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = by_default,
    ) -> Any:
        windows = Windows(name, input, kernel_size, stride, padding, dilation, ceil_mode)
        return _pooled(input, windows, name, return_indices or by_default)

    own = f"{name}_with_indices" if by_default else name
    more = ", which it gives without being asked" if by_default else ""
    pool.__doc__ = described(_DOC, own, dims, str(2**dims - 1), more)
    if by_default:
        pool.__doc__ = pool.__doc__.replace(", 2)\n", ", 2)[0]\n")
    return public(
        own,
        method=False,
        layer=True,
        dtypes="numeric",
        samples=_cases(dims),
        failures=pool_failures(dims, name),
    )(pool)


max_pool1d, max_pool2d, max_pool3d = (_max_pool(dims, False) for dims in (1, 2, 3))
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (
    _max_pool(dims, True) for dims in (1, 2, 3)
)
