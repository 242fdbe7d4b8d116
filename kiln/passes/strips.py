"""Sums down the columns in the kernel of the rows.

    rows:     y = f(x, sum of x's row)            frame [m, n], reduced: n
    columns:  s = sum of g * y down the columns   frame [m, n], reduced: m

Both read what is as large as the frame, and the columns would read it again. Where the kept dims are one run
of memory, and the reduced ones, the rows' kernel computes the columns' elements too and leaves the
accumulators of 16 lanes per block of 16384 rows; the columns' kernel combines those, in the order their
reduction has anyway.

    rows:     y = ...;  part[unit, n] = lanes of g * y       unit: a lane of a block
    columns:  s = sum of part                                frame [units, n], reduced: units
"""

from __future__ import annotations

from collections.abc import Iterator

from kiln.graph.graph import Node, Shape, Value
from kiln.graph.size import Dim, quotient
from kiln.passes.explore import Array, Frame, Read, Scan, mergeable
from kiln.passes.group import Fusion, Group, Part
from kiln.passes.layout import Layout, contiguous, numel, squeeze
from kiln.table.kinds import ROUNDED
from kiln.table.order import LANES, REDUCE_BLOCK

NARROW = 256  # columns; shorter rows, a lane's being 16 apart, are better read one after the other


def strips(rows: Dim) -> Dim:
    """How many strips there are: lanes of blocks."""
    return quotient(rows + (REDUCE_BLOCK - 1), REDUCE_BLOCK) * LANES


def share_rows(fusion: Fusion) -> None:
    """Hands reductions down the columns to kernels of rows, the latest that can take them."""
    over: dict[tuple[Dim, ...], list[Group]] = {}
    for group in fusion.groups:
        over.setdefault(group.frame.dims, []).append(group)
    for columns in fusion.groups:
        if columns.kind == "nest" and columns.frame.mode == "lanes" and not columns.parts:
            for rows in reversed(over[columns.frame.dims]):
                if _complement(rows, columns) and _hand_over(fusion, rows, columns):
                    break


def _complement(rows: Group, columns: Group) -> bool:
    """Whether one group reduces exactly the dims that the other keeps, and these are the last."""
    a, b = rows.frame, columns.frame
    if rows.kind != "nest" or a.mode != "lanes" or not a.trailing or a.dims != b.dims or not a.kept:
        return False
    width = numel(tuple(a.dims[d] for d in a.reduced))
    return b.reduced == tuple(range(len(a.kept))) and not (isinstance(width, int) and width < NARROW)


def _hand_over(fusion: Fusion, rows: Group, columns: Group) -> bool:
    """Lets `rows` compute the elements that `columns` reduces, if it can."""
    nodes, scans = elements_of(fusion, columns, rows)
    if any("arg" in n.op.name for n in nodes) or not _fits(fusion, rows, columns, scans):
        return False
    frame = Frame((strips(numel(rows.frame.kept)), *columns.frame.kept), (0,), "strips")
    take_over(fusion, columns, rows, scans, frame, [_part(n, rows.frame, frame) for n in nodes])
    return True


def elements_of(fusion: Fusion, group: Group, other: Group) -> tuple[list[Node], list[Scan]]:
    """The reductions of a group, and what computing the elements of each in another group reads."""
    explorer = fusion.explorer
    inline = [v.node for v in group.inline.values() if v.node is not None]
    nodes = [n for n in inline if n.op.kind == "reduce" and explorer.rows.get(id(n.out)) == group.frame]
    own = other.own(explorer)
    return nodes, [explorer.scan(n.inputs[0], other.frame, own, again=True) for n in nodes]


def take_over(
    fusion: Fusion, group: Group, other: Group, scans: list[Scan], frame: Frame, parts: list[Part]
) -> None:
    """Lets `other` compute the elements that `group` reduces, which combines accumulators in `frame`."""
    for scan in scans:
        other.take(scan)
        for read in scan.reads:
            fusion.note_reader(read, other)
        fusion.follow(other, fusion.needs(scan.reads))
    before = group.frame
    group.widen(frame)
    group.parts = parts
    other.folds += parts
    fusion.follow(group, other.bit)
    group.reads = dict.fromkeys(_kept(list(group.reads), before, frame))
    for scan in scans:
        for key in scan.inline:
            group.inline.pop(key, None)


def _kept(reads: list[Read], before: Frame, after: Frame) -> Iterator[Read]:
    """The reads that do not vary along the reduced dims, as reads of the frame of the combination."""
    (reduced,) = after.reduced
    for read in reads:
        if read.elsewhere:
            yield read
        elif all(read.layout.strides[d] == 0 for d in before.reduced):
            strides = [s for d, s in enumerate(read.layout.strides) if d not in before.reduced]
            strides.insert(reduced, 0)
            yield read._replace(layout=Layout(after.dims, tuple(strides), read.layout.offset))


def _fits(fusion: Fusion, rows: Group, columns: Group, scans: list[Scan]) -> bool:
    """Whether the elements can be computed in `rows`, before `columns`, and share what `rows` reads."""
    if any(squeeze(root.value.shape) != columns.frame.kept for root in columns.roots) or not scans:
        return False
    if any(scan.demands or scan.clash for scan in scans) or rows.before & columns.bit:
        return False
    reads = dict.fromkeys(r for scan in scans for r in scan.reads)
    shared = any(scan.own for scan in scans) or any(
        r in rows.reads and 0 not in r.layout.strides for r in reads if not r.elsewhere
    )
    needs, later = fusion.needs(reads), rows.bit | columns.bit  # the elements' operands come before both
    if not shared or needs & later or any(g.before & later for g in fusion.members(needs)):
        return False
    if not fusion.has_room(rows, reads, {k: v for scan in scans for k, v in scan.inline.items()}, len(scans)):
        return False
    return _two_dims(fusion, rows, dict.fromkeys([*rows.reads, *reads]), scans)


def _two_dims(fusion: Fusion, rows: Group, reads: dict[Read, None], scans: list[Scan]) -> bool:
    """Whether the kept dims are one dim for every operand, and the reduced ones."""
    frame = rows.frame
    inner = [d for d in range(len(frame.dims) - 1) if d != len(frame.kept) - 1]
    if inner and (rows.indexed or any(scan.indexed for scan in scans)):
        return False
    layouts = [r.layout for r in reads if not r.elsewhere]
    layouts += [fusion.stored(rows, root) for root in rows.roots]
    return all(mergeable(layout.strides, frame.dims, d) for layout in layouts for d in inner)


def accumulators(node: Node, shape: Shape) -> Array:
    """Memory for the accumulators of a reduction: as wide as it computes."""
    source = node.inputs[0]
    wide = "bool" if node.op.name.endswith(("_all", "_any")) else source.dtype
    return Array(Value(source.graph, None, "float32" if wide in ROUNDED else wide, shape))


def _part(node: Node, rows: Frame, columns: Frame) -> Part:
    """The accumulators of one reduction: two rows per unit, which the kept dims of the rows' frame count."""
    units, width = columns.dims[0], numel(columns.kept)
    outer = [s * (width * 2) if n != 1 else 0 for n, s in zip(rows.kept, contiguous(rows.kept).strides)]
    inner = contiguous(tuple(rows.dims[d] for d in rows.reduced)).strides
    left = Layout(rows.dims, (*outer, *inner), 0)
    taken = Layout(columns.dims, (width * 2, *contiguous(columns.kept).strides), 0)
    return Part(node, accumulators(node, (units * 2, width)), left, taken)
