"""Random numbers of programs: as eager ones from the same generator, of any size, inside other programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kiln
from kiln.export import Dim, export
from kiln.graph import Graph, from_function, placeholder

F = kiln.nn.functional
_DRAWS: dict[str, Callable[[Any], Any]] = {
    "rand_like": kiln.rand_like,
    "randn_like": kiln.randn_like,
    "randint_like": lambda x: kiln.randint_like(x, 5),
    "rand of sizes": lambda x: kiln.rand(x.shape[0], 2),
    "bernoulli": kiln.bernoulli,
    "normal_": lambda x: kiln.empty_like(x).normal_(),
    "dropout": F.dropout,
    "alpha_dropout": lambda x: F.alpha_dropout(x, training=True),
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True),
    "gumbel_softmax": F.gumbel_softmax,
    "multinomial": lambda x: kiln.multinomial(x, 2),
    "Normal": lambda x: kiln.distributions.Normal(x, 1.0).rsample(),
    "several": lambda x: F.dropout(x) + kiln.rand_like(x) + kiln.rand(2, x.shape[0], 1).sum(),
}


def _same(a: Callable[[Any], Any], b: Callable[[Any], Any], x: Any) -> bool:
    """Whether both give the same, and leave the generator where the other does."""
    made = []
    for f in (a, b):
        kiln.manual_seed(3)
        made.append((f(x).tolist(), kiln.rand(1).item()))
    return made[0] == made[1]


@pytest.mark.parametrize("name", _DRAWS)
def test_what_is_drawn_in_sizes_that_vary_is_what_eager_code_draws(name: str) -> None:
    f = _DRAWS[name]
    program = export(f, (kiln.rand(3, 4),), dynamic_shapes=({0: Dim("n"), 1: Dim("m")},))
    for shape in ((3, 4), (5, 7), (2, 3)):
        assert _same(f, program, kiln.rand(shape))


def _defined(f: Callable[[Any], Any]) -> Graph:
    x = placeholder("x", (3, 4))
    return Graph(x, f(x))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda f, x: export(f, (x,)),
        lambda f, x: kiln.jit.trace(f, (x,)),
        lambda f, x: from_function(f, x),
        lambda f, x: _defined(f),
    ],
    ids=["export", "jit.trace", "from_function", "placeholder"],
)
def test_a_program_that_draws_is_a_part_of_another(make: Callable[..., Any], used: bool) -> None:
    """Also where it was called before, and the core would run such a call by itself."""
    x = kiln.rand(3, 4)
    inner = make(F.dropout, x)
    for _ in range(3 if used else 0):
        inner(x)

    def outer(x: Any) -> Any:
        return inner(x) + kiln.rand_like(x)

    for program in (export(outer, (x,)), kiln.jit.trace(outer, (x,)), from_function(outer, x)):
        assert _same(outer, program, x)
        assert _same(lambda x: F.dropout(x) + kiln.rand_like(x), program, x)
