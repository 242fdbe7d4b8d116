"""Products by fused multiply-adds of vectors: packed panels of B, rows of A, tiles (fma_tile.py).

    B: packed as panels of NR columns, or read in place; or computed into panels
    A: read in place, or copied, or computed
    sums -> scratch memory, or an output: panels that are whole, or masked

A block of B stays in the second cache while all rows go by; a few rows of A stay while all panels go by. Runs
of few rows go another way: panel by panel, or swapped.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kiln.codegen.compile import Part
from kiln.codegen.gemm.driver import Blocks
from kiln.codegen.gemm.driver_spec import DriverSpec
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.epilogue import Block
from kiln.codegen.gemm.fma_tile import nothing, tile, tile_indirect, tile_masked
from kiln.codegen.gemm.pack import clear, copy, transpose, zeros
from kiln.codegen.gemm.problem import Problem, Run
from kiln.codegen.gemm.swapped import Swapped
from kiln.codegen.gemm.transposed import by_squares, crowded, tile_squares, tile_transposed
from kiln.codegen.gemm.window import offsets, window
from kiln.codegen.gemm.workspace import OFFSETS, ROW_PITCH, ROWS, Workspace, masked_panels
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer, every
from kiln.codegen.ir.routine import shared_part
from kiln.codegen.target import Target
from kiln.table.order import LANES, SEGMENT


def shared_parts(spec: DriverSpec, target: Target) -> list[Part]:
    """What products by fused multiply-adds share: packing and tiles.

    Narrow factors are as wide as their sums by the time a tile reads them.
    """
    element = element_of(spec.dtype)
    wide = element_of(element.total)
    parts = [shared_part(target, element, offsets, window)] if spec.window else []
    parts += [shared_part(target, element, zeros, copy), shared_part(target, element, transpose)]
    parts.append(shared_part(target, wide, tile))
    if masked_panels(spec, target):
        parts.append(shared_part(target, wide, tile_masked))
    if spec.indirect:
        parts.append(shared_part(target, wide, tile_indirect))
    return parts


def by_panels(spec: DriverSpec) -> bool:
    """Whether very few rows go panel by panel: by a matrix in memory, elements as they are summed."""
    return not (spec.window or spec.computed or spec.widened)


class Fma(Blocks):
    """Blocks of products on vectors."""

    kc = SEGMENT

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        spec = problem.spec
        self.plain = spec.plain  # there is no epilogue: the sums are the result
        self.work = Workspace(problem)
        self.panel, self.panel_bytes = self.work.panel, self.work.panel_bytes
        swaps = not (spec.widened or spec.computed)
        self.by_panels = by_panels(spec)
        self.swapping = Swapped(self.work, self.plain) if swaps else None
        self.b_place, self.b_step = self.code.slot("ptr"), self.code.variable()

    def parts(self) -> list[Part]:
        target, element = self.code.target, self.element
        few = [shared_part(target, element, tile) for tile in (tile_transposed, tile_squares)]
        return shared_parts(self.spec, target) + (few if self.by_panels else [])

    def constants(self) -> list[str]:
        return [nothing(self.code.target, self.element)]

    def block_of(self, factor: str) -> Block:
        """What tiles read; of a B that is transposed on its way there, elements as they lie in memory."""
        later = factor == "b" and self.spec.computed[factor]
        return Block(self.element.dtype if later else self.element.total, self.panel)

    # -- the loops ----------------------------------------------------------------------------------

    def limits(self) -> tuple[Integer, Integer]:
        rows, wide = self.work.limits()
        return rows, wide if self.swapping is None else self.swapping.widest(wide)

    def begin(self, run: Run) -> None:
        self.work.divide()

    def few_rows(self, run: Run) -> Condition | None:
        if self.swapping is None:
            return None
        swapped = self.swapping.fits(run)
        return self._very_few(run) | swapped if self.by_panels else swapped

    def multiply_few(self, run: Run) -> None:
        assert self.swapping is not None
        if not self.by_panels:
            self.swapping.multiply(run)
            return
        with self.code.either(self._very_few(run)) as several:
            self._by_panels(run)
            next(several)
            self.swapping.multiply(run)

    def locate_columns(self, run: Run) -> None:
        if self.problem.spec.window:
            columns = self.work.wide_units * self.columns
            self.work.offsets(self.problem.look_n, run.column, run.columns, columns, self.work.n_offsets)

    def depths(self) -> tuple[Integer, Index]:
        return self.problem.segments.from_k, self.problem.segments.to_k

    def pack_b(self, run: Run, from_k: Index, depth: Index) -> None:
        """Leaves the block's panels packed, or settles that whole ones are read in place."""
        if "b" in self.spec.computed:
            self.b_lies = self._compute_b(run, from_k, depth)
        elif self.problem.spec.window:
            self.b_lies = self._pack_window(run, from_k, depth)
        else:
            self.b_lies = self._pack_matrix(run, from_k, depth)
        if self.work.indirect:
            with self.code.when(self.work.a_indirect):
                self.work.offsets(self.problem.look_a, from_k, depth, OFFSETS, self.work.a_offsets)

    @contextmanager
    def rows(self, run: Run) -> Iterator[tuple[Index, Run]]:
        code = self.code
        done = code.variable(0)
        with code.during(done, run.rows) as row:
            rows = self.work.block(run.rows - row)
            done.set(row + rows)
            yield row, run._replace(row=run.row + row, rows=rows)

    def multiply(self, part: Run, row: Index, from_k: Index, depth: Index) -> None:
        self._factor_a(part, from_k, depth)
        self._panels(part, row, from_k, depth)

    # -- B ------------------------------------------------------------------------------------------

    def _packed_panel(self, left: Index) -> Pointer:
        """Where the panel that begins `left` columns into the run is packed."""
        return self.work.packed[left // self.panel * self.work.panel_pitch]

    def _compute_b(self, run: Run, from_k: Index, depth: Index) -> Condition:
        """Computes the panels. Columns past the last are zero or repeat it; without k all are zero."""
        code, problem, pitch = self.code, self.problem, self.panel_bytes
        self.b_place.put(problem.b.base)
        self.b_step.set(pitch)
        filled = ~problem.empty
        transposed = self.spec.computed["b"]
        single = self.panel < LANES  # as 16 columns are computed at a time, a narrower panel goes alone
        with code.times(run.columns, self.panel) as at:
            columns = (run.columns - at).min(self.panel)
            into, column = self._packed_panel(at), run.column + at
            ragged = columns < self.panel
            with code.when(ragged | problem.empty):
                clear(code, into, depth * pitch)
            if transposed:
                with code.when(filled):
                    self._transpose_b([*run.batch, column, columns, from_k, depth], into)
            elif single:
                with code.when(filled):
                    alone = [*run.batch, from_k, depth, column, columns]
                    problem.compute("b", alone, into, pitch, self.panel_bytes)
        if not transposed and not single:
            with code.when(filled):
                whole = [*run.batch, from_k, depth, run.column, run.columns]
                problem.compute("b", whole, self.work.packed, pitch, self.work.panel_pitch)
        return code.condition(False)

    def _transpose_b(self, rectangle: list[Index], into: Pointer) -> None:
        """A panel whose neighbours lie along k: computed into the memory for A's rows, then transposed."""
        code, size, copied = self.code, self.element.stored_bytes, self.work.copied
        columns, depth, least = rectangle[-3], rectangle[-1], 16 // self.element.bytes
        pitch = ROW_PITCH * size
        self.problem.compute("b", rectangle, copied, pitch, self.panel * size)
        deep = (depth < least).choose(least, depth)
        code.run("transpose", copied, pitch, into, self.panel_bytes, deep, columns)

    def _pack_matrix(self, run: Run, from_k: Index, depth: Index) -> Condition:
        """Packs panels by how B lies.

        in place:    unit-stride columns, and not enough rows to pay for packing
        transposed:  unit stride along k
        copied:      anything else; columns past the last are zero, if they are not masked
        """
        code, element, work = self.code, self.element, self.work
        src = self.problem.b.at(run.batch, k=from_k, column=run.column)
        step, column = self.problem.b.stride["k"], self.problem.b.stride["column"]
        lies = self._lies_well(src, run)
        self.b_place.put(src)
        self.b_step.set(lies.choose(step, self.panel_bytes))
        whole = run.columns & -self.panel
        unit = column.equals(element.stored_bytes)
        beside = unit & ~lies
        with code.when(beside):
            work.copy(src, (step, column), work.packed, (self.panel_bytes, work.panel_pitch), depth, whole)
        first = unit.choose(whole, 0)
        first = lies.choose(run.columns, first) if work.masked else first
        transposed = work.transposes(step, depth) & (run.columns >= 4)
        with code.loop(first, run.columns, self.panel) as turn:
            columns = (run.columns - turn.index).min(self.panel)
            into = self._packed_panel(turn.index)
            if not work.masked:
                with code.when(columns < self.panel):
                    clear(code, into, depth * self.panel_bytes)
            here = src[turn.index * column]
            work.pack(transposed, here, (step, column), into, self.panel_bytes, depth, columns)
        return lies

    def _lies_well(self, src: Pointer, run: Run) -> Condition:
        """Whether whole panels of B are read in place: packing costs as much as a few rows of tiles."""
        if self.element.widened:
            return self.code.condition(False)
        blocking, step = self.work.blocking, self.problem.b.stride["k"]
        unit = self.problem.b.stride["column"].equals(self.element.stored_bytes)
        near = step < blocking.pack_bytes
        sets = (step & (blocking.crowded_bytes - 1)).equals(0)  # its panels' rows fall into the same few
        low = run.rows < sets.choose(blocking.mr[0] + 1, blocking.pack_rows)
        places = src.address() | step
        aligned = (places & (self.panel_bytes // blocking.vectors - 1)).equals(0)
        return unit & (low | (near & aligned))

    def _pack_window(self, run: Run, from_k: Index, depth: Index) -> Condition:
        """Packs the panels of a window, whose columns have their table."""
        code, work, problem = self.code, self.work, self.problem
        lanes = self.panel // work.blocking.vectors
        work.offsets(problem.look_k, from_k, depth, depth, work.k_offsets)
        self.b_step.set(self.panel_bytes)
        src = problem.b.at(run.batch)
        last = (run.columns - 1) & -self.panel
        with code.when(run.columns - last <= lanes):
            clear(code, self._packed_panel(last), depth * self.panel_bytes)
        with code.times(run.columns, self.panel) as at:
            code.run(
                "window", src, work.k_offsets, depth,
                work.n_offsets.element("i64", at),
                (run.columns - at).min(self.panel), self._packed_panel(at),
                self.panel_bytes,
            )  # fmt: skip
        return code.condition(False)

    # -- A ------------------------------------------------------------------------------------------

    def _factor_a(self, run: Run, from_k: Index, depth: Index, copied: Condition | None = None) -> None:
        """A in place, or its rows (or columns) in the summed type one after the other: `copied`, in any
        case.
        """
        code, element, work = self.code, self.element, self.work
        row, along = self.problem.a.stride["row"], self.problem.a.stride["k"]
        first = work.a_indirect.choose(0, from_k) if work.indirect else from_k
        src, beyond = self.problem.rows_of_a(run, first)
        work.a_place.put(src)
        work.a_row.set(row)
        work.a_k.set(along)
        if "a" in self.spec.computed:
            with code.when(~self.problem.empty):
                self._compute_a(run, from_k, depth)
            return
        copied = code.condition(element.widened) if copied is None else copied
        with code.when(copied | beyond | self._crowded()):
            work.copy_rows(run, first, depth)
            self._copied(ROW_PITCH * element.bytes, element.bytes)

    def _compute_a(self, run: Run, from_k: Index, depth: Index) -> None:
        """A's rows computed; its columns, if neighbours lie along them."""
        size, rows, depths = self.element.bytes, [run.row, run.rows], [from_k, depth]
        transposed = self.spec.computed["a"]
        rectangle, pitch = (depths + rows, ROWS * size) if transposed else (rows + depths, ROW_PITCH * size)
        self.problem.compute("a", [*run.batch, *rectangle], self.work.copied, pitch, self.panel_bytes)
        self._copied(*((size, pitch) if transposed else (pitch, size)))

    def _copied(self, row: int, along: int) -> None:
        """A is the copied block, rows and k so many bytes apart."""
        self.work.a_place.put(self.work.copied)
        self.work.a_row.set(row)
        self.work.a_k.set(along)

    def _crowded(self) -> Condition:
        """Whether a tile's rows of A share cache sets, or each k lies on a page of its own."""
        work, far = self.work, self.work.blocking.crowded_bytes
        along = self.problem.a.stride["k"]
        unit = along.equals(self.element.bytes)
        sets = (self.problem.a.stride["row"] & (far - 1)).equals(0)
        pages = along >= far
        crowded = (unit & sets) | pages
        return crowded & ~work.a_indirect if work.indirect else crowded

    # -- sums ---------------------------------------------------------------------------------------

    def _very_few(self, run: Run) -> Condition:
        """Whether rows are so few, by a B whose k lie side by side, that packing it is most of the work."""
        along = self.problem.b.stride["k"].equals(self.element.stored_bytes)
        return along & (run.rows <= self._transposed_rows().max(self.work.blocking.panel_rows))

    def _transposed_rows(self) -> Index:
        """So many rows, at most, are multiplied while columns are transposed: where those are crowded, rows
        of two tiles.
        """
        most = self.work.blocking.transposed
        return crowded(self.problem.b.stride["column"]).choose(2 * most, most)

    def _by_panels(self, run: Run) -> None:
        """Very few rows: each panel of B is packed where the one before was and multiplied at once, so that
        it does not leave the first cache.
        """
        code, work, b = self.code, self.work, self.problem.b
        step, column = b.stride["k"], b.stride["column"]
        start, end = self.depths()
        with code.loop(start, end, self.kc) as turn:
            from_k, depth = turn.index, (end - turn.index).min(self.kc)
            src = b.at(run.batch, k=from_k, column=run.column)
            transposed = work.transposes(step, depth)

            def pack(left: Index, columns: Index) -> None:
                if not work.masked:
                    with code.when(columns < self.panel):
                        clear(code, work.packed, depth * self.panel_bytes)
                here = src[left * column]
                work.pack(transposed, here, (step, column), work.packed, self.panel_bytes, depth, columns)

            squares = by_squares(code.target, self.element, src, column, depth)
            most = squares.choose(self._transposed_rows(), work.blocking.transposed)
            few = every(transposed, column > 0, run.rows > 1, run.rows <= most)
            self._factor_a(run, from_k, depth, few)
            with code.when(few):  # tiles have an even number of rows
                self._repeat_last(run.rows, depth)
            done = self._multiply_transposed(run, src, (from_k, depth), few, squares)
            self._panels(run, code.index(0), from_k, depth, pack, done)

    def _repeat_last(self, rows: Index, depth: Index) -> None:
        """Copies the last of the copied rows of A once more."""
        work, size = self.work, self.element.bytes
        last, pitch = work.copied[(rows - 1) * (ROW_PITCH * size)], ROW_PITCH * size
        work.copy(
            last, (self.code.index(pitch), self.code.index(size)), last[pitch], (pitch, work.panel_bytes),
            self.code.index(1), depth,
        )  # fmt: skip

    def _multiply_transposed(
        self, run: Run, src: Pointer, ks: tuple[Index, Index], few: Condition, squares: Condition
    ) -> Index:
        """If rows are few, multiplies whole panels of columns while they are transposed; how many columns,
        from the first, are done. If these are all k, the last panel may begin among columns that are done:
        it repeats what is there.
        """
        code, work, panel, segments = self.code, self.work, self.panel, self.problem.segments
        (from_k, depth), column = ks, self.problem.b.stride["column"]
        whole = few.choose(run.columns & -panel, 0)
        some = whole > 0
        first = from_k.equals(segments.from_k)
        ragged = every(some, whole < run.columns, first, (from_k + depth).equals(segments.to_k))
        if self.problem.output is not None and not (self.plain or work.masked):
            ragged = code.condition(False)  # what is fused finishes whole panels apart from a ragged one
        with code.when(some):
            part = run._replace(columns=code.index(panel))
            into, pitch, _ = self._sums(part, code.index(0), work.sums, code.condition(True))
            rest = first, depth, squares
            work.tile_transposed(run._replace(columns=whole), (src, column), (into, pitch), *rest)
            with code.when(ragged):
                last = run.columns - panel
                into = into[last * self.element.bytes]
                work.tile_transposed(part, (src[last * column], column), (into, pitch), *rest)
        return ragged.choose(run.columns, whole)

    def _panels(
        self,
        run: Run,
        row: Index,
        from_k: Index,
        depth: Index,
        pack: Callable[[Index, Index], None] | None = None,
        done: Integer = 0,
    ) -> None:
        """The tiles of some rows, `row` rows into their run, with each panel; what is complete, finished.

        `pack` packs the panel that begins so many columns into the run; without it all are packed. The first
        `done` columns have their sums already.
        """
        code, size, problem, work = self.code, self.element.bytes, self.problem, self.work
        first = from_k.equals(problem.segments.from_k)
        last = problem.segments.whole & (from_k + depth).equals(problem.size["k"])
        rows = work.sums[row * work.pitch]
        with code.loop(done, run.columns, self.panel) as turn:
            left = turn.index
            columns = (run.columns - left).min(self.panel)
            whole = columns.equals(self.panel)
            fits = code.condition(True) if work.masked else whole
            part = run._replace(column=run.column + left, columns=columns)
            into, pitch, direct = self._sums(part, left * size, rows, fits)
            if pack is not None:
                pack(left, columns)
            b = work.packed if pack else self._packed_panel(left)
            step = code.index(self.panel_bytes) if pack else self.b_step.get()
            if not problem.spec.window and not pack:
                there = self.b_place.pointer()[left * size]
                in_place = self.b_lies & fits
                b = in_place.choose(there, b)
                step = in_place.choose(step, self.panel_bytes)
            place = (b, step), (into, pitch), first, depth
            if work.masked:
                with code.either(whole) as ragged:
                    work.tile(part, *place)
                    next(ragged)
                    work.tile(part, *place, masked=True)
            else:
                work.tile(part, *place)
                if problem.output is not None:
                    with code.when(last & ~direct):
                        problem.finish(part, into, pitch)
        if problem.output is None:
            with code.when(last):
                problem.finish(run, rows, work.pitch)
        elif not self.plain:
            with code.when(last):
                columns = run.columns & -self.panel
                panels = run if work.masked else run._replace(columns=columns)
                problem.finish(panels, problem.output_of(run), problem.c.stride["row"])

    def _sums(
        self, run: Run, left: Index, rows: Pointer, whole: Condition
    ) -> tuple[Pointer, Index, Condition]:
        """Where a panel's sums go, the distance of their rows, and whether that is the output."""
        problem, work = self.problem, self.work
        segments = problem.segments
        part = segments.place(run.row, run.column)
        pitch = segments.cut.choose(segments.pitch, work.pitch)
        if problem.output is None:
            return segments.cut.choose(part, rows[left]), pitch, self.code.condition(False)
        batch, column, inside = problem.place(run.batch, run.column, run.columns)
        direct = every(segments.whole, whole, inside)
        out = problem.output_of(run._replace(batch=batch, column=column))
        kept = segments.cut.choose(part, rows[left] if problem.spec.window else rows)
        into = direct.choose(out, kept)
        return into, direct.choose(problem.c.stride["row"], pitch), direct
