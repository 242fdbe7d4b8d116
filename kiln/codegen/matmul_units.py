"""The frame of every driver of a product: its arguments, and the runs of its units of work.

units in order of    batch | group of rows | columns | rows inside the group
                     of columns: as few as may be, all about as wide, as a thread may get each
a run                some rows of one group by one unit of columns, or the whole group by several
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

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


Index = tuple[str, ...]  # along the dims of a batch


class Run(NamedTuple):
    """A rectangle of one product: its indices along the batch, first row, rows, first column, columns."""

    batch: Index
    row: str
    rows: str
    column: str
    columns: str


def batch_indices(code: Routine, batch: str, sizes: list[str]) -> Index:
    """The index along each of the batch's dims, of the sizes."""
    found = [*(code.variable("0") for _ in sizes[1:]), code.variable(batch)]
    with code.when(code.compare("sge", batch, sizes[-1])):
        for place, size in zip(reversed(found), reversed(sizes[1:])):
            outer = code.op(f"sdiv i64 {batch}, {size}")
            code.set(place, code.sub(batch, code.mul(outer, size)))
            batch = outer
        code.set(found[0], batch)
    return tuple(map(code.get, found))


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
        self.size: dict[str, str] = {}
        self.base: dict[str, str] = {}
        self.stride: dict[str, str] = {}

    def run(self, run: Run) -> None:
        """Write what computes a run."""
        raise NotImplementedError

    def reach(self, name: str, batch: Index, **places: str) -> str:
        """Where something lies in a factor, "a" or "b", or in the output that takes sums, "c"."""
        code, stride = self.code, self.stride
        places = {**{str(d): index for d, index in enumerate(batch)}, **places}
        steps = (code.mul(index, stride[f"{name}_{dim}"]) for dim, index in places.items() if index != "0")
        return code.at(self.base[name], *steps)

    def rows_of_a(self, run: Run, k: str) -> tuple[str, str]:
        """Where the first of a run's rows has a k in A, and whether they are of several stretches."""
        place, left = self._row_of_a(run.batch, run.row, k)
        return place, self.code.compare("sgt", run.rows, left)

    @contextmanager
    def pieces(self, run: Run, k: str) -> Iterator[tuple[str, str, str]]:
        """A run's rows of A, stretch by stretch, ascending: how many are before, where they have a k, and how
        many they are.
        """
        code = self.code
        done = code.variable("0")
        with code.during(done, run.rows) as at:
            place, left = self._row_of_a(run.batch, code.add(run.row, at), k)
            rows = code.minimum(left, code.sub(run.rows, at))
            yield at, place, rows
            code.set(done, code.add(at, rows))

    def _row_of_a(self, batch: Index, row: str, k: str) -> tuple[str, str]:
        """Where a row of A has a k, and how many rows of its stretch are left."""
        size = self.size["stretch"]
        stretch, inside = batch_indices(self.code, row, ["", size])
        return self.reach("a", batch, stretch=stretch, row=inside, k=k), self.code.sub(size, inside)

    def compute(self, name: str, rectangle: list[str], into: str, pitch: str, apart: int) -> None:
        """Computes a block of a factor: of indices along the batch, some rows from one on, some columns from
        one on; `apart` are the bytes from panel to panel.
        """
        self.code.run(name, "ptr %ptr", "ptr %arg", *rectangle, f"ptr {into}", pitch, str(apart))

    def limits(self) -> tuple[str, str]:
        """The row units of a group and the column units of a run, at most."""
        raise NotImplementedError

    # -- arguments ----------------------------------------------------------------------------------

    def _arguments(self) -> None:
        """Sizes and strides; without k, both factors become one zero read everywhere, and k is 1."""
        code, size = self.code, str(self.element.stored_bytes)
        self.empty = empty = code.compare("eq", self.argument(K), "0")
        zero = code.slot("i64")
        code.set(zero, "0")
        self.batch = [self.argument(d) for d in range(BATCH)]
        many = self.batch[-1] if self.window else reduce(code.mul, self.batch)
        self.size = {"batch": many, "m": self.argument(M), "n": self.argument(N)}
        self.size["k"] = code.choose(empty, "1", self.argument(K))
        self.size["stretch"] = self.argument(STRETCH)
        dims = tuple(map(str, range(BATCH)))
        for k, (name, *last) in enumerate((("a", "row", "k"), ("b", "k", "column"))):
            self.base[name] = code.choose(empty, zero, self._pointer(k), "ptr")
            for dim, along in enumerate((*dims, *last)):
                stride = code.mul(self.argument(self.arguments.stride(k, dim)), size)
                self.stride[f"{name}_{along}"] = code.choose(empty, "0", stride)
        self.stride["a_stretch"] = code.choose(empty, "0", code.mul(self.argument(STRETCH_STEP), size))
        self.scratch = self._pointer(2 + len(self.arguments.operands) + 1)
        if self.window:
            place = self.arguments.window
            look = code.offset("%arg", "i64", str(place))
            self.look = code.choose(empty, "@nowhere", look, "ptr")
            self.look_n, self.look_a = (code.offset(self.look, "i64", str(n * LOOK)) for n in (1, 2))
            self.image = self.argument(place + IMAGE)
            self.again = [self.argument(place + AGAIN + n) for n in range(3)]
        if self.out.operand is not None:
            for dim, along in enumerate((*dims, "row")):
                place = self.arguments.stride(self.out.operand + 1, dim)
                self.stride[f"c_{along}"] = code.mul(self.argument(place), size)
            self.base["c"] = self._pointer(self.out.operand + 1)
        place = self.arguments.window + (WORDS if self.window else 0)
        cut = self.argument(place), self.argument(place + 1)
        parts = self._pointer(2 + len(self.arguments.operands))
        self.split = Segments(code, self.element, parts, cut, self.size)

    def argument(self, place: int) -> str:
        """One of the kernel's arguments."""
        return self.code.op(f"load i64, ptr {self.code.offset('%arg', 'i64', str(place))}")

    def _pointer(self, place: int) -> str:
        return self.code.op(f"load ptr, ptr {self.code.offset('%ptr', 'ptr', str(place))}")

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
        limit, widest = self.limits()
        row_units = code.ceil_div(self.size["m"], UNIT_ROWS)
        column_units = code.ceil_div(self.size["n"], self.columns)
        most = self._group_height(row_units, limit)
        units = code.mul(row_units, column_units)
        unit = code.variable("%begin")
        with code.during(unit, "%end") as at:
            inside = self.split.divide(at, code.mul(units, self.size["batch"]))
            self.split.batch, inside = self._divide(inside, units)
            group, inside = self._divide(inside, code.mul(column_units, most))
            above = code.mul(group, most)
            height = code.minimum(code.sub(row_units, above), most)
            column_unit, first = self._divide(inside, height)
            left = code.sub("%end", at)
            stop = code.minimum(height, code.add(first, left))
            whole = code.minimum(code.op(f"sdiv i64 {left}, {height}"), code.sub(column_units, column_unit))
            several = code.both(code.compare("eq", first, "0"), code.compare("sgt", whole, "1"))
            wide = code.choose(several, code.minimum(whole, widest), "1")
            code.set(unit, code.add(at, code.mul(code.sub(stop, first), wide)))
            row = code.mul(code.add(above, first), str(UNIT_ROWS))
            end = code.minimum(self.size["m"], code.mul(code.add(above, stop), str(UNIT_ROWS)))
            column = self._edge(column_unit, column_units)
            columns = code.sub(self._edge(code.add(column_unit, wide), column_units), column)
            self.run(Run(self._indices(self.split.batch), row, code.sub(end, row), column, columns))

    def _indices(self, batch: str) -> Index:
        """The index along each dim of the batch; over a window of the last, as images are columns."""
        if self.window:
            return "0", "0", batch
        return batch_indices(self.code, batch, self.batch)

    def _edge(self, unit: str, units: str) -> str:
        """The column that a unit of columns begins with: all have about as many."""
        code = self.code
        least = self.columns if any(o.folds for o in self.arguments.operands) else self.columns // PANELS
        panels = code.ceil_div(self.size["n"], least)
        before = code.op(f"sdiv i64 {code.mul(unit, panels)}, {units}")
        return code.minimum(self.size["n"], code.mul(before, str(least)))

    def _group_height(self, row_units: str, limit: str) -> str:
        """The row units of a group: as few groups as may be, all about as large."""
        code = self.code
        groups = code.op(f"sdiv i64 {code.sub(code.add(row_units, limit), '1')}, {limit}")
        groups = code.maximum(groups, "1")  # no rows: no runs either
        return code.op(f"sdiv i64 {code.sub(code.add(row_units, groups), '1')}, {groups}")

    def _divide(self, x: str, y: str) -> tuple[str, str]:
        quotient = self.code.op(f"sdiv i64 {x}, {y}")
        return quotient, self.code.sub(x, self.code.mul(quotient, y))

    # -- where sums go ------------------------------------------------------------------------------

    def output(self, part: Run) -> str:
        """Where a part begins in the output that takes sums."""
        out = self.reach("c", part.batch, row=part.row)
        return self.code.at(out, self.code.mul(part.column, str(self.element.bytes)))

    def place(self, batch: Index, column: str, columns: str) -> tuple[Index, str, str]:
        """The indices along the batch and the column that columns go to; whether all do.

        A window's images stand side by side: each has an index of its own.
        """
        code = self.code
        if not self.window:
            return batch, column, "true"
        image, inside = self._divide(column, self.image)
        inner = code.compare("sle", code.add(inside, columns), self.image)
        return ("0", image, batch[-1]), inside, inner

    def _finish_rows(self, batch: str, row: str, rows: str, sums: str) -> None:
        self.finish(Run(self._indices(batch), row, rows, "0", self.size["n"]), sums, self.split.pitch)

    @contextmanager
    def parts(self, run: Run) -> Iterator[tuple[str, Run]]:
        """The parts of a run, image by image: how many columns into it each begins, and where it goes."""
        code = self.code
        done = code.variable("0")
        with code.during(done, run.columns) as at:
            left = code.sub(run.columns, at)
            batch, column, _ = self.place(run.batch, code.add(run.column, at), left)
            columns = code.minimum(left, code.sub(self.image, column)) if self.window else left
            yield at, Run(batch, run.row, run.rows, column, columns)
            code.set(done, code.add(at, columns))

    def finish(self, run: Run, sums: str, pitch: str) -> None:
        """The epilogue of some rows and columns, whose sums are there."""
        code = self.code
        with self.parts(run) as (at, part):
            src = code.at(sums, code.mul(at, str(self.element.bytes)))
            code.run(
                "finish", "ptr %ptr", "ptr %arg", *part.batch, part.row, part.rows, part.column, part.columns,
                f"ptr {src}", pitch,
            )  # fmt: skip
