"""The driver of a product on AMX: the same units and runs as every product's, other panels.

    each run:  each DEPTH of k:
        B's columns as words, in panels of 32
            computed:         a step of all columns at a time, then packed
            computed, turned: a PIECE of k of a panel at a time, then packed
        each 32 rows:
            each PIECE of k:  A, packed, or computed into its place;  tiles of all panels -> sums
            the last depth:  finish

Products of one row of bfloat16 are units, runs and panels like all others: their bits are those of a row
among many.
"""

from __future__ import annotations

from kiln.codegen.index import Index, Integer, Pointer
from kiln.codegen.matmul_amx import DEPTH, FACTORS, LINE, PANEL, PIECE, ROW, STEP_BYTES, STEP_WORDS, WORD
from kiln.codegen.matmul_amx_pack import pack_beside, pack_lines, pack_step, pack_words, steps_of
from kiln.codegen.matmul_finish import Arguments, Block
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import element_of
from kiln.codegen.matmul_units import UNIT_BYTES, UNIT_ROWS, Driver, Output, Run
from kiln.codegen.matmul_vectors import SCRATCH_BYTES
from kiln.codegen.target import LEVELS, Target

PACKED = LEVELS["x86-64-v4-amx"].second_cache // 2  # bytes: the other half is for sums and rows of A
WIDE = 8  # column units that are packed at once, at most
UNIT_COLUMNS = UNIT_BYTES // WORD
GROUP_ROWS = 4224  # that one packing of B serves
SUM_ROWS = 1056  # ... if their sums are kept from one depth to the next
# What lies where in the scratch memory, in bytes: packed panels, a piece of A, a step of it, what is computed
# and then packed, sums, tables.
COLUMNS = WIDE * UNIT_COLUMNS  # of a run, at most
COPIED = PACKED + COLUMNS // PANEL * ROW
STAGED = COPIED + PANEL * PIECE + STEP_BYTES  # room for the rows of a panel, from any on
COMPUTED = STAGED + STEP_BYTES
SUMS = COMPUTED + COLUMNS * LINE
TABLES = SUMS + SUM_ROWS * (PACKED // DEPTH * WORD + LINE)
ROOM = COLUMNS + LINE  # of a table of columns: a vector of the last panel's may read past them
PITCH = PIECE + LINE  # bytes between computed columns of B, so that they share no cache sets
assert TABLES + 8 * (DEPTH + ROOM) <= SCRATCH_BYTES
assert PANEL * PITCH <= SUMS - COMPUTED


class _Driver(Driver):
    """The driver under construction."""

    def __init__(
        self, target: Target, dtype: str, arguments: Arguments, window: bool, turned: dict[str, bool]
    ) -> None:
        super().__init__(target, element_of(dtype), arguments, Output(), window)
        self.factor, self.turned = FACTORS[dtype], turned

    def limits(self) -> tuple[Integer, Integer]:
        """Sums that wait for another depth are kept; packed panels should stay in the second cache."""
        k = self.size["k"]
        self.once = k <= self.factor.depth
        rows = self.once.choose(GROUP_ROWS // UNIT_ROWS, SUM_ROWS // UNIT_ROWS)
        steps = k.ceil_div(self.factor.step).min(DEPTH // LINE)
        fitting = PACKED // (UNIT_COLUMNS * LINE) // steps
        units = fitting.min(WIDE)
        self.pitch = units * UNIT_BYTES + LINE  # so that rows share no cache sets
        return rows, units

    def run(self, run: Run) -> None:
        """Depths of k, in ascending order; for each, the rows."""
        code = self.code
        self.packed_b, self.packed_a, self.stage, self.computed, self.sums, self.k_table = (
            self.scratch[place] for place in (0, COPIED, STAGED, COMPUTED, SUMS, TABLES)
        )
        self.n_table = self.k_table[8 * self.factor.depth]
        if self.window:
            where = self.n_table
            code.run("places", self.look_n, run.column, run.columns, ROOM, where)
        with code.times(self.size["k"], self.factor.depth) as from_k:
            depth = (self.size["k"] - from_k).min(self.factor.depth)
            steps = depth.ceil_div(self.factor.step)
            self.apart = steps * STEP_BYTES + ROW
            self._factor_b(run, from_k, depth)
            with code.times(run.rows, PANEL) as row:
                rows = (run.rows - row).min(PANEL)
                part = Run(run.batch, run.row + row, rows, run.column, run.columns)
                self._multiply(part, row, from_k, depth)

    # -- B ------------------------------------------------------------------------------------------

    def _factor_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels, packed or computed."""
        if self.window:
            self._pack_window(run, from_k, depth)
        elif "second" not in self.turned:
            self._pack_b(run, from_k, depth)
        else:
            with self.code.either(self.empty) as filled:
                self._pack_b(run, from_k, depth)
                next(filled)
                (self._turn_b if self.turned["second"] else self._compute_b)(run, from_k, depth)

    def _pack_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels as words."""
        src = self.reach("b", run.batch, k=from_k, column=run.column)
        strides = self.stride["b_k"], self.stride["b_column"]
        pack_words(self.code, self.factor, src, strides, self.packed_b, (depth, run.columns), self.apart)

    def _compute_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels computed, a step of all columns at a time."""
        code, factor = self.code, self.factor
        pitch = run.columns * factor.bytes
        with code.times(depth, factor.step) as at:
            part = (depth - at).min(factor.step)
            step = [*run.batch, from_k + at, part, run.column, run.columns]
            self.compute("second", step, self.computed, pitch, LINE)
            strides, shape = (pitch, code.index(factor.bytes)), (part, run.columns)
            pack_words(code, factor, self.computed, strides, self._deep(at), shape, self.apart)

    def _turn_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The same where neighbours lie along k: a piece of a panel at a time."""
        code, factor = self.code, self.factor
        with code.times(run.columns, PANEL) as left, code.times(depth, PIECE // factor.bytes) as at:
            part = (depth - at).min(PIECE // factor.bytes)
            columns = (run.columns - left).min(PANEL)
            piece = [*run.batch, run.column + left, columns, from_k + at, part]
            self.compute("second", piece, self.computed, PITCH, LINE)
            into = self._deep(at)[left // PANEL * self.apart]
            strides = code.index(factor.bytes), code.index(PITCH)
            pack_words(code, factor, self.computed, strides, into, (part, columns), self.apart)

    def _deep(self, k: Index) -> Pointer:
        """Where the first panel has a k, the first of a step."""
        return self.packed_b[k * (STEP_BYTES // self.factor.step)]

    def _pack_window(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels of a window, whole steps of k; what there is not becomes zeros."""
        code = self.code
        rows = depth.ceil_div(self.factor.step) * STEP_WORDS
        deep = rows * self.factor.together
        code.run("places", self.look, from_k, depth, deep, self.k_table)
        src = self.reach("b", run.batch)
        ragged = depth < deep
        with code.times(run.columns, PANEL) as left:
            panel = self.packed_b[left // PANEL * self.apart]
            columns, width = self.n_table.element("i64", left), run.columns - left
            code.run(
                "words_of_window", src, self.k_table, deep, columns,
                width.min(PANEL), panel, ROW,
            )  # fmt: skip
            with code.when(ragged):
                code.run("trim", panel, depth, rows)

    # -- A and tiles --------------------------------------------------------------------------------

    def _multiply(self, run: Run, row: Index, from_k: Index, depth: Index) -> None:
        """Some rows' products with every panel, the run's rows from `row` on; what is complete, finished."""
        code, piece = self.code, PIECE // self.factor.bytes
        sums = self.sums[self.once.choose(0, row) * self.pitch]
        with code.times(depth, piece) as at:
            part, k = (depth - at).min(piece), from_k + at
            self._factor_a(run, k, part)
            code.run(
                "tiles", self.packed_a, self._deep(at), self.apart,
                part.ceil_div(self.factor.step), sums, self.pitch,
                k.equals(0), run.rows, run.columns,
            )  # fmt: skip
        with code.when((from_k + depth).equals(self.size["k"])):
            self.finish(run, sums, self.pitch)

    def _factor_a(self, run: Run, k: Index, depth: Index) -> None:
        """A piece of A, packed or computed."""
        if "first" not in self.turned:
            self._pack_a(run, k, depth)
            return
        with self.code.either(self.empty) as filled:
            self._pack_a(run, k, depth)
            next(filled)
            (self._turn_a if self.turned["first"] else self._compute_a)(run, k, depth)

    def _compute_a(self, run: Run, k: Index, depth: Index) -> None:
        """A piece of A computed where it is read; the last step is zeros before."""
        code = self.code
        last = self.packed_a[(depth.ceil_div(self.factor.step) - 1) * STEP_BYTES]
        code.run("words", last, 0, 0, last, 0, PANEL, STEP_WORDS, 0)
        rectangle = [*run.batch, run.row, run.rows, k, depth]
        self.compute("first", rectangle, self.packed_a, LINE, STEP_BYTES)

    def _turn_a(self, run: Run, k: Index, depth: Index) -> None:
        """The same where neighbours lie along the rows."""
        size, rectangle = self.factor.bytes, [*run.batch, k, depth, run.row, run.rows]
        self.compute("first", rectangle, self.computed, PANEL * size, LINE)
        strides = self.code.index(size), self.code.index(PANEL * size)
        pack_lines(
            self.code, self.factor, self.computed, strides, self.packed_a, (run.rows, depth), self.stage
        )

    def _pack_a(self, run: Run, k: Index, depth: Index) -> None:
        """A piece of A, stretch by stretch: where k do not lie side by side, each writes a panel of rows."""
        code, factor, strides = self.code, self.factor, (self.stride["a_row"], self.stride["a_k"])
        with code.either(strides[1].equals(factor.bytes)) as apart:
            with self.pieces(run, k) as (done, src, rows):
                into = self.packed_a[done * LINE]
                pack_beside(code, factor, src, strides[0], into, (rows, depth))
            next(apart)
            with steps_of(code, factor, depth) as (at, part, step):
                with self.pieces(run, k + at) as (done, src, rows):
                    into = self.packed_a[step, done * LINE]
                    pack_step(code, factor, src, strides, into, (rows, part), self.stage)


def drive_amx(
    target: Target, dtype: str, arguments: Arguments, window: bool, turned: dict[str, bool]
) -> Routine:
    """The routine kernel; `turned`: see kiln.codegen.matmul_drive."""
    return _Driver(target, dtype, arguments, window, turned).write()


def computed_amx(dtype: str) -> Block:
    """What a block of a factor holds: its elements, as wide as a line of them."""
    return Block(dtype, FACTORS[dtype].step)
