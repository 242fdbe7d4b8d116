"""Everyday functions and training steps that people compile, small to large, for `bench/compiled.py`.

Each is written once: `make(framework, compile)` builds it, `compile` being `framework.compile` or what leaves
a function or a model as it is, and returns a function that runs it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from bench.autocast import gpt
from bench.resnet import resnet18
from bench.workloads import normal

Compile = Callable[[Any], Any]
Run = Callable[[], Any]
Make = Callable[[Any, Compile], Run]


class Program(NamedTuple):
    """What is compiled, and the least that it should gain: eager's time over its own."""

    name: str
    make: Make
    bar: float = 0.98


def function(written: Callable[..., Any], *shapes: tuple[int, ...]) -> Make:
    """A function of a framework and of normal draws of these shapes."""

    def make(framework: Any, compile: Compile) -> Run:
        operands = [normal(framework, *shape, seed=k) for k, shape in enumerate(shapes)]
        compiled = compile(lambda *xs: written(framework, *xs))
        return lambda: compiled(*operands)

    return make


def gradients(written: Callable[..., Any], *shapes: tuple[int, ...]) -> Make:
    """The same with the gradients of the sum of what it gives, for all its operands."""

    def make(framework: Any, compile: Compile) -> Run:
        operands = [normal(framework, *shape, seed=k, grad=True) for k, shape in enumerate(shapes)]

        def both(*xs: Any) -> Any:
            loss = written(framework, *xs).sum()
            return framework.autograd.grad(loss, xs)

        compiled = compile(both)
        return lambda: compiled(*operands)

    return make


# -- functions --------------------------------------------------------------------------------------------


def tanh_summed(framework: Any, x: Any, y: Any) -> Any:
    """Four ops, the last a sum."""
    return (x * y + 1).tanh().sum()


def dozen(framework: Any, x: Any) -> Any:
    """Six links of a chain, each a tanh."""
    for _ in range(6):
        x = framework.tanh(x * 1.01) + 0.1
    return x


def dozen_small(framework: Any, x: Any, y: Any) -> Any:
    """A dozen ops on a few elements."""
    for _ in range(6):
        x = x * y + 0.5
    return x


def through_numpy(framework: Any, compile: Compile) -> Run:
    """Three ops between arrays of NumPy."""
    array = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    compiled = compile(lambda x: (framework.from_numpy(x) * 2 + 1).relu().numpy())
    return lambda: compiled(array)


def bisection(framework: Any, compile: Compile) -> Run:
    """A root by halves, each of which is read."""
    low, high = framework.tensor(0.0), framework.tensor(2.0)

    def search(a: Any, b: Any) -> Any:
        for _ in range(12):
            middle = (a + b) * 0.5
            if float(middle * middle * middle) > 1.2345:
                b = middle
            else:
                a = middle
        return a

    compiled = compile(search)
    return lambda: compiled(low, high)


def alternating(framework: Any, compile: Compile) -> Run:
    """Four ops on shapes that change from call to call."""
    shapes: Iterator[Any] = cycle([normal(framework, n, 32) for n in (8, 16, 24, 40)])
    compiled = compile(lambda x: (x * 2 + 1).tanh().sum(1))
    return lambda: compiled(next(shapes))


