"""Max pools whose windows begin at random places: fractional_max_pool2d and 3d.

Along a dim of n elements, o windows of w elements begin at floor((i + u) a) - floor(u a) for i < o - 1, with
a = (n - w) / (o - 1) and u drawn from [0, 1) for each plane; the last begins at n - w. After Graham,
"Fractional max-pooling" (2014), there "pseudorandom" and "overlapping".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.graph.size import product
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.indexing.gathering import gather
from kiln.ops.random.sampling import rand
from kiln.ops.views.core_views import reshape, slice_
from kiln.ops.windows.geometry import listed, require
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, is_symbolic, number
from kiln.table.callables import draws
from kiln.table.public import public
from kiln.table.record import Sample, Structure, Tensor, composite, find

_NAMES = ("time", "height", "width")


def _starts_reference(np: Any, n: int, out: int, window: int, u: Any) -> Any:
    """Where windows begin along a dim, from u (planes, 1): (planes, out), in NumPy."""
    step = (n - window) / max(out - 1, 1)
    starts = ((u + np.arange(out)) * step).astype(np.int64) - (u * step).astype(np.int64)
    starts[:, -1] = n - window
    return starts


def _reference(np: Any, x: Any, u: Any, window: Any, out: Any) -> Any:
    """`fractional_pool` of vectors, in NumPy."""
    starts = _starts_reference(np, x.shape[1], out[0], window[0], u)
    at = starts[:, :, None] + np.arange(window[0])
    seen = np.take_along_axis(x[:, None], at.reshape(len(x), 1, -1), 2).reshape(at.shape)
    return seen.max(2), np.take_along_axis(at, seen.argmax(2)[..., None], 2)[..., 0]


@composite(
    public=False,
    dtypes="float",
    samples=d.samples(
        lambda rng, t: ((d.distinct(rng, (2, 7), t), d.array(rng, (2, 1), t, 0, 0.99), (2,), (3,)), {})
    ),
    reference=d.reference(_reference),
)
def fractional_pool(input: Tensor, u: Tensor, window: Structure, out: Structure) -> Any:
    """The largest of each window and its place in its plane, of planes [planes, ...]; u [planes, dims].

    Whatever u is, no window leaves the input.

    >>> x = kiln.tensor([[[1.0, 3.0], [4.0, 2.0]]])
    >>> kiln.nn.functional.fractional_max_pool2d(x, 2, output_size=1, return_indices=True)[1]
    tensor([[[2]]])
    """
    dims, planes = len(out), input.shape[0]
    sizes, shape = tuple(input.shape)[1:], (planes, *out, *window)
    places: Any = 0
    for k in range(dims):
        which = k if dims == 3 else dims - 1 - k  # images have the width's first
        own = reshape(slice_(u, 1, (which, 1, 1)), (planes,) + (1,) * (2 * dims))
        i, last = _iota(input, shape, 1 + k), number(input, sizes[k] - window[k])
        step = p.convert(last, u.dtype) / max(out[k] - 1, 1)
        start = p.convert((p.convert(i, u.dtype) + own) * step, "int64") - p.convert(own * step, "int64")
        start = p.where(i < out[k] - 1, p.minimum(p.maximum(start, 0), last), last)
        at = (start + _iota(input, shape, 1 + dims + k)) * number(input, product(sizes[k + 1 :]))
        places = at + places
    windows, taps = product(tuple(out)), product(tuple(window))
    places = reshape(places, (planes, windows * taps))
    seen = gather(reshape(input, (planes, product(sizes))), 1, places)
    tap = (
        find("argmax")(reshape(seen, (planes, windows, taps)), 2, False)
        + _iota(input, (planes, windows), 1) * taps
    )
    return tuple(reshape(gather(x, 1, tap), (planes, *out)) for x in (seen, places))


def _iota(input: Tensor, shape: Any, dim: int) -> Any:
    """The position along `dim`."""
    return input.graph.add(find("iota"), (), (shape, dim))


def _each(value: Any, dims: int) -> tuple[Any, ...]:
    given = tuple(value) if isinstance(value, Sequence) else (value,) * dims
    require(len(given) == dims, f"fractional_max_pool{dims}d: expected one number or {dims}, got {value}")
    return given


def _found(input: Tensor, name: str, kernel: Any, size: Any, ratio: Any, u: Any) -> tuple[Any, Any]:
    """PyTorch's errors, and the pool."""
    dims, shape = int(name[-2]), tuple(input.shape)
    require(
        size is not None or ratio is not None,
        f"{name} requires specifying either an output_size or an output_ratio",
        ValueError,
    )
    require(
        len(shape) in (dims + 1, dims + 2) and 0 not in shape[-dims - 1 :],
        f"{name}(): Expected {dims + 1}D or {dims + 2}D tensor with non-empty planes, but got: "
        f"{listed(shape)}",
    )
    sizes, window = shape[-dims:], _each(kernel, dims)
    out = (
        _each(size, dims)
        if size is not None
        else tuple(int(n * r) for n, r in zip(sizes, _each(ratio, dims)))
    )
    for what, n, o, w in zip(_NAMES[-dims:], sizes, out, window):
        require(o > 0 and w > 0, f"{name}: output size and kernel_size must be above 0, got {o} and {w}")
        most = n if dims == 2 else n - 1  # as PyTorch has it
        fits = is_symbolic((n,)) or o + w - 1 <= most
        require(fits, f"{name}(): pool {what} {w} too large relative to input {what} {n}")
    batch = shape[0] if len(shape) == dims + 2 else 1
    channels = shape[-dims - 1]
    if u is None:
        u = rand(batch, channels, dims, dtype=input.dtype)
    require(
        tuple(u.shape) == (batch, channels, dims),
        f"{name}: Expect _random_samples of sizes {listed((batch, channels, dims))}, got {listed(u.shape)}",
    )
    planes = reshape(input, (batch * channels, *sizes))
    u = u if u.dtype == input.dtype else p.convert(u, dtype_name(input.dtype))
    found = fractional_pool.handle(planes, reshape(u, (batch * channels, dims)), window, out)
    best, places = (reshape(y, (*shape[:-dims], *out)) for y in found)
    return best, places


