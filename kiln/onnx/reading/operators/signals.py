"""Operators on signals: transforms by the sums that define them, and windows."""

from __future__ import annotations

import math
from typing import Any

from kiln import _core, ops
from kiln.onnx.reading.operators.table import Array, Number, axis_of, cast, kind, operator
from kiln.onnx.reading.refusal import LoadError
from kiln.onnx.reading.weights import dtype_of


def _waves(count: int, length: int) -> tuple[Array, Array]:
    """Cosines and sines of 2 pi k n / length: [count, length], in float64."""
    turns = ops.arange(count).unsqueeze(1) * ops.arange(length).unsqueeze(0)
    angles = cast(ops.remainder(turns, length), _core.float64) * (2 * math.pi / length)
    return ops.cos(angles), ops.sin(angles)


def _transform(x: Array, length: int, inverse: int, onesided: int) -> Array:
    """Of [.., n, 1 or 2] along the dim before the last: [.., n, 1 or 2]."""
    have = x.shape[-2]
    real = cast(x[..., 0], _core.float64)
    imaginary = cast(x[..., 1], _core.float64) if x.shape[-1] == 2 else None
    if inverse and onesided:  # what is not there is the conjugate of what is
        return _real_inverse(real, imaginary, length)
    kept = min(have, length)
    count = length // 2 + 1 if onesided else length
    cosines, sines = _waves(count, length)
    cosines, sines = cosines[:, :kept].t(), sines[:, :kept].t()
    sign = 1.0 if inverse else -1.0
    real = real[..., :kept]
    a, b = ops.matmul(real, cosines), ops.matmul(real, sines) * sign
    if imaginary is not None:
        imaginary = imaginary[..., :kept]
        a = a - ops.matmul(imaginary, sines) * sign
        b = b + ops.matmul(imaginary, cosines)
    found = ops.stack([a, b], -1)
    return found / length if inverse else found


def _real_inverse(real: Array, imaginary: Array | None, length: int) -> Array:
    kept = min(real.shape[-1], length // 2 + 1)
    cosines, sines = _waves(length, length)
    twice = [1.0 if k == 0 or 2 * k == length else 2.0 for k in range(kept)]
    factors = ops.tensor(twice, dtype=_core.float64)
    found = ops.matmul(real[..., :kept] * factors, cosines[:, :kept].t())
    if imaginary is not None:
        found = found - ops.matmul(imaginary[..., :kept] * factors, sines[:, :kept].t())
    return (found / length).unsqueeze(-1)


def _along(x: Array, axis: int, given: Any, inverse: int, onesided: int) -> Array:
    dim = axis_of(axis, x.ndim)
    if dim == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise LoadError(f"a transform along dim {axis} of {tuple(x.shape)}")
    have = x.shape[dim]
    length = given if given is not None else 2 * (have - 1) if inverse and onesided else have
    if not isinstance(length, int) or length < 1:
        raise LoadError(f"a transform of length {length}")
    found = _transform(x.movedim(dim, -2), length, inverse, onesided)
    return cast(found.movedim(-2, dim), kind(x))


@operator("DFT", since=17)
def _dft_of_axis(x: Array, length: Number | None = None, *, axis: int = 1, inverse: int = 0,
                 onesided: int = 0) -> Any:  # fmt: skip
    return _along(x, axis, length, inverse, onesided)


@operator("DFT", since=20)
def _dft(x: Array, length: Number | None = None, axis: Number | None = None, *, inverse: int = 0,
         onesided: int = 0) -> Any:  # fmt: skip
    return _along(x, -2 if axis is None else axis, length, inverse, onesided)


@operator("STFT", since=17)
def _stft(x: Array, step: Number, window: Array | None = None, length: Number | None = None, *,
          onesided: int = 1) -> Any:  # fmt: skip
    if x.ndim == 2:
        x = x.unsqueeze(-1)
    size = length if length is not None else window.shape[0] if window is not None else x.shape[1]
    frames = x.unfold(1, size, step)  # [batch, frames, 1 or 2, size]
    if window is not None:
        frames = frames * window
    return cast(_transform(frames.transpose(-1, -2), size, 0, onesided), kind(x))


def _window(terms: tuple[float, ...]) -> Any:
    """A sum of cosines over a window."""

    def apply(size: Number, *, output_datatype: int = 1, periodic: int = 1) -> Any:
        span = size if periodic else max(size - 1, 1)
        at = cast(ops.arange(size), _core.float64) * (2 * math.pi / span)
        found: Any = terms[0]
        for k, factor in enumerate(terms[1:], 1):
            found = found + ops.cos(at * k) * factor
        return cast(found, dtype_of(output_datatype, "its result"))

    return apply


operator("HannWindow", since=17)(_window((0.5, -0.5)))
operator("HammingWindow", since=17)(_window((25 / 46, -21 / 46)))
operator("BlackmanWindow", since=17)(_window((0.42, -0.5, 0.08)))


@operator("MelWeightMatrix", since=17)
def _mel_weight_matrix(bins: Number, length: Number, rate: Number, lowest: Number, highest: Number, *,
                       output_datatype: int = 1) -> Any:  # fmt: skip
    def mel(frequency: float) -> float:
        return 2595 * math.log10(1 + frequency / 700)

    low, step = mel(lowest), (mel(highest) - mel(lowest)) / (bins + 2)
    at = [700 * (10 ** ((low + k * step) / 2595) - 1) for k in range(bins + 2)]
    places = [int((length + 1) * f // rate) for f in at]
    rows = [[0.0] * bins for _ in range(length // 2 + 1)]
    for k, (left, middle, right) in enumerate(zip(places, places[1:], places[2:])):
        for j in range(left, middle):
            rows[j][k] = (j - left) / (middle - left)
        rows[middle][k] = 1.0
        for j in range(middle, right):
            rows[j][k] = (right - j) / (right - middle)
    return cast(ops.tensor(rows, dtype=_core.float64), dtype_of(output_datatype, "its result"))
