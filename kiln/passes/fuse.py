"""Fusion: which values become arrays, and which arrays are written by one kernel.

1. demand      outputs and what opaque ops read are arrays, and what cannot be computed where it is read
                                                                                    demand.py explore.py
2. join        from the first to the last, each array joins a kernel of its frame              join.py
3. share       reductions along a product's rows, then those down the columns, leave their accumulators in
               the product's kernel, in a kernel of the rows                     statistics.py strips.py
4. promote     a costly inline value that two kernels would compute becomes an array; then again from 1
                                                                                             promote.py
5. hazards     an update whose memory would be written too early is postponed; then again from 1
                                                                                             hazards.py
6. drop        arrays that only their own kernel reads are never stored                        order.py
"""

from __future__ import annotations

from kiln.graph.graph import Graph
from kiln.passes.demand import Demand
from kiln.passes.group import Fusion
from kiln.passes.hazards import hazards
from kiln.passes.join import join
from kiln.passes.order import drop
from kiln.passes.promote import promotable
from kiln.passes.statistics import share_products
from kiln.passes.strips import share_rows


def fuse(graph: Graph) -> Fusion:
    """The groups of a prepared graph."""
    demand = Demand(graph)
    fusion = _grouped(demand)
    if promoted := promotable(fusion):
        demand.want(promoted)
        fusion = _grouped(demand)
    while unsafe := hazards(fusion, demand.late):
        demand.postpone(unsafe)
        fusion = _grouped(demand)
    drop(fusion)
    return fusion


def _grouped(demand: Demand) -> Fusion:
    """Groups for what is demanded now."""
    demand.settle()
    fusion = join(demand)
    share_products(fusion)
    share_rows(fusion)
    return fusion
