"""`kiln.batching.map`: items that write to memory which others read; memory shown while values wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from backend import needs_kiln
from strands import bump, kind  # noqa: F401 (a fixture of every test)

import kiln

pytestmark = needs_kiln


def test_a_write_to_what_another_item_reads_names_both() -> None:
    """Writes before and after the other's read, writes of both; to a part what others only see in part."""
    shared = kiln.zeros(4)

    def reads_first(i: int) -> Any:
        if i == 2:
            bump(shared.sum())
            shared.fill_(1.0)
        else:
            bump(shared.sum() + i)

    def writes_first(i: int) -> Any:
        if i == 0:
            shared.mul_(2)
        bump(shared.sum() + i)

    def both(i: int) -> Any:
        bump(kiln.ones(()))
        shared.copy_(kiln.full((4,), float(i)))

    for function, does, one, did, other in (
        (reads_first, "writes", 2, "reads", "[013]"), (writes_first, "reads", 1, "writes", "0"),
        (both, "writes", 1, "writes", "0"),
    ):  # fmt: skip
        text = f"batching.map: item {one} {does} what item {other} {did}, a float32 tensor of shape"
        with pytest.raises(RuntimeError, match=text):
            kiln.batching.map(function, range(4))

    rows = kiln.zeros(3, 2)

    def own_row(i: int) -> None:
        rows[i] = bump(kiln.tensor(float(i)))
        rows[i].mul_(2)

    kiln.batching.map(own_row, range(3))
    assert rows.tolist() == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]

    def own(i: int) -> float:
        x = kiln.zeros(2)
        x += shared
        for _ in range(3):
            bump(x.sum())
            x.add_(1)
        return kiln.batching.map(lambda j: float((x * j).sum()), range(3))[2]

    shared = kiln.ones(2)
    assert kiln.batching.map(own, range(3)) == [16.0] * 3
    shared.add_(1)
    assert kiln.batching.map(own, range(2), limit=1) == [20.0] * 2


def test_writes_to_parts_that_overlap_are_seen() -> None:
    """Rows and stretches of one memory: what overlaps is refused, neighbours and columns are not."""

    def act(read: Any, write: Any) -> Callable[[int], None]:
        def item(i: int) -> None:
            if i:
                write(shared)
            else:
                bump(read(shared).sum())
            bump(kiln.ones(()))

        return item

    for read, write, meets in (
        (lambda x: x[1], lambda x: x[1].fill_(1.0), True),
        (lambda x: x[1], lambda x: x[0:2].fill_(1.0), True),
        (lambda x: x[0, 1:3], lambda x: x[0, 2:3].add_(1.0), True),
        (lambda x: x[0:3], lambda x: x[2, 3:].add_(1.0), True),
        (lambda x: x[1], lambda x: x[2].fill_(1.0), False),
        (lambda x: x[0, 1:3], lambda x: x[0, 3:].add_(1.0), False),
        (lambda x: x[:, 0], lambda x: x[:, 1].add_(1.0), False),
    ):
        shared = kiln.zeros(4, 4)
        if meets:
            with pytest.raises(RuntimeError, match="item 1 writes what item 0 reads"):
                kiln.batching.map(act(read, write), range(2))
        else:
            kiln.batching.map(act(read, write), range(2))


def test_memory_that_is_shown_and_writes_in_place_wait_too() -> None:
    """`numpy`, `data_ptr` and in-place ops on pending values: one launch for all, values of the loop."""

    def shown(x: Any) -> float:
        y = (x * 2).numpy()
        z = (x + 1).data_ptr()
        return float(y.sum()) + (z == 0)

    def written(x: Any) -> tuple[list[float], list[float]]:
        total, before = kiln.zeros(3), []
        for k in range(3):
            y = x * (k + 1)
            old = total + y  # reads what the next line writes
            total += y
            y.mul_(2)
            total.sub_(y)
            before.append(old)
        return total.tolist(), kiln.stack(before).flatten().tolist()

    items = list(kiln.arange(12.0).reshape(4, 3))
    for function in (shown, written):
        expected = [function(x) for x in items]
        kiln.batching.explain(clear=True)
        assert kiln.batching.map(function, items) == expected
        calls, launches, *_ = [int(n) for n in kiln.batching.explain().split() if n.isdigit()]
        assert calls == 4 * launches