def written_gelu(framework: Any, x: Any) -> Any:
    """gelu with tanh as papers write it."""
    return 0.5 * x * (1 + framework.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def written_layer_norm(framework: Any, x: Any, w: Any, b: Any) -> Any:
    """Layer normalisation from means."""
    middle = x - x.mean(-1, keepdim=True)
    return middle / framework.sqrt((middle * middle).mean(-1, keepdim=True) + 1e-5) * w + b


def rms_norm(framework: Any, x: Any, w: Any) -> Any:
    """Root mean square normalisation."""
    return x * framework.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def rotary(framework: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions of heads."""
    left, right = x.chunk(2, -1)
    return x * cos + framework.cat((-right, left), -1) * sin


def attention(framework: Any, q: Any, k: Any, v: Any) -> Any:
    """Causal attention, written out."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    mask = framework.ones(q.shape[-2], q.shape[-2], dtype=framework.bool).tril()
    return framework.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def written_cross_entropy(framework: Any, x: Any) -> Any:
    """Cross entropy of class 0 from logarithms of sums of exponentials."""
    shifted = x - x.max(-1, keepdim=True).values
    return (framework.log(framework.exp(shifted).sum(-1)) - shifted[:, 0]).mean()


def standardise(framework: Any, x: Any) -> Any:
    """Columns of mean 0 and variance 1."""
    return (x - x.mean(0)) / (x.std(0) + 1e-6)


def distances(framework: Any, x: Any, y: Any) -> Any:
    """Squared distances of all pairs."""
    return (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T


def k_means(framework: Any, x: Any, centres: Any) -> Any:
    """A step of Lloyd's algorithm."""
    nearest = distances(framework, x, centres).argmin(1)
    chosen = framework.nn.functional.one_hot(nearest, centres.shape[0]).float()
    return chosen.T @ x / (chosen.sum(0)[:, None] + 1e-6)


def bodies(framework: Any, place: Any, speed: Any) -> Any:
    """A step of bodies that attract each other."""
    apart = place[:, None] - place
    pull = apart * ((apart * apart).sum(-1, keepdim=True) + 0.01) ** -1.5
    speed = speed - 0.01 * pull.sum(1)
    return place + 0.01 * speed, speed


def mandelbrot(framework: Any, x: Any, y: Any) -> Any:
    """Twenty steps of z*z + c, counting those that stay."""
    a, b, count = x, y, framework.zeros_like(x)
    for _ in range(20):
        a, b = a * a - b * b + x, 2 * a * b + y
        a, b = a.clamp(-4, 4), b.clamp(-4, 4)
        count = count + (a * a + b * b < 4)
    return count


def life(framework: Any, cells: Any) -> Any:
    """A step of the game of life by shifts."""
    alive = (cells > 0).float()
    around = sum(
        framework.roll(alive, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)
    )
    return ((around == 3) | ((alive == 1) & (around == 2))).float()


def power_iteration(framework: Any, compile: Compile) -> Run:
    """The largest eigenvalue, read when it is found."""
    matrix, start = normal(framework, 96, 96), normal(framework, 96, seed=1)

    def iterate(a: Any, v: Any) -> float:
        for _ in range(20):
            v = a @ v
            v = v / v.norm()
        return float(v @ (a @ v))

    compiled = compile(iterate)
    return lambda: compiled(matrix, start)


def drawn_rows(framework: Any, compile: Compile) -> Run:
    """Rows chosen by numbers that are drawn inside."""
    data = normal(framework, 4096, 64)

    def sample(x: Any) -> Any:
        rows = framework.randint(0, x.shape[0], (128,))
        return (x[rows] * 2 + 1).relu().sum(1)

    compiled = compile(sample)
    return lambda: compiled(data)


def bias_and_relu(framework: Any, compile: Compile) -> Run:
    """relu(x + b) of 16 MB that NumPy holds."""
    array = np.random.default_rng(0).normal(size=(4096, 1024)).astype(np.float32)
    bias = normal(framework, 1024)
    compiled = compile(lambda x, b: framework.relu(x + b))
    return lambda: compiled(framework.from_numpy(array), bias)


def decomposed(framework: Any, compile: Compile) -> Run:
    """A singular value decomposition, a sort and a write at places."""
    matrix = normal(framework, 24, 24)

    def steps(x: Any) -> Any:
        values = framework.linalg.svdvals(x)
        ordered, _ = framework.sort(x, 1)
        ordered[0] = values
        return ordered * 2

    compiled = compile(steps)
    return lambda: compiled(matrix)


def normalised(framework: Any, x: Any) -> Any:
    """Softmax of rows, scaled."""
    return framework.softmax(x * 0.5, -1) * 2


# -- training steps ---------------------------------------------------------------------------------------


def lstm_cells(count: int) -> Make:
    """So many LSTM cells one after the other, forward and backward."""

    def make(framework: Any, compile: Compile) -> Run:
        framework.manual_seed(0)
        cell = framework.nn.LSTMCell(32, 64)
        steps = [normal(framework, 8, 32, seed=k) for k in range(count)]

        def run() -> Any:
            h = c = framework.zeros(8, 64)
            for x in steps:
                h, c = cell(x, (h, c))
            cell.zero_grad()
            loss = (h * h).sum()
            loss.backward()
            return loss

        return compile(run)  # type: ignore[no-any-return]

    return make


def training(
    build: Callable[[Any], Any],
    data: Callable[[Any], tuple[Any, ...]],
    optimizer: Callable[[Any, Any], Any],
    loss_of: Callable[[Any, Any, tuple[Any, ...]], Any],
    whole: bool,
    clip: float | None = None,
) -> Make:
    """A training step, compiled whole, or with only its model compiled."""

    def make(framework: Any, compile: Compile) -> Run:
        framework.manual_seed(0)
        model = build(framework)
        inputs = data(framework)
        updates = optimizer(framework, model)
        called = model if whole else compile(model)

        def step() -> Any:
            updates.zero_grad()
            loss = loss_of(framework, called, inputs)
            loss.backward()
            if clip is not None:
                framework.nn.utils.clip_grad_norm_(model.parameters(), clip)
            updates.step()
            return loss

        return compile(step) if whole else step  # type: ignore[no-any-return]

    return make


def classes(rows: int, *shape: int, among: int = 10) -> Callable[[Any], tuple[Any, ...]]:
    """Normal draws and a class for each row."""

    def make(framework: Any) -> tuple[Any, ...]:
        targets = np.random.default_rng(1).integers(0, among, rows)
        return normal(framework, rows, *shape), framework.from_numpy(targets)

    return make


def tokens(texts: int, length: int, vocabulary: int) -> Callable[[Any], tuple[Any, ...]]:
    """Texts and what follows each of their tokens."""

    def make(framework: Any) -> tuple[Any, ...]:
        drawn = np.random.default_rng(1).integers(0, vocabulary, (texts, length + 1))
        return framework.from_numpy(drawn[:, :-1].copy()), framework.from_numpy(drawn[:, 1:].copy())

    return make


def cross_entropy(framework: Any, model: Any, inputs: tuple[Any, ...]) -> Any:
    """The loss of classes."""
    x, target = inputs
    out = model(x)
    return framework.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1))


def adam(framework: Any, model: Any) -> Any:
    """Adam with its defaults."""
    return framework.optim.Adam(model.parameters(), lr=1e-3)


def adamw(framework: Any, model: Any) -> Any:
    """AdamW with its defaults."""
    return framework.optim.AdamW(model.parameters(), lr=1e-3)


def sgd(framework: Any, model: Any) -> Any:
    """SGD with momentum."""
    return framework.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def mlp(*sizes: int) -> Callable[[Any], Any]:
    """Linear layers with relu between."""

    def build(framework: Any) -> Any:
        nn = framework.nn
        layers: list[Any] = []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return build


def digits(framework: Any) -> Any:
    """A convolution net of pictures of 28 x 28."""
    nn = framework.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def normalised_net(framework: Any) -> Any:
    """Convolutions with batch normalisation and dropout."""
    nn = framework.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.1),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def autoencoder(framework: Any) -> Any:
    """A variational autoencoder of 784 numbers."""
    nn = framework.nn

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        """Mean and logarithm of the variance, a draw, and back."""

        def __init__(self) -> None:
            super().__init__()
            self.code, self.back = mlp(784, 256, 32)(framework), mlp(16, 256, 784)(framework)

        def forward(self, x: Any) -> Any:
            mean, log_variance = self.code(x).chunk(2, 1)
            drawn = mean + framework.randn_like(mean) * (0.5 * log_variance).exp()
            apart = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
            return self.back(drawn), apart

    return Model()


