"""`dynamic_shapes` of any number of arguments, sizes left to the function, parameters made inside."""

from __future__ import annotations

from typing import Any

import pytest

import kiln
from kiln import nn
from kiln.export import Dim


class _Any(nn.Module):
    def forward(self, x: Any, *args: Any, **more: Any) -> Any:
        return x + args[0] + args[1][0] + more["k"]["z"]


_N = Dim("n")


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: _N}, "args": ({0: _N}, [{0: _N}]), "more": {"k": {"z": {0: _N}}}},
        {"x": {0: _N}, "args": ({0: _N}, ({0: _N},)), "k": {"z": {0: _N}}},
        {"x": {0: _N}, "args[0]": {0: _N}, "args[1]": [{0: _N}], "k": {"z": {0: _N}}},
        ({0: _N}, ({0: _N}, [{0: _N}]), {"k": {"z": {0: _N}}}),
    ],
)
def test_any_number_of_arguments_may_be_said_as_one(shapes: Any) -> None:
    def given(n: int) -> Any:
        return (kiln.ones(n), kiln.ones(n), [kiln.ones(n)]), {"k": {"z": kiln.ones(n)}}

    args, more = given(3)
    program = kiln.export.export(_Any(), args, more, dynamic_shapes=shapes)
    args, more = given(5)
    assert program.module()(*args, **more).tolist() == [4.0] * 5
    with pytest.raises(RuntimeError, match=r"args\[0\]: dim 0 must be n = 5, got 4"):
        program.module()(args[0], kiln.ones(4), *args[2:], **more)


@pytest.mark.parametrize(
    "shapes", [({0: _N}, ({0: _N},)), ({0: _N}, [(_N,)]), ({0: _N}, {0: _N}), [(_N,), (_N,)]]
)
def test_one_of_any_number_may_be_said_as_all(shapes: Any) -> None:
    """As many entries as parameters, which are as many as arguments: of each alone, or of all of `*args`."""

    def f(a: Any, *args: Any) -> Any:
        return a + args[0]

    class Model(nn.Module):
        def forward(self, a: Any, *args: Any) -> Any:
            return f(a, *args)

    exported = kiln.export.export(Model(), (kiln.ones(3), kiln.ones(3)), dynamic_shapes=shapes).module()
    for program in (kiln.jit.trace(f, (kiln.ones(3), kiln.ones(3)), dynamic_shapes=shapes), exported):
        assert program(kiln.ones(5), kiln.ones(5)).tolist() == [2.0] * 5
        with pytest.raises(RuntimeError, match="dim 0 must be n = 5, got 4"):
            program(kiln.ones(5), kiln.ones(4))


@pytest.mark.parametrize("shapes", [([{0: _N}],), (([{0: _N}],),)])
def test_a_list_that_is_one_of_any_number_may_be_said_as_all(shapes: Any) -> None:
    traced = kiln.jit.trace(lambda *args: args[0][0] * 2, ([kiln.ones(3)],), dynamic_shapes=shapes)
    assert traced([kiln.ones(5)]).tolist() == [2.0] * 5


def test_only_any_number_of_arguments() -> None:
    def f(*args: Any) -> Any:
        return args[0][0] + args[1]["a"]

    for shapes in ({"args": (({0: _N},), {"a": {0: _N}})}, ((({0: _N},), {"a": {0: _N}}),)):
        traced = kiln.jit.trace(f, ((kiln.ones(3),), {"a": kiln.ones(3)}), dynamic_shapes=shapes)
        assert traced((kiln.ones(4),), {"a": kiln.ones(4)}).tolist() == [2.0] * 4
    for shapes in (None, {"args": None}):
        traced = kiln.jit.trace(f, ((kiln.ones(3),), {"a": kiln.ones(3)}), dynamic_shapes=shapes)
        with pytest.raises(RuntimeError, match=r"args\[0\]\[0\]: dim 0 must be 3, got 4"):
            traced((kiln.ones(4),), {"a": kiln.ones(4)})


