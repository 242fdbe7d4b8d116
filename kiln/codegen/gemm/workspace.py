"""A run of a product on vectors: how a thread's memory is divided, and the calls that pack and multiply
there.
"""

from __future__ import annotations

from kiln.codegen.gemm.arguments import DIMS
from kiln.codegen.gemm.driver_spec import DriverSpec
from kiln.codegen.gemm.grid import SCRATCH_BYTES, UNIT_BYTES, UNIT_ROWS, unit_columns
from kiln.codegen.gemm.problem import Problem, Run
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.target import Target
from kiln.table.order import SEGMENT

ROW_PITCH = SEGMENT + 16  # elements between copied rows of A, so that rows fall into different cache sets
SUMS_BYTES = 528 << 10  # of sums that are not finished yet
PANEL_GAP = 128  # bytes between packed panels, which are written side by side

# What lies where in a thread's scratch memory, in bytes; the same for every dtype and target.
NC, ROWS = 4, 42  # units of columns of packed B, and copied rows of A, at most
COPIED = NC * (UNIT_BYTES * SEGMENT + 16 * PANEL_GAP)  # rows of A, after the packed panels of B
SUMS = COPIED + ROWS * ROW_PITCH * 8
TABLES = SUMS + SUMS_BYTES
OFFSETS = SEGMENT + 8  # words of a table of k: as many more as are asked for ahead
assert TABLES + 8 * (2 * OFFSETS + NC * UNIT_BYTES // 4) <= SCRATCH_BYTES


class Workspace:
    """What both ways of a product on vectors share: blocks, and operands swapped."""

    packed: Pointer  # panels
    copied: Pointer  # rows of A
    sums: Pointer
    k_offsets: Pointer  # where the k of a window lie, those of an indirect A, and a window's columns
    a_offsets: Pointer
    n_offsets: Pointer
    a_inner: Index  # k of an indirect A that are one run
    a_indirect: Condition  # whether they are several

    def __init__(self, problem: Problem) -> None:
        self.problem, self.code, self.element = problem, problem.code, problem.element
        spec, element, code, target = problem.spec, problem.element, problem.code, problem.code.target
        self.blocking = blocking = target.fma
        self.indirect = spec.indirect  # a table says where the k of A lie, read in place
        self.masked = masked_panels(spec, target)
        self.panel, self.panel_bytes = element.panel(target), blocking.vectors * target.vector_bits // 8
        self.panel_pitch = SEGMENT * self.panel_bytes + PANEL_GAP
        self.block_rows = blocking.mc - blocking.mc % blocking.mr[0]
        assert self.block_rows + blocking.mr[0] <= ROWS and blocking.nc <= NC
        assert SEGMENT + blocking.prefetch_offsets <= OFFSETS
        direct = problem.output is not None and not spec.window
        most = blocking.nc if direct and "b" not in spec.computed else blocking.nc_with_sums
        most = min(target.second_cache // (UNIT_BYTES * SEGMENT), most)
        unit = unit_columns(element, spec.folds) * element.bytes
        self.wide_units = max(most * UNIT_BYTES // unit, 1)
        self.pitch = self.panel_bytes if direct else self.wide_units * unit
        assert self.panel * self.wide_units * unit <= SUMS_BYTES
        self.a_place, self.a_row, self.a_k = code.slot("ptr"), code.variable(), code.variable()

    def limits(self) -> tuple[Integer, Integer]:
        """As many rows as there is room for sums."""
        if self.indirect:
            self.a_inner = self.problem.look_a.word(DIMS - 2)
            self.a_indirect = self.a_inner.differs(self.problem.size["k"])
        return SUMS_BYTES // self.pitch // UNIT_ROWS, self.wide_units

    def divide(self) -> None:
        """Where packed panels, rows of A, sums and tables lie."""
        self.packed, self.copied, self.sums, tables = (
            self.problem.scratch[place] for place in (0, COPIED, SUMS, TABLES)
        )
        self.k_offsets, self.a_offsets, self.n_offsets = (tables[8 * n * OFFSETS] for n in range(3))

    def block(self, left: Index) -> Index:
        """How many of the rows that are left are the next block: MC, or all if not a tile more are left."""
        all_of_them = left <= self.block_rows + self.blocking.mr[0]
        return all_of_them.choose(left, self.block_rows)

    def offsets(self, look: Pointer, start: Index, count: Integer, room: Integer, table: Pointer) -> None:
        """A table of where a window's columns, or its k, lie."""
        self.code.run("offsets", look, start, count, room, table)

    # -- packing ------------------------------------------------------------------------------------

    def transposes(self, step: Index, outer: Index) -> Condition:
        """Whether `pack` is to transpose elements in registers: enough neighbours lie along outer."""
        element = self.element
        beside = step.equals(element.stored_bytes)
        return beside & (outer >= 16 // element.bytes)

    def pack(
        self,
        transposed: Condition,
        src: Pointer,
        steps: tuple[Index, Index],
        into: Pointer,
        pitch: int,
        outer: Index,
        inner: Index,
    ) -> None:
        """Copies outer x inner elements, or transposes them."""
        code = self.code
        with code.either(transposed) as straight:
            code.run("transpose", src, steps[1], into, pitch, outer, inner)
            next(straight)
            self.copy(src, steps, into, (pitch, self.panel_bytes), outer, inner)

    def copy_rows(self, run: Run, k: Index, depth: Index) -> None:
        """Copies rows of A, from a k on, one after the other."""
        pitch = ROW_PITCH * self.element.bytes
        steps = self.problem.a.stride["row"], self.problem.a.stride["k"]
        with self.problem.stretches(run, k) as (at, src, rows):
            into = self.copied[at * pitch]
            self.pack(self.transposes(steps[0], rows), src, steps, into, pitch, rows, depth)

    def copy(
        self,
        src: Pointer,
        steps: tuple[Index, Index],
        into: Pointer,
        pitches: tuple[int, int],
        outer: Index,
        inner: Index,
    ) -> None:
        """Copies outer x inner elements; pitches are the bytes from row to row, and from panel to panel."""
        self.code.run("copy", src, *steps, into, *pitches, outer, inner)

    # -- tiles --------------------------------------------------------------------------------------

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

        Over a window `table` has the offsets of A's k; without it they are a step apart, or A's own.
        `masked`: of a panel's columns only the run's are there.
        """
        code = self.code
        into, pitch = sums
        old, old_pitch = first.choose(code.pointer("@nothing"), into), first.choose(0, pitch)
        narrow = run.columns <= self.panel // self.blocking.vectors
        name, columns = ("tile_masked", run.columns) if masked else ("tile", narrow)
        a, row = self.a_place.pointer(), self.a_row.get()
        rest = (into, pitch, old, old_pitch, depth, run.rows, columns)
        if not self.indirect:
            code.run(name, a, row, self.a_k.get(), b[0], b[1], *rest)
        elif table is not None:
            code.run("tile_indirect", a, row, table, b[0], *rest)
        else:
            with code.either(self.a_indirect) as evenly:
                code.run("tile_indirect", a, row, self.a_offsets, b[0], *rest)
                next(evenly)
                code.run("tile", a, row, self.a_k.get(), b[0], b[1], *rest)

    def tile_transposed(
        self,
        run: Run,
        b: tuple[Pointer, Index],
        sums: tuple[Pointer, Index],
        first: Condition,
        depth: Index,
        squares: Condition,
    ) -> None:
        """Tiles of very few rows, copied, by whole panels of B as it lies, whose columns are so many bytes
        apart.
        """
        code = self.code
        into, pitch = sums
        old = first.choose(code.pointer("@nothing"), into)
        old_steps = first.choose(0, pitch), first.choose(0, self.element.bytes)
        rest = (into, pitch, old, *old_steps, depth, run.rows, run.columns)
        with code.either(squares) as otherwise:
            code.run("tile_squares", self.copied, *b, *rest)
            next(otherwise)
            code.run("tile_transposed", self.copied, *b, *rest)


def masked_panels(spec: DriverSpec, target: Target) -> bool:
    """Whether panels of fewer columns are masked, so that they need not be packed: of matrices in memory."""
    return target.masks and not (spec.widened or spec.window or "b" in spec.computed)
