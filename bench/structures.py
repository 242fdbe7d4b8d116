"""Programs whose structure depends on data, written as their users write them, for any framework of PyTorch's
names.

A program is a function of a framework that answers with a step (which returns a number: its loss, or what
else shows that it did the right thing) and with how many units of work a step does. What only kiln has (pure
cells, batching, `map`) is asked for by name; `missing` says what this kiln has not.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Program(NamedTuple):
    """A step, and the units of work that it does (trees, characters, environments' steps)."""

    step: Callable[[], float]
    units: int


def missing(framework: Any, *names: str) -> str:
    """Which of "pure", "batching" and "map" the framework has not, as words; empty where all are there."""
    batching = getattr(framework, "batching", None) if framework.is_kiln else None
    there = {
        "pure": framework.is_kiln and "pure" in inspect.signature(framework.compile).parameters,
        "batching": callable(batching),
        "map": hasattr(batching, "map"),
    }
    lacking = [name for name in names if not there[name]]
    return f"no {' and no '.join(lacking)} here" if lacking else ""


# --- trees ---

Tree = Any  # a word's number, or a pair of trees
HIDDEN, WORDS, CLASSES = 150, 2000, 5


def trees(count: int, seed: int = 0) -> list[tuple[Tree, int]]:
    """Random binary trees of 10 to 30 words, as sentences have, each with its class."""
    rng = random.Random(seed)

    def tree(words: int) -> Tree:
        if words == 1:
            return rng.randrange(WORDS)
        left = rng.randint(1, words - 1)
        return tree(left), tree(words - left)

    return [(tree(rng.randint(10, 30)), rng.randrange(CLASSES)) for _ in range(count)]


def alike(framework: Any, module: Any, seed: int = 5) -> Any:
    """The module with weights that are the same in every framework."""
    rng = np.random.default_rng(seed)
    with framework.no_grad():
        for parameter in module.parameters():
            bound = 1 / math.sqrt(parameter.shape[-1])
            values = rng.uniform(-bound, bound, tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(framework.from_numpy(values))
    return module


def tree_lstm(framework: Any, pure: bool = False) -> Any:
    """The binary TreeLSTM of Tai, Socher and Manning (2015): a tree -> (1, CLASSES) scores of its root."""
    nn = framework.nn

    class Leaf(nn.Module):  # type: ignore[misc, name-defined]
        """(1,) a word's number -> (1, HIDDEN) its hidden state and its cell."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(WORDS, HIDDEN)
            self.gates = nn.Linear(HIDDEN, 3 * HIDDEN)

        def forward(self, word: Any) -> tuple[Any, Any]:
            i, o, u = self.gates(self.embedding(word)).chunk(3, dim=1)
            c = i.sigmoid() * u.tanh()
            return o.sigmoid() * c.tanh(), c

    class Node(nn.Module):  # type: ignore[misc, name-defined]
        """Two states (1, HIDDEN) with their cells -> one."""

        def __init__(self) -> None:
            super().__init__()
            self.gates = nn.Linear(2 * HIDDEN, 5 * HIDDEN)

        def forward(self, h1: Any, c1: Any, h2: Any, c2: Any) -> tuple[Any, Any]:
            i, f1, f2, o, u = self.gates(framework.cat((h1, h2), dim=1)).chunk(5, dim=1)
            c = i.sigmoid() * u.tanh() + f1.sigmoid() * c1 + f2.sigmoid() * c2
            return o.sigmoid() * c.tanh(), c

    class TreeLSTM(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            leaf, node = Leaf(), Node()
            self.leaf = framework.compile(leaf, pure=True) if pure else leaf
            self.node = framework.compile(node, pure=True) if pure else node
            self.scores = nn.Linear(HIDDEN, CLASSES)

        def read(self, tree: Tree) -> tuple[Any, Any]:
            if isinstance(tree, int):
                return self.leaf(framework.tensor([tree]))  # type: ignore[no-any-return]
            (h1, c1), (h2, c2) = self.read(tree[0]), self.read(tree[1])
            return self.node(h1, c1, h2, c2)  # type: ignore[no-any-return]

        def forward(self, tree: Tree) -> Any:
            return self.scores(self.read(tree)[0])

    return alike(framework, TreeLSTM())


def _trained(
    framework: Any, model: Any, loss: Callable[[list[tuple[Tree, int]]], Any], together: int, count: int
) -> Program:
    """Steps of SGD over trees, `together` of them a step."""
    optimizer = framework.optim.SGD(model.parameters(), lr=0.01)
    data = trees(count)

    def step() -> float:
        total = 0.0
        for start in range(0, count, together):
            optimizer.zero_grad()
            value = loss(data[start : start + together])
            value.backward()
            optimizer.step()
            total += value.item()
        return total

    return Program(step, count)


def trees_recursive(together: int, pure: bool = False, batching: bool = False) -> Callable[[Any], Program]:
    """Plain recursion over each tree."""

    def make(framework: Any) -> Program:
        model = tree_lstm(framework, pure)
        cross_entropy = framework.nn.functional.cross_entropy

        def plain(group: list[tuple[Tree, int]]) -> Any:
            losses = [cross_entropy(model(tree), framework.tensor([label])) for tree, label in group]
            return framework.stack(losses).sum()

        def batched(group: list[tuple[Tree, int]]) -> Any:
            with framework.batching():
                return plain(group)

        return _trained(framework, model, batched if batching else plain, together, max(together, 10))

    return make


def by_height(group: list[tuple[Tree, int]]) -> tuple[list[int], list[list[tuple[int, int]]], list[int]]:
    """What one works out to batch trees by hand: all words; for each height the rows of its nodes' two
    children, where rows count words first and nodes in order of height; the rows of the roots.
    """
    words: list[int] = []
    levels: dict[int, list[tuple[Any, Any]]] = {}

    def visit(tree: Tree) -> tuple[int, int]:  # height, place at that height
        if isinstance(tree, int):
            words.append(tree)
            return 0, len(words) - 1
        left, right = visit(tree[0]), visit(tree[1])
        level = levels.setdefault(1 + max(left[0], right[0]), [])
        level.append((left, right))
        return 1 + max(left[0], right[0]), len(level) - 1

    roots = [visit(tree) for tree, _ in group]
    first, row = {0: 0}, len(words)
    for height in sorted(levels):
        first[height], row = row, row + len(levels[height])
    rows = [[(first[a] + i, first[b] + j) for (a, i), (b, j) in levels[height]] for height in sorted(levels)]
    return words, rows, [first[a] + i for a, i in roots]


def trees_by_hand(together: int) -> Callable[[Any], Program]:
    """The same batched by hand: all words in one call, then all nodes of a height in one."""

    def make(framework: Any) -> Program:
        model = tree_lstm(framework)
        tensor, cat, f = framework.tensor, framework.cat, framework.nn.functional

        def loss(group: list[tuple[Tree, int]]) -> Any:
            words, levels, roots = by_height(group)
            h, c = model.leaf(tensor(words))
            for level in levels:
                left, right = tensor(level).unbind(1)
                h_new, c_new = model.node(
                    h.index_select(0, left), c.index_select(0, left),
                    h.index_select(0, right), c.index_select(0, right),
                )  # fmt: skip
                h, c = cat((h, h_new)), cat((c, c_new))
            scores = model.scores(h.index_select(0, tensor(roots)))
            return f.cross_entropy(scores, tensor([label for _, label in group]), reduction="sum")

        return _trained(framework, model, loss, together, together)

    return make


# --- characters ---

LETTERS, CELL, TEXTS = 64, 256, 16


def char_lstm(how: str) -> Callable[[Any], Program]:
    """A language model of letters on texts of 20 to 120, all texts of a batch of one length; Adam.

    how: "loop" over a cell written by hand, "pure" with that cell compiled as one, "layer" `nn.LSTM`.
    """

    def make(framework: Any) -> Program:
        nn = framework.nn

        class Cell(nn.Module):  # type: ignore[misc, name-defined]
            """(TEXTS, CELL) inputs, state and cell -> state and cell."""

            def __init__(self) -> None:
                super().__init__()
                self.of_input, self.of_state = nn.Linear(CELL, 4 * CELL), nn.Linear(CELL, 4 * CELL)

            def forward(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
                i, f, g, o = (self.of_input(x) + self.of_state(h)).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                return o.sigmoid() * c.tanh(), c

        class Loop(nn.Module):  # type: ignore[misc, name-defined]
            """(length, TEXTS, CELL) -> the states, of the same shape."""

            def __init__(self) -> None:
                super().__init__()
                self.cell = framework.compile(Cell(), pure=True) if how == "pure" else Cell()

            def forward(self, x: Any) -> tuple[Any, None]:
                h = c = framework.zeros(TEXTS, CELL)
                states = []
                for t in range(len(x)):
                    h, c = self.cell(x[t], h, c)
                    states.append(h)
                return framework.stack(states), None

        class Model(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(LETTERS, CELL)
                self.recurrent = nn.LSTM(CELL, CELL) if how == "layer" else Loop()
                self.scores = nn.Linear(CELL, LETTERS)

            def forward(self, letters: Any) -> Any:
                return self.scores(self.recurrent(self.embedding(letters))[0])

        model = alike(framework, Model())
        optimizer = framework.optim.Adam(model.parameters(), lr=1e-3)
        draw = np.random.default_rng(0)
        lengths = (20, 45, 70, 95, 120)
        texts = [framework.from_numpy(draw.integers(0, LETTERS, (n + 1, TEXTS))) for n in lengths]

        def step() -> float:
            total = 0.0
            for text in texts:
                optimizer.zero_grad()
                scores = model(text[:-1])
                loss = nn.functional.cross_entropy(scores.view(-1, LETTERS), text[1:].reshape(-1))
                loss.backward()
                optimizer.step()
                total += loss.item()
            return total

        return Program(step, TEXTS * sum(lengths))

    return make


def over_slices(steps: int) -> Callable[[Any], Program]:
    """A loop over `x[t]` of x (steps, 16, 32), forward and backward."""

    def make(framework: Any) -> Program:
        values = np.random.default_rng(0).normal(size=(steps, 16, 32)).astype(np.float32)
        x = framework.from_numpy(values).requires_grad_()

        def step() -> float:
            x.grad = None
            h = framework.zeros(16, 32)
            for t in range(len(x)):
                h = (x[t] + h).tanh()
            h.sum().backward()
            return float(x.grad.abs().sum().item())

        return Program(step, steps)

    return make


# --- programs that read values ---


class Cart:
    """A cart that balances a pole, in plain Python; an episode ends after 60 pushes or when the pole has
    fallen.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        self.pushes = 0

    def push(self, right: bool) -> tuple[list[float], bool]:
        x, speed, angle, turning = self.state
        force = 10.0 if right else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        pull = (force + 0.05 * turning * turning * sin) / 1.1
        swing = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        speedup = pull - 0.05 * swing * cos / 1.1
        self.state = [
            x + 0.02 * speed, speed + 0.02 * speedup,
            angle + 0.02 * turning, turning + 0.02 * swing,
        ]  # fmt: skip
        self.pushes += 1
        return self.state, self.pushes >= 60 or abs(self.state[2]) > 1.0


def reinforce(hidden: int, mapped: bool = False, environments: int = 16) -> Callable[[Any], Program]:
    """REINFORCE: episodes in several environments, and the gradient of their actions' log-probabilities."""

    def make(framework: Any) -> Program:
        nn = framework.nn
        policy = alike(
            framework,
            nn.Sequential(
                nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
            ),
        )

        def episode(cart: Cart) -> Any:
            state, over, chosen = cart.state, False, []
            while not over:
                log_probabilities = framework.log_softmax(policy(framework.tensor([state])), dim=1)
                right = cart.random.random() < math.exp(log_probabilities[0, 1].item())
                chosen.append(log_probabilities[0, int(right)])
                state, over = cart.push(right)
            return framework.stack(chosen).sum() * len(chosen)

        def step() -> float:
            policy.zero_grad()
            carts = [Cart(seed) for seed in range(environments)]
            gains = framework.batching.map(episode, carts) if mapped else [episode(cart) for cart in carts]
            loss = -framework.stack(gains).mean()
            loss.backward()
            return float(loss.item())

        step()  # how many pushes an episode takes is known when one has run
        carts = [Cart(seed) for seed in range(environments)]
        for cart in carts:
            episode(cart)
        return Program(step, sum(cart.pushes for cart in carts))

    return make


def beam_search(mapped: bool = False, sentences: int = 64, beams: int = 4) -> Callable[[Any], Program]:
    """A decoder of words (a GRU, 256 wide, of 1000 words) searches the best of four beams for each sentence,
    10 to 40 words long.
    """

    def make(framework: Any) -> Program:
        nn, words, width, end = framework.nn, 1000, 256, 0

        class Decoder(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.embedding, self.cell = nn.Embedding(words, width), nn.GRUCell(width, width)
                self.scores = nn.Linear(width, words)

            def forward(self, last: Any, h: Any) -> tuple[Any, Any]:
                h = self.cell(self.embedding(last), h)
                return framework.log_softmax(self.scores(h), dim=1), h

        decoder = alike(framework, Decoder()).eval()
        draw = np.random.default_rng(0)
        lengths = [int(n) for n in draw.integers(10, 41, sentences)]
        starts = [framework.from_numpy(v) for v in draw.normal(size=(sentences, 1, width)).astype(np.float32)]

        def search(sentence: tuple[Any, int]) -> float:
            h, longest = sentence
            last, total, texts = framework.tensor([1]), framework.zeros(1, 1), [[1]]
            done: list[tuple[float, list[int]]] = []
            for _ in range(longest):
                scores, h = decoder(last, h)
                best, places = (total + scores).view(-1).topk(beams)
                rows, chosen, values = [], [], []
                for value, place in zip(best.tolist(), places.tolist()):
                    row, word = divmod(place, words)
                    if word == end:
                        done.append((value, texts[row]))
                    else:
                        rows.append(row), chosen.append(word), values.append(value)
                if not rows:
                    break
                texts = [[*texts[row], word] for row, word in zip(rows, chosen)]
                last, h = framework.tensor(chosen), h[framework.tensor(rows)]
                total = framework.tensor(values).unsqueeze(1)
            done += zip(values, texts)
            return max(value / len(text) for value, text in done)

        def step() -> float:
            pairs = list(zip(starts, lengths))
            with framework.no_grad():
                found = framework.batching.map(search, pairs) if mapped else [search(pair) for pair in pairs]
            return float(sum(found))

        return Program(step, sentences)

    return make


def growing_graphs(mapped: bool = False, graphs: int = 64) -> Callable[[Any], Program]:
    """A network that grows graphs of up to 5 to 20 nodes: before each new node two rounds of messages along
    all edges, then it decides which older nodes the new one is tied to (after Li et al., 2018).
    """

    def make(framework: Any) -> Program:
        nn, width = framework.nn, 64

        class Grower(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.message = nn.Linear(2 * width, width)
                self.update = nn.GRUCell(width, width)
                self.begin, self.tie = nn.Linear(width, width), nn.Linear(2 * width, 1)

            def spread(self, h: Any, sources: Any, targets: Any) -> Any:
                sent = self.message(framework.cat((h[sources], h[targets]), dim=1)).relu()
                return self.update(framework.zeros_like(h).index_add(0, targets, sent), h)

            def forward(self, h: Any, limit: int) -> tuple[int, float]:
                edges = [(0, 0)]
                while len(h) < limit:
                    sources, targets = framework.tensor(edges).unbind(1)
                    for _ in range(2):
                        h = self.spread(h, sources, targets)
                    new = self.begin(h.mean(0, keepdim=True)).tanh()
                    tied = self.tie(framework.cat((h, new.expand(len(h), width)), dim=1)).squeeze(1)
                    size = len(h)
                    for node, score in enumerate(tied.tolist()):
                        if score > 0 or node == size - 1:
                            edges += [(node, size), (size, node)]
                    h = framework.cat((h, new))
                return len(edges), float(h.sum().item())

        grower = alike(framework, Grower())
        draw = np.random.default_rng(0)
        limits = [int(n) for n in draw.integers(5, 21, graphs)]
        seeds = [framework.from_numpy(v) for v in draw.normal(size=(graphs, 1, width)).astype(np.float32)]

        def grow(pair: tuple[Any, int]) -> tuple[int, float]:
            return grower(*pair)  # type: ignore[no-any-return]

        def step() -> float:
            pairs = list(zip(seeds, limits))
            with framework.no_grad():
                grown = framework.batching.map(grow, pairs) if mapped else [grow(pair) for pair in pairs]
            return float(sum(edges + total for edges, total in grown))

        return Program(step, graphs)

    return make
