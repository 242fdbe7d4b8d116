"""A training step of a GPT under autocast, beside PyTorch's, taken in turn: python bench/autocast.py [rounds]

Six layers, 384 wide, 8 texts of 128 characters; AdamW. Without AVX-512 or AMX PyTorch has no bfloat16
products of its own for the CPU, and a step of it takes a minute: 3 rounds are the default.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kiln.testing.backend import load, peer

VOCABULARY, LENGTH, WIDTH, HEADS, TEXTS, LAYERS = 65, 128, 384, 6, 8, 6


def gpt(
    framework: Any,
    texts: int = TEXTS,
    length: int = LENGTH,
    layers: int = LAYERS,
    width: int = WIDTH,
    heads: int = HEADS,
) -> Any:
    """The model, for so many texts of one length."""
    nn, f = framework.nn, framework.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.before(x)).split(width, dim=2)
            q, k, v = (t.view(texts, length, heads, -1).transpose(1, 2) for t in parts)
            seen = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.join(seen.transpose(1, 2).contiguous().view(texts, length, width))
            return x + self.down(f.gelu(self.up(self.between(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places(framework.arange(length))
            return self.head(self.last(self.blocks(x)))

    return Model()


def step_of(framework: Any, low: bool) -> Callable[[], float]:
    """A step, which gives its loss."""
    framework.manual_seed(0)
    model = gpt(framework)
    optimizer = framework.optim.AdamW(model.parameters(), lr=1e-3)
    draw = np.random.default_rng(0)
    tokens, target = (framework.from_numpy(draw.integers(0, VOCABULARY, (TEXTS, LENGTH))) for _ in range(2))

    def step() -> float:
        optimizer.zero_grad()
        with framework.autocast("cpu", dtype=framework.bfloat16, enabled=low):
            logits = model(tokens).view(-1, VOCABULARY)
            loss = framework.nn.functional.cross_entropy(logits, target.view(-1))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def main() -> None:
    """Prints medians and minima of each way, in turn."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    frameworks = {"kiln": load("kiln"), "PyTorch": peer()}
    steps = {
        f"{name} {'bfloat16' if low else 'float32'}": step_of(framework, low)
        for low in (True, False)
        for name, framework in frameworks.items()
        if framework is not None
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step(), step()
    for _ in range(rounds):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begun)
    for name, taken in seconds.items():
        print(f"{name:18s} median {statistics.median(taken):7.3f} s, minimum {min(taken):7.3f} s")


if __name__ == "__main__":
    main()
