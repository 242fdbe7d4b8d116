"""What tests of native libraries share: a program beside its library, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kiln
from kiln.standalone.constants import memory_of
from kiln.standalone.native import library_of, write
from kiln.standalone.running import Loaded
from kiln.tracing.trees import flatten


def library(
    program: Any, folder: Path, name: str = "f", target: str | None = None, weights: str | None = None
) -> Loaded:
    """The library of a program, loaded."""
    made = library_of(program._captured, name, target, weights)
    write(made, folder)
    return Loaded(str(folder / f"lib{name}.so"), made.driver)


def leaves_of(program: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> list[Any]:
    """The inputs of a program, of the arguments of a call."""
    found = program._captured
    given: list[Any] = []
    flatten((tuple(args), kwargs or {}), given)
    return [given[k] for k in found.distinct]


def assert_same_bits(
    made: Loaded, program: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, threads: int = 1
) -> None:
    """The library gives the bits of the program; what that writes into its tensors too."""
    found = program._captured
    leaves = leaves_of(program, args, kwargs)
    kiln.manual_seed(7)
    random = (7, 0) if found.random else None
    came = made(leaves, random, threads)
    with kiln.no_grad():
        results: list[Any] = []
        flatten(program(*args, **(kwargs or {})), results)
    for kind, which in found.mutated:
        results.append(leaves[which] if kind == "input" else found.state[which].tensor)
    assert len(came) == len(results)
    for k, (x, y) in enumerate(zip(results, came)):
        expected = memory_of(x.detach())
        assert expected.shape == y.shape and expected.dtype == y.dtype, f"output {k}"
        same = expected.tobytes() == y.tobytes()
        assert same, (
            f"output {k}: {np.flatnonzero(expected.ravel() != y.ravel())[:5]} of {expected.size} differ"
        )
