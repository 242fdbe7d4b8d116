"""Packing what tiles of AMX read, by the routines of matmul_amx.py and `turn` of words.

    pack_words     B, [depth][width], in panels of 32 columns
    pack_lines     up to 32 rows of A, [rows][depth], a step of all rows after the other

Whatever the strides are: where k lie side by side in B, a word is one element that is turned; where they do
not in A, a step of it is packed as words, with rows as columns, and those are turned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.index import Index, Pointer
from kiln.codegen.matmul_amx import LINE, PANEL, ROW, STEP_BYTES, STEP_WORDS, Factor
from kiln.codegen.matmul_text import Routine

TURN = 4  # words that can be turned at least
Pair = tuple[Index, Index]


def pack_words(
    code: Routine, factor: Factor, src: Pointer, strides: Pair, dst: Pointer, shape: Pair, apart: Index
) -> None:
    """B at src, by its strides along k and columns, to dst, whose panels are `apart` bytes apart.

    shape: depth, width
    """
    (ks, cs), (depth, width) = strides, shape
    rows = depth.ceil_div(factor.step) * STEP_WORDS
    beside = ks.equals(factor.bytes)
    whole = depth // factor.together
    whole = (beside & (whole >= TURN)).choose(whole, 0)
    with code.when(whole.differs(0)), code.times(width, PANEL) as left:
        columns = (width - left).min(PANEL)
        panel = dst[left // PANEL * apart]
        code.run("turn", src[left * cs], cs, panel, ROW, whole, columns)
    done = whole * factor.together
    src, dst = src[done * ks], dst[whole * ROW]
    left, empty = depth - done, rows - whole
    code.run("words", src, ks, cs, dst, left, width, empty, apart)


def pack_lines(
    code: Routine, factor: Factor, src: Pointer, strides: Pair, dst: Pointer, shape: Pair, stage: Pointer
) -> None:
    """Rows of A at src, by its strides along rows and k, to dst; `stage` has room for a step.

    shape: rows, depth
    """
    (rs, ks), (rows, depth) = strides, shape
    with code.either(ks.equals(factor.bytes)) as apart:
        pack_beside(code, factor, src, rs, dst, shape)
        next(apart)
        with steps_of(code, factor, depth) as (at, part, into):
            here = src[at * ks]
            pack_step(code, factor, here, strides, dst[into], (rows, part), stage)


@contextmanager
def steps_of(code: Routine, factor: Factor, depth: Index) -> Iterator[tuple[Index, Index, Index]]:
    """The steps of so many k: where each begins, how many k it has, and how far into packed A it goes."""
    with code.times(depth, factor.step) as at:
        part = (depth - at).min(factor.step)
        yield at, part, at * (STEP_BYTES // factor.step)


def pack_beside(code: Routine, factor: Factor, src: Pointer, rs: Index, dst: Pointer, shape: Pair) -> None:
    """Rows of A, `rs` bytes apart, whose k lie side by side."""
    rows, depth = shape
    with code.when(depth.differs(0)):
        code.run("lines", src, rs, dst, rows, depth * factor.bytes)


def pack_step(
    code: Routine, factor: Factor, src: Pointer, strides: Pair, dst: Pointer, shape: Pair, stage: Pointer
) -> None:
    """A step of rows of A whose k do not lie side by side; a whole panel of rows is written."""
    (rs, ks), (rows, depth) = strides, shape
    code.run("words", src, ks, rs, stage, depth, rows, STEP_WORDS, 0)
    code.run("turn", stage, ROW, dst, LINE, PANEL, STEP_WORDS)
