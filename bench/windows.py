"""The lines of windows: the layers of a residual network at batch 8, forward and with both gradients, and the
training step of the classic network for handwritten digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bench.measure import Work
from bench.workloads import Line, Make, normal


class Layer(NamedTuple):
    """A convolution: input channels and sizes, output channels, kernel, stride, padding."""

    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 1

    @property
    def flops(self) -> float:
        """Of a forward pass over 8 images."""
        out = (self.size + 2 * self.padding - self.kernel) // self.stride + 1
        return 2.0 * 8 * self.outputs * out * out * self.channels * self.kernel**2

    def title(self) -> str:
        """Kernel, stride, channels and size."""
        by = f"/{self.stride}" if self.stride > 1 else ""
        return f"conv {self.kernel}x{self.kernel}{by} {self.channels}-{self.outputs} at {self.size}"


LAYERS = (
    Layer(3, 224, 64, 7, 2, 3),
    Layer(64, 56, 64, 3),
    Layer(128, 28, 128, 3),
    Layer(128, 28, 256, 3, 2),
    Layer(256, 14, 256, 3),
    Layer(512, 7, 512, 3),
)


def convolution(layer: Layer, grad: bool) -> Make:
    """One layer on 8 images; with both gradients."""

    def make(framework: Any) -> Work:
        x = normal(framework, 8, layer.channels, layer.size, layer.size, grad=grad)
        w = normal(framework, layer.outputs, layer.channels, layer.kernel, layer.kernel, seed=1, grad=grad)
        f = framework.nn.functional.conv2d
        g = None

        def run() -> Any:
            nonlocal g
            if not grad:
                return f(x, w, None, layer.stride, layer.padding)
            x.grad = w.grad = None
            y = f(x, w, None, layer.stride, layer.padding)
            g = normal(framework, *y.shape, seed=2) if g is None else g
            y.backward(g)
            return w.grad

        return Work("run()", {"run": run}, "run().square().mean((-1, -2))")  # single sums may cancel

    return make


def backward(call: str, *shape: int) -> Make:
    """The gradient of a call on x of a shape: the sums that it adds, through a graph that is kept."""

    def make(framework: Any) -> Work:
        x = normal(framework, *shape, grad=True)
        y = eval(call, {"x": x, "f": framework.nn.functional})
        g = normal(framework, *y.shape, seed=1)

        def run() -> Any:
            return framework.autograd.grad(y, x, g, retain_graph=True)[0]

        return Work("run()", {"run": run}, "run()")

    return make


GRADIENTS = (
    ("max_pool 2/2, b", "f.max_pool2d(x, 2)", (64, 64, 24, 24)),
    ("max_pool 2/2, b, 56", "f.max_pool2d(x, 2)", (32, 64, 56, 56)),
    ("max_pool 3/2, b, 24", "f.max_pool2d(x, 3, 2, 1)", (64, 64, 24, 24)),
    ("max_pool 3/2, b", "f.max_pool2d(x, 3, 2, 1)", (32, 64, 56, 56)),
    ("max_pool 3/1, b, 24", "f.max_pool2d(x, 3, 1, 1)", (64, 64, 24, 24)),
    ("avg_pool 3/2, b, 24", "f.avg_pool2d(x, 3, 2, 1)", (64, 64, 24, 24)),
    ("nearest x2, b", "f.interpolate(x, scale_factor=2)", (16, 64, 28, 28)),
)


def digits(framework: Any) -> Work:
    """conv 32, conv 64, pool, 128, 10 on 64 images of 28 x 28: a step of SGD."""
    nn = framework.nn
    framework.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = framework.optim.SGD(model.parameters(), lr=0.01)
    x = normal(framework, 64, 1, 28, 28)
    target = framework.from_numpy(np.random.default_rng(3).integers(0, 10, 64))

    def run() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return Work("run()", {"run": run}, "run().isfinite()")


# its forward pass; twice that for the gradients, but for the first layer's input
DIGITS = 2.0 * 64 * (26**2 * 32 * 9 * 2 / 3 + 24**2 * 64 * 32 * 9 + 9216 * 128 + 128 * 10) * 3


def lines() -> list[Line]:
    """Layers, forward and with gradients; the network."""
    found = [Line(layer.title(), convolution(layer, False), layer.flops, 1.0) for layer in LAYERS]
    found += [
        Line(f"{layer.title()}, f+b", convolution(layer, True), 3 * layer.flops, 1.0) for layer in LAYERS
    ]
    found += [Line(name, backward(call, *shape), 0.0, 1.0) for name, call, shape in GRADIENTS]
    return [*found, Line("digits net, step", digits, DIGITS, 1.3)]
