"""A launch of a product as its driver sees it: sizes, where the operands lie, and the routines that compute
blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import mul
from typing import NamedTuple, Union

from kiln.codegen.gemm.arguments import BATCH, EVENLY
from kiln.codegen.gemm.driver_spec import PRODUCT, DriverSpec
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.split_k import Segments
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.routine import Routine
from kiln.codegen.target import Target

Batch = tuple[Index, ...]  # along the dims of a batch
Strides = dict[Union[int, str], Index]  # by dim of the batch, or name


class Run(NamedTuple):
    """A rectangle of one product: its indices along the batch, first row, rows, first column, columns."""

    batch: Batch
    row: Index
    rows: Index
    column: Index
    columns: Index


class Matrix:
    """A factor, or the output that takes sums: where it begins, and its strides in bytes, by dim."""

    def __init__(self, base: Pointer, stride: Strides) -> None:
        self.base, self.stride = base, stride

    def at(self, batch: Batch, **places: Index) -> Pointer:
        """Where something lies in it."""
        where: Strides = dict([*enumerate(batch), *places.items()])
        return self.base[*(index * self.stride[dim] for dim, index in where.items() if index.text != "0")]


def batch_indices(code: Routine, batch: Index, sizes: list[Index]) -> Batch:
    """The index along each of the batch's dims, of the sizes."""
    if any(size.text == "1" for size in sizes):  # it has one index
        left = batch_indices(code, batch, several) if (several := [s for s in sizes if s.text != "1"]) else ()
        rest = iter(left)
        return tuple(code.index(0) if size.text == "1" else next(rest) for size in sizes)
    if len(sizes) == 1:
        return (batch,)
    found = [*(code.variable(0) for _ in sizes[1:]), code.variable(batch)]
    with code.when(batch >= sizes[-1]):
        for place, size in zip(reversed(found), reversed(sizes[1:])):
            outer = batch // size
            place.set(batch - outer * size)
            batch = outer
        found[0].set(batch)
    return tuple(place.get() for place in found)


