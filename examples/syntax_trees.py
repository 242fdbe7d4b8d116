"""Tell Python functions as people wrote them from scrambled ones: a TreeLSTM over syntax trees.

    python examples/syntax_trees.py [--seed 0] [--epochs 6] [--folder .] [--batching]

The functions are those of Python's own standard library. Each has a twin in which a few pairs of
expressions have changed places: still a syntax tree of Python, but not one that anybody would write.
The network of Tai, Socher and Manning (2015) reads a tree from its leaves to its root, by plain
recursion: the graph of every tree is another. It is tested on modules that it has not seen, beside a
network that sees the same nodes without their tree (a bag of nodes). Names and values are hidden from
both. The TreeLSTM is right about 84 % of the functions, the bag about three quarters. Writes
syntax_trees.png: both, epoch by epoch, on held-out modules.

`--batching`, which is kiln's own, trains the TreeLSTM once more, from the same start, with one line around
the recursion: what is alike in the ten trees of a step runs together. Prints the times of both.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import random
import sysconfig
import time
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn

AT_LEAST = 0.78  # the share of held-out functions that are judged rightly
TRAINING, HELD_OUT, SMALLEST, LARGEST, EXCHANGES, WIDTH = 500, 200, 15, 45, 3, 32


class Tree:
    """A node of a syntax tree: its label is its kind and the part it plays in its parent."""

    def __init__(self, node: ast.AST, role: str) -> None:
        self.kind, self.role, self.is_expression = type(node).__name__, role, isinstance(node, ast.expr)
        if isinstance(node, ast.Constant):
            self.kind = type(node.value).__name__
        self.children = []
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                    self.children.append(Tree(child, field))

    def nodes(self) -> list[Tree]:
        """This node and all below it, children first."""
        return [*(node for child in self.children for node in child.nodes()), self]


def scrambled(tree: Tree, rng: random.Random) -> Tree | None:
    """A twin in which pairs of expressions of different kinds, none inside the other, have changed places."""
    twin = copy.deepcopy(tree)
    for _ in range(EXCHANGES):
        expressions = [node for node in twin.nodes() if node.is_expression]
        pairs = [(a, b) for a in expressions for b in expressions if a.kind < b.kind]
        apart = [(a, b) for a, b in pairs if a not in b.nodes() and b not in a.nodes()]
        if not apart:
            return None
        a, b = rng.choice(apart)
        a.kind, b.kind, a.children, b.children = b.kind, a.kind, b.children, a.children
    return twin


def read_functions(rng: random.Random) -> tuple[list[tuple[Tree, float]], list[tuple[Tree, float]]]:
    """Functions (1) and their twins (0): those to learn from, and of other modules those to be tested on."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    rng.shuffle(files)
    sets: tuple[list[tuple[Tree, float]], ...] = ([], [])
    for path in files:
        chosen, size = (sets[0], TRAINING) if len(sets[0]) < 2 * TRAINING else (sets[1], HELD_OUT)
        found = []
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and SMALLEST <= len(list(ast.walk(node))) <= 2 * LARGEST:
                if ast.get_docstring(node):
                    del node.body[0]
                tree = Tree(node, "")
                if SMALLEST <= len(tree.nodes()) <= LARGEST:
                    found.append(tree)
        for tree in rng.sample(found, min(20, len(found))):  # no module has more than its share
            twin = scrambled(tree, rng)
            if twin and len(chosen) < 2 * size:
                chosen += [(tree, 1.0), (twin, 0.0)]
    return sets


def labels(tree: Tree, vocabulary: dict[str, int]) -> Tensor:
    """(nodes, 2) the numbers of every node's kind and role, children first; 0 for what is unknown."""
    return kiln.tensor(
        [[vocabulary.get(word, 0) for word in (node.kind, node.role)] for node in tree.nodes()]
    )


class TreeLSTM(nn.Module):
    """Child-sum TreeLSTM: a tree and the labels of its nodes -> () how likely a person wrote it, a logit."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(count, WIDTH)
        self.input = nn.Linear(WIDTH, 4 * WIDTH)
        self.gates = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.forget = nn.Linear(WIDTH, WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, 1)

    def forward(self, tree: Tree, labels: Tensor) -> Tensor:
        inputs = self.input(self.embedding(labels).sum(1)).split([3 * WIDTH, WIDTH], dim=1)
        rows = iter(zip(*(part.unbind() for part in inputs)))
        seen: list[Tensor] = []
        self.node(tree, rows, seen)
        return self.output(kiln.stack(seen).amax(0)).squeeze()  # one odd place is enough

    def node(self, tree: Tree, rows, seen: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The hidden state and the cell (WIDTH,) of a node; `seen` gets the states of all nodes below too."""
        below = [self.node(child, rows, seen) for child in tree.children]
        gates, forget = next(rows)
        if below:
            hidden = kiln.stack([h for h, _ in below])  # (children, WIDTH)
            gates = gates + self.gates(hidden.sum(0))
        keep, out, new = gates.chunk(3)
        cell = keep.sigmoid() * new.tanh()
        if below:  # a gate for every child
            cells = kiln.stack([c for _, c in below])
            cell = cell + ((forget + self.forget(hidden)).sigmoid() * cells).sum(0)
        seen.append(out.sigmoid() * cell.tanh())
        return seen[-1], cell


