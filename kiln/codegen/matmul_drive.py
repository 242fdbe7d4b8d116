"""The driver of a matmul kernel: units of work to runs, runs to panels of B and tiles of rows.

    units in order of    batch | group of ROW_UNITS row units | columns | row unit
    a run                units of the same columns in one group; their rows are one block

A group's rows of A stay in the second cache while the columns go by. What the driver does takes the time of
a few tiles' rows, so it is written to be compiled quickly: it is not optimised (attributes #1).
"""

from __future__ import annotations

from kiln.codegen.matmul_finish import Arguments
from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import EDGE, SEGMENT, VECTORS, Element, Shape, heights, shapes
from kiln.codegen.matmul_window import IMAGE
from kiln.codegen.target import Target

UNIT_ROWS = 24
UNIT_BYTES = 512  # of summed elements: 128 columns of float32, 64 of float64
ROW_UNITS = 16  # row units in a group, at most
PACK_ROWS = 64  # a unit-stride B is packed from this many rows; below, it is read where it lies
PACK_BYTES = 4096  # ... or if its rows are less than a page apart and its vectors straddle no cache lines
ROW_PITCH = SEGMENT + 16  # elements between copied rows of A, so that rows fall into different cache sets
CROWDED_ROWS = 4096  # rows of A a multiple of this many bytes apart share one cache set of few lines ...
CROWDED_HEIGHT = 8  # ... which a taller tile would thrash


def frame_bytes(target: Target, element: Element) -> tuple[int, int, int]:
    """The driver's arrays on the stack: a packed panel of B, copied rows of A, a run's sums."""
    return (
        SEGMENT * _panel_bytes(target),
        heights(target)[0] * ROW_PITCH * element.bytes,
        ROW_UNITS * UNIT_ROWS * UNIT_BYTES,
    )


def _panel_bytes(target: Target) -> int:
    return VECTORS * target.vector_bits // 8


def drive(target: Target, element: Element, plain: int | None, window: int | None = None) -> Routine:
    """The routine kernel; `plain` is the operand that takes whole panels of sums as they are, if one does;
    `window` the place of the arguments of a B that is a window.
    """
    driver = Driver(target, element, plain, window)
    driver.write()
    return driver.code


class Run:
    """A run: its batch index, first row, rows, first column, columns."""

    def __init__(self, batch: str, row: str, rows: str, column: str, columns: str) -> None:
        self.batch, self.row, self.rows = batch, row, rows
        self.column, self.columns = column, columns