class Problem:
    """What the routine kernel is asked for; its strides are bytes."""

    a: Matrix
    b: Matrix
    c: Matrix  # the output that takes sums, if one does
    segments: Segments  # which k are to be taken

    def __init__(self, target: Target, spec: DriverSpec) -> None:
        self.spec, self.output = spec, spec.output
        self.element, self.arguments = element_of(spec.dtype), spec.arguments
        self.code = Routine(target, PRODUCT, spec.params, quick=True)
        self.size: dict[str, Index] = {}

    # -- arguments ----------------------------------------------------------------------------------

    def word(self, *path: int | str) -> Index:
        """An argument."""
        return self.spec.word(self.code, *path)

    def read(self) -> None:
        """Sizes and strides; without k, both factors become one zero read everywhere, and k is 1."""
        code, size, window = self.code, self.element.stored_bytes, self.spec.window
        launches = self.spec.launches
        self.empty = empty = self.word("size", "k").equals(0)
        zero = code.slot("i64")
        zero.put(0)
        self.batch = [self.word("size", d) for d in range(BATCH)]
        many = self.batch[-1] if window else reduce(mul, self.batch)
        self.size = {"batch": many, "m": self.word("size", "m"), "n": self.word("size", "n")}
        self.size["k"] = empty.choose(1, self.word("size", "k"))
        self.stretch = self.size["m"] if launches and launches.evenly else self.word("stretch", "rows")
        self.a = self._factor("a", ("row", "k"), zero)
        self.b = self._factor("b", ("k", "column"), zero)
        self.a.stride["stretch"] = empty.choose(0, self.word("stretch", "stride") * size)
        self.scratch = code.operand(self.arguments.pointer("scratch"))
        if window:
            self._read_window()
        if self.output is not None:
            dims = (*range(BATCH), "row")
            strides = {dim: self.word("stride", self.output, dim) * size for dim in dims}
            self.c = Matrix(code.operand(self.arguments.pointer(self.output)), strides)
        cut = self.word("segments", "first"), self.word("segments", "count")
        parts = code.operand(self.arguments.pointer("parts"))
        self.segments = Segments(code, self.element, parts, cut, self.size)

    def _factor(self, name: str, last: tuple[str, str], zero: Pointer) -> Matrix:
        base = self.empty.choose(zero, self.code.operand(self.arguments.pointer(name)))
        strides: Strides = {}
        for dim in (*range(BATCH), *last):
            stride = self.word("stride", name, dim) * self.element.stored_bytes
            strides[dim] = self.empty.choose(0, stride)
        return Matrix(base, strides)

    def _read_window(self) -> None:
        """Where the words lie that say where a window's k, its columns and the k of A do."""
        first = self.arguments.word("window", "k", 0)
        given = self.code.arg.element("i64", first)
        self.look_k = self.empty.choose(self.code.pointer("@nowhere"), given)
        self.look_n, self.look_a = (
            self.look_k.element("i64", self.arguments.word("window", name, 0) - first) for name in ("n", "a")
        )
        self.image = self.word("columns", "image")
        self.evenly = [self.word("columns", name) for name in EVENLY]

    # -- rows of A ----------------------------------------------------------------------------------

    def rows_of_a(self, run: Run, k: Index) -> tuple[Pointer, Condition]:
        """Where the first of a run's rows has a k in A, and whether they are of several stretches."""
        place, left = self._row_of_a(run.batch, run.row, k)
        return place, self.code.condition(False) if left is None else run.rows > left

    @contextmanager
    def stretches(self, run: Run, k: Index) -> Iterator[tuple[Index, Pointer, Index]]:
        """A run's rows of A, stretch by stretch, ascending: how many are before, where they have a k, and how
        many they are.
        """
        code = self.code
        done = code.variable(0)
        with code.during(done, run.rows) as at:
            place, left = self._row_of_a(run.batch, run.row + at, k)
            rows = run.rows - at if left is None else left.min(run.rows - at)
            yield at, place, rows
            done.set(at + rows)

    def _row_of_a(self, batch: Batch, row: Index, k: Index) -> tuple[Pointer, Index | None]:
        """Where a row of A has a k, and how many rows of its stretch are left, if that is not all."""
        if self.stretch.text == self.size["m"].text:
            return self.a.at(batch, row=row, k=k), None
        stretch, inside = batch_indices(self.code, row, [self.stretch, self.stretch])
        return self.a.at(batch, stretch=stretch, row=inside, k=k), self.stretch - inside

    def compute(
        self, factor: str, rectangle: list[Index], into: Pointer, pitch: Integer, panel_pitch: int
    ) -> None:
        """Computes a block of a factor: of indices along the batch, some rows from one on, some columns from
        one on; pitches are the bytes from row to row, and from panel to panel.
        """
        code = self.code
        address = code.pointer(f"%compute_{factor}")
        code.run_at(address, code.ptr, code.arg, *rectangle, into, pitch, panel_pitch)

    # -- where sums go ------------------------------------------------------------------------------

    def indices(self, batch: Index) -> Batch:
        """The index along each dim of the batch; over a window of the last, as images are columns."""
        if self.spec.window:
            return self.code.index(0), self.code.index(0), batch
        return batch_indices(self.code, batch, self.batch)

    def output_of(self, part: Run) -> Pointer:
        """Where a part begins in the output that takes sums."""
        return self.c.at(part.batch, row=part.row)[part.column * self.element.bytes]

    def place(self, batch: Batch, column: Index, columns: Index) -> tuple[Batch, Index, Condition]:
        """The indices along the batch and the column that columns go to; whether all do.

        A window's images stand side by side: each has an index of its own.
        """
        if not self.spec.window:
            return batch, column, self.code.condition(True)
        image, inside = divmod(column, self.image)
        inner = inside + columns <= self.image
        return (self.code.index(0), image, batch[-1]), inside, inner

    @contextmanager
    def images(self, run: Run) -> Iterator[tuple[Index, Run]]:
        """The parts of a run, image by image: how many columns into it each begins, and where it goes."""
        code = self.code
        done = code.variable(0)
        with code.during(done, run.columns) as at:
            left = run.columns - at
            batch, column, _ = self.place(run.batch, run.column + at, left)
            columns = left.min(self.image - column) if self.spec.window else left
            yield at, Run(batch, run.row, run.rows, column, columns)
            done.set(at + columns)

    def finish(self, run: Run, sums: Pointer, pitch: Integer) -> None:
        """The epilogue of some rows and columns, whose sums are there."""
        code = self.code
        with self.images(run) as (at, part):
            src = sums[at * self.element.bytes]
            code.run_at(
                code.pointer("%finish"), code.ptr, code.arg, *part.batch, part.row, part.rows,
                part.column, part.columns, src, pitch,
            )  # fmt: skip

    def finish_rows(self, batch: Index, row: Index, rows: Index, sums: Pointer) -> None:
        """The epilogue of whole rows of a batch index, as sums of segments lie."""
        whole = Run(self.indices(batch), row, rows, self.code.index(0), self.size["n"])
        self.finish(whole, sums, self.segments.pitch)
