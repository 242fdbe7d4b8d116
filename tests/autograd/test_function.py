"""autograd.Function: the same classes on kiln and on PyTorch; eagerly and recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from backend import kiln, torch


def numbers(x: Any) -> Any:
    """Tensors as numbers, other things as they are, in their structure."""
    if isinstance(x, (tuple, list)):
        return [numbers(v) for v in x]
    return x.detach().tolist() if hasattr(x, "detach") else x


def cube(f: Any) -> Any:
    """x**3, which saves its input and its result."""

    class Cube(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * x * x
            ctx.save_for_backward(x, None, y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, nothing, y = ctx.saved_tensors
            assert nothing is None
            return g * (2 * x * x + y / x)

    return Cube


def first_to_third(f: Any) -> Any:
    """Derivatives of three orders through create_graph, through a saved input and a saved result."""
    x = f.tensor([1.0, 2.0], requires_grad=True)
    y = cube(f).apply(x)
    found = [y]
    for _ in range(3):
        (y,) = f.autograd.grad(y.sum(), x, create_graph=True)
        found.append(y)
    return found


def several(f: Any) -> Any:
    """Several inputs and results, numbers among them, None gradients, a result without derivative."""
    seen = []

    class Several(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, k: Any, y: Any, z: Any) -> Any:
            seen.append(ctx.needs_input_grad)
            ctx.k = k
            order = x > y
            ctx.save_for_backward(x, y)
            fixed = x + 1
            ctx.mark_non_differentiable(fixed)
            return x * y * k, order, fixed, "text", x + y

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
            seen.extend([numbers(v) for v in (a, b, c, d, e)])
            x, y = ctx.saved_tensors
            return a * y * ctx.k + e, None, a * x * ctx.k + e, None, None

    x, y = f.tensor([1.0, 2.0], requires_grad=True), f.tensor([3.0, 1.0], requires_grad=True)
    out = Several.apply(x, 2.0, y, f.tensor([1.0]))
    flags = [v.requires_grad for v in out if hasattr(v, "requires_grad")]
    out[0].sum().backward()
    return out, flags, x.grad, y.grad, seen


def undefined(f: Any) -> Any:
    """Gradients that are not defined, as zeros and as None."""
    seen = []

    def made(materialize: bool) -> Any:
        class Pair(f.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(materialize)
                return x * 2, x * 3

            @staticmethod
            def backward(ctx: Any, a: Any, b: Any) -> Any:
                seen.append(numbers((a, b)))
                return b

        return Pair

    for materialize in (True, False):
        x = f.ones(2, requires_grad=True)
        made(materialize).apply(x)[1].sum().backward()
    return seen, x.grad


def written(f: Any) -> Any:
    """An input changed in place, alone and as a view."""

    class Scale(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(3)
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (y,) = ctx.saved_tensors
            return g * 3 + 0 * y

    a = f.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = a * 2
    same = Scale.apply(b) is b
    (b * b).sum().backward()
    first = a.grad.clone()
    c = f.tensor([1.0, 2.0, 3.0], requires_grad=True)
    d = c * 1
    Scale.apply(d[1:])
    (d * d).sum().backward()
    return same, b, first, d, c.grad


def returned(f: Any) -> Any:
    """An input returned as it is gets a node of its own."""

    class Same(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 7

    x = f.ones(2, requires_grad=True)
    y = Same.apply(x)
    y.sum().backward()
    return y is x, y.data_ptr() == x.data_ptr(), y.requires_grad, x.grad, type(y.grad_fn).__name__ != "", y


def split(f: Any) -> Any:
    """forward and setup_context apart, with defaults and keywords; gradients that broadcast are summed."""

    class Power(f.autograd.Function):
        @staticmethod
        def forward(x: Any, n: int = 2, shift: float = 0.0) -> Any:
            return x**n + shift

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, n, shift = inputs
            ctx.save_for_backward(x)
            ctx.n, ctx.shift = n, shift

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            wide = (g * ctx.n * x ** (ctx.n - 1)).expand(3, 2)
            return wide, None, None

    found = []
    for args, kwargs in (((), {}), ((3,), {}), ((), {"n": 4, "shift": 1.0})):
        x = f.tensor([1.0, 2.0], requires_grad=True)
        y = Power.apply(x, *args, **kwargs)
        y.sum().backward()
        found += [y, x.grad]
    return found


def named(f: Any) -> Any:
    """Keywords where forward takes the context."""
    seen = []

    class Scaled(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, k: float = 2.0, shift: float = 1.0, unused: int = 0) -> Any:
            seen.append(ctx.needs_input_grad)
            ctx.k = k
            return x * k + shift

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (g * ctx.k, None, None)[: len(seen[-1])]

    x = f.tensor([1.0, 2.0], requires_grad=True)
    found = [Scaled.apply(x=x), Scaled.apply(x, k=3.0), Scaled.apply(x, shift=3.0, k=1.5)]
    found[-1].sum().backward()
    return found, x.grad, seen


def without(f: Any) -> Any:
    """Nothing to differentiate: no node."""
    x = f.ones(2, requires_grad=True)
    with f.no_grad():
        a = cube(f).apply(x)
    return a.requires_grad, cube(f).apply(f.ones(2)).requires_grad


def once(f: Any) -> Any:
    """A derivative that cannot be differentiated again gives its values."""

    class Square(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @f.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    x = f.tensor([1.0, 2.0], requires_grad=True)
    (g,) = f.autograd.grad(Square.apply(x).sum(), x)
    (h,) = f.autograd.grad((Square.apply(x) * x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        h.sum().backward()
    return g, h


def kept_by_hooks(f: Any) -> Any:
    """Saved tensors go through the hooks that are there when the call is made."""
    seen: list[Any] = []

    def pack(t: Any) -> Any:
        seen.append(numbers(t))
        return t.detach() * 1

    x = f.tensor([1.0, 2.0], requires_grad=True)
    with f.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 10):
        y = cube(f).apply(x)
    y.sum().backward()
    return seen, x.grad


def without_gradient(f: Any) -> Any:
    """A node behind one that gives None still runs, on zeros."""
    seen = []

    class Stop(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(numbers(g))
            return None if ctx.needs_input_grad else g

    x = f.ones(2, requires_grad=True)
    Stop.apply(Stop.apply(x)).sum().backward()
    return seen, x.grad


def with_other_name(f: Any) -> Any:
    """vjp is another name of backward."""

    class Twice(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(ctx: Any, g: Any) -> Any:
            return g * 2, None, None

    x = f.ones(2, requires_grad=True)
    Twice.apply(x).sum().backward()
    return x.grad


def of_the_class(f: Any) -> Any:
    """Class methods, of which forward has an argument by default."""

    class Power(f.autograd.Function):
        @classmethod
        def forward(cls, x: Any, n: int = 3) -> Any:
            return x**n

        @classmethod
        def setup_context(cls, ctx: Any, inputs: Any, output: Any) -> None:
            x, ctx.n = inputs
            ctx.save_for_backward(x)

        @classmethod
        def backward(cls, ctx: Any, g: Any) -> Any:
            return g * ctx.n * ctx.saved_tensors[0] ** (ctx.n - 1), None

    x = f.tensor([1.0, 2.0], requires_grad=True)
    Power.apply(x).sum().backward()
    return x.grad


def view_without_history(f: Any) -> Any:
    """A view made where nothing is recorded stays one: a write to it is refused as to any such view."""
    function = broken(f, lambda ctx, x: x[:1], lambda ctx, g: g)
    x = f.tensor([1.0, 2.0], requires_grad=True)
    with f.no_grad():
        view = function.apply(x * 1)
        of_leaf = function.apply(x)
        same = broken(f, lambda ctx, x: x, lambda ctx, g: g).apply(x)
    refused = []
    for y in (of_leaf, view, same):
        try:
            y.zero_()
        except RuntimeError:
            refused.append(y)
    return of_leaf.requires_grad, same.requires_grad, same.is_leaf, refused, x


def marked_a_stranger(f: Any) -> Any:
    """mark_dirty of what is no input warns and says nothing."""

    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.mark_dirty(y)
        return y

    x = f.tensor([1.0, 2.0], requires_grad=True)
    with pytest.warns(UserWarning, match="Only input Tensors"):
        y = broken(f, forward, lambda ctx, g: g * 2).apply(x)
    y.sum().backward()
    return y.requires_grad, x.grad


PROGRAMS: list[Callable[[Any], Any]] = [
    first_to_third, several, undefined, written, returned, split, named, without, once, kept_by_hooks,
    without_gradient, with_other_name, of_the_class, view_without_history, marked_a_stranger,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_pytorch(program: Callable[[Any], Any], answers: Any) -> None:
    """The same results, and the same bits in recorded regions."""
    expected = answers(program, lambda: numbers(program(torch)))
    assert numbers(program(kiln)) == expected
    recorded = kiln.compile(lambda: program(kiln), wait=True)
    for _ in range(3):
        assert numbers(recorded()) == expected


def broken(f: Any, forward: Any = None, backward: Any = None) -> Any:
    """A function of given methods."""
    methods = {"forward": staticmethod(forward)} if forward else {}
    if backward:
        methods["backward"] = staticmethod(backward)
    return type("Broken", (f.autograd.Function,), methods)


def twice(ctx: Any, x: Any, *rest: Any) -> Any:
    ctx.save_for_backward(x)
    return x * 2


def view_then_write(f: Any, x: Any) -> None:
    y = broken(f, lambda ctx, x: x.view(-1), lambda ctx, g: g.view(2)).apply(x * 1)
    y.mul_(2)


def view_then_write_base(f: Any, x: Any) -> None:
    z = x * 1
    y = broken(f, lambda ctx, x: x.view(-1), lambda ctx, g: g.view(2)).apply(z)
    z.mul_(2)
    y.sum().backward()


def write_saved(f: Any, x: Any) -> None:
    z = x * 1
    y = broken(f, twice, lambda ctx, g: g * ctx.saved_tensors[0]).apply(z)
    z.mul_(2)
    y.sum().backward()


def backward_twice(f: Any, x: Any) -> None:
    y = broken(f, twice, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x)
    y.sum().backward()
    y.sum().backward()


def dirty_leaf(f: Any, x: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    broken(f, forward, lambda ctx, g: g).apply(x)


def dirty_kept(f: Any, x: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x * 2

    broken(f, forward).apply(x * 1)


WRONG: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "no forward": (lambda f, x: broken(f).apply(x), NotImplementedError, "must implement the forward"),
    "no backward": (lambda f, x: broken(f, twice).apply(x).sum().backward(), NotImplementedError, "backward"),
    "too few": (
        lambda f, x: broken(f, twice, lambda ctx, g: g).apply(x, 1).sum().backward(),
        RuntimeError,
        r"expected 2, got 1",
    ),
    "of a number": (
        lambda f, x: broken(f, twice, lambda ctx, g: (g, g)).apply(x, 1).sum().backward(),
        RuntimeError,
        "different .* None at position 2",
    ),
    "of another shape": (
        lambda f, x: broken(f, twice, lambda ctx, g: f.ones(3)).apply(x).sum().backward(),
        RuntimeError,
        "invalid gradient at index 0",
    ),
    "saves a number": (
        lambda f, x: broken(f, lambda ctx, x: ctx.save_for_backward(3)).apply(x),
        TypeError,
        "save_for_backward",
    ),
    "a view is written": (view_then_write, RuntimeError, "is a view and is being modified inplace"),
    "its base is written": (view_then_write_base, RuntimeError, "modified inplace"),
    "what it saved is written": (write_saved, RuntimeError, "modified by an inplace"),
    "backward twice": (backward_twice, RuntimeError, "already been freed.*Specify retain_graph=True"),
    "a leaf is written": (dirty_leaf, RuntimeError, "a leaf Variable that requires grad"),
    "written and not returned": (dirty_kept, RuntimeError, "marked as dirty"),
    "a keyword": (lambda f, x: broken(f, lambda ctx, x, k=1: x * k).apply(x, z=2), TypeError, "argument 'z'"),
    "raises": (lambda f, x: broken(f, twice, lambda ctx, g: 1 / 0).apply(x).sum().backward(),
               ZeroDivisionError, "division"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    """The exceptions of PyTorch, where it is installed."""
    call, error, match = WRONG[name]
    for f in (kiln, torch) if torch is not None else (kiln,):
        with pytest.raises(error, match=match):
            call(f, f.tensor([1.0, 2.0], requires_grad=True))


def test_name_of_the_node() -> None:
    """grad_fn is called after the class, as in PyTorch."""
    y = cube(kiln).apply(kiln.ones(2, requires_grad=True))
    assert y.grad_fn.name() == "CubeBackward"
    assert y.grad_fn.next_functions[0][0].name() == "AccumulateGrad"


def test_more_inputs_than_a_word_has_bits() -> None:
    """A hundred inputs, and three hundred intermediate values saved."""

    class Sum(kiln.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *xs: Any) -> Any:
            ctx.save_for_backward(*(x * k for x in xs for k in (1, 2, 3)))
            return sum(x * k for k, x in enumerate(xs))

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            assert [x.item() for x in ctx.saved_tensors] == [1.0, 2.0, 3.0] * 100
            return tuple(g * k for k in range(100))

    xs = [kiln.ones(1, requires_grad=True) for _ in range(100)]
    Sum.apply(*xs).backward()
    assert [x.grad.item() for x in xs] == list(range(100))


def test_a_function_keeps_nothing() -> None:
    """The result's death frees what the function saved: no cycle through the node."""
    used = []
    for _ in range(3):
        x = kiln.ones(1000, requires_grad=True)
        y = cube(kiln).apply(x)
        del x, y
        used.append(kiln.memory_stats()["allocated_bytes"])
    assert used[1] == used[2]