def test_another_number_of_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dynamic_shapes\['args'\]: expected 2 entries in a tuple"):
        kiln.jit.trace(
            lambda *args: args[0] + args[1], (kiln.ones(3), kiln.ones(3)), dynamic_shapes={"args": ({0: _N},)}
        )
    with pytest.raises(ValueError, match="no input is called 'others'"):
        kiln.jit.trace(lambda *args: args[0], (kiln.ones(3),), dynamic_shapes={"others": ({0: _N},)})


def test_a_trace_solves_what_sizes_left_to_it_must_be() -> None:
    """As an export: equal sizes are one, numbers stay numbers, others vary."""
    auto = {0: Dim.AUTO, 1: Dim.AUTO}
    traced = kiln.jit.trace(
        lambda x, y: (x + y) * kiln.ones(3), (kiln.ones(4, 3), kiln.ones(4, 3)), dynamic_shapes=(auto, auto)
    )
    assert traced(kiln.ones(6, 3), kiln.ones(6, 3)).shape == (6, 3)
    with pytest.raises(RuntimeError, match="y: dim 0"):
        traced(kiln.ones(6, 3), kiln.ones(5, 3))
    with pytest.raises(RuntimeError, match="x: dim 1 must be 3, got 2"):
        traced(kiln.ones(6, 2), kiln.ones(6, 2))
    with pytest.raises(RuntimeError, match="test_arguments.py"):
        kiln.jit.trace(lambda x: x + kiln.ones(3), kiln.ones(3), dynamic_shapes={"x": {0: Dim.DYNAMIC}})


def _linear(x: Any) -> Any:
    return nn.Linear(3, 4)(x)


def _several(x: Any) -> Any:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LayerNorm(3))(x)


def _norm(x: Any) -> Any:
    return nn.BatchNorm1d(3)(x)


def _lookup(x: Any) -> Any:
    return nn.Embedding(5, 3)(x.long())


def _attention(x: Any) -> Any:
    return nn.MultiheadAttention(3, 1)(x, x, x)[0]


def _recurrent(x: Any) -> Any:
    return nn.LSTM(3, 2)(x)[0]


def _tied(x: Any) -> Any:
    weight = nn.Parameter(x.detach())
    with kiln.no_grad():
        weight.mul_(2)
    return weight * x, x


@pytest.mark.parametrize("f", [_linear, _several, _norm, _lookup, _attention, _recurrent])
def test_layers_may_be_made_inside(f: Any) -> None:
    """Their weights are drawn at each call, as the function draws them; gradients come to the arguments."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(kiln.ones(3))

        def forward(self, x: Any) -> Any:
            return f(x * self.scale)

    model = Model()
    program = kiln.export.export(model, (kiln.rand(4, 3),)).module()
    grads = []
    x = kiln.rand(4, 3)
    for run in (model, program):
        kiln.manual_seed(3)
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        model.zero_grad()
        if f is not _lookup:
            (y * y).sum().backward()
        grads.append((y.tolist(), leaf.grad, model.scale.grad))
    assert grads[0][0] == grads[1][0]
    for a, b in zip(grads[0][1:], grads[1][1:], strict=True):
        assert (a is None and b is None) or a.tolist() == b.tolist()


def test_a_parameter_over_an_argument_writes_it() -> None:
    traced = kiln.jit.trace(_tied, kiln.ones(3))
    x, y = kiln.full((3,), 2.0), kiln.full((3,), 2.0)
    assert [r.tolist() for r in traced(x)] == [r.tolist() for r in _tied(y)]
    assert x.tolist() == y.tolist() == [4.0] * 3


@pytest.mark.parametrize("f", [lambda x: nn.Parameter(x * 2), lambda x: x.detach().requires_grad_()])
def test_a_parameter_that_is_made_inside_is_no_result(f: Any) -> None:
    with pytest.raises(RuntimeError, match="returns a tensor that it has made to get gradients"):
        kiln.jit.trace(f, kiln.ones(3))
