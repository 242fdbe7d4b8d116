"""Averages over windows: avg_pool1d to avg_pool3d, and lp_pool1d to lp_pool3d, which are made of them.

The gradient of a sum over windows is again a sum over windows, with steps of one: of the results' gradients,
laid out a stride apart; of windows that do not touch it is those, repeated.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.graph.size import product
from kiln.ops.creation.constants import filled, positions
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.elementary import abs as absolute
from kiln.ops.elementwise.elementary import relu, sign
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.views.core_views import expand, reshape, write
from kiln.ops.views.strided import contiguous_strides
from kiln.ops.windows.geometry import Ints, Windows, bordered, listed, require, stages, tap, taps
from kiln.ops.windows.max_pools import described, max_pool1d, max_pool2d, max_pool3d, pool_failures
from kiln.table import drawn as d
from kiln.table.arguments import INTEGERS, dtype_name, number, type_name
from kiln.table.public import public
from kiln.table.record import Number, Sample, Sizes, Structure, Tensor, composite, find

AT_ONCE = 25  # taps of a window read in one pass
LONG = 4  # elements of a row of a window from which they are written one by one


def _reference(
    np: ModuleType,
    x: Any,
    out: Ints,
    after: Ints,
    divisor: float,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    padded: bool,
    count: str,
) -> Any:
    """pool_mean in NumPy: one window at a time."""
    dims, sizes = len(kernel), x.shape[-len(kernel) :]
    y = np.zeros((*x.shape[:-dims], *out), x.dtype)
    for place in np.ndindex(*out):
        start = [o * s - a for o, s, a in zip(place, stride, padding)]
        own = [(max(b, 0), min(b + k, n)) for b, k, n in zip(start, kernel, sizes)]
        window = x[(..., *(slice(*span) for span in own))].sum(tuple(range(-dims, 0)))
        within = [min(b + k, n + a) - b for b, k, n, a in zip(start, kernel, sizes, padding)]
        parts = {"given": [divisor], "window": kernel, "padded": within, "present": [b - a for a, b in own]}
        total = window / np.prod(parts[count])
        y[(..., *place)] = total if x.dtype.kind == "f" else np.trunc(total)
    return y


def _samples(rng: Any, t: str) -> list[Any]:
    def sample(
        shape: Ints, out: Ints, after: Ints, kernel: Ints, stride: Ints, padding: Ints, count: str
    ) -> Any:
        padded = any(padding) or any(after)
        return Sample((d.array(rng, shape, t), out, after, 3, kernel, stride, padding, padded, count))

    return [
        sample((2, 7), (3,), (0,), (3,), (2,), (0,), "window"),
        sample((2, 5, 6), (2, 3), (0, 0), (2, 2), (2, 2), (0, 0), "given"),
        sample((2, 3, 5, 5), (3, 3), (1, 2), (3, 3), (2, 2), (1, 0), "padded"),
        sample((1, 2, 9, 10), (2, 2), (0, 0), (4, 4), (4, 5), (0, 0), "window"),
        sample((2, 4, 5, 3), (2, 2, 2), (0, 0, 1), (3, 3, 3), (1, 2, 1), (0, 0, 1), "present"),
    ]


@composite(
    public=False,
    samples=_samples,
    reference=d.reference(_reference),
)
def pool_mean(
    input: Tensor,
    out: Sizes,
    after: Sizes,
    divisor: Number,
    kernel: Structure,
    stride: Structure,
    padding: Structure,
    padded: Structure,
    count: Structure,
) -> Any:
    """The sum of each of `out` windows over the last dims, divided by a count: "window", its elements;
    "padded", those in the array or its padding; "present", those in the array; "given", `divisor`. Integers
    toward zero.

    >>> kiln.nn.functional.avg_pool1d(kiln.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[2., 1.]])
    """
    x = wide(input)
    x = bordered(x, 0, padding, after) if padded else x
    total = _summed(x, kernel, stride, out)
    elements = _elements(total, tuple(input.shape)[-len(kernel) :], divisor, kernel, stride, padding, count)
    if input.dtype in INTEGERS:
        return find("div_trunc")(total, elements)
    return narrow(total / elements, input.dtype)


def _summed(x: Tensor, kernel: Ints, stride: Ints, out: Any) -> Any:
    """The sum over each window: of all taps in order, or of windows of many taps dim by dim."""
    once = (1,) * len(kernel)
    for dims in stages(kernel, AT_ONCE):
        part, total = slice(dims[0], dims[-1] + 1), None
        settings = (x.ndim - len(kernel) + dims[0], stride[part], once[part], out[part])
        for _, place in taps(kernel[part]):
            seen = tap(x, place, *settings)
            total = seen if total is None else total + seen
        x = total
    return x


def _elements(
    x: Tensor, sizes: Any, divisor: Any, kernel: Ints, stride: Ints, padding: Ints, count: str
) -> Any:
    """What a window's sum is divided by: a number, or one for each place of x."""
    if count == "given":
        return divisor
    if count == "window":
        return number(x, product(kernel))
    total: Any = None
    for k, (n, size, s, a) in enumerate(zip(sizes, kernel, stride, padding)):
        dim = x.ndim - len(kernel) + k
        place: Any = positions(x, dim)
        start = place * s - a
        limit = number(x, n + a if count == "padded" else n)
        end = p.minimum(start + size, limit)
        own = end - (start if count == "padded" else p.maximum(start, 0))
        total = own if total is None else total * own
    return total if x.dtype in INTEGERS else p.convert(total, x.dtype)


