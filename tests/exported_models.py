"""Ops with samples, and whole models that are exported: the model, arguments of calls, sizes that vary."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import kiln
from kiln import nn
from kiln.export import Dim
from kiln.nn import functional as F
from kiln.testing.mode_cases import table

ENTRIES = {n: e.record for n, e in table().items() if e.record.samples is not None}
NAMES = sorted(ENTRIES)[:: 1 if os.environ.get("KILN_TEST_FULL") else 7]


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
