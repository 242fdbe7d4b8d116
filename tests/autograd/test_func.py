"""kiln.func beside torch.func: transforms, nested; histories; modules as functions; programs people write."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import WAYS, filled, kiln, needs_kiln, torch

pytestmark = needs_kiln


def leaves(result: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(result, dict):
        result = list(result.values())
    return [y for x in result for y in leaves(x)] if isinstance(result, (tuple, list)) else [result]


def mlp(p: Any, x: Any) -> Any:
    return (x @ p[0] + p[1]).tanh() @ p[2]


def loss(p: Any, x: Any, y: Any) -> Any:
    return ((mlp(p, x) - y) ** 2).mean()


def square(x: Any) -> Any:
    return x.softmax(0) ** 2


def bent(x: Any) -> Any:
    return x.sin() * x.sum()


SMALL = [(3, 5), (5,), (5, 2), (6, 3), (6, 2)]  # an MLP's parameters, inputs and targets
# what it is, the program (m, F = m.func, tensors), shapes of the tensors
PROGRAMS: list[tuple[str, Callable[..., Any], list[tuple[int, ...]]]] = [
    ("grad", lambda m, F, x: F.grad(lambda x: (x**3).sum())(x), [(3,)]),
    ("grad grad", lambda m, F, x: F.grad(F.grad(lambda x: (x**3).sin()))(x), [()]),
    ("grad grad grad", lambda m, F, x: F.grad(F.grad(F.grad(lambda x: (x**3).sin())))(x), [()]),
    ("vmap grad", lambda m, F, x: F.vmap(F.grad(lambda x: (x**3).sum()))(x), [(4, 3)]),
    ("per sample", lambda m, F, *a: F.vmap(F.grad(loss), (None, 0, 0))(a[:3], *a[3:]), SMALL),
    (
        "grad vmap",
        lambda m, F, *a: F.grad(lambda p: F.vmap(loss, (None, 0, 0))(p, *a[3:]).sum())(a[:3]),
        SMALL,
    ),
    ("jacrev", lambda m, F, x: F.jacrev(square)(x), [(3,)]),
    ("jacfwd", lambda m, F, x: F.jacfwd(square)(x), [(3,)]),
    ("jacrev chunks", lambda m, F, x: F.jacrev(square, chunk_size=2)(x), [(5,)]),
    (
        "jacrev trees",
        lambda m, F, x, y: F.jacrev(lambda x, y: (x * y, {"a": x.sum() * y}), (0, 1))(x, y),
        [(3,), (3,)],
    ),
    (
        "jacfwd trees",
        lambda m, F, x, y: F.jacfwd(lambda x, y: (x * y, {"a": x.sum() * y}), (0, 1))(x, y),
        [(3,), (3,)],
    ),
    ("jacrev aux", lambda m, F, x: F.jacrev(lambda x: (x * x, x.sum()), has_aux=True)(x), [(3,)]),
    ("hessian", lambda m, F, x: F.hessian(lambda x: square(x).sum())(x), [(3,)]),
    ("hessian of two", lambda m, F, x, y: F.hessian(lambda x, y: (x * y).prod(), (0, 1))(x, y), [(3,), (3,)]),
    ("vmap hessian", lambda m, F, x: F.vmap(F.hessian(lambda x: square(x).sum()))(x), [(4, 3)]),
    ("vmap jacrev", lambda m, F, x: F.vmap(F.jacrev(square))(x), [(4, 3)]),
    ("vmap jacfwd", lambda m, F, x: F.vmap(F.jacfwd(square))(x), [(4, 3)]),
    ("jacrev vmap", lambda m, F, x: F.jacrev(F.vmap(square))(x), [(4, 3)]),
    ("jacfwd jacrev", lambda m, F, x: F.jacfwd(F.jacrev(bent))(x), [(3,)]),
    ("three jacrevs", lambda m, F, x: F.jacrev(F.jacrev(F.jacrev(lambda x: (x**4).sum())))(x), [(2,)]),
    ("jvp", lambda m, F, x, t: F.jvp(bent, (x,), (t,)), [(3,), (3,)]),
    ("jvp jvp", lambda m, F, x, t: F.jvp(lambda x: F.jvp(bent, (x,), (t,))[1], (x,), (t,)), [(3,), (3,)]),
    ("vmap jvp", lambda m, F, x, t: F.vmap(lambda x, t: F.jvp(bent, (x,), (t,))[1])(x, t), [(4, 3), (4, 3)]),
    ("vmap jvp along", lambda m, F, x, t: F.vmap(lambda t: F.jvp(bent, (x,), (t,))[1])(t), [(3,), (4, 3)]),
    ("grad jvp", lambda m, F, x, t: F.grad(lambda x: F.jvp(bent, (x,), (t,))[1].sum())(x), [(3,), (3,)]),
    ("vjp", lambda m, F, x, t: F.vjp(bent, x)[1](t), [(3,), (3,)]),
    ("vmap of vjp_fn", lambda m, F, x, t: F.vmap(F.vjp(bent, x)[1])(t), [(3,), (4, 3)]),
    ("linearize", lambda m, F, x, t: F.vmap(F.linearize(bent, x)[1])(t), [(3,), (4, 3)]),
    ("nested maps", lambda m, F, x: F.vmap(F.vmap(F.grad(lambda x: x.exp().sum())))(x), [(4, 3, 2)]),
    (
        "nested maps of two",
        lambda m, F, x, y: F.vmap(F.vmap(F.grad(lambda x, y: (x * y).exp().sum()), (None, 0)), (0, None))(
            x, y
        ),
        [(4, 3), (2, 3)],
    ),
    (
        "vmap grad vmap",
        lambda m, F, x: F.vmap(F.grad(lambda x: F.vmap(lambda y: y**2)(x).sum()))(x),
        [(4, 3)],
    ),
    (
        "vmap grad grad",
        lambda m, F, x: F.vmap(F.grad(lambda x: F.grad(lambda y: (y**3).sum())(x).sum()))(x),
        [(4, 3)],
    ),
    ("aux", lambda m, F, x: F.grad_and_value(lambda x: ((x**2).sum(), x * 2), has_aux=True)(x), [(3,)]),
    ("two arguments", lambda m, F, x, y: F.grad(lambda x, y: (x * 2).sum(), (0, 1))(x, y), [(3,), (3,)]),
    ("a constant", lambda m, F, x: F.vmap(F.grad(lambda x: m.tensor(3.0).double()))(x), [(3,)]),
    ("a branch in jacrev", lambda m, F, x: F.jacrev(lambda x: x * x if x.sum() > -99 else -x)(x), [(3,)]),
    ("no_grad inside", lambda m, F, x: F.grad(lambda x: (x * stopped(m, x)).sum())(x), [(3,)]),
    ("inverse", lambda m, F, x: F.jacrev(m.linalg.inv)(x), [(3, 3)]),
]


def stopped(m: Any, x: Any) -> Any:
    with m.no_grad():
        return x * x


@pytest.mark.parametrize("name", [name for name, *_ in PROGRAMS])
def test_programs_beside_torch(name: str, answers: Any) -> None:
    """The same tensors in the same trees, without history."""
    _, function, shapes = next(p for p in PROGRAMS if p[0] == name)

    def results(m: Any) -> list[Any]:
        rng = np.random.default_rng(0)
        return leaves(function(m, m.func, *[m.tensor(rng.normal(size=s)) for s in shapes]))

    found = results(kiln)
    for ours, theirs in zip(found, answers([results, function], lambda: results(torch)), strict=True):
        assert not ours.requires_grad
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-7, atol=1e-9)


MISTAKES: list[tuple[str, Callable[[Any, Any, Any], Any]]] = [
    ("to return a scalar", lambda m, F, x: F.grad(lambda x: x)(x)),
    ("Expected f.* to return a", lambda m, F, x: F.grad(lambda x: 3)(x)),
    ("Expected f.* to return a", lambda m, F, x: F.grad(lambda x: (x.sum(), 2))(x)),
    ("should be a tuple: .output, aux.", lambda m, F, x: F.grad(lambda x: x.sum(), has_aux=True)(x)),
    ("floating point dtype can require gradients", lambda m, F, x: F.grad(lambda x: x.sum())(m.arange(3))),
    ("must be Tensor, got", lambda m, F, x: F.grad(lambda x: x)(3.0)),
    ("Got argnum=2, but only 1", lambda m, F, x: F.grad(lambda x: x.sum(), argnums=2)(x)),
    ("must be unique", lambda m, F, x: F.grad(lambda x, y: x.sum(), argnums=(0, 0))(x, x)),
    ("to return only tensors", lambda m, F, x: F.vjp(lambda x: 3, x)),
    ("to return only tensors", lambda m, F, x: F.jacrev(lambda x: 3)(x)),
    ("Expected pytree structure of cotangents", lambda m, F, x: F.vjp(lambda x: x, x)[1]((x, x))),
    ("Expected primals to be a tuple", lambda m, F, x: F.jvp(lambda x: x, x, x)),
    ("same python structure", lambda m, F, x: F.jvp(lambda x: x, (x,), (x, x))),
    ("different size than that of the original", lambda m, F, x: F.jvp(lambda x: x, (x,), (x[0],))),
    ("at least one model", lambda m, F, x: F.stack_module_state([])),
    ("same class", lambda m, F, x: F.stack_module_state([m.nn.Linear(1, 1), m.nn.ReLU()])),
    ("same training/eval", lambda m, F, x: F.stack_module_state([m.nn.ReLU(), m.nn.ReLU().eval()])),
    ("has no (attribute|module)", lambda m, F, x: F.functional_call(m.nn.Linear(2, 2), {"foo.x": x}, x)),
    ("Unexpected key", lambda m, F, x: F.functional_call(m.nn.Linear(2, 2), {"foo": x}, x, strict=True)),
    ("not an instance of", lambda m, F, x: F.functional_call(m.nn.Linear(2, 2), {"bias": 3}, x)),
    ("Missing key", lambda m, F, x: F.functional_call(m.nn.Linear(2, 2), {"bias": x[0]}, x, strict=True)),
    (
        "behavior of functional call is ambiguous",
        lambda m, F, x: F.functional_call(m.nn.Linear(2, 2), [{"bias": x}] * 2, x),
    ),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_told_as_torch_tells_them(number: int, answers: Any) -> None:
    """The same exception, with its key phrase."""
    match, call = MISTAKES[number]
    with pytest.raises(Exception, match=match) as theirs:
        answers([call, match], lambda: str(call(torch, torch.func, torch.ones(2, 2))))
    with pytest.raises(theirs.type, match=match):
        call(kiln, kiln.func, kiln.ones(2, 2))


# -- histories ---------------------------------------------------------------------------------------------


def test_what_requires_grad_outside_can_be_differentiated() -> None:
    """Through an argument and through what the function reads; `.grad` fills by backward() alone."""
    x = kiln.tensor([1.0, 2.0], requires_grad=True)
    w = kiln.tensor([3.0, 4.0], requires_grad=True)
    g = kiln.func.grad(lambda x: (w * x**3).sum())(x)
    assert x.grad is None and w.grad is None
    g.sum().backward()
    assert x.grad.tolist() == [18.0, 48.0]
    assert w.grad.tolist() == [3.0, 12.0]
    g = kiln.vmap(kiln.func.grad(lambda x: (w * x**3).sum()))(kiln.ones(3, 2))
    w.grad = None
    g.sum().backward()
    assert w.grad.tolist() == [9.0, 9.0]


def test_levels_do_not_leak() -> None:
    """Nothing outside requires grad: nothing that comes back does, values and aux included."""
    x = kiln.tensor([1.0, 2.0])
    grads, (value, aux) = kiln.func.grad_and_value(lambda x: ((x**2).sum(), [x, x * 3]), has_aux=True)(x)
    assert not any(t.requires_grad for t in (grads, value, *aux))
    assert not kiln.func.vjp(lambda x: x * 2, x)[0].requires_grad
    outer = kiln.func.grad_and_value(lambda x: kiln.func.grad(lambda c: (c**3).sum())(kiln.ones(2)).sum())
    assert not any(t.requires_grad for t in outer(x))
    assert not x.requires_grad


def test_no_grad_outside() -> None:
    """The function is differentiated all the same; the result has no history."""
    x = kiln.tensor([1.0, 2.0], requires_grad=True)
    with kiln.no_grad():
        g = kiln.func.grad(lambda x: (x**2).sum())(x)
        assert not kiln.is_grad_enabled()
    assert g.tolist() == [2.0, 4.0]
    assert not g.requires_grad


def test_nothing_is_kept() -> None:
    """What a transform made is gone with its result, without the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        x = kiln.ones(4)
        seen = weakref.ref(x)
        g = kiln.func.hessian(lambda x: (x**3).sum())(x)
        del x
        assert seen() is None
        assert g.shape == (4, 4)
    finally:
        gc.enable()
    before = None
    for _ in range(3):
        kiln.vmap(kiln.func.grad(lambda x: square(x).sum()))(kiln.ones(8, 4))
        now = kiln.memory_stats()["allocated_bytes"]
        assert before is None or now == before
        before = now


