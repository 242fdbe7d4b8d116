"""Points of the Sobol' sequence: PyTorch's, by SciPy."""

from __future__ import annotations

from typing import Any

import pytest
from backend import kiln


def drawn(f: Any, dimension: int) -> list[Any]:
    """Points in parts, left out, from the start again, and as numbers of another dtype."""
    engine = f.quasirandom.SobolEngine(dimension)
    parts = [engine.draw(1), engine.draw(2), engine.fast_forward(4).draw(2)]
    parts += [engine.reset().draw_base2(2), engine.draw(3, dtype=f.float64)]
    return [[part.tolist() for part in parts], engine.num_generated, repr(engine)]


@pytest.mark.parametrize("dimension", [1, 2, 7])
def test_points(dimension: int, answers: Any) -> None:
    pytest.importorskip("scipy.stats.qmc")
    ours, theirs = answers.both(drawn, dimension)
    assert ours == theirs


def test_scrambled_points_and_refusals() -> None:
    pytest.importorskip("scipy.stats.qmc")
    engine = kiln.quasirandom.SobolEngine(3, scramble=True, seed=1)
    points = engine.draw(8)
    assert points.shape == (8, 3) and points.dtype == kiln.float32
    assert sorted((points * 8).floor()[:, 1].tolist()) == [float(k) for k in range(8)]  # one in each eighth
    assert kiln.quasirandom.SobolEngine(3, scramble=True, seed=1).draw(8).tolist() == points.tolist()
    assert engine.draw(2, out := kiln.empty(2, 3)) is out
    with pytest.raises(ValueError, match="power of 2"):
        engine.draw_base2(1)
    with pytest.raises(ValueError, match=r"\[1, 21201\]"):
        kiln.quasirandom.SobolEngine(0)
