"""`make_fx`: what a function does with tensors, as a graph of kiln's operations."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import kiln
import kiln.nn.functional as F
from kiln.fx.experimental.proxy_tensor import make_fx


def test_it_records_operations_whatever_they_stand_in() -> None:
    def layer(x: Any, w: Any) -> Any:
        y = F.relu(x @ w)
        return {"sum": y.sum(-1), "rest": [y, y.shape[0]]}

    x, w = kiln.randn(3, 2), kiln.randn(2, 4)
    made = make_fx(layer)(x, w)
    assert [node.name for node in made.graph.nodes] == ["x_1", "w_1", "matmul", "relu", "sum_1", "output"]
    expected = layer(x, w)
    found = made(x, w)
    assert kiln.equal(found["sum"], expected["sum"]) and kiln.equal(found["rest"][0], expected["rest"][0])
    assert found["rest"][1] == 3
    made.graph.eliminate_dead_code()
    made.graph.lint()


def test_state_is_attributes_and_is_written_and_draws_are_each_calls() -> None:
    net = kiln.nn.Sequential(
        kiln.nn.Linear(3, 4), kiln.nn.BatchNorm1d(4), kiln.nn.ReLU(inplace=True), kiln.nn.Dropout()
    )
    other, x = copy.deepcopy(net), kiln.randn(5, 3)
    made = make_fx(net)(x)
    names = [name for name, _ in made.named_parameters()]
    assert names == [f"_param_constant{k}" for k in range(4)] and made._param_constant0 is net[0].weight
    made.graph.eliminate_dead_code()
    made.recompile()
    for seed in (0, 1):
        kiln.manual_seed(seed)
        expected = other(x)
        after = kiln.rand(1)
        kiln.manual_seed(seed)
        assert kiln.equal(made(x), expected) and kiln.equal(kiln.rand(1), after)
        assert kiln.equal(net[1].running_var, other[1].running_var)
    made(x).sum().backward()
    assert net[0].weight.grad is not None


def test_arguments_are_containers_that_are_written() -> None:
    def step(state: Any, k: Any) -> Any:
        state["h"].mul_(k).add_(state["x"][0])
        return state["h"].sum()

    made = make_fx(step)({"h": kiln.ones(2), "x": [kiln.ones(2)]}, 3)
    h = kiln.full((2,), 2.0)
    assert made({"h": h, "x": [kiln.ones(2)]}, 3).item() == 14 and h.tolist() == [7, 7]


def test_sizes_are_open_where_that_is_said() -> None:
    def rows(x: Any) -> Any:
        return x.reshape(-1) * x.shape[1], x.shape[0]

    made = make_fx(rows, tracing_mode="symbolic")(kiln.ones(2, 3))
    y, n = made(kiln.ones(4, 5))
    assert y.tolist() == [5.0] * 20 and n == 4


def test_what_ops_ask_of_values_is_asked() -> None:
    made = make_fx(lambda i: F.one_hot(i, 3))(kiln.tensor([0, 2]))
    made.graph.eliminate_dead_code()
    made.recompile()
    assert made(kiln.tensor([1])).tolist() == [[0, 1, 0]]
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        made(kiln.tensor([3]))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(AssertionError, match='"symbolic", got other'):
        make_fx(kiln.sin, tracing_mode="other")
    with pytest.raises(NotImplementedError, match="decomposition_table"):
        make_fx(kiln.sin, {kiln.sin: kiln.cos})
    with pytest.raises(RuntimeError, match="reads the value"):
        make_fx(lambda x: x * float(x.sum()))(kiln.ones(2))