def evidence(framework: Any, model: Any, inputs: tuple[Any, ...]) -> Any:
    """The bound that an autoencoder maximises."""
    (x, _) = inputs
    out, apart = model(x)
    return framework.nn.functional.mse_loss(out, x, reduction="sum") + apart


def recurrent(framework: Any) -> Any:
    """Characters through a GRU."""
    nn = framework.nn

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        """Embedding, GRU, head."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.steps, self.head = nn.Embedding(65, 64), nn.GRU(64, 128), nn.Linear(128, 65)

        def forward(self, text: Any) -> Any:
            return self.head(self.steps(self.tokens(text))[0])

    return Model()


def penalty(framework: Any, compile: Compile) -> Run:
    """The gradient of a gradient's norm, as critics are trained."""
    framework.manual_seed(0)
    critic = mlp(64, 128, 1)(framework)
    updates = adam(framework, critic)
    data = normal(framework, 32, 64)

    def step() -> Any:
        x = (data * 0.5).requires_grad_()
        (slope,) = framework.autograd.grad(critic(x).sum(), x, create_graph=True)
        loss = ((slope.norm(2, 1) - 1) ** 2).mean()
        updates.zero_grad()
        loss.backward()
        updates.step()
        return loss

    return compile(step)  # type: ignore[no-any-return]


def averages(framework: Any, compile: Compile) -> Run:
    """Running averages of a model's parameters."""
    framework.manual_seed(0)
    model, kept = mlp(128, 256, 256, 10)(framework), mlp(128, 256, 256, 10)(framework)

    def update() -> None:
        with framework.no_grad():
            for mine, its in zip(kept.parameters(), model.parameters(), strict=True):
                mine.mul_(0.99).add_(its, alpha=0.01)

    return compile(update)  # type: ignore[no-any-return]


def updates_of(count: int, shape: tuple[int, ...], optimizer: Callable[[Any, Any], Any]) -> Make:
    """An optimizer's step alone."""

    def make(framework: Any, compile: Compile) -> Run:
        model = framework.nn.Module()
        for k in range(count):
            parameter = framework.nn.Parameter(normal(framework, *shape, seed=k))
            parameter.grad = normal(framework, *shape, seed=k + 1)
            model.register_parameter(f"p{k}", parameter)
        updates = optimizer(framework, model)
        return compile(lambda: updates.step())  # type: ignore[no-any-return]

    return make


