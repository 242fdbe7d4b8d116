"""Groups to kernels with the arguments of their launches: nests; products.py and along.py have the others.

    dims of the frame        [b, t, n]   reduced: n
    merged                   [b*t] n     where every operand allows it, so that most nests are flat or rows
    classes                  "1" "0" "s" of every operand's stride, from its symbolic stride
    arguments                sizes, strides, numbers

A reduction of everything is launched twice with one kernel: over the full blocks, and over what is left.

    partial[b] = reduce x[16384 b ..]      grid n // 16384
    partial[n // 16384] = reduce the rest  grid 1
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.codegen.nests.nest import ROW_ACCUMULATORS, Nest, Operand, moved
from kiln.graph.control import Attrs
from kiln.graph.graph import Shape
from kiln.graph.size import Dim, quotient
from kiln.late import later
from kiln.passes.build import Builder, Use, stores_of
from kiln.passes.explore import Read, mergeable
from kiln.passes.group import Fusion, Group
from kiln.passes.launch import (
    Called,
    Lowered,
    Memory,
    NestKernel,
    array_of,
    grain_of,
    stride_class,
)
from kiln.passes.layout import numel
from kiln.passes.strips import strips
from kiln.scalars.scalar import LEAVES, Scalar, substitute, topological
from kiln.table.order import LANES, REDUCE_BLOCK

_lower_product = later("kiln.passes.products", "lower_product")
_lower_along = later("kiln.passes.along", "lower_along")
_LAYERS = {
    "attention": later("kiln.passes.attention", "lower_attention"),
    "recurrence": later("kiln.passes.recurrence", "lower_recurrence"),
}
BLOCKS = {
    "map": REDUCE_BLOCK,
    "lanes": REDUCE_BLOCK,
    "strips": LANES,
    "chains": ROW_ACCUMULATORS,
    "sequence": 1,
}  # of a frame's reductions


def lower_group(fusion: Fusion, group: Group) -> Sequence[Lowered | Called]:
    """The launches of a group."""
    if group.kind == "control":
        return [_call(fusion, group)]
    if group.kind == "matmul":
        return [_lower_product(fusion, group)]
    if group.kind == "along":
        return [_lower_along(fusion, group)]
    if group.kind == "layer":
        return [_LAYERS[group.nodes[0].op.algorithm](fusion, group)]
    if group.frame.mode == "blocks":
        return _blocks(fusion, group)
    return [_nest(fusion, group)]


def _call(fusion: Fusion, group: Group) -> Called:
    """A call of graphs; only results that are nodes of the graph have memory."""
    node = group.nodes[0]
    attrs = Attrs(*node.attrs)
    inputs: list[Memory] = []
    for value in node.inputs:
        read = fusion.explorer.strided(value, None)
        assert isinstance(read, Read)
        inputs.append(Memory(read.value, array_of(fusion, read), read.layout.offset))
    arrays = {n.attrs[0]: fusion.explorer.arrays[id(n.out)] for n in group.nodes}
    outputs = [
        Memory(arrays[k].value, arrays[k], arrays[k].layout.offset) if k in arrays else None
        for k in range(attrs.results + (attrs.counts[0] if node.op.name == "scan" else 0))
    ]
    strides: list[Dim] = []
    if node.op.name == "scan":
        state, each, _ = attrs.counts
        strides += [numel(v.shape[1:]) for v in node.inputs[state : state + each]]
        parts = outputs[state : attrs.results]
        strides += [0 if m is None else numel(m.value.shape[1:]) for m in parts]
    return Called(node.op.name, attrs, tuple(inputs), tuple(outputs), tuple(strides))


# -- nests ------------------------------------------------------------------------------------------


class _Dims:
    """The dims of a nest after merging: each stands for a run of the frame's."""

    def __init__(self, sizes: Shape, roles: str, uses: list[Use], indexed: set[int]) -> None:
        runs: list[list[int]] = []
        strided = [u.layout.strides for u in uses if not u.own]
        for d in range(len(sizes)):
            before = d - 1
            joined = (
                d > 0 and roles[d] == roles[before] and d not in indexed and before not in indexed
                and all(mergeable(s, sizes, before) for s in strided)
            )  # fmt: skip
            if joined:
                runs[-1].append(d)
            else:
                runs.append([d])
        self.sizes = tuple(numel(tuple(sizes[d] for d in run)) for run in runs)
        self.roles = "".join(roles[run[0]] for run in runs)
        self.last = [run[-1] for run in runs]
        self.place = {d: k for k, run in enumerate(runs) for d in run}

    def strides(self, use: Use) -> Shape:
        """The strides of an operand along the merged dims (its own for a computed load)."""
        return use.layout.strides if use.own else tuple(use.layout.strides[d] for d in self.last)


def _renamed(stores: list[tuple[int, Scalar]], place: dict[int, int]) -> list[tuple[int, Scalar]]:
    """Positions along the frame's dims as positions along the merged dims."""
    if all(d == k for d, k in place.items()):
        return stores

    def replace(s: Scalar) -> Scalar | None:
        return Scalar("index", (), "i64", place[s.data]) if s.op == "index" else None

    return [(k, substitute(x, replace)) for k, x in stores]


def _indexed(stores: list[tuple[int, Scalar]]) -> set[int]:
    """The dims whose positions are used."""
    return {s.data for s in topological([x for _, x in stores]) if s.op == "index"}


