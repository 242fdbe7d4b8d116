"""Recurrent layers: what their kernel is, and its LLVM text.

    each step t:   sums[b, gate, j] = sum over k of state[b, k] * weight[gate, j, k]
                   state, kept = cell(sums, state, input[t, b, gate, j], bias[gate, j])

Rows of the batch never meet, so a unit is UNIT_ROWS of them through all steps, and nobody waits for anyone
between two steps. Neighbours go together, at most ROWS at a time:

    each block of rows:  states -> memory of the thread's own
        each step:  each COLUMNS of the state:
            tiles:  the sums of all gates, those of a gate beside those of the next
            cell:   a nest over (rows, columns): the states after, and what is given

The sums of a product are in the order of every product (gemm/spec.py), and the cell is scalars, each rounded
once: the bits are those of a product and a kernel of gates for each step.

    weight    [group of COLUMNS][gate][k][COLUMNS], padded: panels that a tile reads one after the other

A reversed layer has negative strides along the steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.codegen.arguments import Arguments
from kiln.codegen.compile import Part
from kiln.codegen.gemm import fma
from kiln.codegen.gemm.driver_spec import driver_spec_of
from kiln.codegen.gemm.element import element_of, multiply_add
from kiln.codegen.gemm.fma_tile import nothing
from kiln.codegen.gemm.spec import product
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import Memory
from kiln.codegen.ir.routine import Routine, own_parts
from kiln.codegen.ir.value import LLVM, Value, llvm_type
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest, Operand
from kiln.codegen.target import Target
from kiln.ops.nn.recurrent_layers import COLUMNS
from kiln.scalars.scalar import Scalar, program_text
from kiln.table.order import LANES, SEGMENT

UNIT_ROWS = 4  # as many as the lowest tile has
ROWS = 48  # of a block, at most
DIMS = ("step", "row", "column")  # of an operand


class RecurrenceSpec(NamedTuple):
    """The pattern of a kernel. In `values`, loads are those of sums, states, inputs and biases, of every gate
    each; the values are the states after a step and what is kept.
    """

    dtype: str
    gates: int
    states: int
    input: str  # the stride class of its columns
    bias: str  # the same; "": there is none
    gives: tuple[tuple[str, str], ...]  # "hidden", "cell", "kept", and the class of its columns
    values: tuple[Scalar, ...]

    @property
    def operands(self) -> list[str]:
        """The kernel's operands that have strides."""
        given = ["input", "hidden", "cell"][: self.states + 1] + (["bias"] if self.bias else [])
        return given + [f"to {name}" for name, _ in self.gives]

    @property
    def arguments(self) -> Arguments:
        """The kernel's arguments; `size` of the state."""
        sizes, strides = ("steps", "rows", "size"), dict.fromkeys(self.operands, DIMS)
        return Arguments((*self.operands, "weight"), ("memory",), size=sizes, stride=strides)

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return "\n".join([
            f"recurrence {self.dtype} {self.gates} {self.states}",
            f"input {self.input} bias {self.bias or 'none'}",
            "gives " + " ".join(f"{name} {kind}" for name, kind in self.gives),
            program_text(list(self.values)),
        ])  # fmt: skip

    def cell(self) -> tuple[Nest, list[tuple[str, int]]]:
        """The nest of the gates, and of each of its operands where it lies and which part that is."""
        parts = [("sums", g) for g in range(self.gates)] + [("state", s) for s in range(self.states)]
        kinds = ["1"] * len(parts)
        for name, kind in (("input", self.input), ("bias", self.bias)):
            parts += [(name, g) for g in range(self.gates if kind else 0)]
            kinds += [kind] * (self.gates if kind else 0)
        operands = [
            Operand(self.dtype, "in", ("0" if x == "bias" else "s", k)) for (x, _), k in zip(parts, kinds)
        ]
        stores = []

        def store(name: str, part: int, kind: str, value: Scalar) -> None:
            stores.append((len(parts), value))
            parts.append((name, part))
            operands.append(Operand(self.dtype, "out", ("s", kind)))

        for s in range(self.states):
            store("after", s, "1", self.values[s])
        for name, kind in self.gives:
            first, count = {"hidden": (0, 1), "cell": (1, 1), "kept": (self.states, self.gates)}[name]
            for part in range(count):
                store(f"to {name}", part, kind, self.values[first + part])
        return Nest(("p", "p"), tuple(operands), (), tuple(stores), small=True), parts

    def units(self, rows: Any) -> Any:
        """The units of work of a launch, on ints or symbolic sizes."""
        return (rows + (UNIT_ROWS - 1)) // UNIT_ROWS

    def scratch(self, size: Any) -> Any:
        """The 64-bit words of memory that each thread needs to itself."""
        elements = (pitch_of(size) * (self.states + 1) + self.gates * COLUMNS) * ROWS
        return elements * element_of(self.dtype).bytes // 8