# -- autograd.grad: batches of gradients, inside vmap ------------------------------------------------------


def test_classic_jacobian() -> None:
    """vmap over autograd.grad, and is_grads_batched, are one pass."""
    x = kiln.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = (x**2).cumsum(0)
    want = [[2.0, 0.0, 0.0], [2.0, 4.0, 0.0], [2.0, 4.0, 6.0]]
    rows = kiln.vmap(lambda v: kiln.autograd.grad(y, x, v, retain_graph=True)[0])(kiln.eye(3))
    assert rows.tolist() == want
    (rows,) = kiln.autograd.grad(y, x, kiln.eye(3), is_grads_batched=True, create_graph=True)
    assert rows.tolist() == want
    assert kiln.autograd.grad(rows.sum(), x)[0].tolist() == [6.0, 4.0, 2.0]
    with pytest.raises(RuntimeError, match="interpret the first dimension of each grad_output"):
        kiln.autograd.grad((x**2).sum(), x, kiln.ones(2, 3), is_grads_batched=True)


def test_gradients_of_samples() -> None:
    """autograd.grad of samples of a tensor that requires grad."""
    x = kiln.arange(6.0).reshape(3, 2).requires_grad_()
    got = kiln.vmap(lambda x: kiln.autograd.grad((x * x).sum(), x)[0])(x)
    assert got.tolist() == (2 * x).tolist()
    shared = kiln.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"use kiln\.func\.grad"):
        kiln.vmap(lambda x: kiln.autograd.grad((x * shared).sum(), shared)[0])(x)