@pool_mean.derivative
def _(
    g: Tensor, input: Tensor, divisor: Any, kernel: Any, stride: Any, padding: Any, padded: Any, count: Any
) -> Any:
    sizes, dims = tuple(input.shape)[-len(kernel) :], len(kernel)
    g = g / _elements(g, sizes, divisor, kernel, stride, padding, count)
    if not padded and kernel[-1] >= LONG and all(s >= k for k, s in zip(kernel, stride)):
        return _repeated(g, tuple(input.shape), kernel, stride), None
    shape = (*input.shape[:-dims], *(n + k - 1 for n, k in zip(sizes, kernel)))
    strides, offset = contiguous_strides(shape), 0
    for k, a, step in zip(kernel, padding, strides[-dims:]):
        offset = offset + (k - 1 - a) * step
    own = (*strides[:-dims], *(step * s for step, s in zip(strides[-dims:], stride)))
    laid = write(filled(g.graph, 0, shape, g.dtype), g, own, (offset,))
    return p.overwrite(input, _summed(laid, kernel, (1,) * dims, sizes)), None  # see by_steps


def _repeated(g: Tensor, shape: Any, kernel: Ints, stride: Ints) -> Any:
    """Each element of g at all places of its window, which no other touches."""
    dims = len(kernel)
    lead, out, steps = shape[:-dims], tuple(g.shape)[-dims:], contiguous_strides(shape)
    one = reshape(g, (*lead, *(n for o in out for n in (o, 1))))
    tiles = expand(one, (*lead, *(n for o, k in zip(out, kernel) for n in (o, k))))
    inner = (n for step, s in zip(steps[-dims:], stride) for n in (step * s, step))
    return write(filled(g.graph, 0, shape, g.dtype), tiles, (*steps[:-dims], *inner), (0,))


def _pooled(
    name: str,
    input: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    include: bool,
    divisor: int | None,
) -> Any:
    dtype = dtype_name(input.dtype)
    if dtype == "bool" or (dtype in INTEGERS and dtype != "int64"):
        raise NotImplementedError(f"\"{name}\" not implemented for '{type_name(dtype)}'")
    windows = Windows(name, input, kernel, stride, padding, 1, ceil_mode)
    fits = all(not isinstance(n, int) or n >= k for n, k in zip(windows.sizes, windows.kernel))
    require(
        fits or len(windows.kernel) < 3,
        f"input image ({listed(windows.sizes)}) smaller than kernel size ({listed(windows.kernel)})",
    )
    require(divisor is None or divisor != 0, "divisor must be not zero")
    over = any(isinstance(e, int) and e > a for e, a in zip(windows.after, windows.padding))
    count = "padded" if over else "window"
    if divisor is not None:
        count = "given"
    elif windows.padded and not include:
        count = "present"
    sizes = (windows.out, windows.after)
    settings = (windows.kernel, windows.stride, windows.padding, windows.padded)
    return pool_mean.handle(input, *sizes, 1 if divisor is None else divisor, *settings, count)


