"""Which values are arrays: outputs, what opaque ops read, and whatever cannot be computed where it is read.

Arrays are explored from the last to the first (explore.py); each demands others. A look holds until something
that it computes becomes an array after all: then it is taken anew, until all looks hold.
"""

from __future__ import annotations

from heapq import heappop, heappush

from kiln.graph.graph import Graph, Node, Value
from kiln.passes.explore import ALONE, PARTS, Array, Explorer, Read
from kiln.passes.factors import factors_of
from kiln.passes.inline import Inline
from kiln.passes.layout import contiguous, input_layout, is_contiguous


class Demand:
    """The arrays of a prepared graph; the updates in `late` are copied in after everything else."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.late: set[int] = set()
        self.explorer = Explorer(graph)
        self._waiting: list[tuple[int, int, bool]] = []  # to explore, the last first: -order and key
        self._values = {id(v): v for v in (*graph.inputs, *(n.out for n in graph.nodes))}
        self.outputs = self._output_arrays()
        for key in self.explorer.arrays:
            self._wait(key, False)

    def _output_arrays(self) -> list[Array]:
        """An array per output, which is also the value's own where it can be."""
        found: list[Array] = []
        taken: set[int] = set()
        for j, value in enumerate(self.graph.outputs):
            array = Array(value)
            array.layout = contiguous(value.shape)
            array.update = self.graph.updates.get(j, -1)
            if array.update >= 0:
                array.layout = input_layout(self.graph.inputs[array.update])
            if value.node is not None and is_contiguous(array.layout) and id(value) not in taken:
                taken.add(id(value))
                self.explorer.give(array)
            found.append(array)
        return found

    def is_own(self, array: Array) -> bool:
        """Whether an output's array is the one its value is read from."""
        return self.explorer.arrays.get(id(array.value)) is array

    def postpone(self, updates: set[int]) -> None:
        """Copies updates in after everything else, from arrays of their own."""
        self.late |= updates
        for j in updates:
            array = self.outputs[j]
            if self.is_own(array):
                del self.explorer.arrays[id(array.value)]
            self.want([array.value])

    def want(self, demands: list[Value]) -> None:
        """Makes arrays of values, to be explored in their turn."""
        for value in demands:
            if id(value) not in self.explorer.arrays:
                self.explorer.array(value)
                self._wait(id(value), False)

    def settle(self) -> None:
        """Explores arrays from the last to the first, then what is stale, until everything read is one."""
        for array in self.outputs:
            if not self.is_own(array):
                self._wait(id(array.value), True)
        while self._waiting or self.explorer.stale:
            if not self._waiting:
                for stale in self.explorer.stale:
                    self._wait(*stale)
                self.explorer.stale.clear()
            _, key, again = heappop(self._waiting)
            value = self._values[key]
            kind = value.node.op.kind if value.node is not None and not again else ""
            if kind == "matmul" or kind in PARTS or kind in ALONE:
                self._explore_parts(value)
            else:
                self._explore(value, again)

    def _wait(self, key: int, again: bool) -> None:
        heappush(self._waiting, (-self.explorer.order.get(key, -1), key, again))

    def _explore(self, value: Value, again: bool) -> None:
        """Demands what an inline computation cannot do; `again`: of a value that may be an array already."""
        while found := self.explorer.look(value, again).scan.demands:
            fresh = [v for v in found if id(v) not in self.explorer.arrays and v is not value]
            assert fresh, f"{value!r} cannot be computed: {found} cannot be read"
            self.want(fresh)

    def _explore_parts(self, value: Value) -> None:
        """Demands what an opaque op needs: the parts it is stored in, and operands as strided memory."""
        node = value.node
        assert node is not None
        stored = _stored(node)
        for part in node.inputs[:stored]:
            self._explore(part, True)
        while True:
            passed: dict[int, Value] = {}
            if node.op.kind == "matmul":
                reads = factors_of(self.explorer, node, passed).factors
            else:
                arrays = (v for v in node.inputs[stored:] if not v.weak)
                reads = [self.explorer.strided(v, None, passed) for v in arrays]
            missing = [r for r in reads if isinstance(r, Value)]
            if node.op.kind == "control":  # whole arrays, as graphs that are called take them
                laid = zip(node.inputs, reads)
                missing += [v for v, r in laid if isinstance(r, Read) and not is_contiguous(r.layout)]
            if node.op.algorithm == "recurrence" and isinstance(reads[1], Read):
                if not is_contiguous(reads[1].layout):  # panels of weights are read as they were packed
                    missing.append(node.inputs[1])
            if not missing:
                break
            self.want(missing)
        for factor in [r for r in reads if isinstance(r, Inline)]:
            passed.update(factor.scan.inline)
            reads += factor.reads()
        raw = [id(r.value) for r in reads if isinstance(r, Read) and r.raw]
        self.explorer.depend((id(value), False), [*passed, *raw])


def _stored(node: Node) -> int:
    """How many operands of an opaque op, from the first on, are computed where its result is stored."""
    every = len(node.inputs)
    of_parts = {"concat": every, "write": every, "embed": 2}
    return 1 if node.op.algorithm == "scatter" else of_parts.get(node.op.kind, 0)
