"""How many vectors a long body computes side by side.

Instructions that wait for each other keep a processor busy only if those of several bodies are under way. It
looks ahead over some hundred instructions. That holds several short bodies, but not two long ones: these are
written side by side, an instruction of each in turn (`kiln.codegen.ir.emit.together`).

    busy         = instructions / PORTS                  cycles of one body that never waits
    waits        = the longest way through its latencies
    side by side = waits / busy / (bodies that WINDOW instructions hold), in pairs, as far as
                   registers go
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from kiln.codegen.target import Target
from kiln.scalars.scalar import WIDTH, Scalar
from kiln.table.order import LANES

PORTS = 2  # vector instructions that begin in a cycle
WINDOW = 50  # instructions that one body's may overtake
LATENCY = {
    "bits": 0, "from_bits": 0, "and": 1, "or": 1, "xor": 1, "not": 1, "shl": 1, "shr": 1, "select": 1,
    "div": 16, "rem": 60, "sqrt": 20,
}  # fmt: skip
USUAL = 4  # cycles
MOST = 6  # bodies side by side
MOST_INSTRUCTIONS = 1600  # that they come to: compiling takes longer
SPILLED = 2  # times the registers that values may take: some in memory cost less than waiting


def side_by_side(nodes: Sequence[Scalar], target: Target) -> int:
    """How many bodies of these nodes, in the order they are written, are best written together."""
    size = {id(n): _registers(n, target) for n in nodes}
    instructions = sum(size.values())
    if not instructions:
        return 1
    waits = max(_finished(nodes).values())
    wanted = PORTS * waits / instructions / max(1, WINDOW / instructions)
    if wanted <= 1:
        return 1
    room = SPILLED * _vector_registers(target) // _most_alive(nodes, size)
    pairs = min(ceil(wanted / 2), room // 2, MOST // 2, MOST_INSTRUCTIONS // (2 * instructions))
    return max(1, 2 * pairs)


def _registers(node: Scalar, target: Target) -> int:
    """Registers that 16 lanes of a node take, and the instructions that compute them."""
    return max(1, LANES * WIDTH[node.type] // target.vector_bits)


def _vector_registers(target: Target) -> int:
    return 16 if target.vector_bits == 256 else 32


def _finished(nodes: Sequence[Scalar]) -> dict[int, int]:
    """When each node is known, in cycles, if only its operands are waited for."""
    known: dict[int, int] = {}
    for node in nodes:
        known[id(node)] = max(known.get(id(a), 0) for a in node.args) + LATENCY.get(node.op, USUAL)
    return known


def _most_alive(nodes: Sequence[Scalar], size: dict[int, int]) -> int:
    """The most registers that hold values which are still to be read."""
    last = {id(a): place for place, node in enumerate(nodes) for a in node.args}
    alive = most = 0
    for place, node in enumerate(nodes):
        alive += size[id(node)]
        most = max(most, alive)
        alive -= sum(size.get(a, 0) for a in {id(a) for a in node.args} if last[a] == place)
    return most
