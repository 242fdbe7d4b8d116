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

from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_tile import SEGMENT, SOON, VECTORS, covered
from kiln.codegen.matmul_units import UNIT_BYTES, Index, Run
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

    def limits(self) -> tuple[str, str]:
        """Few rows by a window have runs of more columns, for which they are packed once."""
        rows, wide = super().limits()
        if self.placed:
            self.few = self._few_by_window()
            wide = self.code.choose(self.few, str(self.far_units), wide)
        return rows, wide

    def run(self, run: Run) -> None:
        """Few rows, or blocks."""
        code = self.code
        self.memory()
        if self.element.widened or self.turned:
            self.blocks(run)
            return
        if self.window:  # a part of the rows is one unit wide
            few = code.both(self.few, code.compare("eq", run.rows, self.size["m"]))
        else:
            few = self._few(run)
        with code.either(few) as many:
            self._exchanged(run)
            next(many)
            self.blocks(run)

    def _few(self, run: Run) -> str:
        """Whether a run has so few rows that packing a B which must be turned costs as much as tiles.

        No panel of them may be shorter than what is turned at once.
        """
        code, element = self.code, self.element
        short = code.op(f"and i64 {code.sub(run.rows, '1')}, {self.panel - 1}")
        rows = (code.compare("sge", short, str(16 // element.bytes - 1)),
                code.compare("sle", run.rows, str(self.few_panels * self.panel)))  # fmt: skip
        along = code.compare("eq", self.stride["b_k"], str(element.stored_bytes))
        return code.both(*rows, along, code.compare("sgt", run.columns, run.rows))

    def _few_by_window(self) -> str:
        """Whether rows are few for a window, and nearly fill their panels."""
        code, m = self.code, self.size["m"]
        last = code.op(f"and i64 {code.sub(m, '1')}, {self.panel - 1}")
        return code.both(
            code.compare("sle", m, str(self.few_panels * self.panel)),
            code.compare("sge", last, str(self.panel * 3 // 4 - 1)),
            code.compare("sge", self.again[0], str(EVEN)),
            code.op(f"or i1 {covered(code, self.again[0])}, {code.compare('sge', self.again[0], str(LONG))}"),
            code.compare("sge", self.size["k"], code.mul(m, str(DEEP))),
            code.compare("sgt", self.size["n"], m),
        )

    def _exchanged(self, run: Run) -> None:
        """The transposed product: its rows are B's columns, where they lie, and A is packed as its panels.

        The same chains; the sums are turned on their way to the output, or to where they are finished.
        """
        code, pitch = self.code, str(self.panel_bytes)
        turned = code.at(self.packed, str(self.few_panels * self.apart))
        high = str(self.far_units * self.columns * self.panel_bytes)
        with self.segments() as (from_k, depth):
            first = code.compare("eq", from_k, self.split.from_k)
            if self.window:
                self.table(self.look, from_k, depth, str(SEGMENT + SOON), self.k_table)
            with self._row_panels(run) as (panel, part):
                self._pack_rows(part, code.at(self.packed, code.mul(panel, str(self.apart))), from_k, depth)
            with self._column_blocks(run, from_k) as (block, apart):
                with self._row_panels(run) as (panel, part):
                    a = code.at(self.packed, code.mul(panel, str(self.apart)))
                    at = code.mul(code.sub(block.row, run.column), pitch)
                    into = code.at(turned, code.mul(panel, high), at)
                    block = block._replace(column=part.row, columns=part.rows)
                    self.tile(block, (a, pitch), (into, apart), first, depth, self.k_table)
        with self._row_panels(run) as (panel, part):
            self._turn_back(part, code.at(turned, code.mul(panel, high)))

    @contextmanager
    def _column_blocks(self, run: Run, from_k: str) -> Iterator[tuple[Run, str]]:
        """Columns of a run that lie evenly, as rows of tiles; the bytes between their sums.

        Of a window each is `apart` columns from the next, and so many do: then it begins anew.
        """
        code = self.code
        count, apart, step = self.again if self.window else (self.size["n"], "1", "1")
        along = code.mul(step, str(self.element.stored_bytes)) if self.window else self.stride["b_column"]
        code.set(self.a_row, along)
        whole, end = code.mul(count, apart), code.add(run.column, run.columns)
        before = code.variable(code.sub(run.column, self._divide(run.column, whole)[1]))
        with code.during(before, end) as at:
            with code.times(apart) as phase:
                zeroth = code.add(at, phase)
                past = code.sub(code.sub(apart, "1"), zeroth)
                start, stop = (self._divide(code.add(x, past), apart)[0] for x in (run.column, end))
                start, stop = code.maximum(start, "0"), code.minimum(stop, count)
                done = code.variable(start)
                with code.during(done, stop) as index:
                    column, rows = code.add(zeroth, code.mul(index, apart)), self.block(code.sub(stop, index))
                    self._column_at(run.batch, from_k, column)
                    yield run._replace(row=column, rows=rows), code.mul(apart, str(self.panel_bytes))
                    code.set(done, code.add(index, rows))
            code.set(before, code.add(at, whole))

    def _column_at(self, batch: Index, from_k: str, column: str) -> None:
        """A is B from a column on."""
        code = self.code
        if self.window:
            self.table(self.look_n, column, "1", "1", self.n_table)
            here = code.at(self.reach("b", batch), code.op(f"load i64, ptr {self.n_table}"))
        else:
            here = self.reach("b", batch, k=from_k, column=column)
            code.set(self.a_k, self.stride["b_k"])
        code.line(f"store ptr {here}, ptr {self.a_place}")

    @contextmanager
    def _row_panels(self, run: Run) -> Iterator[tuple[str, Run]]:
        """Each panel of a run's rows: its number, and the part of the run."""
        code = self.code
        with code.times(code.ceil_div(run.rows, self.panel)) as panel:
            row = code.mul(panel, str(self.panel))
            rows = code.minimum(code.sub(run.rows, row), str(self.panel))
            yield panel, run._replace(row=code.add(run.row, row), rows=rows)

    def _pack_rows(self, run: Run, into: str, from_k: str, depth: str) -> None:
        """Rows of A as a panel, run after run of its k."""
        code = self.code
        ragged = code.compare("slt", run.rows, str(self.panel))
        with code.when(ragged):
            clear(code, self.element, into, code.mul(depth, str(self.panel_bytes)))
        if not self.window:
            src, beyond = self.rows_of_a(run, from_k)
            steps, beside = (self.stride["a_k"], self.stride["a_row"]), self.element.bytes
            with code.either(beyond) as together:
                self.copy_rows(run, from_k, depth)
                self._pack_run(run, self.copied, (str(beside), str(ROW_PITCH * beside)), into, depth)
                next(together)
                self._pack_run(run, src, steps, into, depth)
            return
        done = code.variable("0")
        with code.during(done, depth) as at:
            count = code.sub(self.a_inner, self._divide(code.add(from_k, at), self.a_inner)[1])
            count = code.minimum(count, code.sub(depth, at))
            self.table(self.look_a, code.add(from_k, at), "1", "1", self.a_table)
            place = code.op(f"load i64, ptr {self.a_table}")
            src = code.at(self.reach("a", run.batch, row=run.row), place)
            steps = self.stride["a_k"], self.stride["a_row"]
            self._pack_run(run, src, steps, code.at(into, code.mul(at, str(self.panel_bytes))), count)
            code.set(done, code.add(at, count))

    def _pack_run(self, run: Run, src: str, steps: tuple[str, str], into: str, depth: str) -> None:
        """Some k of a panel of rows."""
        self.pack(self.turns(steps[0], depth), src, steps, into, self.panel_bytes, depth, run.rows)

    def _turn_back(self, run: Run, sums: str) -> None:
        """A panel of the transposed sums to the output, or finished."""
        code, element, pitch = self.code, self.element, str(self.panel_bytes)
        whole = str(self.far_units * self.columns * element.bytes)
        place = self.split.place(run.row, run.column)
        into = code.choose(self.split.cut, place, self.sums, "ptr")
        apart = code.choose(self.split.cut, self.split.pitch, whole)
        with code.either(self._turns_directly(run)) as held:
            if self.out.plain:
                with self.parts(run) as (at, part):
                    out, row = self.output(part), self.stride["c_row"]
                    src = code.at(sums, code.mul(at, pitch))
                    code.run("turn", f"ptr {src}", pitch, f"ptr {out}", row, part.rows, part.columns)
            next(held)
            code.run("turn", f"ptr {sums}", pitch, f"ptr {into}", apart, run.rows, run.columns)
            with code.when(self.split.whole):
                self.finish(run, self.sums, whole)

    def _turns_directly(self, run: Run) -> str:
        """Whether sums are turned to the output: nothing past the columns may be written."""
        code, masks = self.code, self.code.target.masks
        if not self.out.plain or (self.window and not masks):
            return "false"
        if masks:
            return self.split.whole
        rest = code.op(f"and i64 {run.columns}, {self.panel // VECTORS - 1}")
        return code.both(self.split.whole, code.compare("eq", rest, "0"))
