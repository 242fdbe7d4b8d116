"""Autograd under misuse and at its limits: it raises what PyTorch raises, says why, and leaves a sane
state.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from backend import WAYS, kiln, needs, needs_kiln, normal, tensor, values

from kiln.testing.compare import same_bits, to_array


def raises(error: Any, match: str) -> Any:
    """`pytest.raises`; the message is asked of kiln only."""
    return pytest.raises(error, match=match if kiln.is_kiln else None)


# -- misuse ------------------------------------------------------------------------------------------------


@WAYS
def test_backward_twice(way: Any) -> None:
    """The second backward through freed values raises and names the way out; retain_graph is that way."""

    def program(x: Any, keep: bool) -> Any:
        y = (x * x).sum()
        y.backward(retain_graph=keep)
        y.backward()

    for _ in range(3):
        x = tensor(1, 2, grad=True)
        with raises(RuntimeError, "retain_graph"):
            way(program)(x, False)
        assert values(x.grad) == [2.0, 4.0]
        way(program)(x, True)
        assert values(x.grad) == [6.0, 12.0]


@WAYS
def test_backward_of_many_values(way: Any) -> None:
    """A non-scalar needs a gradient; one of the wrong shape is refused with both shapes."""
    x = tensor(1, 2, grad=True)
    with raises(RuntimeError, "scalar"):
        way(lambda x: (x * 2).backward())(x)
    with raises(RuntimeError, r"shape.*3.*2|3.*shape.*2"):
        way(lambda x: (x * 2).backward(kiln.ones(3)))(x)
    assert x.grad is None


@WAYS
def test_backward_without_a_graph(way: Any) -> None:
    """A tensor that nothing leads to says so."""
    with raises(RuntimeError, "require.*grad"):
        way(lambda x: x.sum().backward())(tensor(1, 2))
    with raises(RuntimeError, "require.*grad|grad_fn"):
        way(lambda x: x.detach().sum().backward())(tensor(1, 2, grad=True))


def test_grad_of_an_unused_input() -> None:
    """autograd.grad refuses an input that was not used, unless allow_unused."""
    x, y = tensor(1, grad=True), tensor(2, grad=True)
    with raises(RuntimeError, "unused|not.*used|allow_unused"):
        kiln.autograd.grad((x * 2).sum(), (x, y))
    gx, gy = kiln.autograd.grad((x * 2).sum(), (x, y), allow_unused=True)
    assert values(gx) == [2.0]
    assert gy is None


@WAYS
@pytest.mark.parametrize("where", ["leaf", "view of a leaf", "row of a leaf"])
def test_in_place_on_a_leaf(way: Any, where: str) -> None:
    """Writing to a leaf that requires grad is refused outside no_grad, and allowed inside."""

    def program(x: Any) -> None:
        {"leaf": lambda: x, "view of a leaf": x.t, "row of a leaf": lambda: x[0]}[where]().add_(1)

    def guarded(x: Any) -> None:
        with kiln.no_grad():
            program(x)

    x = normal(2, 3).requires_grad_()
    before = to_array(x)
    with raises(RuntimeError, "leaf"):
        way(program)(x)
    assert same_bits(to_array(x), before)
    way(guarded)(x)
    assert not same_bits(to_array(x), before)
    assert x.requires_grad


SAVED = {
    "mul": lambda y: y * y,
    "exp": lambda y: kiln.exp(y),
    "tanh": lambda y: kiln.tanh(y),
    "matmul": lambda y: y @ y,
    "softmax": lambda y: kiln.softmax(y, 1),
    "pow": lambda y: y**3,
    "log": lambda y: kiln.log(y),
}


@WAYS
@pytest.mark.parametrize("name", SAVED)
def test_in_place_on_a_saved_value(way: Any, name: str) -> None:
    """A saved value that was overwritten is noticed at backward; kiln names both lines."""

    def program(x: Any) -> Any:
        y = x * 1
        z = SAVED[name](y)
        saved_result = name in ("exp", "tanh", "softmax")
        lines[:] = [SAVED[name].__code__.co_firstlineno, sys._getframe().f_lineno + 1]
        (z if saved_result else y).mul_(2)
        z.sum().backward() if not saved_result else (z * 1).sum().backward()

    lines: list[int] = []
    with pytest.raises(RuntimeError, match=r"in-?place") as caught:
        way(program)(normal(3, 3).requires_grad_())
    if kiln.is_kiln:
        assert [
            int(n) for n in re.findall(r"test_reliability_autograd\.py:(\d+)", str(caught.value))
        ] == lines


def test_requires_grad_of_a_result() -> None:
    """Only leaves can be switched off."""
    y = tensor(1, grad=True) * 2
    with raises(RuntimeError, "leaf|detach"):
        y.requires_grad_(False)


@needs("autograd.Function")
@pytest.mark.parametrize("fault", ["too few", "too many", "wrong shape", "not a tensor", "None"])
def test_custom_backward(fault: str) -> None:
    """A custom backward with the wrong gradients is refused by number, shape or type; None means no
    gradient.
    """

    class Two(kiln.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return {
                "too few": lambda: g,
                "too many": lambda: (g, g, g),
                "wrong shape": lambda: (g, kiln.ones(7)),
                "not a tensor": lambda: (g, "text"),
                "None": lambda: (g, None),
            }[fault]()

    x, y = tensor(1, 2, grad=True), tensor(3, 4, grad=True)
    if fault == "None":
        Two.apply(x, y).sum().backward()
        assert y.grad is None
        return
    with pytest.raises((RuntimeError, TypeError)):
        Two.apply(x, y).sum().backward()


# -- depth and life -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100_000, 1_000_000])
def test_a_long_chain(count: int) -> None:
    """A chain of a million ops runs backward and is freed without recursion, on a small stack too."""
    if count > 100_000 and not kiln.is_kiln:
        pytest.skip("a matter of seconds in kiln only")
    code = (
        "import threading\nfrom kiln.testing.backend import load\nk = load()\n"
        "def work():\n"
        "    x = k.ones(1, requires_grad=True)\n    y = x\n"
        f"    for _ in range({count}):\n        y = y * 1.0\n"
        "    y.sum().backward()\n    print(x.grad.item())\n"
        f"    y = x\n    for _ in range({count}):\n        y = y + 0.0\n    del y\n"
        "threading.stack_size(512 * 1024)\nt = threading.Thread(target=work); t.start(); t.join()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "1.0"), done.stderr[-2000:]


def test_the_memory_of_a_large_graph_goes_back() -> None:
    """Nodes lie in blocks; those of a graph that is gone belong to the system again, but for a few.

    A smaller graph runs first, twice, since the second gradient is added to the first: no kernel is left to
    be compiled, and LLVM, 70 MB, to be loaded for it, between the measurements.
    """
    if not kiln.is_kiln or os.environ.get("ASAN_OPTIONS"):
        pytest.skip("kiln's own blocks; the sanitizer has its own")
    code = (
        "import kiln\n"
        "def resident():\n    return int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6\n"
        "x = kiln.ones(1, requires_grad=True)\n"
        "def step(count):\n    y = x\n    for _ in range(count):\n        y = y * 1.0\n"
        "    during = resident()\n    y.backward()\n    return during\n"
        "step(2), step(2)\nbefore = resident()\nduring = step(200_000)\n"
        "print(during - before, resident() - before)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    during, after = map(float, done.stdout.split())
    assert during > 60 and after < 20, done.stdout


def test_a_step_leaves_what_it_found() -> None:
    """A training step allocates as much as it gives back, whatever it was made of."""
    if not kiln.is_kiln:
        pytest.skip("kiln counts its bytes")
    x, w = kiln.randn(8, 4), kiln.randn(4, 4, requires_grad=True)
    v = kiln.randn(4, requires_grad=True)
    hooked: list[Any] = []
    v.register_hook(lambda g: hooked.append(float(g.sum())))

    def step() -> None:
        w.grad = v.grad = None
        h = x @ w + v
        h[:, 0].mul_(2)
        loss = kiln.nn.functional.cross_entropy(kiln.tanh(h), kiln.zeros(8, dtype=kiln.int64))
        (g,) = kiln.autograd.grad(loss, w, create_graph=True)
        (loss + g.pow(2).sum()).backward()

    step()
    gc.collect()
    gc.disable()
    try:
        before = kiln.memory_stats()["allocated_bytes"]
        for _ in range(5):
            step()
        assert kiln.memory_stats()["allocated_bytes"] == before
    finally:
        gc.enable()


def test_memory_is_given_back() -> None:
    """After backward nothing of the graph lives, without the cycle collector; nor after an abandoned
    forward.
    """
    gc.collect()
    gc.disable()
    try:
        for finish in (True, False):
            array = np.ones((3, 3), np.float32)
            alive = weakref.ref(array)
            x = kiln.from_numpy(array).requires_grad_()
            y = (kiln.exp(x * x) @ x).sum()
            if finish:
                y.backward()
            del array, x, y
            assert alive() is None
    finally:
        gc.enable()


class Witness:
    """Something to hang on a tensor, whose death can be seen."""


class Shared(np.ndarray):
    """An array that can hold attributes."""


def attribute(witness: Any) -> None:
    x = kiln.ones(3)
    x.own, x.witness = x, witness


def attribute_of_a_parameter(witness: Any) -> None:
    layer = kiln.nn.Linear(2, 2)
    layer.weight.layer, layer.witness = layer, witness


def entry_of_the_dict(witness: Any) -> None:
    x = kiln.ones(3)
    x.__dict__.update(own=x, witness=witness)


def hook_of_a_leaf(witness: Any) -> None:
    x = kiln.ones(3, requires_grad=True)
    x.register_hook(lambda g: (x, witness))


def hook_of_a_result(witness: Any) -> None:
    y = kiln.ones(3, requires_grad=True) * 2
    y.register_hook(lambda g: (y, witness))


def hook_and_its_handle(witness: Any) -> None:
    x = kiln.ones(3, requires_grad=True)
    witness.handle = x.register_hook(lambda g: (x, witness))


def result_of_a_function(witness: Any) -> None:
    class Keeping(kiln.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.witness, ctx.result = witness, x * 2
            return ctx.result

    Keeping.apply(kiln.ones(3, requires_grad=True))


def handle_of_a_dead_tensor(witness: Any) -> None:
    witness.handle = kiln.ones(3, requires_grad=True).register_hook(lambda g: witness)


def foreign_memory(witness: Any) -> None:
    array = np.zeros(3, np.float32).view(Shared)
    array.tensor, array.witness = kiln.from_numpy(array), witness


CYCLES = [
    attribute, attribute_of_a_parameter, entry_of_the_dict, hook_of_a_leaf, hook_of_a_result,
    hook_and_its_handle, result_of_a_function, handle_of_a_dead_tensor, foreign_memory,
]  # fmt: skip


@needs_kiln
@pytest.mark.parametrize("make", CYCLES, ids=lambda f: f.__name__)
def test_cycles_are_collected(make: Any) -> None:
    """A tensor that leads back to itself is garbage the collector finds, with all it holds."""
    witness = Witness()
    alive = weakref.ref(witness)
    make(witness)
    del witness
    gc.collect()
    assert alive() is None


@needs_kiln
def test_results_are_no_work_for_the_collector() -> None:
    """A tensor is known to the collector from its first attribute or hook on, and not its object's heir."""
    x = tensor(1, grad=True)
    y = x * 2
    assert not gc.is_tracked(y)
    y.note = 1
    assert gc.is_tracked(y)
    del y
    assert not any(gc.is_tracked(x * 2) for _ in range(3))
    x.register_hook(lambda g: None)
    assert gc.is_tracked(x)


