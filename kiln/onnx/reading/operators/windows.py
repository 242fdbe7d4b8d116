"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kiln import _core, ops
from kiln.nn import functional as F
from kiln.onnx.reading.operators.table import Array, Ints, cast, kind, operator, wide
from kiln.onnx.reading.refusal import LoadError, UnsupportedError


class Window(NamedTuple):
    """Along each dim: how long the window is, its steps, gaps, and what is padded before and after."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[Any]
    after: list[Any]

    @property
    def is_even(self) -> bool:
        """Whether as much is padded before as after."""
        return all(
            isinstance(a, int) and isinstance(b, int) and a == b for a, b in zip(self.before, self.after)
        )

    def reach(self, d: int) -> int:
        """How many elements a window spans."""
        return (self.kernel[d] - 1) * self.dilations[d] + 1


def window(x: Array, kernel: Sequence[int], strides: Any, dilations: Any, pads: Any, auto_pad: str) -> Window:
    """The windows over the last dims of x, as attributes say them."""
    count = x.ndim - 2
    steps, gaps = list(strides or [1] * count), list(dilations or [1] * count)
    around = list(pads or [0] * (2 * count))
    if not len(kernel) == len(steps) == len(gaps) == count or len(around) != 2 * count or count < 1:
        raise LoadError(f"windows {list(kernel)}, strides {steps}, pads {around} of {count} dims")
    if min([*kernel, *steps, *gaps]) < 1:
        raise LoadError("a window, stride or dilation is below 1")
    found = Window(list(kernel), steps, gaps, around[:count], around[count:])
    if auto_pad in ("NOTSET", ""):
        return found
    if auto_pad == "VALID":
        return found._replace(before=[0] * count, after=[0] * count)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise LoadError(f"auto_pad is {auto_pad!r:.20}")
    before, after = [], []
    for d in range(count):
        size = x.shape[2 + d]
        total: Any = found.reach(d) - 1
        if steps[d] > 1:
            total = (-(-size // steps[d]) - 1) * steps[d] + found.reach(d) - size
        total = total if total > 0 else 0
        less = total // 2
        before.append(less if auto_pad == "SAME_UPPER" else total - less)
        after.append(total - before[-1])
    return found._replace(before=before, after=after)


def padded(x: Array, before: Sequence[Any], after: Sequence[Any], fill: Any) -> Array:
    """Padded along the last dims; what is negative is taken off."""
    for d, (a, b) in enumerate(zip(before, after), 2):
        if isinstance(b, int) and b < 0:
            x, b = x.narrow(d, 0, x.shape[d] + b), 0
        sides = []
        for n in (a, b):
            shape = (*x.shape[:d], n, *x.shape[d + 1 :])
            empty = isinstance(n, int) and n == 0
            sides.append([] if empty else [ops.full(shape, fill, dtype=kind(x))])
        if sides[0] or sides[1]:
            x = ops.cat([*sides[0], x, *sides[1]], d)
    return x


def _of_dims(name: str, x: Array) -> Any:
    """A function of 1, 2 or 3 dims."""
    function = getattr(F, f"{name}{x.ndim - 2}d", None)
    if function is None:
        raise UnsupportedError(f"{name} of {x.ndim - 2} dims is not there")
    return function


@operator("Conv")
def convolved(
    x: Array, weight: Array, bias: Array | None = None, *, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    """A convolution."""
    kernel = list(weight.shape[2:])
    if kernel_shape is not None and list(kernel_shape) != kernel:
        raise LoadError(f"kernel_shape is {kernel_shape}, that of the weight {kernel}")
    over = window(x, kernel, strides, dilations, pads, auto_pad)
    if over.is_even:
        around = tuple(over.before)
    else:
        x, around = padded(x, over.before, over.after, 0), (0,) * len(kernel)
    return _of_dims("conv", x)(x, weight, bias, tuple(over.strides), around, tuple(over.dilations), group)


@operator("ConvTranspose")
def _conv_transpose(
    x: Array, weight: Array, bias: Array | None = None, *, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    kernel, count = list(weight.shape[2:]), x.ndim - 2
    over = window(x, kernel, strides, dilations, pads, "NOTSET")
    more = list(output_padding or [0] * count)
    full = [(x.shape[2 + d] - 1) * over.strides[d] + over.reach(d) for d in range(count)]
    wanted = output_shape
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [x.shape[2 + d] * over.strides[d] for d in range(count)]
    if wanted is not None:
        begins = []
        for d, n in enumerate(wanted[-count:]):
            total = full[d] + more[d] - n
            begins.append(total // 2 if auto_pad == "SAME_UPPER" else total - total // 2)
        lengths = list(wanted[-count:])
    else:
        begins = over.before
        lengths = [full[d] + more[d] - over.before[d] - over.after[d] for d in range(count)]
        if over.is_even and all(m < s for m, s in zip(more, over.strides)):
            return _of_dims("conv_transpose", x)(
                x, weight, bias, tuple(over.strides), tuple(over.before), tuple(more), group,
                tuple(over.dilations),
            )  # fmt: skip
    y = _of_dims("conv_transpose", x)(
        x, weight, None, tuple(over.strides), (0,) * count, (0,) * count, group, tuple(over.dilations)
    )
    for d, (begin, length) in enumerate(zip(begins, lengths)):
        beyond = begin + length - y.shape[2 + d]
        if isinstance(begin, int) and begin < 0 or not isinstance(beyond, int) or beyond > 0:
            if not isinstance(beyond, int) or not isinstance(begin, int):
                raise UnsupportedError("a transposed convolution whose sizes vary is cut unevenly")
            sides = [0] * count
            ends = [0] * count
            sides[d], ends[d] = max(-begin, 0), max(beyond, 0)
            y, begin = padded(y, sides, ends, 0), max(begin, 0)
        y = y.narrow(2 + d, begin, length)
    return y if bias is None else y + bias.reshape((1, -1, *[1] * count))


# -- pools ------------------------------------------------------------------------------------------


def _with_last(x: Array, over: Window, ceil_mode: int) -> list[int]:
    """How many elements more the last windows need after each dim, where sizes are rounded up."""
    more = []
    for d in range(x.ndim - 2):
        if not ceil_mode:
            more.append(0)
            continue
        size, step, begin = x.shape[2 + d], over.strides[d], over.before[d]
        total = size + begin + over.after[d] - over.reach(d)
        if not isinstance(total, int):
            raise UnsupportedError("a pool whose sizes vary rounds them up")
        count = -(-total // step) + 1
        if (count - 1) * step >= size + begin:  # it would begin in what is padded
            count -= 1
        more.append(max((count - 1) * step + over.reach(d) - (size + begin + over.after[d]), 0))
    return more


@operator("MaxPool")
def _max_pool(
    x: Array, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
    pads: Any = None, storage_order: int = 0, strides: Any = None, outputs: int = 1,
) -> Any:  # fmt: skip
    over = window(x, kernel_shape, strides, dilations, pads, auto_pad)
    more = _with_last(x, over, ceil_mode)
    settings = {"stride": tuple(over.strides), "dilation": tuple(over.dilations)}
    kernel = tuple(over.kernel)
    fits = over.is_even and not any(more) and all(2 * a <= k for a, k in zip(over.before, kernel))
    dtype = kind(x)
    given = x if dtype.is_floating_point else cast(x, _core.float32)
    if dtype in (_core.int32, _core.int64):
        given = cast(x, _core.float64)
    pool = _of_dims("max_pool", x)
    if fits and outputs == 1:
        return cast(pool(given, kernel, padding=tuple(over.before), **settings), dtype)
    wider = padded(given, over.before, [a + m for a, m in zip(over.after, more)], -math.inf)
    if outputs == 1:
        return cast(pool(wider, kernel, **settings), dtype)
    y, at = pool(wider, kernel, return_indices=True, **settings)
    return cast(y, dtype), _positions(at, x, wider, over, storage_order)


def _positions(at: Array, x: Array, wider: Array, over: Window, by_columns: int) -> Array:
    """Positions in planes that were padded as positions in the whole array."""
    rest, place, steps = at, ops.zeros_like(at), 1
    sizes = list(zip(wider.shape[2:], x.shape[2:], over.before))
    own = []
    for n, _, before in reversed(sizes):
        own.append(ops.remainder(rest, n) - before)
        rest = ops.div(rest, n, rounding_mode="floor")
    coordinates = own[::-1]
    order = range(len(sizes)) if by_columns else reversed(range(len(sizes)))
    for d in order:
        place = place + coordinates[d] * steps
        steps = steps * sizes[d][1]
    planes = ops.arange(x.shape[0] * x.shape[1]).reshape((x.shape[0], x.shape[1], *[1] * len(sizes)))
    return place + planes * steps


def _sums(x: Array, over: Window) -> Array:
    """The sum of each window."""
    planes = x.reshape((x.shape[0] * x.shape[1], 1, *x.shape[2:]))
    ones = ops.ones((1, 1, *over.kernel), dtype=kind(x))
    y = _of_dims("conv", x)(planes, ones, None, tuple(over.strides), 0, tuple(over.dilations))
    return y.reshape((x.shape[0], x.shape[1], *y.shape[2:]))


@operator("AveragePool")
def _average_pool(
    x: Array, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
    dilations: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    over = window(x, kernel_shape, strides, dilations, pads, auto_pad)
    more, kernel = _with_last(x, over, ceil_mode), tuple(over.kernel)
    fits = over.is_even and not any(more) and all(2 * a <= k for a, k in zip(over.before, kernel))
    if fits and max(over.dilations) == 1:
        return _of_dims("avg_pool", x)(
            x, kernel, tuple(over.strides), tuple(over.before), count_include_pad=bool(count_include_pad)
        )
    given = wide(x)
    counted = ops.ones((1, 1, *x.shape[2:]), dtype=kind(given))
    before, after, none = over.before, over.after, [0] * len(more)
    given = padded(padded(given, before, after, 0), none, more, 0)
    counted = padded(padded(counted, before, after, count_include_pad), none, more, 0)
    return cast((_sums(given, over) / _sums(counted, over)), kind(x))


@operator("LpPool")
def _lp_pool(
    x: Array, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
    p: int = 2, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    over = window(x, kernel_shape, strides, dilations, pads, auto_pad)
    more = _with_last(x, over, ceil_mode)
    given = padded(ops.abs(x) ** p, over.before, [a + m for a, m in zip(over.after, more)], 0)
    return _sums(given, over) ** (1.0 / p)


def _spatial(x: Array) -> list[int]:
    return list(range(2, x.ndim))


@operator("GlobalAveragePool")
def _global_average_pool(x: Array) -> Any:
    return ops.mean(x, _spatial(x), keepdim=True)


@operator("GlobalMaxPool")
def _global_max_pool(x: Array) -> Any:
    return ops.amax(x, _spatial(x), keepdim=True)


@operator("GlobalLpPool")
def _global_lp_pool(x: Array, *, p: int = 2) -> Any:
    return ops.sum(ops.abs(x) ** p, _spatial(x), keepdim=True) ** (1.0 / p)


@operator("MaxUnpool")
def _max_unpool(x: Array, at: Array, shape: Ints | None = None, *, kernel_shape: Any, pads: Any = None,
                strides: Any = None) -> Any:  # fmt: skip
    count = x.ndim - 2
    over = window(x, kernel_shape, strides, None, pads, "NOTSET")
    natural = [
        (x.shape[2 + d] - 1) * over.strides[d] + over.kernel[d] - over.before[d] - over.after[d]
        for d in range(count)
    ]
    # positions are those in the array of these sizes, wherever the result is larger
    total: Any = x.shape[0] * x.shape[1]
    for n in natural:
        total = total * n
    flat = ops.scatter(ops.zeros((total,), dtype=kind(x)), 0, at.reshape(-1), x.reshape(-1))
    y = flat.reshape((x.shape[0], x.shape[1], *natural))
    if shape is None:
        return y
    return padded(y, [0] * count, [n - m for n, m in zip(shape[2:], natural)], 0)


@operator("CausalConvWithState", since=27)
def _causal_conv_with_state(x: Array, weight: Array, bias: Array | None = None, past: Array | None = None, *,
                            activation: str = "none") -> Any:  # fmt: skip
    before = weight.shape[-1] - 1
    state = (
        ops.zeros((x.shape[0], x.shape[1], before), dtype=kind(x)) if past is None else cast(past, kind(x))
    )
    whole = ops.cat([state, x], 2)
    y = F.conv1d(whole, weight, bias, groups=x.shape[1])
    if activation in ("silu", "swish"):
        y = F.silu(y)
    elif activation != "none":
        raise LoadError(f"activation is {activation!r:.20}")
    return y, whole.narrow(2, x.shape[2], before)
