"""Recurrent layers as kernels, with the arguments of their launches."""

from __future__ import annotations

from kiln.codegen.compile import Part
from kiln.codegen.recurrence import UNIT_ROWS, RecurrenceSpec, recurrence_parts
from kiln.codegen.target import Target
from kiln.graph.graph import Node
from kiln.graph.size import Dim, quotient
from kiln.ops.nn.recurrent_layers import CELLS
from kiln.passes.explore import Read
from kiln.passes.group import Fusion, Group
from kiln.passes.launch import WORTH, Kernel, Lowered, Memory, array_of, stride_class
from kiln.passes.layout import Layout, is_contiguous
from kiln.scalars.scalar import Scalar
from kiln.table.kinds import COMPUTE

FMAS = 50  # in a nanosecond
GATE = 25  # multiply-adds that one of the cell's gates takes as long as
# Where an operand has the dims step, row, column; -1: it is the same along this one.
PLACES = {"input": (0, 1, 2), "hidden": (-1, 0, 1), "cell": (-1, 0, 1), "bias": (-1, -1, 0)}


class RecurrenceKernel(Kernel):
    """A recurrent layer as a kernel."""

    def parts(self, target: Target) -> list[Part]:
        return recurrence_parts(self.spec, target)


def lower_recurrence(fusion: Fusion, group: Group) -> Lowered:
    """The launch of one recurrent layer, for those of its results that are needed: hidden states, cells, what
    backward reads.
    """
    node = group.nodes[0]
    mode, reverse, _ = node.attrs
    reads = [fusion.explorer.strided(v, None) for v in node.inputs]
    found: dict[str, tuple[Memory, Layout]] = {}
    for name, read in zip(_operands(node), reads):
        assert isinstance(read, Read)
        found[name] = Memory(read.value, array_of(fusion, read), read.layout.offset), read.layout
    weight, layout = found.pop("weight")
    assert is_contiguous(layout), f"a weight with the strides {layout.strides}"
    outputs = {n.op.rule: fusion.explorer.arrays[id(n.out)] for n in group.nodes}
    gives: list[str] = [name for name in ("hidden", "cell", "kept") if name in outputs]
    for name in gives:
        array = outputs[name]
        found[f"to {name}"] = Memory(array.value, array, array.layout.offset), array.layout
    steps, rows, size = *node.inputs[0].shape[:2], node.inputs[2].shape[1]
    memories, strides = _from_first_step(found, steps, reverse)
    kinds = {name: stride_class(own[2]) for name, own in strides.items()}
    spec = _spec(node, kinds, gives)
    args = spec.arguments.words(size=(steps, rows, size), stride=strides)
    work = steps * size * (size + GATE) * (UNIT_ROWS * spec.gates)
    units, grain = spec.units(rows), quotient(WORTH * FMAS, work + 1)
    memories["weight"] = weight
    pointers = spec.arguments.pointers(memories)
    return Lowered(RecurrenceKernel(spec), pointers, args, units, grain, spec.scratch(size))


def _operands(node: Node) -> list[str]:
    """The names of a node's inputs."""
    names = ["input", "weight", "hidden", "cell"][: 2 + CELLS[node.attrs[0]].states]
    return names + ["bias"] * (len(node.inputs) - len(names))


def _from_first_step(
    found: dict[str, tuple[Memory, Layout]], steps: Dim, reverse: bool
) -> tuple[dict[str, Memory], dict[str, list[Dim]]]:
    """Where operands begin and their strides along step, row, column; reversed, from the last step on."""
    memories, strides = {}, {}
    for name, (memory, layout) in found.items():
        own = [layout.strides[d] if d >= 0 else 0 for d in PLACES.get(name, (0, 1, 2))]
        if reverse:
            memory = memory._replace(offset=memory.offset + own[0] * (steps - 1))
            own[0] = own[0] * -1
        memories[name], strides[name] = memory, own
    return memories, strides


def _spec(node: Node, kinds: dict[str, str], gives: list[str]) -> RecurrenceSpec:
    cell, dtype = CELLS[node.attrs[0]], node.inputs[0].dtype
    loads = iter([Scalar("load", (), COMPUTE[dtype], k) for k in range(3 * cell.gates + cell.states)])
    sums, states, x, bias = (
        [next(loads) for _ in range(n)] for n in (cell.gates, cell.states, *[cell.gates] * 2)
    )
    after, kept = cell.step(x, sums, states, bias if "bias" in kinds else None)
    return RecurrenceSpec(
        dtype, cell.gates, cell.states, kinds["input"], kinds.get("bias", ""),
        tuple((name, kinds[f"to {name}"]) for name in gives), (*after, *kept),
    )  # fmt: skip
