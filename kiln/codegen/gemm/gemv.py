"""Products of one row (GEMV): out[b, 0, n] = epilogue(sum over k of A[b, 0, k] * B[b, k, n]).

B is read once and nothing else is large, so nothing is packed: each column is a lane, and B is read in place.

    contiguous    unit stride along n:  a few rows at a time, their columns from the first to the last
    row_transposed    unit stride along k:  16 columns, four k of each at a time, in registers (transposed.py)
    row_squares   the same where columns share cache sets or are whole vectors:  as many k as columns
    row_narrow    unit stride along k, fewer columns than 16:  vectors that overlap
    few           unit stride along n, fewer columns than lanes:  vectors that overlap
    gathered      any strides:  one vector, columns past the last repeat it

Where columns are no whole vectors, the last vector begins among those that are done, and repeats their sums.
Each routine makes one segment's chains and adds them to what the segments before left. A vector is 16 lanes
on every machine. A unit is one batch index and ROW_COLUMNS columns; neighbours are done as one run. What is
transposed goes through all segments before the next columns do: their k follow each other in memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import reduce
from operator import mul

from kiln.codegen.compile import Part
from kiln.codegen.gemm.arguments import BATCH
from kiln.codegen.gemm.driver_spec import PRODUCT, DriverSpec
from kiln.codegen.gemm.element import Element, element_of, multiply_add
from kiln.codegen.gemm.grid import row_columns
from kiln.codegen.gemm.pack import load
from kiln.codegen.gemm.problem import Batch, batch_indices
from kiln.codegen.gemm.split_k import Segments
from kiln.codegen.gemm.transposed import (
    NARROW_BYTES,
    by_squares,
    row_narrow,
    row_squares,
    row_transposed,
)
from kiln.codegen.ir.code import IOTA64
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.memory import Memory
from kiln.codegen.ir.routine import Argument, Routine, shared_part
from kiln.codegen.ir.value import LLVM, Value
from kiln.codegen.target import Target
from kiln.table.order import LANES, SEGMENT

RUN_COLUMNS = 1024  # the most columns whose sums are kept at once
ROWS = 4  # k whose products are added to a sum between its load and its store
PARAMS = "ptr %a, i64 %ak, ptr %b, i64 %bk, i64 %bs, ptr %c, i64 %k, i64 %cols, i1 %first"


def shared_parts(spec: DriverSpec, target: Target) -> list[Part]:
    """What all kernels of one row share."""
    element = element_of(spec.dtype)
    return [
        shared_part(target, element, contiguous, *([] if target.masks else [few]), gathered),
        shared_part(target, element, row_transposed, row_squares, row_narrow),
    ]


class _Sums:
    """A routine that sums some vectors of columns over one segment of k."""

    def __init__(self, target: Target, element: Element, name: str, lanes: int = LANES) -> None:
        self.code = Routine(target, name, PARAMS)
        self.element, self.lanes = element, lanes
        self.kind = f"<{lanes} x {LLVM[element.summed]}>"
        self.bytes = lanes * element.bytes

    def zeros(self) -> list[Value]:
        """What chains start with."""
        return [Value("zeroinitializer", self.element.summed, self.lanes)]

    def scalar(self, k: Index) -> str:
        """A[k] on every lane."""
        code = self.code
        a = code.pointer("%a")
        ak = code.index("%ak")
        x = load(code, self.element, a[k * ak], 1)
        return Memory(code).machine.spread(Value(x, self.element.summed), self.lanes).text

    def step(self, x: str, columns: list[str], sums: list[Value]) -> list[Value]:
        """sums + x * columns."""
        lanes = self.lanes
        made = [multiply_add(self.code, self.element, lanes, x, y, s.text) for y, s in zip(columns, sums)]
        return [Value(text, self.element.summed, lanes) for text in made]

    def finish(self, sums: list[Value], *places: Pointer) -> None:
        """Adds the chains to the sums so far, which lie there; the first segment's are the sums."""
        code, totals = self.code, list[str]()
        for chain, into in zip(sums, places):
            old = into.load(self.kind, self.element.bytes)
            old = code.op(f"select i1 %first, {self.kind} splat ({self.element.nothing}), {self.kind} {old}")
            totals.append(code.op(f"{self.element.add} {self.kind} {old}, {chain.text}"))
        for total, into in zip(totals, places):  # all are read before any is written: places may overlap
            into.store(f"{self.kind} {total}", self.element.bytes)


