"""Matrix products: what a GEMM kernel is.

    out[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n], operands[b, m, n] ...)

where b is BATCH dims, each with strides of its own: heads are read, and written, where they lie.

Elements of 8 and 16 bits have sums of 32, which is what an epilogue reads.

The order of arithmetic is fixed: each sum is one ascending chain of fused multiply-adds over k from zero,
restarted every SEGMENT of k; the segments' sums are added in ascending order; then the epilogue. Integers
wrap. k = 0 gives zeros. So bits depend on the factors' dtype and on k alone: not on m, n, tiles, layouts,
threads, batching, or the epilogue. On a machine with AMX products of bfloat16 have another order, and 8-bit
integers run there too: amx_tile.py.

One kernel serves every layout: strides are arguments, and what to pack is decided when it runs. Products of
one row (or one column, which is the row of the transposed product) have a kernel of their own: gemv.py.
Not if their matrix is computed, which that kernel reads in place.

A factor may be computed where it is copied or packed, from operands of its own: nobody writes it out.

    A[b, m, k] = a(operands[b, m, k] ...)     copied: rows of A, for every block of columns
    B[b, k, n] = b(operands[b, k, n] ...)     packed: panels of B, for every group of rows

A product of one row with such a factor has the kernel of those of many; those over windows have none.
Outputs must not overlap A or B, or what they are computed from; an output may be one of the other operands.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.grid import (
    PART_PITCH,
    SCRATCH_BYTES,
    TILED,
    UNIT_ROWS,
    row_columns,
    unit_columns,
)
from kiln.codegen.nests.nest import TEXTS, TURN, Nest, Operand
from kiln.codegen.target import Target, legal
from kiln.codegen.verify import refuse, verify_nest
from kiln.scalars.scalar import REDUCE, Scalar, convert, program_text, topological
from kiln.table.order import SEGMENT

POSITIONS = ("argmax", "argmin")  # reductions whose accumulators have places beside them


class Prologue(NamedTuple):
    """How the elements of a factor are computed: `load k` is operands[k - 1], over (*batch, rows, columns)
    of the factor; `transposed`: over (*batch, columns, rows), as neighbours lie along the factor's rows.
    """

    value: Scalar
    transposed: bool


class GemmSpec(NamedTuple):
    """The pattern of a GEMM kernel. In `stores`, `load 0` is the product, `load k` is operands[k - 1].

    `operands` have stride classes for (m, n), "1" unit, "0" not read along it, "s" any; along the batch any.
    They are "in" or "out" like a nest's. Each store is (k, scalar): the scalar, rounded to operand k's dtype.

    An operand whose mode is a reduction takes the scalar's chains along the rows, in the order of 16 lanes:
    16 accumulators for each 128 columns, of the last ones as many as there are columns. A nest of `block`
    ROW_ACCUMULATORS completes the order. Of argmax and argmin the next store is TURN: where in its chain each
    winner is.
    """

    dtype: str  # of both factors: a float or integer dtype's name
    operands: tuple[Operand, ...]
    numbers: tuple[str, ...]  # "i64" or "f64" each
    stores: tuple[tuple[int, Scalar], ...]
    row: bool = False  # m is 1: one row of A
    window: bool = False  # B's rows and columns are several dims each: window.py
    a: Prologue | None = None  # A is computed
    b: Prologue | None = None  # B is computed
    accumulator: int | None = None  # an output (its number as in stores) that may take sums not yet finished

    @property
    def form(self) -> str:
        """Which of the kernels for these factors it is."""
        return "row " if self.row else "window " if self.window else ""

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return _text(self)

    @property
    def folds(self) -> bool:
        """Whether an operand takes a reduction of its rows."""
        return any(o.folds for o in self.operands)

    @property
    def prologues(self) -> dict[str, Prologue]:
        """The factors that are computed, by name."""
        return {name: made for name, made in (("a", self.a), ("b", self.b)) if made is not None}

    # -- a launch, on ints or symbolic sizes --------------------------------------------------------

    @property
    def scratch(self) -> int:
        """The 64-bit words of memory that each thread needs to itself."""
        return 0 if self.row and self.dtype != "bfloat16" else SCRATCH_BYTES // 8

    def units(self, batch: Any, m: Any, n: Any) -> Any:
        """The units of work: the kernel's range is 0 .. units."""
        element = element_of(self.dtype)
        if self.row:
            columns = row_columns(element)
            return batch * ((n + columns - 1) // columns)
        columns = unit_columns(element, self.folds)
        return batch * ((m + UNIT_ROWS - 1) // UNIT_ROWS) * ((n + columns - 1) // columns)

    def segments(self, k: Any) -> Any:
        """How many segments of k it may be cut into; tiles of AMX sum in one chain."""
        return 1 if self.dtype in TILED else (k + SEGMENT - 1) // SEGMENT

    def part(self, batch: Any, m: Any, n: Any) -> Any:
        """The 64-bit words of a segment's sums: a row is a multiple of PART_PITCH bytes."""
        pitches = (n * element_of(self.dtype).bytes + PART_PITCH - 1) // PART_PITCH
        return batch * m * pitches * (PART_PITCH // 8)

    # -- which kernel it is -------------------------------------------------------------------------

    def tiled(self, target: Target) -> bool:
        """Whether it runs on AMX: every product of bfloat16 or none, as the bits differ. Those of integers do
        not, and a row alone has its own kernel: reading its matrix takes all the time.
        """
        return target.tiles and self.dtype in TILED and not (self.row and self.dtype != "bfloat16")

    @property
    def plain_output(self) -> int | None:
        """The operand (from 1) that takes finished sums as they are, in unit-stride columns, if one does."""
        (k, value), *more = self.stores
        product = value.op == "load" and value.data == 0
        return k if product and not more and accumulates(self.dtype, self.operands, k) else None


@lru_cache(maxsize=TEXTS)
def _text(spec: GemmSpec) -> str:
    lines = [f"{spec.form}matmul {spec.dtype} numbers {' '.join(spec.numbers)}".rstrip()]
    lines += [f"operand {k + 1} {o.mode} {o.dtype} {''.join(o.strides)}" for k, o in enumerate(spec.operands)]
    lines.append(program_text([value for _, value in spec.stores]))
    lines.append("stores " + " ".join(str(k) for k, _ in spec.stores))
    if spec.accumulator is not None:
        lines.append(f"sums in {spec.accumulator}")
    for name, prologue in spec.prologues.items():
        lines += [f"{name} transposed" if prologue.transposed else name, program_text([prologue.value])]
    return "\n".join(lines)


def product(dtype: str) -> GemmSpec:
    """The pattern of a plain product with a contiguous output."""
    element = element_of(dtype)
    out = Operand(dtype, "out", ("s", "1"))
    total = Scalar("load", (), element.summed, 0)
    return GemmSpec(dtype, (out,), (), ((1, convert(total, element.compute)),))


def accumulates(dtype: str, operands: tuple[Operand, ...], k: int) -> bool:
    """Whether the rows of operand k (from 1) can take the sums of a product of such factors."""
    out = operands[k - 1]
    fits = not element_of(dtype).widened and not any(o.folds for o in operands)
    return fits and (out.mode, out.dtype, out.strides[1]) == ("out", dtype, "1")


def verify(spec: GemmSpec, target: Target) -> None:
    """Check a pattern as the nest its epilogue is, with the product as operand 0."""
    total = Operand(element_of(spec.dtype).total, "in", ("s", "s"))
    operands = tuple(o._replace(mode="out") if o.folds else o for o in spec.operands)
    verify_nest(Nest(("p", "p"), (total, *operands), spec.numbers, spec.stores), target)
    block = Operand(spec.dtype, "out", ("s", "1"))
    for prologue in spec.prologues.values():
        stores = ((0, prologue.value),)
        verify_nest(Nest(("p", "p"), (block, *operands), spec.numbers, stores), target)
    if spec.prologues and (spec.row or spec.window):
        raise refuse(f"a factor of a {spec.form}product is an array")
    if spec.accumulator is not None and not accumulates(spec.dtype, spec.operands, spec.accumulator):
        raise refuse(f"operand {spec.accumulator} cannot take sums")
    found = [x.value for x in spec.prologues.values()]
    for k, value in spec.stores:
        out = spec.operands[k - 1]
        if out.folds and (spec.row or spec.window or out.strides[1] != "1"):
            raise refuse(f"reductions along the rows of {spec.form or out.strides} are kernels of their own")
        if out.mode not in POSITIONS or value is not TURN:
            found.append(value)
            if out.folds and not legal(out.mode, value.type, target):
                raise refuse(f"{out.mode} of {value.type} along the rows")
    for node in topological(found):
        if node.op in REDUCE or node.op == "index" or (node.op == "load" and node.args):
            raise refuse(f"what is fused with a matrix product may not hold {node.op}")
