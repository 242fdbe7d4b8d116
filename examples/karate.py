"""Tell how a karate club will split from who meets whom: a graph convolution network.

    python examples/karate.py [--seed 0] [--steps 200] [--folder .]

Zachary (1977) watched a karate club of 34 members fall apart over a quarrel between its teacher (member 0)
and its president (member 33). The network of Kipf and Welling (2017) sees the 78 friendships and the side
of those two members alone, and tells the side of the other 32: at least 31 of them rightly. Writes
karate.png: the club, coloured by the answer, and how the members part in the hidden layer as it learns.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn

AT_LEAST = 0.96  # the share of the 32 unlabelled members whose side is predicted rightly

# W. W. Zachary, "An information flow model for conflict and fission in small groups": for every member, the
# friends with a higher number.
FRIENDS = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32),
    3: (7, 12, 13),
    4: (6, 10),
    5: (6, 10, 16),
    6: (16,),
    8: (30, 32, 33),
    9: (33,),
    13: (33,),
    14: (32, 33),
    15: (32, 33),
    18: (32, 33),
    19: (33,),
    20: (32, 33),
    22: (32, 33),
    23: (25, 27, 29, 32, 33),
    24: (25, 27, 31),
    25: (31,),
    26: (29, 33),
    27: (33,),
    28: (31, 33),
    29: (32, 33),
    30: (32, 33),
    31: (32, 33),
    32: (33,),
}
TEACHERS_SIDE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21)  # the others went with 33
MEMBERS, TEACHER, PRESIDENT = 34, 0, 33


def normalised_adjacency() -> Tensor:
    """(34, 34) D^-1/2 (A + I) D^-1/2: every member's friends and itself, weighted by degrees."""
    pairs = [(a, b) for a, friends in FRIENDS.items() for b in friends]
    both_ways = pairs + [(b, a) for a, b in pairs] + [(i, i) for i in range(MEMBERS)]
    rows, columns = kiln.tensor(both_ways).T
    degree = kiln.bincount(rows, minlength=MEMBERS).float()
    weights = (degree[rows] * degree[columns]).rsqrt()
    return kiln.zeros(MEMBERS, MEMBERS).index_put((rows, columns), weights)


class GraphConvolution(nn.Module):
    """(nodes, inputs) -> (nodes, outputs): every node's features mixed linearly, then over its neighbours."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(kiln.empty(inputs, outputs))
        self.bias = nn.Parameter(kiln.zeros(outputs))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ (features @ self.weight) + self.bias


class Network(nn.Module):
    """Three graph convolutions; the second has two features, so that they can be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GraphConvolution(MEMBERS, 16)
        self.second = GraphConvolution(16, 2)
        self.last = GraphConvolution(2, 2)

    def forward(self, features: Tensor, adjacency: Tensor) -> tuple[Tensor, Tensor]:
        hidden = kiln.tanh(self.first(features, adjacency))
        hidden = kiln.tanh(self.second(hidden, adjacency))
        return self.last(hidden, adjacency), hidden


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    kiln.manual_seed(options.seed)

    adjacency = normalised_adjacency()
    features = kiln.eye(MEMBERS)  # nothing is known of a member but who it is
    sides = kiln.ones(MEMBERS, dtype=kiln.int64)
    sides[list(TEACHERS_SIDE)] = 0
    known = kiln.tensor([TEACHER, PRESIDENT])
    unknown = kiln.tensor([i for i in range(MEMBERS) if i not in (TEACHER, PRESIDENT)])

    model = Network()
    optimizer = kiln.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    moments = []  # the hidden layer as it learns
    for step in range(options.steps + 1):
        scores, hidden = model(features, adjacency)
        loss = F.cross_entropy(scores[known], sides[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, 5, 10, 20, options.steps):
            right = (scores.argmax(1) == sides)[unknown].float().mean().item()
            print(f"step {step:4}  loss {loss.item():.4f}  right about the other 32: {right:.3f}")
            moments.append((step, hidden.detach()))

    wrong = [i for i in unknown.tolist() if scores[i].argmax() != sides[i]]
    print(f"wrong about members {wrong}" if wrong else "right about every member")
    picture(scores.detach(), moments, wrong, options.folder / "karate.png")
    print(f"result: accuracy {right:.4f}")


def layout(steps: int = 500) -> Tensor:
    """(34, 2) places for a drawing: friends pull at each other, all push each other away."""
    pairs = kiln.tensor([(a, b) for a, friends in FRIENDS.items() for b in friends])
    places = nn.Parameter(kiln.randn(MEMBERS, 2, generator=kiln.Generator().manual_seed(1)))
    optimizer = kiln.optim.Adam([places], lr=0.05)
    for _ in range(steps):
        pull = (places[pairs[:, 0]] - places[pairs[:, 1]]).square().sum()
        push = 1 / (kiln.pdist(places) + 0.1)
        optimizer.zero_grad()
        (pull + 1.0 * push.sum()).backward()
        optimizer.step()
    return places.detach()


def picture(scores: Tensor, moments: list[tuple[int, Tensor]], wrong: list[int], path: Path) -> None:
    """The club with the predicted sides, and below it the hidden layer at five moments."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    answers = scores.argmax(1).tolist()
    colours = ["tab:blue" if side == 0 else "tab:orange" for side in answers]
    figure = pyplot.figure(figsize=(8, 7.5), layout="constrained")
    grid = figure.add_gridspec(2, len(moments), height_ratios=(3, 1))
    club = figure.add_subplot(grid[0, :])
    places = layout().tolist()
    for a, friends in FRIENDS.items():
        for b in friends:
            club.plot(*zip(places[a], places[b]), color="0.8", linewidth=0.8, zorder=1)
    for i, (x, y) in enumerate(places):
        edge = "red" if i in wrong else "black" if i in (TEACHER, PRESIDENT) else "white"
        club.scatter(x, y, s=260, color=colours[i], edgecolor=edge, linewidth=2, zorder=2)
        club.text(x, y, str(i), color="white", ha="center", va="center", fontsize=9, zorder=3)
    club.set_title("Sides predicted from two members (black rings); wrong in red rings")
    club.axis("off")
    for column, (step, hidden) in enumerate(moments):
        axes = figure.add_subplot(grid[1, column])
        axes.scatter(*hidden.T.tolist(), c=colours, s=14)
        axes.set(title=f"hidden, step {step}", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=(), yticks=())
        axes.set_aspect("equal")
    figure.savefig(path, dpi=68)
    pyplot.close(figure)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
