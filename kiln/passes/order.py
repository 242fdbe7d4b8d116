"""What is left of the groups: what somebody reads, in an order that runs."""

from __future__ import annotations

from kiln.passes.explore import ALONE
from kiln.passes.group import Fusion, Group


def drop(fusion: Fusion) -> None:
    """Forgets roots that nothing but their own group reads."""
    read_by: dict[int, int] = {}
    for group in fusion.groups:
        for read in group.reads:
            if not read.raw:
                read_by[id(read.value)] = read_by.get(id(read.value), 0) | group.bit
    kept = {id(a) for a in fusion.outputs}
    for group in fusion.groups:
        group.roots = [
            r for r in group.roots
            if r.place is not None or r.array.value is not r.value or id(r.array) in kept
            or read_by.get(id(r.value), 0)
        ]  # fmt: skip


def ordered(fusion: Fusion) -> list[Group]:
    """The groups in an order that runs; groups that store nothing are left out."""
    alive = [g for g in fusion.groups if g.roots or g.folds or g.kind in ALONE]
    alive.sort(key=lambda g: (g.before.bit_count(), g.number))
    waiting = sum(g.bit for g in alive)
    for group in alive:
        waiting ^= group.bit
        assert not group.before & (waiting | group.bit), f"kernel {group.number} runs before its operands"
    return alive