@needs("Tensor.register_hook")
@pytest.mark.parametrize("held", ["by the graph", "by a node", "by a handle's list"])
def test_hooks_in_use_are_not_collected(held: str) -> None:
    """A collection while a graph still needs a hook, the tensor object long gone, leaves the hook."""
    seen: list[float] = []
    x = tensor(1, grad=True)
    y = x * 2 if held == "by a node" else x
    y.register_hook(lambda g: seen.append(g.item()))
    handles = [y.register_hook(lambda g: g * 10)] if held == "by a handle's list" else []
    root = (y * 3).sum()
    del x, y
    gc.collect()
    root.backward()
    assert seen == [3.0]
    for handle in handles:
        handle.remove()


@needs_kiln
def test_a_hook_dropped_while_it_is_removed() -> None:
    """What dies with a hook may itself remove hooks."""

    class Remover:
        def __init__(self, handle: Any) -> None:
            self.handle = handle

        def __call__(self, g: Any) -> None: ...

        def __del__(self) -> None:
            self.handle.remove()

    x = tensor(1, grad=True)
    inner = x.register_hook(lambda g: g * 100)
    outer = x.register_hook(Remover(inner))
    outer.remove()
    (x * 2).sum().backward()
    assert values(x.grad) == [2.0]


@needs("Tensor.register_hook")
def test_a_hook_outlives_an_in_place_write() -> None:
    """The handle of a tensor that got another history still removes its hook."""
    x = tensor(1, grad=True)
    y = x * 2
    handle = y.register_hook(lambda g: g * 100)
    y.add_(1)
    handle.remove()
    y.sum().backward()
    assert values(x.grad) == [2.0]


