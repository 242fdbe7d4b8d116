"""Fake quantization: values on the grid that integers stand for, gradients that go straight through it."""

from __future__ import annotations

import numpy as np
import pytest
from backend import kiln, recorded

LOW, HIGH = -8, 7


def expected(x, scale, zero, before=False):
    place = np.rint(x / scale + zero) if before else np.rint(x / scale) + zero
    inside = (place >= LOW) & (place <= HIGH)
    return (place.clip(LOW, HIGH) - zero) * scale, inside


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("zero", [0, 3])
def test_a_tensor_is_put_on_its_grid_and_its_gradient_goes_through(dtype, zero):
    x = np.linspace(-4, 4, 41)  # with halves: 0.125 is between two places
    t = kiln.tensor(x, dtype=getattr(kiln, dtype), requires_grad=True)
    y = kiln.fake_quantize_per_tensor_affine(t, 0.25, zero, LOW, HIGH)
    (y * 3).sum().backward()
    values, inside = expected(x.astype(dtype).astype("float64"), 0.25, zero)
    assert y.dtype == t.dtype and y.tolist() == values.tolist()
    assert t.grad.tolist() == (inside * 3.0).tolist()
    scale, at = kiln.tensor([0.25]), kiln.tensor([zero], dtype=kiln.int32)
    assert kiln.fake_quantize_per_tensor_affine(t, scale, at, LOW, HIGH).tolist() == y.tolist()


@pytest.mark.parametrize("kind", ["int32", "float32"])
def test_each_channel_has_its_grid(kind):
    x = np.linspace(-3, 3, 24).reshape(2, 3, 4).round(2)
    x[0, 1, 0], x[0, 2, 1] = 0.25, 1.25  # between two places: a zero point that is a float is added before
    scale, zero = np.array([0.125, 0.5, 0.5]), np.array([0, 1, -3])
    t = kiln.tensor(x.astype("float32"), requires_grad=True)
    scales, zeros = kiln.tensor(scale.astype("float32")), kiln.tensor(zero.astype(kind))
    y = kiln.fake_quantize_per_channel_affine(t, scales, zeros, 1, LOW, HIGH)
    y.sum().backward()
    values, inside = expected(
        x.astype("float32").astype("float64"), scale[:, None], zero[:, None], kind == "float32"
    )
    assert y.tolist() == values.tolist() and t.grad.tolist() == inside.tolist()


def test_what_is_no_number_is_the_lowest():
    y = kiln.fake_quantize_per_tensor_affine(kiln.tensor([float("nan"), float("inf")]), 0.5, 0, LOW, HIGH)
    assert y.tolist() == [-4.0, 3.5]


def test_a_compiled_step_has_the_same_bits():
    def step(x):
        return kiln.fake_quantize_per_tensor_affine(x.sin() * 3, 0.1, 1, LOW, HIGH)

    x = kiln.linspace(-3, 3, 30)
    compiled = recorded(step)
    assert all(compiled(x).tolist() == step(x).tolist() for _ in range(2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: kiln.fake_quantize_per_tensor_affine(x, 0.1, 9, LOW, HIGH), RuntimeError, "`zero_point`"),
        (lambda x: kiln.fake_quantize_per_tensor_affine(x, 0.1, 0, 8, 7), RuntimeError, "`quant_min`"),
        (
            lambda x: kiln.fake_quantize_per_tensor_affine(x.long(), 0.1, 0, LOW, HIGH),
            NotImplementedError,
            "not implemented for 'Long'",
        ),
        (
            lambda x: kiln.fake_quantize_per_channel_affine(
                x, kiln.ones(3), kiln.zeros(2).int(), 0, LOW, HIGH
            ),
            RuntimeError,
            "same dimensions",
        ),
        (
            lambda x: kiln.fake_quantize_per_channel_affine(
                x, kiln.ones(2), kiln.zeros(2).long(), 0, LOW, HIGH
            ),
            RuntimeError,
            "Zero-point must be",
        ),
        (
            lambda x: kiln.fake_quantize_per_channel_affine(
                x, kiln.ones(2), kiln.zeros(2).int(), 2, LOW, HIGH
            ),
            IndexError,
            "Dimension out of range",
        ),
    ],
)
def test_mistakes_are_pytorch_s(call, error, words):
    with pytest.raises(error, match=words):
        call(kiln.ones(2, 3))
