"""Whole networks of windows beside PyTorch's, step by step from the same weights in float64: a LeNet,
a residual network with batch normalisation, a U-Net; run op by op, and recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend import filled, kiln, needs_kiln, torch

pytestmark = needs_kiln


def lenet(f: Any) -> Any:
    nn = f.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 9, 10),
    )  # fmt: skip


def block(f: Any, inputs: int, outputs: int, stride: int) -> Any:
    """A residual block: two convolutions, and a shortcut of one."""
    nn = f.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.norm = nn.BatchNorm2d(outputs)
            self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.last = nn.BatchNorm2d(outputs)
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

        def forward(self, x: Any) -> Any:
            y = self.last(self.second(f.relu(self.norm(self.first(x)))))
            return f.relu(y + self.short(x))

    return Block()


def residual(f: Any) -> Any:
    nn = f.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        block(f, 4, 4, 1), block(f, 4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10),
    )  # fmt: skip


def u_net(f: Any) -> Any:
    nn = f.nn

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(1, 3, 3, padding=1)
            self.deep = nn.Conv2d(3, 6, 3, padding=1)
            self.deepest = nn.Conv2d(6, 6, 3, padding=1, groups=2)
            self.up = nn.ConvTranspose2d(6, 6, 2, stride=2)
            self.join = nn.Conv2d(12, 3, 3, padding=1, padding_mode="reflect")
            self.resize = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.last = nn.Conv2d(6, 1, 1)
            self.head = nn.Linear(20 * 20, 10)

        def forward(self, x: Any) -> Any:
            pool = nn.functional.max_pool2d
            a = f.relu(self.down(x))
            b = f.relu(self.deep(pool(a, 2)))
            c = f.relu(self.deepest(pool(b, 2)))
            d = f.relu(self.join(f.cat([self.up(c), b], 1)))
            return self.head(self.last(f.cat([self.resize(d), a], 1)).flatten(1))

    return UNet()


def data(size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((4, 1, size, size)), rng.integers(0, 10, 4)


def steps(f: Any, build: Any, images: Any, labels: Any, parts: Any, recorded: bool) -> Any:
    """Losses of four steps, what the network holds afterwards, what it then makes of the images."""
    net = filled(f, build(f).double(), scale=0.1)
    optimizer = f.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, target = f.from_numpy(images), f.from_numpy(labels)

    def step() -> Any:
        optimizer.zero_grad()
        loss = f.nn.functional.cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        return loss

    run = f.compile(step) if recorded else step
    losses = np.array([run().item() for _ in range(4)])
    held = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    return losses, held, net.eval()(x).detach().numpy()


@pytest.mark.parametrize("build", [lenet, residual, u_net])
def test_training_is_as_in_pytorch(build: Any, answers: Any) -> None:
    """Op by op and recorded."""
    given = (build, *data(20), block)
    losses, held, y = answers([steps, *given], lambda: steps(torch, *given, False))
    for recorded in (False, True):
        ours, own, got = steps(kiln, *given, recorded)
        assert ours.tolist() == pytest.approx(losses.tolist(), rel=1e-10)
        assert list(own) == list(held)
        for name, value in own.items():
            np.testing.assert_allclose(value, held[name], rtol=1e-9, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(got, y, rtol=1e-9, atol=1e-10)
