"""Products on AMX: the same units, runs and loops as every product's, other panels and tiles (amx_tile.py).

    B's columns as words, in panels of 32
        computed:              a step of all columns at a time, then packed
        computed, transposed:  some k of a panel at a time, then packed
    each 32 rows, some k at a time:  A, packed, or computed into its place;  tiles of all panels -> sums

Products of one row of bfloat16 are units, runs and panels like all others: their bits are those of a row
among many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.compile import Part
from kiln.codegen.gemm.amx_pack import pack_a, pack_contiguous, pack_panels, pack_step, steps_of
from kiln.codegen.gemm.amx_tile import (
    FACTORS,
    LINE,
    PANEL,
    ROW,
    STEP_BYTES,
    STEP_WORDS,
    WORD,
    WORDS,
    config,
    pack_lines,
    pack_vnni,
    panels,
    tiles,
    trim,
)
from kiln.codegen.gemm.driver import Blocks
from kiln.codegen.gemm.driver_spec import DriverSpec
from kiln.codegen.gemm.epilogue import Block
from kiln.codegen.gemm.grid import SCRATCH_BYTES, UNIT_BYTES, UNIT_ROWS
from kiln.codegen.gemm.pack import transpose
from kiln.codegen.gemm.problem import Problem, Run
from kiln.codegen.gemm.window import offsets, window_vnni
from kiln.codegen.ir.index import Index, Integer, Pointer
from kiln.codegen.ir.routine import shared_part
from kiln.codegen.target import Target

UNIT_COLUMNS = UNIT_BYTES // WORD


def shared_parts(spec: DriverSpec, target: Target) -> list[Part]:
    """What products on AMX share, of one row or many: packing and tiles."""
    factor = FACTORS[spec.dtype]
    parts = []
    if spec.window:
        parts += [shared_part(target, factor.raw, offsets), shared_part(target, factor, window_vnni, trim)]
    parts += [shared_part(target, factor, pack_vnni, pack_lines), shared_part(target, WORDS, transpose)]
    return [*parts, shared_part(target, factor, panels, tiles, constants=[config()])]


class Amx(Blocks):
    """Blocks of products on tiles of AMX."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.factor, blocking = FACTORS[problem.spec.dtype], problem.code.target.amx
        assert blocking is not None
        self.blocking, self.kc = blocking, blocking.kc_bytes // self.factor.bytes
        self.a_depth = blocking.a_bytes // self.factor.bytes
        # bytes between computed columns of B, so that they share no cache sets
        self.column_pitch = blocking.a_bytes + LINE

    def parts(self) -> list[Part]:
        return shared_parts(self.spec, self.code.target)

    def block_of(self, factor: str) -> Block:
        """Its elements, as wide as a line of them."""
        return Block(self.spec.dtype, self.factor.step)

    # -- the loops ----------------------------------------------------------------------------------

    def limits(self) -> tuple[Integer, Integer]:
        """Sums that wait for another block of k are kept; packed panels should stay in the second cache."""
        k, blocking = self.problem.size["k"], self.blocking
        self.once = k <= self.kc
        rows = self.once.choose(blocking.rows // UNIT_ROWS, blocking.rows_with_sums // UNIT_ROWS)
        steps = k.ceil_div(self.factor.step).min(blocking.kc_bytes // LINE)
        fitting = blocking.packed_bytes // (UNIT_COLUMNS * LINE) // steps
        units = fitting.min(blocking.nc)
        self.pitch = units * UNIT_BYTES + LINE  # so that rows share no cache sets
        return rows, units

    def begin(self, run: Run) -> None:
        """Packed panels, packed A, a step of it, what is computed and then packed, sums, tables."""
        blocking = self.blocking
        columns = blocking.nc * UNIT_COLUMNS  # of a run, at most
        sizes = [
            blocking.packed_bytes + columns // PANEL * ROW,
            PANEL * blocking.a_bytes + STEP_BYTES,  # room for the rows of a panel, from any on
            STEP_BYTES,
            columns * LINE,
            blocking.rows_with_sums * (blocking.packed_bytes // blocking.kc_bytes * WORD + LINE),
        ]
        assert PANEL * self.column_pitch <= sizes[3]
        self.table_room = columns + LINE  # of columns: a vector of the last panel's may read past them
        assert sum(sizes) + 8 * (blocking.kc_bytes + self.table_room) <= SCRATCH_BYTES
        self.packed_b, self.packed_a, self.stage, self.computed, self.sums, self.k_offsets = (
            self.problem.scratch[sum(sizes[:n])] for n in range(6)
        )
        self.n_offsets = self.k_offsets[8 * self.kc]

    def locate_columns(self, run: Run) -> None:
        if self.spec.window:
            look = self.problem.look_n
            self.code.run("offsets", look, run.column, run.columns, self.table_room, self.n_offsets)

    def depths(self) -> tuple[Integer, Index]:
        return 0, self.problem.size["k"]

    def pack_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels, packed or computed."""
        self.panel_pitch = depth.ceil_div(self.factor.step) * STEP_BYTES + ROW
        if self.spec.window:
            self._pack_window(run, from_k, depth)
        elif "b" not in self.spec.computed:
            self._pack_matrix(run, from_k, depth)
        else:
            compute = self._transpose_b if self.spec.computed["b"] else self._compute_b
            with self.code.either(self.problem.empty) as filled:
                self._pack_matrix(run, from_k, depth)
                next(filled)
                compute(run, from_k, depth)

    @contextmanager
    def rows(self, run: Run) -> Iterator[tuple[Index, Run]]:
        with self.code.times(run.rows, PANEL) as row:
            rows = (run.rows - row).min(PANEL)
            yield row, run._replace(row=run.row + row, rows=rows)

    def multiply(self, part: Run, row: Index, from_k: Index, depth: Index) -> None:
        code = self.code
        sums = self.sums[self.once.choose(0, row) * self.pitch]
        with code.times(depth, self.a_depth) as at:
            piece, k = (depth - at).min(self.a_depth), from_k + at
            self._factor_a(part, k, piece)
            code.run(
                "tiles", self.packed_a, self._deep(at), self.panel_pitch,
                piece.ceil_div(self.factor.step), sums, self.pitch,
                k.equals(0), part.rows, part.columns,
            )  # fmt: skip
        with code.when((from_k + depth).equals(self.problem.size["k"])):
            self.problem.finish(part, sums, self.pitch)

    # -- B ------------------------------------------------------------------------------------------

    def _pack_matrix(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels of a matrix in memory."""
        b = self.problem.b
        src = b.at(run.batch, k=from_k, column=run.column)
        strides, shape = (b.stride["k"], b.stride["column"]), (depth, run.columns)
        pack_panels(self.code, self.factor, src, strides, self.packed_b, shape, self.panel_pitch)

    def _compute_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels computed, a step of all columns at a time."""
        code, factor = self.code, self.factor
        pitch = run.columns * factor.bytes
        with code.times(depth, factor.step) as at:
            part = (depth - at).min(factor.step)
            step = [*run.batch, from_k + at, part, run.column, run.columns]
            self.problem.compute("b", step, self.computed, pitch, LINE)
            strides, shape = (pitch, code.index(factor.bytes)), (part, run.columns)
            pack_panels(code, factor, self.computed, strides, self._deep(at), shape, self.panel_pitch)

    def _transpose_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The same where neighbours lie along k: some k of a panel at a time."""
        code, factor, pitch = self.code, self.factor, self.column_pitch
        with code.times(run.columns, PANEL) as left, code.times(depth, self.a_depth) as at:
            part = (depth - at).min(self.a_depth)
            columns = (run.columns - left).min(PANEL)
            piece = [*run.batch, run.column + left, columns, from_k + at, part]
            self.problem.compute("b", piece, self.computed, pitch, LINE)
            into = self._deep(at)[left // PANEL * self.panel_pitch]
            strides = code.index(factor.bytes), code.index(pitch)
            pack_panels(code, factor, self.computed, strides, into, (part, columns), self.panel_pitch)

    def _deep(self, k: Index) -> Pointer:
        """Where the first panel has a k, the first of a step."""
        return self.packed_b[k * (STEP_BYTES // self.factor.step)]

    def _pack_window(self, run: Run, from_k: Index, depth: Index) -> None:
        """Packs panels of a window in whole steps of k, with zeros where there is no k."""
        code = self.code
        rows = depth.ceil_div(self.factor.step) * STEP_WORDS
        deep = rows * self.factor.per_word
        code.run("offsets", self.problem.look_k, from_k, depth, deep, self.k_offsets)
        src = self.problem.b.at(run.batch)
        ragged = depth < deep
        with code.times(run.columns, PANEL) as left:
            panel = self.packed_b[left // PANEL * self.panel_pitch]
            columns, width = self.n_offsets.element("i64", left), run.columns - left
            code.run("window_vnni", src, self.k_offsets, deep, columns, width.min(PANEL), panel, ROW)
            with code.when(ragged):
                code.run("trim", panel, depth, rows)

    # -- A ------------------------------------------------------------------------------------------

    def _factor_a(self, run: Run, k: Index, depth: Index) -> None:
        """Some k of A, packed or computed."""
        if "a" not in self.spec.computed:
            self._pack_a(run, k, depth)
            return
        compute = self._transpose_a if self.spec.computed["a"] else self._compute_a
        with self.code.either(self.problem.empty) as filled:
            self._pack_a(run, k, depth)
            next(filled)
            compute(run, k, depth)

    def _compute_a(self, run: Run, k: Index, depth: Index) -> None:
        """Some k of A computed where they are read; the last step is zeros before."""
        code = self.code
        last = self.packed_a[(depth.ceil_div(self.factor.step) - 1) * STEP_BYTES]
        code.run("pack_vnni", last, 0, 0, last, 0, PANEL, STEP_WORDS, 0)
        rectangle = [*run.batch, run.row, run.rows, k, depth]
        self.problem.compute("a", rectangle, self.packed_a, LINE, STEP_BYTES)

    def _transpose_a(self, run: Run, k: Index, depth: Index) -> None:
        """The same where neighbours lie along the rows."""
        size, rectangle = self.factor.bytes, [*run.batch, k, depth, run.row, run.rows]
        self.problem.compute("a", rectangle, self.computed, PANEL * size, LINE)
        strides, shape = (self.code.index(size), self.code.index(PANEL * size)), (run.rows, depth)
        pack_a(self.code, self.factor, self.computed, strides, self.packed_a, shape, self.stage)

    def _pack_a(self, run: Run, k: Index, depth: Index) -> None:
        """Some k of A, stretch by stretch: where k do not lie side by side, each writes a panel of rows."""
        code, factor, stride = self.code, self.factor, self.problem.a.stride
        strides = stride["row"], stride["k"]
        with code.either(strides[1].equals(factor.bytes)) as strided:
            with self.problem.stretches(run, k) as (done, src, rows):
                into = self.packed_a[done * LINE]
                pack_contiguous(code, factor, src, strides[0], into, (rows, depth))
            next(strided)
            with steps_of(code, factor, depth) as (at, part, step):
                with self.problem.stretches(run, k + at) as (done, src, rows):
                    into = self.packed_a[step, done * LINE]
                    pack_step(code, factor, src, strides, into, (rows, part), self.stage)