def _cases(dims: int) -> Any:
    def samples(rng: Any, t: Any) -> Any:
        for more in ({}, {"return_indices": True}):
            x, u = d.distinct(rng, (2, 3, *(5,) * dims), t), d.array(rng, (2, 3, dims), t, 0, 0.99)
            yield Sample((x, 2, 3), {**more, "_random_samples": u})

    return lambda rng, t: list(samples(rng, t))


def _failing(dims: int) -> Any:
    x = d.Zeros(1, 1, *(4,) * dims)
    return d.failures(
        ((x, 2), {}, ValueError, "requires specifying either"),
        ((x, 2, 4), {}, RuntimeError, "too large relative to input"),
        ((d.Zeros(1, 1, 1, *(4,) * dims), 2, 2), {}, RuntimeError, "Expected"),
    )


_DOC = """The largest element of each of `output_size` windows of `kernel_size` over the last dims of [C,
{1}] or
    [N, C, {1}], which begin at random places, other ones for each plane.

    Either is a number or one for each dim. `output_ratio`: the sizes of the result as fractions of the
    input's, in place of `output_size`. With `return_indices` also where each is in its plane (int64).
    ValueError for neither size nor ratio, RuntimeError for sizes that do not fit.

    >>> kiln.nn.functional.{0}(kiln.ones({2}), 2, output_size=2){3}.shape
    kiln.Size([{4}])
    """


def _pool(dims: int, by_default: bool) -> Any:
    name = f"fractional_max_pool{dims}d"

    @draws
    def pool(
        input: Any,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = by_default,
        _random_samples: Tensor | None = None,
    ) -> Any:
        found = _found(input, name, kernel_size, output_size, output_ratio, _random_samples)
        return found if return_indices or by_default else found[0]

    own = f"{name}_with_indices" if by_default else name
    inside, outside = ("1, " + ", ".join([n] * dims) for n in "52")
    first = "[0]" if by_default else ""
    pool.__doc__ = _DOC.format(own, ("H, W", "D, H, W")[dims - 2], inside, first, outside)
    return public(
        own,
        method=False,
        layer=True,
        tests=d.Tests(peer_gradient=False),  # PyTorch refuses samples that require one
        dtypes="float",
        samples=_cases(dims),
        failures=_failing(dims),
    )(pool)


fractional_max_pool2d, fractional_max_pool3d = (_pool(k, False) for k in (2, 3))
fractional_max_pool2d_with_indices, fractional_max_pool3d_with_indices = (_pool(k, True) for k in (2, 3))
