"""Few rows of a product on vectors: operands swapped, the transposed product, whose rows are B's columns in
place.

    each segment of k:
        A's rows, packed as panels
        each block of columns of B, as rows of tiles:  tiles with each panel -> transposed sums
    the sums transposed: to the output, or to where they are finished

The same chains, so the same bits. Of a matrix B that is what a linear layer reads, whose k lie side by side;
over a window, whose columns lie evenly, that of a layer with few channels, or of a weight's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.gemm.fma_tile import covered
from kiln.codegen.gemm.grid import EVEN_COLUMNS, UNIT_BYTES, unit_columns
from kiln.codegen.gemm.pack import clear
from kiln.codegen.gemm.problem import Batch, Run
from kiln.codegen.gemm.workspace import COPIED, OFFSETS, ROW_PITCH, SUMS_BYTES, Workspace
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer, every
from kiln.table.order import SEGMENT


class Swapped:
    """What computes a run of few rows; `plain`: its output takes finished sums."""

    def __init__(self, work: Workspace, plain: bool) -> None:
        self.work, self.plain = work, plain
        self.problem, self.code, self.element = work.problem, work.code, work.element
        self.window, self.panel = work.problem.spec.window, work.panel
        self.columns = unit_columns(self.element, work.problem.spec.folds)
        unit, blocking = self.columns * self.element.bytes, work.blocking
        self.few_panels, self.wide_units = blocking.swap_panels, work.wide_units
        if self.window:
            self.few_panels = blocking.swap_window_panels
            self.wide_units = max(blocking.swap_window_units * UNIT_BYTES // unit, 1)
        assert (
            self.few_panels * (work.panel_pitch + self.wide_units * self.columns * work.panel_bytes) <= COPIED
        )
        assert self.panel * self.wide_units * unit <= SUMS_BYTES

    # -- which runs ---------------------------------------------------------------------------------

    def widest(self, wide: Integer) -> Integer:
        """The column units of a run: few rows by a window have more, for which they are packed once."""
        if not self.window:
            return wide
        self.few = self._few_by_window()
        return self.few.choose(self.wide_units, wide)

    def fits(self, run: Run) -> Condition:
        """Whether a run is computed so."""
        if self.window:  # a part of the rows is one unit wide
            return self.few & run.rows.equals(self.problem.size["m"])
        return self._few(run)

    def _few(self, run: Run) -> Condition:
        """Whether a run has so few rows that packing a B which must be transposed costs as much as tiles.

        No panel of them may be shorter than what is transposed at once.
        """
        element = self.element
        short = (run.rows - 1) & (self.panel - 1)
        rows = (short >= 16 // element.bytes - 1,
                run.rows <= self.few_panels * self.panel)  # fmt: skip
        along = self.problem.b.stride["k"].equals(element.stored_bytes)
        return every(*rows, along, run.columns > run.rows)

    def _few_by_window(self) -> Condition:
        """Whether rows are few for a window, and nearly fill their panels."""
        code, m, k, n = self.code, *(self.problem.size[name] for name in "mkn")
        last, blocking = (m - 1) & (self.panel - 1), self.work.blocking
        even = self.problem.evenly[0]
        return every(
            m <= self.few_panels * self.panel,
            last >= self.panel * 3 // 4 - 1,
            even >= EVEN_COLUMNS,
            covered(code, even) | (even >= blocking.swap_columns),
            k >= m * blocking.swap_depth,
            n > m,
        )

    # -- the product --------------------------------------------------------------------------------

    def multiply(self, run: Run) -> None:
        """The transposed product; its sums are transposed on their way to the output, or to where they are
        finished.
        """
        work, pitch = self.work, self.work.panel_bytes
        segments = self.problem.segments
        sums = work.packed[self.few_panels * work.panel_pitch]
        high = self.wide_units * self.columns * pitch
        with self.code.loop(segments.from_k, segments.to_k, SEGMENT) as turn:
            from_k, depth = turn.index, (segments.to_k - turn.index).min(SEGMENT)
            first = from_k.equals(segments.from_k)
            if self.window:
                work.offsets(self.problem.look_k, from_k, depth, OFFSETS, work.k_offsets)
            with self._row_panels(run) as (panel, part):
                self._pack_rows(part, work.packed[panel * work.panel_pitch], from_k, depth)
            with self._column_blocks(run, from_k) as (block, row_pitch):
                with self._row_panels(run) as (panel, part):
                    a = work.packed[panel * work.panel_pitch]
                    at = (block.row - run.column) * pitch
                    into = sums[panel * high, at]
                    block = block._replace(column=part.row, columns=part.rows)
                    work.tile(block, (a, pitch), (into, row_pitch), first, depth, work.k_offsets)
        with self._row_panels(run) as (panel, part):
            self._transpose_back(part, sums[panel * high])

    @contextmanager
    def _column_blocks(self, run: Run, from_k: Index) -> Iterator[tuple[Run, Index]]:
        """Columns of a run that lie evenly, as rows of tiles; the bytes between their sums.

        Of a window each is `step` columns from the next, and so many do: then it begins anew.
        """
        code, work = self.code, self.work
        one = code.index(1)
        count, step, elements = self.problem.evenly if self.window else (self.problem.size["n"], one, one)
        along = elements * self.element.stored_bytes if self.window else self.problem.b.stride["column"]
        work.a_row.set(along)
        whole, end = count * step, run.column + run.columns
        before = code.variable(run.column - divmod(run.column, whole)[1])
        with code.during(before, end) as at:
            with code.times(step) as phase:
                zeroth = at + phase
                past = step - 1 - zeroth
                start, stop = (divmod(x + past, step)[0] for x in (run.column, end))
                start, stop = start.max(0), stop.min(count)
                done = code.variable(start)
                with code.during(done, stop) as index:
                    column, rows = zeroth + index * step, work.block(stop - index)
                    self._column_at(run.batch, from_k, column)
                    yield run._replace(row=column, rows=rows), step * work.panel_bytes
                    done.set(index + rows)
            before.set(at + whole)

    def _column_at(self, batch: Batch, from_k: Index, column: Index) -> None:
        """What tiles read as A is B from a column on."""
        work, b = self.work, self.problem.b
        if self.window:
            work.offsets(self.problem.look_n, column, 1, 1, work.n_offsets)
            here = b.at(batch)[work.n_offsets.word()]
        else:
            here = b.at(batch, k=from_k, column=column)
            work.a_k.set(b.stride["k"])
        work.a_place.put(here)

    @contextmanager
    def _row_panels(self, run: Run) -> Iterator[tuple[Index, Run]]:
        """Each panel of a run's rows: its number, and the part of the run."""
        code = self.code
        with code.times(run.rows.ceil_div(self.panel)) as panel:
            row = panel * self.panel
            rows = (run.rows - row).min(self.panel)
            yield panel, run._replace(row=run.row + row, rows=rows)

    def _pack_rows(self, run: Run, into: Pointer, from_k: Index, depth: Index) -> None:
        """Rows of A as a panel, one after the other the runs of k that an indirect A has."""
        code, work, problem = self.code, self.work, self.problem
        ragged = run.rows < self.panel
        with code.when(ragged):
            clear(code, into, depth * work.panel_bytes)
        if not self.window:
            src, beyond = problem.rows_of_a(run, from_k)
            steps, beside = (problem.a.stride["k"], problem.a.stride["row"]), self.element.bytes
            with code.either(beyond) as together:
                work.copy_rows(run, from_k, depth)
                copied = code.index(beside), code.index(ROW_PITCH * beside)
                self._pack_depth(run, work.copied, copied, into, depth)
                next(together)
                self._pack_depth(run, src, steps, into, depth)
            return
        done = code.variable(0)
        with code.during(done, depth) as at:
            count = work.a_inner - divmod(from_k + at, work.a_inner)[1]
            count = count.min(depth - at)
            work.offsets(problem.look_a, from_k + at, 1, 1, work.a_offsets)
            place = work.a_offsets.word()
            src = problem.a.at(run.batch, row=run.row)[place]
            steps = problem.a.stride["k"], problem.a.stride["row"]
            self._pack_depth(run, src, steps, into[at * work.panel_bytes], count)
            done.set(at + count)

    def _pack_depth(
        self, run: Run, src: Pointer, steps: tuple[Index, Index], into: Pointer, depth: Index
    ) -> None:
        """Some k of a panel of rows."""
        work = self.work
        work.pack(work.transposes(steps[0], depth), src, steps, into, work.panel_bytes, depth, run.rows)

    def _transpose_back(self, run: Run, sums: Pointer) -> None:
        """A panel of the transposed sums to the output, or finished."""
        code, problem, work, segments = self.code, self.problem, self.work, self.problem.segments
        pitch, whole = work.panel_bytes, self.wide_units * self.columns * self.element.bytes
        place = segments.place(run.row, run.column)
        into = segments.cut.choose(place, work.sums)
        row_pitch = segments.cut.choose(segments.pitch, whole)
        with code.either(self._to_output(run)) as kept:
            if self.plain:
                with problem.images(run) as (at, part):
                    out, row = problem.output_of(part), problem.c.stride["row"]
                    src = sums[at * pitch]
                    code.run("transpose", src, pitch, out, row, part.rows, part.columns)
            next(kept)
            code.run("transpose", sums, pitch, into, row_pitch, run.rows, run.columns)
            with code.when(segments.whole):
                problem.finish(run, work.sums, whole)

    def _to_output(self, run: Run) -> Condition:
        """Whether sums are transposed to the output: nothing past the columns may be written."""
        masks, whole = self.code.target.masks, self.problem.segments.whole
        if not self.plain or (self.window and not masks):
            return self.code.condition(False)
        if masks:
            return whole
        rest = run.columns & (self.panel // self.work.blocking.vectors - 1)
        return whole & rest.equals(0)
