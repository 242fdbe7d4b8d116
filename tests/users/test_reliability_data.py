"""Data at the limits of reading it: lists that change meanwhile, more elements than 32 bits count."""

from __future__ import annotations

from typing import Any

import numpy as np
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


@pytest.mark.parametrize("elements", [(1 << 20) - 1, 1 << 20, (1 << 21) + 5])
def test_results_about_as_large_as_the_caches(elements: int) -> None:
    """Large results are stored another way, by another kernel: fresh, in place, strided, of a wide dtype."""
    x = np.arange(elements, dtype=np.float32) % 1000
    a = kiln.tensor(x)
    assert np.array_equal((a + 1).numpy(), x + 1)
    assert np.array_equal(a[::2].double().mul(2).numpy(), x[::2].astype(np.float64) * 2)
    a.mul_(3)
    assert np.array_equal(a.numpy(), x * 3)
    a[1:].copy_(a[:-1].clone())
    assert np.array_equal(a.numpy()[1:], x[:-1] * 3)


@needs_kiln
def test_large_results_have_a_kernel_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first; afterwards both are known."""
    from kiln.capture import programs

    made: list[bool] = []
    write = programs.pointwise_nest

    def noted(*arguments: Any) -> Any:
        nest = write(*arguments)
        made.append(nest.small)
        return nest

    monkeypatch.setattr(programs, "pointwise_nest", noted)
    for sizes, kinds in [((8, 1 << 20), [True, False]), ((1 << 20, 8), [False, True])]:
        f = kiln.pointwise(lambda x, y=sizes[0]: x * 3.25 + y)  # no other test's
        for size in (*sizes, *sizes):
            f(kiln.ones(size))
        assert made == kinds
        made.clear()


@WAYS
def test_a_copy_to_itself_is_nothing(way: Any) -> None:
    """Also where elements share memory, which no other write may have as its target."""
    x = kiln.arange(3.0).expand(2, 3)
    assert way(lambda x: x.copy_(x))(x) is x
    assert values(x) == [[0, 1, 2], [0, 1, 2]]