LARGE = 1 << 20
_DIGITS = training(digits, classes(32, 1, 28, 28), adam, cross_entropy, True)
_WIDE = (lambda f: gpt(f, 4, 256), tokens(4, 256, 65), adamw, cross_entropy)
_NARROW = (lambda f: gpt(f, 4, 32, 2, 64, 2), tokens(4, 32, 65), adamw, cross_entropy)
_CLIPPED = (mlp(64, 64, 64, 4), classes(16, 64, among=4), sgd, cross_entropy)
_NORMALISED = (normalised_net, classes(8, 3, 16, 16), sgd, cross_entropy)
_MLP = (mlp(128, 256, 10), classes(32, 128), adam, cross_entropy)

PROGRAMS = [
    Program("add of 4 x 4", function(lambda framework, x, y: x + y, (4, 4), (4, 4))),
    Program("a dozen ops on 4 x 4", function(dozen_small, (4, 4), (4, 4))),
    Program("NumPy in, 3 ops, NumPy out", through_numpy),
    Program("mul add tanh sum, 64 x 64", function(tanh_summed, (64, 64), (64, 64))),
    Program("bisection, 12 reads", bisection),
    Program("shapes that alternate", alternating),
    Program("power iteration, 20 steps", power_iteration),
    Program("rows drawn and gathered", drawn_rows),
    Program("svdvals, sort, setitem", decomposed),
    Program("chain of 12, 64 x 64", function(dozen, (64, 64)), 1.05),
    Program("chain of 12, 1M", function(dozen, (LARGE,)), 2.5),
    Program("mul, add, relu, 1M", function(lambda f, x, y: (x * y + 1).relu(), (LARGE,), (LARGE,))),
    Program("relu(x + b), NumPy's 16 MB", bias_and_relu),
    Program("written gelu, 1M", function(written_gelu, (LARGE,))),
    Program("written gelu with gradients, 64 x 512", gradients(written_gelu, (64, 512))),
    Program("written layer norm, 512 x 512", function(written_layer_norm, (512, 512), (512,), (512,))),
    Program("the same with gradients", gradients(written_layer_norm, (512, 512), (512,), (512,))),
    Program("rms norm with gradients, 256 x 512", gradients(rms_norm, (256, 512), (512,))),
    Program("rotary positions, 4 x 8 x 128 x 64", function(rotary, (4, 8, 128, 64), (128, 64), (128, 64))),
    Program("softmax of rows, 64 x 1000", function(normalised, (64, 1000))),
    Program("attention written, 2 x 4 x 64 x 32", gradients(attention, *[(2, 4, 64, 32)] * 3)),
    Program("cross entropy written, 128 x 1000", gradients(written_cross_entropy, (128, 1000))),
    Program("standardised columns, 1000 x 20", function(standardise, (1000, 20))),
    Program("distances of 200 and 300", function(distances, (200, 16), (300, 16))),
    Program("k-means step, 2000 x 8", function(k_means, (2000, 8), (10, 8))),
    Program("100 bodies", function(bodies, (100, 3), (100, 3))),
    Program("mandelbrot, 256 x 256", function(mandelbrot, (256, 256), (256, 256))),
    Program("game of life, 256 x 256", function(life, (256, 256))),
    Program("10 LSTM cells", lstm_cells(10), 1.1),
    Program("40 LSTM cells", lstm_cells(40), 1.1),
    Program("MLP inference, 16 x 32", function(
        lambda f, x, a, b, c: ((x @ a + b).relu() @ c).softmax(-1), (16, 32), (32, 32), (32,), (32, 10))),
    Program("MLP Adam step, whole", training(*_MLP, True), 1.2),
    Program("MLP Adam step, model", training(*_MLP, False)),
    Program("MLP clipped SGD step, whole", training(*_CLIPPED, True, 1.0)),
    Program("gradient penalty", penalty),
    Program("running averages", averages),
    Program("SGD of 30 parameters", updates_of(30, (32, 32), sgd)),
    Program("Adam of 10M", updates_of(10, (1000, 1000), adam)),
    Program("autoencoder step", training(autoencoder, classes(32, 784), adam, evidence, True)),
    Program("GRU step", training(recurrent, tokens(24, 8, 65), adam, cross_entropy, True)),
    Program("digits convolution step", _DIGITS, 1.05),
    Program("batch norm and dropout step", training(*_NORMALISED, True)),
    Program("small GPT step, whole", training(*_NARROW, True)),
    Program("small GPT step, model", training(*_NARROW, False)),
    Program("ResNet-18 step, 4 x 64 x 64", training(
        lambda f: resnet18(f, 10), classes(4, 3, 64, 64), sgd, cross_entropy, True), 1.03),
    Program("GPT 6 x 384 step, whole", training(*_WIDE, True), 1.04),
    Program("GPT 6 x 384 step, model", training(*_WIDE, False), 1.04),
]  # fmt: skip
