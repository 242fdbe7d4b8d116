"""Training steps of networks whose sizes come together in many ways: each recorded as one program whose
losses and weights are, bit by bit, those of the same steps run op by op.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln


def odd(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """An encoder and decoder of odd sizes: what comes up is padded, or cut, to what went down."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
            self.deep = nn.Conv2d(4, 4, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
            self.out = nn.ConvTranspose2d(8, 2, 2, stride=2)

        def forward(self, x: Any) -> Any:
            a = f.relu(self.down(x))
            b = self.up(f.relu(self.deep(a)))
            b = b[:, :, : a.shape[2], : a.shape[3]]
            c = self.out(f.cat([a, b], 1))
            short = c[:, :, : x.shape[2] - 1, :-1]
            return nn.functional.pad(short, (0, x.shape[3] - short.shape[3], 1, 0)) - x

    return Odd(), (2, 2, 11, 13)


def dense(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """A block whose every layer reads all before it, and a transition."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, 2, 3, padding=1, bias=False))
                for n in (3, 5, 7)
            )
            self.transition = nn.Sequential(nn.BatchNorm2d(9), nn.Conv2d(9, 4, 1), nn.AvgPool2d(2))

        def forward(self, x: Any) -> Any:
            seen = [x]
            for layer in self.layers:
                seen.append(layer(f.cat(seen, 1)))
            return self.transition(f.cat(seen, 1))

    return Dense(), (2, 3, 8, 8)


def inception(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """Branches of several windows, joined."""

    class Inception(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(3, 2, 1)
            self.three = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1))
            self.wide = nn.Sequential(
                nn.Conv2d(3, 2, (1, 5), padding=(0, 2)), nn.Conv2d(2, 2, (5, 1), padding="same")
            )
            self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 2, 1))
            self.narrow = nn.Conv2d(9, 4, 3, stride=2)
            self.shrink = nn.MaxPool2d(3, 2)

        def forward(self, x: Any) -> Any:
            y = f.relu(f.cat([self.one(x), self.three(x), self.wide(x), self.pool(x)], 1))
            return f.cat([self.narrow(y), self.shrink(y)], 1)

    return Inception(), (2, 3, 9, 7)


def causal(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """Dilated convolutions in time that see the past alone: the padded end is cut off."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv1d(3, 3, 3, padding=2 * d, dilation=d) for d in (1, 2, 4))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + f.relu(layer(x)[:, :, : x.shape[2]])
            return x[:, :, :-1] - x[:, :, 1:]

    return Causal(), (2, 3, 19)


def super_resolution(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """Channels become pixels, beside what interpolation makes."""

    class Larger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.Conv2d(4, 9, 3, padding=1), nn.PixelShuffle(3)
            )

        def forward(self, x: Any) -> Any:
            return self.body(x) + nn.functional.interpolate(x, scale_factor=3, mode="bicubic")

    return Larger(), (2, 1, 5, 6)


def variational(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """A variational autoencoder: sizes go through flatten and unflatten, and noise is drawn."""

    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(
                nn.Conv2d(1, 3, 4, 2, 1), nn.ReLU(), nn.Conv2d(3, 4, 4, 2, 1), nn.ReLU(), nn.Flatten()
            )
            self.mean, self.log_variance = nn.Linear(48, 3), nn.Linear(48, 3)
            self.decode = nn.Sequential(
                nn.Linear(3, 48), nn.Unflatten(1, (4, 4, 3)), nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.ReLU(),
                nn.ConvTranspose2d(3, 1, 4, 2, 1), nn.Sigmoid(),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            y = self.encode(x)
            mean, log_variance = self.mean(y), self.log_variance(y)
            z = mean + f.randn_like(mean) * (log_variance / 2).exp()
            apart = (mean.square() + log_variance.exp() - 1 - log_variance).mean()
            return self.decode(z) - x + apart

    return Variational(), (2, 1, 16, 12)


def shuffled(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """Halves of the channels, one of them convolved alone per channel, shuffled; weighed by their means."""

    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Conv2d(4, 4, 3, padding=1, groups=4)
            self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Sigmoid())
            self.shuffle = nn.ChannelShuffle(2)

        def forward(self, x: Any) -> Any:
            a, b = x.chunk(2, 1)
            y = self.shuffle(f.cat([a, self.each(b)], 1))
            return y * self.weigh(y)

    return Shuffled(), (2, 8, 6, 5)


def pyramid(nn: Any, f: Any) -> tuple[Any, tuple[int, ...]]:
    """Pools of several sizes brought to one, and a stack of windows written out."""

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.side = nn.Conv2d(2, 2, 1)
            self.last = nn.Conv2d(6, 2, 3, dilation=2, padding=2, padding_mode="circular")

        def forward(self, x: Any) -> Any:
            resize = nn.functional.interpolate
            parts = [x]
            for size in (1, 2):
                y = nn.functional.adaptive_avg_pool2d(x, size)
                parts.append(resize(self.side(y), x.shape[2:], mode="bilinear"))
            y = self.last(f.cat(parts, 1))
            columns = nn.functional.unfold(y, 3, stride=2)
            return nn.functional.fold(columns, y.shape[2:], 3, stride=2)

    return Pyramid(), (2, 2, 7, 9)


MODELS = [odd, causal, super_resolution, variational]
if os.environ.get("KILN_TEST_FULL"):
    MODELS += [dense, inception, shuffled, pyramid]


def train(build: Any, recorded: bool) -> tuple[list[bytes], Any]:
    """Losses and weights of three steps, and the compiled step."""
    kiln.manual_seed(0)
    net, shape = build(kiln.nn, kiln)
    optimizer = kiln.optim.Adam(net.parameters(), lr=0.01)
    data = kiln.tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32))

    def step() -> Any:
        optimizer.zero_grad()
        loss = net(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = kiln.compile(step, wait=True) if recorded else step
    found = [run() for _ in range(3)]
    return [x.detach().numpy().tobytes() for x in (*found, *net.state_dict().values())], run


@pytest.mark.parametrize("build", MODELS)
def test_a_step_is_one_program_with_the_bits_of_its_ops(build: Any) -> None:
    got, run = train(build, True)
    assert got == train(build, False)[0]
    stats = run.stats()
    assert (stats["programs"], stats["runs"]) == (1, 3), run.explain()


def test_two_networks_against_each_other() -> None:
    """A step of a discriminator and one of its generator, in one program."""

    def play(recorded: bool) -> tuple[list[bytes], Any]:
        kiln.manual_seed(0)
        nn = kiln.nn
        forge = nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
            nn.ConvTranspose2d(4, 1, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        judge = nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 3), nn.Flatten())
        first, second = (kiln.optim.SGD(n.parameters(), lr=0.05) for n in (judge, forge))
        real = kiln.tensor(np.random.default_rng(1).standard_normal((3, 1, 6, 6)).astype(np.float32))
        right, wrong = kiln.ones(3, 1), kiln.zeros(3, 1)
        loss = nn.functional.binary_cross_entropy_with_logits

        def step() -> Any:
            made = forge(kiln.randn(3, 3, 1, 1))
            first.zero_grad()
            apart = loss(judge(real), right) + loss(judge(made.detach()), wrong)
            apart.backward()
            first.step()
            second.zero_grad()
            fooled = loss(judge(made), right)
            fooled.backward()
            second.step()
            return apart, fooled

        run = kiln.compile(step, wait=True) if recorded else step
        found = [y for _ in range(3) for y in run()]
        held = [*forge.state_dict().values(), *judge.state_dict().values()]
        return [x.detach().numpy().tobytes() for x in (*found, *held)], run

    got, run = play(True)
    assert got == play(False)[0]
    assert (run.stats()["programs"], run.stats()["runs"]) == (1, 3), run.explain()