@pytest.mark.parametrize("lib", ["kiln", "torch"])
def test_what_old_programs_say(lib: str) -> None:
    """Objects of functions, InplaceFunction, saved_variables, save_for_forward, results of no derivative."""
    f = pytest.importorskip(lib)

    class Old(f.autograd.function.InplaceFunction):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            ctx.save_for_forward(x)
            ctx.save_for_backward(x)
            whole = (x > 0).to(x.dtype)
            ctx.mark_non_differentiable(whole)
            ctx._materialize_non_diff_grads = False
            return x.mul_(2), whole

        @staticmethod
        def backward(ctx: Any, g: Any, none: Any) -> Any:
            assert none is None
            with pytest.warns(DeprecationWarning, match="'saved_variables' is deprecated"):
                (x,) = ctx.saved_variables
            return g * x

    leaf = f.ones(2, requires_grad=True)
    y = leaf.clone()
    assert Old.apply(y)[0] is y
    y.sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0]
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        made = Old()
    assert made.inplace is False
    with pytest.raises(RuntimeError, match="non-static forward method is deprecated"):
        made(leaf)


def nested(f: Any, bottom: Callable[[Any], Any]) -> Any:
    """A function whose backward calls backward, as deep as its argument is large."""

    class Nested(f.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            with f.enable_grad():
                ctx.x = x.detach().requires_grad_() - 1
            return ctx.x.detach()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            if ctx.x < 0:
                return bottom(g)
            assert not f.is_grad_enabled()
            with f.enable_grad():
                Nested.apply(ctx.x).sum().backward()
            return g

    return Nested.apply


@pytest.mark.parametrize("lib", ["kiln", "torch"])
def test_backward_in_backward_hundreds_deep(lib: str) -> None:
    """Neither Python's count of calls nor the stack ends it; an error comes up, hooks around hold inside."""
    f = pytest.importorskip(lib)
    x = f.tensor(300.0, requires_grad=True)
    packed: list[Any] = []
    with f.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        nested(f, lambda g: (packed.append(g), f.ones(1, requires_grad=True).exp(), g)[2])(x).backward()
    assert x.grad.item() == 1.0 and len(packed) >= 1
    with pytest.raises(ZeroDivisionError) as error:
        nested(f, lambda g: 1 / 0)(x).backward()
    assert "1 / 0" in str(error.traceback[-1].statement)


def test_a_graph_that_is_passed_far_above() -> None:
    """Is told of on another stack as on the same, instead of being waited for: the pass below freed it."""
    x = kiln.ones(1, requires_grad=True)
    again = x * 2
    y = nested(kiln, lambda g: again.backward() or g)(99 + again.sum())
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()
