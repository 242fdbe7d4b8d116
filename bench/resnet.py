"""ResNet-18 of 224 x 224 images, built from a framework's own layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.measure import Work
from bench.workloads import Line, Make, normal, settle

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels, stride of the first block; two blocks each
BATCH, SIZE = 8, 224
# operations of a batch: of the stem's convolution, which has no gradient of its input, and of all products
STEM = 2.0 * BATCH * 64 * 112**2 * 3 * 49
FORWARD = STEM + 2.0 * BATCH * (
    4 * 64**2 * 9 * 56**2
    + sum(c * (c // 2 * 10 + 3 * c * 9) * (28 * 128 // c) ** 2 for c in (128, 256, 512))
    + 512 * 1000
)


def resnet18(framework: Any, classes: int = 1000) -> Any:
    """The network of He et al. with 18 layers, its parts named as torchvision names them."""
    nn = framework.nn

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        """Two convolutions beside a shortcut."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

        def forward(self, x: Any) -> Any:
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            y += x if self.downsample is None else self.downsample(x)
            return self.relu(y)

    framework.manual_seed(0)
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers, inputs = [*stem, nn.MaxPool2d(3, 2, 1)], 64
    for outputs, stride in STAGES:
        layers.append(nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1)))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def _alike(framework: Any, model: Any) -> Any:
    """The model with weights that are the same in every framework."""
    rng = np.random.default_rng(5)
    with framework.no_grad():
        for weight in model.parameters():
            scale = (2.0 / max(1, weight.numel() // weight.shape[0])) ** 0.5
            if weight.ndim > 1:
                values = rng.normal(scale=scale, size=tuple(weight.shape)).astype(np.float32)
                weight.copy_(framework.from_numpy(values))
        model[-1].bias.zero_()
    return model


def _made(framework: Any, form: str) -> tuple[Any, Any]:
    """The model and 8 images, as they lie in memory in a format."""
    layout = getattr(framework, form)
    model, x = _alike(framework, resnet18(framework)), normal(framework, BATCH, 3, SIZE, SIZE)
    return model.to(memory_format=layout), x.to(memory_format=layout)


def forward(form: str = "contiguous_format", compiled: bool = False) -> Make:
    """The answer for 8 images, with statistics kept from training; `compiled` by kiln.compile (in kiln)."""

    def make(framework: Any) -> Work:
        model, x = _made(framework, form)
        model.eval()
        call = framework.compile(model) if compiled and framework.is_kiln else model

        def run() -> Any:
            with framework.no_grad():
                return call(x)

        settle(call, run)
        return Work("run()", {"run": run}, "run()")

    return make


def step(form: str = "contiguous_format", compiled: bool = False) -> Make:
    """A training step on 8 images: SGD with momentum."""

    def make(framework: Any) -> Work:
        model, x = _made(framework, form)
        optimizer = framework.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        target = framework.from_numpy(np.random.default_rng(3).integers(0, 1000, BATCH))

        def run() -> Any:
            optimizer.zero_grad()
            loss = framework.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            return loss

        call = framework.compile(run) if compiled and framework.is_kiln else run
        settle(call, call)
        return Work("run()", {"run": call}, "run().isfinite()")

    return make


def lines() -> list[Line]:
    """Forward and the training step, eager and compiled, beside PyTorch's better layout."""
    return [
        Line(
            f"ResNet-18 {name}{', compiled' if compiled else ''}",
            make(compiled=compiled),
            flops,
            1.0,
            others=(make("channels_last"),),
        )
        for name, make, flops in (("forward", forward, FORWARD), ("step", step, 3 * FORWARD - STEM))
        for compiled in (False, True)
    ]
