"""Whole programs, unchanged but for the import: PyTorch's results, and when compiled eager's bits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import programs
import pytest
from backend import needs_kiln

import kiln
from kiln.testing.compare import first_difference, freeze

pytestmark = needs_kiln
PROGRAMS = [
    f
    for f in vars(programs).values()
    if inspect.isfunction(f) and [*inspect.signature(f).parameters] == ["torch", "rng"]
]


def leaves(results: Any) -> Iterator[Any]:
    """What a program returned, one tensor, number or string after the other."""
    if isinstance(results, (list, tuple)) and not isinstance(results, kiln.Size):
        for result in results:
            yield from leaves(result)
    else:
        yield results


def plain(value: Any) -> Any:
    """A tensor as an array of doubles beside its dtype's name, anything else as it is."""
    if not hasattr(value, "detach"):
        return "", np.asarray(value)
    return str(value.dtype).split(".")[-1], value.detach().numpy()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_program_gives_what_pytorch_gives(program: Any) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = (list(leaves(program(lib, np.random.default_rng(0)))) for lib in (kiln, torch))
    assert len(ours) == len(theirs)
    for place, (one, two) in enumerate(zip(ours, theirs)):
        (dtype, got), (expected, want) = plain(one), plain(two)
        assert dtype == expected, f"result {place}"
        assert got.shape == want.shape, f"result {place}"
        np.testing.assert_allclose(
            got.astype(float), want.astype(float), rtol=2e-4, atol=2e-5, err_msg=f"result {place}"
        )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_compiled_program_gives_the_same_bits(program: Any) -> None:
    """Recorded when first seen, handed to the compiler at the second sight, run by its regions thereafter."""
    compiled = kiln.compile(lambda rng: program(kiln, rng))
    expected = freeze(program(kiln, np.random.default_rng(0)))
    for call in range(3):
        found = first_difference(expected, freeze(compiled(np.random.default_rng(0))), exact=True)
        assert found is None, f"call {call + 1}: {found}"
