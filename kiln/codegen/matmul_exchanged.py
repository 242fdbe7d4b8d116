"""Few rows of a product on vectors: the transposed product, whose rows are B's columns, where they lie.

    each segment of k:
        A's rows, packed as panels
        each block of columns of B, as rows of tiles:  tiles with each panel -> transposed sums
    the sums turned: to the output, or to where they are finished

The same chains, so the same bits. Of a matrix B that is what a linear layer reads, whose k lie side by side;
over a window, whose columns lie evenly, that of a layer with few channels, or of a weight's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kiln.codegen.index import Condition, Index, Integer, Pointer, every
from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_tile import SEGMENT, SOON, VECTORS, covered
from kiln.codegen.matmul_units import UNIT_BYTES, Batch, Run
from kiln.codegen.matmul_vectors import COPIED, ROW_PITCH, SUMS_BYTES, Vectors

FEW_PANELS = 8  # rows up to so many panels are few
FEW_BY_WINDOW = 4  # ... by a window
FAR_UNITS = 8  # column units of a run of such rows
EVEN = 8  # columns that lie evenly, at least
LONG = 100  # ... if they are no whole tiles
DEEP = 2  # k for each of such rows, at least: their sums are turned, which costs as much as packing as many k


class Exchanged(Vectors):
    """The part of a driver that few rows take; `blocks` is for the others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        unit = self.columns * self.element.bytes
        self.few_panels, self.far_units = FEW_PANELS, self.wide_units
        if self.window:
            self.few_panels, self.far_units = FEW_BY_WINDOW, max(FAR_UNITS * UNIT_BYTES // unit, 1)
        assert self.few_panels * (self.apart + self.far_units * self.columns * self.panel_bytes) <= COPIED
        assert self.panel * self.far_units * unit <= SUMS_BYTES

    def blocks(self, run: Run) -> None:
        """Write what computes a run of many rows."""
        raise NotImplementedError

    def limits(self) -> tuple[Integer, Integer]:
        """Few rows by a window have runs of more columns, for which they are packed once."""
        rows, wide = super().limits()
        if self.placed:
            self.few = self._few_by_window()
            wide = self.few.choose(self.far_units, wide)
        return rows, wide

    def run(self, run: Run) -> None:
        """Few rows, or blocks."""
        code = self.code
        self.memory()
        if self.element.widened or self.turned:
            self.blocks(run)
            return
        if self.window:  # a part of the rows is one unit wide
            few = self.few & run.rows.equals(self.size["m"])
        else:
            few = self._few(run)
        with code.either(few) as many:
            self._exchanged(run)
            next(many)
            self.blocks(run)

    def _few(self, run: Run) -> Condition:
        """Whether a run has so few rows that packing a B which must be turned costs as much as tiles.

        No panel of them may be shorter than what is turned at once.
        """
        element = self.element
        short = (run.rows - 1) & (self.panel - 1)
        rows = (short >= 16 // element.bytes - 1,
                run.rows <= self.few_panels * self.panel)  # fmt: skip
        along = self.stride["b_k"].equals(element.stored_bytes)
        return every(*rows, along, run.columns > run.rows)

    def _few_by_window(self) -> Condition:
        """Whether rows are few for a window, and nearly fill their panels."""
        code, m = self.code, self.size["m"]
        last = (m - 1) & (self.panel - 1)
        return every(
            m <= self.few_panels * self.panel,
            last >= self.panel * 3 // 4 - 1,
            self.again[0] >= EVEN,
            covered(code, self.again[0]) | (self.again[0] >= LONG),
            self.size["k"] >= m * DEEP,
            self.size["n"] > m,
        )

    def _exchanged(self, run: Run) -> None:
        """The transposed product: its rows are B's columns, where they lie, and A is packed as its panels.

        The same chains; the sums are turned on their way to the output, or to where they are finished.
        """
        pitch = self.panel_bytes
        turned = self.packed[self.few_panels * self.apart]
        high = self.far_units * self.columns * self.panel_bytes
        with self.segments() as (from_k, depth):
            first = from_k.equals(self.split.from_k)
            if self.window:
                self.table(self.look, from_k, depth, SEGMENT + SOON, self.k_table)
            with self._row_panels(run) as (panel, part):
                self._pack_rows(part, self.packed[panel * self.apart], from_k, depth)
            with self._column_blocks(run, from_k) as (block, apart):
                with self._row_panels(run) as (panel, part):
                    a = self.packed[panel * self.apart]
                    at = (block.row - run.column) * pitch
                    into = turned[panel * high, at]
                    block = block._replace(column=part.row, columns=part.rows)
                    self.tile(block, (a, pitch), (into, apart), first, depth, self.k_table)
        with self._row_panels(run) as (panel, part):
            self._turn_back(part, turned[panel * high])

    @contextmanager
    def _column_blocks(self, run: Run, from_k: Index) -> Iterator[tuple[Run, Index]]:
        """Columns of a run that lie evenly, as rows of tiles; the bytes between their sums.

        Of a window each is `apart` columns from the next, and so many do: then it begins anew.
        """
        code = self.code
        count, apart, step = self.again if self.window else (self.size["n"], code.index(1), code.index(1))
        along = step * self.element.stored_bytes if self.window else self.stride["b_column"]
        self.a_row.set(along)
        whole, end = count * apart, run.column + run.columns
        before = code.variable(run.column - divmod(run.column, whole)[1])
        with code.during(before, end) as at:
            with code.times(apart) as phase:
                zeroth = at + phase
                past = apart - 1 - zeroth
                start, stop = (divmod(x + past, apart)[0] for x in (run.column, end))
                start, stop = start.max(0), stop.min(count)
                done = code.variable(start)
                with code.during(done, stop) as index:
                    column, rows = zeroth + index * apart, self.block(stop - index)
                    self._column_at(run.batch, from_k, column)
                    yield run._replace(row=column, rows=rows), apart * self.panel_bytes
                    done.set(index + rows)
            before.set(at + whole)

    def _column_at(self, batch: Batch, from_k: Index, column: Index) -> None:
        """A is B from a column on."""
        if self.window:
            self.table(self.look_n, column, 1, 1, self.n_table)
            here = self.reach("b", batch)[self.n_table.word()]
        else:
            here = self.reach("b", batch, k=from_k, column=column)
            self.a_k.set(self.stride["b_k"])
        self.a_place.put(here)

    @contextmanager
    def _row_panels(self, run: Run) -> Iterator[tuple[Index, Run]]:
        """Each panel of a run's rows: its number, and the part of the run."""
        code = self.code
        with code.times(run.rows.ceil_div(self.panel)) as panel:
            row = panel * self.panel
            rows = (run.rows - row).min(self.panel)
            yield panel, run._replace(row=run.row + row, rows=rows)

    def _pack_rows(self, run: Run, into: Pointer, from_k: Index, depth: Index) -> None:
        """Rows of A as a panel, run after run of its k."""
        code = self.code
        ragged = run.rows < self.panel
        with code.when(ragged):
            clear(code, self.element, into, depth * self.panel_bytes)
        if not self.window:
            src, beyond = self.rows_of_a(run, from_k)
            steps, beside = (self.stride["a_k"], self.stride["a_row"]), self.element.bytes
            with code.either(beyond) as together:
                self.copy_rows(run, from_k, depth)
                self._pack_run(
                    run, self.copied, (code.index(beside), code.index(ROW_PITCH * beside)), into, depth
                )
                next(together)
                self._pack_run(run, src, steps, into, depth)
            return
        done = code.variable(0)
        with code.during(done, depth) as at:
            count = self.a_inner - divmod(from_k + at, self.a_inner)[1]
            count = count.min(depth - at)
            self.table(self.look_a, from_k + at, 1, 1, self.a_table)
            place = self.a_table.word()
            src = self.reach("a", run.batch, row=run.row)[place]
            steps = self.stride["a_k"], self.stride["a_row"]
            self._pack_run(run, src, steps, into[at * self.panel_bytes], count)
            done.set(at + count)

    def _pack_run(
        self, run: Run, src: Pointer, steps: tuple[Index, Index], into: Pointer, depth: Index
    ) -> None:
        """Some k of a panel of rows."""
        self.pack(self.turns(steps[0], depth), src, steps, into, self.panel_bytes, depth, run.rows)

    def _turn_back(self, run: Run, sums: Pointer) -> None:
        """A panel of the transposed sums to the output, or finished."""
        code, element, pitch = self.code, self.element, self.panel_bytes
        whole = self.far_units * self.columns * element.bytes
        place = self.split.place(run.row, run.column)
        into = self.split.cut.choose(place, self.sums)
        apart = self.split.cut.choose(self.split.pitch, whole)
        with code.either(self._turns_directly(run)) as held:
            if self.out.plain:
                with self.parts(run) as (at, part):
                    out, row = self.output(part), self.stride["c_row"]
                    src = sums[at * pitch]
                    code.run("turn", src, pitch, out, row, part.rows, part.columns)
            next(held)
            code.run("turn", sums, pitch, into, apart, run.rows, run.columns)
            with code.when(self.split.whole):
                self.finish(run, self.sums, whole)

    def _turns_directly(self, run: Run) -> Condition:
        """Whether sums are turned to the output: nothing past the columns may be written."""
        masks = self.code.target.masks
        if not self.out.plain or (self.window and not masks):
            return self.code.condition(False)
        if masks:
            return self.split.whole
        rest = run.columns & (self.panel // VECTORS - 1)
        return self.split.whole & rest.equals(0)
