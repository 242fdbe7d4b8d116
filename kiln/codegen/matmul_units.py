"""The frame of every driver of a product: its arguments, and the runs of its units of work.

units in order of    batch | group of rows | columns | rows inside the group
                     of columns: as few as may be, all about as wide, as a thread may get each
a run                some rows of one group by one unit of columns, or the whole group by several
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import mul
from typing import NamedTuple

from kiln.codegen.index import Condition, Index, Integer, Pointer
from kiln.codegen.matmul_finish import BATCH, STRETCH, STRETCH_STEP, Arguments, K, M, N
from kiln.codegen.matmul_split import Segments
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import Element
from kiln.codegen.matmul_window import AGAIN, IMAGE, LOOK, WORDS
from kiln.codegen.nest import GROUP, Operand
from kiln.codegen.target import Target

UNIT_ROWS = 24
UNIT_BYTES = 512  # of summed elements, at most: 128 columns of float32, 64 of float64
PANELS = 4  # of columns in a unit, at most


def unit_columns(element: Element, operands: tuple[Operand, ...]) -> int:
    """The columns of a unit: whole groups of those whose accumulators it leaves."""
    columns = UNIT_BYTES // element.bytes
    return max(columns, GROUP) if any(o.folds for o in operands) else columns


class Output(NamedTuple):
    """The operand (from 1) that takes sums in their places, if one does; `plain`: as they are, else they are
    finished there.
    """

    operand: int | None = None
    plain: bool = False


Batch = tuple[Index, ...]  # along the dims of a batch


class Run(NamedTuple):
    """A rectangle of one product: its indices along the batch, first row, rows, first column, columns."""

    batch: Batch
    row: Index
    rows: Index
    column: Index
    columns: Index


def batch_indices(code: Routine, batch: Index, sizes: list[Index]) -> Batch:
    """The index along each of the batch's dims, of the sizes."""
    found = [*(code.variable(0) for _ in sizes[1:]), code.variable(batch)]
    with code.when(batch >= sizes[-1]):
        for place, size in zip(reversed(found), reversed(sizes[1:])):
            outer = batch // size
            place.set(batch - outer * size)
            batch = outer
        found[0].set(batch)
    return tuple(place.get() for place in found)


