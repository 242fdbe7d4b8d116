"""Samples of the table as calls of tensors, and what calls give, compared by bits."""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln


def given(x: Any) -> Any:
    """A sample's argument with tensors for arrays."""
    if isinstance(x, np.ndarray):
        return kiln.from_numpy(np.ascontiguousarray(x))
    if isinstance(x, (list, tuple)):
        return type(x)(map(given, x))
    return x


def tensors(value: Any) -> list[Any]:
    """The tensors in a result."""
    if isinstance(value, kiln.Tensor):
        return [value]
    return [y for item in value for y in tensors(item)] if isinstance(value, (tuple, list)) else []


def assert_same(name: str, expected: list[Any], came: list[Any]) -> None:
    """Equal sizes, dtypes and bits, but for those of NaN."""
    assert len(came) == len(expected), name
    for a, b in zip(expected, came):
        assert a.shape == b.shape and a.dtype == b.dtype, name
        assert bool(((a == b) | ((a != a) & (b != b))).all()), name
