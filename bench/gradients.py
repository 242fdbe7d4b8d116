"""The lines of autograd: what recording, backward and gradients of gradients cost; memory of a whole step.

Chains are of 4x4 tensors, where everything but arithmetic shows. A training step's memory is what its tensors
take beyond what was there before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.breadth import Line
from bench.measure import Work
from bench.workloads import Make, normal, normalised, small

LENGTH = 100
MATRIX = 4096 * 1024 * 4


def _repeated(run: Callable[[], Any]) -> Work:
    return Work("run()", {"run": run}, "run()")


def chain(framework: Any) -> Work:
    """A hundred multiplications of 4x4 operands, forward and backward."""
    a, b = normal(framework, 4, 4, grad=True), framework.ones(4, 4)

    def run() -> Any:
        a.grad = None
        y = a
        for _ in range(LENGTH):
            y = y * b
        y.sum().backward()
        return a.grad

    return _repeated(run)


def polynomial(framework: Any) -> Work:
    """x*x + 3*x + 1 on a 0-d tensor, forward and backward."""
    x = framework.tensor(2.0, requires_grad=True)

    def run() -> Any:
        x.grad = None
        (x * x + 3 * x + 1).backward()
        return x.grad

    return _repeated(run)


def twice(framework: Any) -> Work:
    """A hundred multiplications y*y*b of 4x4 operands near 1, and the gradient of their gradient's sum."""
    a, b = (framework.ones(4, 4) * 0.999).requires_grad_(), framework.ones(4, 4)
    grad = framework.autograd.grad

    def run() -> Any:
        y = a
        for _ in range(LENGTH // 2):
            y = (y * b + a) * 0.5 * y
        (first,) = grad(y.sum(), a, create_graph=True)
        return grad(first.sum(), a)[0]

    return _repeated(run)


def recorded_gradient(framework: Any) -> Work:
    """A hundred multiplications of 4x4 operands, and their gradient with its own graph."""
    a, b = normal(framework, 4, 4, grad=True), framework.ones(4, 4)
    grad = framework.autograd.grad

    def run() -> Any:
        y = a
        for _ in range(LENGTH):
            y = y * b
        return grad(y.sum(), a, create_graph=True)[0]

    return _repeated(run)


def polynomial_twice(framework: Any) -> Work:
    """x*x*x + 3*x on a 0-d tensor, and its second derivative."""
    x = framework.tensor(2.0, requires_grad=True)
    grad = framework.autograd.grad

    def run() -> Any:
        (first,) = grad(x * x * x + 3 * x, x, create_graph=True)
        return grad(first, x)[0]

    return _repeated(run)


def gelu(framework: Any) -> Work:
    """gelu of (4096, 1024), forward and backward."""
    x, g = normal(framework, 4096, 1024, grad=True), normal(framework, 4096, 1024, seed=1)
    f = framework.nn.functional.gelu

    def run() -> Any:
        x.grad = None
        f(x).backward(g)
        return x.grad

    return _repeated(run)


def cross_entropy(framework: Any) -> Work:
    """The mean cross entropy of (4096, 1024) logits, forward and backward."""
    x = normal(framework, 4096, 1024, grad=True)
    target = framework.from_numpy(np.random.default_rng(1).integers(0, 1024, 4096))
    f = framework.nn.functional.cross_entropy

    def run() -> Any:
        x.grad = None
        f(x, target).backward()
        return x.grad

    return _repeated(run)


def lines() -> list[Line]:
    """The lines of programs timed in turn."""
    ops = (("a+b", "a + b"), ("a*b", "a * b"), ("tanh", "tanh(a)"))
    large: tuple[tuple[str, Make, int], ...] = (
        ("softmax f+b", normalised("softmax", True), 5),
        ("layer_norm f+b", normalised("layer_norm", True), 5),
        ("gelu f+b", gelu, 5),
        ("cross_entropy f+b", cross_entropy, 3),
    )
    return [
        *(Line(f"{name} 4x4 grad", small(text, True), 0, 10.0) for name, text in ops),
        Line("chain of 100 mul, f+b, per op", chain, 0, 20.0, per=LENGTH),
        Line("x*x+3*x+1, f+b", polynomial, 0, 20.0),
        Line("chain of 100 mul, create_graph", recorded_gradient, 0, 5.0, per=LENGTH),
        Line("chain, gradient of gradient", twice, 0, 5.0, per=LENGTH),
        Line("x*x*x+3*x, second derivative", polynomial_twice, 0, 5.0),
        *(Line(name, make, passes * MATRIX, 1.5, 0.85) for name, make, passes in large),
    ]


def gpt(framework: Any) -> tuple[Any, Callable[[], Any]]:
    """A GPT of six layers, 192 wide, written with plain ops, and its loss on 8 texts of 128 tokens."""
    nn, f = framework.nn, framework.nn.functional
    vocabulary, length, width, heads, texts = 512, 128, 192, 6, 8

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, mask: Any) -> Any:
            parts = self.qkv(self.before(x)).split(width, dim=2)
            q, k, v = (t.view(texts, length, heads, -1).transpose(1, 2) for t in parts)
            scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(width // heads))
            seen = f.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1) @ v
            x = x + self.join(seen.transpose(1, 2).contiguous().view(texts, length, width))
            return x + self.down(f.gelu(self.up(self.between(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(6)])
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            self.register_buffer("mask", framework.tril(framework.ones(length, length)))

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places(framework.arange(length))
            for block in self.blocks:
                x = block(x, self.mask)
            return self.head(self.last(x))

    draw = np.random.default_rng(0)
    tokens, target = (framework.from_numpy(draw.integers(0, vocabulary, (texts, length))) for _ in range(2))
    model = Model()
    return model, lambda: f.cross_entropy(model(tokens).view(-1, vocabulary), target.view(-1))


def mlp(framework: Any) -> tuple[Any, Callable[[], Any]]:
    """An MLP 1024-4096-4096-10, and its loss on 2048 samples."""
    nn = framework.nn
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )
    x = normal(framework, 2048, 1024)
    target = framework.from_numpy(np.random.default_rng(1).integers(0, 10, 2048))
    return model, lambda: nn.functional.cross_entropy(model(x), target)


def training_step(framework: Any, which: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A step of AdamW on a model, and what forgets the gradients of the last one."""
    framework.manual_seed(0)
    model, loss = {"gpt": gpt, "mlp": mlp}[which](framework)
    optimizer = framework.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return float(value.item())

    return step, optimizer.zero_grad
