"""Updates in place: whether every read of the old value comes before the write, or at its very point.

What fails goes through a temporary and is copied in after everything else (`Demand.postpone`).
"""

from __future__ import annotations

from kiln.passes.explore import ALONE, Array
from kiln.passes.group import Fusion, Group


def hazards(fusion: Fusion, late: set[int]) -> set[int]:
    """Updates whose memory would be written before something else reads it; orders groups if it can."""
    found: set[int] = set()
    readers: dict[int, list[Group]] = {}
    for group in fusion.groups:
        for key in {id(read.value) for read in group.reads if read.raw}:
            readers.setdefault(key, []).append(group)
    for j, i in fusion.graph.updates.items():
        if j in late:
            continue
        array = fusion.outputs[j]
        writers, reading = fusion.members(array.writers), readers.get(id(fusion.graph.inputs[i]), ())
        if not all(_may_overwrite(fusion, w, g, array) for w in writers for g in reading):
            found.add(j)
    return found


def _may_overwrite(fusion: Fusion, writer: Group, reader: Group, array: Array) -> bool:
    """Whether every read of the overwritten input comes before the write, or at its very point."""
    if writer is not reader:
        if reader.before & writer.bit:
            return False
        if not writer.before & reader.bit:
            fusion.follow(writer, reader.bit)
        return True
    return at_its_point(fusion, writer, array)


def at_its_point(fusion: Fusion, group: Group, array: Array) -> bool:
    """Whether a group that overwrites an input reads it at no other point than it writes."""
    target = fusion.graph.inputs[array.update]
    places = {fusion.stored(group, root) for root in group.roots if root.array is array}
    reads = {(r.layout, r.elsewhere) for r in group.reads if r.raw and r.value is target}
    return group.kind not in ALONE and reads <= {(place, False) for place in places} and len(places) == 1
