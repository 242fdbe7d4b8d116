"""Values that several kernels would compute, and that cost more than to be stored and read.

    need(array)  = the kernels that write it
    need(value)  = the kernels that compute it, for what each of its readers is needed by

From the last to the first, a value that two kernels need and that is costly becomes an array: what it is made
of is then needed by one kernel only on its behalf. Then from the first to the last, what has become cheap
because of arrays below it goes on being computed where it is read. So a kernel computes nothing costly that
another computes too, whatever the length of a chain, and what is stored is what saves the most.
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.graph.graph import Node, Value
from kiln.passes.group import Fusion
from kiln.passes.inline import scalar_cost
from kiln.passes.layout import numel

ACCESS = 16  # scalar operations that take as long as reading or writing an array
STORE = 2  # accesses that a store takes: memory is fetched before it is written
COSTLY = (STORE + 1) * ACCESS + 1  # scalar operations from which on nothing is computed twice


class Weight(NamedTuple):
    """What computing an inline value takes: the scalar operations of each of its nodes, their sum up to
    COSTLY, and the arrays of full size that are read.
    """

    cost: int
    nodes: dict[int, int]
    reads: frozenset[int]


NOTHING = Weight(0, {}, frozenset())


def promotable(fusion: Fusion) -> list[Value]:
    """Inline values of several kernels that cost more to compute again than to store and read."""
    shared = _shared(fusion)
    if not shared:
        return []
    weights: dict[int, Weight] = {}
    for node in fusion.graph.nodes:
        if id(node.out) in shared:
            weights[id(node.out)] = _weight(fusion, node, weights, {})
    chosen = _chosen(fusion, shared, weights)
    found: dict[int, Value] = {}
    weights = {}
    for node in fusion.graph.nodes if chosen else ():
        key = id(node.out)
        if key in shared:
            weights[key] = _weight(fusion, node, weights, found)
            if key in chosen and _pays(weights[key], chosen[key]):
                found[key] = node.out
    return list(found.values())


def _shared(fusion: Fusion) -> dict[int, int]:
    """The kernels, as bits, that compute each value that several compute."""
    computing: dict[int, int] = {}
    several: set[int] = set()
    for group in fusion.groups:
        for key in group.inline:
            if key in computing:
                computing[key] |= group.bit
                several.add(key)
            else:
                computing[key] = group.bit
    return {key: computing[key] for key in several if key not in fusion.explorer.arrays}


def _chosen(fusion: Fusion, shared: dict[int, int], weights: dict[int, Weight]) -> dict[int, int]:
    """Values to store, if what is below them is not: each with how many kernels need it."""
    arrays = fusion.explorer.arrays
    need: dict[int, int] = {}
    folded: dict[int, int] = {}  # of reductions whose elements another kernel computes: that one
    for group in fusion.groups:
        for root in group.roots:
            need[id(root.value)] = need.get(id(root.value), 0) | group.bit
        for part in group.folds:
            folded[id(part.node.out)] = folded.get(id(part.node.out), 0) | group.bit
    chosen: dict[int, int] = {}
    for node in reversed(fusion.graph.nodes):
        key = id(node.out)
        bits = need.pop(key, 0)
        if key in arrays:
            bits = arrays[key].writers
        elif key in shared:
            bits &= shared[key]
            count = bits.bit_count()
            if count > 1 and _storable(node) and _pays(weights[key], count):
                chosen[key] = count
                bits &= -bits
        bits |= folded.get(key, 0)
        for value in node.inputs:
            need[id(value)] = need.get(id(value), 0) | bits
    return chosen


def _storable(node: Node) -> bool:
    return node.op.kind in ("pointwise", "gather", "reduce") and numel(node.out.shape) != 1


def _pays(weight: Weight, kernels: int) -> bool:
    """Whether one kernel had better store a value and the others read it than each compute it."""
    again = weight.cost + ACCESS * len(weight.reads)
    return again * (kernels - 1) > ACCESS * (STORE + kernels - 1)


def _weight(fusion: Fusion, node: Node, weights: dict[int, Weight], stored: dict[int, Value]) -> Weight:
    """What computing an inline value takes, from arrays and what is to be one."""
    if node.op.kind not in ("pointwise", "gather", "reduce"):
        return NOTHING
    nodes = {id(node): scalar_cost(node) if node.op.kind == "pointwise" else COSTLY}
    reads: set[int] = set()
    for value in node.inputs:
        passed: dict[int, Value] = {}
        below, _ = fusion.explorer.base(value, None, passed)
        if below.node is None or id(below) in fusion.explorer.arrays or id(below) in stored:
            if numel(value.shape) == numel(node.out.shape) and not any(map(_repeats, passed.values())):
                reads.add(id(value))
        else:
            under = weights.get(id(below), NOTHING)
            nodes.update(under.nodes)
            reads |= under.reads
    cost = sum(nodes.values())
    if cost >= COSTLY:  # costly with whatever is made of it: its nodes need not be told apart any more
        cost, nodes = COSTLY, {0: COSTLY}
    return Weight(cost, nodes, frozenset(reads))


def _repeats(view: Value) -> bool:
    return view.node is not None and view.node.op.kind == "expand"