@WAYS
def test_gradients_of_many_arguments(way: Any) -> None:
    """However many arrays are joined, each has its gradient."""
    for count in (65, 200):
        xs = [kiln.full((2,), float(k), requires_grad=True) for k in range(count)]
        scale = kiln.arange(2.0 * count)

        def loss(xs: Any, scale: Any) -> Any:
            return (kiln.stack(xs).reshape(-1) * scale).sum()

        way(loss)(xs, scale).backward()
        assert [values(x.grad) for x in xs] == [[2.0 * k, 2.0 * k + 1] for k in range(count)]


@needs_kiln
def test_gradients_of_more_operands_than_a_word_has_bits() -> None:
    xs = [kiln.full((2,), float(k), requires_grad=True) for k in range(150)]
    weights = kiln.arange(300.0)
    (kiln.ops.find("concat").handle(xs, 0) * weights).sum().backward()
    assert [values(x.grad) for x in xs] == [[2.0 * k, 2.0 * k + 1] for k in range(150)]


@WAYS
def test_gradients_of_size_zero(way: Any) -> None:
    """Empty tensors have empty gradients, of the right shape and not None."""

    def program(x: Any, w: Any) -> Any:
        ((x @ w).tanh().sum() + x[:, :0].sum()).backward()
        return x.grad, w.grad

    x, w = kiln.zeros(0, 3, requires_grad=True), kiln.ones(3, 2, requires_grad=True)
    gx, gw = way(program)(x, w)
    assert tuple(gx.shape) == (0, 3)
    assert values(gw) == [[0.0, 0.0]] * 3


