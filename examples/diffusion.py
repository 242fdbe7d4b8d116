"""Learn a distribution by taking noise away: diffusion on points of the plane.

    python examples/diffusion.py [--steps 3000] [--seed 1] [--folder .]

The points are two moons. A hundred times a little noise is added to them, until they are a normal cloud; a
small network learns which noise a point has in it (Ho, Jain and Abbeel, 2020,
https://arxiv.org/abs/2006.11239). Run backward from fresh noise it makes new moons: their energy distance to
true points is about 0.001, where the noise has 0.05. Writes diffusion.png: the cloud on its way to the moons.
"""

import argparse
import math
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import nn, optim

AT_MOST = 0.005  # the result: energy distance between made and true points
TIMES = 100  # how often noise is added
SHOWN = (100, 40, 20, 8, 0)  # times in the picture


def two_moons(count):
    """Points (count, 2) of two half circles with a little noise; mean 0, variance about 1."""
    angle = math.pi * kiln.rand(count)
    upper = kiln.rand(count) < 0.5
    x = kiln.where(upper, kiln.cos(angle), 1 - kiln.cos(angle))
    y = kiln.where(upper, kiln.sin(angle), 0.5 - kiln.sin(angle))
    points = kiln.stack([x, y], dim=1) + 0.05 * kiln.randn(count, 2)
    return (points - kiln.tensor([0.5, 0.25])) / kiln.tensor([0.87, 0.5])


class Denoiser(nn.Module):
    """Points (N, 2) and their times (N,) -> the noise in them (N, 2)."""

    def __init__(self, hidden=128, frequencies=4):
        super().__init__()
        self.register_buffer("frequencies", math.pi / TIMES * 2.0 ** kiln.arange(frequencies))
        self.net = nn.Sequential(
            nn.Linear(2 + 2 * frequencies, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 2),
        )

    def forward(self, x, t):
        phase = t[:, None] * self.frequencies
        return self.net(kiln.cat([x, phase.sin(), phase.cos()], dim=1))


class Diffusion:
    """The noise schedule: at time t a point is sqrt(kept[t]) of itself and sqrt(1 - kept[t]) of noise."""

    def __init__(self):
        self.beta = kiln.cat([kiln.zeros(1), kiln.linspace(1e-3, 0.1, TIMES)])  # of the step to each time
        self.kept = kiln.cumprod(1 - self.beta, dim=0)

    def loss(self, model, x):
        """How badly the model tells the noise in points at random times."""
        t = kiln.randint(1, TIMES + 1, (len(x),))
        noise = kiln.randn_like(x)
        kept = self.kept[t][:, None]
        return F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t), noise)

    @kiln.no_grad()
    def sample(self, model, count):
        """Points of noise, then the same points at each earlier time, the last at time 0."""
        x = kiln.randn(count, 2)
        way = [x]
        for t in range(TIMES, 0, -1):
            noise = model(x, kiln.full((count,), t))
            x = (x - self.beta[t] / (1 - self.kept[t]).sqrt() * noise) / (1 - self.beta[t]).sqrt()
            if t > 1:
                variance = self.beta[t] * (1 - self.kept[t - 1]) / (1 - self.kept[t])
                x = x + variance.sqrt() * kiln.randn_like(x)
            way.append(x)
        return way


def energy_distance(x, y):
    """2 E|x - y| - E|x - x'| - E|y - y'|: 0 for points of one distribution, else positive (Szekely, 2003)."""
    return (2 * kiln.cdist(x, y).mean() - kiln.cdist(x, x).mean() - kiln.cdist(y, y).mean()).item()


def draw(way, truth, path):
    """The points on their way from noise, and true ones."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    shown = [(f"{t} steps to go" if t else "made", way[TIMES - t], "tab:blue") for t in SHOWN]
    shown.append(("true points", truth, "tab:gray"))
    figure, axes = plt.subplots(1, len(shown), figsize=(11, 2.3), layout="constrained")
    for ax, (title, points, colour) in zip(axes, shown):
        ax.scatter(*points[:600].T.numpy(), s=3, alpha=0.7, color=colour, linewidths=0)
        ax.set_title(title, fontsize=11)
        ax.set(xlim=(-3, 3), ylim=(-3, 3), xticks=[], yticks=[], aspect="equal")
    figure.savefig(path, dpi=80)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description="Learn a distribution by taking noise away.")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the picture goes")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    kiln.manual_seed(args.seed)
    diffusion, model = Diffusion(), Denoiser()
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    mean = 0.0
    for step in range(1, args.steps + 1):
        loss = diffusion.loss(model, two_moons(512))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        mean += loss.item()
        if step % 500 == 0:
            print(f"step {step}: loss {mean / 500:.4f}")
            mean = 0.0

    way, truth = diffusion.sample(model, 2000), two_moons(2000)
    print(f"energy distance to true points: noise {energy_distance(way[0], truth):.4f}", end=", ")
    print(f"other true points {energy_distance(two_moons(2000), truth):.4f}")
    draw(way, truth, args.folder / "diffusion.png")
    print(f"result: distance {energy_distance(way[-1], truth):.4f}")


if __name__ == "__main__":
    main()
