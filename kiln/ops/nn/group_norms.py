"""Normalisations beside layer_norm: by the root of the mean square, by groups of channels, by neighbours."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import pow
from kiln.ops.elementwise.elementary import rsqrt
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.nn.softmax_and_layer_norm import first_of_last
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import embed, reshape, slice_
from kiln.table import drawn as d
from kiln.table.arguments import count_of, dtype_name, expect_count, is_value, keeping, numel
from kiln.table.public import public
from kiln.table.record import Number, Structure, Tensor, composite
from kiln.table.registry import forms


def _rms(np: ModuleType, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    y = x / np.sqrt((x * x).mean(axes, keepdims=True) + (eps or 0))
    return (y if weight is None else y * weight).astype(x.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), (5,), 1e-5, d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (4, 3, 5), t), (3, 5), 1e-3), {}),
    ),
    reference=d.reference(lambda np, x, shape, eps, weight=None: _rms(np, x, shape, weight, eps)),
    public=False,
)
def normalize_by_root(
    input: Tensor, normalized_shape: Structure, eps: Number, weight: Tensor | None = None
) -> Any:
    """`rms_norm` with its `eps`."""
    first = first_of_last(input, normalized_shape, "rms_norm", weight, few=ValueError)
    x, dims = floating(input, "RMSNormKernelImpl"), tuple(range(first, input.ndim))
    y = x * rsqrt(reduce_sum(x * x, dims, True) / count_of(x, dims) + eps)
    return narrow(y if weight is None else y * wide(weight), input.dtype)


@public(
    "rms_norm",
    method=False,
    layer=True,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), (5,), d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (4, 3, 5), t), (3, 5)), {"eps": 1e-3}),
    ),
    reference=d.reference(_rms),
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2, 3), (4,)), {}, RuntimeError, "Given normalized_shape"),
        ((d.Zeros(2, 3), (-1,)), {}, RuntimeError, "Given normalized_shape"),
        ((d.Zeros(), (3,)), {}, ValueError, "at least 1 dimensions"),
        ((d.Zeros(2, 3), (3,), d.Zeros(1)), {}, RuntimeError, "Expected weight to be of same shape"),
    ),
)
def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """input / sqrt(mean(input^2) + eps) * weight over the last dims, whose sizes are `normalized_shape`.

    `eps` None is the smallest step of the dtype it is computed in. RuntimeError for other sizes,
    ValueError for fewer dims.

    >>> kiln.nn.functional.rms_norm(kiln.tensor([[3.0, 4.0]]), (2,))
    tensor([[0.8485, 1.1314]])
    """
    least = eps if eps is not None else 2.0**-52 if dtype_name(input.dtype) == "float64" else 2.0**-23
    return normalize_by_root.handle(input, normalized_shape, least, weight)


def per_channel(value: Any, ndim: int) -> Any:
    """A value per channel beside an array of `ndim` dims, channels along dim 1."""
    return reshape(wide(value), (1, value.shape[0], *(1,) * (ndim - 2)))


def _grouped(
    np: ModuleType, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    g = np.asarray(x, np.float64).reshape(x.shape[0], groups, -1)
    y = ((g - g.mean(2, keepdims=True)) / np.sqrt(g.var(2, keepdims=True) + eps)).reshape(x.shape)
    laid = [-1 if k == 1 else 1 for k in range(x.ndim)]
    y = y if weight is None else y * weight.reshape(laid)
    return (y if bias is None else y + bias.reshape(laid)).astype(x.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 4, 3), t), 2, d.array(rng, (4,), t), d.array(rng, (4,), t)), {}),
        lambda rng, t: ((d.array(rng, (2, 3, 2, 2), t), 3), {"eps": 1e-3}),
    ),
    reference=d.reference(_grouped),
    failures=d.failures(((d.Zeros(3), 1), {}, RuntimeError, "at least 2 dimensions")),
    public=False,
)
def normalize_groups(
    input: Tensor,
    num_groups: Structure,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Number = 1e-5,
) -> Any:
    """`group_norm` of sizes that fit.

    >>> kiln.nn.functional.group_norm(kiln.tensor([[[1.0, 3.0]]]), 1)
    tensor([[[-1.0000,  1.0000]]])
    """
    check_groups(input, num_groups)
    x, shape = floating(input, "GroupNormKernelImpl"), tuple(input.shape)
    grouped = reshape(x, (shape[0], num_groups, numel(shape[1:]) // num_groups))
    count = count_of(grouped, (2,))
    centered = grouped - reduce_sum(grouped, (2,), True) / count
    scale = rsqrt(reduce_sum(centered * centered, (2,), True) / count + eps)
    y = reshape(centered * scale, shape)
    y = y if weight is None else y * per_channel(weight, len(shape))
    return narrow(y if bias is None else y + per_channel(bias, len(shape)), input.dtype)


def check_groups(input: Tensor, groups: int) -> None:
    """PyTorch's errors for channels that cannot be grouped; a symbolic size passes."""
    if input.ndim < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.ndim}")
    if groups <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {groups}")
    channels = input.shape[1]
    if isinstance(channels, int) and channels % groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={groups}"
        )


