"""Products as kernels, with the arguments of their launches and what is computed at their stores."""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.compile import object_for
from kiln.codegen.matmul import MatmulSpec, Prologue, holds, matmul_parts
from kiln.codegen.matmul_finish import BATCH
from kiln.codegen.matmul_tile import element_of
from kiln.codegen.nest import Operand
from kiln.codegen.target import Target, host_target
from kiln.graph.graph import Shape
from kiln.graph.size import Dim, quotient
from kiln.passes.build import Builder, stores_of
from kiln.passes.explore import Read
from kiln.passes.factors import Factor, Windows, factors_of
from kiln.passes.group import Fusion, Group
from kiln.passes.inline import Inline
from kiln.passes.launch import WORTH, Lowered, Memory, Split, array_of, stride_class
from kiln.passes.layout import Layout, numel
from kiln.scalars.scalar import Scalar, convert, round_to
from kiln.table.kinds import COMPUTE

UNIT_COST = 16  # nanoseconds a unit of a product takes for each k
WORD_COST = 20  # ... 64 bits of sums for a segment, where many rows share what is packed


class MatmulKernel(NamedTuple):
    """A product as a kernel."""

    spec: MatmulSpec

    def text(self) -> str:
        """The canonical text."""
        return self.spec.text()

    def object(self, target: Target | None = None) -> bytes:
        """The machine code."""
        target = target or host_target()
        return object_for(self.text(), lambda: matmul_parts(self.spec, target), target)


def lower_product(fusion: Fusion, group: Group) -> Lowered:
    """A product and what is computed at its store."""
    node = group.node
    assert node is not None
    dtype = node.inputs[0].dtype
    builder = Builder(fusion.explorer, group.frame, 1)
    total = convert(Scalar("load", (), element_of(dtype).summed, 0), COMPUTE[node.out.dtype])
    builder.product(node.out, round_to(total, node.out.dtype))
    stores = stores_of(fusion, group, builder)
    for place, root in enumerate(group.roots):
        if root.value is node.out:
            stores[place] = (stores[place][0], total)
    *batch, m, n = group.frame.dims
    k = node.inputs[0].shape[-1]
    found = factors_of(fusion.explorer, node)
    window = isinstance(found, Windows)
    sides = _Sides(fusion, builder)
    look: Shape = ()
    stretch: Shape = ()
    if isinstance(found, Windows):
        products, n, look = found.groups, found.images * n, found.look()
        sides.take(found.a, (0, 0, *found.a_strides))
        sides.take(found.b, (0, 0, found.b_group, 0, 0))
    else:
        products, stretch = numel(tuple(batch)), found.stretch
        exchanged = n == 1 and m != 1  # a column is the row of the transposed product: the same chains
        if exchanged:
            m, n = n, m
            sides.uses = [u._replace(layout=_exchanged(u.layout)) for u in sides.uses]
        for factor in reversed(found.factors) if exchanged else found.factors:
            sides.factor(factor, exchanged)
    strides = [_whole(u.layout) if u.mode == "out" else u.layout.strides for u in sides.uses]
    operands = tuple(
        Operand(u.dtype, u.mode, tuple(map(stride_class, s[-2:]))) for u, s in zip(sides.uses, strides)
    )
    numbers = tuple(kind for kind, _ in builder.numbers)
    row = m == 1 and not window and sides.prologues == [None, None]
    held = None if row or window else _held(group, dtype, operands, stores)
    first, second = sides.prologues
    spec = MatmulSpec(dtype, operands, numbers, tuple(stores), row, window, first, second, held)
    pointers = sides.pointers + [Memory(u.value, u.array, u.layout.offset) for u in sides.uses]
    own = [*sides.strides, *strides]
    numbered = (*(s for dims in own for s in dims), *(v for _, v in builder.numbers))
    cut = (0, 0)  # the core's to set
    args = (*batch, m, n, k, *(stretch or (m, 0)), *numbered, *look, *cut)
    deep = WORTH // UNIT_COST  # k that make a thread's work of one unit
    grain = quotient(deep, k) + 1 if not isinstance(k, int) else max(deep // max(k, 1), 1)
    if row and dtype in ("float32", "float64"):  # a unit of 512 k is all that threads need to be worth it
        grain = quotient(deep, k) if not isinstance(k, int) else deep // max(k, 1)
    units, split = spec.units(products, m, n), _split(spec, products, m, n, k)
    return Lowered(MatmulKernel(spec), tuple(pointers), args, units, grain, spec.scratch, split)


def _held(
    group: Group, dtype: str, operands: tuple[Operand, ...], stores: list[tuple[int, Scalar]]
) -> int | None:
    """An output that may hold sums: its memory is no input's, which may still be read."""
    fresh = (k for (k, _), root in zip(stores, group.roots) if root.array.update < 0)
    return next((k for k in fresh if holds(dtype, operands, k)), None)


def _split(spec: MatmulSpec, batch: Dim, m: Dim, n: Dim, k: Dim) -> Split:
    """How the launch may be cut along k."""
    words = spec.part(batch, m, n)
    worth = spec.units(batch, m, n) * (WORTH // WORD_COST)
    return Split(spec.segments(k), batch * m, words, 1 if spec.row else quotient(worth, words + 1) + 1)


class _Sides:
    """A product's factors: pointers and strides, or what computes them from operands, which join `uses`."""

    def __init__(self, fusion: Fusion, builder: Builder) -> None:
        self.fusion, self.builder = fusion, builder
        self.uses = list(builder.uses)
        self.pointers: list[Memory] = []
        self.strides: list[Shape] = []
        self.prologues: list[Prologue | None] = []

    def take(self, read: Read, strides: Shape) -> None:
        """A factor in memory."""
        self.pointers.append(Memory(read.value, array_of(self.fusion, read), read.layout.offset))
        self.strides.append(strides)
        self.prologues.append(None)

    def factor(self, factor: Factor, exchanged: bool) -> None:
        """A factor that is a matrix."""
        if isinstance(factor, Read):
            self.take(factor, _whole(_exchanged(factor.layout) if exchanged else factor.layout))
            return
        assert isinstance(factor, Inline)
        part = self.builder.beside(factor.frame, self.uses)
        value = part.scalar(factor.value, self.fusion.explorer.chain_to(factor.value.shape, factor.frame))
        uses = [u._replace(layout=_exchanged(u.layout)) if factor.turned else u for u in part.uses]
        self.pointers.append(Memory(uses[0].value, uses[0].array, uses[0].layout.offset))
        self.strides.append((0,) * (BATCH + 2))
        self.prologues.append(Prologue(value, factor.turned != exchanged))
        self.uses += uses


def _whole(layout: Layout) -> Shape:
    """Strides with 1 along a last dim of size 1: any is right there, and unit stride is a fast path."""
    *outer, last = layout.strides
    return (*outer, 1 if layout.sizes[-1] == 1 else last)


def _exchanged(layout: Layout) -> Layout:
    """A layout with its last two dims exchanged."""
    *outer, rows, columns = zip(layout.sizes, layout.strides)
    sizes, strides = zip(*outer, columns, rows)
    return layout._replace(sizes=sizes, strides=strides)