class Bag(nn.Module):
    """The same without the tree: every node is looked at alone, and the oddest decides."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(count, WIDTH)
        self.node = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU())
        self.output = nn.Linear(2 * WIDTH, 1)

    def forward(self, tree: Tree, labels: Tensor) -> Tensor:
        return self.output(self.node(self.embedding(labels).sum(1)).amax(0)).squeeze()


def train(
    name: str,
    model: nn.Module,
    training: list,
    held_out: list,
    epochs: int,
    rng,
    block=contextlib.nullcontext,
) -> list[float]:
    """The share of held-out functions judged rightly after every epoch. `block`: what calls are made in."""
    optimizer = kiln.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    batch, shares = 10, []
    steps = epochs * len(training) // batch
    schedule = kiln.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(1, epochs + 1):
        total = 0.0
        rng.shuffle(training)
        for start in range(0, len(training), batch):
            part = training[start : start + batch]
            with block():
                logits = kiln.stack([model(tree, seen) for tree, seen, _ in part])
                loss = F.binary_cross_entropy_with_logits(logits, kiln.tensor([human for *_, human in part]))
                optimizer.zero_grad()
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(part)
        with kiln.no_grad(), block():
            logits = [model(tree, seen) for tree, seen, _ in held_out]
            right = [(x.item() > 0) == bool(human) for x, (*_, human) in zip(logits, held_out)]
        shares.append(sum(right) / len(right))
        print(f"{name:9} epoch {epoch:2}  loss {total / len(training):.3f}  held-out {shares[-1]:.3f}")
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--batching", action="store_true", help="kiln's own: train both ways")
    options = parser.parse_args()
    kiln.manual_seed(options.seed)
    rng = random.Random(options.seed)

    training, held_out = read_functions(rng)
    words = {word for tree, _ in training for node in tree.nodes() for word in (node.kind, node.role)}
    vocabulary = {word: i for i, word in enumerate(sorted(words), 1)}
    training, held_out = (
        [(tree, labels(tree, vocabulary), human) for tree, human in part] for part in (training, held_out)
    )
    nodes = sum(len(numbers) for _, numbers, _ in training)
    print(f"{len(training)} trees of {nodes} nodes, {len(words)} labels; {len(held_out)} trees held out")

    shares = {}
    bag, network = Bag(len(words) + 1), TreeLSTM(len(words) + 1)
    shares["bag"] = train("bag", bag, training, held_out, options.epochs, rng)
    again = copy.deepcopy((network, training, rng))  # the same start
    started = time.perf_counter()
    shares["TreeLSTM"] = train("TreeLSTM", network, training, held_out, options.epochs, rng)
    seconds = time.perf_counter() - started
    if options.batching:
        network, training, rng = again
        started = time.perf_counter()
        batched = train("batched", network, training, held_out, options.epochs, rng, kiln.batching)
        together = time.perf_counter() - started
        print(f"one tree after another {seconds:.1f} s, batched {together:.1f} s; held-out {batched[-1]:.3f}")
    picture(shares, options.folder / "syntax_trees.png")
    last = ", ".join(f"{name} {values[-1]:.3f}" for name, values in shares.items())
    print(f"held-out functions judged rightly: {last}")
    print(f"result: accuracy {shares['TreeLSTM'][-1]:.4f}")


def picture(shares: dict[str, list[float]], path: Path) -> None:
    """The share of held-out functions judged rightly, epoch by epoch."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for (name, values), colour in zip(shares.items(), ("0.6", "tab:blue")):
        axes.plot(range(1, len(values) + 1), values, "o-", color=colour, label=name)
    axes.axhline(0.5, color="0.8", linestyle="--", label="guessing")
    axes.set(title="Written by a person, or scrambled?", xlabel="epoch", ylabel="right on held-out functions")
    axes.set(ylim=(0.45, 1.0), xticks=range(1, len(values) + 1))
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
