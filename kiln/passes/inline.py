"""Factors of products that no array holds: the kernel computes them where it copies or packs them.

    relu(x) @ w    (q * scale) @ k    codes.to(float32) @ v    g * (y > 0) @ w

The first factor is computed again for every 512 columns of the result (256 where no output holds sums, or
beside a computed B), the second for every 4224 rows (528). On AMX, for every 256 to 1024 columns
(the fewer, the more k), and for every 4224 rows (1056 of more than 2048 k, of bytes 4096). It is done for
pointwise values of at most CHEAP operations, of which all matrices that are read

    are there anyway     inputs, or read by others too: else the kernel that makes one can make the factor
    are few              one, or two if nothing but this product reads the factor
    lie alike            neighbours along the same dim

and not over windows; of one row or column, the matrix only. Where there may be AMX, which multiplies
faster than it is computed, the first factor takes half as many operations, and reads no more bytes
than it would have (what float32 is converted to is an array, as the first factor).
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.gemm.grid import TILED
from kiln.codegen.ir.memory import MEMORY
from kiln.graph.graph import Node, Shape, Value
from kiln.passes.explore import Explorer, Frame, Read, Scan
from kiln.passes.layout import numel
from kiln.scalars.scalar import arg, topological
from kiln.table.apply import apply_pointwise
from kiln.table.kinds import COMPUTE

CHEAP = 8  # scalar operations
MOST_READS = 2  # matrices

_costs: dict[tuple[str, tuple[str, ...]], int] = {}


class Inline(NamedTuple):
    """A factor that is computed from what `scan` reads, over (*batch, rows, columns) of it.

    `transposed`: neighbours lie along its rows.
    """

    value: Value
    frame: Frame
    scan: Scan
    transposed: bool

    def reads(self) -> list[Read]:
        """What is read, at other points than the product is stored at."""
        return [read._replace(elsewhere=True) for read in self.scan.reads]


def inline_factor(explorer: Explorer, node: Node, value: Value, batch: Shape) -> Inline | None:
    """A factor of a product as what its kernel computes, over (*batch, rows, columns) of it, or None if it
    is to be an array.
    """
    second = value is node.inputs[1]
    m, n = node.out.shape[-2:]
    column = n == 1  # then the first factor is the second one of the transposed product
    if (column and second) or (m == 1 and not second):
        return None
    passed: dict[int, Value] = {}
    below, _ = explorer.base(value, None, passed)
    if below.node is None or below.node.op.kind != "pointwise" or id(below) in explorer.arrays:
        return None
    if numel(below.shape) != numel(value.shape):  # repeated
        return None
    frame = Frame((*batch, *value.shape[-2:]), (), "matmul")
    scan = explorer.scan(value, frame)
    if scan.demands or scan.indexed or not scan.reads:
        return None
    whole = {id(r.value): r.value for r in scan.reads if 0 not in r.layout.strides[-2:]}
    shared = any(explorer.readers(v) > 1 for v in (below, *passed.values()))
    nodes = [v.node for v in scan.inline.values() if v.node is not None and v.node.op.kind == "pointwise"]
    if len(whole) > (1 if shared else MOST_READS) or sum(map(scalar_cost, nodes)) > CHEAP:
        return None
    if value.dtype in TILED and not (second or column) and _slows_tiles(value, [*whole.values()], nodes):
        return None
    if not all(_there_anyway(explorer, v, scan) for v in whole.values()):
        return None
    steps = [read.layout.strides for read in scan.reads]
    for transposed in (False, True):
        if all(strides[-2 if transposed else -1] in (0, 1) for strides in steps):
            break
    else:
        return None
    return Inline(value, frame, scan, transposed)


def _there_anyway(explorer: Explorer, value: Value, scan: Scan) -> bool:
    """Whether an array is read by more than the computation of a factor."""
    inside = sum(v is value for x in scan.inline.values() if x.node is not None for v in x.node.inputs)
    return value.node is None or explorer.readers(value) > inside


def _slows_tiles(value: Value, read: list[Value], nodes: list[Node]) -> bool:
    """Whether a first factor takes longer to compute several times than to write and read."""
    return (
        sum(map(scalar_cost, nodes)) > CHEAP // 2
        or sum(MEMORY[v.dtype][1] for v in read) > MEMORY[value.dtype][1]
    )


def scalar_cost(node: Node) -> int:
    """How many scalar operations a pointwise node takes."""
    key = (node.op.name, tuple(v.dtype for v in node.inputs))
    if key not in _costs:
        operands = [arg(k, COMPUTE[v.dtype]) for k, v in enumerate(node.inputs)]
        _costs[key] = sum(
            s.op not in ("const", "arg") for s in topological([apply_pointwise(node, operands)])
        )
    return _costs[key]
