"""Attention as kernels, with the arguments of their launches."""

from __future__ import annotations

from kiln.codegen.attention.kernel import attention_parts
from kiln.codegen.attention.spec import SIZES, UNIT_ROWS, AttentionSpec, Drop
from kiln.codegen.attention.vector_rows import Mask
from kiln.codegen.compile import Part
from kiln.codegen.target import Target
from kiln.graph.graph import Shape, Value
from kiln.graph.size import Dim, quotient
from kiln.passes.build import Builder
from kiln.passes.explore import Read
from kiln.passes.group import Fusion, Group
from kiln.passes.launch import WORTH, Kernel, Lowered, Memory, array_of, stride_class
from kiln.passes.layout import Layout
from kiln.scalars.scalar import convert
from kiln.table.kinds import COMPUTE

# Where an operand has the dims n, h, r, row, column; -1: it is the same along this one.
PLACES = {"query": (0, 2, 3, 1, 4), "key": (0, 2, -1, 1, 3), "mask": (0, 1, 2, 3, 4)}
KINDS = {"g": "query", "q": "query", "k": "key", "v": "key", "m": "mask", "o": "query"}
FMAS = 50  # in a nanosecond
GIVES = {"output": "o", "query": "q", "key": "k", "value": "v"}


class AttentionKernel(Kernel):
    """Attention as a kernel."""

    def parts(self, target: Target) -> list[Part]:
        return attention_parts(self.spec, target)


def lower_attention(fusion: Fusion, group: Group) -> Lowered:
    """The output, or the gradients that are wanted of one output."""
    found = {GIVES[node.op.rule]: node for node in group.nodes}
    node = group.nodes[0]
    numbers = [v for v in node.inputs if _is_number(v)]
    arrays = [v for v in node.inputs if not _is_number(v)]
    causal, drops = node.attrs
    builder = Builder(fusion.explorer, group.frame)
    scale, *drop = (builder.scalar(v, None) for v in numbers[: 4 if drops else 1])
    reads = [fusion.explorer.strided(v, None) for v in arrays]
    backward = "o" not in found
    memories: dict[str, Memory] = {}
    strides: dict[str, Shape] = {}
    for name, read in zip("gqkvm" if backward else "qkvm", reads):
        assert isinstance(read, Read)
        memories[name] = Memory(read.value, array_of(fusion, read), read.layout.offset)
        strides[name] = _strides(name, read.layout)
    for name in (gives := "".join(k for k in "oqkv" if k in found)):
        array = fusion.explorer.arrays[id(found[name].out)]
        memories[name.upper()] = Memory(array.value, array, array.layout.offset)
        strides[name.upper()] = _strides(name, array.layout)
    mask = None
    if "m" in memories:
        mask = Mask((arrays[-1].dtype, stride_class(strides["m"][-1])))
    dtype = arrays[0].dtype
    spec = AttentionSpec(
        dtype, mask, causal, gives, convert(scale, COMPUTE[dtype]), Drop(*drop) if drops else None,
        tuple(kind for kind, _ in builder.numbers),
    )  # fmt: skip
    return _launch(spec, memories, strides, builder, _sizes(arrays[backward:]))


def _is_number(value: Value) -> bool:
    return value.weak or not value.shape


def _sizes(arrays: list[Value]) -> dict[str, Dim]:
    """The sizes by name, of query, key and value."""
    (n, length, h, r, e), (_, s, _, v) = arrays[0].shape, arrays[2].shape
    return dict(zip(SIZES, (n, h, r, length, s, e, v)))


def _strides(name: str, layout: Layout) -> Shape:
    return tuple(layout.strides[d] if d >= 0 else 0 for d in PLACES[KINDS[name]])


def _launch(
    spec: AttentionSpec,
    memories: dict[str, Memory],
    strides: dict[str, Shape],
    builder: Builder,
    sizes: dict[str, Dim],
) -> Lowered:
    starts: dict[str, Dim] = {}
    end: Dim = 0
    for name, size in spec.regions(sizes).items():
        starts[name] = end
        end = end + size
    size = {"f32": 4, "f64": 8}[COMPUTE[spec.dtype]]
    words = end if size == 8 else (end + 1) // 2
    arguments, numbers = spec.arguments, [value for _, value in builder.numbers]
    args = arguments.words(size=sizes, region=starts, stride=strides, number=numbers)
    pointers = arguments.pointers(memories)
    rows = sizes["l"] * sizes["r"] if spec.backward else UNIT_ROWS
    grain = quotient(WORTH * FMAS, rows * sizes["s"] * (sizes["e"] + sizes["v"]) + 1)
    return Lowered(AttentionKernel(spec), pointers, args, spec.units(sizes), grain, words)
