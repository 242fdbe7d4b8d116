"""Programs as tutorials of PyTorch teach them, run by both frameworks: the same results, eager and compiled.

A program takes the framework as `torch` and returns what it computed. Data comes from NumPy, so that both see
the same; layers with random weights are given NumPy's.
"""

from __future__ import annotations

import doctest
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs, needs_kiln, needs_torch
from backend import torch as peer

DOCS = Path(__file__).parent.parent / "docs"
Program = Callable[[Any], Any]


def normal(torch: Any, *shape: int, seed: int = 0, **options: Any) -> Any:
    """A float32 tensor of normal draws."""
    draws = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return torch.tensor(draws.tolist(), **options)


def set_weights(torch: Any, model: Any) -> None:
    """Gives every parameter values that both frameworks know."""
    with torch.no_grad():
        for seed, p in enumerate(model.parameters()):
            p.copy_(normal(torch, *p.shape, seed=seed) / math.sqrt(p.shape[-1]))


# -- the autograd tutorials ----------------------------------------------------------------------------


def vector_jacobian_product(torch: Any) -> Any:
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    b = torch.tensor([6.0, 4.0], requires_grad=True)
    q = 3 * a**3 - b**2
    q.backward(gradient=torch.tensor([1.0, 1.0]))
    assert bool((9 * a**2 == a.grad).all()) and bool((-2 * b == b.grad).all())
    return a.grad, b.grad


def who_requires_grad(torch: Any) -> Any:
    x, y = torch.rand(5, 5), torch.rand(5, 5)
    z = torch.rand((5, 5), requires_grad=True)
    a, b = x + y, x + z
    with torch.no_grad():
        c = x + z
    return a.requires_grad, b.requires_grad, c.requires_grad, b.detach().requires_grad, z.is_leaf, b.is_leaf


def one_layer(torch: Any) -> Any:
    x, y = torch.ones(5), torch.zeros(3)
    w = normal(torch, 5, 3, seed=1, requires_grad=True)
    b = normal(torch, 3, seed=2, requires_grad=True)
    z = torch.matmul(x, w) + b
    loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
    loss.backward()
    return loss, w.grad, b.grad, z.grad_fn is not None


def the_jacobian_three_times(torch: Any) -> Any:
    inp = torch.eye(4, 5, requires_grad=True)
    out = (inp + 1).pow(2).t()
    found = []
    for _ in range(2):
        out.backward(torch.ones_like(out), retain_graph=True)
        found.append(inp.grad.clone())
    inp.grad.zero_()
    out.backward(torch.ones_like(out), retain_graph=True)
    return *found, inp.grad


def gradients_of_the_middle(torch: Any) -> Any:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    seen: list[Any] = []
    y = (x * 3).tanh()
    y.retain_grad()
    y.register_hook(lambda g: seen.append(g.tolist()))
    z = y.exp()
    z.register_hook(lambda g: g * 2)
    z.sum().backward()
    return seen, y.grad, x.grad


def names_along_the_graph(torch: Any) -> Any:
    x = torch.ones(2, 2, requires_grad=True)
    node = ((x + 2) * 3).exp().sum().grad_fn
    names = []
    while node is not None and "Accumulate" not in node.name():
        names.append(node.name())
        node = node.next_functions[0][0]
    return names


# -- a third-order polynomial, six ways ----------------------------------------------------------------


def sine(torch: Any) -> Any:
    x = torch.linspace(-math.pi, math.pi, 200)
    return x, torch.sin(x)


def polynomial_by_hand(torch: Any) -> Any:
    x, y = sine(torch)
    a, b, c, d = 0.1, 0.2, -0.1, 0.05
    for _ in range(30):
        y_pred = a + b * x + c * x**2 + d * x**3
        grad = 2.0 * (y_pred - y)
        a -= 1e-6 * grad.sum().item()
        b -= 1e-6 * (grad * x).sum().item()
        c -= 1e-6 * (grad * x**2).sum().item()
        d -= 1e-6 * (grad * x**3).sum().item()
    return a, b, c, d


def polynomial_by_autograd(torch: Any) -> Any:
    x, y = sine(torch)
    weights = [torch.tensor(v, requires_grad=True) for v in (0.1, 0.2, -0.1, 0.05)]
    for _ in range(30):
        a, b, c, d = weights
        loss = (a + b * x + c * x**2 + d * x**3 - y).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for w in weights:
                w -= 1e-6 * w.grad
                w.grad = None
    return loss, *weights


def polynomial_with_a_function(torch: Any) -> Any:
    class LegendrePolynomial3(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, input: Any) -> Any:
            ctx.save_for_backward(input)
            return 0.5 * (5 * input**3 - 3 * input)

        @staticmethod
        def backward(ctx: Any, grad_output: Any) -> Any:
            (input,) = ctx.saved_tensors
            return grad_output * 1.5 * (5 * input**2 - 1)

    x, y = sine(torch)
    a, b, c, d = (torch.full((), v, requires_grad=True) for v in (0.0, -1.0, 0.0, 0.3))
    for _ in range(30):
        loss = (a + b * LegendrePolynomial3.apply(c + d * x) - y).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for w in (a, b, c, d):
                w -= 5e-6 * w.grad
                w.grad = None
    return loss, a, b, c, d