class Driver:
    """The routine kernel under construction; strides in bytes.

    `out` takes sums; `window`: B is one.
    """

    split: Segments  # which k are to be taken

    def __init__(
        self, target: Target, element: Element, arguments: Arguments, out: Output, window: bool
    ) -> None:
        self.element, self.arguments, self.out, self.window = element, arguments, out, window
        self.columns = unit_columns(element, arguments.operands)
        self.code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", quick=True)
        self.size: dict[str, Index] = {}
        self.base: dict[str, Pointer] = {}
        self.stride: dict[str, Index] = {}

    def run(self, run: Run) -> None:
        """Write what computes a run."""
        raise NotImplementedError

    def reach(self, name: str, batch: Batch, **places: Index) -> Pointer:
        """Where something lies in a factor, "a" or "b", or in the output that takes sums, "c"."""
        stride = self.stride
        places = {**{str(d): index for d, index in enumerate(batch)}, **places}
        steps = (index * stride[f"{name}_{dim}"] for dim, index in places.items() if index.text != "0")
        return self.base[name][*steps]

    def rows_of_a(self, run: Run, k: Index) -> tuple[Pointer, Condition]:
        """Where the first of a run's rows has a k in A, and whether they are of several stretches."""
        place, left = self._row_of_a(run.batch, run.row, k)
        return place, run.rows > left

    @contextmanager
    def pieces(self, run: Run, k: Index) -> Iterator[tuple[Index, Pointer, Index]]:
        """A run's rows of A, stretch by stretch, ascending: how many are before, where they have a k, and how
        many they are.
        """
        code = self.code
        done = code.variable(0)
        with code.during(done, run.rows) as at:
            place, left = self._row_of_a(run.batch, run.row + at, k)
            rows = left.min(run.rows - at)
            yield at, place, rows
            done.set(at + rows)

    def _row_of_a(self, batch: Batch, row: Index, k: Index) -> tuple[Pointer, Index]:
        """Where a row of A has a k, and how many rows of its stretch are left."""
        size = self.size["stretch"]
        stretch, inside = batch_indices(self.code, row, [size, size])
        return self.reach("a", batch, stretch=stretch, row=inside, k=k), size - inside

    def compute(self, name: str, rectangle: list[Index], into: Pointer, pitch: Integer, apart: int) -> None:
        """Computes a block of a factor: of indices along the batch, some rows from one on, some columns from
        one on; `apart` are the bytes from panel to panel.
        """
        self.code.run(name, self.code.ptr, self.code.arg, *rectangle, into, pitch, apart)

    def limits(self) -> tuple[Integer, Integer]:
        """The row units of a group and the column units of a run, at most."""
        raise NotImplementedError

    # -- arguments ----------------------------------------------------------------------------------

    def _arguments(self) -> None:
        """Sizes and strides; without k, both factors become one zero read everywhere, and k is 1."""
        code, size = self.code, self.element.stored_bytes
        self.empty = empty = code.argument(K).equals(0)
        zero = code.slot("i64")
        zero.put(0)
        self.batch = [code.argument(d) for d in range(BATCH)]
        many = self.batch[-1] if self.window else reduce(mul, self.batch)
        self.size = {"batch": many, "m": code.argument(M), "n": code.argument(N)}
        self.size["k"] = empty.choose(1, code.argument(K))
        self.size["stretch"] = code.argument(STRETCH)
        dims = tuple(map(str, range(BATCH)))
        for k, (name, *last) in enumerate((("a", "row", "k"), ("b", "k", "column"))):
            self.base[name] = empty.choose(zero, code.operand(k))
            for dim, along in enumerate((*dims, *last)):
                stride = code.argument(self.arguments.stride(k, dim)) * size
                self.stride[f"{name}_{along}"] = empty.choose(0, stride)
        self.stride["a_stretch"] = empty.choose(0, code.argument(STRETCH_STEP) * size)
        self.scratch = code.operand(2 + len(self.arguments.operands) + 1)
        if self.window:
            place = self.arguments.window
            look = code.arg.element("i64", place)
            self.look = empty.choose(code.pointer("@nowhere"), look)
            self.look_n, self.look_a = (self.look.element("i64", n * LOOK) for n in (1, 2))
            self.image = code.argument(place + IMAGE)
            self.again = [code.argument(place + AGAIN + n) for n in range(3)]
        if self.out.operand is not None:
            for dim, along in enumerate((*dims, "row")):
                place = self.arguments.stride(self.out.operand + 1, dim)
                self.stride[f"c_{along}"] = code.argument(place) * size
            self.base["c"] = code.operand(self.out.operand + 1)
        place = self.arguments.window + (WORDS if self.window else 0)
        cut = code.argument(place), code.argument(place + 1)
        parts = code.operand(2 + len(self.arguments.operands))
        self.split = Segments(code, self.element, parts, cut, self.size)

    # -- units to runs ------------------------------------------------------------------------------

    def write(self) -> Routine:
        """What of the product the launch is for: rows of segments' sums to be added, or units."""
        self._arguments()
        with self.code.either(self.split.adds) as units:
            self.split.add(self._finish_rows)
            next(units)
            self._runs()
        return self.code

    def _runs(self) -> None:
        """Units in runs: the rest of a column of units, or as many whole columns as a run may have."""
        code = self.code
        first_unit, last_unit = code.indices("begin", "end")
        limit, widest = self.limits()
        row_units = self.size["m"].ceil_div(UNIT_ROWS)
        column_units = self.size["n"].ceil_div(self.columns)
        most = self._group_height(row_units, limit)
        units = row_units * column_units
        unit = code.variable(first_unit)
        with code.during(unit, last_unit) as at:
            inside = self.split.divide(at, units * self.size["batch"])
            self.split.batch, inside = divmod(inside, units)
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
            end = self.size["m"].min((above + stop) * UNIT_ROWS)
            column = self._edge(column_unit, column_units)
            columns = self._edge(column_unit + wide, column_units) - column
            self.run(Run(self._indices(self.split.batch), row, end - row, column, columns))

    def _indices(self, batch: Index) -> Batch:
        """The index along each dim of the batch; over a window of the last, as images are columns."""
        if self.window:
            return self.code.index(0), self.code.index(0), batch
        return batch_indices(self.code, batch, self.batch)

    def _edge(self, unit: Index, units: Index) -> Index:
        """The column that a unit of columns begins with: all have about as many."""
        least = self.columns if any(o.folds for o in self.arguments.operands) else self.columns // PANELS
        panels = self.size["n"].ceil_div(least)
        before = unit * panels // units
        return self.size["n"].min(before * least)

    def _group_height(self, row_units: Index, limit: Integer) -> Index:
        """The row units of a group: as few groups as may be, all about as large."""
        groups = (row_units + limit - 1) // limit
        groups = groups.max(1)  # no rows: no runs either
        return (row_units + groups - 1) // groups

    # -- where sums go ------------------------------------------------------------------------------

    def output(self, part: Run) -> Pointer:
        """Where a part begins in the output that takes sums."""
        out = self.reach("c", part.batch, row=part.row)
        return out[part.column * self.element.bytes]

    def place(self, batch: Batch, column: Index, columns: Index) -> tuple[Batch, Index, Condition]:
        """The indices along the batch and the column that columns go to; whether all do.

        A window's images stand side by side: each has an index of its own.
        """
        if not self.window:
            return batch, column, self.code.condition(True)
        image, inside = divmod(column, self.image)
        inner = inside + columns <= self.image
        return (self.code.index(0), image, batch[-1]), inside, inner

    def _finish_rows(self, batch: Index, row: Index, rows: Index, sums: Pointer) -> None:
        self.finish(
            Run(self._indices(batch), row, rows, self.code.index(0), self.size["n"]), sums, self.split.pitch
        )

    @contextmanager
    def parts(self, run: Run) -> Iterator[tuple[Index, Run]]:
        """The parts of a run, image by image: how many columns into it each begins, and where it goes."""
        code = self.code
        done = code.variable(0)
        with code.during(done, run.columns) as at:
            left = run.columns - at
            batch, column, _ = self.place(run.batch, run.column + at, left)
            columns = left.min(self.image - column) if self.window else left
            yield at, Run(batch, run.row, run.rows, column, columns)
            done.set(at + columns)

    def finish(self, run: Run, sums: Pointer, pitch: Integer) -> None:
        """The epilogue of some rows and columns, whose sums are there."""
        code = self.code
        with self.parts(run) as (at, part):
            src = sums[at * self.element.bytes]
            code.run(
                "finish", code.ptr, code.arg, *part.batch, part.row, part.rows, part.column, part.columns,
                src, pitch,
            )  # fmt: skip
