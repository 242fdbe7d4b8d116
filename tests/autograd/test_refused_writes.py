"""What PyTorch refuses of views, saved tensors and checkpoints, and what it lets through; compiled too."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
from backend import WAYS, kiln, needs_kiln, tensor, values

pytestmark = needs_kiln

if kiln.is_kiln:
    from kiln.autograd import Function, forward_ad, graph
    from kiln.autograd.gradcheck import (
        GradcheckError,
        get_analytical_jacobian,
        get_numerical_jacobian,
        gradcheck,
    )
    from kiln.utils import checkpoint as checkpoints

    class Five(Function):
        """Its argument again; the gradient five times."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 5

    class Halves(Function):
        """Two views of one."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x[:1], x[1:]

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            return kiln.cat([a, b])

    class Written(Function):
        """Writes both arguments."""

        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.mark_dirty(x, y)
            return x.add_(1), y.mul_(2)

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            return a * 3, b * 2


def under(mode: Any, make: Any) -> Any:
    """A view made inside a mode."""
    with mode():
        return make()


USER = "This view was created inside a custom Function"
MODE = "was created in {} mode and is being modified inplace"
SEVERAL = "Output 0 of {} is a view and is being modified inplace. This view is the output of a function that"


class TestWritesToViews:
    """Refused on the line of the write, or of the first use after one that was not recorded."""

    @WAYS
    @pytest.mark.parametrize(
        "view, why",
        [
            (lambda y: Five.apply(y), "Output 0 of Five is a view and is being modified inplace. " + USER),
            (lambda y: Five.apply(y).view(-1), USER),
            (lambda y: Halves.apply(y)[1], "Output 1 of Halves is a view"),
            (lambda y: Halves.apply(y)[1][:1], USER),
            (lambda y: under(kiln.no_grad, lambda: y[:1]), MODE.format("no_grad")),
            (lambda y: under(kiln.no_grad, lambda: Five.apply(y)), MODE.format("no_grad")),
            (lambda y: under(kiln.inference_mode, lambda: y[:1]), MODE.format("inference")),
            (lambda y: y.unbind(0)[0], SEVERAL.format("Unbind")),
            (lambda y: y.split(1)[0], SEVERAL.format("Split")),
        ],
    )
    def test_refused(self, way: Any, view: Any, why: str) -> None:
        def write(x: Any) -> None:
            view(x * 1).mul_(2)

        run = way(write)
        for _ in range(3):
            with pytest.raises(RuntimeError, match=why):
                run(tensor(1, 2, grad=True))

    @WAYS
    def test_a_write_that_was_not_recorded_is_noticed(self, way: Any) -> None:
        def of_user(x: Any) -> Any:
            y = Five.apply(x * 1)
            with kiln.no_grad():
                y.mul_(2)
            return y * 3

        def of_block(x: Any) -> Any:
            y = x * 1
            with kiln.no_grad():
                v = y[:1]
                v.mul_(2)
            return v * 3

        def plain(x: Any) -> Any:
            y = x * 1
            v = y[:1]
            with kiln.no_grad():
                v.mul_(2)
            return v * 3

        for program in (of_user, of_block):
            with pytest.raises(RuntimeError, match="its base or another view of its base has been modified"):
                way(program)(tensor(1, 2, grad=True))
        assert values(way(plain)(tensor(1, 2, grad=True))) == [6.0]

    def test_marked_as_written(self) -> None:
        x = tensor(1, 2, grad=True)
        y = x * 1
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            Written.apply(tensor(1, 2, grad=True), y)
        with pytest.raises(RuntimeError, match="cannot return more than one Tensor"):
            Written.apply((x * 1)[:1], (x * 1)[:1])
        a, b = Written.apply(y, x * 2)
        assert a is y
        (a + b).sum().backward()
        assert values(x.grad) == [7.0, 7.0]


class TestFunctions:
    """Mistakes in a user's function, in PyTorch's words; the context is the node."""

    @pytest.mark.parametrize(
        "use, error, why",
        [
            (lambda ctx, x: ctx.save_for_backward(x, 3), TypeError, "argument 1 is of type int"),
            (lambda ctx, x: ctx.mark_dirty(3), RuntimeError, "mark_dirty can only accept variables"),
            (lambda ctx, x: ctx.mark_non_differentiable(3), RuntimeError, "only accepts variable arguments"),
        ],
    )
    def test_mistakes(self, use: Any, error: Any, why: str) -> None:
        class Wrong(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                use(ctx, x)
                return x * 1

        with pytest.raises(error, match=why):
            Wrong.apply(tensor(1, 2, grad=True))

    def test_written_without_derivative(self) -> None:
        class Constant(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                x.mul_(2)
                ctx.mark_dirty(x)
                ctx.mark_non_differentiable(x)
                return x

        y = Constant.apply(tensor(1, 2, grad=True) * 1)
        assert not y.requires_grad and values(y) == [2.0, 4.0]

    def test_attributes_of_the_node_are_the_contexts(self) -> None:
        seen = []

        class Told(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 1

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                seen.append(ctx.told)
                return g

        y = Told.apply(tensor(1, 2, grad=True))
        y.grad_fn.told = 5
        y.sum().backward()
        assert seen == [5] and y.grad_fn.told == 5

    def test_a_factor_counts_as_saved(self) -> None:
        """So a second pass through `x * 2` is refused, and one through `x + 2` is not."""
        x = tensor(1, 2, grad=True)
        for factor in (x * 2, x / 2):
            y = factor.sum()
            y.backward()
            with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
                y.backward()
        y = (x + 2).sum()
        y.backward()
        y.backward()


class TestSavedTensors:
    """Hooks on one that was saved."""

    def test_hooks(self) -> None:
        x = tensor(1, 2, grad=True)
        y = x * x
        y.grad_fn._raw_saved_self.register_hooks(lambda t: 2 * t, lambda t: t / 2)
        assert values(y.grad_fn._saved_self) == [1.0, 2.0] and y.grad_fn._saved_other is x
        with pytest.raises(RuntimeError, match="hooks have already been set"):
            y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
        y.sum().backward()
        assert values(x.grad) == [2.0, 4.0]
        with pytest.raises(RuntimeError, match="already been freed"):
            y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)


class TestVersions:
    """What counts as a write."""

    def test_resize(self) -> None:
        x = kiln.zeros(4)
        x.resize_(4)
        assert x._version == 0
        x.resize_(2)
        assert x._version == 1
        x.resize_(8)
        assert x._version == 2
        w, x = tensor(1, 2, grad=True), tensor(3, 4)
        y = (w * x).sum()
        x.resize_(5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()

    def test_kept(self) -> None:
        x = kiln.zeros(2)
        with kiln.autograd._unsafe_preserve_version_counter((x,)):
            x.add_(1)
        assert x._version == 0 and values(x) == [1.0, 1.0]

    @pytest.mark.parametrize("name", ["max", "min", "median"])
    def test_gradient_of_nans(self, name: str) -> None:
        """Shared by all of them."""
        nan = float("nan")
        for numbers, expected in (((1, nan, 3, nan), [0.0, 0.5, 0.0, 0.5]), ((2, 2), [0.5, 0.5])):
            x = tensor(*numbers, grad=True)
            getattr(kiln, name)(x).backward()
            assert values(x.grad) == expected


class TestReentrant:
    """Checkpoints with a backward pass of their own, and passes inside passes."""

    @WAYS
    def test_same_gradients(self, way: Any) -> None:
        def part(x: Any) -> Any:
            return (x * x).exp(), x.sin()

        def inner(x: Any) -> Any:
            return checkpoints.checkpoint(lambda t: t * t, x, use_reentrant=True).exp(), x.sin()

        def step(x: Any, function: Any, args: Any = (), **kwargs: Any) -> Any:
            a, b = function(*args, x * 2, **kwargs)
            (a * b).sum().backward()
            return x.grad

        expected = values(step(tensor(0.1, 0.2, grad=True), part))
        for function in (part, inner):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the inner one's argument requires nothing at first
                run = way(functools.partial(step, function=checkpoints.checkpoint))
                found = values(run(tensor(0.1, 0.2, grad=True), args=(function,), use_reentrant=True))
                assert found == pytest.approx(expected, rel=1e-6)  # what the inner one gives is summed first

    def test_refused(self) -> None:
        x = tensor(1, 2, grad=True)

        def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
            return checkpoints.checkpoint(function, *args, use_reentrant=True, **kwargs)

        y = checkpoint(kiln.exp, x).sum()
        for wrong in (lambda: kiln.autograd.grad(y, x), lambda: y.backward(inputs=[x])):
            with pytest.raises(RuntimeError, match=r"torch.utils.checkpoint is incompatible"):
                wrong()
        with pytest.raises(ValueError, match="Unexpected keyword arguments: scale"):
            checkpoint(kiln.exp, x, scale=2)
        with pytest.raises(RuntimeError, match="none of output has requires_grad=True"):
            checkpoint(lambda a, b: a, tensor(1), x).sum().backward()
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            assert not checkpoint(lambda t: t * x, tensor(1, 2)).requires_grad
        with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
            checkpoints.checkpoint(kiln.exp, x)
        with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
            checkpoints.checkpoint_sequential([kiln.exp, kiln.sin], 2, x)

    def test_noticed_by_the_other_kind(self) -> None:
        class Twice(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * ctx.saved_tensors[0] * ctx.saved_tensors[0]

        x = tensor(1, 2, grad=True)
        y = checkpoints.checkpoint(lambda t: Twice.apply(t * 2), x, use_reentrant=False)
        with pytest.raises(checkpoints.CheckpointError, match="already unpacked once"):
            y.sum().backward()
        y = x * 1
        z = checkpoints.checkpoint(lambda t: t * t, y, use_reentrant=False)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()

    def test_a_hook_passes_the_graph_that_is_passed(self) -> None:
        """Behind the node where it is; the gradients of both passes are there in the end."""
        x = tensor(0.5, 1, grad=True)
        y = x.sin().cos()
        z = y.sin()
        z.grad_fn.register_hook(lambda *_: y.backward(kiln.ones(2), retain_graph=True))
        z.sum().backward()
        expected = tensor(0.5, 1, grad=True)
        y = expected.sin().cos()
        (y.sin().sum() + y.sum()).backward()
        assert values(x.grad) == pytest.approx(values(expected.grad), rel=1e-6)

    def test_not_where_it_stands(self) -> None:
        x = tensor(1, 2, grad=True)
        y = (x * x).sum()
        y.grad_fn.register_hook(lambda *_: y.backward(retain_graph=True))
        with pytest.raises(RuntimeError, match="just passing"):
            y.backward()
        y.grad_fn.next_functions[0][0].register_prehook(lambda _: None)  # the graph is as it was
        assert values((x * 3).sum().backward() or x.grad) == [3.0, 3.0]


class TestGradcheck:
    """Old names, the order of checks, and forward mode, of which there are names only."""

    def test_jacobians(self) -> None:
        x = kiln.tensor([1.0, 2.0], dtype=kiln.float64, requires_grad=True)
        with pytest.warns(FutureWarning, match="get_numerical_jacobian"):
            (found,) = get_numerical_jacobian(lambda inputs: inputs[0] ** 2, (x,))
        assert kiln.allclose(found, kiln.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=kiln.float64))
        with pytest.warns(FutureWarning, match="get_analytical_jacobian"):
            (found,), reentrant, _, _ = get_analytical_jacobian((x,), x**2)
        assert found.tolist() == [[2.0, 0.0], [0.0, 4.0]] and reentrant
        with pytest.warns(FutureWarning), pytest.raises(ValueError, match="Expected grad_out to be 1.0"):
            get_numerical_jacobian(lambda inputs: inputs[0], (x,), grad_out=2.0)

    def test_undefined_gradients_warn(self) -> None:
        class One(Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(False)
                return x * 1

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                if g is None:
                    raise RuntimeError("no gradient")
                return g

        x = kiln.ones(2, dtype=kiln.float64, requires_grad=True)
        with (
            pytest.warns(UserWarning, match="Backwards compatibility"),
            pytest.raises(GradcheckError, match="handle undefined output grads"),
        ):
            gradcheck(One.apply, (x,))
        with pytest.raises(AssertionError, match="requires check_forward_ad"):
            gradcheck(kiln.sin, (x,), check_batched_forward_grad=True)

    @pytest.mark.parametrize("name", ["dual_level", "enter_dual_level", "exit_dual_level"])
    def test_forward_mode(self, name: str) -> None:
        with pytest.raises(NotImplementedError, match=f"forward_ad.{name}: kiln has no forward mode"):
            getattr(forward_ad, name)()


def test_versions_are_set_by_nobody_else() -> None:
    """increment_version is what counts what kiln does not see."""
    x = kiln.zeros(2)
    graph.increment_version([x, x])
    assert x._version == 2
