"""What both ways of a product on vectors share: the memory they work in, segments of k, packing, tiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.index import Condition, Index, Integer, Pointer
from kiln.codegen.matmul_finish import Arguments
from kiln.codegen.matmul_tile import SEGMENT, SOON, VECTORS, Element, heights
from kiln.codegen.matmul_units import UNIT_BYTES, UNIT_ROWS, Driver, Output, Run
from kiln.codegen.matmul_window import DIMS
from kiln.codegen.target import Target

WIDE_UNITS = 4  # column units of a block of B, at most: more fill a second cache of 2 MB, and are slower
SUM_UNITS = 2  # ... if their sums do not go to the output
BLOCK = 28  # rows of A at a time: two tiles, as a machine's prefetcher follows few rows of outputs
ROWS = 42  # ... at most: the last are a block with those before, if they were less than a tile
ROW_PITCH = SEGMENT + 16  # elements between copied rows of A, so that rows fall into different cache sets
SUMS_BYTES = 528 << 10  # of sums that are not finished yet
APART = 128  # bytes between packed panels, which are written side by side

# What lies where in a thread's scratch memory, in bytes; the same for every dtype and target.
COPIED = WIDE_UNITS * (UNIT_BYTES * SEGMENT + 16 * APART)  # rows of A, after the packed panels of B
SUMS = COPIED + ROWS * ROW_PITCH * 8
TABLES = SUMS + SUMS_BYTES
SCRATCH_BYTES = 9 << 18  # the driver of AMX has its own division
assert TABLES + 8 * (2 * (SEGMENT + SOON) + WIDE_UNITS * UNIT_BYTES // 4) <= SCRATCH_BYTES


def masked_panels(target: Target, element: Element, window: bool, computed: bool) -> bool:
    """Whether panels of fewer columns are masked, so that they need not be packed: of matrices in memory."""
    return target.masks and not (element.widened or window or computed)


class Vectors(Driver):
    """The part of a driver that all ways share."""

    def __init__(
        self,
        target: Target,
        element: Element,
        arguments: Arguments,
        out: Output,
        window: bool,
        turned: dict[str, bool],
    ) -> None:
        super().__init__(target, element, arguments, out, window)
        self.turned = turned
        self.placed = window and not element.widened  # places of k in a factor that is read where it lies
        self.panel, self.panel_bytes = VECTORS * element.lanes(target), VECTORS * target.vector_bits // 8
        self.apart = SEGMENT * self.panel_bytes + APART
        self.block_rows = BLOCK - BLOCK % heights(target)[0]
        direct = out.operand is not None and not window
        most = WIDE_UNITS if direct and "second" not in turned else SUM_UNITS
        most = min(target.second_cache // (UNIT_BYTES * SEGMENT), most)
        unit = self.columns * element.bytes
        self.wide_units = max(most * UNIT_BYTES // unit, 1)
        self.pitch = self.panel_bytes if direct else self.wide_units * unit
        assert self.panel * self.wide_units * unit <= SUMS_BYTES
        code = self.code
        self.masked = masked_panels(target, element, window, "second" in turned)
        self.a_place, self.a_row, self.a_k = code.slot("ptr"), code.variable(), code.variable()

    def limits(self) -> tuple[Integer, Integer]:
        """As many rows as there is room for sums."""
        if self.placed:
            self.a_inner = self.look_a.word(DIMS - 2)
            self.a_placed = self.a_inner.differs(self.size["k"])  # A's k are several runs
        return SUMS_BYTES // self.pitch // UNIT_ROWS, self.wide_units

    def memory(self) -> None:
        """Where packed panels, rows of A, sums and tables lie."""
        self.packed, self.copied, self.sums, tables = (
            self.scratch[place] for place in (0, COPIED, SUMS, TABLES)
        )
        self.k_table, self.a_table, self.n_table = (tables[8 * n * (SEGMENT + SOON)] for n in range(3))

    def block(self, left: Index) -> Index:
        """How many of the rows that are left are the next block."""
        code = self.code
        all_of_them = left <= self.block_rows + heights(code.target)[0]
        return all_of_them.choose(left, self.block_rows)

    @contextmanager
    def segments(self) -> Iterator[tuple[Index, Index]]:
        """The segments of k: where each begins, and how many it has."""
        code = self.code
        with code.loop(self.split.from_k, self.split.to_k, SEGMENT) as turn:
            yield turn.index, (self.split.to_k - turn.index).min(SEGMENT)

    def table(self, look: Pointer, start: Index, count: Integer, room: Integer, table: Pointer) -> None:
        """Where a window's columns, or its k, lie."""
        self.code.run("places", look, start, count, room, table)

    def turns(self, step: Index, outer: Index) -> Condition:
        """Whether `pack` is to turn elements in registers: enough neighbours lie along outer."""
        element = self.element
        beside = step.equals(element.stored_bytes)
        return beside & (outer >= 16 // element.bytes)

    def pack(
        self,
        turned: Condition,
        src: Pointer,
        steps: tuple[Index, Index],
        into: Pointer,
        pitch: int,
        outer: Index,
        inner: Index,
    ) -> None:
        """Copies outer x inner elements, or turns them."""
        code = self.code
        with code.either(turned) as straight:
            code.run("turn", src, steps[1], into, pitch, outer, inner)
            next(straight)
            self.copy(src, steps, into, (pitch, self.panel_bytes), outer, inner)

    def copy_rows(self, run: Run, k: Index, depth: Index) -> None:
        """Copies rows of A, from a k on, one after the other."""
        pitch = ROW_PITCH * self.element.bytes
        steps = self.stride["a_row"], self.stride["a_k"]
        with self.pieces(run, k) as (at, src, rows):
            into = self.copied[at * pitch]
            self.pack(self.turns(steps[0], rows), src, steps, into, pitch, rows, depth)

    def copy(
        self,
        src: Pointer,
        steps: tuple[Index, Index],
        into: Pointer,
        apart: tuple[int, int],
        outer: Index,
        inner: Index,
    ) -> None:
        """Copies outer x inner elements; `apart` are the bytes from row to row, and from panel to panel."""
        self.code.run("copy", src, *steps, into, *apart, outer, inner)

    def tile(
        self,
        run: Run,
        b: tuple[Pointer, Integer],
        sums: tuple[Pointer, Index],
        first: Condition,
        depth: Index,
        table: Pointer | None = None,
        masked: bool = False,
    ) -> None:
        """One panel's tiles: the first segment's sums are stored, later ones added.

        Over a window `table` has the places of A's k; without it they are a step apart, or A's own. `masked`:
        of a panel's columns only the run's are there.
        """
        code = self.code
        into, pitch = sums
        old, old_pitch = first.choose(code.pointer("@nothing"), into), first.choose(0, pitch)
        narrow = run.columns <= self.panel // VECTORS
        name, columns = ("tile_masked", run.columns) if masked else ("tile", narrow)
        a, row = self.a_place.pointer(), self.a_row.get()
        rest = (into, pitch, old, old_pitch, depth, run.rows, columns)
        if not self.placed:
            code.run(name, a, row, self.a_k.get(), b[0], b[1], *rest)
        elif table is not None:
            code.run("tile_of_places", a, row, table, b[0], *rest)
        else:
            with code.either(self.a_placed) as evenly:
                code.run("tile_of_places", a, row, self.a_table, b[0], *rest)
                next(evenly)
                code.run("tile", a, row, self.a_k.get(), b[0], b[1], *rest)
