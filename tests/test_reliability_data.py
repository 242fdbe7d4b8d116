"""Data at the limits of reading it: lists that change meanwhile, more elements than 32 bits count."""

from __future__ import annotations

from typing import Any

import pytest
from backend import WAYS, kiln, needs_kiln, values


class Index:
    """A number whose value Python code gives, which changes a list meanwhile."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def __index__(self) -> int:
        self.change()
        return 1


@needs_kiln
@pytest.mark.parametrize("way", ["longer", "shorter", "other"])
def test_lists_that_change_while_they_are_read(way: str) -> None:
    """What is read is the list as it was, or an error: never memory beyond it, or an item that is gone."""
    for _ in range(20):
        numbers: list[Any] = [[1, 2], [3, 4], [5, 6]]
        change = {
            "longer": lambda row=numbers[1]: row.extend([7] * 1000),
            "shorter": lambda rows=numbers: [row.clear() for row in rows],
            "other": lambda rows=numbers: rows.__setitem__(slice(None), [[object()] for _ in range(3)]),
        }[way]
        numbers[1][0] = Index(change)
        if way == "longer":
            assert values(kiln.tensor(numbers)) == [[1, 2], [1, 4], [5, 6]]
            assert len(numbers[1]) > 1000
            continue
        with pytest.raises((ValueError, TypeError)):
            kiln.tensor(numbers)


@needs_kiln
@WAYS
def test_more_than_2_31_elements_are_read(way: Any) -> None:
    """Every one of them, by kernels that count in 64 bits."""
    x = kiln.ones((), dtype=kiln.int8).expand(2**31 + 7)
    run = way(lambda x: (x.sum(), x[2**31 :].sum(), x.reshape(1, -1).sum(1)))
    assert [values(y) for y in run(x)] == [2**31 + 7, 7, [2**31 + 7]]
