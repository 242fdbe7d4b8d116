"""The driver of a matmul kernel on vectors: runs to blocks of B, some rows of A, and tiles.

    each run:  each segment of k:
        B: packed as panels of two vectors of columns, or where it lies; or computed into panels
        each block of rows:
            A: where it lies, or copied, or computed
            each panel:  tiles -> sums        (or to an output: panels that are whole, or masked)
            the last segment:  finish

A block of B stays in the second cache while all rows go by; a few rows of A stay while all panels go by. The
driver is written to be compiled quickly, and is. Runs of few rows go another way: matmul_exchanged.py.
"""

from __future__ import annotations

from typing import Any

from kiln.codegen.code import LANES
from kiln.codegen.index import Condition, Index, Pointer, every
from kiln.codegen.matmul_exchanged import Exchanged
from kiln.codegen.matmul_finish import Arguments, Block
from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import SEGMENT, SOON, VECTORS, Element
from kiln.codegen.matmul_units import Output, Run
from kiln.codegen.matmul_vectors import ROW_PITCH, ROWS
from kiln.codegen.target import Target

PACK_ROWS = 64  # a unit-stride B is packed from this many rows; below, it is read where it lies
PACK_BYTES = 4096  # ... or if its rows are less than a page apart and its vectors straddle no cache lines
CROWDED = 4096  # bytes: rows of A a multiple of it apart share few cache sets, k so far apart pages: copied


def drive(
    target: Target,
    element: Element,
    arguments: Arguments,
    out: Output,
    window: bool,
    turned: dict[str, bool],
) -> Routine:
    """The routine kernel; `out` is the operand that takes whole panels of sums, if one does;
    `turned` has the factors that are computed, "first" and "second", and whether from columns to rows.
    """
    return _Driver(target, element, arguments, out, window, turned).write()


def computed(target: Target, element: Element, name: str, turned: bool) -> Block:
    """What a block of a factor holds: what tiles read; if it is turned on its way there, elements as they lie
    in memory.
    """
    later = turned and name == "second"
    return Block(element.dtype if later else element.total, VECTORS * element.lanes(target))


