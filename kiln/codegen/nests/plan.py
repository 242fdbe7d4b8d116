"""Cutting a nest into passes over its reduced dims.

    softmax:  pass 0   m = max(x)
              pass 1   s = sum(e),  e = exp(x - m), parked in the output row
              pass 2   y = e / s,   e read back

A reduction runs in the first pass where what it reads is known; a store at every point as early as that,
unless a later pass reads an input the store may overwrite. An input and an output share memory only
element for element (the same strides); so only an input with the output's stride classes can be hit.

A costly value that a reduction needs and the last pass needs again is *parked* in the row of an output
of its own type: the same bits, computed once.
"""

from __future__ import annotations

from kiln.codegen.ir.memory import compute_type
from kiln.codegen.nests.frame import Frame
from kiln.codegen.nests.nest import reductions
from kiln.scalars.scalar import REDUCE, Scalar, topological


class Plan:
    """The passes of a nest: per pass its reductions and point stores; then the stores of p points."""

    def __init__(self, frame: Frame, lane_dim: int) -> None:
        self.frame = frame
        self.lane_dim = lane_dim
        self.level: dict[int, int] = {}
        for node in frame.nodes:
            below = max((self.level[id(a)] for a in node.args), default=0)
            self.level[id(node)] = below + (node.op in REDUCE)
        found = reductions(frame.nest)
        everywhere = [(k, v) for k, v in frame.nest.stores if self._at_points(k, v)]
        self.last = [(k, v) for k, v in frame.nest.stores if not self._at_points(k, v)]
        levels = [self.level[id(v)] for _, v in everywhere] + [self.level[id(r)] - 1 for r in found]
        self.count = max(levels, default=-1) + 1
        self.reductions = [[r for r in found if self.level[id(r)] == q + 1] for q in range(self.count)]
        self.stores: list[list[tuple[int, Scalar]]] = [[] for _ in range(self.count)]
        for k, value in everywhere:
            self.stores[self.level[id(value)]].append((k, value))
        self._delay_hazards()
        self.parked: Scalar | None = None
        self.parked_in = -1
        self._park()

    def _at_points(self, k: int, value: Scalar) -> bool:
        """Whether a store happens at every point: its value, or its operand, moves along a reduced dim."""
        strides = self.frame.nest.operands[k].strides
        return self.frame.varies(value, self.frame.reduced) or any(
            strides[d] != "0" for d in self.frame.reduced
        )

    def roots(self, q: int) -> list[Scalar]:
        """What pass q computes at every point."""
        return [r.args[0] for r in self.reductions[q]] + [value for _, value in self.stores[q]]

    def _delay_hazards(self) -> None:
        """Move a store to the last pass if a later pass reads what it may overwrite."""
        for q in range(self.count - 1):
            later = [root for other in range(q + 1, self.count) for root in self.roots(other)]
            late = [(k, v) for k, v in self.stores[q] if self._may_hit(k, later, None)]
            self.stores[-1] += late
            self.stores[q] = [s for s in self.stores[q] if s not in late]

    def _may_hit(self, k: int, roots: list[Scalar], stop: Scalar | None) -> bool:
        """Whether writing operand k could change what `roots` read (not looking below `stop`)."""
        operands = self.frame.nest.operands
        if operands[k].folds:  # memory of the kernel's own
            return False
        for node in above(roots, stop):
            if node.op == "load" and self.frame.varies(node, self.frame.reduced):
                if node.args or operands[node.data].strides == operands[k].strides:
                    return True
        return False

    def _park(self) -> None:
        """Choose the costliest value worth parking, and the output it is parked in."""
        if self.count < 2 or len(self.frame.reduced) != 1:
            return
        final = self.count - 1
        wanted = {id(n) for n in above(self.roots(final), None)}
        best = 12  # the cost above which reading a value back beats computing it again
        for q in range(final):
            for node in topological(self.roots(q)):
                if id(node) not in wanted or self.level[id(node)] > q:
                    continue
                if not self.frame.varies(node, self.frame.reduced) or not node.args:
                    continue
                cost = self.frame.cost([node], self.frame.reduced)
                place = self._parking_place(node, q) if cost > best else -1
                if place >= 0:
                    best, self.parked, self.parked_in, self.parked_at = cost, node, q, place

    def _parking_place(self, node: Scalar, q: int) -> int:
        """An output of the last pass that can hold `node` from pass q on, or -1."""
        later = [root for other in range(q + 1, self.count) for root in self.roots(other)]
        for k, _ in self.stores[-1]:
            operand = self.frame.nest.operands[k]
            exact = operand.dtype in ("float32", "float64") and compute_type(operand.dtype) == node.type
            dense = "0" not in operand.strides and operand.strides[self.lane_dim] == "1"
            if exact and dense and not operand.folds and not self._may_hit(k, later, node):
                return k
        return -1

    parked_at = -1


def above(roots: list[Scalar], stop: Scalar | None) -> list[Scalar]:
    """The nodes of `roots` that are reached without passing a reduction or `stop`."""
    seen: set[int] = set()
    stack, found = list(roots), []
    while stack:
        node = stack.pop()
        if id(node) in seen or node is stop:
            continue
        seen.add(id(node))
        if node.op not in REDUCE:
            found.append(node)
            stack.extend(node.args)
    return found