def test_hooks_see_a_gradient() -> None:
    """In a pass with a batch, a hook and a user's function get one gradient of it."""
    x = kiln.tensor([1.0, 2.0], requires_grad=True)
    y = x**2
    shapes = []
    y.register_hook(lambda g: shapes.append(tuple(g.shape)) or g * 2)
    (rows,) = kiln.autograd.grad(y * 1.0, x, kiln.eye(2), is_grads_batched=True)
    assert shapes == [(2,)]
    assert rows.tolist() == [[4.0, 0.0], [0.0, 8.0]]


def functions(m: Any) -> tuple[Any, Any]:
    """User functions: one mapped by its own ops, one with a vmap of its own."""

    class Product(m.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    class Double(m.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def vmap(info, in_dims, x):
            assert info.batch_size == 3
            return Double.apply(x), in_dims[0]

    return Product.apply, Double.apply


USER: list[Callable[..., Any]] = [
    lambda F, product, double, x, w: F.vmap(lambda x: product(x, w))(x),
    lambda F, product, double, x, w: F.vmap(F.grad(lambda x, w: product(x, w).sum(), (0, 1)), (0, None))(
        x, w
    ),
    lambda F, product, double, x, w: F.grad(lambda w: F.vmap(lambda x: product(x, w))(x).sum())(w),
    lambda F, product, double, x, w: F.vmap(F.grad(F.grad(lambda x: product(x, x) * x)))(x[:, 0]),
    lambda F, product, double, x, w: F.jacrev(lambda x: product(x, x))(w),
    lambda F, product, double, x, w: F.vmap(F.grad(lambda x: double(x).sum()))(x),
]


@pytest.mark.parametrize("number", range(len(USER)))
def test_user_functions_beside_torch(number: int, answers: Any) -> None:
    """autograd.Function inside vmap and grad."""

    def results(m: Any) -> list[Any]:
        x, w = m.arange(6.0).reshape(3, 2), m.tensor([1.0, 2.0])
        return leaves(USER[number](m.func, *functions(m), x, w))

    wanted = answers([results, USER[number], functions], lambda: results(torch))
    for ours, theirs in zip(results(kiln), wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy())


def test_user_function_without_a_rule() -> None:
    class Plain(kiln.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    with pytest.raises(RuntimeError, match="does not have vmap support"):
        kiln.vmap(Plain.apply)(kiln.ones(3))


# -- modules, and programs people write --------------------------------------------------------------------


def network(m: Any) -> Any:
    return m.nn.Sequential(m.nn.Linear(4, 8), m.nn.ReLU(), m.nn.LayerNorm(8), m.nn.Linear(8, 3)).double()


def classified(m: Any, net: Any) -> Callable[..., Any]:
    def function(p: Any, x: Any, y: Any) -> Any:
        return m.nn.functional.cross_entropy(m.func.functional_call(net, p, (x,)), y)

    return function


def data(m: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return m.tensor(rng.normal(size=(8, 4))), m.tensor(rng.integers(0, 3, 8))


def per_sample(m: Any, net: Any) -> Any:
    x, y = data(m)
    params = {k: p.detach() for k, p in net.named_parameters()}
    return m.func.vmap(m.func.grad(classified(m, net)), (None, 0, 0))(params, x[:, None], y[:, None])


def ensemble(m: Any, net: Any) -> Any:
    params, buffers = m.func.stack_module_state([net, net, net])
    x, _ = data(m)
    with m.no_grad():
        for k, p in enumerate(params.values()):
            p.mul_(m.arange(3.0).reshape(3, *[1] * (p.ndim - 1)) + k)
    call = m.func.vmap(lambda p, b, x: m.func.functional_call(net, (p, b), (x,)), (0, 0, None))
    out = call(params, buffers, x)
    out.pow(2).sum().backward()
    return out.detach(), [p.grad for p in params.values()]


def newton(m: Any, net: Any) -> Any:
    x = m.tensor([2.0, -1.0]).double()
    f = lambda x: (1 - x[0]) ** 2 + 5 * (x[1] - x[0] ** 2) ** 2  # noqa: E731
    for _ in range(6):
        x = x - m.linalg.solve(m.func.hessian(f)(x), m.func.grad(f)(x))
    return x


def physics(m: Any, net: Any) -> Any:
    """u'' + u at points of time, and its gradient with respect to the network."""
    rng = np.random.default_rng(2)
    p = [m.tensor(rng.normal(size=s), requires_grad=True) for s in ((1, 6), (6,), (6, 1))]
    u = lambda t: mlp(p, t.reshape(1, 1))[0, 0]  # noqa: E731
    residual = m.func.vmap(lambda t: m.func.grad(m.func.grad(u))(t) + u(t))(m.linspace(0, 1, 5).double())
    (residual**2).mean().backward()
    return residual.detach(), [x.grad for x in p]


@pytest.mark.parametrize("program", [per_sample, ensemble, newton, physics])
def test_programs_people_write_beside_torch(program: Callable[..., Any], answers: Any) -> None:
    """Per-sample gradients, an ensemble, Newton's method, a physics-informed loss."""

    def run(m: Any, program: Callable[..., Any], used: Any) -> list[Any]:
        return leaves(program(m, filled(m, network(m))))

    found, wanted = answers.both(run, program, [network, classified, data, mlp])
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-6, atol=1e-8)


def test_maml(answers: Any) -> None:
    """An inner step of gradient descent per task, mapped, and its outer gradient: as PyTorch task by task."""

    def run(m: Any, used: Any) -> list[Any]:
        net = filled(m, network(m))
        params, function = dict(net.named_parameters()), classified(m, net)

        def task(x, y):
            g = m.func.grad(function)(params, x[:1], y[:1])
            return function({k: params[k] - 0.1 * g[k] for k in params}, x[1:], y[1:])

        x, y = data(m)
        x, y = x.reshape(4, 2, 4), y.reshape(4, 2)
        total = m.vmap(task)(x, y).sum() if m.is_kiln else sum(task(*both) for both in zip(x, y))
        total.backward()
        return [p.grad.numpy() for p in params.values()]

    for ours, theirs in zip(*answers.both(run, [network, classified, data]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_functional_call_leaves_the_module_alone() -> None:
    """Also where forward raises; tied weights are exchanged under both names."""

    class Tied(kiln.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = kiln.nn.Linear(2, 2, bias=False)
            self.b = kiln.nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("calls", kiln.zeros(()))

        def forward(self, x, fail=False):
            self.calls.add_(1)
            if fail:
                raise ValueError("no")
            return self.b(self.a(x))

    net = Tied()
    weight = net.a.weight
    calls = kiln.zeros(())
    given = {"a.weight": 2 * kiln.eye(2), "calls": calls}
    assert kiln.func.functional_call(net, given, kiln.ones(2)).tolist() == [4.0, 4.0]
    with pytest.raises(ValueError, match="no"):
        kiln.func.functional_call(net, given, kiln.ones(2), {"fail": True})
    assert net.a.weight is weight is net.b.weight
    assert dict(net.named_parameters())["a.weight"] is weight
    assert (calls.item(), net.calls.item()) == (2.0, 0.0)
    with pytest.raises(ValueError, match="are tied"):
        kiln.func.functional_call(net, {"a.weight": kiln.eye(2), "b.weight": kiln.eye(2)}, kiln.ones(2))


@WAYS
def test_transforms_are_recorded(way: Callable[..., Any]) -> None:
    """vmap(grad), jacrev and hessian inside a compiled function."""

    def step(x: Any) -> Any:
        per_sample = kiln.vmap(kiln.func.grad(lambda x: square(x).sum()))(x)
        jacobian = kiln.func.jacrev(square)(x[0])
        return per_sample.sum(0), jacobian, kiln.func.hessian(lambda x: bent(x).sum())(x[1])

    ran = way(step)
    for seed in range(3):
        kiln.manual_seed(seed)
        x = kiln.randn(4, 3)
        for got, want in zip(ran(x), step(x)):
            assert kiln.equal(got, want)
