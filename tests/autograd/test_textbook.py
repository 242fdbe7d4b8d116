"""Programs as tutorials of PyTorch teach them, run by both frameworks: the same results, eager and compiled.

Those about autograd are in tests/textbook_autograd.py, which says what a program is.
"""

from __future__ import annotations

import doctest
import math
import re
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs, needs_kiln, needs_torch
from backend import torch as peer
from textbook_autograd import PROGRAMS as AUTOGRAD
from textbook_autograd import Program, normal, set_weights

DOCS = Path(__file__).parents[2] / "docs"


# -- models --------------------------------------------------------------------------------------------


def softmax_regression_from_scratch(torch: Any) -> Any:
    x, y = normal(torch, 64, 10, seed=1), torch.arange(64) % 4
    weights = (normal(torch, 10, 4, seed=2) / math.sqrt(10)).requires_grad_()
    bias = torch.zeros(4, requires_grad=True)

    def log_softmax(x: Any) -> Any:
        return x - x.exp().sum(-1).log().unsqueeze(-1)

    for _ in range(2):
        for i in range(4):
            xb, yb = x[i * 16 : i * 16 + 16], y[i * 16 : i * 16 + 16]
            pred = log_softmax(xb @ weights + bias)
            loss = -pred[range(yb.shape[0]), yb].mean()
            loss.backward()
            with torch.no_grad():
                weights -= weights.grad * 0.5
                bias -= bias.grad * 0.5
                weights.grad.zero_()
                bias.grad.zero_()
    accuracy = (torch.argmax(log_softmax(x @ weights + bias), dim=1) == y).float().mean()
    return loss, weights, bias, accuracy