class _Driver(Exchanged):
    """The driver under construction."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.b_lies, self.b_step = self.code.slot("ptr"), self.code.variable()

    def blocks(self, run: Run) -> None:
        """Panels of B, and some rows of A at a time."""
        code = self.code
        if self.window:
            columns = self.wide_units * self.columns
            self.table(self.look_n, run.column, run.columns, columns, self.n_table)
        with self.segments() as (from_k, depth):
            lies = self._factor_b(run, from_k, depth)
            if self.placed:
                with code.when(self.a_placed):
                    self.table(self.look_a, from_k, depth, SEGMENT + SOON, self.a_table)
            done = code.variable(0)
            with code.during(done, run.rows) as row:
                rows = self.block(run.rows - row)
                done.set(row + rows)
                part = Run(run.batch, run.row + row, rows, run.column, run.columns)
                self._factor_a(part, from_k, depth)
                self._panels(part, row, from_k, depth, lies)

    # -- B ------------------------------------------------------------------------------------------

    def _packed_panel(self, left: Index) -> Pointer:
        """Where the panel that begins `left` columns into the run is packed."""
        return self.packed[left // self.panel * self.apart]

    def _factor_b(self, run: Run, from_k: Index, depth: Index) -> Condition:
        """Leaves the block's panels, of this segment, packed; whether whole ones are read where they lie."""
        if "second" in self.turned:
            return self._compute_b(run, from_k, depth)
        return (self._pack_window if self.window else self._pack_b)(run, from_k, depth)

    def _compute_b(self, run: Run, from_k: Index, depth: Index) -> Condition:
        """Computes the panels; columns past the last are zero (or repeat it), and all without k."""
        code, pitch = self.code, self.panel_bytes
        self.b_lies.put(self.base["b"])
        self.b_step.set(pitch)
        filled = ~self.empty
        single = self.panel < LANES  # one panel at a time: 16 columns are more
        with code.times(run.columns, self.panel) as at:
            columns = (run.columns - at).min(self.panel)
            into, column = self._packed_panel(at), run.column + at
            ragged = columns < self.panel
            with code.when(ragged | self.empty):
                clear(code, self.element, into, depth * pitch)
            if self.turned["second"]:
                with code.when(filled):
                    self._turn_b([*run.batch, column, columns, from_k, depth], into)
            elif single:
                with code.when(filled):
                    alone = [*run.batch, from_k, depth, column, columns]
                    self.compute("second", alone, into, pitch, self.panel_bytes)
        if not self.turned["second"] and not single:
            with code.when(filled):
                whole = [*run.batch, from_k, depth, run.column, run.columns]
                self.compute("second", whole, self.packed, pitch, self.apart)
        return self.code.condition(False)

    def _turn_b(self, rectangle: list[Index], into: Pointer) -> None:
        """A panel whose neighbours lie along k: columns where A's rows will be, then turned."""
        code, size = self.code, self.element.stored_bytes
        columns, depth, least = rectangle[-3], rectangle[-1], 16 // self.element.bytes
        pitch = ROW_PITCH * size
        self.compute("second", rectangle, self.copied, pitch, self.panel * size)
        deep = (depth < least).choose(least, depth)
        code.run("turn", self.copied, pitch, into, self.panel_bytes, deep, columns)

    def _pack_b(self, run: Run, from_k: Index, depth: Index) -> Condition:
        """Packs panels by how B lies.

        as it lies:  unit-stride columns, and not enough rows to pay for packing
        turned:      unit stride along k
        copied:      anything else; columns past the last are zero, if they are not masked
        """
        code, element = self.code, self.element
        src = self.reach("b", run.batch, k=from_k, column=run.column)
        step, column = self.stride["b_k"], self.stride["b_column"]
        lies = self._lies_well(src, run)
        self.b_lies.put(src)
        self.b_step.set(lies.choose(step, self.panel_bytes))
        whole = run.columns & -self.panel
        unit = column.equals(element.stored_bytes)
        beside = unit & ~lies
        with code.when(beside):
            self.copy(src, (step, column), self.packed, (self.panel_bytes, self.apart), depth, whole)
        first = unit.choose(whole, 0)
        first = lies.choose(run.columns, first) if self.masked else first
        turned = self.turns(step, depth) & (run.columns >= 4)
        with code.loop(first, run.columns, self.panel) as turn:
            columns = (run.columns - turn.index).min(self.panel)
            into = self._packed_panel(turn.index)
            if not self.masked:
                with code.when(columns < self.panel):
                    clear(code, element, into, depth * self.panel_bytes)
            here = src[turn.index * column]
            self.pack(turned, here, (step, column), into, self.panel_bytes, depth, columns)
        return lies

    def _lies_well(self, src: Pointer, run: Run) -> Condition:
        """Whether whole panels of B are read where they lie: packing costs as much as a few rows of tiles."""
        if self.element.widened:
            return self.code.condition(False)
        step = self.stride["b_k"]
        unit = self.stride["b_column"].equals(self.element.stored_bytes)
        low = run.rows < PACK_ROWS
        near = step < PACK_BYTES
        places = src.address() | step
        aligned = (places & (self.panel_bytes // VECTORS - 1)).equals(0)
        return unit & (low | (near & aligned))

    def _pack_window(self, run: Run, from_k: Index, depth: Index) -> Condition:
        """Packs the panels of a window, whose columns have their table."""
        code, lanes = self.code, self.panel // VECTORS
        self.table(self.look, from_k, depth, depth, self.k_table)
        self.b_step.set(self.panel_bytes)
        src = self.reach("b", run.batch)
        last = (run.columns - 1) & -self.panel
        with code.when(run.columns - last <= lanes):
            clear(code, self.element, self._packed_panel(last), depth * self.panel_bytes)
        with code.times(run.columns, self.panel) as at:
            code.run(
                "window", src, self.k_table, depth,
                self.n_table.element('i64', at),
                (run.columns - at).min(self.panel), self._packed_panel(at),
                self.panel_bytes,
            )  # fmt: skip
        return self.code.condition(False)

    # -- A ------------------------------------------------------------------------------------------

    def _factor_a(self, run: Run, from_k: Index, depth: Index) -> None:
        """A as it lies, or its rows (or columns) in the summed type one after the other."""
        code, element = self.code, self.element
        row, along = self.stride["a_row"], self.stride["a_k"]
        first = self.a_placed.choose(0, from_k) if self.placed else from_k
        src, beyond = self.rows_of_a(run, first)
        self.a_place.put(src)
        self.a_row.set(row)
        self.a_k.set(along)
        if "first" in self.turned:
            with code.when(~self.empty):
                self._compute_a(run, from_k, depth)
            return
        with code.when(code.condition(True) if element.widened else beyond | self._crowded()):
            self.copy_rows(run, first, depth)
            self._copied(ROW_PITCH * element.bytes, element.bytes)

    def _compute_a(self, run: Run, from_k: Index, depth: Index) -> None:
        """A's rows computed; its columns, if neighbours lie along them."""
        size, rows, depths = self.element.bytes, [run.row, run.rows], [from_k, depth]
        turned = self.turned["first"]
        rectangle, pitch = (depths + rows, ROWS * size) if turned else (rows + depths, ROW_PITCH * size)
        self.compute("first", [*run.batch, *rectangle], self.copied, pitch, self.panel_bytes)
        self._copied(*((size, pitch) if turned else (pitch, size)))

    def _copied(self, row: int, along: int) -> None:
        """A is the copied block, rows and k so many bytes apart."""
        self.a_place.put(self.copied)
        self.a_row.set(row)
        self.a_k.set(along)

    def _crowded(self) -> Condition:
        """Whether a tile's rows of A share cache sets, or each k lies on a page of its own."""
        along = self.stride["a_k"]
        unit = along.equals(self.element.bytes)
        sets = (self.stride["a_row"] & (CROWDED - 1)).equals(0)
        pages = along >= CROWDED
        crowded = (unit & sets) | pages
        return crowded & ~self.a_placed if self.placed else crowded

    # -- sums ---------------------------------------------------------------------------------------

    def _panels(self, run: Run, row: Index, from_k: Index, depth: Index, lies: Condition) -> None:
        """The tiles of some rows, `row` rows into their run, with each panel; what is complete, finished."""
        code, size = self.code, self.element.bytes
        first = from_k.equals(self.split.from_k)
        last = self.split.whole & (from_k + depth).equals(self.size["k"])
        rows = self.sums[row * self.pitch]
        with code.times(run.columns, self.panel) as left:
            columns = (run.columns - left).min(self.panel)
            whole = columns.equals(self.panel)
            fits = code.condition(True) if self.masked else whole
            part = Run(run.batch, run.row, run.rows, run.column + left, columns)
            into, pitch, direct = self._sums(part, left * size, rows, fits)
            b = self._packed_panel(left)
            step = self.b_step.get()
            if not self.window:
                there = self.b_lies.pointer()[left * size]
                lying = lies & fits
                b = lying.choose(there, b)
                step = lying.choose(step, self.panel_bytes)
            place = (b, step), (into, pitch), first, depth
            if self.masked:
                with code.either(whole) as ragged:
                    self.tile(part, *place)
                    next(ragged)
                    self.tile(part, *place, masked=True)
            else:
                self.tile(part, *place)
                if self.out.operand is not None:
                    with code.when(last & ~direct):
                        self.finish(part, into, pitch)
        if self.out.operand is None:
            with code.when(last):
                self.finish(run, rows, self.pitch)
        elif not self.out.plain:
            with code.when(last):
                columns = run.columns & -self.panel
                panels = run if self.masked else run._replace(columns=columns)
                self.finish(panels, self.output(run), self.stride["c_row"])

    def _sums(
        self, run: Run, left: Index, rows: Pointer, whole: Condition
    ) -> tuple[Pointer, Index, Condition]:
        """Where a panel's sums go, the distance of their rows, and whether that is the output."""
        split = self.split
        part = split.place(run.row, run.column)
        pitch = split.cut.choose(split.pitch, self.pitch)
        if self.out.operand is None:
            return split.cut.choose(part, rows[left]), pitch, self.code.condition(False)
        batch, column, inside = self.place(run.batch, run.column, run.columns)
        direct = every(split.whole, whole, inside)
        out = self.output(run._replace(batch=batch, column=column))
        held = split.cut.choose(part, rows[left] if self.window else rows)
        into = direct.choose(out, held)
        return into, direct.choose(self.stride["c_row"], pitch), direct
