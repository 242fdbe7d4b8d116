"""Hooks, edges and inference mode as programs use them: each gives the same in PyTorch and in kiln, eager and
recorded.
"""

from __future__ import annotations

import copy
import warnings
from threading import Thread
from typing import Any

import numpy as np
import pytest
from backend import WAYS, eager, kiln, needs_kiln, torch

pytestmark = needs_kiln


def leaf(t: Any, *shape: int) -> Any:
    return t.ones(*(shape or (2,)), requires_grad=True)


def plain(value: Any) -> Any:
    """A result with tensors as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def acc_twice(t: Any) -> Any:
    x = leaf(t)
    n = (x * 1).grad_fn.next_functions[0][0]
    return n is (x + 2).grad_fn.next_functions[0][0]


def acc_prehook_modify(t: Any) -> Any:
    x = leaf(t)
    y = x * 2
    n = y.grad_fn.next_functions[0][0]
    n.register_prehook(lambda g: (g[0] * 10,))
    y.sum().backward()
    return x.grad


def acc_prehook_none(t: Any) -> Any:
    x = leaf(t)
    y = x * 2
    n = y.grad_fn.next_functions[0][0]
    n.register_prehook(lambda g: (None,))
    y.sum().backward()
    return x.grad


def acc_posthook_ret(t: Any) -> Any:
    x = leaf(t)
    y = x * 2
    n = y.grad_fn.next_functions[0][0]
    n.register_hook(lambda a, b: ())
    y.sum().backward()
    return x.grad


def hook_twice_backward(t: Any) -> Any:
    x = leaf(t)
    log = []
    y = x * x
    y.grad_fn.register_hook(lambda a, b: log.append(1))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return log


def hook_grad_inputs_unneeded(t: Any) -> Any:
    x = leaf(t)
    w = leaf(t)
    log = []
    y = x * w
    y.grad_fn.register_hook(lambda a, b: log.append([g is None for g in a]))
    t.autograd.grad(y.sum(), x)
    return log


def mm_hook(t: Any) -> Any:
    x = leaf(t, 2, 3)
    w = t.ones(3, 2)
    log = []
    y = x.mm(w)
    y.grad_fn.register_hook(lambda a, b: log.append([None if g is None else list(g.shape) for g in a]))
    y.sum().backward()
    return log


def hook_on_view(t: Any) -> Any:
    x = leaf(t, 4)
    v = x[:2]
    log = []
    v.register_hook(lambda g: log.append(g))
    (v * 3).sum().backward()
    return log, x.grad


def detach_hook(t: Any) -> Any:
    x = leaf(t)
    y = (x * 2).detach().requires_grad_()
    y.register_hook(lambda g: g * 2)
    (y * 3).sum().backward()
    return y.grad, x.grad


def hook_and_inputs(t: Any) -> Any:
    x = leaf(t)
    w = leaf(t)
    x.register_hook(lambda g: g * 2)
    w.register_hook(lambda g: g * 100)
    (x * w).sum().backward(inputs=[x])
    return x.grad, w.grad


def grad_hooked_twice(t: Any) -> Any:
    x = leaf(t)
    x.register_hook(lambda g: g * 2)
    y = x * 1
    return t.autograd.grad([y.sum(), (x * 3).sum()], [x])


def hook_inplace_modify(t: Any) -> Any:
    x = leaf(t)
    y = x * 2
    y.register_hook(lambda g: g.mul_(10))
    z = x * 5
    (y + z).sum().backward()
    return x.grad


def mge_order(t: Any) -> Any:
    log = []
    a, b = leaf(t), leaf(t)
    t.autograd.graph.register_multi_grad_hook((a, b), lambda g: log.append("m"))
    a.register_hook(lambda g: log.append("a"))
    b.register_hook(lambda g: log.append("b"))
    (a * b).sum().backward()
    return sorted(log), log[-1]


def in_bw_graph(t: Any) -> Any:
    x = leaf(t)
    y = x.exp()
    (g,) = t.autograd.grad(y.sum(), x, create_graph=True)
    return type(g.grad_fn).__name__


def dtypes_hook(t: Any) -> Any:
    x = t.ones(2, dtype=t.float64, requires_grad=True)
    log = []
    y = x.float()
    y.register_hook(lambda g: log.append(str(g.dtype).split(".")[-1]))
    x.register_hook(lambda g: log.append(str(g.dtype).split(".")[-1]))
    y.sum().backward()
    return log


def post_acc_multi(t: Any) -> Any:
    x = leaf(t)
    log = []
    h1 = x.register_post_accumulate_grad_hook(lambda p: log.append(1))
    x.register_post_accumulate_grad_hook(lambda p: log.append(2))
    (x * 1).sum().backward()
    h1.remove()
    (x * 1).sum().backward()
    return log


def post_acc_raise(t: Any) -> Any:
    x = leaf(t)

    def h(p):
        raise KeyError("x")

    x.register_post_accumulate_grad_hook(h)
    try:
        (x * 1).sum().backward()
    except KeyError:
        return x.grad


def seqnr(t: Any) -> Any:
    x = leaf(t)
    a = x * 1
    b = x * 2
    return a.grad_fn._sequence_nr() < b.grad_fn._sequence_nr()


def deepcopy_hook(t: Any) -> Any:
    x = leaf(t)
    log = []
    x.register_hook(lambda g: log.append(1))
    y = copy.deepcopy(x)
    (y * 1).sum().backward()
    return log


def param_hooks(t: Any) -> Any:
    layer = t.nn.Linear(2, 1)
    log = []
    for p in layer.parameters():
        p.register_hook(lambda g: log.append(tuple(g.shape)))
    layer(t.ones(3, 2)).sum().backward()
    return sorted(log)


def data_swap_hook(t: Any) -> Any:
    x = leaf(t)
    log = []
    x.register_hook(lambda g: log.append(g))
    x.data = t.zeros(2)
    (x * 2).sum().backward()
    return log, x.grad


def zero_grad_hook(t: Any) -> Any:
    x = leaf(t)
    x.register_hook(lambda g: None)
    (x * 2).sum().backward()
    return x.grad


def grad_is_leafcopy(t: Any) -> Any:
    x = leaf(t)
    keep = []
    x.register_hook(lambda g: keep.append(g))
    g = t.ones(2)
    (x * 1).backward(g)
    keep[0].mul_(5)
    return x.grad, g


def backward_nograd(t: Any) -> Any:
    x = leaf(t)
    y = (x * 2).sum()
    with t.no_grad():
        y.backward()
    return x.grad


def backward_inf(t: Any) -> Any:
    x = leaf(t)
    y = (x * 2).sum()
    with t.inference_mode():
        y.backward()
    return x.grad, x.grad.is_inference()


def grad_inf(t: Any) -> Any:
    x = leaf(t)
    y = (x * x).sum()
    with t.inference_mode():
        (g,) = t.autograd.grad(y, x)
    return g, g.is_inference()


def inf_param_update(t: Any) -> Any:
    x = leaf(t)
    (x * 2).sum().backward()
    with t.inference_mode():
        x.sub_(x.grad)
        x.grad.zero_()
    return x, x.grad, x._version, x.requires_grad


def inf_rand(t: Any) -> Any:
    with t.inference_mode():
        a = t.randn(3)
        b = t.arange(3)
        c = t.tensor([1.0])
        d = t.zeros_like(c)
        e = t.from_numpy(np.ones(2))
    return [v.is_inference() for v in (a, b, c, d, e)]


def inf_cat_mix(t: Any) -> Any:
    with t.inference_mode():
        a = t.ones(2)
    return (
        t.cat([a, t.ones(2)]).is_inference(),
        (a > 0).is_inference(),
        a.sum().item(),
        a.to(t.float64).is_inference(),
        a.to(t.float32).is_inference(),
    )


def inf_where_grad(t: Any) -> Any:
    with t.inference_mode():
        m = t.tensor([True, False])
    x = leaf(t)
    return t.where(m, x, x * 2)


def inf_index_grad(t: Any) -> Any:
    with t.inference_mode():
        m = t.tensor([0])
    x = leaf(t)
    return x[m]


def inf_setitem(t: Any) -> Any:
    with t.inference_mode():
        a = t.ones(2)
    x = t.ones(2)
    x[:] = a
    x.copy_(a)
    return x.is_inference(), x


def times_ten(gradient: Any) -> None:
    gradient.mul_(10)


def retained_is_not_what_goes_on(t: Any) -> Any:
    x = leaf(t)
    y = x + 1
    y.retain_grad()
    x.register_hook(times_ten)
    (y * 2).sum().backward()
    return y.grad, x.grad


def grads_that_can_be_differentiated_are_apart(t: Any) -> Any:
    a, b, seed = leaf(t), leaf(t), t.tensor([2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (a * b + b).backward(seed, create_graph=True)
    second = t.autograd.grad(b.grad.sum(), a)[0]
    with t.no_grad():
        a.grad.zero_()
        seed.zero_()
    return a.grad, b.grad, second


def grads_of_a_sum_are_apart(t: Any) -> Any:
    a, b = leaf(t), leaf(t)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (a + b).sum().backward(create_graph=True)
    a.grad.zero_()
    return a.grad, b.grad


def inf_state(t: Any) -> Any:
    with t.inference_mode():
        a = t.ones(2)
    layer = t.nn.Linear(2, 2, bias=False)
    with t.no_grad():
        layer.weight.copy_(t.stack([a, a]))
    return layer.weight.is_inference(), layer(t.ones(1, 2)).requires_grad


def half(t: Any) -> Any:
    """a * b, whose derivative for b is said to be none."""

    class Half(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, None

    return Half.apply


def no_gradient(t: Any) -> Any:
    """Who waits for a gradient is told that there is none, at a node and at a leaf."""
    x, y, log = leaf(t), leaf(t), []
    b = y * 2
    b.register_hook(lambda g: log.append(["b", g]))
    b.grad_fn.register_prehook(lambda go: log.append(["before", go]))
    b.grad_fn.register_hook(lambda gi, go: log.append(["after", gi[0], go]))
    y.register_hook(lambda g: log.append(["y", g]))
    y.register_post_accumulate_grad_hook(lambda p: log.append(["accumulated", p.grad]))
    t.autograd.graph.register_multi_grad_hook((x, b, y), lambda gs: log.append([g is None for g in gs]))
    half(t)(x, b).sum().backward()
    return log, y.grad is None


def no_gradient_replaced(t: Any) -> Any:
    x, b = leaf(t), leaf(t) * 2
    b.register_hook(lambda g: t.ones(2))
    with pytest.raises(RuntimeError, match="can't replace a None gradient with a non-None value"):
        half(t)(x, b).sum().backward()


def asked_for_and_passed(t: Any) -> Any:
    """backward(inputs=) calls the hooks of the node of what it stores, grad does not."""
    x, log = leaf(t), []
    y = x * 2
    y.register_hook(lambda g: log.append("tensor"))
    y.grad_fn.register_prehook(lambda go: log.append("before"))
    y.grad_fn.register_hook(lambda gi, go: log.append(["after", [g is None for g in gi[:1]]]))
    t.autograd.grad(y.sum(), y, retain_graph=True)
    y.sum().backward(inputs=[y])
    return log, y.grad, x.grad is None


def called_back(t: Any) -> Any:
    """Functions that wait for the end of the innermost pass, and one that they ask for."""
    queue, log = t.autograd.Variable._execution_engine.queue_callback, []
    x, inner = leaf(t), leaf(t)

    def last() -> None:
        log.append(["last", x.grad])

    def first() -> None:
        log.append(["first", x.grad])
        queue(last)

    def within(g: Any) -> None:
        queue(first)
        with t.enable_grad():
            z = inner * 3
            z.register_hook(lambda g: queue(lambda: log.append(["inner", inner.grad])))
            z.sum().backward()

    y = x * 2
    y.register_hook(within)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="only be installed during backward"):
        queue(last)
    return log


def hooks_set_while_it_runs(t: Any) -> Any:
    """Hooks on saved tensors that backward leaves behind end with it."""
    x, seen = leaf(t), []
    left = t.autograd.graph.saved_tensors_hooks(lambda s: seen.append(s) or s, lambda s: s)
    y = x * 2
    y.register_hook(lambda g: left.__enter__())
    y.sum().backward()
    (x * x).sum().backward()
    return len(seen)


def seeds_of_another_dtype(t: Any) -> Any:
    x = leaf(t, 3, 3)
    for y in (x.diagonal(), x[0], x * 2):
        t.autograd.backward(y, t.ones(*y.shape, dtype=t.float64), retain_graph=True)
        t.autograd.backward(y * 1, t.ones(*y.shape, dtype=t.int64))
    return x.grad, str(x.grad.dtype).split(".")[1]


def hooks_of_threads(t: Any) -> Any:
    """Five threads pass one graph: a hook on several gradients is called once in each."""
    x, y, log = leaf(t), leaf(t), []
    t.autograd.graph.register_multi_grad_hook((x, y), lambda gs: log.append([g is not None for g in gs]))
    out = (x * y).sum()
    run = [Thread(target=lambda: out.backward(retain_graph=True)) for _ in range(5)]
    for thread in run:
        thread.start()
    for thread in run:
        thread.join()
    return log, x.grad


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__module__", "") == __name__][2:]
PROGRAMS.remove(half)


@WAYS
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_pytorch(program: Any, way: Any, answers: Any) -> None:
    """Eager, and recorded."""

    def outcome(t: Any, run: Any) -> Any:
        try:
            return plain(run(lambda: program(t))())
        except Exception as error:
            return type(error).__name__

    expected = answers(program, lambda: outcome(torch, eager))
    assert outcome(kiln, way) == expected
