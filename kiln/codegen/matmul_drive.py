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
        self.b_lies, self.b_step = self.code.slot("ptr"), self.code.slot("i64")

    def blocks(self, run: Run) -> None:
        """Panels of B, and some rows of A at a time."""
        code = self.code
        if self.window:
            columns = str(self.wide_units * self.columns)
            self.table(self.look_n, run.column, run.columns, columns, self.n_table)
        with self.segments() as (from_k, depth):
            lies = self._factor_b(run, from_k, depth)
            if self.placed:
                with code.when(self.a_placed):
                    self.table(self.look_a, from_k, depth, str(SEGMENT + SOON), self.a_table)
            done = code.variable("0")
            with code.during(done, run.rows) as row:
                rows = self.block(code.sub(run.rows, row))
                code.set(done, code.add(row, rows))
                part = Run(run.batch, code.add(run.row, row), rows, run.column, run.columns)
                self._factor_a(part, from_k, depth)
                self._panels(part, row, from_k, depth, lies)

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
        code.line(f"store ptr {self.base['b']}, ptr {self.b_lies}")
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
                    self._turn_b([*run.batch, column, columns, from_k, depth], into)
            elif single:
                with code.when(filled):
                    alone = [*run.batch, from_k, depth, column, columns]
                    self.compute("second", alone, into, pitch, self.panel_bytes)
        if not self.turned["second"] and not single:
            with code.when(filled):
                whole = [*run.batch, from_k, depth, run.column, run.columns]
                self.compute("second", whole, self.packed, pitch, self.apart)
        return "false"

    def _turn_b(self, rectangle: list[str], into: str) -> None:
        """A panel whose neighbours lie along k: columns where A's rows will be, then turned."""
        code, size = self.code, self.element.stored_bytes
        columns, depth, least = rectangle[-3], rectangle[-1], str(16 // self.element.bytes)
        pitch = str(ROW_PITCH * size)
        self.compute("second", rectangle, self.copied, pitch, self.panel * size)
        deep = code.choose(code.compare("slt", depth, least), least, depth)
        code.run("turn", f"ptr {self.copied}", pitch, f"ptr {into}", str(self.panel_bytes), deep, columns)

    def _pack_b(self, run: Run, from_k: str, depth: str) -> str:
        """Packs panels by how B lies.

        as it lies:  unit-stride columns, and not enough rows to pay for packing
        turned:      unit stride along k
        copied:      anything else; columns past the last are zero, if they are not masked
        """
        code, element = self.code, self.element
        src = self.reach("b", run.batch, k=from_k, column=run.column)
        step, column = self.stride["b_k"], self.stride["b_column"]
        lies = self._lies_well(src, run)
        code.line(f"store ptr {src}, ptr {self.b_lies}")
        code.set(self.b_step, code.choose(lies, step, str(self.panel_bytes)))
        whole = code.op(f"and i64 {run.columns}, {-self.panel}")
        unit = code.compare("eq", column, str(element.stored_bytes))
        beside = code.both(unit, code.op(f"xor i1 {lies}, true"))
        with code.when(beside):
            self.copy(src, (step, column), self.packed, (self.panel_bytes, self.apart), depth, whole)
        first = code.choose(unit, whole, "0")
        first = code.choose(lies, run.columns, first) if self.masked else first
        turned = code.both(self.turns(step, depth), code.compare("sge", run.columns, "4"))
        with code.loop(first, run.columns, self.panel) as turn:
            columns = code.minimum(code.sub(run.columns, turn.index), str(self.panel))
            into = self._packed_panel(turn.index)
            if not self.masked:
                with code.when(code.compare("slt", columns, str(self.panel))):
                    clear(code, element, into, code.mul(depth, str(self.panel_bytes)))
            here = code.at(src, code.mul(turn.index, column))
            self.pack(turned, here, (step, column), into, self.panel_bytes, depth, columns)
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
        self.table(self.look, from_k, depth, depth, self.k_table)
        code.set(self.b_step, str(self.panel_bytes))
        src = self.reach("b", run.batch)
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

    # -- A ------------------------------------------------------------------------------------------

    def _factor_a(self, run: Run, from_k: str, depth: str) -> None:
        """A as it lies, or its rows (or columns) in the summed type one after the other."""
        code, element = self.code, self.element
        row, along = self.stride["a_row"], self.stride["a_k"]
        first = code.choose(self.a_placed, "0", from_k) if self.placed else from_k
        src, beyond = self.rows_of_a(run, first)
        code.line(f"store ptr {src}, ptr {self.a_place}")
        code.set(self.a_row, row)
        code.set(self.a_k, along)
        if "first" in self.turned:
            with code.when(code.op(f"xor i1 {self.empty}, true")):
                self._compute_a(run, from_k, depth)
            return
        with code.when("true" if element.widened else code.op(f"or i1 {beyond}, {self._crowded()}")):
            self.copy_rows(run, first, depth)
            self._copied(ROW_PITCH * element.bytes, element.bytes)

    def _compute_a(self, run: Run, from_k: str, depth: str) -> None:
        """A's rows computed; its columns, if neighbours lie along them."""
        size, rows, depths = self.element.bytes, [run.row, run.rows], [from_k, depth]
        turned = self.turned["first"]
        rectangle, pitch = (depths + rows, ROWS * size) if turned else (rows + depths, ROW_PITCH * size)
        self.compute("first", [*run.batch, *rectangle], self.copied, str(pitch), self.panel_bytes)
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
            fits = "true" if self.masked else whole
            part = Run(run.batch, run.row, run.rows, code.add(run.column, left), columns)
            into, pitch, direct = self._sums(part, code.mul(left, size), rows, fits)
            b = self._packed_panel(left)
            step = code.get(self.b_step)
            if not self.window:
                there = code.at(code.op(f"load ptr, ptr {self.b_lies}"), code.mul(left, size))
                lying = code.both(lies, fits)
                b = code.choose(lying, there, b, "ptr")
                step = code.choose(lying, step, str(self.panel_bytes))
            place = (b, step), (into, pitch), first, depth
            if self.masked:
                with code.either(whole) as ragged:
                    self.tile(part, *place)
                    next(ragged)
                    self.tile(part, *place, masked=True)
            else:
                self.tile(part, *place)
                if self.out.operand is not None:
                    with code.when(code.both(last, code.op(f"xor i1 {direct}, true"))):
                        self.finish(part, into, pitch)
        if self.out.operand is None:
            with code.when(last):
                self.finish(run, rows, str(self.pitch))
        elif not self.out.plain:
            with code.when(last):
                columns = code.op(f"and i64 {run.columns}, {-self.panel}")
                panels = run if self.masked else run._replace(columns=columns)
                self.finish(panels, self.output(run), self.stride["c_row"])

    def _sums(self, run: Run, left: str, rows: str, whole: str) -> tuple[str, str, str]:
        """Where a panel's sums go, the distance of their rows, and whether that is the output."""
        code, split = self.code, self.split
        part = split.place(run.row, run.column)
        pitch = code.choose(split.cut, split.pitch, str(self.pitch))
        if self.out.operand is None:
            return code.choose(split.cut, part, code.at(rows, left), "ptr"), pitch, "false"
        batch, column, inside = self.place(run.batch, run.column, run.columns)
        direct = code.both(split.whole, whole, inside)
        out = self.output(run._replace(batch=batch, column=column))
        held = code.choose(split.cut, part, code.at(rows, left) if self.window else rows, "ptr")
        into = code.choose(direct, out, held, "ptr")
        return into, code.choose(direct, self.stride["c_row"], pitch), direct
