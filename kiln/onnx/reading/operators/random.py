"""Operators that draw random numbers, by kiln's generator: a `seed` of the model is not followed."""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.onnx.reading.operators.table import Array, Number, Value, as_items, cast, kind, operator
from kiln.onnx.reading.weights import dtype_of


@operator("Dropout")
def _dropout(x: Array, *, ratio: float = 0.5, outputs: int = 1) -> Any:
    return (x, ops.ones_like(x)) if outputs > 1 else x


@operator("Dropout", since=10)
def _dropout_with_bool_mask(x: Array, *, ratio: float = 0.5, outputs: int = 1) -> Any:
    return (x, ops.ones_like(x, dtype=_core.bool)) if outputs > 1 else x


@operator("Dropout", since=12)
def _dropout_in_training(x: Array, ratio: Value | None = None, training: Number | None = None, *,
                         seed: int = 0) -> Any:  # fmt: skip
    chance = 0.5 if ratio is None or not training else as_items(ratio)[0]
    if not training or chance == 0:
        return x, ops.ones_like(x, dtype=_core.bool)
    kept = ops.rand(tuple(x.shape)) >= chance
    return ops.where(kept, x / (1 - chance), ops.zeros_like(x)), kept


def _of(dtype: int | None, like: Any) -> Any:
    return (
        (kind(like) if like is not None else _core.float32)
        if dtype is None
        else dtype_of(dtype, "its result")
    )


@operator("Bernoulli")
def _bernoulli(x: Array, *, dtype: int | None = None, seed: float = 0.0) -> Any:
    return cast(ops.rand(tuple(x.shape)) < x, _of(dtype, x))


@operator("RandomUniform")
def _random_uniform(
    *, shape: Any, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float = 0.0
) -> Any:
    return cast((ops.rand(tuple(shape)) * (high - low) + low), _of(dtype, None))


@operator("RandomUniformLike")
def _random_uniform_like(x: Array, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0,
                         seed: float = 0.0) -> Any:  # fmt: skip
    return cast((ops.rand(tuple(x.shape)) * (high - low) + low), _of(dtype, x))


@operator("RandomNormal")
def _random_normal(
    *, shape: Any, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0
) -> Any:
    return cast(ops.randn(tuple(shape)) * scale + mean, _of(dtype, None))


@operator("RandomNormalLike")
def _random_normal_like(x: Array, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
                        seed: float = 0.0) -> Any:  # fmt: skip
    return cast(ops.randn(tuple(x.shape)) * scale + mean, _of(dtype, x))


@operator("Multinomial")
def _multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float = 0.0) -> Any:
    return cast(ops.multinomial(ops.softmax(x, -1), sample_size, replacement=True), _of(dtype, None))
