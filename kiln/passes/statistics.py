"""Reductions along a product's rows in the product's kernel.

    product:   y = f(a @ b)                       frame [batch, m, n]
    rows:      s = sum of g(y) along the rows     frame [m, n], reduced: n

While a product's block of sums is in the cache, its epilogue computes the elements too and leaves their
chains: up to 16 accumulators for each row and 128 columns. The rows' kernel combines those, in the order its
reduction has anyway, with whatever follows the sums. If nobody else reads y, it is never written.

    product:   part[m, up to 16 for each 128 of n] = chains of g(y)
    rows:      s = sum of part                    frame [m, accumulators], reduced: the last

Not where y is the product itself and wanted elsewhere: sums go there without an epilogue. And only where a
kernel reduces elements of the product and nothing of what it reduced: softmax and layer_norm read their rows
all the same, and a pass less over a row in the cache saves less than accumulators cost.
"""

from __future__ import annotations

from kiln.graph.graph import Node, Value
from kiln.graph.size import Dim, quotient
from kiln.passes.explore import Array, Frame, Scan
from kiln.passes.factors import Windows, factors_of
from kiln.passes.group import Fusion, Group, Part
from kiln.passes.layout import Layout, contiguous, numel, squeeze
from kiln.passes.strips import accumulators, elements_of, take_over
from kiln.table.order import GROUP, LANES


def lanes_of(columns: Dim) -> Dim:
    """How many accumulators a row has: 16 for each group of columns; the last group has one per column, up to
    16.
    """
    groups = quotient(columns, GROUP)
    full = quotient(columns + (GROUP - LANES), GROUP)  # groups with a column in every lane
    return full * LANES + (groups + 1 - full) * (columns - groups * GROUP)


def share_products(fusion: Fusion) -> None:
    """Hands reductions along rows to products, the latest that can take them."""
    for rows in fusion.groups:
        if rows.kind == "nest" and rows.frame.mode == "lanes" and rows.frame.trailing:
            for product in fusion.members(fusion.needs(rows.reads)):
                if _fits(fusion, product, rows) and _hand_over(fusion, product, rows):
                    break


def _fits(fusion: Fusion, product: Group, rows: Group) -> bool:
    """Whether a group is a product whose rows the other reduces, to one value each."""
    frame, node = rows.frame, product.node
    if node is None or product.kind != "matmul" or _plain(fusion, product, rows):
        return False
    *_, m, n = product.frame.dims
    whole = numel(tuple(frame.dims[d] for d in frame.reduced)) == n and m != 1
    points = all(squeeze(root.value.shape) == frame.kept for root in rows.roots)
    return whole and points and not isinstance(factors_of(fusion.explorer, node), Windows)


def _plain(fusion: Fusion, product: Group, rows: Group) -> bool:
    """Whether the product stores its sums unchanged in an array that is read: faster without an epilogue."""
    root, *more = product.roots
    readers = fusion.readers.get(id(root.value), [])
    wanted = any(root.array is a for a in fusion.outputs) or any(g is not rows for g in readers)
    return wanted and not more and not product.folds


def _hand_over(fusion: Fusion, product: Group, rows: Group) -> bool:
    """Lets `product` compute the elements that `rows` reduces, if it can."""
    nodes, scans = elements_of(fusion, rows, product)
    if not _room(fusion, product, rows, scans):
        return False
    kept = rows.frame.kept
    frame = Frame((*kept, lanes_of(product.frame.dims[-1])), (len(kept),), "chains")
    take_over(fusion, rows, product, scans, frame, [_part(n, product.frame, frame) for n in nodes])
    return True


def _room(fusion: Fusion, product: Group, rows: Group, scans: list[Scan]) -> bool:
    """Whether `product` can compute the elements: it runs before `rows`, and they are made of its results."""
    if not scans or any(scan.demands or scan.clash or scan.indexed or not scan.own for scan in scans):
        return False
    reads = dict.fromkeys(r for scan in scans for r in scan.reads)
    needs, later = fusion.needs(reads), product.bit | rows.bit
    if needs & later or any(g.before & later for g in fusion.members(needs)):
        return False
    return fusion.has_room(product, reads, {k: v for s in scans for k, v in s.inline.items()}, len(scans))


def _part(node: Node, product: Frame, rows: Frame) -> Part:
    """The accumulators of one reduction."""
    steps = contiguous((*product.dims[:-1], rows.dims[-1])).strides
    left = Layout(product.dims, (*steps[:-1], 1), 0)
    taken = Layout(rows.dims, contiguous(rows.dims).strides, 0)
    turns = Array(Value(node.out.graph, None, "uint8", rows.dims)) if "_arg" in node.op.name else None
    return Part(node, accumulators(node, rows.dims), left, taken, turns)