def pitch_of(size: Any) -> Any:
    """The pitch of a state's rows in elements, chosen so that rows do not share cache sets."""
    return (size + (LANES - 1)) // LANES * LANES + LANES


def recurrence_parts(spec: RecurrenceSpec, target: Target) -> list[Part]:
    """The parts of the kernel: its own, and those that all products of such factors share."""
    routines = [RecurrenceDriver(spec, target).write(), row(spec, target)]
    driver = own_parts(target, routines, [nothing(target, element_of(spec.dtype))])
    return [
        *driver,
        Part(("cell",), lambda: _cell_text(spec, target)),
        *fma.shared_parts(driver_spec_of(product(spec.dtype), target), target),
    ]


def _cell_text(spec: RecurrenceSpec, target: Target) -> str:
    return nest_text(spec.cell()[0], target).replace("@kernel(", "@cell(", 1)


def row(spec: RecurrenceSpec, target: Target) -> Routine:
    """The routine row: the sums of one row, a few gates at a time, as a chain waits for itself.

    each k:   x = splat(load a[k])
              each gate, v:  sum[gate][v] = fma(x, load b[gate][k][v], sum[gate][v]);  prefetch
    each gate, v:  store c[gate][v], c[gate][v] (or what adds nothing) + sum[gate][v]
    """
    code = Routine(target, "row", "ptr %a, ptr %b, i64 %gate, ptr %c, i64 %k, i1 %first")
    element = element_of(spec.dtype)
    a, b, c = code.pointers("a", "b", "c")
    gate_bytes, k = code.indices("gate", "k")
    lanes = element.lanes(target)
    vectors, kind = COLUMNS // lanes, llvm_type(element.summed, lanes)
    most = max(8 // vectors, 1)  # gates: eight chains overlap
    for start in range(0, spec.gates, most):
        gates = range(start, min(start + most, spec.gates))
        bases = [b[gate_bytes * gate] for gate in gates]
        zero = Value("zeroinitializer", element.summed, lanes)
        with code.loop(0, k, 1, [zero] * (len(gates) * vectors)) as turn:
            here = a.element(LLVM[element.summed], turn.index)
            x = Value(here.load(LLVM[element.summed]), element.summed)
            x = Memory(code).machine.spread(x, lanes)
            line = turn.index * (COLUMNS * element.bytes)
            places = [base[line, v * lanes * element.bytes] for base in bases for v in range(vectors)]
            sums = list[Value]()
            for place, chain in zip(places, turn.values):
                code.prefetch(place[1024])
                y = place.load(kind, element.bytes)
                text = multiply_add(code, element, lanes, x.text, y, chain.text)
                sums.append(Value(text, element.summed, lanes))
            turn.next = sums
        for n, chain in enumerate(turn.values):
            place = c[(start * vectors + n) * lanes * element.bytes]
            old = place.load(kind, element.bytes)
            old = code.op(f"select i1 %first, {kind} splat ({element.nothing}), {kind} {old}")
            total = code.op(f"{element.add} {kind} {old}, {chain.text}")
            place.store(f"{kind} {total}", element.bytes)
    return code


class RecurrenceDriver:
    """The driver under construction; strides in bytes."""

    def __init__(self, spec: RecurrenceSpec, target: Target) -> None:
        self.spec, self.target, self.element = spec, target, element_of(spec.dtype)
        self.code = code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", quick=True)
        places, names = spec.arguments, spec.operands
        self.steps, self.rows, self.size = (
            code.argument(places.word("size", name)) for name in ("steps", "rows", "size")
        )
        self.bytes = self.element.bytes
        self.base = {name: code.operand(places.pointer(name)) for name in names}
        self.weight, memory = (code.operand(places.pointer(name)) for name in ("weight", "memory"))
        self.elements = {
            name: [code.argument(places.word("stride", name, d)) for d in DIMS] for name in names
        }
        self.stride = {name: [s * self.bytes for s in own] for name, own in self.elements.items()}
        self.row_bytes = self.size * self.bytes
        pitch: Index = pitch_of(self.size)
        self.pitch = pitch * self.bytes
        self.state_bytes = self.pitch * ROWS
        self.state_rows = [memory[self.state_bytes * k] for k in range(spec.states + 1)]
        self.sums = memory[self.state_bytes * (spec.states + 1)]
        self.sums_pitch = spec.gates * COLUMNS
        nest, self.parts = spec.cell()
        self.places = nest.arguments
        self.pointers = code.slot("ptr", len(nest.operands))
        self.words = code.slot("i64", self.places.count)
        for k, (name, _) in enumerate(self.parts):
            steps = self.elements.get(name, [code.index(0), pitch, code.index(1)])
            if name == "sums":
                steps = [code.index(0), code.index(self.sums_pitch), code.index(1)]
            for d in (0, 1):
                self.words.put(steps[1 + d], self.places.word("stride", k, d))

    def write(self) -> Routine:
        """Rows in blocks of about the same height."""
        code = self.code
        begin, end = code.indices("begin", "end")
        first = begin * UNIT_ROWS
        last = self.rows.min(end * UNIT_ROWS)
        count = last - first
        blocks = count.ceil_div(ROWS)
        height = (count + blocks - 1) // blocks
        height = height.ceil_div(UNIT_ROWS) * UNIT_ROWS
        at = code.variable(first)
        with code.during(at, last) as row:
            rows = (last - row).min(height)
            self._block(row, rows)
            at.set(row + rows)
        return code

    def _block(self, row: Index, rows: Index) -> None:
        """All steps of some rows."""
        code, spec = self.code, self.spec
        line = self.element.panel(self.target) * self.element.bytes
        for name, region in zip(("hidden", "cell")[: spec.states], (self.state_rows[0], self.state_rows[-1])):
            src = self.base[name][row * self.stride[name][1]]
            steps = self.stride[name][1:]
            code.run("copy", src, *steps, region, self.pitch, line, rows, self.size)
        self.words.put(rows, self.places.word("size", 0))
        with code.times(self.steps) as step:
            odd = (step & 1).differs(0)
            first, second = self.state_rows[:2]
            hidden = [odd.choose(second, first), odd.choose(first, second)]
            place = {"state": [hidden[0], self.state_rows[-1]], "after": [hidden[1], self.state_rows[-1]]}
            start = {
                name: base[step * self.stride[name][0], row * self.stride[name][1]]
                for name, base in self.base.items()
            }
            with code.times(self.size, COLUMNS) as column:
                self._sum(hidden[0], start, rows, column)
                self._cell(place, start, rows, column)

    def _ask(self, gate: int, start: dict[str, Pointer], rows: Index, column: Index) -> None:
        """Prefetches a gate's part of the input, whose rows lie on pages of their own."""
        code = self.code
        at = (self.size * gate + column) * self.stride["input"][2]
        with code.times(rows) as row:
            here = start["input"][at, row * self.stride["input"][1]]
            for line in range(0, COLUMNS * self.element.bytes, 64):
                code.prefetch(here[line])

    def _sum(self, hidden: Pointer, start: dict[str, Pointer], rows: Index, column: Index) -> None:
        """Computes the sums of all gates for a group of columns, and prefetches what the cell will read."""
        code, spec, line = self.code, self.spec, COLUMNS * self.element.bytes
        weight = self.weight[column * spec.gates * self.row_bytes]
        gate_bytes = self.row_bytes * COLUMNS
        pitch = spec.gates * line
        with code.loop(0, self.size, SEGMENT) as turn:
            k, first = turn.index, turn.index.equals(0)
            depth = (self.size - k).min(SEGMENT)
            a, b = hidden[k * self.bytes], weight[k * line]
            with code.either(rows.equals(1)) as several:
                code.run("row", a, b, gate_bytes, self.sums, depth, first)
                next(several)
                for at in range(0, spec.gates * COLUMNS, self.element.panel(self.target)):
                    gate, inside = divmod(at, COLUMNS)
                    if not inside:
                        self._ask(gate, start, rows, column)
                    place = b[gate_bytes * gate, inside * self.element.bytes]
                    c = self.sums[at * self.element.bytes]
                    old, old_pitch = first.choose(code.pointer("@nothing"), c), first.choose(0, pitch)
                    code.run(
                        "tile", a, self.pitch, self.bytes, place, line, c,
                        pitch, old, old_pitch, depth, rows, code.condition(False),
                    )  # fmt: skip

    def _cell(
        self, place: dict[str, list[Pointer]], start: dict[str, Pointer], rows: Index, column: Index
    ) -> None:
        """Computes the states of a group of columns after the step, and stores those that are asked for."""
        code = self.code
        left = column * self.bytes
        for k, (name, part) in enumerate(self.parts):
            if name == "sums":
                at = self.sums[part * COLUMNS * self.element.bytes]
            elif name in place:
                at = place[name][part][left]
            else:
                across = self.size * part + column if part else column
                at = start[name][across * self.stride[name][2]]
            self.pointers.put(at, k)
        self.words.put((self.size - column).min(COLUMNS), self.places.word("size", 1))
        code.run("cell", self.pointers, self.words, 0, rows)