def test_zero_times_infinity() -> None:
    """A branch that was not taken by where still gives the NaN PyTorch gives, and an unused slice gives
    none.
    """
    x = tensor(0, 1, grad=True)
    kiln.where(x > 0, kiln.log(x), x).sum().backward()
    assert np.isnan(to_array(x.grad)[0])
    y = tensor(0, 1, grad=True)
    kiln.log(y[1:]).sum().backward()
    assert values(y.grad) == [0.0, 1.0]


# -- modes, hooks, threads -------------------------------------------------------------------------


@WAYS
def test_an_exception_restores_the_mode(way: Any) -> None:
    """no_grad and enable_grad are left by exceptions as they are left by the last line."""

    def program() -> None:
        with kiln.no_grad(), kiln.enable_grad(), kiln.no_grad():
            raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            way(program)()
        assert kiln.is_grad_enabled()


def test_modes_belong_to_their_thread() -> None:
    """no_grad in one thread does not switch another's gradients off."""
    seen: list[bool] = []
    with kiln.no_grad():
        worker = threading.Thread(target=lambda: seen.append((tensor(1, grad=True) * 2).requires_grad))
        worker.start()
        worker.join()
    assert seen == [True]


def test_no_grad_as_a_decorator() -> None:
    """The decorator switches gradients off for each call, generators between yields included."""

    @kiln.no_grad()
    def one(x: Any) -> Any:
        return x * 2

    @kiln.no_grad()
    def many(x: Any) -> Any:
        yield x * 2
        yield x * 3

    x = tensor(1, grad=True)
    assert not one(x).requires_grad
    for y in many(x):
        assert not y.requires_grad
        assert (x * 2).requires_grad


