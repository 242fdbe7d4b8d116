"""The driver of a GEMM kernel: units of work to runs, and the loops around a microkernel.

    units in order of    batch | group of rows | columns | rows inside the group
                         units of columns: as few as possible, equally wide, as each may go to another thread
    a run                some rows of one group by one unit of columns, or the whole group by several

    each run:
        KC of k at a time:         B packed (or read in place, or computed into panels)
            MC rows at a time:     A packed (or read in place, copied, computed);  tiles of all panels
                                   the last KC: finish

How a machine packs operands, multiplies blocks of them and where it keeps sums is a `Blocks`. The
driver is written to be compiled quickly, and is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from kiln.codegen.compile import Part
from kiln.codegen.gemm.epilogue import Block
from kiln.codegen.gemm.grid import COLUMN_STEPS, UNIT_ROWS, unit_columns
from kiln.codegen.gemm.problem import Problem, Run
from kiln.codegen.ir.index import Condition, Index, Integer
from kiln.codegen.ir.routine import Routine


class Blocks:
    """Products of blocks on one kind of machine, by its microkernel: fma.py around fma_tile.py, amx.py around
    amx_tile.py. A further machine is one more such class, with its packing and its register tiles, and a
    record in kiln/codegen/blocking.py.
    """

    kc: int  # k of a packed block of B

    def __init__(self, problem: Problem) -> None:
        self.problem, self.code, self.element = problem, problem.code, problem.element
        self.spec = problem.spec
        self.columns = unit_columns(problem.element, self.spec.folds)  # of a unit

    def parts(self) -> list[Part]:
        """The routines that it shares with all kernels of the same elements: tiles and packing."""
        raise NotImplementedError

    def constants(self) -> list[str]:
        """Constants that the driver names."""
        return []

    def block_of(self, factor: str) -> Block:
        """What a block of a computed factor holds."""
        raise NotImplementedError

    # -- what the driver writes, in this order ------------------------------------------------------

    def limits(self) -> tuple[Integer, Integer]:
        """The row units of a group and the column units of a run, at most."""
        raise NotImplementedError

    def begin(self, run: Run) -> None:
        """Where what is packed for a run lies, and its sums."""
        raise NotImplementedError

    def few_rows(self, run: Run) -> Condition | None:
        """Whether a run has so few rows that it goes a way of its own; None: never."""
        return None

    def multiply_few(self, run: Run) -> None:
        """A run of few rows."""
        raise NotImplementedError

    def locate_columns(self, run: Run) -> None:
        """Over a window, fills the table of where the columns of a run lie."""
        raise NotImplementedError

    def depths(self) -> tuple[Integer, Index]:
        """The k of a run: from, to."""
        raise NotImplementedError

    def pack_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """The panels of B of some k."""
        raise NotImplementedError

    def rows(self, run: Run) -> AbstractContextManager[tuple[Index, Run]]:
        """MC rows of a run at a time: how many are before, and the part."""
        raise NotImplementedError

    def multiply(self, part: Run, row: Index, from_k: Index, depth: Index) -> None:
        """The products of some rows, `row` rows into their run, with all panels; complete ones finished."""
        raise NotImplementedError


class GemmDriver:
    """The routine kernel under construction."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.problem, self.code = blocks, blocks.problem, blocks.code
        self.columns = blocks.columns
        self.column_step = self.columns if blocks.spec.folds else self.columns // COLUMN_STEPS

    def write(self) -> Routine:
        """A launch either adds the sums of segments of k, for some rows, or computes units."""
        problem = self.problem
        problem.read()
        with self.code.either(problem.segments.adds) as units:
            problem.segments.add(problem.finish_rows)
            next(units)
            self._runs()
        return self.code

    def _runs(self) -> None:
        """Units in runs: the rest of a column of units, or as many whole columns as a run may have."""
        code, problem, size = self.code, self.problem, self.problem.size
        segments = problem.segments
        first_unit, last_unit = code.indices("begin", "end")
        limit, widest = self.blocks.limits()
        row_units = size["m"].ceil_div(UNIT_ROWS)
        column_units = size["n"].ceil_div(self.columns)
        most = self._group_height(row_units, limit)
        units = row_units * column_units
        unit = code.variable(first_unit)
        with code.during(unit, last_unit) as at:
            inside = segments.divide(at, units * size["batch"])
            segments.batch, inside = divmod(inside, units)
            group, inside = divmod(inside, column_units * most)
            above = group * most
            height = (row_units - above).min(most)
            column_unit, first = divmod(inside, height)
            left = last_unit - at
            stop = height.min(first + left)
            whole = (left // height).min(column_units - column_unit)
            several = first.equals(0) & (whole > 1)
            wide = several.choose(whole.min(widest), 1)
            unit.set(at + (stop - first) * wide)
            row = (above + first) * UNIT_ROWS
            end = size["m"].min((above + stop) * UNIT_ROWS)
            column = self._edge(column_unit, column_units)
            columns = self._edge(column_unit + wide, column_units) - column
            self._run(Run(problem.indices(segments.batch), row, end - row, column, columns))

    def _edge(self, unit: Index, units: Index) -> Index:
        """The column that a unit of columns begins with: all have about as many."""
        steps = self.problem.size["n"].ceil_div(self.column_step)
        before = unit * steps // units
        return self.problem.size["n"].min(before * self.column_step)

    def _group_height(self, row_units: Index, limit: Integer) -> Index:
        """The row units of a group: as few groups as may be, all about as large."""
        groups = (row_units + limit - 1) // limit
        groups = groups.max(1)  # no rows: no runs either
        return (row_units + groups - 1) // groups

    def _run(self, run: Run) -> None:
        """A run of many rows, or of few."""
        self.blocks.begin(run)
        few = self.blocks.few_rows(run)
        if few is None:
            self._loops(run)
            return
        with self.code.either(few) as many:
            self.blocks.multiply_few(run)
            next(many)
            self._loops(run)

    def _loops(self, run: Run) -> None:
        """The loops around the microkernel."""
        blocks = self.blocks
        blocks.locate_columns(run)
        start, end = blocks.depths()
        with self.code.loop(start, end, blocks.kc) as turn:
            from_k, depth = turn.index, (end - turn.index).min(blocks.kc)
            blocks.pack_b(run, from_k, depth)
            with blocks.rows(run) as (row, part):
                blocks.multiply(part, row, from_k, depth)
