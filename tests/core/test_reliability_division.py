"""Integers divided by integers: what has no value is refused on its line, as PyTorch does."""

from __future__ import annotations

from typing import Any

import pytest
from backend import WAYS, kiln, values


def test_the_least_integer_by_minus_one() -> None:
    """Its quotient wraps, and its remainder is 0."""
    x, y = kiln.tensor([-(2**63), 5]), kiln.tensor([-1, 2])
    assert values(x // y) == [-(2**63), 2]
    assert values(x % y) == [0, 1]


DIVISIONS = {
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": kiln.fmod if hasattr(kiln, "fmod") else lambda x, y: x % y,
    "div_trunc": lambda x, y: kiln.div(x, y, rounding_mode="trunc"),
    "in place": lambda x, y: x.floor_divide_(y),
    "a number by it": lambda x, y: 5 // y,
    "by 0": lambda x, y: x % 0,
}


@WAYS
@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_integers_by_zero(way: Any, name: str, dtype: str) -> None:
    """Integers divided by 0 raise on their line, and nothing was written; floats give inf and NaN."""

    def program(x: Any, y: Any) -> None:
        x.mul_(2)
        DIVISIONS[name](x, y * 1)
        x.mul_(2)

    run, kind = way(program), getattr(kiln, dtype)
    for _ in range(3):
        x = kiln.tensor([7, 9, 3], dtype=kind)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(x, kiln.tensor([2, 1, 0], dtype=kind))
        assert values(x) == [14, 18, 6] or (name == "in place" and not kiln.is_kiln)
    DIVISIONS[name](kiln.tensor([7.0]), kiln.tensor([0.0]))
    if name not in ("in place", "by 0"):
        DIVISIONS[name](kiln.tensor([7]), kiln.tensor([0.0]))
    if name not in ("a number by it", "by 0"):
        assert DIVISIONS[name](kiln.zeros(0, dtype=kind), kiln.zeros(1, dtype=kind)).shape == (0,)
        x, y = kiln.tensor([[4, 6]], dtype=kind).expand(2, 2).clone(), kiln.tensor([[2, 0]] * 2, dtype=kind)
        assert values(DIVISIONS[name](x, y[:, :1])) in ([[2, 3]] * 2, [[0, 0]] * 2)