@WAYS
@needs("Tensor.register_hook")
@pytest.mark.parametrize("fault", ["raises", "wrong shape", "not a tensor"])
def test_faulty_hooks(way: Any, fault: str) -> None:
    """What a hook raises comes out; a wrong gradient is refused."""

    def hook(g: Any) -> Any:
        if fault == "raises":
            raise KeyError("hook")
        return kiln.ones(7) if fault == "wrong shape" else "text"

    def program(x: Any) -> None:
        y = x * 2
        y.register_hook(hook)
        y.sum().backward()

    expected = {"raises": KeyError, "wrong shape": RuntimeError, "not a tensor": TypeError}[fault]
    run = way(program)
    for _ in range(3):
        x = tensor(1, 2, grad=True)
        with raises(expected, "hook"):
            run(x)
        assert x.grad is None
        (x * 3).sum().backward()
        assert values(x.grad) == [3.0, 3.0]


@WAYS
@needs("Tensor.register_hook")
def test_a_hook_that_calls_backward(way: Any) -> None:
    """The engine can be entered from a hook."""
    other = tensor(5, grad=True)

    def inner(g: Any) -> None:
        with kiln.enable_grad():
            (other * other).sum().backward()

    def program(x: Any) -> Any:
        y = x * 2
        y.register_hook(inner)
        y.sum().backward()
        return x.grad

    assert values(way(program)(tensor(1, grad=True))) == [2.0]
    assert values(other.grad) == [10.0]


@needs("Tensor.register_hook")
def test_a_hook_can_be_removed() -> None:
    """The handle removes it; removing twice is harmless."""
    x = tensor(1, grad=True)
    handle = x.register_hook(lambda g: g * 100)
    handle.remove()
    handle.remove()
    (x * 2).sum().backward()
    assert values(x.grad) == [2.0]


def test_two_threads_in_one_graph() -> None:
    """Two threads that differentiate through shared values both finish, and the sums are right."""
    x = normal(50).requires_grad_()
    shared = kiln.exp(x)

    done: list[int] = []

    def work() -> None:
        for k in range(50):
            (shared * 2).sum().backward(retain_graph=True)
            done.append(k)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert len(done) == 100
    assert np.allclose(to_array(x.grad), 200 * np.exp(to_array(x)), rtol=1e-5)
    assert np.allclose(to_array(x.grad), 200 * np.exp(to_array(x)), rtol=1e-4)


@needs_kiln
def test_exit_with_a_live_graph() -> None:
    """The interpreter ends cleanly with graphs, gradients and workers alive."""
    code = (
        "import kiln, threading\nkiln.set_num_threads(2)\nx = kiln.ones(500_000, requires_grad=True)\n"
        "y = (x * x).sum()\ny.backward(retain_graph=True)\nf = kiln.compile(lambda x: x * 2)\nz = f(x)\n"
        "threading.Thread(target=lambda: f(x).sum().item(), daemon=True).start()\nprint('end')"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, "end", "")