class Driver:
    """The driver under construction; strides in bytes."""

    pitch = UNIT_BYTES  # between rows of sums

    def __init__(self, target: Target, element: Element, plain: int | None, window: int | None) -> None:
        self.element, self.plain, self.window = element, plain, window
        self.columns = UNIT_BYTES // element.bytes
        self.code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", "#1")
        self.size: dict[str, str] = {}
        self.stride: dict[str, str] = {}
        self.slots()

    def slots(self) -> None:
        """The arrays and variables on the stack."""
        code, target = self.code, self.code.target
        self.heights, self.shapes = heights(target), shapes(target)
        self.panel_bytes = _panel_bytes(target)
        self.panel = VECTORS * self.element.lanes(target)
        sizes = frame_bytes(target, self.element)
        self.packed_b, self.packed_a, self.buffer = (code.slot("i8", size) for size in sizes)
        self.b_place, self.b_step = code.slot("ptr"), code.slot("i64")
        self.a_place, self.a_row, self.a_k = code.slot("ptr"), code.slot("i64"), code.slot("i64")

    def reach(self, base: str, **steps: str) -> str:
        """`base` advanced by index * stride for every `stride = index`."""
        code = self.code
        return code.at(base, *(code.mul(index, self.stride[name]) for name, index in steps.items()))

    # -- arguments ----------------------------------------------------------------------------------

    def _arguments(self) -> None:
        """Sizes and strides; without k, both factors become one zero read everywhere, and k is 1."""
        code, size = self.code, str(self.element.stored_bytes)
        empty = code.compare("eq", self._argument(3), "0")
        zero = code.slot("i64")
        code.set(zero, "0")
        self.size = {"m": self._argument(1), "n": self._argument(2)}
        self.size["k"] = code.choose(empty, "1", self._argument(3))
        self.a = code.choose(empty, zero, self._pointer(0), "ptr")
        self.b = code.choose(empty, zero, self._pointer(1), "ptr")
        for place, name in enumerate(("a_batch", "a_row", "a_k", "b_batch", "b_k", "b_column"), 4):
            self.stride[name] = code.choose(empty, "0", code.mul(self._argument(place), size))
        if self.window is not None:
            look = code.offset("%arg", "i64", str(self.window))
            self.look = code.choose(empty, "@nowhere", look, "ptr")
            self.image = self._argument(self.window + IMAGE)
        if self.plain is not None:
            for dim, name in enumerate(("c_batch", "c_row")):
                self.stride[name] = code.mul(self._argument(Arguments((), ()).stride(self.plain, dim)), size)
            self.c = self._pointer(self.plain + 1)

    def _argument(self, place: int) -> str:
        return self.code.op(f"load i64, ptr {self.code.offset('%arg', 'i64', str(place))}")

    def _pointer(self, place: int) -> str:
        return self.code.op(f"load ptr, ptr {self.code.offset('%ptr', 'ptr', str(place))}")

    # -- units to runs ------------------------------------------------------------------------------

    def write(self) -> None:
        """Units in runs of one group's rows and the same columns."""
        code = self.code
        self._arguments()
        unit = code.variable("%begin")
        with code.during(unit, "%end") as at:
            row_units = code.ceil_div(self.size["m"], UNIT_ROWS)
            column_units = code.ceil_div(self.size["n"], self.columns)
            batch, inside = self._divide(at, code.mul(row_units, column_units))
            most = self.group_units(row_units)
            group, inside = self._divide(inside, code.mul(column_units, most))
            above = code.mul(group, most)
            height = code.minimum(code.sub(row_units, above), most)
            column_unit, first = self._divide(inside, height)
            stop = code.minimum(height, code.add(first, code.sub("%end", at)))
            code.set(unit, code.add(at, code.sub(stop, first)))
            row = code.mul(code.add(above, first), str(UNIT_ROWS))
            end = code.minimum(self.size["m"], code.mul(code.add(above, stop), str(UNIT_ROWS)))
            column = code.mul(column_unit, str(self.columns))
            columns = code.minimum(code.sub(self.size["n"], column), str(self.columns))
            self.run(Run(batch, row, code.sub(end, row), column, columns))

    def group_units(self, row_units: str) -> str:
        """The row units of a group: as few groups as may be, all about as large."""
        code = self.code
        groups = code.ceil_div(row_units, ROW_UNITS)
        return code.op(f"sdiv i64 {code.sub(code.add(row_units, groups), '1')}, {groups}")

    def _divide(self, x: str, y: str) -> tuple[str, str]:
        quotient = self.code.op(f"sdiv i64 {x}, {y}")
        return quotient, self.code.sub(x, self.code.mul(quotient, y))

    def run(self, run: Run) -> None:
        """Whole panels of a plain product go to the output, others to the buffer and are finished."""
        code = self.code
        into, pitch, direct = self.buffer, str(self.pitch), "false"
        batch, column, whole = self._place(run)
        if self.plain is not None:
            panels = code.compare("eq", code.op(f"srem i64 {run.columns}, {self.panel}"), "0")
            direct = code.both(panels, whole)
            out = self.reach(self.c, c_batch=batch, c_row=run.row)
            out = code.at(out, code.mul(column, str(self.element.bytes)))
            into = code.choose(direct, out, into, "ptr")
            pitch = code.choose(direct, self.stride["c_row"], pitch)
        with code.times(self.size["k"], SEGMENT) as from_k, code.times(run.columns, self.panel) as left:
            cols = code.minimum(code.sub(run.columns, left), str(self.panel))
            part = Run(run.batch, run.row, run.rows, code.add(run.column, left), cols)
            self._panel(part, code.at(into, code.mul(left, str(self.element.bytes))), pitch, from_k)
        with code.when(code.op(f"xor i1 {direct}, true")):
            self.finish(run)

    def _place(self, run: Run, done: str = "0") -> tuple[str, str, str]:
        """The batch index and the column that a run's columns from `done` on go to; whether all do.

        A window's images stand side by side: each has a batch index of its own.
        """
        code = self.code
        if self.window is None:
            return run.batch, run.column, "true"
        image, column = self._divide(code.add(run.column, done), self.image)
        batch = code.add(code.mul(image, self._argument(0)), run.batch)
        end = code.add(column, code.sub(run.columns, done))
        return batch, column, code.compare("sle", end, self.image)

    def finish(self, run: Run) -> None:
        """The epilogue of a run, image by image."""
        code = self.code
        done = code.variable("0")
        with code.during(done, run.columns) as at:
            batch, column, _ = self._place(run, at)
            left = code.sub(run.columns, at)
            columns = left if self.window is None else code.minimum(left, code.sub(self.image, column))
            src = code.at(self.buffer, code.mul(at, str(self.element.bytes)))
            code.run(
                "finish", "ptr %ptr", "ptr %arg", batch, run.row, run.rows, column, columns, f"ptr {src}",
                str(self.pitch),
            )  # fmt: skip
            code.set(done, code.add(at, columns))

    def _panel(self, run: Run, into: str, pitch: str, from_k: str) -> None:
        """One panel of columns, one segment of k: the first segment's sums are stored, later ones added."""
        code = self.code
        depth = code.minimum(code.sub(self.size["k"], from_k), str(SEGMENT))
        first = code.compare("eq", from_k, "0")
        old, old_pitch = code.choose(first, "@nothing", into, "ptr"), code.choose(first, "0", pitch)
        self._prepare(run, from_k, depth)
        a = self.reach(self.a, a_batch=run.batch, a_row=run.row, a_k=from_k)
        self._factor(run, a, (into, pitch, old, old_pitch), depth)

    def _factor(self, run: Run, a: str, sums: tuple[str, str, str, str], depth: str) -> None:
        """A as it lies, or a tall tile's rows at a time in the summed type."""
        code = self.code
        if not self.element.widened:
            code.line(f"store ptr {a}, ptr {self.a_place}")
            code.set(self.a_row, self.stride["a_row"])
            code.set(self.a_k, self.stride["a_k"])
            self._tiles(run, run.rows, sums, depth)
            return
        into, pitch, old, old_pitch = sums
        with code.times(run.rows, self.heights[0]) as start:
            rows = code.minimum(code.sub(run.rows, start), str(self.heights[0]))
            self._widen(code.at(a, code.mul(start, self.stride["a_row"])), rows, depth)
            c, before = (code.at(p, code.mul(start, by)) for p, by in ((into, pitch), (old, old_pitch)))
            self._tiles(run, rows, (c, pitch, before, old_pitch), depth)

    # -- factors ------------------------------------------------------------------------------------

    def _prepare(self, run: Run, from_k: str, depth: str) -> None:
        """Leave the panel of B, for this segment, at b_place with b_step bytes between its rows.

        as it lies:  whole, unit-stride columns, and not enough rows to pay for packing
        turned:      unit stride along k
        copied:      anything else; columns past the last are zero
        windows:     a vector of columns at a time
        """
        code, element = self.code, self.element
        if self.window is not None:
            return self._look(run, from_k, depth)
        src = self.reach(self.b, b_batch=run.batch, b_k=from_k, b_column=run.column)
        with code.either(self._lies_well(src, run)) as otherwise:
            code.line(f"store ptr {src}, ptr {self.b_place}")
            code.set(self.b_step, self.stride["b_k"])
            next(otherwise)
            code.line(f"store ptr {self.packed_b}, ptr {self.b_place}")
            code.set(self.b_step, str(self.panel_bytes))
            with code.when(code.compare("slt", run.columns, str(self.panel))):
                clear(code, self.element, self.packed_b, code.mul(depth, str(self.panel_bytes)))
            turned = code.both(
                code.compare("eq", self.stride["b_k"], str(element.stored_bytes)),
                code.compare("sge", depth, str(16 // element.bytes)),
                code.compare("sge", run.columns, "4"),
            )
            self._pack(
                turned, src, ("b_k", "b_column"), self.packed_b, str(self.panel_bytes), depth, run.columns
            )

    def _look(self, run: Run, from_k: str, depth: str) -> None:
        """Packs the panel of a window."""
        code, lanes = self.code, self.panel // VECTORS
        code.line(f"store ptr {self.packed_b}, ptr {self.b_place}")
        code.set(self.b_step, str(self.panel_bytes))
        src = self.reach(self.b, b_batch=run.batch)
        with code.when(code.compare("sle", run.columns, str(lanes))):
            clear(code, self.element, self.packed_b, code.mul(depth, str(self.panel_bytes)))
        with code.times(run.columns, lanes) as left:
            dst = code.at(self.packed_b, code.mul(left, str(self.element.bytes)))
            code.run(
                "window", f"ptr {src}", f"ptr {self.look}", from_k, depth, code.add(run.column, left),
                code.minimum(code.sub(run.columns, left), str(lanes)),
                f"ptr {dst}", str(self.panel_bytes),
            )  # fmt: skip

    def _pack(
        self, turned: str, src: str, steps: tuple[str, str], into: str, pitch: str, outer: str, inner: str
    ) -> None:
        """Copies outer x inner elements; turns them in registers where neighbours lie along outer."""
        code = self.code
        step, inner_step = (self.stride[name] for name in steps)
        with code.either(turned) as straight:
            code.run("turn", f"ptr {src}", inner_step, f"ptr {into}", pitch, outer, inner)
            next(straight)
            code.run("copy", f"ptr {src}", step, inner_step, f"ptr {into}", pitch, outer, inner)

    def _lies_well(self, src: str, run: Run) -> str:
        """Whether a panel of B is read where it lies: packing costs as much as a few rows of tiles."""
        if self.element.widened:
            return "false"
        code = self.code
        whole = code.compare("eq", run.columns, str(self.panel))
        unit = code.compare("eq", self.stride["b_column"], str(self.element.stored_bytes))
        low = code.compare("slt", run.rows, str(PACK_ROWS))
        near = code.compare("slt", self.stride["b_k"], str(PACK_BYTES))
        places = code.op(f"or i64 {code.op(f'ptrtoint ptr {src} to i64')}, {self.stride['b_k']}")
        aligned = code.compare("eq", code.op(f"and i64 {places}, {self.panel_bytes // VECTORS - 1}"), "0")
        good = code.op(f"or i1 {low}, {code.both(near, aligned)}")
        return code.both(whole, unit, good)

    def _widen(self, src: str, rows: str, depth: str) -> None:
        """Leave rows of A, in the summed type, one after the other at a_place."""
        code, element = self.code, self.element
        turned = code.both(
            code.compare("eq", self.stride["a_row"], str(element.stored_bytes)),
            code.compare("sge", rows, str(16 // element.bytes)),
        )
        pitch = str(ROW_PITCH * element.bytes)
        self._pack(turned, src, ("a_row", "a_k"), self.packed_a, pitch, rows, depth)
        code.line(f"store ptr {self.packed_a}, ptr {self.a_place}")
        code.set(self.a_row, pitch)
        code.set(self.a_k, str(element.bytes))

    # -- tiles --------------------------------------------------------------------------------------

    def _tiles(self, run: Run, rows: str, sums: tuple[str, str, str, str], depth: str) -> None:
        """The rows from a_place on: as many of each height as fit, the tallest first, and an edge tile.

        A panel that one vector covers has a narrow tile of the tallest height.
        """
        code = self.code
        into, pitch, old, old_pitch = sums
        a, b = (code.op(f"load ptr, ptr {place}") for place in (self.a_place, self.b_place))
        rs, ks, bs = (code.get(slot) for slot in (self.a_row, self.a_k, self.b_step))
        done = "0"
        for place, height in enumerate(self.heights):
            left = code.sub(rows, done)
            count = left if height == EDGE else code.sub(left, code.op(f"srem i64 {left}, {height}"))
            if height > CROWDED_HEIGHT:
                count = code.choose(self._crowded(), "0", count)
            here, c, before = (
                code.at(base, code.mul(done, step))
                for base, step in ((a, rs), (into, pitch), (old, old_pitch))
            )
            shape = str(place)
            if height == self.heights[0]:
                narrow = code.compare("sle", run.columns, str(self.panel // VECTORS))
                shape = code.choose(narrow, str(self.shapes.index(Shape(height, 1))), shape)
            code.run(
                "tile", shape, f"ptr {here}", rs, ks, f"ptr {b}", bs, f"ptr {c}", pitch, f"ptr {before}",
                old_pitch, depth, count,
            )  # fmt: skip
            done = code.add(done, count)

    def _crowded(self) -> str:
        """Whether a tile's rows of A share one cache set."""
        code = self.code
        unit = code.compare("eq", code.get(self.a_k), str(self.element.bytes))
        apart = code.compare("eq", code.op(f"and i64 {code.get(self.a_row)}, {CROWDED_ROWS - 1}"), "0")
        return code.both(unit, apart)
