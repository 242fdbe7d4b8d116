"""Batch normalisation: by the statistics of a batch, or by those kept while training."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise.elementary import rsqrt
from kiln.ops.elementwise.precision import floating, narrow
from kiln.ops.nn.group_norms import check_channels, normalize_by, per_channel
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import reshape
from kiln.table import drawn as d
from kiln.table.arguments import count_of, is_value, keeping, numel
from kiln.table.public import public
from kiln.table.record import Number, Tensor, composite
from kiln.table.registry import forms


def _whitened(np: ModuleType, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    wide_x, dims = np.asarray(x, np.float64), (0, *range(2, x.ndim))
    mean, var = wide_x.mean(dims), wide_x.var(dims)
    laid = [-1 if k == 1 else 1 for k in range(x.ndim)]
    y = (wide_x - mean.reshape(laid)) / np.sqrt(var.reshape(laid) + eps)
    y = y if weight is None else y * weight.reshape(laid)
    y = y if bias is None else y + bias.reshape(laid)
    return y.astype(x.dtype), mean.astype(x.dtype), wide_x.var(dims, ddof=1).astype(x.dtype)


def _channels(rng: Any, t: str, *shape: int) -> tuple[Any, ...]:
    """An array, and a weight and a bias of its channels."""
    return (d.array(rng, shape, t), *(d.array(rng, shape[1:2], t) for _ in range(2)))


@composite(
    samples=d.samples(
        lambda rng, t: (_channels(rng, t, 3, 2, 4), {}),
        lambda rng, t: ((d.array(rng, (5, 3), t),), {"eps": 1e-3}),
        lambda rng, t: (_channels(rng, t, 2, 3, 2, 3), {}),
    ),
    reference=d.reference(_whitened),
    public=False,
)
def normalize_batch(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: Number = 1e-5
) -> tuple[Any, Any, Any]:
    """(n, c, ...) with mean 0 and variance 1 over each channel, times weight plus bias; and each channel's
    mean and unbiased variance (c), wide.

    >>> kiln.nn.functional.batch_norm(kiln.tensor([[1.0], [3.0]]), None, None, training=True)
    tensor([[-1.0000],
            [ 1.0000]])
    """
    x = floating(input, "batch_norm")
    dims, channels = (0, *range(2, x.ndim)), (x.shape[1],)
    count: Any = count_of(x, dims)
    mean = reduce_sum(x, dims, True) / count
    centered = x - mean
    total = reduce_sum(centered * centered, dims, True)
    y = centered * rsqrt(total / count + eps)
    y = y if weight is None else y * per_channel(weight, x.ndim)
    y = y if bias is None else y + per_channel(bias, x.ndim)
    found = narrow(y, input.dtype)
    return found, *(narrow(reshape(s, channels), x.dtype) for s in (mean, total / (count - 1)))


def _check(input: Tensor, tensors: dict[str, Any], training: bool) -> None:
    """PyTorch's errors for statistics and parameters that are missing or of another size."""
    mean, var = tensors["running_mean"], tensors["running_var"]
    channels = input.shape[1] if input.ndim > 1 else 0
    if training and (mean is None) != (var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    if training and not is_value(input) and numel((*input.shape[:1], *input.shape[2:])) == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {list(input.shape)}"
        )
    for name, x in tensors.items():
        if x is None and name.startswith("running") and not training:
            raise RuntimeError(f"{name} must be defined in evaluation mode")
    check_channels(channels, tensors)


forms(
    "batch_norm",
    "(input, running_mean: Tensor | None, running_var: Tensor | None, weight=None, bias=None, "
    "training=False, momentum=0.1, eps=1e-05)",
)


@public(
    "batch_norm",
    method=False,
    layer=True,
    samples=d.samples(
        lambda rng, t: (
            (d.array(rng, (2, 3, 4), t), d.array(rng, (3,), t), d.array(rng, (3,), t, 0.5, 2)),
            {"eps": 1e-3},
        ),
        lambda rng, t: ((_channels(rng, t, 3, 2, 4)[0], None, None), {"training": True}),
    ),
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2, 3), None, None), {}, RuntimeError, "running_mean must be defined in evaluation mode"),
        ((d.Zeros(2, 3), d.Zeros(3), None), {}, RuntimeError, "running_var must be defined"),
        ((d.Zeros(2, 3), d.Zeros(4), d.Zeros(4)), {}, RuntimeError, "should contain 3 elements not 4"),
        ((d.Zeros(1, 3), None, None), {"training": True}, ValueError, "more than 1 value per channel"),
        ((d.Zeros(2, 3), d.Zeros(3), None), {"training": True}, ValueError, "must either both be None"),
    ),
    tests=d.Tests(peer_gradient=False),
)
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """(n, c, ...) with mean 0 and variance 1 over each channel, times weight (c) plus bias (c).

    In `training` running statistics (c), if given, move towards those of the batch by the share `momentum`,
    the variance's unbiased; else they are what is normalised by. ValueError for a single element to each
    channel in training, RuntimeError for sizes that do not fit.

    >>> kiln.nn.functional.batch_norm(kiln.tensor([[1.0], [3.0]]), None, None, training=True)
    tensor([[-1.0000],
            [ 1.0000]])
    """
    own = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    _check(input, own, training)
    if eps <= 0 and (training or eps < 0):
        least = "positive during training" if training else "non-negative"
        raise ValueError(f"batch_norm eps must be {least}, but got {eps}")
    if not training:
        return normalize_by.handle(input, running_mean, running_var, weight, bias, eps)

    def normalized() -> Any:
        y, mean, var = normalize_batch.handle(input, weight, bias, eps)
        if running_mean is not None and not (isinstance(input.shape[0], int) and 0 in input.shape):
            for running, now in ((running_mean, mean), (running_var, var)):
                running.lerp_(now.detach().to(dtype=running.dtype), momentum)
        return y

    return keeping(input, normalized, running_mean=running_mean, running_var=running_var)