def polynomial_with_layers(torch: Any) -> Any:
    x, y = sine(torch)
    powers = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3]))
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1))
    set_weights(torch, model)
    loss_fn = torch.nn.MSELoss(reduction="sum")
    for _ in range(30):
        loss = loss_fn(model(powers), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= 1e-6 * param.grad
    return loss, *model.parameters()


def polynomial_with_an_optimizer(torch: Any) -> Any:
    x, y = sine(torch)
    powers = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3]))
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1))
    set_weights(torch, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(10):
        loss = torch.nn.functional.mse_loss(model(powers), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss, *model.parameters()


def a_dynamic_net(torch: Any) -> Any:
    """The order of the polynomial changes from call to call; weights are used again."""

    class DynamicNet(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d, self.e = (
                torch.nn.Parameter(torch.tensor(v)) for v in (0.1, 0.2, -0.1, 0.05, 0.001)
            )

        def forward(self, x: Any, order: int) -> Any:
            y = self.a + self.b * x + self.c * x**2 + self.d * x**3
            for exp in range(4, order):
                y = y + self.e * x**exp
            return y

    x, y = sine(torch)
    model = DynamicNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8, momentum=0.9)
    for step in range(9):
        loss = (model(x, 4 + step % 3) - y).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss, *model.parameters()


# -- extending autograd --------------------------------------------------------------------------------


def linear_function(torch: Any) -> Any:
    """With an optional argument, and only those gradients that are needed."""
    asked = []

    class LinearFunction(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(input: Any, weight: Any, bias: Any) -> Any:
            output = input.mm(weight.t())
            if bias is not None:
                output += bias.unsqueeze(0).expand_as(output)
            return output

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad_output: Any) -> Any:
            input, weight, bias = ctx.saved_tensors
            asked.append(ctx.needs_input_grad)
            grad_input = grad_output.mm(weight) if ctx.needs_input_grad[0] else None
            grad_weight = grad_output.t().mm(input) if ctx.needs_input_grad[1] else None
            with_bias = bias is not None and ctx.needs_input_grad[2]
            return grad_input, grad_weight, grad_output.sum(0) if with_bias else None

    x = normal(torch, 4, 3, seed=1)
    w, b = normal(torch, 2, 3, seed=2, requires_grad=True), normal(torch, 2, seed=3, requires_grad=True)
    LinearFunction.apply(x, w, b).sin().sum().backward()
    LinearFunction.apply(x, w, None).cos().sum().backward()
    return w.grad, b.grad, asked


def functions_of_every_habit(torch: Any) -> Any:
    """A number as argument, no gradient for it; gradients that are not materialized; results without one."""

    class MulConstant(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, tensor: Any, constant: float) -> Any:
            ctx.set_materialize_grads(False)
            ctx.constant = constant
            return tensor * constant, tensor * 2

        @staticmethod
        def backward(ctx: Any, grad_output: Any, other: Any) -> Any:
            return None if grad_output is None else grad_output * ctx.constant, None

    class SortAndPlaces(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            values, places = x.sort()
            ctx.mark_non_differentiable(places)
            ctx.save_for_backward(places)
            return values, places

        @staticmethod
        def backward(ctx: Any, grad: Any, _: Any) -> Any:
            (places,) = ctx.saved_tensors
            return torch.zeros_like(grad).index_add(0, places, grad)

    class AddOne(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.add_(1)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 3

    x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    first, _ = MulConstant.apply(x, 5.0)
    values, places = SortAndPlaces.apply(x * 2)
    z = x * 1
    same = AddOne.apply(z)
    (first + values * torch.tensor([1.0, 10.0, 100.0]) + same).sum().backward()
    return x.grad, places, places.requires_grad, same is z


def cube_twice(torch: Any) -> Any:
    """Double backward of a Function that saves what it computed for it."""

    class Sinh(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            expx, expnegx = torch.exp(x), torch.exp(-x)
            ctx.save_for_backward(expx, expnegx)
            return (expx - expnegx) / 2, expx, expnegx

        @staticmethod
        def backward(ctx: Any, grad_out: Any, gexp: Any, gneg: Any) -> Any:
            expx, expnegx = ctx.saved_tensors
            return grad_out * (expx + expnegx) / 2 + gexp * expx - gneg * expnegx

    x = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(Sinh.apply(x)[0].sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first, second


def a_function_of_numpy(torch: Any) -> Any:
    class NumpyConvolution(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, kernel: Any) -> Any:
            x, kernel = x.detach(), kernel.detach()
            ctx.save_for_backward(x, kernel)
            return torch.from_numpy(np.correlate(x.numpy(), kernel.numpy(), mode="valid"))

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            x, kernel = (t.numpy() for t in ctx.saved_tensors)
            g = grad.numpy()
            to_x = torch.from_numpy(np.convolve(g, kernel, mode="full"))
            return to_x, torch.from_numpy(np.correlate(x, g, mode="valid"))

    x = normal(torch, 8, seed=4, requires_grad=True)
    kernel = normal(torch, 3, seed=5, requires_grad=True)
    y = NumpyConvolution.apply(x, kernel)
    y.pow(2).sum().backward()
    return y, x.grad, kernel.grad


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


PROGRAMS: list[Program] = [
    vector_jacobian_product, who_requires_grad, one_layer, the_jacobian_three_times, gradients_of_the_middle,
    names_along_the_graph, polynomial_by_hand, polynomial_by_autograd, polynomial_with_a_function,
    polynomial_with_layers, polynomial_with_an_optimizer, a_dynamic_net, linear_function,
    functions_of_every_habit, cube_twice, a_function_of_numpy, softmax_regression_from_scratch,
    a_module_and_a_loader, a_recurrent_net,
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


@needs_torch
@pytest.mark.parametrize("program", marked(PROGRAMS + YOUNGER))
def test_the_same_as_pytorch(program: Program) -> None:
    got, expected = flat(plain(program(kiln))), flat(plain(program(peer)))
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5) if isinstance(b, float) else a == b


@needs_kiln
@pytest.mark.parametrize("program", marked(PROGRAMS + YOUNGER))
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
