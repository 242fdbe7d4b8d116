"""Values that several kernels would compute, and that cost more than to be stored and read."""

from __future__ import annotations

from kiln.graph.graph import Node, Value
from kiln.passes.group import Fusion
from kiln.passes.inline import scalar_cost
from kiln.passes.layout import numel

COSTLY = 64  # scalar operations from which a value is not computed twice
MANY_READS = 4  # arrays read from which a value is not computed twice

Weight = tuple[int, frozenset[int]]  # scalar operations, and arrays of full size read


def promotable(fusion: Fusion) -> list[Value]:
    """Inline values of several groups that cost more to compute again than to store and read."""
    counts: dict[int, int] = {}
    for group in fusion.groups:
        for key in group.inline:
            counts[key] = counts.get(key, 0) + 1
    shared = {key for key, n in counts.items() if n > 1 and key not in fusion.explorer.arrays}
    found: list[Value] = []
    weights: dict[int, Weight] = {}
    inner: set[int] = set()
    for node in fusion.graph.nodes if shared else ():
        if id(node.out) in shared and node.op.kind in ("pointwise", "gather", "reduce"):
            weights[id(node.out)] = _weight(fusion, node, weights)
    for node in reversed(fusion.graph.nodes if weights else []):
        key = id(node.out)
        if key not in weights:
            continue
        cost, reads = weights[key]
        if key not in inner and (cost >= COSTLY or len(reads) >= MANY_READS) and numel(node.out.shape) != 1:
            found.append(node.out)
        inner |= {id(fusion.explorer.base(v, None)[0]) for v in node.inputs}
    return found


def _weight(fusion: Fusion, node: Node, weights: dict[int, Weight]) -> Weight:
    """Scalar operations, and arrays of full size read, to compute an inline value."""
    cost = COSTLY if node.op.kind in ("gather", "reduce") else scalar_cost(node)
    reads: frozenset[int] = frozenset()
    for value in node.inputs:
        below, _ = fusion.explorer.base(value, None)
        more, others = weights.get(id(below), (0, frozenset()))
        if id(below) in fusion.explorer.arrays or below.node is None:
            others = frozenset({id(below)}) if numel(below.shape) == numel(node.out.shape) else frozenset()
        cost, reads = cost + more, reads | others
    return min(cost, COSTLY), reads
