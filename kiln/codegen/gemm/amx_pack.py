"""Packing what tiles of AMX read, by the routines of amx_tile.py and `transpose` of words.

    pack_panels    B, [depth][width], in panels of 32 columns
    pack_a         up to 32 rows of A, [rows][depth], a step of all rows after the other

Whatever the strides are: where k lie side by side in B, a word is one element that is transposed; where they
do not in A, a step of it is packed as words, with rows as columns, and those are transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.gemm.amx_tile import LINE, PANEL, ROW, STEP_BYTES, STEP_WORDS, Factor
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.routine import Routine

TRANSPOSED = 4  # words that can be transposed, at least
Pair = tuple[Index, Index]


def pack_panels(
    code: Routine, factor: Factor, src: Pointer, strides: Pair, dst: Pointer, shape: Pair, pitch: Index
) -> None:
    """B at src, by its strides along k and columns, to dst, whose panels are `pitch` bytes apart.

    shape: depth, width
    """
    (ks, cs), (depth, width) = strides, shape
    rows = depth.ceil_div(factor.step) * STEP_WORDS
    beside = ks.equals(factor.bytes)
    whole = depth // factor.per_word
    whole = (beside & (whole >= TRANSPOSED)).choose(whole, 0)
    with code.when(whole.differs(0)), code.times(width, PANEL) as left:
        columns = (width - left).min(PANEL)
        panel = dst[left // PANEL * pitch]
        code.run("transpose", src[left * cs], cs, panel, ROW, whole, columns)
    done = whole * factor.per_word
    src, dst = src[done * ks], dst[whole * ROW]
    left, empty = depth - done, rows - whole
    code.run("pack_vnni", src, ks, cs, dst, left, width, empty, pitch)


def pack_a(
    code: Routine, factor: Factor, src: Pointer, strides: Pair, dst: Pointer, shape: Pair, stage: Pointer
) -> None:
    """Rows of A at src, by its strides along rows and k, to dst; `stage` has room for a step.

    shape: rows, depth
    """
    (rs, ks), (rows, depth) = strides, shape
    with code.either(ks.equals(factor.bytes)) as strided:
        pack_contiguous(code, factor, src, rs, dst, shape)
        next(strided)
        with steps_of(code, factor, depth) as (at, part, into):
            here = src[at * ks]
            pack_step(code, factor, here, strides, dst[into], (rows, part), stage)


@contextmanager
def steps_of(code: Routine, factor: Factor, depth: Index) -> Iterator[tuple[Index, Index, Index]]:
    """The steps that `depth` k are cut into: each one's start, number of k, and offset in packed A."""
    with code.times(depth, factor.step) as at:
        part = (depth - at).min(factor.step)
        yield at, part, at * (STEP_BYTES // factor.step)


def pack_contiguous(
    code: Routine, factor: Factor, src: Pointer, rs: Index, dst: Pointer, shape: Pair
) -> None:
    """Rows of A, `rs` bytes apart, whose k lie side by side."""
    rows, depth = shape
    with code.when(depth.differs(0)):
        code.run("pack_lines", src, rs, dst, rows, depth * factor.bytes)


def pack_step(
    code: Routine, factor: Factor, src: Pointer, strides: Pair, dst: Pointer, shape: Pair, stage: Pointer
) -> None:
    """A step of rows of A whose k do not lie side by side; a whole panel of rows is written."""
    (rs, ks), (rows, depth) = strides, shape
    code.run("pack_vnni", src, ks, rs, stage, depth, rows, STEP_WORDS, 0)
    code.run("transpose", stage, ROW, dst, LINE, PANEL, STEP_WORDS)
