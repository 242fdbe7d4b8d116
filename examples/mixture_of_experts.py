"""Learn a patchwork of waves with a mixture of experts.

    python examples/mixture_of_experts.py [--seed 0] [--steps 3000] [--folder .]

The plane is cut into six fields, and in each a wave runs in a direction of its own. A router sends every
point to the two of eight small networks it trusts most for that place (Shazeer et al., 2017), and a loss
keeps the work even (Fedus, Zoph and Shazeer, 2022). No expert is told which field is whose: they divide the
plane among themselves. A single network that does as much work per point leaves an error several times that
of the mixture, whose mean squared error falls under 0.025 (the waves' own mean square is 0.5). Writes
mixture_of_experts.png: the waves, both answers, and which expert takes which place.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn

AT_MOST = 0.025  # mean squared error of the mixture on new points
EXPERTS, CHOSEN, WIDTH, BALANCE = 8, 2, 32, 0.01  # BALANCE weighs the loss of balance

CENTRES = kiln.tensor([[-0.7, 0.6], [0.1, 0.7], [0.8, 0.4], [-0.5, -0.4], [0.3, -0.1], [0.6, -0.8]])
WAVES = kiln.tensor([[7.0, 0.0], [0.0, 7.0], [5.5, 5.5], [5.5, -5.5], [-2.5, 7.0], [8.0, 3.0]])


def target(points: Tensor) -> Tensor:
    """(N, 2) points of the square from -1 to 1 -> (N, 1) heights: the wave of the nearest centre."""
    nearest = kiln.cdist(points, CENTRES).argmin(1)
    return (points * WAVES[nearest]).sum(1, keepdim=True).sin()


def network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    first, second, last = nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)
    return nn.Sequential(first, nn.SiLU(), second, nn.SiLU(), last)


class MixtureOfExperts(nn.Module):
    """(N, 2) points -> (N, 1) heights, the loss of balance, and each point's experts (N, CHOSEN)."""

    def __init__(self) -> None:
        super().__init__()
        self.router = network(2, WIDTH, EXPERTS)
        self.experts = nn.ModuleList(network(2, WIDTH, 1) for _ in range(EXPERTS))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities = self.router(points).softmax(1)  # (N, EXPERTS)
        trust, chosen = probabilities.topk(CHOSEN, dim=1)
        trust = trust / trust.sum(1, keepdim=True)
        out = kiln.zeros(len(points), 1)
        shares = []
        for number, expert in enumerate(self.experts):
            rows, place = kiln.where(chosen == number)  # the points that chose this expert
            shares.append(len(rows) / chosen.numel())
            if len(rows):
                answer = expert(points.index_select(0, rows)) * trust[rows, place].unsqueeze(1)
                out = out.index_add(0, rows, answer)
        # 1 where all experts have even work, more where few have all: share of points times mean trust
        balance = EXPERTS * (kiln.tensor(shares) * probabilities.mean(0)).sum()
        return out, balance, chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    kiln.manual_seed(options.seed)

    mixture = MixtureOfExperts()
    single = network(2, 56, 1)  # as many multiplications per point as the router and two experts
    parameters = [*mixture.parameters(), *single.parameters()]
    optimizer = kiln.optim.Adam(parameters, lr=1e-2)
    schedule = kiln.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(1, options.steps + 1):
        points = 2 * kiln.rand(1024, 2) - 1
        heights = target(points)
        answer, balance, _ = mixture(points)
        error = F.mse_loss(answer, heights)
        alone = F.mse_loss(single(points), heights)
        optimizer.zero_grad()
        (error + BALANCE * balance + alone).backward()  # two learners that share nothing but the step
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            errors = f"mixture {error.item():.4f}  one network {alone.item():.4f}"
            print(f"step {step:5}  {errors}  balance {balance.item():.2f}")

    points = 2 * kiln.rand(20_000, 2) - 1
    with kiln.no_grad():
        answer, _, chosen = mixture(points)
        error = F.mse_loss(answer, target(points)).item()
        alone = F.mse_loss(single(points), target(points)).item()
    work = kiln.bincount(chosen.flatten(), minlength=EXPERTS) / chosen.numel()
    print("share of the work per expert:", " ".join(f"{share:.2f}" for share in work.tolist()))
    print(f"mean squared error on new points: mixture {error:.4f}, one network {alone:.4f}")
    picture(mixture, single, options.folder / "mixture_of_experts.png")
    print(f"result: error {error:.4f}")


@kiln.no_grad()
def picture(mixture: MixtureOfExperts, single: nn.Module, path: Path, size: int = 160) -> None:
    """The waves, what both make of them, and every place's first expert."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    line = kiln.linspace(-1, 1, size)
    y, x = kiln.meshgrid(line, line, indexing="ij")
    points = kiln.stack([x.flatten(), y.flatten()], dim=1)
    answer, _, chosen = mixture(points)
    panels = {"the waves": target(points), "one network": single(points), "the mixture": answer}
    figure, axes = pyplot.subplots(1, 4, figsize=(11, 3.1), layout="constrained")
    box = {"origin": "lower", "extent": (-1, 1, -1, 1)}
    for axis, (title, heights) in zip(axes, panels.items()):
        axis.imshow(heights.reshape(size, size).tolist(), cmap="Greys", vmin=-1, vmax=1, **box)
        axis.set(title=title, xticks=(), yticks=())
    experts = chosen[:, 0].reshape(size, size).tolist()
    axes[3].imshow(experts, cmap="Set2", vmin=0, vmax=EXPERTS - 1, interpolation="nearest", **box)
    axes[3].set(title="which expert takes it", xticks=(), yticks=())
    figure.savefig(path, dpi=68)
    pyplot.close(figure)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