@public(
    "group_norm",
    method=False,
    layer=True,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 4, 3), t), 2, d.array(rng, (4,), t), d.array(rng, (4,), t)), {}),
        lambda rng, t: ((d.array(rng, (2, 6), t), 3), {"eps": 1e-3}),
    ),
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2, 5, 2), 2), {}, RuntimeError, "to be divisible by num_groups"),
        ((d.Zeros(1, 2, 1), 2), {}, ValueError, "Expected more than 1 value per channel"),
        ((d.Zeros(2, 4, 2), 2, d.Zeros(3)), {}, RuntimeError, "Expected weight to be a vector"),
    ),
)
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(n, c, ...) with mean 0 and variance 1 over each of `num_groups` groups of channels, times weight (c)
    plus bias (c). RuntimeError for channels that `num_groups` does not divide.

    >>> kiln.nn.functional.group_norm(kiln.tensor([[[1.0, 3.0]]]), 1)
    tensor([[[-1.0000,  1.0000]]])
    """
    check_groups(input, num_groups)
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and not is_value(input) and tuple(given.shape) != (input.shape[1],):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got "
                f"{name} of shape {list(given.shape)} and input of shape {list(input.shape)}"
            )
    if not is_value(input) and input.numel() // num_groups == input.shape[0] == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {list(input.shape)}"
        )
    return normalize_groups.handle(input, num_groups, weight, bias, eps)


def _updated(running: Any, now: Any, momentum: float) -> None:
    """A running value moved towards the one of this batch, in its memory."""
    running.copy_(running * (1 - momentum) + now.detach().to(dtype=running.dtype) * momentum)


def check_channels(channels: Any, tensors: dict[str, Any]) -> None:
    """RuntimeError, PyTorch's, for statistics and parameters that are not as many as channels."""
    for name, x in tensors.items():
        count = None if x is None else numel(x.shape)
        if isinstance(count, int) and isinstance(channels, int) and count != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {count}")


@public(
    "instance_norm",
    method=False,
    layer=True,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3, 4), t),), {"eps": 1e-3}),
        lambda rng, t: (
            (d.array(rng, (2, 3, 2, 2), t), None, None, d.array(rng, (3,), t), d.array(rng, (3,), t)),
            {},
        ),
        lambda rng, t: (
            (d.array(rng, (2, 3, 4), t), d.array(rng, (3,), t), d.array(rng, (3,), t, 0.5, 2)),
            {"use_input_stats": False},
        ),
    ),
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2, 3, 1),), {}, ValueError, "more than 1 spatial element"),
        ((d.Zeros(2, 3, 4), d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "running_mean should contain"),
    ),
    tests=d.Tests(peer_gradient=False, history="the bias' gradient has none; PyTorch's leads nowhere"),
)
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """(n, c, ...) with mean 0 and variance 1 over each channel of each item, times weight (c) plus bias (c).

    Running statistics (c), if given, move towards those of the batch; without `use_input_stats` they are
    used. ValueError for a single element to each channel.

    >>> kiln.nn.functional.instance_norm(kiln.tensor([[[1.0, 3.0]]]))
    tensor([[[-1.0000,  1.0000]]])
    """
    given = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    check_channels(input.shape[1] if input.ndim > 1 else 0, given)
    if not use_input_stats:
        return normalize_by.handle(input, running_mean, running_var, weight, bias, eps)
    if not is_value(input) and numel(tuple(input.shape)[2:]) == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {list(input.shape)}"
        )
    dims = tuple(range(2, input.ndim))

    def normalized() -> Any:
        if running_mean is not None:
            _updated(running_mean, input.detach().mean(dims).mean(0), momentum)
        if running_var is not None:
            _updated(running_var, input.detach().var(dims).mean(0), momentum)
        return normalize_groups.handle(input, input.shape[1], weight, bias, eps)

    return keeping(input, normalized, running_mean=running_mean, running_var=running_var)


