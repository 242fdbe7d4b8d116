"""Rule 21: a checkpoint changes what is kept, never a bit of a gradient; hooks of saved tensors."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from backend import WAYS, check_same, kiln, needs_kiln, normal, recorded, tensor, values

from kiln.testing.compare import same_bits, to_array

pytestmark = needs_kiln
if kiln.is_kiln:
    from kiln.autograd.graph import saved_tensors_hooks
    from kiln.utils.checkpoint import (
        CheckpointError,
        set_checkpoint_debug_enabled,
        set_checkpoint_early_stop,
    )

    # The kind these tests are about, where they say no other.
    checkpoint = functools.partial(kiln.utils.checkpoint.checkpoint, use_reentrant=False)
    checkpoint_sequential = functools.partial(
        kiln.utils.checkpoint.checkpoint_sequential, use_reentrant=False
    )


def block(x: Any, w: Any, scale: float = 1.0) -> Any:
    """Pointwise ops, a product and a composite, each of which saves something."""
    h = kiln.tanh(x @ w) * scale
    return kiln.nn.functional.layer_norm(kiln.exp(h) * h, (w.shape[1],)) + x


def plain(function: Any, *args: Any, **kwargs: Any) -> Any:
    """No checkpoint."""
    kwargs.pop("preserve_rng_state", None)
    return function(*args, **kwargs)


def train(call: Any, way: Any = lambda f: f, blocks: Any = block, seed: int = 3) -> list[Any]:
    """Three steps of a model whose blocks are called through `call`: losses, gradients, random state."""
    weights = [normal(8, 8, seed=k).requires_grad_() for k in range(3)]
    kiln.manual_seed(seed)
    found = []

    def step(x: Any) -> Any:
        for w in weights:
            w.grad = None
        for w in weights:
            x = call(blocks, x, w, scale=0.5)
        loss = (x * x).mean()
        loss.backward()
        return loss

    run = way(step)
    for k in range(3):
        found.append(to_array(run(normal(5, 8, seed=k + 10))))
        found += [to_array(w.grad) for w in weights]
    return [*found, to_array(kiln.rand(4))]


def equal(one: list[Any], two: list[Any]) -> bool:
    """Whether two lists of arrays have the same bits."""
    return all(same_bits(a, b) for a, b in zip(one, two, strict=True))


class TestGradients:
    """The same bits with and without."""

    @WAYS
    def test_same_bits(self, way: Any) -> None:
        assert equal(train(plain), train(checkpoint, way))

    @WAYS
    def test_random_state(self, way: Any) -> None:
        def noisy(x: Any, w: Any, scale: float) -> Any:
            return kiln.nn.functional.dropout(block(x, w, scale), 0.5) * kiln.rand(8)

        assert equal(train(plain, blocks=noisy), train(checkpoint, way, noisy))

    def test_random_state_not_kept(self) -> None:
        def noisy(x: Any, w: Any, scale: float) -> Any:
            return block(x, w, scale) * kiln.rand(8)

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return checkpoint(function, *args, preserve_rng_state=False, **kwargs)

        assert not equal(train(plain, blocks=noisy), train(call, blocks=noisy))

    @WAYS
    def test_nested(self, way: Any) -> None:
        def outer(x: Any, w: Any, scale: float) -> Any:
            h = checkpoint(block, x, w, scale=scale)
            return checkpoint(lambda t: checkpoint(block, t, w) * 2, h) + x

        def flat(x: Any, w: Any, scale: float) -> Any:
            return block(block(x, w, scale), w) * 2 + x

        assert equal(train(plain, blocks=flat), train(checkpoint, way, outer))

    @WAYS
    def test_sequential(self, way: Any) -> None:
        stages = [lambda x, k=k: block(x, normal(8, 8, seed=k)) for k in range(5)]

        def program(x: Any, segments: int) -> Any:
            y = checkpoint_sequential(stages, segments, x) if segments else x
            for stage in stages if not segments else ():
                y = stage(y)
            y.sum().backward()
            return y, x.grad

        run = way(program)
        expected = [to_array(t) for t in program(normal(4, 8).requires_grad_(), 0)]
        for segments in (1, 2, 3, 5, 2):
            assert equal(expected, [to_array(t) for t in run(normal(4, 8).requires_grad_(), segments)])
        with pytest.raises(ValueError, match="segments"):
            checkpoint_sequential(stages, 6, normal(4, 8))
        net = kiln.nn.Sequential(kiln.nn.Linear(3, 3), kiln.nn.ReLU(), kiln.nn.Linear(3, 2))
        x = normal(4, 3)
        assert same_bits(to_array(net(x)), to_array(checkpoint_sequential(net, 2, x)))

    def test_twice_and_higher(self) -> None:
        """A retained graph is passed again, and a gradient of a gradient goes through."""

        def gradients(call: Any) -> list[Any]:
            x = normal(4, 8).requires_grad_()
            y = call(block, x, normal(8, 8, seed=1)).pow(2).sum()
            once = kiln.autograd.grad(y, x, retain_graph=True)[0]
            (again,) = kiln.autograd.grad(y, x, create_graph=True)
            (again * again).sum().backward()
            return [to_array(t) for t in (once, again, x.grad)]

        assert equal(gradients(plain), gradients(checkpoint))

    def test_what_goes_in_and_out(self) -> None:
        """No tensors, several results, a result that is an argument, arguments without gradients."""

        def odd(x: Any, words: str, *, more: dict[str, Any]) -> Any:
            return x * more["k"], words, x, None

        def program(x: Any) -> Any:
            y, words, same, nothing = checkpoint(odd, x, "w", more={"k": tensor(2, 3)})
            assert same is x
            y.sum().backward()
            return y, words, nothing, x.grad

        check_same(program, lambda: (tensor(1, 2, grad=True),))
        with kiln.no_grad():
            assert not checkpoint(block, normal(2, 8).requires_grad_(), normal(8, 8)).requires_grad
        with pytest.raises(ValueError, match="determinism_check"):
            checkpoint(block, normal(2, 8), normal(8, 8), determinism_check="no")


class TestArguments:
    """PyTorch's arguments of checkpoint."""

    @WAYS
    @pytest.mark.parametrize("use_reentrant", [None, True, False])
    def test_use_reentrant(self, way: Any, use_reentrant: Any) -> None:
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return checkpoint(functools.partial(function, **kwargs), *args, use_reentrant=use_reentrant)

        assert equal(train(plain), train(call, way))

    def test_context_fn(self) -> None:
        entered: list[str] = []

        @contextlib.contextmanager
        def context(name: str) -> Any:
            entered.append(name)
            yield
            entered.append(f"{name} left")

        def squares(x: Any) -> Any:
            entered.append("called")
            return (x * x).exp().sum()

        contexts = lambda: (context("first"), context("again"))  # noqa: E731
        x = tensor(1, 2, grad=True)
        y = checkpoint(squares, x, context_fn=contexts, early_stop=False)
        assert entered == ["first", "called", "first left"]
        y.backward()
        assert entered[3:] == ["again", "called", "again left"]
        expected = tensor(1, 2, grad=True)
        squares(expected).backward()
        assert values(x.grad) == values(expected.grad)
        with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
            checkpoint(squares, x, context_fn=contexts, use_reentrant=True)

    def test_what_a_function_saved_goes_when_it_stops_early(self) -> None:
        """The recomputation ends in the middle of a user's function; what that saved is nobody's then."""
        saved = []

        class Copy(kiln.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                y = x.clone()
                ctx.save_for_backward(y)
                saved.append(weakref.ref(y))
                return y

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * ctx.saved_tensors[0]

        gc.collect()
        gc.disable()
        try:
            checkpoint(Copy.apply, tensor(1, 2, grad=True)).sum().backward()
            assert [ref() for ref in saved] == [None, None]
        finally:
            gc.enable()

    @pytest.mark.parametrize("how", ["argument", "setting"])
    def test_early_stop(self, how: str) -> None:
        """Without it the whole function runs again, and saving more than at first is noticed."""
        calls: list[str] = []

        def function(x: Any) -> Any:
            calls.append("begun")
            y = x.exp()
            if calls.count("begun") == 2 and "more" in calls:
                y = y.exp()
            y = y.sin()
            calls.append("ended")
            return y.sum()

        def run(stop: bool) -> None:
            calls[:] = [c for c in calls if c == "more"]
            if how == "argument":
                y = checkpoint(function, tensor(1, 2, grad=True), early_stop=stop)
            else:
                with set_checkpoint_early_stop(stop):
                    y = checkpoint(function, tensor(1, 2, grad=True), early_stop=not stop)
            y.backward()

        run(True)
        assert calls == ["begun", "ended", "begun"]
        run(False)
        assert calls == ["begun", "ended", "begun", "ended"]
        calls.append("more")
        with pytest.raises(CheckpointError, match="A different number of tensors was saved.*more than 2"):
            run(False)

    def test_debug_names_lines(self) -> None:
        calls: list[int] = []

        def changing(x: Any) -> Any:
            calls.append(1)
            return x[: 3 - len(calls)].exp().sum()

        for _ in range(2):
            calls.clear()
            with set_checkpoint_debug_enabled(True):
                y = checkpoint(changing, tensor(1, 2, 3, grad=True))
            with pytest.raises(CheckpointError, match=r"checkpoint.py:\d+ and is .* at .*checkpoint.py:\d+"):
                y.backward()

    @pytest.mark.parametrize("early_stop", [True, False])
    def test_a_gradient_inside(self, early_stop: bool) -> None:
        """What the function itself differentiates."""

        def penalty(x: Any) -> Any:
            (g,) = kiln.autograd.grad((x**3).sum(), x, create_graph=True)
            return (g * g).sum()

        x = tensor(1, 2, grad=True)
        checkpoint(penalty, x, early_stop=early_stop).backward()
        assert values(x.grad) == [36.0, 288.0]

    def test_a_gradient_of_a_gradient(self) -> None:
        x = tensor(1, 2, grad=True)
        (g,) = kiln.autograd.grad(checkpoint(lambda t: (t**3).sum(), x), x, create_graph=True)
        g.sum().backward()
        assert values(x.grad) == [6.0, 12.0]

    def test_sequential_with_dropout(self) -> None:
        def run(call: Any) -> list[Any]:
            kiln.manual_seed(1)
            net = kiln.nn.Sequential(
                *[kiln.nn.Sequential(kiln.nn.Linear(4, 4), kiln.nn.Dropout(0.3)) for _ in range(4)]
            )
            kiln.manual_seed(2)
            call(net, normal(3, 4)).sum().backward()
            return [to_array(p.grad) for p in net.parameters()]

        expected = run(lambda net, x: net(x))

        def reentrant(net: Any, x: Any) -> Any:
            return checkpoint_sequential(net, 2, x.requires_grad_(), use_reentrant=True)

        assert equal(expected, run(reentrant))
        assert equal(expected, run(lambda net, x: checkpoint_sequential(net, 4, x)))

    def test_where_nothing_is_recorded(self) -> None:
        x = tensor(1, 2, grad=True)
        with kiln.inference_mode():
            y = checkpoint(kiln.exp, x)
        assert y.is_inference() and not y.requires_grad


class TestMistakes:
    """What is not the same the second time is told, and leaves everything as it was."""

    def test_another_shape(self) -> None:
        calls: list[int] = []

        def changing(x: Any) -> Any:
            calls.append(1)
            return (x[: len(calls)].exp() * 2).sum()

        y = checkpoint(changing, tensor(1, 2, 3, grad=True))
        with pytest.raises(CheckpointError, match="have different metadata.*shape"):
            y.backward()

    def test_fewer_ops(self) -> None:
        calls: list[int] = []

        def changing(x: Any) -> Any:
            calls.append(1)
            return x.exp().exp().sum() if len(calls) == 1 else x.exp().sum()

        y = checkpoint(changing, tensor(1, 2, grad=True))
        with pytest.raises(CheckpointError, match="A different number of tensors was saved"):
            y.backward()

    @WAYS
    def test_an_error_in_the_second_run(self, way: Any) -> None:
        calls: list[int] = []

        def failing(x: Any) -> Any:
            calls.append(1)
            if len(calls) > 1:
                raise KeyError("mine")
            return x.exp() * kiln.rand(2)

        def program(x: Any) -> None:
            checkpoint(failing, x).sum().backward()

        from kiln import _core

        kiln.manual_seed(1)
        x = tensor(1, 2, grad=True)
        with pytest.raises(KeyError, match="mine"):
            way(program)(x)
        state = _core.random_state()
        kiln.manual_seed(1)
        kiln.rand(2)
        assert state == _core.random_state()
        assert _core.saved_tensors_hooks() is None
        assert x.grad is None
        (x * 2).sum().backward()
        assert values(x.grad) == [2.0, 2.0]

    def test_saved_then_written(self) -> None:
        def bad(x: Any) -> Any:
            y = x.exp()
            y.add_(1)
            return (y * y).sum()

        with pytest.raises(RuntimeError, match="inplace"):
            checkpoint(bad, tensor(1, 2, grad=True)).backward()


ONE = 16384 * 64 * 4  # bytes of one activation


def peak(way: Any, call: Any, steps: int, depth: int = 4) -> int:
    """Activations in use at most during steps through `depth` stages of three products each."""
    x, w = normal(16384, 64).requires_grad_(), normal(64, 64)

    def stage(t: Any) -> Any:
        for _ in range(3):
            t = kiln.tanh(t @ w)
        return t

    def step() -> None:
        x.grad = None
        t = x
        for _ in range(depth):
            t = call(stage, t)
        t.sum().backward()

    run = way(step)
    run()
    x.grad = None
    gc.collect()
    before = kiln.memory_stats()["allocated_bytes"]
    kiln.reset_peak_memory_stats()
    for _ in range(steps):
        run()
    return round((int(kiln.memory_stats()["peak_allocated_bytes"]) - before) / ONE)


# recorded steps run by their programs, and op by op when these are timed
@pytest.mark.parametrize("way, steps", [(lambda f: f, 2), (recorded, 24)], ids=["eager", "recorded"])
def test_peak_memory(way: Any, steps: int) -> None:
    """A checkpoint keeps one tensor a stage instead of one a product: measured by the allocator."""
    from kiln import _core

    before = _core.set_check(False)
    try:
        without, with_it = peak(way, plain, steps), peak(way, checkpoint, steps)
    finally:
        _core.set_check(before)
    assert without >= 12
    # a tensor a stage, one stage computed again, gradients and what runs, the memory that products work in
    assert with_it <= 4 + 3 + 4 + 1


def test_nested_keeps_only_the_outermost() -> None:
    """Inputs of checkpoints inside a checkpoint are not kept after the forward."""
    from kiln import _core

    before = _core.set_check(False)
    one = 1 << 20

    def outer(x: Any) -> Any:
        for _ in range(8):
            x = checkpoint(lambda t: kiln.tanh(t) * t, x)
        return x

    try:
        x = kiln.ones(one // 4).requires_grad_()
        start = kiln.memory_stats()["allocated_bytes"]
        y = checkpoint(outer, x)
        kept = kiln.memory_stats()["allocated_bytes"] - start
        assert kept <= 2 * one, kept / one
        y.sum().backward()
    finally:
        _core.set_check(before)
    z = kiln.ones(one // 4).requires_grad_()
    t = z
    for _ in range(8):
        t = kiln.tanh(t) * t
    t.sum().backward()
    assert same_bits(to_array(x.grad), to_array(z.grad))


class TestHooks:
    """saved_tensors_hooks: every saved tensor goes through, once, in order."""

    @WAYS
    def test_through_numpy(self, way: Any) -> None:
        packed: list[tuple[int, ...]] = []

        def pack(t: Any) -> Any:
            packed.append(tuple(t.shape))
            return t.detach().numpy().copy(), t

        def program(x: Any, w: Any, hooks: bool) -> Any:
            if hooks:
                with saved_tensors_hooks(pack, lambda p: kiln.from_numpy(p[0].copy())):
                    y = kiln.softmax(kiln.tanh(x @ w.t()), 1) * x
            else:
                y = kiln.softmax(kiln.tanh(x @ w.t()), 1) * x
            y.pow(2).sum().backward()
            return y, x.grad, w.grad

        def make() -> tuple[Any, Any]:
            return normal(5, 6).requires_grad_(), normal(6, 6, seed=2).requires_grad_()

        expected = [to_array(t) for t in program(*make(), False)]
        run = way(program)
        for _ in range(3):
            packed.clear()
            assert equal(expected, [to_array(t) for t in run(*make(), True)])
            assert len(packed) >= 4

    def test_innermost_counts_and_others_return(self) -> None:
        log: list[str] = []

        def named(name: str) -> Any:
            return saved_tensors_hooks(lambda t: log.append(name) or t, lambda t: t)

        x = tensor(1, 2, grad=True)
        hooks = named("a")
        with hooks:
            y = x.exp()
            with named("b"):
                y = y * y
            with hooks:
                y = y.sin()
            y = y.exp()
        y = y.cos()
        assert log == ["a", "b", "b", "a", "a"]
        y.sum().backward()
        assert np.isfinite(to_array(x.grad)).all()

    def test_what_a_hook_may_not_do(self) -> None:
        x = tensor(1, 2, grad=True)
        with saved_tensors_hooks(lambda t: t, lambda t: t[:1]):
            y = x.exp()
        with pytest.raises(RuntimeError, match="unpack"):
            y.sum().backward()
        with saved_tensors_hooks(lambda t: t, lambda t: 3):
            y = x.exp()
        with pytest.raises(TypeError, match="unpack"):
            y.sum().backward()

        def bad(t: Any) -> Any:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"), saved_tensors_hooks(bad, lambda t: t):
            x.exp()
        (x.exp()).sum().backward()
        assert same_bits(to_array(x.grad), to_array(x.detach().exp()))

    def test_packed_values_go_with_the_graph(self) -> None:
        class Box:
            def __init__(self, t: Any) -> None:
                self.t = t

        boxes: list[Any] = []

        def pack(t: Any) -> Any:
            box = Box(t.detach())
            boxes.append(weakref.ref(box))
            return box

        x = tensor(1, 2, grad=True)
        with saved_tensors_hooks(pack, lambda box: box.t):
            y = (x.exp() * x).sum()
        assert all(box() is not None for box in boxes)
        assert boxes
        y.backward()
        assert all(box() is None for box in boxes)
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
