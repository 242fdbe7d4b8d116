"""The "rows" schedule over several reduced dims that do not lie one after the other in memory.

The row is the reduced dims in logical order; 16 neighbours of it may be scattered. Each step makes them
neighbours: it reads through the operands where they are, or else through buffers filled one by one.

    (i, j) = v cut by division
    if j + 16 <= size_j and every operand is unit-stride along j:     pointer_k = address(i, j)
    else:  for l < count:  buffer_k[l] = operand_k[i, j];  (i, j) advances;   pointer_k = buffer_k
    ... the body reads and writes 16 elements at pointer_k ...
    if buffered:  for l < count:  output_k[i, j] = buffer_k[l];  (i, j) advances
"""

from __future__ import annotations

from kiln.codegen.ir.emit import Machine
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import Value, llvm_type
from kiln.codegen.nests.frame import Step
from kiln.codegen.nests.nest import Nest
from kiln.codegen.nests.plan import above
from kiln.codegen.nests.rows import Rows
from kiln.codegen.target import Target
from kiln.table.order import LANES


class ManyRows(Rows):
    """A nest of schedule "rows" with several reduced dims, being written."""

    has_short = False
    steps_are_alike = False

    def row_length(self) -> Index:
        """The product of the reduced sizes."""
        length = self.frame.size[self.r[0]]
        for d in self.r[1:]:
            length = length * self.frame.size[d]
        return length

    def step_at(self, q: int, v: Index, count: Index | None, mask: Value | None) -> Step:
        """16 elements of the row from `v`, made neighbours."""
        frame, code = self.frame, self.code
        nodes = above(self.plan.roots(q), None)
        inputs = sorted(
            {n.data for n in nodes if n.op == "load" and not n.args and frame.varies(n, frame.reduced)}
        )
        outputs = sorted({k for k, _ in self.plan.stores[q]})
        along = sorted({n.data for n in nodes if n.op == "index" and n.data in self.r})
        step = Step(self.index, self.pointers.__getitem__, -1, v, None, mask)
        self._sizes = [frame.size[d] for d in self.r]
        self._count = code.index(LANES) if count is None else count
        self._first = position = frame.cut(v, self._sizes)
        unit = all(self.nest.operands[k].strides[self.r[-1]] == "1" for k in (*inputs, *outputs))
        inside, staged, join = code.label(), code.label(), code.label()
        last = position[-1] + LANES
        fits = last <= self._sizes[-1]
        whole = self._count.equals(LANES)
        direct = fits & (whole if unit else code.condition(False))
        code.branch(direct, inside, staged)
        code.begin(inside)
        near = {k: self._address(k, position) for k in (*inputs, *outputs)}
        vectors = {d: self._direct_index(position, n) for n, d in enumerate(self.r) if d in along}
        code.jump(join)
        code.begin(staged)
        buffers = {k: code.slot(element(self.nest.operands[k].dtype), LANES) for k in near}
        places = {d: code.slot("i64", LANES) for d in along}
        self._collect(inputs, buffers, places)
        kind = llvm_type("i64", LANES)
        loaded = {d: p.load(kind, 64) for d, p in places.items()}
        after = code.block
        code.jump(join)
        code.begin(join)
        for k in near:
            text = f"phi ptr [ {near[k]}, %{inside} ], [ {buffers[k]}, %{after} ]"
            step.staged[k] = code.make(Pointer, text)
        for d in along:
            text = f"phi {kind} [ {vectors[d].text}, %{inside} ], [ {loaded[d]}, %{after} ]"
            step.vectors[d] = Value(code.op(text), "i64", LANES)
        self._outputs = {k: buffers[k] for k in outputs}
        if outputs:
            self._buffered = ~direct
        return step

    def finish_step(self, step: Step) -> None:
        """Copy buffered outputs to where they belong."""
        if not self._outputs:
            return
        code, outputs, first, count = self.code, self._outputs, self._first, self._count
        with code.when(self._buffered):
            with code.loop(0, count, 1, first) as turn:
                position = turn.indices
                for k, buffer in outputs.items():
                    kind = element(self.nest.operands[k].dtype)
                    raw = buffer.element(kind, turn.index).load(kind, 1)
                    self._address(k, position).store(f"{kind} {raw}", 1)
                turn.next = self.frame.advance(position, self._sizes)

    def _address(self, k: int, position: list[Index]) -> Pointer:
        return self.frame.address(k, dict(zip(self.r, position)), self.pointers[k])

    def _direct_index(self, position: list[Index], n: int) -> Value:
        """The positions along the n-th reduced dim of 16 elements that share all but the last."""
        machine = Machine(self.code)
        if n == len(self.r) - 1:
            return self.frame.lane_positions(self.frame.outer, position[n])
        return machine.spread(position[n].value, LANES)

    def _collect(self, inputs: list[int], buffers: dict[int, Pointer], places: dict[int, Pointer]) -> None:
        """Fill the buffers with the step's elements and their positions, one by one; what is absent is 0."""
        code = self.code
        for k in inputs:
            kind = element(self.nest.operands[k].dtype)
            buffers[k].store(f"<{LANES} x {kind}> zeroinitializer", 64)
        for place in places.values():
            place.store(f"<{LANES} x i64> zeroinitializer", 64)
        with code.loop(0, self._count, 1, self._first) as turn:
            position = turn.indices
            for k in inputs:
                kind = element(self.nest.operands[k].dtype)
                raw = self._address(k, position).load(kind, 1)
                buffers[k].element(kind, turn.index).store(f"{kind} {raw}", 1)
            for d, place in places.items():
                where = place.element("i64", turn.index)
                where.store(f"i64 {position[self.r.index(d)]}", 8)
            turn.next = self.frame.advance(position, self._sizes)


def emit_many_rows(nest: Nest, target: Target) -> str:
    """The kernel of a nest of schedule "rows" with several reduced dims, as LLVM text."""
    return ManyRows(nest, target).emit()
