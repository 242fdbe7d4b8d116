"""Packing what tiles of AMX read, by the routines of matmul_amx.py and `turn` of words.

    pack_words     B, [depth][width], in panels of 32 columns
    pack_lines     up to 32 rows of A, [rows][depth], a step of all rows after the other

Whatever the strides are: where k lie side by side in B, a word is one element that is turned; where they do
not in A, a step of it is packed as words, with rows as columns, and those are turned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.matmul_amx import LINE, PANEL, ROW, STEP_BYTES, STEP_WORDS, Factor
from kiln.codegen.matmul_text import Routine

TURN = 4  # words that can be turned at least
Pair = tuple[str, str]


def pack_words(
    code: Routine, factor: Factor, src: str, strides: Pair, dst: str, shape: Pair, apart: str
) -> None:
    """B at src, by its strides along k and columns, to dst, whose panels are `apart` bytes apart.

    shape: depth, width
    """
    (ks, cs), (depth, width) = strides, shape
    rows = code.mul(code.ceil_div(depth, factor.step), str(STEP_WORDS))
    beside = code.compare("eq", ks, str(factor.bytes))
    whole = code.op(f"sdiv i64 {depth}, {factor.together}")
    whole = code.choose(code.both(beside, code.compare("sge", whole, str(TURN))), whole, "0")
    with code.when(code.compare("ne", whole, "0")), code.times(width, PANEL) as left:
        columns = code.minimum(code.sub(width, left), str(PANEL))
        panel = code.at(dst, code.mul(code.op(f"sdiv i64 {left}, {PANEL}"), apart))
        code.run(
            "turn", f"ptr {code.at(src, code.mul(left, cs))}", cs, f"ptr {panel}", str(ROW), whole, columns
        )
    done = code.mul(whole, str(factor.together))
    src, dst = code.at(src, code.mul(done, ks)), code.at(dst, code.mul(whole, str(ROW)))
    left, empty = code.sub(depth, done), code.sub(rows, whole)
    code.run("words", f"ptr {src}", ks, cs, f"ptr {dst}", left, width, empty, apart)


def pack_lines(
    code: Routine, factor: Factor, src: str, strides: Pair, dst: str, shape: Pair, stage: str
) -> None:
    """Rows of A at src, by its strides along rows and k, to dst; `stage` has room for a step.

    shape: rows, depth
    """
    (rs, ks), (rows, depth) = strides, shape
    with code.either(code.compare("eq", ks, str(factor.bytes))) as apart:
        pack_beside(code, factor, src, rs, dst, shape)
        next(apart)
        with steps_of(code, factor, depth) as (at, part, into):
            here = code.at(src, code.mul(at, ks))
            pack_step(code, factor, here, strides, code.at(dst, into), (rows, part), stage)


@contextmanager
def steps_of(code: Routine, factor: Factor, depth: str) -> Iterator[tuple[str, str, str]]:
    """The steps of so many k: where each begins, how many k it has, and how far into packed A it goes."""
    with code.times(depth, factor.step) as at:
        part = code.minimum(code.sub(depth, at), str(factor.step))
        yield at, part, code.mul(at, str(STEP_BYTES // factor.step))


def pack_beside(code: Routine, factor: Factor, src: str, rs: str, dst: str, shape: Pair) -> None:
    """Rows of A, `rs` bytes apart, whose k lie side by side."""
    rows, depth = shape
    with code.when(code.compare("ne", depth, "0")):
        code.run("lines", f"ptr {src}", rs, f"ptr {dst}", rows, code.mul(depth, str(factor.bytes)))


def pack_step(
    code: Routine, factor: Factor, src: str, strides: Pair, dst: str, shape: Pair, stage: str
) -> None:
    """A step of rows of A whose k do not lie side by side; a whole panel of rows is written."""
    (rs, ks), (rows, depth) = strides, shape
    code.run("words", f"ptr {src}", ks, rs, f"ptr {stage}", depth, rows, str(STEP_WORDS), "0")
    code.run("turn", f"ptr {stage}", str(ROW), f"ptr {dst}", str(LINE), str(PANEL), str(STEP_WORDS))
