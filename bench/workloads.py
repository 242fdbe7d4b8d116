"""The programs that are timed, written once for any framework of PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.measure import Work

Make = Callable[[Any], Work]


class Line(NamedTuple):
    """A program that multiplies: its name, what makes it, the arithmetic it does, its bar against PyTorch,
    whose quickest of `make` and `others` counts, and the dtype whose peak it is measured by.
    """

    name: str
    make: Make
    flops: float
    ratio: float
    others: tuple[Make, ...] = ()
    peak: str = "float32"


def normal(framework: Any, *shape: int, seed: int = 0, grad: bool = False) -> Any:
    """A float32 tensor of normal draws, the same in every framework."""
    x = framework.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
    return x.requires_grad_() if grad else x


def settle(compiled: Any, run: Callable[[], Any]) -> None:
    """Runs what may be compiled until its program is there."""
    if hasattr(compiled, "wait"):
        run(), run()
        compiled.wait()


def small(statement: str, grad: bool) -> Make:
    """One op on 4x4 operands `a` and `b`."""

    def make(framework: Any) -> Work:
        names = {"a": normal(framework, 4, 4, grad=grad), "b": normal(framework, 4, 4, seed=1, grad=grad)}
        return Work(statement, {**names, "tanh": framework.tanh}, statement)

    return make


def add(framework: Any) -> Work:
    """Two vectors of 4M elements."""
    return Work("a + b", {"a": normal(framework, 1 << 22), "b": normal(framework, 1 << 22, seed=1)}, "a + b")


def gelu(framework: Any) -> Work:
    """gelu(a + b) with tanh on 4M elements: one fused kernel by the user's own hand, or PyTorch's two ops."""
    names = {"a": normal(framework, 1 << 22), "b": normal(framework, 1 << 22, seed=1)}
    if not framework.is_kiln:
        f = framework.nn.functional.gelu
        return Work("f(a + b, approximate='tanh')", {**names, "f": f}, "f(a + b, approximate='tanh')")
    tanh = framework.tanh

    def gelu_of_sum(a: Any, b: Any) -> Any:
        x = a + b
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))

    return Work("f(a, b)", {**names, "f": framework.pointwise(gelu_of_sum)}, "f(a, b)")


def normalised(name: str, backward: bool) -> Make:
    """softmax or layer_norm of (4096, 1024), forward, or forward and backward."""

    def make(framework: Any) -> Work:
        x, g = normal(framework, 4096, 1024, grad=backward), normal(framework, 4096, 1024, seed=1)
        w, b = framework.ones(1024), framework.zeros(1024)
        if backward and name == "layer_norm":
            w.requires_grad_(), b.requires_grad_()
        softmax, layer_norm = framework.softmax, framework.nn.functional.layer_norm

        def forward() -> Any:
            return softmax(x, 1) if name == "softmax" else layer_norm(x, (1024,), w, b)

        def both() -> Any:
            x.grad = w.grad = b.grad = None
            forward().backward(g)
            return x.grad

        return Work("run()", {"run": both if backward else forward}, "run()")

    return make


def matmul(m: int, n: int, k: int) -> Make:
    """(m, k) @ (k, n) in float32."""

    def make(framework: Any) -> Work:
        names = {"a": normal(framework, m, k), "b": normal(framework, k, n, seed=1)}
        return Work("a @ b", names, "a @ b")

    return make


def mlp_step(framework: Any, recorded: bool = False) -> Callable[[], Any]:
    """A whole training step of a 128-256-10 MLP at batch 32 under Adam; the loss is returned unread."""
    nn = framework.nn
    framework.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = framework.optim.Adam(net.parameters(), lr=1e-3)
    x = normal(framework, 32, 128)
    target = framework.from_numpy(np.random.default_rng(1).integers(0, 10, 32))

    def step() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return framework.compile(step) if recorded else step  # type: ignore[no-any-return]


def mlp(recorded: bool) -> Make:
    """The MLP step; recorded in kiln only: its peer is PyTorch eager."""

    def make(framework: Any) -> Work:
        step: Any = mlp_step(framework, recorded and framework.is_kiln)
        if recorded and framework.is_kiln:
            step(), step()
            step.wait()
        return Work("step()", {"step": step})

    return make