def a_module_and_a_loader(torch: Any) -> Any:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(10, 16), torch.nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            return self.fc2(torch.relu(self.fc1(x)))

    data = torch.utils.data.TensorDataset(normal(torch, 48, 10, seed=1), torch.arange(48) % 4)
    model = Net()
    set_weights(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    running_loss = 0.0
    for _ in range(3):
        for inputs, labels in torch.utils.data.DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss, *model.parameters()


def a_recurrent_net(torch: Any) -> Any:
    nn = torch.nn

    class RNN(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, n_in: int, n_hidden: int, n_out: int) -> None:
            super().__init__()
            self.n_hidden = n_hidden
            self.i2h, self.i2o = nn.Linear(n_in + n_hidden, n_hidden), nn.Linear(n_in + n_hidden, n_out)
            self.softmax = nn.LogSoftmax(dim=1)

        def forward(self, x: Any, hidden: Any) -> Any:
            combined = torch.cat((x, hidden), 1)
            return self.softmax(self.i2o(combined)), torch.tanh(self.i2h(combined))

    rnn = RNN(5, 8, 3)
    set_weights(torch, rnn)
    criterion, losses = nn.NLLLoss(), []
    for word, category in (([0, 3, 1], 0), ([4, 2], 1), ([1, 1, 2, 0], 2)) * 3:
        line = torch.zeros(len(word), 1, 5)
        for i, letter in enumerate(word):
            line[i][0][letter] = 1
        hidden = torch.zeros(1, 8)
        rnn.zero_grad()
        for i in range(line.size()[0]):
            output, hidden = rnn(line[i], hidden)
        loss = criterion(output, torch.tensor([category]))
        loss.backward()
        for p in rnn.parameters():
            p.data.add_(p.grad.data, alpha=-0.1)
        losses.append(loss.item())
    return losses, *rnn.parameters()


def word_embeddings(torch: Any) -> Any:
    nn, F = torch.nn, torch.nn.functional
    text = "when forty winters shall besiege thy brow and dig deep trenches in thy beauty's field".split()
    places = {word: i for i, word in enumerate(sorted(set(text)))}

    class NGram(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = nn.Embedding(len(places), 6)
            self.linear1, self.linear2 = nn.Linear(12, 16), nn.Linear(16, len(places))

        def forward(self, inputs: Any) -> Any:
            embeds = self.embeddings(inputs).view((1, -1))
            return F.log_softmax(self.linear2(F.relu(self.linear1(embeds))), dim=1)

    model = NGram()
    set_weights(torch, model)
    optimizer, total = torch.optim.SGD(model.parameters(), lr=0.05), 0.0
    for k in range(2, len(text)):
        context = torch.tensor([places[w] for w in text[k - 2 : k]], dtype=torch.long)
        model.zero_grad()
        loss = nn.NLLLoss()(model(context), torch.tensor([places[text[k]]]))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total, model.embeddings.weight


def a_tree_network(torch: Any) -> Any:
    nn = torch.nn
    compose, words = nn.Linear(8, 4), nn.Embedding(6, 4)
    set_weights(torch, compose)
    set_weights(torch, words)

    def encode(tree: Any) -> Any:
        if isinstance(tree, int):
            return words(torch.tensor(tree))
        return torch.tanh(compose(torch.cat([encode(tree[0]), encode(tree[1])])))

    for tree in ((0, 1), ((2, (3, 4)), 5), (((0, 2), 1), (4, (5, 3)))):
        encode(tree).pow(2).sum().backward()
    return compose.weight.grad, words.weight.grad


def an_image_that_is_optimized(torch: Any) -> Any:
    """Style transfer in small: the input is what learns, towards features and their Gram matrix."""
    features = normal(torch, 6, 9, seed=1)

    def gram(x: Any) -> Any:
        f = features @ x.reshape(9, 4)
        return f @ f.t() / f.numel()

    style, content = gram(normal(torch, 36, seed=2)), normal(torch, 36, seed=3)
    image = content.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([image], lr=0.05)
    for _ in range(15):
        with torch.no_grad():
            image.clamp_(-2, 2)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(gram(image), style) + (image - content).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss, image


def a_critic_with_gradient_penalty(torch: Any) -> Any:
    nn = torch.nn
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    set_weights(torch, critic)
    real, fake = normal(torch, 5, 3, seed=1), normal(torch, 5, 3, seed=2)
    alpha = torch.linspace(0.1, 0.9, 5).unsqueeze(1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    gradients = torch.autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
    )[0]
    penalty = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
    (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
    return penalty, *[p.grad for p in critic.parameters()]


def maml(torch: Any) -> Any:
    """A step of learning inside the loss, differentiated."""
    w = torch.tensor([0.5, -0.3], requires_grad=True)
    x, y = normal(torch, 6, 2, seed=1), normal(torch, 6, seed=2)
    for _ in range(5):
        inner = ((x[:3] @ w - y[:3]) ** 2).mean()
        (g,) = torch.autograd.grad(inner, w, create_graph=True)
        outer = ((x[3:] @ (w - 0.1 * g) - y[3:]) ** 2).mean()
        (meta,) = torch.autograd.grad(outer, w)
        with torch.no_grad():
            w -= 0.1 * meta
    return outer, w


def clipping_and_accumulating(torch: Any) -> Any:
    model = torch.nn.Linear(4, 2)
    set_weights(torch, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = normal(torch, 12, 4, seed=1), normal(torch, 12, 2, seed=2)
    norms = []
    for step in range(6):
        part = slice(2 * step, 2 * step + 2)
        (torch.nn.functional.mse_loss(model(x[part]), y[part]) / 2).backward()
        if step % 2:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5))
            optimizer.step()
            optimizer.zero_grad()
    return norms, *model.parameters()


def checkpoints(torch: Any) -> Any:
    from importlib import import_module

    checkpoint = import_module(f"{torch.__name__.replace('backend.', '')}.utils.checkpoint").checkpoint
    w = normal(torch, 4, 4, seed=1, requires_grad=True)
    h = normal(torch, 2, 4, seed=2)
    for _ in range(3):
        h = checkpoint(lambda h: torch.tanh(h @ w), h, use_reentrant=False)
    h.sum().backward()
    return h, w.grad


def saved_tensors_elsewhere(torch: Any) -> Any:
    store: list[Any] = []

    def pack(x: Any) -> int:
        store.append(x.detach().clone())
        return len(store) - 1

    x = normal(torch, 5, seed=1, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda place: store[place]):
        y = (x * x).exp()
    y.sum().backward()
    return y, x.grad


MODELS: list[Program] = [
    softmax_regression_from_scratch, a_module_and_a_loader, a_recurrent_net,
    word_embeddings, a_tree_network, an_image_that_is_optimized, a_critic_with_gradient_penalty, maml,
    clipping_and_accumulating, checkpoints, saved_tensors_elsewhere,
]  # fmt: skip


# -- parts that are younger ----------------------------------------------------------------------------


@needs("func.vmap")
def per_sample_gradients(torch: Any) -> Any:
    from importlib import import_module

    func = import_module(f"{torch.__name__}.func")
    w, b = normal(torch, 3, seed=1), torch.tensor(0.5)
    x, y = normal(torch, 6, 3, seed=2), normal(torch, 6, seed=3)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return (x @ params["w"] + params["b"] - y).pow(2)

    grads = func.vmap(func.grad(loss), in_dims=(None, 0, 0))({"w": w, "b": b}, x, y)
    return grads["w"], grads["b"]


@needs("autograd.functional.jacobian")
def jacobians_and_hessians(torch: Any) -> Any:
    from importlib import import_module

    functional = import_module(f"{torch.__name__}.autograd.functional")
    x = normal(torch, 3, seed=1)
    weight = normal(torch, 2, 3, seed=2)
    jacobian = functional.jacobian(lambda x: torch.tanh(weight @ x), x)
    hessian = functional.hessian(lambda x: torch.tanh(weight @ x).sum(), x)
    value, product = functional.vhp(lambda x: torch.tanh(weight @ x).sum(), x, torch.ones(3))
    return jacobian, hessian, value, product


@needs("Tensor.register_post_accumulate_grad_hook")
def the_optimizer_inside_backward(torch: Any) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    set_weights(torch, model)
    optimizers = {p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()}

    def step(p: Any) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(normal(torch, 5, 3, seed=1)).pow(2).mean().backward()
    return list(model.parameters()), [p.grad for p in model.parameters()]


YOUNGER: list[Program] = [per_sample_gradients, jacobians_and_hessians, the_optimizer_inside_backward]


def plain(value: Any) -> Any:
    """What a program gave, as Python values."""
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value.detach().tolist() if hasattr(value, "detach") else value


def flat(value: Any) -> list[Any]:
    return [x for v in value for x in flat(v)] if isinstance(value, list) else [value]


def marked(programs: list[Program]) -> list[Any]:
    """Programs as parameters, with the marks they carry."""
    return [pytest.param(p, id=p.__name__, marks=getattr(p, "pytestmark", ())) for p in programs]


@pytest.mark.parametrize("program", marked(AUTOGRAD + MODELS + YOUNGER))
def test_the_same_as_pytorch(program: Program, answers: Any) -> None:
    got = flat(plain(program(kiln)))
    expected = answers([program, normal, set_weights], lambda: flat(plain(program(peer))))
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5) if isinstance(b, float) else a == b


@needs_kiln
@pytest.mark.parametrize("program", marked(AUTOGRAD + MODELS + YOUNGER))
def test_the_same_compiled(program: Program) -> None:
    compiled = kiln.compile(lambda: program(kiln), wait=True)
    expected = plain(program(kiln))
    for _ in range(2):
        assert plain(compiled()) == expected


@needs_torch
@pytest.mark.parametrize("page", ["autograd_programs.md"])
def test_the_page_of_programs_under_pytorch(page: str) -> None:
    """Every session of the page prints the same with PyTorch imported."""
    text = (DOCS / page).read_text().replace("import kiln\n", "import torch as kiln\n")
    text = text.replace("from kiln import nn", "from torch import nn").replace(
        "import kiln.nn", "import torch.nn"
    )
    space: dict[str, Any] = {}
    report: list[str] = []
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        example = doctest.DocTestParser().get_doctest(block, space, page, page, 0)
        doctest.DocTestRunner().run(example, out=report.append, clear_globs=False)
        space.update(example.globs)
    assert not report, "".join(report)
