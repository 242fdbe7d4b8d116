"""Whole models that go through every export: small ones of the real structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kiln
from kiln import nn
from kiln.export import Dim
from kiln.nn import functional as F


class Block(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        past = (nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.past = nn.Sequential(*past) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.past(x))


class ResNet18(nn.Module):
    """Four stages of two blocks, of `width` (64 in the paper) to eight times as many channels."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        first = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.stem = nn.Sequential(*first, nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        stages = [
            (Block(before, after, 1 + bool(k)), Block(after, after, 1))
            for k, (before, after) in enumerate(zip(widths, widths[1:]))
        ]
        self.stages = nn.Sequential(*(block for stage in stages for block in stage))
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Any) -> Any:
        return self.head(F.adaptive_avg_pool2d(self.stages(self.stem(x)), 1).flatten(1))


def _twice(before: int, after: int) -> Any:
    parts = nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()
    return nn.Sequential(*parts, nn.Conv2d(after, after, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    """Down twice and up again, by a transposed convolution and by bilinear upsampling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2 = _twice(1, width), _twice(width, 2 * width)
        self.bottom = _twice(2 * width, 4 * width)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.Conv2d(2 * width, width, 1)
        self.join2, self.join1 = _twice(4 * width, 2 * width), _twice(2 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.join2(kiln.cat([b, self.up2(c)], 1))
        up = F.interpolate(self.up1(b), scale_factor=2, mode="bilinear")
        return self.out(self.join1(kiln.cat([a, up], 1)))


class Layer(nn.Module):
    """A layer of a GPT that keeps keys and values of the words before."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("keys", kiln.zeros(heads, longest, width // heads))
        self.register_buffer("values", kiln.zeros(heads, longest, width // heads))

    def forward(self, x: Any, place: Any) -> Any:
        q, k, v = self.qkv(self.norm1(x)).view(3, self.heads, 1, -1).unbind(0)
        self.keys.index_copy_(1, place, k)
        self.values.index_copy_(1, place, v)
        seen = (kiln.arange(self.keys.shape[1]) <= place)[None, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(y.transpose(0, 1).flatten())
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A word at a time: the scores of the next."""

    def __init__(self, words: int = 30, width: int = 16, layers: int = 2, longest: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList([Layer(width, 2, longest) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("place", kiln.zeros(1, dtype=kiln.int64))

    def forward(self, word: Any) -> Any:
        x = (self.words(word) + self.places(self.place))[0]
        for layer in self.layers:
            x = layer(x, self.place)
        self.place += 1
        return self.head(self.norm(x))


class Masked(nn.Module):
    """Attention that does not look at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any, padding: Any) -> Any:
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class TreeCell(nn.Module):
    """The child-sum cell of a TreeLSTM: a node of any number of children."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(inputs, 4 * size), nn.Linear(size, 3 * size, bias=False)
        self.f = nn.Linear(size, size, bias=False)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        of_x, of_h = self.x(x).chunk(4), self.h(h.sum(0)).chunk(3)
        i, o, u = (a + b for a, b in zip(of_x, of_h))
        forget = (of_x[3] + self.f(h)).sigmoid()
        c = i.sigmoid() * u.tanh() + (forget * c).sum(0)
        return o.sigmoid() * c.tanh(), c


class Lstm(nn.Module):
    """Two layers, both ways, of a sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(4, 3, num_layers=2, bidirectional=True), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        y, (h, c) = self.layers(x)
        return self.head(y), h, c


@kiln.jit.script
def grown(x: Any, bound: Any) -> Any:
    """A loop whose end is in the data."""
    steps = kiln.zeros((), dtype=kiln.int64)
    while x.abs().sum() < bound:
        if x.sum() > 0:
            x = x * 1.5 - 0.25
        else:
            x = x.flip(0) * 1.25 - 1
        steps = steps + 1
        if steps > 40:
            break
    return x, steps


class Bags(nn.Module):
    """Means of words, of bags that begin anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(20, 6, mode="mean"), nn.Linear(6, 3)

    def forward(self, ids: Any, starts: Any) -> Any:
        return self.head(self.bags(ids, starts))


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutions() -> Any:
    parts = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    return nn.Sequential(*parts, nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), *last)


BATCH, TIME = Dim("batch"), Dim("time", min=1)
HEIGHT, WIDTH = Dim("height", min=1, max=40), Dim("width", min=1, max=40)
CHILDREN = {0: Dim("children")}
STARTS = [([3, 7, 1, 1, 9], [0, 3, 3]), ([4], [0]), ([2, 2, 0], [0, 1, 2, 3, 3])]
# By name: the model, arguments of a call, sizes that vary.
MODELS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], Any]] = {
    "perceptron": (perceptron, (kiln.randn(3, 20),), ({0: BATCH},)),
    "convolutions": (convolutions, (kiln.randn(3, 1, 12, 12),), ({0: BATCH},)),
    "ResNet-18": (
        lambda: ResNet18(4, 10), (kiln.randn(2, 3, 33, 20),), ({0: BATCH, 2: HEIGHT, 3: WIDTH},),
    ),
    "LSTM": (Lstm, (kiln.randn(6, 2, 4),), ({0: TIME, 1: BATCH},)),
    "GPT": (Gpt, (kiln.tensor([3]),), None),
    "attention": (
        Masked, (kiln.randn(2, 5, 8), kiln.tensor([[False] * 4 + [True]] * 2)),
        ({0: BATCH, 1: TIME}, {0: BATCH, 1: TIME}),
    ),
    "U-Net": (
        lambda: UNet(4), (kiln.randn(2, 1, 16, 12),),
        ({0: BATCH, 2: 4 * Dim("height", min=1, max=9), 3: 4 * Dim("width", min=1, max=9)},),
    ),
    "TreeLSTM": (
        lambda: TreeCell(5, 4), (kiln.randn(5), kiln.randn(3, 4), kiln.randn(3, 4)),
        (None, CHILDREN, CHILDREN),
    ),
    "loop": (lambda: grown, (kiln.randn(5), kiln.tensor(30.0)), ({0: Dim("n", min=1)}, None)),
    "bags": (
        Bags, (kiln.tensor([1, 2, 3]), kiln.tensor([0, 2])),
        ({0: Dim("words", min=1)}, {0: Dim("bags", min=1)}),
    ),
}  # fmt: skip
# Arguments of calls, of models that do not take any.
CALLS: dict[str, Any] = {"bags": [tuple(map(kiln.tensor, call)) for call in STARTS]}
