"""Functions with a derivative of their own inside cells, traces and branches of scripts: the numbers and
gradients of the calls they stand for, to the second order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kiln
from kiln.autograd import Function
from kiln.autograd.function import once_differentiable
from kiln.capture.pure.errors import PurityError


class Cube(Function):  # its derivative is not that of what it computes
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 5 * x**2 * g


class Exp(Function):  # reads its result
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


class Scaled(Function):  # attributes, what is no tensor, setup_context
    @staticmethod
    def forward(x: Any, scale: float, name: str) -> Any:
        return x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.x, ctx.scale, name = inputs
        ctx.more = {"name": name}

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        assert ctx.more == {"name": "s"}
        return g * ctx.scale * ctx.x, None, None


class Several(Function):  # results of which one has no derivative; gradients that are not defined
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        kept = x > 0.5
        ctx.mark_non_differentiable(kept)
        ctx.save_for_backward(x, w)
        ctx.wanted = ctx.needs_input_grad
        return x * w, kept, x + w

    @staticmethod
    def backward(ctx: Any, g: Any, none: Any, h: Any) -> Any:
        x, w = ctx.saved_tensors
        return g * w + 2 * h, g * x + h * h if ctx.wanted[1] else None


class Clipped(Function):  # not linear in the gradient
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.clamp(-0.5, 0.5)


class CubeBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, g: Any) -> Any:
        ctx.save_for_backward(x, g)
        return 3 * x * x * g

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        x, g = ctx.saved_tensors
        return 7 * x * g * h, 3 * x * x * h


class ByAnother(Function):  # whose backward is one too
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return Cube.apply(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return CubeBackward.apply(ctx.saved_tensors[0], g)


def several(x: Any, w: Any) -> Any:
    y, kept, z = Several.apply(x, w)
    return (y * z * kept.float()).sum() + (y * y).sum()


PROGRAMS: dict[str, Callable[..., Any]] = {
    "saves what it is given": lambda x, w: (Cube.apply(x * 2) ** 2 * w).sum(),
    "reads its result": lambda x, w: (Exp.apply(x * w) * w).sum(),
    "attributes": lambda x, w: (Scaled.apply(x, 2.5, "s") ** 2 * w).sum(),
    "several results": several,
    "not all of them used": lambda x, w: Several.apply(x, w)[2].sum() * 2,
    "not linear": lambda x, w: (Clipped.apply(x * w) ** 2).sum(),
    "another in its backward": lambda x, w: (ByAnother.apply(x) * w).sum(),
    "twice the same": lambda x, w: Several.apply(x, x)[0].sum() + Cube.apply(x).sum(),
}


def bits(*pairs: tuple[Any, Any]) -> bool:
    return all(a is b is None or kiln._core.same_bytes(a.detach(), b.detach()) for a, b in pairs)


def first_and_second(function: Any, x: Any, w: Any) -> list[Any]:
    y = function(x, w)
    firsts = kiln.autograd.grad(y, (x, w), create_graph=True, allow_unused=True)
    total = sum((g * g).sum() for g in firsts if g is not None and g.requires_grad)
    seconds = [None, None]
    if isinstance(total, kiln.Tensor):
        seconds = kiln.autograd.grad(total, (x, w), allow_unused=True)
    return [y, *firsts, *kiln.autograd.grad(function(x, w), (x, w), allow_unused=True), *seconds]


@pytest.fixture
def given() -> tuple[Any, Any]:
    kiln.manual_seed(3)
    return kiln.rand(3, requires_grad=True), kiln.rand(3, requires_grad=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_a_cell_and_a_trace(name: str, given: Any) -> None:
    function = PROGRAMS[name]
    expected = first_and_second(function, *given)
    for made in (kiln.compile(function, pure=True), kiln.jit.trace(function, given)):
        for _ in range(2):
            found = first_and_second(made, *given)
        assert bits(*zip(found[:5], expected[:5])), name
        for a, b in zip(found[5:], expected[5:]):
            assert a is b is None or kiln.allclose(a, b), name  # recomputed, so not added in the same order
    mapped = kiln.vmap(kiln.func.grad(kiln.jit.trace(function, given)), (0, None))
    x, w = (v.detach() for v in given)
    rows = [kiln.autograd.grad(function(r.requires_grad_(), w), r)[0] for r in (x.clone(), x + 1)]
    assert kiln.allclose(mapped(kiln.stack([x, x + 1]), w), kiln.stack(rows))


def test_in_a_branch() -> None:
    def f(x: Any) -> Any:
        if x.sum() > 0:
            y = Cube.apply(x)
        else:
            y = Exp.apply(x) * 2
        return (y * y).sum()

    scripted = kiln.jit.script(f)
    for sign in (1.0, -1.0):
        x = (kiln.tensor([0.3, 1.0, 0.7]) * sign).requires_grad_()
        for a, b in zip(second_of(scripted, x), second_of(f, x)):
            assert kiln.allclose(a, b)


def second_of(function: Any, x: Any) -> list[Any]:
    (g,) = kiln.autograd.grad(function(x), x, create_graph=True)
    return [g, *kiln.autograd.grad(g.sum(), x)]


def test_a_program_that_was_saved(given: Any, tmp_path: Any) -> None:
    program = kiln.export.export(Module(), given)
    program.save(tmp_path / "m.kiln")
    loaded = kiln.export.load(tmp_path / "m.kiln")
    assert bits(*zip(first_and_second(loaded, *given)[:5], first_and_second(Module(), *given)[:5]))


class Module(kiln.nn.Module):
    def forward(self, x: Any, w: Any) -> Any:
        return (Exp.apply(x * w) * Cube.apply(w)).sum()


def test_what_is_differentiated_once() -> None:
    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * g

    x = kiln.tensor([1.0, 2.0, 3.0], requires_grad=True)
    cell = kiln.compile(lambda x: (Once.apply(x) * x).sum(), pure=True)
    assert kiln.autograd.grad(cell(x), x)[0].tolist() == [3.0, 12.0, 27.0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (g,) = kiln.autograd.grad(cell(x), x, create_graph=True)
        kiln.autograd.grad(g.sum(), x)


def test_what_is_wanted_is_part_of_the_signature() -> None:
    seen: list[Any] = []

    class Told(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.wanted = ctx.needs_input_grad
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g if ctx.wanted[0] else None, g * 2 if ctx.wanted[1] else None

    cell = kiln.compile(lambda x, w: Told.apply(x, w), pure=True)
    for wants in ((True, False), (False, True), (True, True), (False, False)):
        x, w = (kiln.ones(3).requires_grad_(flag) for flag in wants)
        y = cell(x, w)
        assert y.requires_grad == any(wants)
        if any(wants):
            y.sum().backward()
        seen.append([None if v.grad is None else v.grad.tolist()[0] for v in (x, w)])
    assert seen == [[1.0, None], [None, 2.0], [1.0, 2.0], [None, None]]


COUNT = 0


def refused(backward: Callable[..., Any], forward: Callable[..., Any] = lambda ctx, x: x * 2) -> Any:
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("Refused", (Function,), members)
    return lambda x: made.apply(x)


def counts(ctx: Any, g: Any) -> Any:
    global COUNT
    COUNT += 1
    return g


def writes(ctx: Any, x: Any) -> Any:
    ctx.mark_dirty(x)
    return x.mul_(2)


REFUSED = {
    "reads a value": (refused(lambda ctx, g: g * g.sum().item()), "reads a value"),
    "branches on one": (refused(lambda ctx, g: g if g[0] > 0 else -g), "reads a value"),
    "draws": (refused(lambda ctx, g: g * kiln.rand(3)), "draws random numbers"),
    "writes the gradient": (
        refused(lambda ctx, g: g.mul_(2)),
        "writes the gradient that a backward is given",
    ),
    "goes by a count": (refused(counts), "writes a global, COUNT"),
    "writes what it is given": (refused(lambda ctx, g: g, writes), "writes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_backward_of_a_cell_may_do(name: str) -> None:
    function, what = REFUSED[name]
    with pytest.raises(PurityError, match=what) as raised:
        kiln.compile(lambda x: function(x * 1).sum(), pure=True)(kiln.ones(3, requires_grad=True))
    assert "test_cells_functions.py:" in str(raised.value)


def test_several_gradients_of_which_some_may_be_none() -> None:
    class Some(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            return h if g is None else g

    with pytest.raises(PurityError, match="may be given None"):
        kiln.compile(lambda x: Some.apply(x), pure=True)(kiln.ones(3, requires_grad=True))


def test_samples_have_the_derivative_of_a_function() -> None:
    class Other(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 7

    def f(x: Any) -> Any:
        return (Other.apply(x) * x).sum()

    x = kiln.ones(2, 3)
    for made in (f, kiln.compile(f, pure=True), kiln.jit.trace(f, (x[0],))):
        assert kiln.vmap(kiln.func.grad(made))(x).tolist() == [[9.0] * 3] * 2
