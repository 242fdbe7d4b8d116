"""The driver of a product on AMX: the same units and runs as every product's, other panels.

    each run:  each 64 columns:  each DEPTH of k:  B's columns as pairs, in panels of 32
                                                   each panel:  A where it lies, or packed;  tiles -> sums
                                 finish the rows

Products of one row are units, runs and panels like all others: their bits are those of a row among many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.matmul_amx import DEPTH, LINE, PANEL, PANEL_BYTES, PITCH, RAW, ROW, STEP, WIDTH
from kiln.codegen.matmul_drive import UNIT_ROWS, Driver, Run
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import element_of
from kiln.codegen.target import Target

GROUP_UNITS = 16  # row units in a group, at most: 384 rows
GROUP_BYTES = 5 << 18  # ... whose rows of A, all k of them, are to stay in the second cache
LEAST_UNITS = 8  # ... but so many, as B is packed for each group
EVEN_UNITS = 4  # a group's row units are a multiple: 96 rows, whole blocks
CROWDED = 8192  # rows of A a multiple of this many bytes apart share few cache sets, and are copied
STAGE = 64  # k of a window, or of an A that must be turned, at a time
TURN = 4  # pairs of k that can be turned at least
A_PITCH = DEPTH * 2 + LINE  # between packed rows of A, so that they fall into different cache sets


def frame_bytes() -> tuple[int, int, int, int]:
    """The driver's arrays: panels of B, a block of A or the rest of its rows, a run's sums, a stage."""
    rows = GROUP_UNITS * UNIT_ROWS
    return WIDTH // PANEL * PANEL_BYTES, max(PANEL * A_PITCH, rows * LINE), rows * PITCH, STAGE // 2 * ROW


class AmxDriver(Driver):
    """The driver under construction."""

    pitch = PITCH

    def slots(self) -> None:
        """The arrays on the stack."""
        self.packed_b, self.packed_a, self.buffer, self.stage = (
            self.code.slot("i8", size) for size in frame_bytes()
        )

    def group_units(self, row_units: str) -> str:
        """Groups about as large as each other, of whole blocks, smaller where k is large."""
        code = self.code
        fit = code.op(f"sdiv i64 {GROUP_BYTES}, {code.mul(self.size['k'], str(RAW.bytes * UNIT_ROWS))}")
        few = code.compare("slt", fit, str(LEAST_UNITS))
        most = code.choose(few, str(LEAST_UNITS), code.minimum(fit, str(GROUP_UNITS)))
        groups = code.op(f"sdiv i64 {code.sub(code.add(row_units, most), '1')}, {most}")
        even = code.op(f"sdiv i64 {code.sub(code.add(row_units, groups), '1')}, {groups}")
        return code.op(f"and i64 {code.add(even, str(EVEN_UNITS - 1))}, -{EVEN_UNITS}")

    def run(self, run: Run) -> None:
        """Some columns after the others: their sums are kept between two depths."""
        code = self.code
        with code.times(run.columns, WIDTH) as left:
            cols = code.minimum(code.sub(run.columns, left), str(WIDTH))
            part = Run(run.batch, run.row, run.rows, code.add(run.column, left), cols)
            with code.times(self.size["k"], DEPTH) as from_k:
                depth = code.minimum(code.sub(self.size["k"], from_k), str(DEPTH))
                steps = code.ceil_div(depth, STEP)
                pack = self._pack_b if self.window is None else self._pack_window
                pack(part, from_k, depth, code.mul(steps, str(STEP // 2)))
                self._multiply(part, from_k, depth, steps)
            self.finish(part)

    # -- B ------------------------------------------------------------------------------------------

    def _pack_b(self, run: Run, from_k: str, depth: str, rows: str) -> None:
        """The panels as pairs: k that lie side by side are turned, two at a time as one element."""
        code = self.code
        src = self.reach(self.b, b_batch=run.batch, b_k=from_k, b_column=run.column)
        ks, cs = self.stride["b_k"], self.stride["b_column"]
        beside = code.compare("eq", ks, str(RAW.bytes))
        whole = code.op(f"sdiv i64 {depth}, 2")
        whole = code.choose(code.both(beside, code.compare("sge", whole, str(TURN))), whole, "0")
        with code.when(code.compare("ne", whole, "0")), self._panels(run) as (left, cols, panel):
            code.run("turn", f"ptr {code.at(src, code.mul(left, cs))}", cs, panel, str(ROW), whole, cols)
        done = code.mul(whole, "2")
        self._pairs(
            code.at(src, code.mul(done, ks)), (ks, cs), code.at(self.packed_b, code.mul(whole, str(ROW))),
            code.sub(depth, done), run.columns, code.sub(rows, whole),
        )  # fmt: skip

    @contextmanager
    def _panels(self, run: Run) -> Iterator[tuple[str, str, str]]:
        """Each panel of a run: its first column, how many it has, and where it is packed."""
        code = self.code
        with code.times(run.columns, PANEL) as left:
            cols = code.minimum(code.sub(run.columns, left), str(PANEL))
            yield left, cols, f"ptr {code.at(self.packed_b, code.mul(left, str(PANEL_BYTES // PANEL)))}"

    def _pairs(self, src: str, strides: tuple[str, str], dst: str, depth: str, width: str, rows: str) -> None:
        self.code.run("pairs", f"ptr {src}", *strides, f"ptr {dst}", depth, width, rows)

    def _pack_window(self, run: Run, from_k: str, depth: str, rows: str) -> None:
        """The panels of a window, by way of its elements as they are."""
        code = self.code
        src = self.reach(self.b, b_batch=run.batch)
        with self._panels(run) as (left, cols, panel), code.times(depth, STAGE) as at:
            part = code.minimum(code.sub(depth, at), str(STAGE))
            code.run(
                "window", f"ptr {src}", f"ptr {self.look}", code.add(from_k, at), part,
                code.add(run.column, left), cols, f"ptr {self.stage}", str(LINE),
            )  # fmt: skip
            row = code.op(f"sdiv i64 {at}, 2")
            filled = code.minimum(code.sub(rows, row), str(STAGE // 2))
            into = code.at(panel.split()[1], code.mul(row, str(ROW)))
            self._pairs(self.stage, (str(LINE), str(RAW.bytes)), into, part, str(PANEL), filled)

    # -- A and tiles --------------------------------------------------------------------------------

    def _multiply(self, run: Run, from_k: str, depth: str, steps: str) -> None:
        """A where it lies if its k lie side by side and its rows in many cache sets, else block by block."""
        code = self.code
        a = self.reach(self.a, a_batch=run.batch, a_row=run.row, a_k=from_k)
        first = f"i1 {code.compare('eq', from_k, '0')}"
        rs, packed = self.stride["a_row"], f"ptr {self.packed_a}"
        beside = code.compare("eq", self.stride["a_k"], str(RAW.bytes))
        spread = code.compare("ne", code.op(f"and i64 {rs}, {CROWDED - 1}"), "0")
        with code.either(code.both(beside, spread)) as badly:
            whole = code.op(f"sdiv i64 {depth}, {STEP}")
            done = code.mul(whole, str(STEP))
            with code.when(code.compare("slt", whole, steps)):
                rest = code.at(a, code.mul(done, str(RAW.bytes)))
                code.run("lines", f"ptr {rest}", rs, packed, str(LINE), run.rows, code.sub(depth, done))
            self._sums(run, (f"ptr {a}", rs, whole, packed), steps, self.buffer, first, run.rows)
            next(badly)
            with code.times(run.rows, PANEL) as row:
                rows, src = code.minimum(code.sub(run.rows, row), str(PANEL)), code.at(a, code.mul(row, rs))
                with code.either(beside) as apart:
                    code.run("lines", f"ptr {src}", rs, packed, str(A_PITCH), rows, depth)
                    next(apart)
                    self._turn_a(src, rows, depth)
                c = code.at(self.buffer, code.mul(row, str(PITCH)))
                self._sums(run, (packed, str(A_PITCH), steps, packed), steps, c, first, rows)

    def _sums(self, run: Run, a: tuple[str, ...], steps: str, c: str, first: str, rows: str) -> None:
        """Some rows' products with every panel: A, the distance of its rows, its whole steps, the rest."""
        with self._panels(run) as (left, _, panel):
            into = self.code.at(c, self.code.mul(left, "4"))
            self.code.run("tile", *a, panel, steps, f"ptr {into}", first, rows)

    def _turn_a(self, src: str, rows: str, depth: str) -> None:
        """A block of A at packed_a: as pairs of k, with rows as columns, then those turned."""
        code = self.code
        ks, rs = self.stride["a_k"], self.stride["a_row"]
        with code.times(depth, STAGE) as at:
            part = code.minimum(code.sub(depth, at), str(STAGE))
            filled = code.mul(code.ceil_div(part, STEP), str(STEP // 2))
            self._pairs(code.at(src, code.mul(at, ks)), (ks, rs), self.stage, part, rows, filled)
            into = code.at(self.packed_a, code.mul(at, str(RAW.bytes)))
            code.run("turn", f"ptr {self.stage}", str(ROW), f"ptr {into}", str(A_PITCH), str(PANEL), filled)


def drive_amx(target: Target, window: int | None) -> Routine:
    """The routine kernel; `window` is the place of the arguments of a B that is a window."""
    driver = AmxDriver(target, element_of("bfloat16"), None, window)
    driver.write()
    return driver.code