def contiguous(target: Target, element: Element) -> Routine:
    """The routine contiguous: all columns of a run, side by side; they go by a few rows at a time.

    chain[..] = 0
    each ROWS of k, then each k left:   x = splat(load a[k]) ...
        each 16 columns (the last ones masked):
            chain[columns] = fma(x, load b[k, columns], chain[columns]) of each row; prefetch
    c[..] += chain[..]
    """
    made = _Sums(target, element, "contiguous")
    code = made.code
    b, c = code.pointers("b", "c")
    bk, depth, cols = code.indices("bk", "k", "cols")
    chain = code.slot(made.kind, RUN_COLUMNS // LANES)
    whole = cols & -LANES
    with code.times(cols, LANES) as at:
        place = chain[at * element.bytes]
        place.store(f"{made.kind} zeroinitializer", 64)
    start = depth & -ROWS
    for first, end, rows in ((0, start, ROWS), (start, depth, 1)):
        with code.loop(first, end, rows) as turn:
            ks = [turn.index + j for j in range(rows)]
            xs, bases = [made.scalar(k) for k in ks], [b[k * bk] for k in ks]
            with code.times(whole, LANES) as at:
                _add_rows(made, xs, bases, chain, at, None)
            if target.masks:
                with code.when(whole < cols):
                    mask = Memory(code).mask(cols - whole)
                    _add_rows(made, xs, bases, chain, whole, mask)
    with code.times(cols, LANES) as at:
        left = at * element.bytes
        found = chain[left].load(made.kind, 64)
        made.finish([Value(found, element.summed, LANES)], c[left])
    return code


def _add_rows(
    made: _Sums, xs: list[str], bases: list[Pointer], chain: Pointer, column: Index, mask: Value | None
) -> None:
    """chain[column ..] takes a few rows' products; of a tail, the lanes of the mask."""
    code, element = made.code, made.element
    bk = code.index("%bk")
    memory, left = Memory(code), column * element.stored_bytes
    place = chain[column * element.bytes]
    sums = [Value(place.load(made.kind, 64), element.summed, LANES)]
    ahead = bk * ROWS
    for x, base in zip(xs, bases):
        source = base[left]
        code.prefetch(source[ahead])
        read = memory.read_lanes(element.dtype, source, None if mask is None else code.index(LANES), mask)
        sums = made.step(x, [memory.machine.convert(read, element.summed).text], sums)
    place.store(sums[0].typed, 64)


def few(target: Target, element: Element) -> Routine:
    """The routine few, of machines without masks: columns side by side, fewer than 16 and a vector at least.
    The last vectors begin where they end with the last column.

    sum[v] = 0
    k times:   x = splat(load a[k]);   each v:  sum[v] = fma(x, load b[k, begin[v]], sum[v])
    c[begin[..]] += sum[..]
    """
    made = _Sums(target, element, "few", NARROW_BYTES // element.bytes)
    code, lanes = made.code, made.lanes
    b, c = code.pointers("b", "c")
    bk, k, cols = code.indices("bk", "k", "cols")
    begins = [(cols - lanes).min(begin) for begin in range(0, LANES, lanes)]
    with code.loop(0, k, 1, made.zeros() * len(begins)) as turn:
        row = b[turn.index * bk]
        columns = [load(code, element, row[begin * element.stored_bytes], lanes) for begin in begins]
        turn.next = made.step(made.scalar(turn.index), columns, turn.values)
    made.finish(turn.values, *(c[begin * element.bytes] for begin in begins))
    return code


def _places(made: _Sums) -> Value:
    """The positions of 16 columns, in elements; columns past the last repeat it."""
    code, machine = made.code, Memory(made.code).machine
    bs, cols = code.indices("bs", "cols")
    lanes = Value(IOTA64, "i64", LANES, True)
    last = machine.spread((cols - 1).value, LANES)
    lanes = machine.choose(machine.compare("lt", lanes, last), lanes, last)
    step = bs // made.element.stored_bytes
    return machine.instruction("mul", lanes, machine.spread(step.value, LANES))


def _gather(made: _Sums, row: Pointer, places: Value) -> str:
    """The elements of a row at `places`, as summed."""
    memory = Memory(made.code)
    column = memory.gather(made.element.dtype, row, places, None)
    return memory.machine.convert(column, made.element.summed).text


def gathered(target: Target, element: Element) -> Routine:
    """The routine gathered: each k:  sum = fma(splat(load a), gather b, sum)."""
    made = _Sums(target, element, "gathered")
    code, places = made.code, _places(made)
    b = code.pointer("%b")
    bk, k = code.indices("bk", "k")
    with code.loop(0, k, 1, made.zeros()) as turn:
        column = _gather(made, b[turn.index * bk], places)
        turn.next = made.step(made.scalar(turn.index), [column], turn.values)
    made.finish(turn.values, code.pointer("%c"))
    return code


class RowDriver:
    """The routine kernel under construction."""

    def __init__(self, target: Target, spec: DriverSpec) -> None:
        self.spec, self.code = spec, Routine(target, PRODUCT, spec.params, quick=True)
        self.element, self.masks, self.arguments = element_of(spec.dtype), target.masks, spec.arguments
        self.buffer = self.code.slot("i8", RUN_COLUMNS * self.element.bytes)

    def _word(self, *path: int | str) -> Index:
        return self.spec.word(self.code, *path)

    def write(self) -> Routine:
        """What of the product the launch is for: segments' sums to be added, or units."""
        code = self.code
        self.batch = [self._word("size", d) for d in range(BATCH)]
        self.size = {name: self._word("size", name) for name in "mnk"}
        self.size["batch"] = reduce(mul, self.batch)
        cut = self._word("segments", "first"), self._word("segments", "count")
        parts = code.operand(self.arguments.pointer("parts"))
        self.segments = Segments(code, self.element, parts, cut, self.size)
        with code.either(self.segments.adds) as units:
            self.segments.add(self._finish_rows)
            next(units)
            self._runs()
        return code

    def _finish_rows(self, batch: Index, row: Index, rows: Index, sums: Pointer) -> None:
        at = batch_indices(self.code, batch, self.batch)
        self._finish(at, row, rows, 0, self.size["n"], sums, self.segments.pitch)

    def _finish(self, batch: Batch, *rectangle_and_sums: Argument) -> None:
        code = self.code
        code.run_at(code.pointer("%finish"), code.ptr, code.arg, *batch, *rectangle_and_sums)

    def _runs(self) -> None:
        """Units in runs of neighbours: each segment, then the epilogue, from a buffer on the stack."""
        code, segments, stored = self.code, self.segments, self.element.stored_bytes
        first_unit, last_unit = code.indices("begin", "end")
        batches, n, k = (self.size[name] for name in ("batch", "n", "k"))
        dims = {"a": (*range(BATCH), "row", "k"), "b": (*range(BATCH), "k", "column")}
        strides = [[self._word("stride", name, d) * stored for d in own] for name, own in dims.items()]
        self.a_k, self.b_k, self.b_column = strides[0][-1], *strides[1][-2:]
        factors = [code.operand(self.arguments.pointer(name)) for name in dims]
        columns_of_unit = row_columns(self.element)
        per_batch = n.ceil_div(columns_of_unit)
        self.unit, self.along = (x.equals(stored) for x in (self.b_column, self.b_k))
        done = code.variable(0)
        unit = code.variable(first_unit)
        with code.during(unit, last_unit) as at:
            inside = segments.divide(at, batches * per_batch)
            segments.batch = inside // per_batch
            batch = batch_indices(code, segments.batch, self.batch)
            first = inside - segments.batch * per_batch
            units = (per_batch - first).min(last_unit - at)
            units = units.min(RUN_COLUMNS // columns_of_unit)
            unit.set(at + units)
            column = first * columns_of_unit
            cols = (n - column).min(units * columns_of_unit)
            a, b = (x[*map(mul, batch, steps)] for x, steps in zip(factors, strides))
            b = b[column * self.b_column]
            sums = segments.cut.choose(segments.place(code.index(0), column), self.buffer)
            end = k.equals(0).choose(1, segments.to_k)  # without k, zeros
            done.set(0)
            with code.during(done, cols) as next_one:
                start = next_one.min((cols - LANES).max(0))  # the last ones again with those before them
                into = sums[start * self.element.bytes]
                count = code.variable(0)
                with code.loop(segments.from_k, end, SEGMENT) as turn:
                    from_k = turn.index
                    rows = b[from_k * self.b_k]
                    here = a[from_k * self.a_k]
                    depth = (segments.to_k - from_k).min(SEGMENT)
                    begins = from_k.equals(segments.from_k)
                    left = cols - start
                    count.set(self._columns(here, rows, start, left, depth, into, begins))
                done.set(start + count.get())
            with code.when(segments.whole):
                self._finish(batch, 0, 1, column, cols, sums, 0)

    def _columns(
        self, a: Pointer, b: Pointer, start: Index, cols: Index, depth: Index, into: Pointer, first: Condition
    ) -> Index:
        """Sums some of the next `cols` columns; how many."""
        code = self.code
        column = b[start * self.b_column]
        arguments = (a, self.a_k, column, self.b_k, self.b_column, into, depth)
        count = code.variable(LANES)
        whole = cols if self.masks else cols & -LANES
        several = self.along & (cols >= LANES)
        turns = self.along & (self.b_column > 0) & (depth >= 16 // self.element.bytes)
        few = NARROW_BYTES // self.element.bytes
        squares = by_squares(code.target, self.element, column, self.b_column, depth)
        panels = (self.size["k"] <= SEGMENT).choose(cols & -LANES, LANES)
        ways: list[tuple[str, Integer, Condition]] = [
            ("contiguous", whole, self.unit & (whole > 0)),
            ("row_squares", panels, several & squares),
            ("row_transposed", panels, turns & several),
            ("row_narrow", cols, turns & (cols >= few)),
            ("gathered", LANES, code.condition(True)),
        ]
        if not self.masks:
            ways.insert(1, ("few", cols, self.unit & (cols >= few)))
        with ExitStack() as others:
            for name, columns, fits in ways:
                other = others.enter_context(code.either(fits))
                code.run(name, *arguments, cols if name == "gathered" else columns, first)
                count.set(columns)
                next(other)
        return count.get()
