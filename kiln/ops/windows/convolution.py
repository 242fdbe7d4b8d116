"""conv1d, conv2d, conv3d and their transposed forms: what their arguments mean, what is wrong with them."""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise.arithmetic import clone
from kiln.ops.rearranging.padding import constant_pad_nd
from kiln.ops.views.core_views import permute, reshape
from kiln.ops.views.memory_formats import contiguous
from kiln.ops.windows.geometry import Ints, listed, require
from kiln.ops.windows.products import convolve, convolve_input, rows_of
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, is_value, numbers_of, type_name
from kiln.table.public import public
from kiln.table.record import Sample, Tensor

_reshape = reshape.handle


def per_dim(value: Any, dims: int, what: str) -> Ints:
    """One number for each spatial dim, from one for all or a sequence. RuntimeError for another count."""
    numbers = numbers_of(value, what)
    if len(numbers) == 1:
        return numbers * dims
    if len(numbers) != dims:
        raise RuntimeError(
            f"expected {what} to be a single integer value or a list of {dims} values to match the "
            f"convolution dimensions, but got {what}={list(numbers)}"
        )
    return numbers


def _wrong(have: Any, want: Any) -> bool:
    """Whether two sizes are known to differ."""
    return isinstance(have, int) and isinstance(want, int) and have != want


def _batched(input: Tensor, dims: int, name: str) -> Any:
    """The input with a dim of images; RuntimeError for another number of dims."""
    require(
        input.ndim in (dims + 1, dims + 2),
        f"Expected {dims + 1}D (unbatched) or {dims + 2}D (batched) input to {name}, but got input of size: "
        f"{listed(input.shape)}",
    )
    return input if input.ndim == dims + 2 else _reshape(input, (1, *input.shape))


def _in_order(*tensors: Any) -> list[Any]:
    """The tensors, or copies whose elements lie in order: a copy alone is told how they lie (channels last),
    a convolution is not, and would go through them one by one.
    """
    return [x if is_value(x) else contiguous(x) for x in tensors]


def _check_types(input: Tensor, weight: Tensor, bias: Tensor) -> None:
    kinds = [dtype_name(x.dtype) for x in (input, weight)]
    require(
        kinds[0] == kinds[1],
        f"expected scalar type {type_name(kinds[0])} but found {type_name(kinds[1])}: Input type and "
        "weight type should be the same",
    )
    if kinds[0] == "bool":
        raise NotImplementedError("\"slow_conv2d_cpu\" not implemented for 'Bool'")
    other = kinds[0] if bias is None else dtype_name(bias.dtype)
    require(other == kinds[0], f"Input type ({kinds[0]}) and bias type ({other}) should be the same")


def _check_settings(stride: Ints, padding: Ints, dilation: Ints, groups: int) -> None:
    require(min(stride) > 0, "non-positive stride is not supported")
    require(min(padding) >= 0, "negative padding is not supported")
    require(min(dilation) > 0, f"dilation should be greater than zero, but got {list(dilation)}")
    require(groups > 0, "non-positive groups is not supported")


def _check_weight(input: Tensor, weight: Tensor, bias: Tensor, groups: int, transposed: bool) -> None:
    """The weight's sizes, and that input and bias have as many channels as it says."""
    rows, size = weight.shape[0], listed(weight.shape)
    if isinstance(rows, int):
        require(
            rows >= groups,
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but got weight "
            f"of size {size} instead",
        )
        require(
            rows % groups == 0,
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got "
            f"weight of size [{size}] instead",
        )
    taken, made = (rows, weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, rows)
    head = f"Given {'transposed=1' if transposed else f'groups={groups}'}, weight of size {size}"
    require(
        not _wrong(input.shape[1], taken),
        f"{head}, expected input{listed(input.shape)} to have {taken} channels, but got {input.shape[1]} "
        "channels instead",
    )
    start = head if transposed else f"Given weight of size {size}"
    require(
        bias is None or (bias.ndim == 1 and not _wrong(bias.shape[0], made)),
        f"{start}, expected bias to be 1-dimensional with {made} elements, but got bias of size "
        f"{'' if bias is None else listed(bias.shape)} instead",
    )


