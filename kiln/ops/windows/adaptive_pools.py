"""Pools to a given size: window i of o over n elements is that from floor(i n / o) to ceil((i + 1) n / o).

Where all windows of a dim are alike they are those of a pool; over a whole dim it is a reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from types import ModuleType
from typing import Any

from kiln.graph.size import product
from kiln.ops.creation.constants import zeros
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.comparison import gt, ne
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.indexing.gathering import gather
from kiln.ops.reductions.core_reductions import mean
from kiln.ops.reductions.extrema import max as largest
from kiln.ops.views.core_views import reshape
from kiln.ops.windows.average_pools import avg_pool1d, avg_pool2d, avg_pool3d
from kiln.ops.windows.geometry import Ints, listed, require
from kiln.ops.windows.max_pools import described, max_pool1d, max_pool2d, max_pool3d, placed_at
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, is_float, is_symbolic, number, type_name
from kiln.table.public import public
from kiln.table.record import Sample, Sizes, Structure, Tensor, composite, find

_AVERAGE, _LARGEST = (avg_pool1d, avg_pool2d, avg_pool3d), (max_pool1d, max_pool2d, max_pool3d)
_reshape = reshape.handle


def _span(np: ModuleType, n: int, out: int) -> list[slice]:
    return [slice(i * n // out, -(-(i + 1) * n // out)) for i in range(out)]


def _windows(np: ModuleType, x: Any, out: Ints, run: Any) -> Any:
    """`run` of each window in NumPy, whose last dims are one."""
    dims = len(out)
    spans = [_span(np, n, o) for n, o in zip(x.shape[-dims:], out)]
    y = np.zeros((*x.shape[:-dims], *out), np.int64 if run is _place else x.dtype)
    numbers = np.arange(np.prod(x.shape[-dims:])).reshape(x.shape[-dims:])
    for place in np.ndindex(*out):
        at = (..., *(s[k] for s, k in zip(spans, place)))
        seen = x[at].reshape(*x.shape[:-dims], -1)
        y[(..., *place)] = run(np, seen, numbers[at].reshape(-1))
    return y


def _place(np: ModuleType, seen: Any, numbers: Any) -> Any:
    return numbers[seen.argmax(-1)]


def _samples(make: Any, *more: bool) -> Any:
    return lambda rng, t: [
        Sample((make(rng, (2, 7), t), (3,), (3,))),
        Sample((make(rng, (2, 3, 5, 4), t), (3, 6), (3, 2))),
        Sample((make(rng, (1, 3, 2, 4), t), (2, 2, 3), (2, 1, 2))),
    ]


def _starts(x: Tensor, dim: int, out: Any) -> tuple[Any, Any]:
    """Where the windows along a dim begin and end, for a result with `out` windows along it."""
    shape = (*x.shape[:dim], out, *x.shape[dim + 1 :])
    i: Any = x.graph.add(find("iota"), (), (shape, dim))
    n, o = number(x, x.shape[dim]), number(x, out)
    more: Any = number(x, out - 1)
    divide = find("floor_divide")
    return divide(i * n, o), divide((i + 1) * n + more, o)


@composite(
    public=False,
    samples=_samples(d.array),
    reference=d.reference(
        lambda np, x, out, most: _windows(np, x, out, lambda np, seen, _: seen.mean(-1, dtype=np.float64))
    ),
)
def adaptive_mean(input: Tensor, out: Sizes, most: Structure) -> Any:
    """The mean of each of `out` windows over the last dims, at most most[k] elements along dim k; dim by dim.

    >>> kiln.nn.functional.adaptive_avg_pool1d(kiln.tensor([[1.0, 3.0, 2.0]]), 2)
    tensor([[2.0000, 2.5000]])
    """
    x = p.by_steps(wide(input))
    for k, (o, count) in enumerate(zip(out, most)):
        dim = input.ndim - len(out) + k
        start, end = _starts(x, dim, o)
        total: Any = None
        for t in range(count):
            at = start + t
            seen = gather(x, dim, p.minimum(at, end - 1))
            total = seen if total is None else total + p.where(at < end, seen, 0)
        x = total / p.convert(end - start, x.dtype)
    return narrow(x, input.dtype)


@composite(
    public=False,
    dtypes="float",
    samples=_samples(d.distinct),
    reference=d.reference(
        lambda np, x, out, most: (
            _windows(np, x, out, lambda np, seen, _: seen.max(-1)),
            _windows(np, x, out, _place),
        )
    ),
)
def adaptive_max(input: Tensor, out: Sizes, most: Structure) -> tuple[Any, Any]:
    """The largest element of each of `out` windows over the last dims, at most most[k] elements along dim k,
    and its place in them as one (int64); the first of equal ones, the last NaN.

    >>> kiln.nn.functional.adaptive_max_pool1d(kiln.tensor([[1.0, 3.0, 2.0]]), 2)
    tensor([[3., 3.]])
    """
    x, places, dims = input, None, len(out)
    for k in reversed(range(dims)):
        dim = input.ndim - dims + k
        start, end = _starts(x, dim, out[k])
        weight = number(x, product(tuple(input.shape)[dim + 1 :]))
        best = found = None
        for t in range(most[k]):
            at = p.minimum(start + t, end - 1)
            seen = gather(x, dim, at)
            place = at * weight if places is None else at * weight + gather(places, dim, at)
            if best is None:
                best, found = seen, place
            else:
                better = gt(seen, best) | ne(seen, seen)
                best, found = p.where(better, seen, best), p.where(better, place, found)
        x, places = best, found
    return x, places


@adaptive_max.derivative
def _(g: Tensor, ys: Any, input: Tensor, out: Any) -> Any:
    return p.overwrite(input, placed_at(g, ys[1], tuple(input.shape), len(out))), None  # see by_steps


def _sizes(name: str, input: Tensor, given: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The sizes pooled over, and those wanted; PyTorch's errors."""
    dims, shape = int(name[-2]), tuple(input.shape)
    wanted = tuple(given) if isinstance(given, Sequence) else (given,) * dims
    require(
        len(wanted) == dims,
        (f"{name}(): internal error: output_size.size()" if "max" in name else f"{name}: output_size")
        + f" must be {dims}"
        if dims > 1
        else f"{name}() argument 'output_size' should contain one int (got {len(wanted)})",
    )
    require(
        len(shape) > dims or dims == 1 or not isinstance(given, Sequence),
        f"{name}: Input dimension should be at least {dims + 1}, got {len(shape)}",
        ValueError,
    )
    require(
        len(shape) in (dims + 1, dims + 2),
        f"{name}(): Expected {dims + 1}D or {dims + 2}D tensor, but got: {listed(shape)} (Expected "
        f"{dims + 1} to {dims + 2} dimensions, but got {len(shape)}-dimensional tensor)",
    )
    sizes = shape[-dims:]
    wanted = tuple(n if w is None else w for n, w in zip(sizes, wanted))
    least = min((w for w in wanted if isinstance(w, int)), default=0)
    require(
        least >= 0,
        f"{name}: elements of output_size must be greater than or equal to 0 but received {listed(wanted)} "
        f"(Trying to create tensor with negative dimension {least})",
    )
    for k, n in enumerate(shape[1:], 1):
        require(
            n != 0 or k < len(shape) - dims,
            f"{name}(): Expected input to have non-zero size for non-batch dimensions, but input has sizes "
            f"{listed(shape)} with dimension {k} being empty",
        )
    return sizes, wanted


