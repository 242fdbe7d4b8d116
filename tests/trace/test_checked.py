"""What a program checks at each call: values that were read, values that ops refuse, its state."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from traced_states import Times

import kiln
import kiln.nn.functional as F
from kiln import nn
from kiln.export import Dim, ExportedProgram, load, save
from kiln.tracing.capture import capture
from kiln.tracing.recorder import TracingError


def _saved(f: Any, *args: Any) -> Any:
    """A program that went through a file."""
    file = io.BytesIO()
    save(ExportedProgram(capture(f, args, on_data="check")), file)
    file.seek(0)
    return load(file)


def _steps(x: Any) -> Any:
    y = x + 1
    for _ in range(int(x[0])):
        y = y * 2
    return y[y > 3] if x.mean() > 0 else y


def test_a_value_that_is_read_is_kept_and_checked() -> None:
    """Only what was read: the program holds for all inputs of which it is the same."""
    x = kiln.tensor([1.0, 2.0, 3.0])
    with pytest.raises(
        RuntimeError, match=r"test_checked.py:\d+ reads the value of a tensor, 1.0 for the exam"
    ):
        kiln.jit.trace(_steps, x)
    for program in (kiln.jit.trace(_steps, x, on_data="check"), _saved(_steps, x)):
        for good in ([1.0, 2.0, 3.0], [1.0, 7.0, 9.0]):
            assert program(kiln.tensor(good)).tolist() == _steps(kiln.tensor(good)).tolist()
        with pytest.raises(
            RuntimeError, match=r"test_checked.py:\d+ read 1.0 when the program was made.*is 2.0"
        ):
            program(kiln.tensor([2.0, 2.0, 3.0]))
        with pytest.raises(RuntimeError, match=r"read 3 when the program was made.*here it is 2"):
            program(kiln.tensor([1.0, 0.0, 3.0]))
        with pytest.raises(RuntimeError, match=r"read True when the program was made.*here it is False"):
            program(kiln.tensor([1.0, -9.0, 3.0]))


def test_gradients_flow_through_a_program_with_checks() -> None:
    """Those of the path that was kept."""

    def f(x: Any) -> Any:
        return x * x if x.sum() > 0 else x

    traced, x = kiln.jit.trace(f, kiln.ones(2), on_data="check"), kiln.tensor([2.0, 3.0], requires_grad=True)
    traced(x).sum().backward()
    assert x.grad.tolist() == [4.0, 6.0]


def test_a_tensor_from_elsewhere_that_is_read_is_checked() -> None:
    """It may be written after the trace."""
    scale = kiln.tensor(2.0)
    traced = kiln.jit.trace(lambda x: x * scale.item(), kiln.ones(2))
    assert traced(kiln.ones(2)).tolist() == [2.0, 2.0]
    scale.fill_(3.0)
    with pytest.raises(RuntimeError, match="read 2.0 when the program was made"):
        traced(kiln.ones(2))


_REFUSED: list[tuple[Any, Any, Any]] = [
    (lambda i: F.one_hot(i, 4), [0, 1, 2], [0, 1, 4]),
    (lambda i: F.one_hot(i * 2, 8), [0, 1, 2], [0, -1, 2]),
    (lambda i: 6 // i, [1, 2, 3], [1, 0, 3]),
    (lambda p: kiln.bernoulli(p * 1), [0.1, 0.5], [0.1, 1.5]),
    (lambda p: kiln.multinomial(p, 1), [0.1, 0.5], [-0.1, 0.5]),
    (lambda p: kiln.normal(0.0, p), [0.1, 0.5], [-0.1, 0.5]),
    (lambda p: F.binary_cross_entropy(p, p.detach()), [0.1, 0.5], [0.1, 1.5]),
    (lambda p: kiln.distributions.Normal(0.0, p).log_prob(p), [0.1, 0.5], [-0.1, 0.5]),
]


@pytest.mark.parametrize(("f", "good", "bad"), _REFUSED)
def test_what_an_op_refuses_a_program_refuses(f: Any, good: Any, bad: Any) -> None:
    """By the same type of error, also from a file."""
    with pytest.raises((RuntimeError, ValueError)) as expected:
        f(kiln.tensor(bad))
    for program in (kiln.jit.trace(f, kiln.tensor(good)), _saved(f, kiln.tensor(good))):
        program(kiln.tensor(good))
        with pytest.raises(expected.type):
            program(kiln.tensor(bad))


def test_second_derivatives_of_a_function_are_its_backwards() -> None:
    """Also in a file, and refused where eager refuses them."""
    x, y = kiln.tensor([0.5, 1.0]), kiln.tensor([2.0, 3.0])

    def twice(f: Any) -> tuple[Any, Any]:
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        g = kiln.autograd.grad(f(a, b).sum(), a, create_graph=True)[0]
        return g.tolist(), [h.tolist() for h in kiln.autograd.grad(g.sum(), (a, b))]

    assert (
        twice(Times.apply) == twice(kiln.jit.trace(Times.apply, (x, y))) == twice(_saved(Times.apply, x, y))
    )

    class Once(kiln.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @kiln.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    for f in (Once.apply, kiln.jit.trace(Once.apply, x)):
        a = x.clone().requires_grad_()
        assert kiln.autograd.grad(f(a).sum(), a)[0].tolist() == [1.0, 2.0]
        with pytest.raises(RuntimeError, match="differentiate twice|does not require grad"):
            kiln.autograd.grad(kiln.autograd.grad(f(a).sum(), a, create_graph=True)[0].sum(), a)


def test_an_output_that_shares_memory_is_not_written() -> None:
    """A trace would write a copy."""

    class Same(kiln.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    def f(x: Any) -> Any:
        y = Same.apply(x)
        y.add_(1)
        return x * 2

    with pytest.raises(RuntimeError, match="memory that the result of Same shares"):
        kiln.jit.trace(f, kiln.ones(2))


_SIZES: list[Any] = [
    lambda x, c: (x[0] * x.shape[0], c * x.shape[0], x.size(0) - c, c / x.size(0), x.sum(0) / x.size(0)),
    lambda x, c: (c % x.size(0), c // x.size(0), kiln.arange(4) < x.size(0), kiln.tensor(x.shape[0])),
    lambda x, c: (kiln.full((2,), x.shape[0]), kiln.full((x.shape[0],), 1.5), kiln.tensor([x.shape[0], 1])),
    lambda x, c: (kiln.as_tensor(x.size(0)), kiln.tensor(x.shape), x.new_tensor(x.size(0)), c * sum(x.shape)),
    lambda x, c: (x[: max(x.shape[0] - 1, 1)], x.narrow(0, x.size(0) - 1, 1), c * divmod(x.shape[0], 2)[0]),
    lambda x, c: (x.reshape(x.shape[0] * 2, -1), kiln.zeros(x.size(0) // 2), x * x.size(1) ** -0.5),
    lambda x, c: (kiln.rand(x.shape), kiln.randn(2), kiln.rand(x.size(0)), F.dropout(x, 0.5)),
]


@pytest.mark.parametrize("f", _SIZES)
def test_sizes_that_vary_are_numbers(f: Any) -> None:
    """Of ops, of shapes, of random draws: the function's bits at every size."""
    c, n = kiln.arange(12.0).reshape(3, 4), Dim("n")
    traced = kiln.jit.trace(f, (kiln.ones(3, 4), c), dynamic_shapes={"x": {0: n}})
    for size in (3, 5, 2):
        x = kiln.arange(4.0 * size).reshape(size, 4)
        kiln.manual_seed(size)
        expected = f(x, c)
        kiln.manual_seed(size)
        for a, b in zip(expected, traced(x, c), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


@pytest.mark.parametrize(
    ("f", "said"),
    [
        (lambda x: x.double() * x.size(0) ** -0.5, "read as a float"),
        (lambda x: x.pow(x.size(0)), "as an exponent"),
        (lambda x: x.chunk(2, 0), "divided into parts"),
        (lambda x: (x.shape[0] - 4) // 2 * x, "read as a number"),
    ],
)
def test_sizes_that_cannot_be_numbers_are_refused(f: Any, said: str) -> None:
    """With the line."""
    with pytest.raises(RuntimeError, match=rf"test_checked.py:\d+ .*{said}"):
        kiln.jit.trace(f, kiln.ones(3, 4), dynamic_shapes={"x": {0: Dim("n")}})


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(2, 3)
        self.register_buffer("held", kiln.zeros(2, 3))

    def forward(self, x: Any) -> Any:
        self.held = self.held + x
        return self.back(self.a(x)) + self.held

    def back(self, z: Any) -> Any:
        return self.b(z)


def test_several_methods_and_copies() -> None:
    """They share the module's parameters; a deep copy has its own. A buffer that is assigned is written."""
    kiln.manual_seed(0)
    net, x = _Two(), kiln.randn(2, 3)
    traced = kiln.jit.trace_module(copy.deepcopy(net), {"forward": x, "back": kiln.ones(2, 2)})
    twin = copy.deepcopy(traced)
    for _ in range(2):
        assert (traced(x) == net(x)).all()
    assert (traced.held == net.held).all() and not twin.held.any()
    with kiln.no_grad():
        traced.b.weight.zero_()
    assert (traced.back(kiln.ones(2, 2)) == traced.b.bias).all()
    assert (twin.back(kiln.ones(2, 2)) == net.back(kiln.ones(2, 2))).all()
    assert (twin.double()(x.double()).dtype) is kiln.float64
    with pytest.raises(RuntimeError, match="x: expected float64, got float32"):
        twin(x)


def test_a_frozen_module_has_constants() -> None:
    """What is trained afterwards does not reach it."""
    net, x = nn.Linear(3, 2), kiln.randn(2, 3)
    with pytest.raises(RuntimeError, match="expects a ScriptModule"):
        kiln.jit.freeze(net)
    traced = kiln.jit.trace(net, x)
    with pytest.raises(RuntimeError, match="only implemented for modules in eval mode"):
        kiln.jit.freeze(traced)
    frozen = kiln.jit.optimize_for_inference(traced.eval())
    expected = net(x)
    with kiln.no_grad():
        net.weight.zero_()
    file = io.BytesIO()
    frozen.save(file)
    file.seek(0)
    assert not list(frozen.parameters()) and not frozen(x).requires_grad
    assert (frozen(x) == expected).all() and (kiln.jit.load(file)(x) == expected).all()


def test_whether_a_gradient_is_wanted_is_no_part_of_a_trace() -> None:
    def f(x: Any) -> Any:
        return x * 2 if x.requires_grad else x * 3

    for wanted in (True, False):
        with pytest.raises(TracingError, match=r"test_checked.py:\d+ reads requires_grad"):
            kiln.jit.trace(f, kiln.ones(2).requires_grad_(wanted))

    def known(x: Any, n: Any) -> Any:  # which no call decides
        assert not n.requires_grad and not x.detach().requires_grad
        return x * n

    assert kiln.jit.trace(known, (kiln.ones(2), kiln.arange(2)))(kiln.ones(2), kiln.arange(2)).tolist() == [
        0,
        1,
    ]
    cell = kiln.compile(f, pure=True)
    for _ in range(3):
        assert [cell(kiln.ones(1).requires_grad_(w)).item() for w in (True, False)] == [2, 3]