def _check_room(input: Tensor, kernel: Ints, padding: Ints, dilation: Ints) -> None:
    sizes = [n + 2 * p for n, p in zip(input.shape[2:], padding)]
    reach = [r * (k - 1) + 1 for k, r in zip(kernel, dilation)]
    require(
        all(not isinstance(n, int) or n >= k for n, k in zip(sizes, reach)),
        f"Calculated padded input size per channel: ({' x '.join(map(str, sizes))}). Kernel size: "
        f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size",
    )


def _same(input: Tensor, kernel: Ints, stride: Ints, dilation: Ints) -> tuple[Any, Ints]:
    """The input and the padding that give as many places as there were elements; where that is odd, the extra
    zero comes behind.
    """
    require(all(s == 1 for s in stride), "padding='same' is not supported for strided convolutions")
    total = [r * (k - 1) for k, r in zip(kernel, dilation)]
    if any(n % 2 for n in total):
        input = constant_pad_nd(input, tuple(n for t in reversed(total) for n in (0, t % 2)))
    return input, tuple(n // 2 for n in total)


def _convolution(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Any:
    """The body of conv1d to conv3d."""
    _check_types(input, weight, bias)
    x = _batched(input, dims, f"conv{dims}d")
    inner = weight.ndim - 2
    stride, dilation = (per_dim(v, inner, what) for v, what in ((stride, "stride"), (dilation, "dilation")))
    kernel = tuple(weight.shape[2:])
    if isinstance(padding, str):
        require(padding in ("same", "valid"), f"Invalid padding string: '{padding}'")
        x, padding = _same(x, kernel, stride, dilation) if padding == "same" else (x, (0,) * inner)
    padding = per_dim(padding, inner, "padding")
    require(weight.ndim > 2, f"conv{dims}d: weight should have at least three dimensions")
    require(
        inner == dims,
        f"conv{dims}d: Expected {weight.ndim}-dimensional input for {weight.ndim}-dimensional weight"
        f"{listed(weight.shape)}, but got {x.ndim}-dimensional input of size {listed(x.shape)} instead",
    )
    _check_settings(stride, padding, dilation, groups)
    _check_weight(x, weight, bias, groups, False)
    _check_room(x, kernel, padding, dilation)
    x, weight = _in_order(x, weight)
    y = convolve.handle(x, weight, bias, kernel, stride, padding, dilation, rows_of(weight.shape[0], groups))
    return y if input.ndim == dims + 2 else _reshape(y, tuple(y.shape[1:]))


def _convolution_transposed(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Any:
    """The body of conv_transpose1d to conv_transpose3d."""
    _check_types(input, weight, bias)
    x = _batched(input, dims, f"conv_transpose{dims}d")
    names = ("stride", "padding", "output_padding", "dilation")
    stride, padding, more, dilation = (
        per_dim(v, dims, what) for v, what in zip((stride, padding, output_padding, dilation), names)
    )
    kernel = tuple(weight.shape[2:])
    require(len(kernel) == dims, f"expected a weight of {dims + 2} dims, but got size {listed(weight.shape)}")
    _check_settings(stride, padding, dilation, groups)
    require(all(m >= 0 for m in more), "negative output_padding is not supported")
    _check_weight(x, weight, bias, groups, True)
    require(
        all(m < max(s, r) for m, s, r in zip(more, stride, dilation)),
        f"output padding must be smaller than either stride or dilation, but got output_padding {more}, "
        f"stride {stride}, dilation {dilation}",
    )
    sizes = tuple(
        (n - 1) * s - 2 * p + r * (k - 1) + m + 1
        for n, s, p, r, k, m in zip(x.shape[2:], stride, padding, dilation, kernel, more)
    )
    require(
        all(not isinstance(n, int) or n > 0 for n in sizes),
        f"Given input size per channel: ({' x '.join(map(str, x.shape[2:]))}). Calculated output size per "
        f"channel: ({' x '.join(map(str, sizes))}). Output size is too small",
    )
    x, weight = _in_order(_as_many_as_places(x, more, stride), weight)
    y = convolve_input.handle(
        x, weight, bias, sizes, kernel, stride, padding, dilation, rows_of(weight.shape[0], groups)
    )
    return y if input.ndim == dims + 2 else _reshape(y, tuple(y.shape[1:]))


def _as_many_as_places(x: Tensor, more: Ints, stride: Ints) -> Any:
    """x with zeros behind it where an output padding makes room for more places than x has."""
    behind = tuple(m // s for m, s in zip(more, stride))
    return constant_pad_nd(x, tuple(n for k in reversed(behind) for n in (0, k))) if any(behind) else x


# The functions


def _arrays(rng: Any, t: str, *shapes: Ints) -> list[Any]:
    return [d.array(rng, shape, t, -1, 1) for shape in shapes]


def _samples(x: Ints, w: Ints, groups: int) -> Any:
    """Samples of a convolution: with and without a bias, of one image, with every setting."""

    def make(rng: Any, t: str) -> Any:
        one = (w[0], w[1] * groups, *w[2:])
        return [
            Sample(tuple(_arrays(rng, t, x, one, (w[0],)))),
            Sample(tuple(_arrays(rng, t, x[1:], one)), {"padding": "same"}),
            Sample(
                tuple(_arrays(rng, t, x, w)), {"stride": 2, "padding": 1, "dilation": 2, "groups": groups}
            ),
        ]

    return make


def _transposed_samples(x: Ints, w: Ints, groups: int) -> Any:
    """Samples of a transposed convolution."""

    def make(rng: Any, t: str) -> Any:
        return [
            Sample(tuple(_arrays(rng, t, x, w, (w[1],)))),
            Sample(
                tuple(_arrays(rng, t, x[1:], w)),
                {"stride": 2, "padding": 1, "output_padding": 1, "groups": groups, "dilation": 2},
            ),
        ]

    return make


def _failures(dims: int) -> Any:
    x, w = (d.Zeros(*(size,) * 2, *(3,) * dims) for size in (1, 2))
    few = d.Zeros(2, 1, *(5,) * dims)
    return d.failures(
        ((x, w), {}, RuntimeError, "to have 2 channels, but got 1 channels instead"),
        ((d.Zeros(3), w), {}, RuntimeError, "unbatched"),
        ((x, few), {}, RuntimeError, "can't be greater than actual input size"),
        ((x, d.Zeros(2, 1, *(2,) * dims), d.Zeros(3)), {}, RuntimeError, "bias to be 1-dimensional with 2"),
        ((w, w), {"stride": 0}, RuntimeError, "non-positive stride is not supported"),
        ((w, w), {"padding": "all"}, RuntimeError, "Invalid padding string"),
    )


def _transposed_failures(dims: int) -> Any:
    x, w = (d.Zeros(*(size,) * 2, *(3,) * dims) for size in (1, 2))
    return d.failures(
        ((x, w), {}, RuntimeError, "to have 2 channels, but got 1 channels instead"),
        ((w, w), {"output_padding": 1}, RuntimeError, "output padding must be smaller than"),
        ((w, w), {"output_padding": -1}, RuntimeError, "negative output_padding"),
        ((w, w), {"padding": 5}, RuntimeError, "Output size is too small"),
    )


# (x, weight, groups) of the samples, by the number of dims
_SIZES: dict[int, tuple[Ints, Ints, int]] = {
    1: ((2, 3, 7), (4, 3, 3), 1),
    2: ((2, 4, 5, 6), (4, 2, 3, 2), 2),
    3: ((1, 2, 4, 3, 4), (2, 2, 2, 3, 2), 1),
}
_FACTS: dict[str, Any] = {
    "method": False,
    "layer": True,
    "dtypes": "float",
    "tests": d.Tests(history="the bias' gradient has none; PyTorch's leads nowhere"),
}


def _described(text: str, dims: int) -> str:
    """A docstring with the names of the spatial dims and sizes of an example, all but the last of them 1."""
    names = ("L", "H, W", "D, H, W")[dims - 1]
    taps = ", ".join(f"K{name}" for name in names.split(", "))
    return text.format(dims=dims, sizes=names, taps=taps, ones="1, " * (dims + 1))


_DOC = """Windows of [N, C, {sizes}] times [O, C / groups, {taps}], plus bias [O]: [N, O, ..], or without N.

    `padding`: zeros at both ends, "valid" (none) or "same" (as many places as elements, stride 1). Sums go
    over (channel, taps) in that order. RuntimeError for sizes, dtypes or settings that do not fit.

    >>> kiln.nn.functional.conv{dims}d(kiln.ones({ones}3), kiln.ones({ones}2)).flatten()
    tensor([2., 2.])
    """


def _conv(dims: int) -> Any:
    """conv1d to conv3d."""

    def conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        return _convolution(dims, input, weight, bias, stride, padding, dilation, groups)

    conv.__doc__ = _described(_DOC, dims)
    return public(f"conv{dims}d", samples=_samples(*_SIZES[dims]), failures=_failures(dims), **_FACTS)(conv)


_TRANSPOSED = """Every element of [N, C, {sizes}] spreads by [C, O / groups, {taps}]: [N, O, ..], plus bias
    [O].

    What conv{dims}d's gradient is; `output_padding` makes the far ends longer. RuntimeError for sizes, dtypes
    or settings that do not fit.

    >>> kiln.nn.functional.conv_transpose{dims}d(kiln.ones({ones}2), kiln.ones({ones}2)).flatten()
    tensor([1., 2., 1.])
    """


def _conv_transpose(dims: int) -> Any:
    """conv_transpose1d to conv_transpose3d."""

    def conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        settings = (stride, padding, output_padding, groups, dilation)
        return _convolution_transposed(dims, input, weight, bias, *settings)

    conv.__doc__ = _described(_TRANSPOSED, dims)
    x, weight, groups = _SIZES[dims]
    samples = _transposed_samples(x, (x[1], 2, *weight[2:]), groups)
    name = f"conv_transpose{dims}d"
    return public(name, samples=samples, failures=_transposed_failures(dims), **_FACTS)(conv)


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))


@public(
    "conv_tbc",
    method=False,
    layer=True,
    dtypes="float",
    samples=d.samples(
        lambda rng, t: (
            (d.array(rng, (5, 2, 3), t), d.array(rng, (2, 3, 4), t), d.array(rng, (4,), t)),
            {"pad": 1},
        ),
    ),
    failures=d.failures(
        ((d.Zeros(5, 2), d.Zeros(2, 3, 4), d.Zeros(4)), {}, RuntimeError, "Input must have 3 dims"),
        ((d.Zeros(5, 2, 3), d.Zeros(2, 3), d.Zeros(4)), {}, RuntimeError, "Weight tensor must have 3 dims"),
        ((d.Zeros(5, 2, 3), d.Zeros(2, 3, 4), d.Zeros(1, 4)), {}, RuntimeError, "Bias must be 1-D"),
        ((d.Zeros(5, 2, 3), d.Zeros(2, 2, 4), d.Zeros(4)), {}, RuntimeError, "input channels"),
        ((d.Zeros(5, 2, 3), d.Zeros(2, 3, 4), d.Zeros(3)), {}, RuntimeError, "output channels"),
    ),
)
def conv_tbc(input: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """`conv1d` of [time, batch, channels] with a weight [taps, channels, out channels] and a bias, `pad`
    zeros in front and behind: [time + 2 pad - taps + 1, batch, out channels].

    RuntimeError for sizes that do not fit.

    >>> kiln.nn.functional.conv_tbc(kiln.ones(3, 1, 1), kiln.ones(2, 1, 1), kiln.zeros(1)).flatten()
    tensor([2., 2.])
    """
    require(input.ndim == 3, "Input must have 3 dims: time, batch, in_channel")
    require(weight.ndim == 3, "Weight tensor must have 3 dims: kernel_width, in_channels, out_channels.")
    require(bias.ndim == 1, "Bias must be 1-D")
    fits = not _wrong(input.shape[2], weight.shape[1])
    require(fits, "Input dim 2 (input channels) is not == dim 1 in the weight tensor")
    fits = not _wrong(weight.shape[2], bias.shape[0])
    require(fits, "Bias size must equal dim 2 in the weight tensor (output channels).")
    found = conv1d(permute(input, (1, 2, 0)), permute(weight, (2, 1, 0)), bias, padding=pad)
    return clone(permute(found, (2, 0, 1)))