def _fixed(sizes: Any, wanted: Any) -> Ints | None:
    """The window where all windows are alike."""
    alike = all(isinstance(n, int) and isinstance(w, int) and w and n % w == 0 for n, w in zip(sizes, wanted))
    return tuple(n // w for n, w in zip(sizes, wanted)) if alike else None


def _most(sizes: Any, wanted: Any) -> Ints:
    """How many elements the largest window along each dim has."""
    if is_symbolic((*sizes, *wanted)):
        raise TypeError("adaptive pools: how many elements a window has decides what a program consists of")
    # Window i of w has ceil(f + n / w) elements, f being what floor(i n / w) leaves out: up to 1 - gcd / w.
    return tuple(-((gcd(n, w) - n - w) // w) for n, w in zip(sizes, wanted))


def _float(input: Tensor, name: str) -> None:
    if not is_float(input):
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{type_name(dtype_name(input.dtype))}' (could not infer "
            "output dtype)"
        )


def _averaged(input: Tensor, name: str, output_size: Any) -> Any:
    _float(input, name)
    sizes, wanted = _sizes(name, input, output_size)
    dims, lead = len(sizes), tuple(input.shape)[: -len(sizes)]
    if all(isinstance(w, int) and w == 1 for w in wanted):
        return mean.handle(input, tuple(range(-dims, 0)), True)
    if 0 in wanted:
        return zeros(*lead, *wanted, dtype=input.dtype)
    if window := _fixed(sizes, wanted):
        return _AVERAGE[dims - 1](input, window)
    return adaptive_mean.handle(input, wanted, _most(sizes, wanted))


def _found(input: Tensor, name: str, output_size: Any) -> tuple[Any, Any]:
    _float(input, name)
    sizes, wanted = _sizes(name, input, output_size)
    dims, lead = len(sizes), tuple(input.shape)[: -len(sizes)]
    if all(isinstance(w, int) and w == 1 for w in wanted):
        y, at = largest(_reshape(input, (*lead, product(sizes))), -1)
        return _reshape(y, (*lead, *wanted)), _reshape(at, (*lead, *wanted))
    if 0 in wanted:
        return zeros(*lead, *wanted, dtype=input.dtype), zeros(*lead, *wanted, dtype="int64")
    if window := _fixed(sizes, wanted):
        y, at = _LARGEST[dims - 1](input, window, return_indices=True)
        return y, at
    y, at = adaptive_max.handle(input, wanted, _most(sizes, wanted))
    return y, at


def _cases(make: Any, dims: int) -> Any:
    return lambda rng, t: [
        Sample((make(rng, (2, 3, *(4,) * dims), t), 2)),
        Sample((make(rng, (2, 3, *(3,) * dims), t), 1)),
        Sample((make(rng, (2, *(5,) * dims), t), (3,) * dims)),
    ]


def _failing(dims: int, name: str) -> Any:
    x, more = d.Zeros(1, 1, *(4,) * dims), d.Zeros(1, 1, 1, *(4,) * dims)
    return d.failures(
        ((more, 2), {}, RuntimeError, "Expected"),
        ((x, (1,) * (dims + 1)), {}, RuntimeError, "output_size"),
        ((x, -1), {}, RuntimeError, "greater than or equal to 0"),
        ((d.Zeros(1, *(0,) * dims), 2), {}, RuntimeError, "being empty"),
        ((d.Zeros(1, *(4,) * dims, dtype="int64"), 2), {}, NotImplementedError, "not implemented for 'Long'"),
    )


_DOC = """The {2} of `output_size` windows (a number, or one for each dim; None: as many as elements) over the
    last {0} of [C, {1}] or [N, C, {1}], as even as they can be.{3}

    RuntimeError for sizes that do not fit, NotImplementedError for integers and bool.

    >>> kiln.nn.functional.{4}(kiln.arange({5}.0).reshape({6}), 1){7}
    tensor({8})
    """
_INDICES = " With `return_indices`\n    also where each is in its plane (int64)."


def _doc(name: str, dims: int, what: str, result: str, more: str, first: str) -> str:
    text = _DOC.replace("{7}", first).replace("{8}", "{7}")
    return described(text, name, dims, result, what, more)


def _average(dims: int) -> Any:
    name = f"adaptive_avg_pool{dims}d"

    def pool(input: Tensor, output_size: Any) -> Any:
        return _averaged(input, name, output_size)

    pool.__doc__ = _doc(name, dims, "mean", f"{(2**dims - 1) / 2:.4f}", "", "")
    return public(
        name,
        method=False,
        layer=True,
        dtypes="float",
        samples=_cases(d.array, dims),
        failures=_failing(dims, name),
    )(pool)


def _maximum(dims: int, by_default: bool) -> Any:
    name = f"adaptive_max_pool{dims}d"

    def pool(input: Tensor, output_size: Any, return_indices: bool = by_default) -> Any:
        found = _found(input, name, output_size)
        return found if return_indices or by_default else found[0]

    own = f"{name}_with_indices" if by_default else name
    more = ", which it gives\n    without being asked." if by_default else "."
    first = "[0]" if by_default else ""
    pool.__doc__ = _doc(own, dims, "largest element", f"{2**dims - 1}.", _INDICES[:-1] + more, first)
    return public(
        own,
        method=False,
        layer=True,
        dtypes="float",
        samples=_cases(d.distinct, dims),
        failures=_failing(dims, name),
        tests=d.Tests(history="of one window it is max's, which has none; PyTorch's leads to zeros"),
    )(pool)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_average, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_maximum(k, False) for k in (1, 2, 3))
adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = (
    _maximum(k, True) for k in (1, 2, 3)
)
