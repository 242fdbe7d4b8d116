"""What both ways of a product on vectors share: the memory they work in, segments of k, packing, tiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        self.a_place, self.a_row, self.a_k = code.slot("ptr"), code.slot("i64"), code.slot("i64")

    def limits(self) -> tuple[str, str]:
        """As many rows as there is room for sums."""
        if self.placed:
            code = self.code
            self.a_inner = code.op(f"load i64, ptr {code.offset(self.look_a, 'i64', str(DIMS - 2))}")
            self.a_placed = code.compare("ne", self.a_inner, self.size["k"])  # A's k are several runs
        return str(SUMS_BYTES // self.pitch // UNIT_ROWS), str(self.wide_units)

    def memory(self) -> None:
        """Where packed panels, rows of A, sums and tables lie."""
        code = self.code
        self.packed, self.copied, self.sums, tables = (
            code.at(self.scratch, str(place)) for place in (0, COPIED, SUMS, TABLES)
        )
        self.k_table, self.a_table, self.n_table = (
            code.at(tables, str(8 * n * (SEGMENT + SOON))) for n in range(3)
        )

    def block(self, left: str) -> str:
        """How many of the rows that are left are the next block."""
        code = self.code
        all_of_them = code.compare("sle", left, str(self.block_rows + heights(code.target)[0]))
        return code.choose(all_of_them, left, str(self.block_rows))

    @contextmanager
    def segments(self) -> Iterator[tuple[str, str]]:
        """The segments of k: where each begins, and how many it has."""
        code = self.code
        with code.loop(self.split.from_k, self.split.to_k, SEGMENT) as turn:
            yield turn.index, code.minimum(code.sub(self.split.to_k, turn.index), str(SEGMENT))

    def table(self, look: str, start: str, count: str, room: str, table: str) -> None:
        """Where a window's columns, or its k, lie."""
        self.code.run("places", f"ptr {look}", start, count, room, f"ptr {table}")

    def turns(self, step: str, outer: str) -> str:
        """Whether `pack` is to turn elements in registers: enough neighbours lie along outer."""
        code, element = self.code, self.element
        beside = code.compare("eq", step, str(element.stored_bytes))
        return code.both(beside, code.compare("sge", outer, str(16 // element.bytes)))

    def pack(
        self, turned: str, src: str, steps: tuple[str, str], into: str, pitch: int, outer: str, inner: str
    ) -> None:
        """Copies outer x inner elements, or turns them."""
        code = self.code
        with code.either(turned) as straight:
            code.run("turn", f"ptr {src}", steps[1], f"ptr {into}", str(pitch), outer, inner)
            next(straight)
            self.copy(src, steps, into, (pitch, self.panel_bytes), outer, inner)

    def copy_rows(self, run: Run, k: str, depth: str) -> None:
        """Copies rows of A, from a k on, one after the other."""
        code, pitch = self.code, ROW_PITCH * self.element.bytes
        steps = self.stride["a_row"], self.stride["a_k"]
        with self.pieces(run, k) as (at, src, rows):
            into = code.at(self.copied, code.mul(at, str(pitch)))
            self.pack(self.turns(steps[0], rows), src, steps, into, pitch, rows, depth)

    def copy(
        self, src: str, steps: tuple[str, str], into: str, apart: tuple[int, int], outer: str, inner: str
    ) -> None:
        """Copies outer x inner elements; `apart` are the bytes from row to row, and from panel to panel."""
        self.code.run("copy", f"ptr {src}", *steps, f"ptr {into}", *map(str, apart), outer, inner)

    def tile(
        self,
        run: Run,
        b: tuple[str, str],
        sums: tuple[str, str],
        first: str,
        depth: str,
        table: str = "",
        masked: bool = False,
    ) -> None:
        """One panel's tiles: the first segment's sums are stored, later ones added.

        Over a window `table` has the places of A's k; without it they are a step apart, or A's own. `masked`:
        of a panel's columns only the run's are there.
        """
        code = self.code
        into, pitch = sums
        old, old_pitch = code.choose(first, "@nothing", into, "ptr"), code.choose(first, "0", pitch)
        narrow = code.compare("sle", run.columns, str(self.panel // VECTORS))
        name, columns = ("tile_masked", run.columns) if masked else ("tile", f"i1 {narrow}")
        a, row = code.op(f"load ptr, ptr {self.a_place}"), code.get(self.a_row)
        rest = (f"ptr {into}", pitch, f"ptr {old}", old_pitch, depth, run.rows, columns)
        if not self.placed:
            code.run(name, f"ptr {a}", row, code.get(self.a_k), f"ptr {b[0]}", b[1], *rest)
        elif table:
            code.run("tile_of_places", f"ptr {a}", row, f"ptr {table}", f"ptr {b[0]}", *rest)
        else:
            with code.either(self.a_placed) as evenly:
                code.run("tile_of_places", f"ptr {a}", row, f"ptr {self.a_table}", f"ptr {b[0]}", *rest)
                next(evenly)
                code.run("tile", f"ptr {a}", row, code.get(self.a_k), f"ptr {b[0]}", b[1], *rest)
