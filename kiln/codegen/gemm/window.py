"""Windows: a factor B whose rows and columns are each up to four dims of a strided array.

    B[k, n] = src[sum of k_d * k_stride[d] + sum of n_d * n_stride[d]]       k = (k0, k1, k2, k3), n likewise

That is what a convolution multiplies (an implicit GEMM): k runs over channels and taps, n over output
positions, and nobody ever writes the matrix out. Columns are packed by the way they lie, two vectors at a
time where both are up to two runs of unit stride (as most are), else one:

    contiguous    one run of unit stride             a load
    some runs     of unit stride (rows end)          two or four masked loads
    stride 2      one run                            two loads and a shuffle
    transposed    k in runs of unit stride           16-byte pieces of each column, transposed in registers
    gathered      anything else

Images that are multiplied by one A lie side by side along n, its first dim; the sums of each go to a batch
index of their own.

Few rows by a window are the transposed product, whose rows are columns a step apart and read in place
(swapped.py).

What the arguments say (arguments.py) is worked out once for a block's columns and once for a segment's k:
tables of offsets in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product

from kiln.codegen.gemm.amx_tile import PANEL, Factor, store_vnni
from kiln.codegen.gemm.arguments import DIMS
from kiln.codegen.gemm.element import Element
from kiln.codegen.gemm.pack import interleave, side_by_side, store, stored_type, widen
from kiln.codegen.ir.index import Condition, Index, Pointer, every
from kiln.codegen.ir.masked import SUFFIX, load_masked
from kiln.codegen.ir.memory import MEMORY
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import Value
from kiln.codegen.target import Target

Runs = list[tuple[Index, str]]  # of columns: where lane 0 of each would lie, and the mask of its lanes
RUNS = 4  # of unit stride that are loaded one by one


def nowhere() -> str:
    """The constant @nowhere: arguments of a window that reads one element everywhere."""
    words = ([1] * (DIMS - 1) + [0] * DIMS) * 3
    text = ", ".join(f"i64 {n}" for n in words)
    return f"@nowhere = internal unnamed_addr constant [{len(words)} x i64] [{text}]"


def offsets(target: Target, element: Element) -> Routine:
    """The routine offsets: table[i] = where index from + i of k, or of n, lies, in bytes; for i < count.

    `look` has the arguments of k or those of n. What is left of the room repeats the last.
    """
    code = Routine(target, "offsets", "ptr %look, i64 %from, i64 %count, i64 %room, ptr %table")
    look, table = code.pointers("look", "table")
    count, room = code.indices("count", "room")

    sizes = [code.index(0), *(look.word(n) for n in range(DIMS - 1))]
    strides = [look.word(DIMS - 1 + n) * element.stored_bytes for n in range(DIMS)]
    back = [strides[d - 1] - sizes[d] * strides[d] if d else code.index(0) for d in range(DIMS)]
    start, offset, index = [code.index(0)] * DIMS, code.index(0), code.index("%from")
    for d in reversed(range(1, DIMS)):
        rest = index // sizes[d]
        start[d] = index - rest * sizes[d]
        offset, index = offset + start[d] * strides[d], rest
    offset = offset + index * strides[0]
    carried = [offset, *start[1:]]
    last = count - 1
    with code.loop(0, room, 1, carried) as turn:
        here, *at = turn.indices
        table.put(here, turn.index)
        step, steps, more = strides[-1], list[Index](), code.index(1)
        for d in reversed(range(1, DIMS)):
            place = at[d - 1] + more
            over = place.equals(sizes[d])
            step = step + over.choose(back[d], 0)
            steps.append(over.choose(0, place))
            more = over.index()
        step = (turn.index < last).choose(step, 0)
        turn.next = [here + step, *steps[::-1]]
    return code


class _Window:
    """The routine window under construction."""

    def __init__(self, target: Target, element: Element, lanes: int, per_word: int) -> None:
        params = "ptr %src, ptr %ks, i64 %depth, ptr %ns, i64 %width, ptr %dst, i64 %ds"
        self.code = Routine(target, "window" if per_word == 1 else "window_vnni", params)
        self.element, self.lanes, self.per_word = element, lanes, per_word
        self.size, self.stored = element.stored_bytes, stored_type(element, self.lanes)
        self.part = 16 // element.bytes
        self.wide, self.bits = f"<{self.lanes} x i64>", f"<{self.lanes} x i1>"
        self.src, self.ks, self.ns, self.dst = self.code.pointers("src", "ks", "ns", "dst")
        self.depth, self.width, self.ds = self.code.indices("depth", "width", "ds")

    # -- columns ------------------------------------------------------------------------------------

    def _line_of(self, base: Index, step: int) -> str:
        """base + lane * step."""
        code, none = self.code, f"<{self.lanes} x i32> zeroinitializer"
        spread = code.op(f"insertelement {self.wide} poison, i64 {base}, i64 0")
        spread = code.op(f"shufflevector {self.wide} {spread}, {self.wide} poison, {none}")
        lanes = ", ".join(f"i64 {n * step}" for n in range(self.lanes))
        return code.op(f"add {self.wide} {spread}, <{lanes}>")

    def _all(self, bits: str) -> Condition:
        word = self.code.op(f"bitcast {self.bits} {bits} to i{self.lanes}")
        return self.code.condition(self.code.op(f"icmp eq i{self.lanes} {word}, -1"))

    # -- rows ---------------------------------------------------------------------------------------

    def _row(self, k: Index) -> Pointer:
        """Where k begins in src."""
        return self.src[self.ks.word(k)]

    def _into(self, k: Index) -> Pointer:
        """The row of k in dst."""
        row = k if self.per_word == 1 else k // self.per_word
        return self.dst[row * self.ds]

    def _rows(self, load: Callable[[Pointer], str]) -> None:
        """Every k, read by `load`."""
        with self.code.times(self.depth, self.per_word) as k:
            self._one_row(k, load)

    def _one_row(self, k: Index, load: Callable[[Pointer], str]) -> None:
        """The k of a row of dst."""
        raws = [load(self._row(k + n if n else k)) for n in range(self.per_word)]
        self._store([self._widen(raw) for raw in raws], self._into(k))

    def _widen(self, raw: str) -> str:
        return widen(self.code, self.element, raw, self.lanes)

    def _store(self, rows: list[str], dst: Pointer) -> None:
        """The k of a row, in the type they are summed in: one, or a word."""
        if self.per_word > 1:
            store_vnni(self.code, self.element.compute, rows, dst)
        else:
            store(self.code, self.element, rows[0], dst, self.lanes)

    def _load(self, address: Pointer) -> str:
        return address.load(self.stored, 1)

    def _masked(self, address: Pointer, mask: str, otherwise: str) -> str:
        kind = MEMORY[self.element.dtype][0]
        return load_masked(self.code, kind, address, Value(mask, "i1", self.lanes), otherwise)

    def _gathered(self, row: Pointer, offsets: str) -> str:
        code, memory = self.code, MEMORY[self.element.dtype][0]
        where = code.op(f"getelementptr i8, ptr {row}, {self.wide} {offsets}")
        name = f"llvm.masked.gather.v{self.lanes}{SUFFIX.get(memory, memory)}.v{self.lanes}p0"
        lanes = f"{self.bits} splat (i1 true)"
        arguments = [f"<{self.lanes} x ptr> {where}", "i32 1", lanes, f"{self.stored} zeroinitializer"]
        return code.call(name, self.stored, arguments)

    def _stride_2(self, row: Pointer, first: Index) -> str:
        """Every other element from a place on; nothing is read past the last of them."""
        halves = (first, first + (self.lanes - 1) * self.size)
        return self._picked([self._load(row[half]) for half in halves])

    def _picked(self, parts: list[str]) -> str:
        """A vector, or of two that overlap by an element every other element."""
        code, lanes = self.code, self.lanes
        if len(parts) == 1:
            return parts[0]
        low, high = parts
        pick = [2 * n for n in range(lanes // 2)] + [lanes + 2 * n + 1 for n in range(lanes // 2)]
        mask = ", ".join(f"i32 {n}" for n in pick)
        return code.op(f"shufflevector {self.stored} {low}, {self.stored} {high}, <{lanes} x i32> <{mask}>")

    # -- transposed -------------------------------------------------------------------------------------

    def _transposed(self, offsets: str) -> None:
        """A 128-bit piece of each column at a time; where k is no run as long, element by element."""
        code, part = self.code, self.part
        done = code.variable(0)
        kind = f"<{part} x i64>"
        run = ", ".join(f"i64 {n * self.size}" for n in range(part))
        whole = self.depth - (part - 1)
        with code.during(done, self.depth) as k:
            piece = code.variable(0)
            with code.when(k < whole):
                places = self.ks.element("i64", k).load(kind, 8)
                first = code.op(
                    f"shufflevector {kind} {places}, {kind} poison, <{part} x i32> zeroinitializer"
                )
                in_run = code.op(f"icmp eq {kind} {code.op(f'sub {kind} {places}, {first}')}, <{run}>")
                word = code.op(f"bitcast <{part} x i1> {in_run} to i{part}")
                piece.set(code.condition(code.op(f"icmp eq i{part} {word}, -1")).index())
            with code.either(piece.get().differs(0)) as single:
                self._transpose(self._row(k), self._into(k))
                done.set(k + part)
                next(single)
                self._one_row(k, lambda row: self._gathered(row, offsets))
                done.set(k + self.per_word)

    def _transpose(self, row: Pointer, dst: Pointer) -> None:
        """The k of a piece: dst[j][c] = row[c][j]."""
        code, element, part = self.code, self.element, self.part
        starts = [self.ns.word(n) for n in range(self.lanes)]
        kind = stored_type(element, part)
        pieces = [row[start].load(kind, 1) for start in starts]
        rows = [self._widen(side_by_side(code, element, pieces[j::part])) for j in range(part)]
        transposed = interleave(code, element, rows, self.lanes)
        for j in range(0, part, self.per_word):
            self._store(transposed[j : j + self.per_word], dst)
            dst = dst[self.ds]

    # -- all ----------------------------------------------------------------------------------------

    def write(self) -> Routine:
        """Two vectors, or one; words are as wide as a panel."""
        code = self.code
        if self.per_word > 1:
            self._one()
            return code
        with code.either(self.width > self.lanes) as single:
            self._two()
            next(single)
            self._one()
        return code

    def _two(self) -> None:
        """Two vectors at a time, if both are few runs; else one after the other."""
        code, lanes, size = self.code, self.lanes, self.lanes * self.element.bytes
        second, rest = self.ns.element("i64", lanes), self.width - lanes
        with ExitStack() as ways:
            for step, many in product((1, 2), (1, 2)) if code.target.masks else ():
                halves = [
                    self._ends(self.ns, code.index(lanes), step, many),
                    self._ends(second, rest, step, many),
                ]
                otherwise = ways.enter_context(code.either(every(*(fits for _, fits in halves))))
                loads = [self._by_step(runs, step) for runs, _ in halves]
                with code.times(self.depth) as k:
                    row, into = self._row(k), self._into(k)
                    for n, parts in enumerate(loads):
                        raw = self._picked([self._joined(row, runs) for runs in parts])
                        self._store([self._widen(raw)], into[n * size])
                next(otherwise)
            for columns, count, n in ((self.ns, code.index(lanes), 0), (second, rest, size)):
                code.run("window", self.src, self.ks, self.depth, columns, count, self.dst[n], self.ds)

    def _ends(
        self, ns: Pointer, width: Index, step: int, many: int
    ) -> tuple[list[tuple[Index, str]], Condition]:
        """The run, of elements `step` apart, that a vector's first column is in; if `many` are two, also the
        last one's; whether every column is in one.
        """
        code, wide, bits, pitch = self.code, self.wide, self.bits, step * self.size
        end = width - 1
        first, last = (ns.word(n) for n in (0, end))
        offsets = ns.load(wide, 8)
        left = code.op(f"icmp slt {wide} {self._line_of(code.index(0), 1)}, {self._line_of(width, 0)}")
        runs: Runs = []
        for base in [first, last - end * pitch][:many]:
            mask = code.op(f"icmp eq {wide} {offsets}, {self._line_of(base, pitch)}")
            runs.append((base, code.op(f"and {bits} {left}, {mask}")))
            left = code.op(f"xor {bits} {left}, {runs[-1][1]}")
        return runs, self._all(code.op(f"xor {bits} {left}, splat (i1 true)"))

    def _by_step(self, runs: Runs, step: int) -> list[Runs]:
        """What is loaded for runs of lanes: themselves, or the lower and the upper half of twice as many
        elements, of which every other is a lane's (see `_picked`).
        """
        if step == 1:
            return [runs]
        code, lanes, found = self.code, self.lanes, []
        for n in range(2):
            pick = [lanes if (e + n) % 2 else (e + n * (lanes - 1)) // 2 for e in range(lanes)]
            order = f"<{lanes} x i32> <{', '.join(f'i32 {e}' for e in pick)}>"
            found.append([
                (base + n * (lanes - 1) * self.size,
                 code.op(f"shufflevector {self.bits} {mask}, {self.bits} zeroinitializer, {order}"))
                for base, mask in runs
            ])  # fmt: skip
        return found

    def _one(self) -> None:
        """A vector: the ways, the fastest first."""
        code, size = self.code, self.size
        offsets = self.ns.load(self.wide, 8)
        first = code.index(code.op(f"extractelement {self.wide} {offsets}, i64 0"))

        def matches(base: Index, step: int) -> str:
            return code.op(f"icmp eq {self.wide} {offsets}, {self._line_of(base, step)}")

        with code.either(self._all(matches(first, size))) as otherwise:
            self._rows(lambda row: self._load(row[first]))
            next(otherwise)
            with code.either(self._all(matches(first, 2 * size))) as more:
                self._rows(lambda row: self._stride_2(row, first))
                next(more)
                self._in_runs(offsets) if code.target.masks else self._scattered(offsets)

    def _scattered(self, offsets: str) -> None:
        """Columns that are many runs."""
        code = self.code
        second = code.index(1).min(self.depth - 1)
        steps = [self.ks.word(at) for at in (0, second)]
        along = (steps[1] - steps[0]).equals(self.size)
        with code.either(along & (self.depth >= self.part)) as otherwise:
            self._transposed(offsets)
            next(otherwise)
            self._rows(lambda row: self._gathered(row, offsets))

    def _in_runs(self, offsets: str) -> None:
        """Runs of unit stride, if there are few: each masked load fills in the lanes of one."""
        code = self.code
        starts, bases = code.slot("i64", RUNS + 1), code.slot("i64", RUNS)
        for r in range(RUNS + 1):
            starts.put(self.width, r)
            if r < RUNS:
                bases.put(0, r)
        count = code.variable(0)
        expected = code.variable(-1)
        with code.times(self.width) as lane:
            here = self.ns.word(lane)
            known = count.get()
            begins = lane.equals(0) | here.differs(expected.get())
            expected.set(here + self.size)
            with code.when(begins):
                count.set(known + 1)
                with code.when(known < RUNS):
                    base = here - lane * self.size
                    starts.put(lane, known)
                    bases.put(base, known)
        found = count.get()
        runs = [self._run_of(starts, bases, r) for r in range(RUNS)]
        with code.either(found <= 2) as more:
            self._rows(lambda row: self._joined(row, runs[:2]))
            next(more)
            with code.either(found <= RUNS) as many:
                self._rows(lambda row: self._joined(row, runs))
                next(many)
                self._scattered(offsets)

    def _run_of(self, starts: Pointer, bases: Pointer, r: int) -> tuple[Index, str]:
        """Where lane 0 of run r would lie, and the mask of its lanes."""
        code = self.code
        base = bases.word(r)
        lanes = self._line_of(code.index(0), 1)
        first, end = (self._line_of(starts.word(n), 0) for n in (r, r + 1))
        from_, to = (
            code.op(f"icmp {test} {self.wide} {lanes}, {at}") for test, at in (("sge", first), ("slt", end))
        )
        return base, code.op(f"and {self.bits} {from_}, {to}")

    def _joined(self, row: Pointer, runs: Runs) -> str:
        """The lanes of some runs; zero elsewhere."""
        raw = "zeroinitializer"
        for base, mask in runs:
            raw = self._masked(row[base], mask, raw)
        return raw


def window(target: Target, element: Element) -> Routine:
    """The routine window: dst[k][c] = src[ks[k] + ns[c]] for depth k's and up to two vectors of columns.

    Columns past the width hold an element of another, or zero; their products are never stored.
    """
    return _Window(target, element, element.lanes(target), 1).write()


def window_vnni(target: Target, factor: Factor) -> Routine:
    """The same for AMX: dst[w][c] = the k of word w side by side, for a panel of columns.

    The depth is whole words.
    """
    return _Window(target, factor.raw, PANEL, factor.per_word).write()