def _nest(fusion: Fusion, group: Group) -> Lowered:
    """A nest over the group's frame."""
    frame = group.frame
    builder = Builder(fusion.explorer, frame)
    stores = stores_of(fusion, group, builder)
    parts = _joined(group, builder, stores)
    roles = "".join("r" if d in frame.reduced else "p" for d in range(len(frame.dims)))
    dims = _Dims(frame.dims, roles, builder.uses, _indexed(stores))
    stores = _renamed(stores, dims.place)
    strides = [dims.strides(use) for use in builder.uses]
    sizes, roles = dims.sizes, dims.roles
    if not sizes:
        sizes, roles = (1,), "p"
        strides = [s if u.own else (1 if u.mode == "out" else 0,) for u, s in zip(builder.uses, strides)]
    kernel = _kernel(roles, builder, strides, stores, BLOCKS[frame.mode], parts, _written_over(group))
    pointers = tuple(Memory(u.value, u.array, u.layout.offset) for u in builder.uses)
    args = _arguments(kernel.nest, sizes, strides, builder)
    grid, elements = _grid(kernel.nest, sizes)
    return Lowered(kernel, pointers, args, grid, grain_of(_cost(kernel.nest), elements))


def _joined(group: Group, builder: Builder, stores: list[tuple[int, Scalar]]) -> dict[int, int]:
    """The operands that are parts of arrays joined, each with the number that holds the whole's elements."""
    found: dict[int, int] = {}
    for (k, _), root in zip(stores, group.roots):
        node = root.array.value.node
        if root.place is not None and node is not None and node.op.kind == "concat":
            found[k] = builder.number("i64", numel(root.array.layout.sizes)).data
    return found


def _written_over(group: Group) -> bool:
    """Whether a group fills an array that is then written into: until then a cache should hold its lines."""
    for root in group.roots:
        node, filled = root.array.value.node, root.value.node
        if node is not None and filled is not None and (node.op.kind, filled.op.kind) == ("write", "full"):
            return True
    return False


def _kernel(
    roles: str,
    builder: Builder,
    strides: list[Shape],
    stores: list[tuple[int, Scalar]],
    block: int,
    parts: dict[int, int],
    small: bool = False,
) -> NestKernel:
    operands = tuple(
        Operand(u.dtype, u.mode, _classes(s), parts.get(k, -1))
        for k, (u, s) in enumerate(zip(builder.uses, strides))
    )
    numbers = tuple(kind for kind, _ in builder.numbers)
    return NestKernel(moved(Nest(tuple(roles), operands, numbers, tuple(stores), block, small)))


def _classes(strides: Shape) -> tuple[str, ...]:
    """The classes of strides; of the last dim also that of every other element."""
    found = tuple(map(stride_class, strides))
    return (*found[:-1], "2") if strides and strides[-1] == 2 else found


def _arguments(nest: Nest, sizes: Shape, strides: list[Shape], builder: Builder) -> Shape:
    """The words of a launch."""
    numbers = [value for _, value in builder.numbers]
    return nest.arguments.words(size=sizes, stride=strides, number=numbers)


def _grid(nest: Nest, sizes: Shape) -> tuple[Dim, Dim]:
    """The units of a nest and the elements in each."""
    kept = tuple(n for n, role in zip(sizes, nest.dims) if role == "p")
    reduced = numel(tuple(n for n, role in zip(sizes, nest.dims) if role == "r"))
    schedule = nest.schedule()
    if schedule == "flat":
        return sizes[0], 1
    if schedule == "map":
        return numel(sizes[:-1]), sizes[-1]
    if schedule == "strips":
        return strips(kept[0]), quotient(kept[0] + (LANES - 1), LANES) * reduced
    if schedule == "columns":
        block = nest.column_block()
        return numel(kept[:-1]) * quotient(kept[-1] + (block - 1), block), reduced * block
    return numel(kept), reduced


def _cost(nest: Nest) -> float:
    """About how many nanoseconds an element takes."""
    work = sum(s.op not in LEAVES and s.op != "const" for s in topological([x for _, x in nest.stores]))
    places = sum(bool(s.args) for s in topological([x for _, x in nest.stores]) if s.op == "load")
    return 0.1 + 0.02 * work + 0.1 * len(nest.operands) + 2 * places


def _blocks(fusion: Fusion, group: Group) -> list[Lowered]:
    """The partial results of reductions of everything: full blocks, then the rest."""
    frame = group.frame
    builder = Builder(fusion.explorer, frame)
    stores = stores_of(fusion, group, builder)
    inputs = [u for u in builder.uses if u.mode == "in"]
    flat = _Dims(frame.dims, "r" * len(frame.dims), inputs, set())
    assert len(flat.sizes) == 1, "partial results are made of one flat dim"
    size = flat.sizes[0]
    full = quotient(size, REDUCE_BLOCK)
    steps = [flat.strides(u)[0] if u.mode == "in" else 0 for u in builder.uses]
    rows: list[Shape] = [
        (s * REDUCE_BLOCK, s) if u.mode == "in" else (1, 0) for u, s in zip(builder.uses, steps)
    ]
    kernel = _kernel("pr", builder, rows, stores, REDUCE_BLOCK, {})
    launches = []
    for count, length, first in ((full, REDUCE_BLOCK, 0), (1, size - full * REDUCE_BLOCK, full)):
        pointers = tuple(
            Memory(u.value, u.array, u.layout.offset + first * row[0]) for u, row in zip(builder.uses, rows)
        )
        args = _arguments(kernel.nest, (count, length), rows, builder)
        launches.append(Lowered(kernel, pointers, args, count, grain_of(_cost(kernel.nest), REDUCE_BLOCK)))
    return launches
