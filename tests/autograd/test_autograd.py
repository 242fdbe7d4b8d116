"""The backward engine: values against PyTorch, its interface, views, in-place ops, higher derivatives,
hooks.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from backend import WAYS, check_same, kiln, needs, normal, tensor, torch, values

from kiln.testing.compare import close, difference, same_bits, to_array

PROGRAMS = {
    "reused value": lambda k, x, w: (x * x + x).tanh() * x,
    "diamond": lambda k, x, w: (lambda y: k.exp(y) * k.sigmoid(y) + y)(x * 0.5),
    "broadcast": lambda k, x, w: x * w[0] + w[:, :1].t() - x[:, :1],
    "scalar operand": lambda k, x, w: 2 / (x * x + 1) + x**3 - 1.5,
    "product": lambda k, x, w: k.relu(x @ w) @ w.t(),
    "views": lambda k, x, w: x.t().reshape(-1)[::2] * x.reshape(-1)[1::2],
    "slices overlap": lambda k, x, w: x[:, 1:] * x[:, :-1],
    "expand": lambda k, x, w: x[:, None].expand(3, 3, 4) * x[None],
    "permute": lambda k, x, w: x[None].permute(2, 0, 1) * w[:, :1, None],
    "sum and mean": lambda k, x, w: x.sum(0) * x.mean(1, keepdim=True) + x.sum(),
    "amax": lambda k, x, w: x.amax(1, keepdim=True) * x,
    "gather": lambda k, x, w: x.gather(1, k.tensor([[0, 0], [3, 1], [2, 2]])),
    "scatter": lambda k, x, w: x.scatter_add(1, k.tensor([[0, 0], [3, 1], [2, 2]]), x[:, 2:]) * x,
    "cat": lambda k, x, w: k.cat([x, x * x, w.t()[:, :4]], 0) * 2 if w.shape[0] == 4 else x,
    "where": lambda k, x, w: k.where(x > 0, x * x, x * 0.1),
    "maximum": lambda k, x, w: k.maximum(x, x * 0.5 + 0.1) + k.minimum(x, w[0, 0]),
    "softmax": lambda k, x, w: k.softmax(x, 1) * x + k.log_softmax(x, 0),
    "layer_norm": lambda k, x, w: k.nn.functional.layer_norm(x, (4,), w[:, 0], w[:, 1]),
    "gelu": lambda k, x, w: k.nn.functional.gelu(x) + k.nn.functional.gelu(x, approximate="tanh"),
    "cross_entropy": lambda k, x, w: k.nn.functional.cross_entropy(x, k.tensor([0, 3, 1])),
    "linear": lambda k, x, w: k.nn.functional.linear(x, w.t(), w[0]),
    "cast": lambda k, x, w: (x.double() * 2).to(x.dtype) * x,
    "in place": lambda k, x, w: (x * 1).add_(w[0, 0]).mul_(x),
    "in place on a view": lambda k, x, w: _write_row(x * 1, x),
    "slice assigned": lambda k, x, w: _assign(x * 1, x),
    "copy_ into": lambda k, x, w: k.zeros(3, 4, dtype=x.dtype).copy_(x) * x,
    "detached": lambda k, x, w: x.detach() * x + x,
    "equal maxima": lambda k, x, w: (x * 0 + 1).amax(1) * x.sum(1),
}  # fmt: skip


def _write_row(y: Any, x: Any) -> Any:
    y[0].mul_(x[1])
    return y * y


def _assign(y: Any, x: Any) -> Any:
    y[:, 1:3] = x[:, :2] * 2
    y[0] = 0.5
    return y * x


def operands(framework: Any, dtype: Any = np.float64) -> tuple[Any, Any]:
    """x of (3, 4) and w of (4, 4), leaves that require grad."""
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in ((3, 4), (4, 4))]
    return tuple(framework.from_numpy(a).clone().requires_grad_() for a in arrays)  # type: ignore[return-value]


def result_and_gradients(framework: Any, name: str, x: Any, w: Any) -> list[Any]:
    """The program's value and the gradients of a weighted sum of it."""
    y = PROGRAMS[name](framework, x, w)
    weights = framework.from_numpy(np.linspace(0.5, 2.0, int(np.prod(y.shape))).reshape(tuple(y.shape)))
    (y * weights.to(y.dtype)).sum().backward()
    return [y, x.grad, w.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_pytorch(name: str, answers: Any) -> None:
    """Values and gradients as PyTorch's, None where it has None."""
    got = result_and_gradients(kiln, name, *operands(kiln))
    inputs = [PROGRAMS[name], result_and_gradients, operands]
    expected = answers(inputs, lambda: result_and_gradients(torch, name, *operands(torch)))
    for x, y in zip(got, expected, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            a, b = to_array(x), to_array(y)
            assert close(a, b, "float64"), difference(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_recorded(name: str) -> None:
    """Forward and backward in one region: every bit as eager, in float32."""
    check_same(
        lambda x, w: result_and_gradients(kiln, name, x, w), lambda: operands(kiln, np.float32), calls=4
    )


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("equal maxima", "detached", "cast")])
def test_first_and_second_derivatives(name: str) -> None:
    """Against central differences, in float64."""
    x, w = operands(kiln)
    kiln.autograd.gradcheck(lambda x, w: PROGRAMS[name](kiln, x, w), (x, w))
    kiln.autograd.gradgradcheck(lambda x, w: PROGRAMS[name](kiln, x, w), (x, w), atol=1e-4)


# -- the interface ------------------------------------------------------------------------------------------


@WAYS
def test_accumulation(way: Any) -> None:
    """backward adds onto .grad; setting it to None starts over."""

    def program(x: Any) -> Any:
        (x * 2).sum().backward()
        (x * 3).sum().backward()
        first = x.grad.clone()
        x.grad = None
        (x * 4).sum().backward()
        return first, x.grad

    first, second = way(program)(tensor(1, 2, grad=True))
    assert values(first) == [5.0, 5.0]
    assert values(second) == [4.0, 4.0]


LAYOUTS = {
    "transposed": lambda k: k.arange(12.0).reshape(4, 3).t(),
    "permuted": lambda k: k.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
    "channels last": lambda k: k.arange(120.0).reshape(2, 4, 5, 3).permute(0, 3, 1, 2),
    "with an offset": lambda k: k.arange(24.0).reshape(2, 4, 3)[1].t(),
    "a dim of 1": lambda k: k.arange(12.0).reshape(4, 1, 3).permute(2, 1, 0),
    "a column": lambda k: k.arange(12.0).reshape(4, 3)[:1].t(),
    "no elements": lambda k: k.zeros(4, 0, 3).permute(2, 1, 0),
    "expanded": lambda k: k.arange(3.0).reshape(3, 1).expand(3, 4),
    "with gaps": lambda k: k.arange(24.0).reshape(4, 6)[:, ::2].t(),
    "0-d": lambda k: k.arange(4.0)[1],
}


def gradients_by_layout(framework: Any, name: str, create_graph: bool, way: Any) -> list[Any]:
    """The .grad of a leaf after various programs: its values, its strides where they matter, its flag."""
    x = LAYOUTS[name](framework).detach().requires_grad_()
    seen = []

    def step(loss: Any, grad: Any) -> None:
        x.grad = grad
        for _ in range(2):  # the second adds onto the first
            before = x.grad
            way(lambda: loss(x).backward(create_graph=create_graph))()
            assert before is None or (x.grad is before) != create_graph
            steps = [s for n, s in zip(x.shape, x.grad.stride(), strict=True) if n > 1] if x.numel() else []
            seen.append([x.grad.tolist(), steps, x.grad.requires_grad])

    step(lambda x: (x * x).sum(), None)
    step(lambda x: x.sum(), None)
    step(lambda x: (x.reshape(-1) ** 2).sum(), None)
    step(lambda x: (x * x).sum(), framework.zeros(x.shape))  # the user's keeps its own steps
    if x.ndim == 2:
        step(lambda x: (x.t() @ framework.ones(x.shape[0], 2)).sum(), None)  # of a product, transposed
    if create_graph:
        x.grad = None
        (x * x * x).sum().backward(create_graph=True)
        x.grad.sum().backward()
        seen.append(x.grad.tolist())
    return seen


@pytest.mark.filterwarnings("ignore::UserWarning")
@WAYS
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_grad_lies_in_memory_as_its_leaf(name: str, create_graph: bool, way: Any, answers: Any) -> None:
    """Rule 18: a leaf without gaps has a .grad of its own strides, another leaf a row-major one."""
    inputs = [LAYOUTS[name], gradients_by_layout]
    expected = answers(inputs, lambda: gradients_by_layout(torch, name, create_graph, lambda f: f))
    assert gradients_by_layout(kiln, name, create_graph, way) == expected


@WAYS
def test_grad_does_not_accumulate(way: Any) -> None:
    """autograd.grad returns and leaves .grad alone; inputs may be results."""

    def program(x: Any) -> Any:
        y = x * x
        z = (y * 3).sum()
        return kiln.autograd.grad(z, (x, y))

    x = tensor(1, 2, grad=True)
    gx, gy = way(program)(x)
    assert values(gx) == [6.0, 12.0]
    assert values(gy) == [3.0, 3.0]
    assert x.grad is None


@WAYS
def test_backward_with_inputs(way: Any) -> None:
    """inputs= names the only leaves that accumulate."""
    x, y = tensor(1, grad=True), tensor(2, grad=True)
    way(lambda x, y: (x * y).sum().backward(inputs=[x]))(x, y)
    assert values(x.grad) == [2.0]
    assert y.grad is None


@WAYS
def test_several_roots(way: Any) -> None:
    """autograd.backward of several tensors with a gradient each."""
    x = tensor(1, 2, grad=True)

    def program(x: Any) -> None:
        kiln.autograd.backward((x * 2, (x * x).sum()), (kiln.ones(2), None))

    way(program)(x)
    assert values(x.grad) == [4.0, 6.0]


def test_leaves_and_results() -> None:
    """is_leaf, requires_grad and grad_fn say what a tensor is."""
    x = tensor(1, 2, grad=True)
    y = x * 2
    assert (x.is_leaf, y.is_leaf, x.grad_fn is None, y.grad_fn is None) == (True, False, True, False)
    assert (x.requires_grad, y.requires_grad, y.detach().requires_grad) == (True, True, False)
    assert tensor(1).is_leaf
    assert not kiln.ones(2).requires_grad
    assert "Mul" in type(y.grad_fn).__name__ or "mul" in str(y.grad_fn).lower()


def test_integers_have_no_gradient() -> None:
    """Comparisons, argmax and integer casts cut the graph."""
    x = tensor(1, 2, grad=True)
    for y in (x > 0, x.argmax(0), x.long(), x == x):
        assert not y.requires_grad


@needs("Tensor.retain_grad")
def test_retain_grad() -> None:
    """A result keeps its gradient when asked to."""
    x = tensor(1, 2, grad=True)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    assert values(y.grad) == [4.0, 8.0]


def test_detach_shares_memory() -> None:
    """A write through a detached alias is seen, and noticed at backward."""
    x = tensor(1, 2, grad=True)
    y = x * 1
    z = y * y
    y.detach().zero_()
    assert values(y) == [0.0, 0.0]
    with pytest.raises(RuntimeError, match=r"in-?place"):
        z.sum().backward()


def test_backward_of_a_0d_and_an_expanded_gradient() -> None:
    """A gradient with stride 0 is accumulated whole."""
    x = tensor(1, 2, 3, grad=True)
    x.sum().backward()
    x.grad.add_(1)
    assert values(x.grad) == [2.0, 2.0, 2.0]


# -- views and in-place ops ------------------------------------------------------------------------


@WAYS
def test_a_write_to_the_base_is_seen_by_its_view(way: Any) -> None:
    """A view made before the write gives the gradient after it."""

    def program(x: Any) -> Any:
        y = x * 1
        row = y[0]
        y.mul_(3)
        (row * row).sum().backward()
        return row, x.grad

    row, grad = way(program)(kiln.ones(2, 2).requires_grad_())
    assert values(row) == [3.0, 3.0]
    assert values(grad) == [[18.0, 18.0], [0.0, 0.0]]


@WAYS
def test_a_write_to_a_view_is_seen_by_its_base(way: Any) -> None:
    """The base's graph goes through the write."""

    def program(x: Any, w: Any) -> Any:
        y = x * 1
        y[0].mul_(w)
        y.t()[1].add_(1)
        y.sum().backward()
        return y, x.grad, w.grad

    y, gx, gw = way(program)(kiln.ones(2, 2).requires_grad_(), tensor(5, 7, grad=True))
    assert values(y) == [[5.0, 8.0], [1.0, 2.0]]
    assert values(gx) == [[5.0, 7.0], [1.0, 1.0]]
    assert values(gw) == [1.0, 1.0]


@WAYS
def test_a_constant_that_receives_a_gradient(way: Any) -> None:
    """A plain buffer becomes part of the graph by a write of something that requires grad."""

    def program(x: Any) -> Any:
        buffer = kiln.zeros(2, 2)
        buffer[0] = x
        buffer[1] = x * 2
        assert buffer.requires_grad
        (buffer * buffer).sum().backward()
        return buffer, x.grad

    buffer, grad = way(program)(tensor(1, 2, grad=True))
    assert values(buffer) == [[1.0, 2.0], [2.0, 4.0]]
    assert values(grad) == [10.0, 20.0]


@WAYS
def test_overwritten_parts_give_no_gradient(way: Any) -> None:
    """zero_, copy_ and assignment cut what was there."""

    def program(x: Any, w: Any) -> Any:
        y = x * 3
        y[0].zero_()
        y[1].copy_(w)
        y.sum().backward()
        return x.grad, w.grad

    gx, gw = way(program)(kiln.ones(3, 2).requires_grad_(), tensor(1, 1, grad=True))
    assert values(gx) == [[0.0, 0.0], [0.0, 0.0], [3.0, 3.0]]
    assert values(gw) == [1.0, 1.0]


# -- higher derivatives ----------------------------------------------------------------------------


@WAYS
def test_third_derivative(way: Any) -> None:
    """Gradients of gradients of gradients."""

    def program(x: Any) -> Any:
        y = (x**4).sum()
        found = []
        for _ in range(3):
            (y,) = kiln.autograd.grad(y.sum(), x, create_graph=True)
            found.append(y)
        return found

    one, two, three = way(program)(tensor(1, 2, grad=True))
    assert [values(g) for g in (one, two, three)] == [[4.0, 32.0], [12.0, 48.0], [24.0, 48.0]]


@WAYS
def test_gradient_penalty(way: Any) -> None:
    """A loss of a gradient trains the weights under it."""

    def program(x: Any, w: Any) -> Any:
        y = kiln.tanh(x @ w).sum()
        (g,) = kiln.autograd.grad(y, x, create_graph=True)
        ((g * g).sum() - 1).pow(2).backward()
        return g, w.grad

    args = (normal(3, 4).requires_grad_(), normal(4, 2, seed=1).requires_grad_())
    g, grad = way(program)(*args)
    if torch is not None:
        x, w = (torch.from_numpy(to_array(a)).requires_grad_() for a in args)
        y = torch.tanh(x @ w).sum()
        (h,) = torch.autograd.grad(y, x, create_graph=True)
        ((h * h).sum() - 1).pow(2).backward()
        assert close(to_array(g), to_array(h), "float32", 10)
        assert close(to_array(grad), to_array(w.grad), "float32", 10)


def test_eager_and_rebuilt_gradients_agree() -> None:
    """create_graph changes what can be differentiated, not a bit of the gradient."""
    if not kiln.is_kiln:
        pytest.skip("PyTorch makes no such promise")
    for name in PROGRAMS:
        grads = []
        for create in (False, True):
            x, w = operands(kiln, np.float32)
            y = PROGRAMS[name](kiln, x, w).sum()
            grads.append(kiln.autograd.grad(y, (x,), create_graph=create, allow_unused=True)[0])
        if grads[0] is not None:
            assert same_bits(*(to_array(g) for g in grads)), name


@needs("autograd.Function")
@WAYS
def test_custom_function(way: Any) -> None:
    """A user's own forward and backward, saving tensors and numbers."""

    class Scale(kiln.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            ctx.save_for_backward(x)
            ctx.factor = factor
            return x * x * factor

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * ctx.factor * x * g, None

    def program(x: Any) -> Any:
        Scale.apply(x, 3.0).sum().backward()
        return x.grad

    assert values(way(program)(tensor(1, 2, grad=True))) == [6.0, 12.0]


def _mixed(y: Any, x: Any, places: tuple[int, ...]) -> float:
    """The derivative of a scalar y by x at each of `places` in turn."""
    for place in places:
        if not y.requires_grad:
            return 0.0
        (g,) = kiln.autograd.grad(y, (x,), create_graph=True, allow_unused=True)
        y = kiln.zeros(()) if g is None else g[place]
    return float(y.item())


@pytest.mark.parametrize("zeros", [0, 1, 2, 3, 4])
def test_derivatives_of_a_product_with_zeros(zeros: int) -> None:
    """The first three derivatives of prod are the products of the factors left, whatever is zero."""
    factors = [2.0, 3.0, -1.5, 0.5][: max(1, 4 - zeros)] + [0.0] * zeros
    for order in (1, 2, 3):
        for places in itertools.product(range(len(factors)), repeat=order):
            left = [f for k, f in enumerate(factors) if k not in places]
            expected = float(np.prod(left)) if len(set(places)) == order else 0.0
            x = kiln.tensor(factors, dtype=kiln.float64, requires_grad=True)
            assert _mixed(x.prod(), x, places) == pytest.approx(expected), (factors, places)


def test_the_gradient_of_a_maximum_is_a_constant() -> None:
    """Where each gradient goes does not depend smoothly on x: the gradient of amax has no history."""
    x = tensor(1, 3, 3, grad=True)
    (g,) = kiln.autograd.grad(x.amax(0), (x,), create_graph=True)
    assert values(g) == [0.0, 0.5, 0.5]
    assert not g.requires_grad
    (g,) = kiln.autograd.grad((x.amax(0) * x).sum(), (x,), create_graph=True)
    assert g.requires_grad


@pytest.mark.parametrize(
    "shapes", [((3, 1), (4,)), ((4,), (3, 1)), ((5, 1, 2), (5, 2)), ((), (3,)), ((3,), ())]
)
def test_a_gradient_that_reads_nothing_has_the_result_s_shape(shapes: Any, answers: Any) -> None:
    """A gradient of zeros is summed from the shape of the result, not from that of the other operand."""

    def gradients(lib: Any, shapes: Any) -> list[Any]:
        x, y = (lib.ones(s, dtype=lib.float64).mul(k).requires_grad_() for s, k in zip(shapes, (7, 2)))
        _, g = lib.autograd.grad(lib.remainder(x, y).sum(), (x, y), create_graph=True)
        again = lib.autograd.grad((g * y).sum(), (x, y), allow_unused=True)
        return [v.tolist() for v in (g, *again)]

    ours, theirs = answers.both(gradients, shapes)
    assert ours == theirs
    x, y = (kiln.ones(s, requires_grad=True) for s in shapes)
    assert [g.shape for g in kiln.autograd.grad(kiln.floor_divide(x, y).sum(), (x, y))] == [*shapes]


@pytest.mark.parametrize("create_graph", [False, True])
def test_numbers_made_of_numbers_are_exact(create_graph: bool) -> None:
    """A derivative's exponent less one has a number's digits, in float64 too, however the derivative runs."""
    x = kiln.tensor([0.3, 1.7, 2.9], dtype=kiln.float64, requires_grad=True)
    (g,) = kiln.autograd.grad((x**2.7).sum(), x, create_graph=create_graph)
    expected = [2.7 * v**1.7 for v in x.tolist()]
    assert g.tolist() == pytest.approx(expected, rel=1e-14, abs=0)
    assert kiln.add(2.0, 3.0).dtype == kiln.div(2, 3).dtype == kiln.float32
    assert kiln.mul(2, 3).dtype == kiln.int64