def _by(
    np: ModuleType, x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    laid = [-1 if k == 1 else 1 for k in range(x.ndim)]
    y = (x - mean.reshape(laid)) / np.sqrt(var.reshape(laid) + eps)
    y = y if weight is None else y * weight.reshape(laid)
    return (y if bias is None else y + bias.reshape(laid)).astype(x.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: (
            (d.array(rng, (2, 3, 4), t), d.array(rng, (3,), t), d.array(rng, (3,), t, 0.5, 2)),
            {},
        ),
    ),
    reference=d.reference(_by),
    public=False,
)
def normalize_by(
    input: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Number = 1e-5,
) -> Any:
    """(input - mean) / sqrt(var + eps) * weight + bias, each per channel.

    >>> x, zero, one = kiln.ones(1, 1, 2), kiln.zeros(1), kiln.ones(1)
    >>> kiln.nn.functional.instance_norm(x, zero, one, use_input_stats=False)
    tensor([[[1.0000, 1.0000]]])
    """
    x, ndim = floating(input, "NormKernelImpl"), input.ndim
    y = (x - per_channel(mean, ndim)) * rsqrt(per_channel(var, ndim) + eps)
    y = y if weight is None else y * per_channel(weight, ndim)
    return narrow(y if bias is None else y + per_channel(bias, ndim), input.dtype)


def _neighbours(
    np: ModuleType, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    total = np.zeros(x.shape)
    for c in range(x.shape[1]):
        low, high = max(0, c - size // 2), c + (size - 1) // 2 + 1
        total[:, c] = (np.asarray(x[:, low:high], np.float64) ** 2).sum(1)
    return (x / (k + alpha * total / size) ** beta).astype(x.dtype)


forms("local_response_norm", "(input, size: int, alpha=0.0001, beta=0.75, k=1.0)")


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 5, 3), t), 3), {"alpha": 0.5}),
        lambda rng, t: ((d.array(rng, (1, 4, 2, 2), t), 2, 1.0, 0.5, 2.0), {}),
    ),
    reference=d.reference(_neighbours),
    failures=d.failures(((d.Zeros(2, 3), 2), {}, ValueError, "Expected 3D or higher dimensionality")),
    method=False,
)
def local_response_norm(
    input: Tensor, size: Structure, alpha: Number = 1e-4, beta: Number = 0.75, k: Number = 1.0
) -> Any:
    """input / (k + alpha * the mean square of `size` neighbouring channels)**beta: (n, c, ...).

    ValueError for fewer than three dims, RuntimeError for a size below 1.

    >>> kiln.nn.functional.local_response_norm(kiln.ones(1, 1, 1), 1, alpha=3.0, beta=0.5)
    tensor([[[0.5000]]])
    """
    if input.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)")
    if size < 1:
        raise RuntimeError(f"local_response_norm: expected a size of at least 1, got {size}")
    expect_count("local_response_norm", size, "channels, which are terms of one kernel", 1000)
    x, channels = floating(input, "avg_pool"), input.shape[1]
    padded = embed(x * x, 1, (channels + (size - 1), size // 2, 1))
    total = slice_(padded, 1, (0, channels, 1))
    for start in range(1, size):
        total = total + slice_(padded, 1, (start, channels, 1))
    return narrow(x / pow(k + alpha * (total / size), beta), input.dtype)
