"""Products as kernels, with the arguments of their launches and what is computed at their stores."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.codegen.compile import Part
from kiln.codegen.gemm.arguments import BATCH, arguments_of
from kiln.codegen.gemm.driver_spec import same
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.kernel import gemm_parts
from kiln.codegen.gemm.spec import GemmSpec, Prologue, accumulates
from kiln.codegen.nests.nest import Operand
from kiln.codegen.target import Target
from kiln.graph.graph import Shape
from kiln.graph.size import Dim, quotient
from kiln.passes.build import Builder, Use, stores_of
from kiln.passes.explore import Read
from kiln.passes.factors import Factor, Windows, factors_of
from kiln.passes.group import Fusion, Group
from kiln.passes.inline import Inline
from kiln.passes.launch import WORTH, Kernel, Lowered, Memory, Split, array_of, stride_class
from kiln.passes.layout import Layout, numel
from kiln.scalars.scalar import Scalar, convert, round_to
from kiln.table.kinds import COMPUTE

UNIT_COST = 16  # nanoseconds a unit of a product takes for each k
WORD_COST = 20  # ... and 64 bits of a segment's sums, where many rows share what is packed


class GemmKernel(Kernel):
    """A product as a kernel."""

    def text(self) -> str:
        known = "" if self.launches is None else f"\nof {self.launches}"
        return super().text() + known

    def parts(self, target: Target) -> list[Part]:
        return gemm_parts(self.spec, target, self.launches)

    def among(self, launches: Sequence[Sequence[Dim]]) -> GemmKernel:
        return GemmKernel(self.spec, same(launches, arguments_of(self.spec)))


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
    sides = _Sides(fusion, builder)
    window: dict[str, Shape] = {}
    columns: Shape = ()
    stretch: Shape = ()
    if isinstance(found, Windows):
        products, n = found.groups, found.images * n
        window, columns = found.window(), found.columns()
        sides.take(found.a, (0, 0, *found.a_strides))
        sides.take(found.b, (0, 0, found.b_group, 0, 0))
    else:
        products, stretch = numel(tuple(batch)), found.stretch
        swapped = n == 1 and m != 1  # a column is the row of the transposed product: the same chains
        if swapped:
            m, n = n, m
            sides.uses = [u._replace(layout=_transposed(u.layout)) for u in sides.uses]
        for factor in reversed(found.factors) if swapped else found.factors:
            sides.factor(factor, swapped)
    strides = [_whole(u.layout) if u.mode == "out" else u.layout.strides for u in sides.uses]
    operands = tuple(
        Operand(u.dtype, u.mode, tuple(map(stride_class, s[-2:]))) for u, s in zip(sides.uses, strides)
    )
    numbers = tuple(kind for kind, _ in builder.numbers)
    row = m == 1 and not window and sides.prologues == [None, None]
    accumulator = None if row or window else _accumulator(group, dtype, operands, stores)
    first, second = sides.prologues
    spec = GemmSpec(dtype, operands, numbers, tuple(stores), row, bool(window), first, second, accumulator)
    arguments = arguments_of(spec)
    operand_places = {k + 1: _memory(use) for k, use in enumerate(sides.uses)}
    pointers = arguments.pointers({**dict(zip("ab", sides.pointers)), **operand_places})
    args = arguments.words(
        size=(*batch, m, n, k),
        stretch=stretch or (m, 0),
        stride=(*sides.strides, *strides),
        number=[value for _, value in builder.numbers],
        window=window,
        columns=columns,
        segments=(0, 0),  # the core's to set
    )
    units, split = spec.units(products, m, n), _split(spec, products, m, n, k)
    return Lowered(GemmKernel(spec), pointers, args, units, _grain(spec, k), spec.scratch, split)


def _grain(spec: GemmSpec, k: Dim) -> Dim:
    """How many units make a thread's worth of work: one or more, but for a single row of wide floats, where a
    unit of many k is more than that (0).
    """
    deep = WORTH // UNIT_COST
    whole = deep // max(k, 1) if isinstance(k, int) else quotient(deep, k)
    if spec.row and spec.dtype in ("float32", "float64"):
        return whole
    return max(whole, 1) if isinstance(whole, int) else whole + 1


def _accumulator(
    group: Group, dtype: str, operands: tuple[Operand, ...], stores: list[tuple[int, Scalar]]
) -> int | None:
    """An output that may take sums: its memory is no input's, which may still be read."""
    fresh = (k for (k, _), root in zip(stores, group.roots) if root.array.update < 0)
    return next((k for k in fresh if accumulates(dtype, operands, k)), None)


def _split(spec: GemmSpec, batch: Dim, m: Dim, n: Dim, k: Dim) -> Split:
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

    def factor(self, factor: Factor, swapped: bool) -> None:
        """A factor that is a matrix in memory; if the operands were swapped, its transpose."""
        if isinstance(factor, Read):
            self.take(factor, _whole(_transposed(factor.layout) if swapped else factor.layout))
            return
        assert isinstance(factor, Inline)
        part = self.builder.beside(factor.frame, self.uses)
        value = part.scalar(factor.value, self.fusion.explorer.chain_to(factor.value.shape, factor.frame))
        uses = [u._replace(layout=_transposed(u.layout)) if factor.transposed else u for u in part.uses]
        self.pointers.append(_memory(uses[0]))  # never read
        self.strides.append((0,) * (BATCH + 2))
        self.prologues.append(Prologue(value, factor.transposed != swapped))
        self.uses += uses


def _memory(use: Use) -> Memory:
    """Where an operand lies."""
    return Memory(use.value, use.array, use.layout.offset)


def _whole(layout: Layout) -> Shape:
    """Strides with 1 along a last dim of size 1: any is right there, and unit stride is a fast path."""
    *outer, last = layout.strides
    return (*outer, 1 if layout.sizes[-1] == 1 else last)


def _transposed(layout: Layout) -> Layout:
    """A layout with its last two dims transposed."""
    *outer, rows, columns = zip(layout.sizes, layout.strides)
    sizes, strides = zip(*outer, columns, rows)
    return layout._replace(sizes=sizes, strides=strides)
