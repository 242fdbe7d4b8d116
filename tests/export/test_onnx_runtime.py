"""ONNX models by the official checker and by ONNX Runtime, where these are installed: every op with samples
(some of them unless KILN_TEST_FULL=1), and whole models, beside kiln.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_models import compared

import kiln
from kiln import nn
from kiln.export import Dim
from kiln.nn import functional as F
from kiln.testing.mode_cases import table
from kiln.tracing.recorder import TracingError

FULL = bool(os.environ.get("KILN_TEST_FULL"))
ENTRIES = {n: e.record for n, e in table().items() if e.record.samples is not None}
NAMES = sorted(ENTRIES)
# What has no form: a size that is a value, the gradient of a pool, draws from a place of one's own.
WITHOUT = {"places_of", "pool_spread", "draw_below"}


def _given(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return kiln.from_numpy(np.ascontiguousarray(x))
    if isinstance(x, (list, tuple)):
        return type(x)(map(_given, x))
    return x


@pytest.mark.parametrize("name", NAMES if FULL else NAMES[::9])
def test_ops(name: str) -> None:
    """The first samples of an op, or all."""
    op = ENTRIES[name]
    function = getattr(op, "handle", None) or op.function
    for sample in op.samples(np.random.default_rng(3), "int64" if op.dtypes == "integral" else "float32")[
        : None if FULL else 2
    ]:
        args, kwargs = tuple(map(_given, sample.args)), {k: _given(v) for k, v in sample.kwargs.items()}
        if any(not x.numel() for x in _tensors([*args, *kwargs.values()])) or not _tensors(
            [*args, *kwargs.values()]
        ):
            continue
        try:
            expected = function(*args, **kwargs)
            program = kiln.export.export(lambda *a, **k: function(*a, **k), args, kwargs)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, TracingError):
            continue  # not of floats, or goes by values
        try:
            compared(program, args, kwargs, expected, 1e9 if program._captured.random else 2e-5)
        except ValueError as error:
            assert "to_onnx" in str(error) and name in WITHOUT, error


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, kiln.Tensor):
        return [value]
    return [y for item in value for y in _tensors(item)] if isinstance(value, (tuple, list)) else []


class Residual(nn.Module):
    """A block of a residual net."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.n = nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        return F.relu(self.b(F.relu(self.n(self.a(x)))) + x)


class Decoder(nn.Module):
    """One layer of a decoder of 20 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Parameter(kiln.randn(64, 16))
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 20)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.places[: ids.shape[1]]
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(x + mixed)


def images() -> Any:
    """A net of convolutions, whose batch varies."""
    parts = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def ids(*shape: int) -> Any:
    return kiln.randint(0, 20, shape)


BATCH = Dim("batch")
# By name: the model, arguments of two calls, sizes that vary.
MODELS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], tuple[Any, ...] | None, Any]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)),
        (kiln.randn(3, 8),), (kiln.randn(5, 8),), ({0: BATCH},),
    ),
    "convolutions": (images, (kiln.randn(2, 1, 12, 12),), (kiln.randn(3, 1, 12, 12),), ({0: BATCH},)),
    "residual": (
        Residual, (kiln.randn(2, 4, 8, 8),), (kiln.randn(1, 4, 5, 9),),
        ({0: BATCH, 2: Dim("height", min=2), 3: Dim("width", min=2)},),
    ),
    "upsampling": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
            nn.AvgPool2d(2, ceil_mode=True), nn.Upsample(scale_factor=2), nn.GroupNorm(2, 4),
        ),
        (kiln.randn(2, 2, 7, 7),), None, None,
    ),
    "lstm": (lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True), (kiln.randn(5, 2, 4),), None, None),
    "gru": (lambda: nn.GRU(4, 3), (kiln.randn(5, 2, 4),), None, None),
    "decoder": (Decoder, (ids(2, 7),), (ids(3, 11),), ({0: BATCH, 1: Dim("time", max=64)},)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (kiln.randn(2, 5, 8),), None, None,
    ),
    "bag": (lambda: nn.EmbeddingBag(20, 5, mode="mean"), (ids(3, 4),), None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Whole models in evaluation, at the example's sizes and at others."""
    kiln.manual_seed(0)
    make, first, second, shapes = MODELS[name]
    model = make().eval()
    program = kiln.export.export(model, first, dynamic_shapes=shapes)
    for args in (first, second):
        if args is not None:
            with kiln.no_grad():
                compared(program, args, {}, model(*args), 1e-4)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int8", "bool"])
def test_dtypes(dtype: str) -> None:
    """Arithmetic, comparison, sums and views in a dtype."""
    kind = getattr(kiln, dtype)
    x = (kiln.randn(3, 4) * 5).to(kind)

    def program(x: Any) -> Any:
        y = x.T.reshape(-1)[2:9].flip(0)
        z = (
            x == y[0],
            x.sum(),
            y.max(),
            kiln.where(x > 0, x, x * 0),
            x.to(kiln.float32) / 3,
            kiln.cat([y, y]),
        )
        if dtype == "bool":
            return (*z, x.logical_not(), x.any(0))
        return (*z, x + 2, x * x, -x, x.abs(), x.cumsum(1), x.sort(1), x @ x.T, x.prod(0))

    made = kiln.export.export(program, (x,))
    compared(made, (x,), {}, program(x), {"float64": 1e-12, "float16": 2e-3}.get(dtype, 0.0))
