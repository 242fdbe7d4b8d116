"""Windows: a factor B whose rows and columns are each up to four dims of a strided array.

    B[k, n] = src[sum of k_d * k_stride[d] + sum of n_d * n_stride[d]]       k = (k0, k1, k2, k3), n likewise

That is what a convolution multiplies: k runs over channels and taps, n over output positions, and nobody ever
writes the matrix out. Columns are packed by the way they lie, two vectors at a time where both are up to two
runs of unit stride (as most are), else one:

    beside     one run of unit stride              a load
    some runs  of unit stride (rows end)           two or four masked loads
    apart      one run of stride 2                 two loads and a shuffle
    turned     k in runs of unit stride            16-byte pieces of each column, turned in registers
    gathered   anything else

Images that are multiplied by one A lie side by side along n, its first dim; the sums of each go to a batch
index of their own.

Few rows by a window are the transposed product, whose rows are columns a step apart and lie where they lie.

Arguments after the kernel's others: sizes of k1 k2 k3, strides of k0 .. k3, the same of n, and of the k of A
(strides in elements); the columns of an image; of columns that lie evenly: how many, how many columns and how
many elements each is from the next. What they say is worked out once for a block's columns and once for a
segment's k: tables of places (offsets in bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product

from kiln.codegen.masked import SUFFIX, load_masked
from kiln.codegen.matmul_amx import PANEL, Factor, store_words
from kiln.codegen.matmul_pack import side_by_side, store, stored_type, widen, zip_lanes
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import Element
from kiln.codegen.memory import MEMORY
from kiln.codegen.target import Target
from kiln.codegen.value import Value

DIMS = 4  # of k, and of n
LOOK = 2 * DIMS - 1  # arguments of k, of n, of A's k
IMAGE = 3 * LOOK  # the place of an image's columns among the arguments
AGAIN = IMAGE + 1  # ... of columns that lie evenly: how many, and from one to the next columns and elements
WORDS = AGAIN + 3
Runs = list[tuple[str, str]]  # of columns: where lane 0 of each would lie, and the mask of its lanes
RUNS = 4  # of unit stride that are loaded one by one


def nowhere() -> str:
    """The constant @nowhere: arguments of a window that reads one element everywhere."""
    words = ([1] * (DIMS - 1) + [0] * DIMS) * 3
    text = ", ".join(f"i64 {n}" for n in words)
    return f"@nowhere = internal unnamed_addr constant [{len(words)} x i64] [{text}]"


def places(target: Target, element: Element) -> Routine:
    """The routine places: table[i] = where index from + i of k, or of n, lies, in bytes; for i < count.

    `look` has the arguments of k or those of n. What is left of the room repeats the last.
    """
    code = Routine(target, "places", "ptr %look, i64 %from, i64 %count, i64 %room, ptr %table")

    def word(n: int) -> str:
        return code.op(f"load i64, ptr {code.offset('%look', 'i64', str(n))}")

    sizes = ["", *(word(n) for n in range(DIMS - 1))]
    strides = [code.mul(word(DIMS - 1 + n), str(element.stored_bytes)) for n in range(DIMS)]
    back = [code.sub(strides[d - 1], code.mul(sizes[d], strides[d])) if d else "" for d in range(DIMS)]
    start, offset, index = [""] * DIMS, "0", "%from"
    for d in reversed(range(1, DIMS)):
        rest = code.op(f"sdiv i64 {index}, {sizes[d]}")
        start[d] = code.sub(index, code.mul(rest, sizes[d]))
        offset, index = code.add(offset, code.mul(start[d], strides[d])), rest
    offset = code.add(offset, code.mul(index, strides[0]))
    carried = [Value(x, "i64") for x in (offset, *start[1:])]
    last = code.sub("%count", "1")
    with code.loop("0", "%room", 1, carried) as turn:
        here, *at = (v.text for v in turn.values)
        code.line(f"store i64 {here}, ptr {code.offset('%table', 'i64', turn.index)}")
        step, steps, more = strides[-1], [], "1"
        for d in reversed(range(1, DIMS)):
            place = code.add(at[d - 1], more)
            over = code.compare("eq", place, sizes[d])
            step = code.add(step, code.choose(over, back[d], "0"))
            steps.append(code.choose(over, "0", place))
            more = code.op(f"zext i1 {over} to i64")
        step = code.choose(code.compare("slt", turn.index, last), step, "0")
        following = [code.add(here, step), *steps[::-1]]
        turn.next = [Value(x, "i64") for x in following]
    return code


class _Window:
    """The routine window under construction."""

    def __init__(self, target: Target, element: Element, lanes: int, together: int) -> None:
        params = "ptr %src, ptr %ks, i64 %depth, ptr %ns, i64 %width, ptr %dst, i64 %ds"
        self.code = Routine(target, "window" if together == 1 else "words_of_window", params)
        self.element, self.lanes, self.together = element, lanes, together
        self.size, self.stored = element.stored_bytes, stored_type(element, self.lanes)
        self.part = 16 // element.bytes
        self.wide, self.bits = f"<{self.lanes} x i64>", f"<{self.lanes} x i1>"

    # -- columns ------------------------------------------------------------------------------------

    def _line_of(self, base: str, step: int) -> str:
        """base + lane * step."""
        code, none = self.code, f"<{self.lanes} x i32> zeroinitializer"
        spread = code.op(f"insertelement {self.wide} poison, i64 {base}, i64 0")
        spread = code.op(f"shufflevector {self.wide} {spread}, {self.wide} poison, {none}")
        lanes = ", ".join(f"i64 {n * step}" for n in range(self.lanes))
        return code.op(f"add {self.wide} {spread}, <{lanes}>")

    def _all(self, bits: str) -> str:
        word = self.code.op(f"bitcast {self.bits} {bits} to i{self.lanes}")
        return self.code.op(f"icmp eq i{self.lanes} {word}, -1")

    # -- rows ---------------------------------------------------------------------------------------

    def _row(self, k: str) -> str:
        """Where k begins in src."""
        code = self.code
        return code.at("%src", code.op(f"load i64, ptr {code.offset('%ks', 'i64', k)}"))

    def _into(self, k: str) -> str:
        """The row of k in dst."""
        code = self.code
        row = k if self.together == 1 else code.op(f"sdiv i64 {k}, {self.together}")
        return code.at("%dst", code.mul(row, "%ds"))

    def _rows(self, load: Callable[[str], str]) -> None:
        """Every k, read by `load`."""
        with self.code.times("%depth", self.together) as k:
            self._one_row(k, load)

    def _one_row(self, k: str, load: Callable[[str], str]) -> None:
        """The k of a row of dst."""
        code = self.code
        raws = [load(self._row(code.add(k, str(n)) if n else k)) for n in range(self.together)]
        self._store([self._widen(raw) for raw in raws], self._into(k))

    def _widen(self, raw: str) -> str:
        return widen(self.code, self.element, raw, self.lanes)

    def _store(self, rows: list[str], dst: str) -> None:
        """The k of a row, in the type they are summed in: one, or a word."""
        if self.together > 1:
            store_words(self.code, self.element.compute, rows, dst)
        else:
            store(self.code, self.element, rows[0], dst, self.lanes)

    def _load(self, address: str) -> str:
        return self.code.op(f"load {self.stored}, ptr {address}, align 1")

    def _masked(self, address: str, mask: str, otherwise: str) -> str:
        kind = MEMORY[self.element.dtype][0]
        return load_masked(self.code, kind, address, Value(mask, "i1", self.lanes), otherwise)

    def _gathered(self, row: str, offsets: str) -> str:
        code, memory = self.code, MEMORY[self.element.dtype][0]
        where = code.op(f"getelementptr i8, ptr {row}, {self.wide} {offsets}")
        name = f"llvm.masked.gather.v{self.lanes}{SUFFIX.get(memory, memory)}.v{self.lanes}p0"
        every = f"{self.bits} splat (i1 true)"
        arguments = [f"<{self.lanes} x ptr> {where}", "i32 1", every, f"{self.stored} zeroinitializer"]
        return code.call(name, self.stored, arguments)

    def _apart(self, row: str, first: str) -> str:
        """Every other element from a place on; nothing is read past the last of them."""
        halves = (first, self.code.add(first, str((self.lanes - 1) * self.size)))
        return self._picked([self._load(self.code.at(row, half)) for half in halves])

    def _picked(self, parts: list[str]) -> str:
        """A vector, or of two that overlap by an element every other element."""
        code, lanes = self.code, self.lanes
        if len(parts) == 1:
            return parts[0]
        low, high = parts
        pick = [2 * n for n in range(lanes // 2)] + [lanes + 2 * n + 1 for n in range(lanes // 2)]
        mask = ", ".join(f"i32 {n}" for n in pick)
        return code.op(f"shufflevector {self.stored} {low}, {self.stored} {high}, <{lanes} x i32> <{mask}>")

    # -- turned -------------------------------------------------------------------------------------

    def _turned(self, offsets: str) -> None:
        """A 128-bit piece of each column at a time; where k is no run as long, element by element."""
        code, part = self.code, self.part
        done = code.variable("0")
        kind = f"<{part} x i64>"
        run = ", ".join(f"i64 {n * self.size}" for n in range(part))
        whole = code.sub("%depth", str(part - 1))
        with code.during(done, "%depth") as k:
            piece = code.variable("0")
            with code.when(code.compare("slt", k, whole)):
                places = code.op(f"load {kind}, ptr {code.offset('%ks', 'i64', k)}, align 8")
                first = code.op(
                    f"shufflevector {kind} {places}, {kind} poison, <{part} x i32> zeroinitializer"
                )
                apart = code.op(f"icmp eq {kind} {code.op(f'sub {kind} {places}, {first}')}, <{run}>")
                word = code.op(f"bitcast <{part} x i1> {apart} to i{part}")
                code.set(piece, code.op(f"zext i1 {code.op(f'icmp eq i{part} {word}, -1')} to i64"))
            with code.either(code.compare("ne", code.get(piece), "0")) as single:
                self._turn(self._row(k), self._into(k))
                code.set(done, code.add(k, str(part)))
                next(single)
                self._one_row(k, lambda row: self._gathered(row, offsets))
                code.set(done, code.add(k, str(self.together)))

    def _turn(self, row: str, dst: str) -> None:
        """The k of a piece: dst[j][c] = row[c][j]."""
        code, element, part = self.code, self.element, self.part
        starts = [code.op(f"load i64, ptr {code.offset('%ns', 'i64', str(n))}") for n in range(self.lanes)]
        kind = stored_type(element, part)
        pieces = [code.op(f"load {kind}, ptr {code.at(row, start)}, align 1") for start in starts]
        rows = [self._widen(side_by_side(code, element, pieces[j::part])) for j in range(part)]
        turned = zip_lanes(code, element, rows, self.lanes)
        for j in range(0, part, self.together):
            self._store(turned[j : j + self.together], dst)
            dst = code.at(dst, "%ds")

    # -- all ----------------------------------------------------------------------------------------

    def write(self) -> Routine:
        """Two vectors, or one; words are as wide as a panel."""
        code = self.code
        if self.together > 1:
            self._one()
            return code
        with code.either(code.compare("sgt", "%width", str(self.lanes))) as single:
            self._two()
            next(single)
            self._one()
        return code

    def _two(self) -> None:
        """Two vectors at a time, if both are few runs; else one after the other."""
        code, lanes, size = self.code, str(self.lanes), self.lanes * self.element.bytes
        second, rest = code.offset("%ns", "i64", lanes), code.sub("%width", lanes)
        with ExitStack() as ways:
            for step, many in product((1, 2), (1, 2)) if code.target.masks else ():
                halves = [self._ends("%ns", lanes, step, many), self._ends(second, rest, step, many)]
                otherwise = ways.enter_context(code.either(code.both(*(fits for _, fits in halves))))
                loads = [self._by_step(runs, step) for runs, _ in halves]
                with code.times("%depth") as k:
                    row, dst = self._row(k), self._into(k)
                    for n, parts in enumerate(loads):
                        raw = self._picked([self._joined(row, runs) for runs in parts])
                        self._store([self._widen(raw)], code.at(dst, str(n * size)))
                next(otherwise)
            for ns, width, n in (("%ns", lanes, 0), (second, rest, size)):
                into = f"ptr {code.at('%dst', str(n))}"
                code.run("window", "ptr %src", "ptr %ks", "%depth", f"ptr {ns}", width, into, "%ds")

    def _ends(self, ns: str, width: str, step: int, many: int) -> tuple[Runs, str]:
        """The run, of elements `step` apart, that a vector's first column is in; if `many` are two, also the
        last one's; whether every column is in one.
        """
        code, wide, bits, apart = self.code, self.wide, self.bits, step * self.size
        end = code.sub(width, "1")
        first, last = (code.op(f"load i64, ptr {code.offset(ns, 'i64', n)}") for n in ("0", end))
        offsets = code.op(f"load {wide}, ptr {ns}, align 8")
        left = code.op(f"icmp slt {wide} {self._line_of('0', 1)}, {self._line_of(width, 0)}")
        runs: Runs = []
        for base in [first, code.sub(last, code.mul(end, str(apart)))][:many]:
            mask = code.op(f"icmp eq {wide} {offsets}, {self._line_of(base, apart)}")
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
                (code.add(base, str(n * (lanes - 1) * self.size)),
                 code.op(f"shufflevector {self.bits} {mask}, {self.bits} zeroinitializer, {order}"))
                for base, mask in runs
            ])  # fmt: skip
        return found

    def _one(self) -> None:
        """A vector: the ways, the fastest first."""
        code, size = self.code, self.size
        offsets = code.op(f"load {self.wide}, ptr %ns, align 8")
        first = code.op(f"extractelement {self.wide} {offsets}, i64 0")

        def matches(base: str, step: int) -> str:
            return code.op(f"icmp eq {self.wide} {offsets}, {self._line_of(base, step)}")

        with code.either(self._all(matches(first, size))) as otherwise:
            self._rows(lambda row: self._load(code.at(row, first)))
            next(otherwise)
            with code.either(self._all(matches(first, 2 * size))) as more:
                self._rows(lambda row: self._apart(row, first))
                next(more)
                self._in_runs(offsets) if code.target.masks else self._scattered(offsets)

    def _scattered(self, offsets: str) -> None:
        """Columns that are many runs."""
        code = self.code
        second = code.minimum("1", code.sub("%depth", "1"))
        steps = [code.op(f"load i64, ptr {code.offset('%ks', 'i64', at)}") for at in ("0", second)]
        along = code.compare("eq", code.sub(steps[1], steps[0]), str(self.size))
        with code.either(code.both(along, code.compare("sge", "%depth", str(self.part)))) as otherwise:
            self._turned(offsets)
            next(otherwise)
            self._rows(lambda row: self._gathered(row, offsets))

    def _in_runs(self, offsets: str) -> None:
        """Runs of unit stride, if there are few: each masked load fills in the lanes of one."""
        code = self.code
        starts, bases = code.slot("i64", RUNS + 1), code.slot("i64", RUNS)
        for r in range(RUNS + 1):
            code.line(f"store i64 %width, ptr {code.offset(starts, 'i64', str(r))}")
            if r < RUNS:
                code.line(f"store i64 0, ptr {code.offset(bases, 'i64', str(r))}")
        count = code.variable("0")
        expected = code.variable("-1")
        with code.times("%width") as lane:
            here = code.op(f"load i64, ptr {code.offset('%ns', 'i64', lane)}")
            known = code.get(count)
            begins = code.op(f"or i1 {code.compare('eq', lane, '0')}, "
                             f"{code.compare('ne', here, code.get(expected))}")  # fmt: skip
            code.set(expected, code.add(here, str(self.size)))
            with code.when(begins):
                code.set(count, code.add(known, "1"))
                with code.when(code.compare("slt", known, str(RUNS))):
                    base = code.sub(here, code.mul(lane, str(self.size)))
                    code.line(f"store i64 {lane}, ptr {code.offset(starts, 'i64', known)}")
                    code.line(f"store i64 {base}, ptr {code.offset(bases, 'i64', known)}")
        found = code.get(count)
        runs = [self._run_of(starts, bases, r) for r in range(RUNS)]
        with code.either(code.compare("sle", found, "2")) as more:
            self._rows(lambda row: self._joined(row, runs[:2]))
            next(more)
            with code.either(code.compare("sle", found, str(RUNS))) as many:
                self._rows(lambda row: self._joined(row, runs))
                next(many)
                self._scattered(offsets)

    def _run_of(self, starts: str, bases: str, r: int) -> tuple[str, str]:
        """Where lane 0 of run r would lie, and the mask of its lanes."""
        code = self.code
        base = code.op(f"load i64, ptr {code.offset(bases, 'i64', str(r))}")
        lanes = self._line_of("0", 1)
        first, end = (
            self._line_of(code.op(f"load i64, ptr {code.offset(starts, 'i64', str(n))}"), 0)
            for n in (r, r + 1)
        )
        from_, to = (
            code.op(f"icmp {test} {self.wide} {lanes}, {at}") for test, at in (("sge", first), ("slt", end))
        )
        return base, code.op(f"and {self.bits} {from_}, {to}")

    def _joined(self, row: str, runs: Runs) -> str:
        """The lanes of some runs; zero elsewhere."""
        raw = "zeroinitializer"
        for base, mask in runs:
            raw = self._masked(self.code.at(row, base), mask, raw)
        return raw


def window(target: Target, element: Element) -> Routine:
    """The routine window: dst[k][c] = src[ks[k] + ns[c]] for depth k's and up to two vectors of columns.

    Columns past the width hold an element of another, or zero; their products are never stored.
    """
    return _Window(target, element, element.lanes(target), 1).write()


def words_of_window(target: Target, factor: Factor) -> Routine:
    """The same for AMX: dst[w][c] = the k of word w side by side, for a panel of columns.

    The depth is whole words.
    """
    return _Window(target, factor.raw, PANEL, factor.together).write()
