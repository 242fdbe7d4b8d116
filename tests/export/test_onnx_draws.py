"""Random numbers in ONNX models: shapes, dtypes, ranges and moments of what ONNX Runtime draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_models import Model, onnx

import kiln
from kiln.export import Dim
from kiln.nn import functional as F
from kiln.ops.random.distributions import poisson_round
from kiln.ops.random.generator import reserve
from kiln.table.arguments import run

ONES = kiln.ones(400, 50)
MANY = (20000,)
# By name: what draws, from ONES; the range, mean and deviation of what it gives.
DRAWN: dict[str, tuple[Callable[[Any], Any], float, float, float, float]] = {
    "rand": (lambda x: kiln.rand(MANY), 0, 1, 0.5, 12**-0.5),
    "rand float64": (lambda x: kiln.rand(MANY, dtype=kiln.float64), 0, 1, 0.5, 12**-0.5),
    "rand float16": (lambda x: kiln.rand(MANY, dtype=kiln.float16), 0, 1, 0.5, 12**-0.5),
    "uniform_": (lambda x: x.clone().uniform_(-2, 4), -2, 4, 1, 3**0.5),
    "randn": (lambda x: kiln.randn(MANY), -9, 9, 0, 1),
    "normal": (lambda x: kiln.normal(3.0, 2.0, MANY), -15, 21, 3, 2),
    "randint": (lambda x: kiln.randint(-5, 5, MANY), -5, 4, -0.5, 8.25**0.5),
    "bernoulli": (lambda x: kiln.bernoulli(x * 0.3), 0, 1, 0.3, 0.21**0.5),
    "bernoulli_": (lambda x: x.bool().bernoulli_(0.3), 0, 1, 0.3, 0.21**0.5),
    "exponential_": (lambda x: x.clone().exponential_(2.0), 0, 20, 0.5, 0.5),
    "geometric_": (lambda x: x.clone().geometric_(0.5), 1, 40, 2, 2**0.5),
    "log_normal_": (lambda x: x.clone().log_normal_(0.0, 0.25).log(), -3, 3, 0, 0.25),
    "dropout": (lambda x: F.dropout(x, 0.25), 0, 1.3334, 1, 3**-0.5),
    "dropout1d": (lambda x: F.dropout1d(x.unsqueeze(2), 0.5), 0, 2, 1, 1),
    "alpha_dropout": (lambda x: F.alpha_dropout(kiln.randn(MANY), 0.3, training=True), -9, 9, 0, 1),
    "multinomial": (
        lambda x: kiln.multinomial(kiln.tensor([1.0, 0.0, 3.0]), 20000, True), 0, 2, 1.5, 0.75**0.5,
    ),
    "without replacement": (lambda x: kiln.multinomial(x, 50), 0, 49, 24.5, (2499 / 12) ** 0.5),
    "randperm": (lambda x: kiln.randperm(20000), 0, 19999, 9999.5, (4e8 / 12) ** 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_moments(name: str) -> None:
    """Every run draws anew, as many numbers of a distribution as kiln does."""
    function, least, most, mean, deviation = DRAWN[name]
    model = Model(kiln.export.export(function, (ONES,)))
    (first,), (second,) = (model.run((ONES,), {}) for _ in range(2))
    expected = function(ONES).numpy()
    assert first.shape == expected.shape and first.dtype == expected.dtype
    if name != "randperm":
        assert (first != second).mean() > 0.1
    for came in (first.astype(np.float64), second.astype(np.float64)):
        assert least <= came.min() and came.max() <= most
        error = deviation / came.size**0.5
        assert abs(came.mean() - mean) < 6 * error and abs(came.std() - deviation) < 24 * error


def test_sizes_that_vary() -> None:
    """As many numbers as the call has elements."""

    def program(x: Any) -> Any:
        return kiln.rand(x.shape), kiln.randn(x.shape), F.dropout(x, 0.5)

    model = Model(kiln.export.export(program, (ONES,), dynamic_shapes=({0: Dim("n", min=1)},)))
    for count in (3, 1000):
        came = model.run((kiln.ones(count, 50),), {})
        assert [x.shape for x in came] == [(count, 50)] * 3
        assert 0 <= came[0].min() and came[0].max() < 1 and came[1].min() < -1 and set(came[2].flat) == {0, 2}


def test_draws_are_independent() -> None:
    """Two calls draw two things; one position is one draw, in a dropout and its gradient."""
    x = kiln.ones(2000)
    two = kiln.export.export(lambda x: (kiln.rand(2000), kiln.rand(2000)), (x,))
    first, second = Model(two).run((x,), {})
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    gradient = kiln.graph.from_function(lambda x, w: F.dropout(x, 0.5) * w, x, x + 0).gradient()
    of_x, of_w = Model(gradient.program()).run((x, x), {})
    assert 0.3 < of_x.mean() / 2 < 0.7 and (of_x == of_w).all()


def test_a_permutation_and_distinct_draws() -> None:
    def program(w: Any) -> Any:
        return kiln.randperm(100), kiln.multinomial(w, 3)

    w = kiln.tensor([0.0, 1.0, 2.0, 3.0])
    order, drawn = Model(kiln.export.export(program, (w,))).run((w,), {})
    assert sorted(order) == list(range(100)) and sorted(drawn) == [1, 2, 3]


def test_attention_with_dropout() -> None:
    """Each weight is dropped or doubled: of ones, all 8 weights give multiples of 1/4 up to 2."""
    q = kiln.ones(2, 2, 8, 4)
    made = kiln.export.export(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), (q,))
    (came,) = Model(made).run((q,), {})
    assert came.shape == (2, 2, 8, 4) and set((came * 4).round(4).flat) <= set(range(9)) and came.std() > 0.1


def test_the_version_that_runtimes_have() -> None:
    """Without an opset a program that draws is of 21; with one it is of that."""
    program = kiln.export.export(lambda x: x + kiln.rand(3), (kiln.ones(3),))
    for opset, version in ((None, 21), (18, 18), (26, 26)):
        assert onnx.load_from_string(program.to_onnx(opset=opset).data).opset_import[0].version == version


def test_what_computes_with_the_stream_is_refused() -> None:
    def program(x: Any) -> Any:
        return run(poisson_round, x, *reserve((3,), None), 1)

    made = kiln.export.export(program, (kiln.full((3,), 20.0, dtype=kiln.float64),))
    with pytest.raises(ValueError, match=r"test_onnx_draws.py:\d+\) computes its random numbers in a way"):
        made.to_onnx()
