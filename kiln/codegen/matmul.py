"""Matrix products: what a matmul kernel is, and its LLVM text.

    out[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n], operands[b, m, n] ...)

where b is BATCH dims, each with strides of its own: heads are read, and written, where they lie.

Elements of 8 and 16 bits have sums of 32, which is what an epilogue reads.

The order of arithmetic is fixed: each sum is one ascending chain of fused multiply-adds over k from zero,
restarted every 512 k; the segments' sums are added in ascending order; then the epilogue. Integers wrap.
k = 0 gives zeros. So bits depend on the factors' dtype and on k alone: not on m, n, tiles, layouts, threads,
batching, or the epilogue. On a machine with AMX products of bfloat16 have another order, and 8-bit
integers run there too: matmul_amx.py.

One kernel serves every layout: strides are arguments, and what to pack is decided when it runs. Products of
one row (or one column, which is the row of the transposed product) have a kernel of their own: matmul_row.py.
Not if their matrix is computed, which that kernel reads where it lies.

    kernel(begin .. end):             a unit: one batch index, UNIT_ROWS rows, UNIT_BYTES of columns
        units side by side are runs, each segment of k of a run:
            B as it lies, or packed
            tiles:       old sums + this segment's -> scratch memory, or an output
            finish       (not what a plain product's output took); chains along the rows, if reduced

A factor may be computed where it is copied or packed, from operands of its own: nobody writes it out.

    A[b, m, k] = first(operands[b, m, k] ...)     copied: rows of A, for every block of columns
    B[b, k, n] = second(operands[b, k, n] ...)    packed: panels of B, for every group of rows

A product of one row with such a factor has the kernel of those of many; those over windows have none.

Kernel arguments: `ptr` = A, B, the operands, parts of a launch that is cut along k (matmul_split.py), the
thread's scratch memory; `arg` = the batch's sizes, m, n, k; how many rows of A are a stretch that is even,
and the step from one to the next (m and anything, if all do); the strides, in elements, of A (*batch, m, k),
of B (*batch, k, n), of every operand (*batch, m, n), or along its factor's dims; numbers; the cut. Any stride
may be 0 or negative. Outputs must not overlap A or B, or what they are computed from; an output may be one of
the other operands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from kiln.codegen import matmul_amx as amx
from kiln.codegen.compile import Part
from kiln.codegen.matmul_amx_drive import computed_amx, drive_amx
from kiln.codegen.matmul_drive import computed, drive
from kiln.codegen.matmul_finish import Arguments, compute, finish
from kiln.codegen.matmul_pack import copy, turn, zeros
from kiln.codegen.matmul_row import beside, drive_row, gathered, row_columns, turned
from kiln.codegen.matmul_split import part_words
from kiln.codegen.matmul_text import Routine, module, own_parts
from kiln.codegen.matmul_tile import SEGMENT, element_of, identity, tile, tile_masked, tile_of_places
from kiln.codegen.matmul_units import UNIT_ROWS, Output, unit_columns
from kiln.codegen.matmul_vectors import SCRATCH_BYTES, masked_panels
from kiln.codegen.matmul_window import nowhere, places, window, words_of_window
from kiln.codegen.nest import TEXTS, TURN, Nest, Operand
from kiln.codegen.target import Target, legal
from kiln.codegen.verify import refuse, verify_nest
from kiln.scalars.scalar import REDUCE, Scalar, convert, program_text, topological

POSITIONS = ("argmax", "argmin")  # reductions whose accumulators have places beside them
TILED = tuple(amx.FACTORS)  # dtypes of products that run on AMX where there is one


class Prologue(NamedTuple):
    """How the elements of a factor are computed: `load k` is operands[k - 1], over (*batch, rows, columns)
    of the factor; `turned`: over (*batch, columns, rows), as neighbours lie along the factor's rows.
    """

    value: Scalar
    turned: bool


class MatmulSpec(NamedTuple):
    """The pattern of a matmul kernel. In `stores`, `load 0` is the product, `load k` is operands[k - 1].

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
    window: bool = False  # B's rows and columns are several dims each: matmul_window.py
    first: Prologue | None = None  # A is computed
    second: Prologue | None = None  # B is computed
    held: int | None = None  # an output (its number as in stores) that may hold sums before they are finished

    @property
    def form(self) -> str:
        """Which of the kernels for these factors it is."""
        return "row " if self.row else "window " if self.window else ""

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return _text(self)

    @property
    def prologues(self) -> list[tuple[str, Prologue]]:
        """The factors that are computed, each with the name of its routine."""
        named = (("first", self.first), ("second", self.second))
        return [(name, prologue) for name, prologue in named if prologue is not None]

    @property
    def scratch(self) -> int:
        """The 64-bit words of memory that each thread needs to itself."""
        return 0 if self.row and self.dtype != "bfloat16" else SCRATCH_BYTES // 8

    def units(self, batch: Any, m: Any, n: Any) -> Any:
        """The units of work of a launch, on ints or symbolic sizes: the kernel's range is 0 .. units."""
        if self.row:
            columns = row_columns(element_of(self.dtype))
            return batch * ((n + columns - 1) // columns)
        columns = unit_columns(element_of(self.dtype), self.operands)
        return batch * ((m + UNIT_ROWS - 1) // UNIT_ROWS) * ((n + columns - 1) // columns)

    def segments(self, k: Any) -> Any:
        """How many segments of k there are, on ints or symbolic sizes; tiles of AMX sum in one chain."""
        return 1 if self.dtype in TILED else (k + SEGMENT - 1) // SEGMENT

    def part(self, batch: Any, m: Any, n: Any) -> Any:
        """The 64-bit words of a segment's sums."""
        return part_words(batch * m, n, element_of(self.dtype))


@lru_cache(maxsize=TEXTS)
def _text(spec: MatmulSpec) -> str:
    lines = [f"{spec.form}matmul {spec.dtype} numbers {' '.join(spec.numbers)}".rstrip()]
    lines += [f"operand {k + 1} {o.mode} {o.dtype} {''.join(o.strides)}" for k, o in enumerate(spec.operands)]
    lines.append(program_text([value for _, value in spec.stores]))
    lines.append("stores " + " ".join(str(k) for k, _ in spec.stores))
    if spec.held is not None:
        lines.append(f"held {spec.held}")
    for name, prologue in spec.prologues:
        lines += [f"{name} turned" if prologue.turned else name, program_text([prologue.value])]
    return "\n".join(lines)


def product(dtype: str) -> MatmulSpec:
    """The pattern of a plain product with a contiguous output."""
    element = element_of(dtype)
    out = Operand(dtype, "out", ("s", "1"))
    total = Scalar("load", (), element.summed, 0)
    return MatmulSpec(dtype, (out,), (), ((1, convert(total, element.compute)),))


def tiled(spec: MatmulSpec, target: Target) -> bool:
    """Whether a product runs on AMX: every product of bfloat16 or none, as the bits differ. Those of integers
    do not, and a row alone has its own kernel: reading its matrix takes all the time.
    """
    return target.tiles and spec.dtype in TILED and not (spec.row and spec.dtype != "bfloat16")


def matmul_parts(spec: MatmulSpec, target: Target) -> list[Part]:
    """The parts of the kernel: its own, the driver and what is fused, and those it shares.

    Raises ValueError for a pattern that breaks the grammar, and AssertionError for bool factors.
    """
    _verify(spec, target)
    element = element_of(spec.dtype)
    arguments = Arguments(spec.operands, spec.numbers)
    constants = [nowhere()] if spec.window else []
    turned = {name: prologue.turned for name, prologue in spec.prologues}
    on_tiles = tiled(spec, target)
    if on_tiles:
        driver = drive_amx(target, spec.dtype, arguments, spec.window, turned)
    elif spec.row:
        driver = drive_row(target, element, arguments)
    else:
        plain = _plain_output(spec)
        output = Output(spec.held) if plain is None else Output(plain, plain=True)
        driver = drive(target, element, arguments, output, spec.window, turned)
        constants.append(identity(target, element))
    routines = [finish(target, element.total, arguments, spec.stores), driver]
    for name, prologue in spec.prologues:
        block = computed_amx(spec.dtype) if on_tiles else computed(target, element, name, prologue.turned)
        routines.append(compute(target, name, block, arguments, prologue.value))
    shared = tiles_parts(spec, target) if on_tiles else chains(spec, target)
    return own_parts(target, routines, constants) + shared


def chains(spec: MatmulSpec, target: Target) -> list[Part]:
    """What products by chains of fused multiply-adds share: all but the driver and what is fused.

    When a tile reads factors, they are as wide as sums.
    """
    element = element_of(spec.dtype)
    if spec.row:
        return [_shared(target, element, beside, turned, gathered)]
    look = [_shared(target, element, places, window)] if spec.window else []
    packing, tiles = _shared(target, element, zeros, copy, turn), element_of(element.total)
    exchanged = [_shared(target, tiles, tile_of_places)] if spec.window and not element.widened else []
    masked = masked_panels(target, element, spec.window, spec.second is not None)
    ragged = [_shared(target, tiles, tile_masked)] if masked else []
    return [*look, packing, _shared(target, tiles, tile), *ragged, *exchanged]


def tiles_parts(spec: MatmulSpec, target: Target) -> list[Part]:
    """The same of products on AMX, of one row or many."""
    factor = amx.FACTORS[spec.dtype]
    look = [_shared(target, factor.raw, places), _shared(target, factor, words_of_window, amx.trim)]
    look = look if spec.window else []
    packing = [_shared(target, factor, amx.words, amx.lines), _shared(target, amx.WORDS, turn)]
    return [*look, *packing, _shared(target, factor, amx.panels, amx.tiles)]


def _shared(target: Target, element: Any, *makers: Callable[[Target, Any], Routine]) -> Part:
    """Routines that all kernels of the same elements have."""
    names = tuple(make.__name__ for make in makers)

    def text() -> str:
        return module(target, [make(target, element) for make in makers], [amx.config()])

    return Part(names, text, shared=f"{' '.join(names)} of {element}")


def _verify(spec: MatmulSpec, target: Target) -> None:
    """Check a pattern as the nest its epilogue is, with the product as operand 0."""
    total = Operand(element_of(spec.dtype).total, "in", ("s", "s"))
    operands = tuple(o._replace(mode="out") if o.folds else o for o in spec.operands)
    verify_nest(Nest(("p", "p"), (total, *operands), spec.numbers, spec.stores), target)
    block = Operand(spec.dtype, "out", ("s", "1"))
    for _, prologue in spec.prologues:
        stores = ((0, prologue.value),)
        verify_nest(Nest(("p", "p"), (block, *operands), spec.numbers, stores), target)
    if spec.prologues and (spec.row or spec.window):
        raise refuse(f"a factor of a {spec.form}product is an array")
    if spec.held is not None and not holds(spec.dtype, spec.operands, spec.held):
        raise refuse(f"operand {spec.held} cannot hold sums")
    found = [x.value for _, x in spec.prologues]
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


def holds(dtype: str, operands: tuple[Operand, ...], k: int) -> bool:
    """Whether the rows of operand k (from 1) can hold the sums of a product of such factors."""
    out = operands[k - 1]
    fits = not element_of(dtype).widened and not any(o.folds for o in operands)
    return fits and (out.mode, out.dtype, out.strides[1]) == ("out", dtype, "1")


def _plain_output(spec: MatmulSpec) -> int | None:
    """The operand (from 1) that takes finished sums as they are, in unit-stride columns, if one does."""
    (k, value), *more = spec.stores
    product = value.op == "load" and value.data == 0
    return k if product and not more and holds(spec.dtype, spec.operands, k) else None
