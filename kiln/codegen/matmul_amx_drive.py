"""The driver of a product on AMX: the same units and runs as every product's, other panels.

    each run:  each DEPTH of k:
        B's columns as words, in panels of 32
        each 32 rows:
            each PIECE of k:  A, packed;  tiles of all panels -> sums
            the last depth:  finish

Products of one row of bfloat16 are units, runs and panels like all others: their bits are those of a row
among many.
"""

from __future__ import annotations

from kiln.codegen.matmul_amx import DEPTH, FACTORS, LINE, PANEL, PIECE, ROW, STEP_BYTES, STEP_WORDS, WORD
from kiln.codegen.matmul_amx_pack import pack_lines, pack_words
from kiln.codegen.matmul_drive import SCRATCH_BYTES
from kiln.codegen.matmul_finish import Arguments
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import element_of
from kiln.codegen.matmul_units import UNIT_BYTES, UNIT_ROWS, Driver, Run
from kiln.codegen.target import LEVELS, Target

PACKED = LEVELS["x86-64-v4-amx"].second_cache // 2  # bytes: the other half is for sums and rows of A
WIDE = 8  # column units that are packed at once, at most
UNIT_COLUMNS = UNIT_BYTES // WORD
GROUP_ROWS = 4224  # that one packing of B serves
SUM_ROWS = 1056  # ... if their sums are kept from one depth to the next
# What lies where in the scratch memory, in bytes: packed panels, a piece of A, a step of it, sums, tables.
COLUMNS = WIDE * UNIT_COLUMNS  # of a run, at most
COPIED = PACKED + COLUMNS // PANEL * ROW
STAGED = COPIED + PANEL * PIECE
SUMS = STAGED + STEP_BYTES
TABLES = SUMS + SUM_ROWS * (PACKED // DEPTH * WORD + LINE)
ROOM = COLUMNS + LINE  # of a table of columns: a vector of the last panel's may read past them
assert TABLES + 8 * (DEPTH + ROOM) <= SCRATCH_BYTES


class _Driver(Driver):
    """The driver under construction."""

    def __init__(self, target: Target, dtype: str, arguments: Arguments, window: bool) -> None:
        super().__init__(target, element_of(dtype), arguments, None, window)
        self.factor = FACTORS[dtype]
        self.bytes = str(self.factor.bytes)

    def limits(self) -> tuple[str, str]:
        """Sums that wait for another depth are kept; packed panels should stay in the second cache."""
        code, k = self.code, self.size["k"]
        self.once = code.compare("sle", k, str(self.factor.depth))
        rows = code.choose(self.once, str(GROUP_ROWS // UNIT_ROWS), str(SUM_ROWS // UNIT_ROWS))
        steps = code.minimum(code.ceil_div(k, self.factor.step), str(DEPTH // LINE))
        fitting = code.op(f"sdiv i64 {PACKED // (UNIT_COLUMNS * LINE)}, {steps}")
        units = code.minimum(fitting, str(WIDE))
        self.pitch = code.add(code.mul(units, str(UNIT_BYTES)), str(LINE))  # so that rows share no cache sets
        return rows, units

    def run(self, run: Run) -> None:
        """Depths of k, in ascending order; for each, the rows."""
        code = self.code
        self.packed_b, self.packed_a, self.stage, self.sums, self.k_table = (
            code.at(self.scratch, str(place)) for place in (0, COPIED, STAGED, SUMS, TABLES)
        )
        self.n_table = code.at(self.k_table, str(8 * self.factor.depth))
        if self.window:
            where = f"ptr {self.n_table}"
            code.run("places", f"ptr {self.look_n}", run.column, run.columns, str(ROOM), where)
        with code.times(self.size["k"], self.factor.depth) as from_k:
            depth = code.minimum(code.sub(self.size["k"], from_k), str(self.factor.depth))
            steps = code.ceil_div(depth, self.factor.step)
            self.apart = code.add(code.mul(steps, str(STEP_BYTES)), str(ROW))
            pack = self._pack_window if self.window else self._pack_b
            pack(run, from_k, depth)
            with code.times(run.rows, PANEL) as row:
                rows = code.minimum(code.sub(run.rows, row), str(PANEL))
                part = Run(run.batch, code.add(run.row, row), rows, run.column, run.columns)
                self._multiply(part, row, from_k, depth)

    # -- B ------------------------------------------------------------------------------------------

    def _pack_b(self, run: Run, from_k: str, depth: str) -> None:
        """The panels as words."""
        src = self.reach(self.b, b_batch=run.batch, b_k=from_k, b_column=run.column)
        strides = self.stride["b_k"], self.stride["b_column"]
        pack_words(self.code, self.factor, src, strides, self.packed_b, (depth, run.columns), self.apart)

    def _pack_window(self, run: Run, from_k: str, depth: str) -> None:
        """The panels of a window, whole steps of k; what there is not becomes zeros."""
        code = self.code
        rows = code.mul(code.ceil_div(depth, self.factor.step), str(STEP_WORDS))
        deep = code.mul(rows, str(self.factor.together))
        code.run("places", f"ptr {self.look}", from_k, depth, deep, f"ptr {self.k_table}")
        src = self.reach(self.b, b_batch=run.batch)
        ragged = code.compare("slt", depth, deep)
        with code.times(run.columns, PANEL) as left:
            panel = code.at(self.packed_b, code.mul(code.op(f"sdiv i64 {left}, {PANEL}"), self.apart))
            columns, width = code.offset(self.n_table, "i64", left), code.sub(run.columns, left)
            code.run(
                "words_of_window", f"ptr {src}", f"ptr {self.k_table}", deep, f"ptr {columns}",
                code.minimum(width, str(PANEL)), f"ptr {panel}", str(ROW),
            )  # fmt: skip
            with code.when(ragged):
                code.run("trim", f"ptr {panel}", depth, rows)

    # -- A and tiles --------------------------------------------------------------------------------

    def _multiply(self, run: Run, row: str, from_k: str, depth: str) -> None:
        """Some rows' products with every panel, the run's rows from `row` on; what is complete, finished."""
        code, piece = self.code, PIECE // self.factor.bytes
        sums = code.at(self.sums, code.mul(code.choose(self.once, "0", row), self.pitch))
        with code.times(depth, piece) as at:
            part, k = code.minimum(code.sub(depth, at), str(piece)), code.add(from_k, at)
            self._pack_a(run, k, part)
            panels = code.at(self.packed_b, code.mul(at, str(STEP_BYTES // self.factor.step)))
            code.run(
                "tiles", f"ptr {self.packed_a}", f"ptr {panels}", self.apart,
                code.ceil_div(part, self.factor.step), f"ptr {sums}", self.pitch,
                f"i1 {code.compare('eq', k, '0')}", run.rows, run.columns,
            )  # fmt: skip
        with code.when(code.compare("eq", code.add(from_k, depth), self.size["k"])):
            self.finish(run, sums, self.pitch)

    def _pack_a(self, run: Run, k: str, depth: str) -> None:
        """A piece of A."""
        src = self.reach(self.a, a_batch=run.batch, a_row=run.row, a_k=k)
        strides = self.stride["a_row"], self.stride["a_k"]
        pack_lines(self.code, self.factor, src, strides, self.packed_a, (run.rows, depth), self.stage)


def drive_amx(target: Target, dtype: str, arguments: Arguments, window: bool) -> Routine:
    """The routine kernel."""
    return _Driver(target, dtype, arguments, window).write()
