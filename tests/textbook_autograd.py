"""Programs of PyTorch's tutorials on autograd: first steps, a polynomial six ways, functions of one's own.

A program takes the framework as `torch` and returns what it computed. Data comes from NumPy, so that both see
the same; layers with random weights are given NumPy's. tests/autograd/test_textbook.py runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

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


PROGRAMS: list[Program] = [
    vector_jacobian_product, who_requires_grad, one_layer, the_jacobian_three_times, gradients_of_the_middle,
    names_along_the_graph, polynomial_by_hand, polynomial_by_autograd, polynomial_with_a_function,
    polynomial_with_layers, polynomial_with_an_optimizer, a_dynamic_net, linear_function,
    functions_of_every_habit, cube_twice, a_function_of_numpy,
]  # fmt: skip
