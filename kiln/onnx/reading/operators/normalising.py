"""Softmax and its kind, and normalisations."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln.nn import functional as F
from kiln.onnx.reading.operators.table import Array, axis_of, cast, kind, operator, wide
from kiln.onnx.reading.refusal import LoadError, UnsupportedError
from kiln.onnx.reading.weights import dtype_of


def _softly(function: Any) -> None:
    """Softmax of one dim, and before opset 13 of all dims from one on."""

    def along(x: Array, *, axis: int = -1) -> Any:
        return function(x, axis_of(axis, x.ndim)) if x.ndim else function(x.reshape(1), 0).reshape(())

    def flat(x: Array, *, axis: int = 1) -> Any:
        dim = axis_of(axis, x.ndim)
        rows = x.reshape((*x.shape[:dim], -1))
        return function(rows, dim).reshape(tuple(x.shape))

    name = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}.get(function.__name__, "Hardmax")
    operator(name, since=1)(flat)
    operator(name, since=13)(along)


def softmax(x: Array, dim: int) -> Array:
    """Softmax along a dim."""
    return ops.softmax(x, dim)


def log_softmax(x: Array, dim: int) -> Array:
    """Its logarithm."""
    return ops.log_softmax(x, dim)


def hardmax(x: Array, dim: int) -> Array:
    """1 at the first maximum, 0 elsewhere."""
    at = ops.argmax(x, dim, keepdim=True)
    return ops.zeros_like(x).scatter(dim, at, cast(ops.ones_like(at), kind(x)))


for _function in (softmax, log_softmax, hardmax):
    _softly(_function)


def _by_channel(v: Array, ndim: int) -> Array:
    """A vector of channels as it broadcasts to [batch, channels, ..]."""
    return v.reshape((1, -1, *[1] * (ndim - 2)))


@operator("BatchNormalization", since=1)
def _batch_normalization_of_old(
    x: Array, scale: Array, shift: Array, mean: Array, var: Array, *, consumed_inputs: Any = None,
    epsilon: float = 1e-5, is_test: int = 0, momentum: float = 0.9, spatial: int = 1,
) -> Any:  # fmt: skip
    if not is_test:
        raise UnsupportedError("BatchNormalization in training is read since opset 14")
    return _batch_normalization(x, scale, shift, mean, var, epsilon=epsilon, spatial=spatial)


@operator("BatchNormalization", since=7)
def _batch_normalization(
    x: Array, scale: Array, shift: Array, mean: Array, var: Array, *, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, spatial: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    if not spatial or outputs > 3:
        raise LoadError("BatchNormalization of an old kind, or of more results than three")
    kept = (mean, var)
    if training_mode:
        dims = [0, *range(2, x.ndim)]
        given = cast(x, kind(mean))
        now = ops.mean(given, dims), ops.var(given, dims, correction=0)
        kept = (mean * momentum + now[0] * (1 - momentum), var * momentum + now[1] * (1 - momentum))
        mean, var = now
    if kind(x) == kind(mean) == kind(scale) and x.ndim > 1:
        y = F.batch_norm(x, mean, var, scale, shift, False, 0.0, epsilon)
    else:
        given = cast(x, kind(mean))
        mean, var, scale, shift = (_by_channel(v, x.ndim) for v in (mean, var, scale, shift))
        y = cast(((given - mean) / ops.sqrt(var + epsilon) * scale + shift), kind(x))
    return (y, *kept) if outputs > 1 else y


@operator("InstanceNormalization", since=6)
def _instance_normalization(x: Array, scale: Array, shift: Array, *, epsilon: float = 1e-5) -> Any:
    return F.instance_norm(x, None, None, scale, shift, True, 0.0, epsilon)


def _grouped(x: Array, groups: int, epsilon: float) -> Array:
    """x with mean 0 and variance 1 in each group of channels, [batch, groups, -1]."""
    flat = wide(x).reshape((x.shape[0], groups, -1))
    mean = ops.mean(flat, -1, keepdim=True)
    return (flat - mean) / ops.sqrt(ops.var(flat, -1, correction=0, keepdim=True) + epsilon)


@operator("GroupNormalization", since=18)
def _group_normalization_by_group(x: Array, scale: Array, shift: Array, *, num_groups: int,
                                  epsilon: float = 1e-5) -> Any:  # fmt: skip
    flat = _grouped(x, num_groups, epsilon)
    return cast(
        (flat * wide(scale).reshape(1, -1, 1) + wide(shift).reshape(1, -1, 1)).reshape(x.shape), kind(x)
    )


@operator("GroupNormalization", since=21)
def _group_normalization(x: Array, scale: Array, shift: Array, *, num_groups: int, epsilon: float = 1e-5,
                         stash_type: int = 1) -> Any:  # fmt: skip
    if kind(x) == kind(scale):
        return F.group_norm(x, num_groups, scale, shift, epsilon)
    flat = cast(_grouped(x, num_groups, epsilon).reshape(x.shape), kind(x))
    return flat * _by_channel(scale, x.ndim) + _by_channel(shift, x.ndim)


@operator("LayerNormalization", since=17)
def _layer_normalization(x: Array, scale: Array, shift: Array | None = None, *, axis: int = -1,
                         epsilon: float = 1e-5, stash_type: int = 1, outputs: int = 1) -> Any:  # fmt: skip
    first = axis_of(axis, x.ndim)
    shape = tuple(x.shape[first:])
    if outputs == 1 and tuple(scale.shape) == shape and (shift is None or shift.shape == scale.shape):
        return F.layer_norm(x, shape, scale, shift, epsilon)
    dims, own = list(range(first, x.ndim)), cast(x, dtype_of(stash_type, "its stash"))
    mean = ops.mean(own, dims, keepdim=True)
    inverse = 1 / ops.sqrt(ops.mean((own - mean) ** 2, dims, keepdim=True) + epsilon)
    y = cast((own - mean) * inverse, kind(x)) * scale
    return (y if shift is None else y + shift), mean, inverse


@operator("RMSNormalization", since=23)
def _rms_normalization(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5,
                       stash_type: int = 1) -> Any:  # fmt: skip
    first = axis_of(axis, x.ndim)
    own = cast(x, dtype_of(stash_type, "its stash"))
    mean = ops.mean(own * own, list(range(first, x.ndim)), keepdim=True)
    return cast(own / ops.sqrt(mean + epsilon), kind(x)) * scale


@operator("LpNormalization")
def _lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Any:
    if p not in (1, 2):
        raise LoadError(f"p is {p}")
    if p == 1:
        size = ops.sum(ops.abs(x), axis, keepdim=True)
    else:
        size = ops.sqrt(ops.sum(x * x, axis, keepdim=True))
    return ops.where(size == 0, ops.zeros_like(x), x / size)


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(x: Array, *, axes: Any = (0, 2, 3)) -> Any:
    dims = list(axes)
    mean = ops.mean(x, dims, keepdim=True)
    spread = ops.sqrt(ops.mean(x * x, dims, keepdim=True) - mean * mean)
    return (x - mean) / (spread + 1e-9)


@operator("LRN")
def _lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    before = (size - 1) // 2
    squares = x * x
    sides = [ops.zeros((x.shape[0], n, *x.shape[2:]), dtype=kind(x)) for n in (before, size - 1 - before)]
    padded = ops.cat([sides[0], squares, sides[1]], 1)
    total: Any = padded.narrow(1, 0, x.shape[1])
    for k in range(1, size):
        total = total + padded.narrow(1, k, x.shape[1])
    return x / (total * (alpha / size) + bias) ** beta