_DOC = """The mean of each window over the last {0} of [C, {1}] or [N, C, {1}]: floats, and int64 toward zero.

    `stride` None is the window's; `padding` (at most half a window) adds zeros, which count unless
    `count_include_pad` is False; `ceil_mode`: also windows that reach over the end.{2} RuntimeError for sizes
    or settings that do not fit, NotImplementedError for other dtypes.

    >>> kiln.nn.functional.{3}(kiln.arange({4}.0).reshape({5}), 2)
    tensor({6})
    """
_DIVISOR = " `divisor_override` is\n    what sums are divided by instead."


def _cases(dims: int) -> Any:
    """Samples of a pool: plain, with padding that does not count, with windows over the end."""

    def make(rng: Any, t: str) -> Any:
        plain, more = ((2, *(n,) * dims) for n in (4, 5))
        return [
            Sample((d.array(rng, (2, *plain), t), 2)),
            Sample((d.array(rng, more, t), 3, 2, 1), {"count_include_pad": False}),
            Sample((d.array(rng, more, t), (3,) * dims, 2, 1), {"ceil_mode": True}),
            Sample((d.array(rng, more, t), 2, 3), {"ceil_mode": True}),
        ]

    return make


_FACTS: dict[str, Any] = {"method": False, "layer": True, "dtypes": "float32 bfloat16 int64"}


def _avg_pool(dims: int) -> Any:
    """avg_pool1d to avg_pool3d; the first takes no divisor."""
    name = f"avg_pool{dims}d"

    def along(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Any:
        return _pooled(name, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        settings = (ceil_mode, count_include_pad, divisor_override)
        return _pooled(name, input, kernel_size, stride, padding, *settings)

    function = along if dims == 1 else pool
    more = "" if dims == 1 else _DIVISOR
    function.__doc__ = described(_DOC, name, dims, f"{(2**dims - 1) / 2:.4f}", more)
    small: Any = (((d.Zeros(1, 2, 2, 2, 2), 3, 1, 1), {}, RuntimeError, "smaller than kernel size"),)
    failures = pool_failures(dims, name, *(small if dims == 3 else ()))
    return public(name, samples=_cases(dims), failures=failures, **_FACTS)(function)


avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool, (1, 2, 3))


_LP_DOC = """(sum of x**norm_type)**(1 / norm_type) over each window over the last {0} of [C, {1}] or
    [N, C, {1}].

    `stride` None is the window's; `ceil_mode`: also windows that reach over the end. RuntimeError for sizes
    or settings that do not fit.

    >>> kiln.nn.functional.{2}(kiln.ones({4}), 1.0, 2)
    tensor({5})
    """


def _lp_pool(dims: int) -> Any:
    """lp_pool1d to lp_pool3d."""
    name, average = f"lp_pool{dims}d", (avg_pool1d, avg_pool2d, avg_pool3d)[dims - 1]
    most = (max_pool1d, max_pool2d, max_pool3d)[dims - 1]

    def pool(
        input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Tensor:
        if norm_type == float("inf"):
            found: Tensor = most(absolute(input), kernel_size, stride, ceil_mode=ceil_mode)
            return found
        mean = average(input**norm_type, kernel_size, stride, 0, ceil_mode)
        count = kernel_size**dims if isinstance(kernel_size, int) else product(tuple(kernel_size))
        there = sign(mean) * relu(absolute(mean))  # the mean, but no gradient where it is 0
        return (there * count) ** (1.0 / norm_type)

    pool.__doc__ = described(_LP_DOC, name, dims, f"{2.0**dims:g}.")
    return public(
        name,
        method=False,
        layer=True,
        dtypes="float32",
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (2, 3, *(4,) * dims), t, 0.5, 2), 2.0, 2), {}),
            lambda rng, t: ((d.array(rng, (3, *(5,) * dims), t, 0.5, 2), 3.0, 3, 2), {"ceil_mode": True}),
        ),
        failures=d.failures(
            ((d.Zeros(1, *(1,) * dims), 2.0, 2), {}, RuntimeError, "Output size is too small"),
        ),
    )(pool)


lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool, (1, 2, 3))
