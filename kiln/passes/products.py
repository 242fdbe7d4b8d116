"""Products as kernels, with the arguments of their launches and what is computed at their stores."""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.compile import object_for
from kiln.codegen.matmul import MatmulSpec, library, matmul_ir
from kiln.codegen.matmul_tile import element_of
from kiln.codegen.nest import Operand
from kiln.codegen.target import Target, host_target
from kiln.graph.graph import Shape
from kiln.graph.size import quotient
from kiln.ops.kinds import COMPUTE
from kiln.ops.scalar import Scalar, convert, round_to
from kiln.passes.build import Builder
from kiln.passes.explore import Read
from kiln.passes.factors import Windows, matrices_or_windows
from kiln.passes.fuse import Fusion, Group
from kiln.passes.launch import WORTH, Lowered, Memory, array_of, stride_class
from kiln.passes.layout import Layout
from kiln.passes.lower import stores_of

UNIT_COST = 16  # nanoseconds a unit of a product takes for each k


class MatmulKernel(NamedTuple):
    """A product as a kernel."""

    spec: MatmulSpec

    def text(self) -> str:
        """The canonical text."""
        return self.spec.text()

    def object(self, target: Target | None = None) -> bytes:
        """The machine code."""
        target = target or host_target()
        shared = library(self.spec, target)
        return object_for(self.text(), lambda: matmul_ir(self.spec, target), target, shared)


def lower_product(fusion: Fusion, group: Group) -> Lowered:
    """A product and what is computed at its store."""
    node = group.node
    assert node is not None
    dtype = node.inputs[0].dtype
    builder = Builder(fusion.explorer, group.frame, 1)
    total = convert(Scalar("load", (), element_of(dtype).summed, 0), COMPUTE[node.out.dtype])
    builder.product(node.out, round_to(total, node.out.dtype))
    stores = [(k, total if root.value is node.out else x)
              for root, (k, x) in zip(group.roots, stores_of(fusion, group, builder))]  # fmt: skip
    batch, m, n = group.frame.dims
    k = node.inputs[0].shape[-1]
    found = matrices_or_windows(fusion.explorer, node)
    a, b = (found.a, found.b) if isinstance(found, Windows) else found
    assert isinstance(a, Read) and isinstance(b, Read)
    uses = [u.layout for u in builder.uses]
    first: Shape
    second: Shape
    look: Shape = ()
    window = isinstance(found, Windows)
    if isinstance(found, Windows):
        batch, n, look = found.groups, found.images * n, found.look()
        first, second = found.a_strides, (found.b_group, 0, 0)
    else:
        layouts = [a.layout, b.layout]
        if n == 1 and m != 1:  # a column is the row of the transposed product: the same chains
            m, n, a, b = n, m, b, a
            uses, layouts = ([_exchanged(x) for x in some] for some in (uses, layouts[::-1]))
        first, second = map(_whole, layouts)
    strides = [_whole(x) if u.mode == "out" else x.strides for x, u in zip(uses, builder.uses)]
    operands = tuple(
        Operand(u.dtype, u.mode, tuple(map(stride_class, s))) for u, s in zip(builder.uses, strides)
    )
    numbers = tuple(kind for kind, _ in builder.numbers)
    spec = MatmulSpec(dtype, operands, numbers, tuple(stores), m == 1 and not window, window)
    pointers = [Memory(r.value, array_of(fusion, r), r.layout.offset) for r in (a, b)]
    pointers += [Memory(u.value, u.array, u.layout.offset) for u in builder.uses]
    own = [first, second, *strides]
    args = (batch, m, n, k, *(s for dims in own for s in dims), *(v for _, v in builder.numbers), *look)
    deep = WORTH // UNIT_COST  # k that make a thread's work of one unit
    grain = quotient(deep, k) + 1 if not isinstance(k, int) else max(deep // max(k, 1), 1)
    return Lowered(MatmulKernel(spec), tuple(pointers), args, spec.units(batch, m, n), grain, spec.scratch)


def _whole(layout: Layout) -> Shape:
    """Strides with 1 along a last dim of size 1: any is right there, and unit stride is a fast path."""
    *outer, last = layout.strides
    return (*outer, 1 if layout.sizes[-1] == 1 else last)


def _exchanged(layout: Layout) -> Layout:
    """A layout with its last two dims exchanged."""
    *outer, rows, columns = zip(layout.sizes, layout.strides)
    sizes, strides = zip(*outer, columns, rows)
    return layout._replace(sizes=sizes, strides=strides)
