"""The driver of a matmul kernel on vectors: runs to blocks of B, some rows of A, and tiles.

    each run:  each segment of k:
        B: packed as panels of two vectors of columns, or where it lies; or computed into panels
        each ROWS rows:
            A: where it lies, or copied, or computed
            each panel:  tiles -> sums        (of a plain product, whole panels: the output is the sums)
            the last segment:  finish

A block of B stays in the second cache while all rows go by; a few rows of A stay while all panels go by. The
driver is written to be compiled quickly, and is.

Few rows by a B whose k lie side by side (a linear layer of a batch up to 256) are the transposed product: B
is read where it lies, as A is elsewhere, and the rows are packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.code import LANES
from kiln.codegen.matmul_finish import Arguments, Block
from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import SEGMENT, SOON, VECTORS, Element
from kiln.codegen.matmul_units import UNIT_BYTES, UNIT_ROWS, Driver, Run
from kiln.codegen.matmul_window import DIMS
from kiln.codegen.target import Target

WIDE_UNITS = 4  # column units of a block of B, at most: more fill a second cache of 2 MB, and are slower
SUM_UNITS = 2  # ... if their sums do not go to the output
FEW_PANELS = 8  # rows up to so many panels are few
FEW_BY_WINDOW = 4  # ... by a window
FAR_UNITS = 8  # column units of a run of such rows
EVEN = 8  # columns that lie evenly, at least
DEEP = 2  # k for each of such rows, at least: their sums are turned, which costs as much as packing as many k
ROWS = 56  # rows of A at a time
PACK_ROWS = 64  # a unit-stride B is packed from this many rows; below, it is read where it lies
PACK_BYTES = 4096  # ... or if its rows are less than a page apart and its vectors straddle no cache lines
ROW_PITCH = SEGMENT + 16  # elements between copied rows of A, so that rows fall into different cache sets
CROWDED = 4096  # bytes: rows of A a multiple of it apart share few cache sets, k so far apart pages: copied
SUMS_BYTES = 528 << 10  # of sums that are not finished yet
APART = 128  # bytes between packed panels, which are written side by side


# What lies where in a thread's scratch memory, in bytes; the same for every dtype and target.
COPIED = WIDE_UNITS * (UNIT_BYTES * SEGMENT + 16 * APART)  # rows of A, after the packed panels of B
SUMS = COPIED + ROWS * ROW_PITCH * 8
TABLES = SUMS + SUMS_BYTES
SCRATCH_BYTES = 9 << 18  # the driver of AMX has its own division
assert TABLES + 8 * (2 * (SEGMENT + SOON) + WIDE_UNITS * UNIT_BYTES // 4) <= SCRATCH_BYTES


def drive(
    target: Target,
    element: Element,
    arguments: Arguments,
    plain: int | None,
    window: bool,
    turned: dict[str, bool],
) -> Routine:
    """The routine kernel; `plain` is the operand that takes whole panels of sums as they are, if one does;
    `turned` has the factors that are computed, "first" and "second", and whether from columns to rows.
    """
    return _Driver(target, element, arguments, plain, window, turned).write()


def computed(target: Target, element: Element, name: str, turned: bool) -> Block:
    """What a block of a factor holds: what tiles read; if it is turned on its way there, elements as they lie
    in memory.
    """
    later = turned and name == "second"
    return Block(element.dtype if later else element.total, VECTORS * element.lanes(target))


class _Driver(Driver):
    """The driver under construction."""

    def __init__(
        self,
        target: Target,
        element: Element,
        arguments: Arguments,
        plain: int | None,
        window: bool,
        turned: dict[str, bool],
    ) -> None:
        super().__init__(target, element, arguments, plain, window)
        self.turned = turned
        self.placed = window and not element.widened  # places of k in a factor that is read where it lies
        self.panel, self.panel_bytes = VECTORS * element.lanes(target), VECTORS * target.vector_bits // 8
        self.apart = SEGMENT * self.panel_bytes + APART
        direct = plain is not None and not window
        most = WIDE_UNITS if direct and "second" not in turned else SUM_UNITS
        most = min(target.second_cache // (UNIT_BYTES * SEGMENT), most)
        unit = self.columns * element.bytes
        self.wide_units = max(most * UNIT_BYTES // unit, 1)
        self.few_panels, self.far_units = FEW_PANELS, self.wide_units
        if window:
            self.few_panels, self.far_units = FEW_BY_WINDOW, max(FAR_UNITS * UNIT_BYTES // unit, 1)
        self.pitch = self.panel_bytes if direct else self.wide_units * unit
        assert self.few_panels * (self.apart + self.far_units * self.columns * self.panel_bytes) <= COPIED
        assert self.panel * self.far_units * unit <= SUMS_BYTES
        assert self.panel * self.wide_units * unit <= SUMS_BYTES
        self.b_lies, self.b_step = self.code.slot("ptr"), self.code.slot("i64")
        self.a_place, self.a_row, self.a_k = (
            self.code.slot("ptr"),
            self.code.slot("i64"),
            self.code.slot("i64"),
        )

    def limits(self) -> tuple[str, str]:
        """As many rows as there is room for sums."""
        wide = str(self.wide_units)
        if self.placed:
            code = self.code
            self.a_inner = code.op(f"load i64, ptr {code.offset(self.look_a, 'i64', str(DIMS - 2))}")
            self.a_placed = code.compare("ne", self.a_inner, self.size["k"])
            self.few = self._few_by_window()
            wide = code.choose(self.few, str(self.far_units), wide)
        return str(SUMS_BYTES // self.pitch // UNIT_ROWS), wide

    def run(self, run: Run) -> None:
        """Segments of k, in ascending order; for each, the rows."""
        code = self.code
        self.packed, self.copied, self.sums, tables = (
            code.at(self.scratch, str(place)) for place in (0, COPIED, SUMS, TABLES)
        )
        self.k_table, self.a_table, self.n_table = (
            code.at(tables, str(8 * n * (SEGMENT + SOON))) for n in range(3)
        )
        if self.element.widened or self.turned:
            self._blocks(run)
            return
        if self.window:  # a part of the rows is one unit wide
            few = code.both(self.few, code.compare("eq", run.rows, self.size["m"]))
        else:
            few = self._few_rows(run)
        with code.either(few) as many:
            self._exchanged(run)
            next(many)
            self._blocks(run)

    def _blocks(self, run: Run) -> None:
        """Panels of B, and some rows of A at a time."""
        code = self.code
        if self.window:
            columns = str(self.wide_units * self.columns)
            self._table(self.look_n, run.column, run.columns, columns, self.n_table)
        with self._segments() as (from_k, depth):
            lies = self._factor_b(run, from_k, depth)
            if self.placed:
                with code.when(self.a_placed):
                    self._table(self.look_a, from_k, depth, str(SEGMENT + SOON), self.a_table)
            with code.times(run.rows, ROWS) as row:
                rows = code.minimum(code.sub(run.rows, row), str(ROWS))
                part = Run(run.batch, code.add(run.row, row), rows, run.column, run.columns)
                self._factor_a(part, from_k, depth)
                self._panels(part, row, from_k, depth, lies)

    @contextmanager
    def _segments(self) -> Iterator[tuple[str, str]]:
        """The segments of k: where each begins, and how many it has."""
        code = self.code
        with code.loop(self.split.from_k, self.split.to_k, SEGMENT) as turn:
            yield turn.index, code.minimum(code.sub(self.split.to_k, turn.index), str(SEGMENT))

    def _table(self, look: str, start: str, count: str, room: str, table: str) -> None:
        """Where a window's columns, or its k, lie."""
        self.code.run("places", f"ptr {look}", start, count, room, f"ptr {table}")

    # -- B ------------------------------------------------------------------------------------------

    def _packed_panel(self, left: str) -> str:
        """Where the panel that begins `left` columns into the run is packed."""
        code = self.code
        return code.at(self.packed, code.mul(code.op(f"sdiv i64 {left}, {self.panel}"), str(self.apart)))

    def _factor_b(self, run: Run, from_k: str, depth: str) -> str:
        """Leaves the block's panels, of this segment, packed; whether whole ones are read where they lie."""
        if "second" in self.turned:
            return self._compute_b(run, from_k, depth)
        return (self._pack_window if self.window else self._pack_b)(run, from_k, depth)

    def _compute_b(self, run: Run, from_k: str, depth: str) -> str:
        """Computes the panels; columns past the last are zero (or repeat it), and all without k."""
        code, pitch = self.code, str(self.panel_bytes)
        code.line(f"store ptr {self.b}, ptr {self.b_lies}")
        code.set(self.b_step, pitch)
        filled = code.op(f"xor i1 {self.empty}, true")
        single = self.panel < LANES  # one panel at a time: 16 columns are more
        with code.times(run.columns, self.panel) as at:
            columns = code.minimum(code.sub(run.columns, at), str(self.panel))
            into, column = self._packed_panel(at), code.add(run.column, at)
            ragged = code.compare("slt", columns, str(self.panel))
            with code.when(code.op(f"or i1 {ragged}, {self.empty}")):
                clear(code, self.element, into, code.mul(depth, pitch))
            if self.turned["second"]:
                with code.when(filled):
                    self._turn_b([run.batch, column, columns, from_k, depth], into)
            elif single:
                with code.when(filled):
                    alone = [run.batch, from_k, depth, column, columns]
                    self.compute("second", alone, into, pitch, self.panel_bytes)
        if not self.turned["second"] and not single:
            with code.when(filled):
                whole = [run.batch, from_k, depth, run.column, run.columns]
                self.compute("second", whole, self.packed, pitch, self.apart)
        return "false"

    def _turn_b(self, rectangle: list[str], into: str) -> None:
        """A panel whose neighbours lie along k: columns where A's rows will be, then turned."""
        code, size = self.code, self.element.stored_bytes
        columns, depth, least = rectangle[2], rectangle[4], str(16 // self.element.bytes)
        pitch = str(ROW_PITCH * size)
        self.compute("second", rectangle, self.copied, pitch, self.panel * size)
        deep = code.choose(code.compare("slt", depth, least), least, depth)
        code.run("turn", f"ptr {self.copied}", pitch, f"ptr {into}", str(self.panel_bytes), deep, columns)

    def _pack_b(self, run: Run, from_k: str, depth: str) -> str:
        """Packs panels by how B lies.

        as it lies:  unit-stride columns, and not enough rows to pay for packing
        turned:      unit stride along k
        copied:      anything else; columns past the last are zero
        """
        code, element = self.code, self.element
        src = self.reach(self.b, b_batch=run.batch, b_k=from_k, b_column=run.column)
        step, column = self.stride["b_k"], self.stride["b_column"]
        lies = self._lies_well(src, run)
        code.line(f"store ptr {src}, ptr {self.b_lies}")
        code.set(self.b_step, code.choose(lies, step, str(self.panel_bytes)))
        whole = code.op(f"and i64 {run.columns}, {-self.panel}")
        unit = code.compare("eq", column, str(element.stored_bytes))
        beside = code.both(unit, code.op(f"xor i1 {lies}, true"))
        with code.when(beside):
            self._copy(src, (step, column), self.packed, (self.panel_bytes, self.apart), depth, whole)
        first = code.choose(unit, whole, "0")
        turned = code.both(
            code.compare("eq", step, str(element.stored_bytes)),
            code.compare("sge", depth, str(16 // element.bytes)),
            code.compare("sge", run.columns, "4"),
        )
        with code.loop(first, run.columns, self.panel) as turn:
            columns = code.minimum(code.sub(run.columns, turn.index), str(self.panel))
            into = self._packed_panel(turn.index)
            with code.when(code.compare("slt", columns, str(self.panel))):
                clear(code, element, into, code.mul(depth, str(self.panel_bytes)))
            here = code.at(src, code.mul(turn.index, column))
            self._pack(turned, here, (step, column), into, self.panel_bytes, depth, columns)
        return lies

    def _lies_well(self, src: str, run: Run) -> str:
        """Whether whole panels of B are read where they lie: packing costs as much as a few rows of tiles."""
        if self.element.widened:
            return "false"
        code, step = self.code, self.stride["b_k"]
        unit = code.compare("eq", self.stride["b_column"], str(self.element.stored_bytes))
        low = code.compare("slt", run.rows, str(PACK_ROWS))
        near = code.compare("slt", step, str(PACK_BYTES))
        places = code.op(f"or i64 {code.op(f'ptrtoint ptr {src} to i64')}, {step}")
        aligned = code.compare("eq", code.op(f"and i64 {places}, {self.panel_bytes // VECTORS - 1}"), "0")
        return code.both(unit, code.op(f"or i1 {low}, {code.both(near, aligned)}"))

    def _pack_window(self, run: Run, from_k: str, depth: str) -> str:
        """Packs the panels of a window, whose columns have their table."""
        code, lanes = self.code, self.panel // VECTORS
        self._table(self.look, from_k, depth, depth, self.k_table)
        code.set(self.b_step, str(self.panel_bytes))
        src = self.reach(self.b, b_batch=run.batch)
        last = code.op(f"and i64 {code.sub(run.columns, '1')}, {-self.panel}")
        with code.when(code.compare("sle", code.sub(run.columns, last), str(lanes))):
            clear(code, self.element, self._packed_panel(last), code.mul(depth, str(self.panel_bytes)))
        with code.times(run.columns, self.panel) as at:
            code.run(
                "window", f"ptr {src}", f"ptr {self.k_table}", depth,
                f"ptr {code.offset(self.n_table, 'i64', at)}",
                code.minimum(code.sub(run.columns, at), str(self.panel)), f"ptr {self._packed_panel(at)}",
                str(self.panel_bytes),
            )  # fmt: skip
        return "false"

    def _pack(
        self, turned: str, src: str, steps: tuple[str, str], into: str, pitch: int, outer: str, inner: str
    ) -> None:
        """Copies outer x inner elements; turns them in registers where neighbours lie along outer."""
        code = self.code
        with code.either(turned) as straight:
            code.run("turn", f"ptr {src}", steps[1], f"ptr {into}", str(pitch), outer, inner)
            next(straight)
            self._copy(src, steps, into, (pitch, self.panel_bytes), outer, inner)

    def _copy(
        self, src: str, steps: tuple[str, str], into: str, apart: tuple[int, int], outer: str, inner: str
    ) -> None:
        """Copies outer x inner elements; `apart` are the bytes from row to row, and from panel to panel."""
        self.code.run("copy", f"ptr {src}", *steps, f"ptr {into}", *map(str, apart), outer, inner)

    # -- few rows -----------------------------------------------------------------------------------

    def _few_rows(self, run: Run) -> str:
        """Whether a run has so few rows that packing a B which must be turned costs as much as tiles.

        No panel of them may be shorter than what is turned at once.
        """
        code, element = self.code, self.element
        short = code.op(f"and i64 {code.sub(run.rows, '1')}, {self.panel - 1}")
        rows = (code.compare("sge", short, str(16 // element.bytes - 1)),
                code.compare("sle", run.rows, str(FEW_PANELS * self.panel)))  # fmt: skip
        along = code.compare("eq", self.stride["b_k"], str(element.stored_bytes))
        return code.both(*rows, along, code.compare("sgt", run.columns, run.rows))

    def _few_by_window(self) -> str:
        """Whether rows are few for a window, and nearly fill their panels."""
        code, m = self.code, self.size["m"]
        last = code.op(f"and i64 {code.sub(m, '1')}, {self.panel - 1}")
        return code.both(
            code.compare("sle", m, str(FEW_BY_WINDOW * self.panel)),
            code.compare("sge", last, str(self.panel * 3 // 4 - 1)),
            code.compare("sge", self.again[0], str(EVEN)),
            code.compare("sge", self.size["k"], code.mul(m, str(DEEP))),
        )

    def _exchanged(self, run: Run) -> None:
        """The transposed product: its rows are B's columns, where they lie, and A is packed as its panels.

        The same chains; the sums are turned on their way to the output, or to where they are finished.
        """
        code, pitch = self.code, str(self.panel_bytes)
        turned = code.at(self.packed, str(self.few_panels * self.apart))
        high = str(self.far_units * self.columns * self.panel_bytes)
        with self._segments() as (from_k, depth):
            first = code.compare("eq", from_k, self.split.from_k)
            if self.window:
                self._table(self.look, from_k, depth, str(SEGMENT + SOON), self.k_table)
                self._table(self.look_a, from_k, depth, depth, self.a_table)
            with self._row_panels(run) as (panel, part):
                self._pack_rows(part, code.at(self.packed, code.mul(panel, str(self.apart))), from_k, depth)
            with self._column_blocks(run, from_k) as (block, apart):
                with self._row_panels(run) as (panel, part):
                    a = code.at(self.packed, code.mul(panel, str(self.apart)))
                    at = code.mul(code.sub(block.row, run.column), pitch)
                    into = code.at(turned, code.mul(panel, high), at)
                    block = block._replace(column=part.row, columns=part.rows)
                    self._tile(block, (a, pitch), (into, apart), first, depth, self.k_table)
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
                with code.loop(start, stop, ROWS) as turn:
                    column = code.add(zeroth, code.mul(turn.index, apart))
                    rows = code.minimum(code.sub(stop, turn.index), str(ROWS))
                    self._column_at(run.batch, from_k, column)
                    yield run._replace(row=column, rows=rows), code.mul(apart, str(self.panel_bytes))
            code.set(before, code.add(at, whole))

    def _column_at(self, batch: str, from_k: str, column: str) -> None:
        """A is B from a column on."""
        code = self.code
        if self.window:
            self._table(self.look_n, column, "1", "1", self.n_table)
            here = code.at(self.reach(self.b, b_batch=batch), code.op(f"load i64, ptr {self.n_table}"))
        else:
            here = self.reach(self.b, b_batch=batch, b_k=from_k, b_column=column)
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
            src = self.reach(self.a, a_batch=run.batch, a_row=run.row, a_k=from_k)
            self._pack_run(run, src, into, depth)
            return
        done = code.variable("0")
        with code.during(done, depth) as at:
            count = code.sub(self.a_inner, self._divide(code.add(from_k, at), self.a_inner)[1])
            count = code.minimum(count, code.sub(depth, at))
            place = code.op(f"load i64, ptr {code.offset(self.a_table, 'i64', at)}")
            src = code.at(self.reach(self.a, a_batch=run.batch, a_row=run.row), place)
            self._pack_run(run, src, code.at(into, code.mul(at, str(self.panel_bytes))), count)
            code.set(done, code.add(at, count))

    def _pack_run(self, run: Run, src: str, into: str, depth: str) -> None:
        """Some k of a panel of rows."""
        code, element = self.code, self.element
        turned = code.both(
            code.compare("eq", self.stride["a_k"], str(element.stored_bytes)),
            code.compare("sge", depth, str(16 // element.bytes)),
        )
        steps = (self.stride["a_k"], self.stride["a_row"])
        self._pack(turned, src, steps, into, self.panel_bytes, depth, run.rows)

    def _turn_back(self, run: Run, sums: str) -> None:
        """A panel of the transposed sums to the output, or finished."""
        code, element, pitch = self.code, self.element, str(self.panel_bytes)
        whole = str(self.far_units * self.columns * element.bytes)
        place = self.split.place(run.batch, run.row, run.column)
        into = code.choose(self.split.cut, place, self.sums, "ptr")
        apart = code.choose(self.split.cut, self.split.pitch, whole)
        with code.either(self._turns_directly(run)) as held:
            if self.plain is not None:
                with self.parts(run) as (at, part):
                    out = self.reach(self.c, c_batch=part.batch, c_row=part.row)
                    out = code.at(out, code.mul(part.column, str(element.bytes)))
                    src = code.at(sums, code.mul(at, pitch))
                    row = self.stride["c_row"]
                    code.run("turn", f"ptr {src}", pitch, f"ptr {out}", row, part.rows, part.columns)
            next(held)
            code.run("turn", f"ptr {sums}", pitch, f"ptr {into}", apart, run.rows, run.columns)
            with code.when(self.split.whole):
                self.finish(run, self.sums, whole)

    def _turns_directly(self, run: Run) -> str:
        """Whether sums are turned to the output: nothing past the columns may be written."""
        if self.plain is None or (self.window and not self.code.target.masks):
            return "false"
        if self.code.target.masks:
            return self.split.whole
        code = self.code
        rest = code.op(f"and i64 {run.columns}, {self.panel // VECTORS - 1}")
        return code.both(self.split.whole, code.compare("eq", rest, "0"))

    # -- A ------------------------------------------------------------------------------------------

    def _factor_a(self, run: Run, from_k: str, depth: str) -> None:
        """A as it lies, or its rows (or columns) in the summed type one after the other."""
        code, element = self.code, self.element
        row, along = self.stride["a_row"], self.stride["a_k"]
        first = code.choose(self.a_placed, "0", from_k) if self.placed else from_k
        src = self.reach(self.a, a_batch=run.batch, a_row=run.row, a_k=first)
        code.line(f"store ptr {src}, ptr {self.a_place}")
        code.set(self.a_row, row)
        code.set(self.a_k, along)
        if "first" in self.turned:
            with code.when(code.op(f"xor i1 {self.empty}, true")):
                self._compute_a(run, from_k, depth)
            return
        with code.when("true" if element.widened else self._crowded()):
            turned = code.both(
                code.compare("eq", row, str(element.stored_bytes)),
                code.compare("sge", run.rows, str(16 // element.bytes)),
            )
            pitch = ROW_PITCH * element.bytes
            self._pack(turned, src, (row, along), self.copied, pitch, run.rows, depth)
            self._copied(pitch, element.bytes)

    def _compute_a(self, run: Run, from_k: str, depth: str) -> None:
        """A's rows computed; its columns, if neighbours lie along them."""
        size, rows, depths = self.element.bytes, [run.row, run.rows], [from_k, depth]
        turned = self.turned["first"]
        rectangle, pitch = (depths + rows, ROWS * size) if turned else (rows + depths, ROW_PITCH * size)
        self.compute("first", [run.batch, *rectangle], self.copied, str(pitch), self.panel_bytes)
        self._copied(*((size, pitch) if turned else (pitch, size)))

    def _copied(self, row: int, along: int) -> None:
        """A is the copied block, rows and k so many bytes apart."""
        code = self.code
        code.line(f"store ptr {self.copied}, ptr {self.a_place}")
        code.set(self.a_row, str(row))
        code.set(self.a_k, str(along))

    def _crowded(self) -> str:
        """Whether a tile's rows of A share cache sets, or each k lies on a page of its own."""
        code, along = self.code, self.stride["a_k"]
        unit = code.compare("eq", along, str(self.element.bytes))
        sets = code.compare("eq", code.op(f"and i64 {self.stride['a_row']}, {CROWDED - 1}"), "0")
        pages = code.compare("sge", along, str(CROWDED))
        crowded = code.op(f"or i1 {code.both(unit, sets)}, {pages}")
        return code.both(crowded, code.op(f"xor i1 {self.a_placed}, true")) if self.placed else crowded

    # -- sums ---------------------------------------------------------------------------------------

    def _panels(self, run: Run, row: str, from_k: str, depth: str, lies: str) -> None:
        """The tiles of some rows, `row` rows into their run, with each panel; what is complete, finished."""
        code, size = self.code, str(self.element.bytes)
        first = code.compare("eq", from_k, self.split.from_k)
        last = code.both(self.split.whole, code.compare("eq", code.add(from_k, depth), self.size["k"]))
        rows = code.at(self.sums, code.mul(row, str(self.pitch)))
        with code.times(run.columns, self.panel) as left:
            columns = code.minimum(code.sub(run.columns, left), str(self.panel))
            whole = code.compare("eq", columns, str(self.panel))
            part = Run(run.batch, run.row, run.rows, code.add(run.column, left), columns)
            into, pitch, direct = self._sums(part, code.mul(left, size), rows, whole)
            b = self._packed_panel(left)
            step = code.get(self.b_step)
            if not self.window:
                there = code.at(code.op(f"load ptr, ptr {self.b_lies}"), code.mul(left, size))
                lying = code.both(lies, whole)
                b = code.choose(lying, there, b, "ptr")
                step = code.choose(lying, step, str(self.panel_bytes))
            self._tile(part, (b, step), (into, pitch), first, depth)
            if self.plain is not None:
                with code.when(code.both(last, code.op(f"xor i1 {direct}, true"))):
                    self.finish(part, into, pitch)
        if self.plain is None:
            with code.when(last):
                self.finish(run, rows, str(self.pitch))

    def _sums(self, run: Run, left: str, rows: str, whole: str) -> tuple[str, str, str]:
        """Where a panel's sums go, the distance of their rows, and whether that is the output."""
        code, split = self.code, self.split
        part = split.place(run.batch, run.row, run.column)
        pitch = code.choose(split.cut, split.pitch, str(self.pitch))
        if self.plain is None:
            return code.choose(split.cut, part, code.at(rows, left), "ptr"), pitch, "false"
        batch, column, inside = self.place(run.batch, run.column, run.columns)
        direct = code.both(split.whole, whole, inside)
        out = code.at(
            self.reach(self.c, c_batch=batch, c_row=run.row), code.mul(column, str(self.element.bytes))
        )
        held = code.choose(split.cut, part, code.at(rows, left) if self.window else rows, "ptr")
        into = code.choose(direct, out, held, "ptr")
        return into, code.choose(direct, self.stride["c_row"], pitch), direct

    def _tile(
        self, run: Run, b: tuple[str, str], sums: tuple[str, str], first: str, depth: str, table: str = ""
    ) -> None:
        """One panel's tiles: the first segment's sums are stored, later ones added.

        Over a window `table` has the places of A's k; without it they are a step apart, or A's own.
        """
        code = self.code
        into, pitch = sums
        old, old_pitch = code.choose(first, "@nothing", into, "ptr"), code.choose(first, "0", pitch)
        narrow = code.compare("sle", run.columns, str(self.panel // VECTORS))
        a, row = code.op(f"load ptr, ptr {self.a_place}"), code.get(self.a_row)
        rest = (f"ptr {into}", pitch, f"ptr {old}", old_pitch, depth, run.rows,
                f"i1 {narrow}")  # fmt: skip
        if not self.placed:
            code.run("tile", f"ptr {a}", row, code.get(self.a_k), f"ptr {b[0]}", b[1], *rest)
        elif table:
            code.run("tile_of_places", f"ptr {a}", row, f"ptr {table}", f"ptr {b[0]}", *rest)
        else:
            with code.either(self.a_placed) as evenly:
                code.run("tile_of_places", f"ptr {a}", row, f"ptr {self.a_table}", f"ptr {b[0]}", *rest)
                next(evenly)
                code.run("tile", f"ptr {a}", row, code.get(self.a_k), f"ptr {b[0]}", b[1], *rest)
