"""Losses."""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.onnx.reading.operators.table import Array, cast, kind, operator
from kiln.onnx.reading.refusal import LoadError


def _negative_log(logarithms: Array, target: Array, weight: Array | None, ignored: int | None,
                  reduction: str) -> Array:  # fmt: skip
    """What is lost where classes have these logarithms: [batch, classes, ..] at [batch, ..]."""
    at = cast(target, _core.int64)
    counts = ops.ones_like(at, dtype=_core.bool) if ignored is None else at != ignored
    at = ops.where(counts, at, ops.zeros_like(at))
    each = -ops.gather(logarithms, 1, at.unsqueeze(1)).squeeze(1)
    factor = cast(counts, kind(logarithms))
    if weight is not None:
        factor = factor * ops.index_select(weight, 0, at.reshape(-1)).reshape(at.shape)
    each = ops.where(factor == 0, ops.zeros_like(each), each * factor)
    if reduction == "none":
        return each
    if reduction not in ("mean", "sum"):
        raise LoadError(f"reduction is {reduction!r:.20}")
    total: Array = ops.sum(each)
    return total if reduction == "sum" else total / ops.sum(factor)


@operator("NegativeLogLikelihoodLoss", since=12)
def _negative_log_likelihood_loss(x: Array, target: Array, weight: Array | None = None, *,
                                  ignore_index: int | None = None,
                                  reduction: str = "mean") -> Any:  # fmt: skip
    return _negative_log(x, target, weight, ignore_index, reduction)


@operator("SoftmaxCrossEntropyLoss", since=12)
def _softmax_cross_entropy_loss(x: Array, target: Array, weight: Array | None = None, *,
                                ignore_index: int | None = None, reduction: str = "mean") -> Any:  # fmt: skip
    logarithms = ops.log_softmax(x, 1)
    return _negative_log(logarithms, target, weight, ignore_index, reduction), logarithms
