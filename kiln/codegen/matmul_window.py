"""Windows: a factor B whose rows and columns are each up to four dims of a strided array.

    B[k, n] = src[sum of k_d * k_stride[d] + sum of n_d * n_stride[d]]       k = (k0, k1, k2, k3), n likewise

That is what a convolution multiplies: k runs over channels and taps, n over output positions, and nobody ever
writes the matrix out. One vector of columns is packed at a time, by the way its columns lie:

    beside     one run of unit stride              a load
    two runs   of unit stride (a row ends)         two masked loads
    apart      one run of stride 2                 two loads and a shuffle
    turned     k in runs of unit stride            16-byte pieces of each column, turned in registers
    gathered   anything else

Images that are multiplied by one A lie side by side along n, its first dim; the sums of each go to a batch
index of their own.

Arguments after the kernel's others: sizes of k1 k2 k3, strides of k0 .. k3, the same of n (in elements), the
columns of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kiln.codegen.code import Value
from kiln.codegen.matmul_pack import side_by_side, store, stored_type, widen, zip_lanes
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import Element
from kiln.codegen.memory import MEMORY, SUFFIX
from kiln.codegen.target import Target

DIMS = 4  # of k, and of n
IMAGE = 2 * (
    2 * DIMS - 1
)  # the place of an image's columns among the arguments that say where a window looks
PARAMS = "ptr %src, ptr %look, i64 %from, i64 %depth, i64 %column, i64 %width, ptr %dst, i64 %ds"


def nowhere() -> str:
    """The constant @nowhere: arguments of a window that reads one element everywhere."""
    words = ([1] * (DIMS - 1) + [0] * DIMS) * 2
    text = ", ".join(f"i64 {n}" for n in words)
    return f"@nowhere = internal unnamed_addr constant [{len(words)} x i64] [{text}]"


class _Axis:
    """The dims of k or of n: sizes of all but the first, strides in bytes, the step back where a dim ends."""

    def __init__(self, code: Routine, first: int, size: int) -> None:
        self.code = code

        def word(n: int) -> str:
            return code.op(f"load i64, ptr {code.offset('%look', 'i64', str(first + n))}")

        self.sizes = ["", *(word(n) for n in range(DIMS - 1))]
        self.strides = [code.mul(word(DIMS - 1 + n), str(size)) for n in range(DIMS)]
        self.carry = [code.sub(self.strides[d - 1], code.mul(self.sizes[d], self.strides[d])) if d else ""
                      for d in range(DIMS)]  # fmt: skip

    def at(self, index: str) -> tuple[str, list[str]]:
        """The offset of an index, and its place along each dim but the first."""
        code, places, offset = self.code, [""] * DIMS, "0"
        for d in reversed(range(1, DIMS)):
            rest = code.op(f"sdiv i64 {index}, {self.sizes[d]}")
            places[d] = code.sub(index, code.mul(rest, self.sizes[d]))
            offset = code.add(offset, code.mul(places[d], self.strides[d]))
            index = rest
        return code.add(offset, code.mul(index, self.strides[0])), places[1:]

    def next(self, offset: str, places: Sequence[str], steps: str = "1") -> tuple[str, list[str]]:
        """The offset and the places `steps` further along the last dim, at most to its end."""
        code = self.code
        offset = code.add(offset, code.mul(self.strides[-1], steps))
        after, more = [], steps
        for d in reversed(range(1, DIMS)):
            place = code.add(places[d - 1], more)
            over = code.compare("eq", place, self.sizes[d])
            offset = code.add(offset, code.choose(over, self.carry[d], "0"))
            after.append(code.choose(over, "0", place))
            more = code.op(f"zext i1 {over} to i64")
        return offset, after[::-1]


class _Window:
    """The routine window under construction."""

    def __init__(self, target: Target, element: Element) -> None:
        self.code = code = Routine(target, "window", PARAMS)
        self.element, self.lanes = element, element.lanes(target)
        self.size, self.stored = element.stored_bytes, stored_type(element, self.lanes)
        self.k = _Axis(code, 0, self.size)
        self.n = _Axis(code, IMAGE // 2, self.size)
        self.wide = f"<{self.lanes} x i64>"
        self.bits = f"<{self.lanes} x i1>"

    # -- columns ------------------------------------------------------------------------------------

    def columns(self) -> str:
        """The offsets of the columns, on the stack; those past the width repeat the last."""
        code = self.code
        slot = code.slot("i64", self.lanes)
        last = code.sub("%width", "1")
        offset, places = self.n.at("%column")
        with code.loop("0", str(self.lanes), 1, [Value(x, "i64") for x in (offset, *places)]) as turn:
            here = [v.text for v in turn.values]
            code.line(f"store i64 {here[0]}, ptr {code.offset(slot, 'i64', turn.index)}")
            inside = code.compare("slt", turn.index, last)
            after, steps = self.n.next(here[0], here[1:])
            turn.next = [Value(code.choose(inside, x, y), "i64") for x, y in zip((after, *steps), here)]
        return slot

    def _line_of(self, base: str, step: int) -> str:
        """base + lane * step."""
        code = self.code
        spread = code.op(f"insertelement {self.wide} poison, i64 {base}, i64 0")
        spread = code.op(
            f"shufflevector {self.wide} {spread}, {self.wide} poison, <{self.lanes} x i32> zeroinitializer"
        )
        lanes = ", ".join(f"i64 {n * step}" for n in range(self.lanes))
        return code.op(f"add {self.wide} {spread}, <{lanes}>")

    def _all(self, bits: str) -> str:
        word = self.code.op(f"bitcast {self.bits} {bits} to i{self.lanes}")
        return self.code.op(f"icmp eq i{self.lanes} {word}, -1")

    # -- rows ---------------------------------------------------------------------------------------

    @contextmanager
    def _each_k(self) -> Iterator[tuple[str, str]]:
        """Every k: where it begins in src, and its row in dst."""
        code = self.code
        offset, places = self.k.at("%from")
        start = [Value(x, "i64") for x in (offset, *places)]
        with code.loop("0", "%depth", 1, start) as turn:
            here = [v.text for v in turn.values]
            yield code.at("%src", here[0]), code.at("%dst", code.mul(turn.index, "%ds"))
            after, steps = self.k.next(here[0], here[1:])
            turn.next = [Value(x, "i64") for x in (after, *steps)]

    def _rows(self, load: Callable[[str], str]) -> None:
        with self._each_k() as (row, dst):
            store(
                self.code,
                self.element,
                widen(self.code, self.element, load(row), self.lanes),
                dst,
                self.lanes,
            )

    def _load(self, address: str) -> str:
        return self.code.op(f"load {self.stored}, ptr {address}, align 1")

    def _masked(self, address: str, mask: str, otherwise: str) -> str:
        memory = MEMORY[self.element.dtype][0]
        name = f"llvm.masked.load.v{self.lanes}{SUFFIX.get(memory, memory)}.p0"
        arguments = [f"ptr {address}", "i32 1", f"{self.bits} {mask}", f"{self.stored} {otherwise}"]
        return self.code.call(name, self.stored, arguments)

    def _gathered(self, row: str, offsets: str) -> str:
        code, memory = self.code, MEMORY[self.element.dtype][0]
        where = code.op(f"getelementptr i8, ptr {row}, {self.wide} {offsets}")
        name = f"llvm.masked.gather.v{self.lanes}{SUFFIX.get(memory, memory)}.v{self.lanes}p0"
        arguments = [f"<{self.lanes} x ptr> {where}", "i32 1", f"{self.bits} splat (i1 true)",
                     f"{self.stored} zeroinitializer"]  # fmt: skip
        return code.call(name, self.stored, arguments)

    def _apart(self, row: str, first: str) -> str:
        """Every other element from a place on; nothing is read past the last of them."""
        code, lanes = self.code, self.lanes
        low = self._load(code.at(row, first))
        high = self._load(code.at(row, first, str((lanes - 1) * self.size)))
        pick = [2 * n for n in range(lanes // 2)] + [lanes + 2 * n + 1 for n in range(lanes // 2)]
        mask = ", ".join(f"i32 {n}" for n in pick)
        return code.op(f"shufflevector {self.stored} {low}, {self.stored} {high}, <{lanes} x i32> <{mask}>")

    # -- turned -------------------------------------------------------------------------------------

    def _turned(self, slot: str, offsets: str) -> None:
        """Runs of k: a 128-bit piece of each column at a time; where none fits, element by element."""
        code, part = self.code, 16 // self.element.bytes
        at, places = self.k.at("%from")
        offset, *where = (code.variable(x) for x in (at, *places))
        done = code.variable("0")
        with code.during(done, "%depth") as k:
            here, row = [code.get(p) for p in where], code.at("%src", code.get(offset))
            run = code.minimum(code.sub(self.k.sizes[-1], here[-1]), code.sub("%depth", k))
            top = code.sub(run, str(part))
            dst = code.at("%dst", code.mul(k, "%ds"))
            with code.either(code.compare("sge", top, "0")) as short:
                with code.times(run, part) as step:
                    j = code.minimum(step, top)
                    self._turn(
                        slot, code.at(row, code.mul(j, str(self.size))), code.at(dst, code.mul(j, "%ds"))
                    )
                next(short)
                with code.times(run) as j:
                    raw = self._gathered(code.at(row, code.mul(j, str(self.size))), offsets)
                    into = code.at(dst, code.mul(j, "%ds"))
                    store(code, self.element, widen(code, self.element, raw, self.lanes), into, self.lanes)
            after, steps = self.k.next(code.get(offset), here, run)
            for variable, x in zip((offset, *where, done), (after, *steps, code.add(k, run))):
                code.set(variable, x)

    def _turn(self, slot: str, row: str, dst: str) -> None:
        """dst[j][c] = row[c][j] for a piece's j."""
        code, element, part = self.code, self.element, 16 // self.element.bytes
        starts = [code.op(f"load i64, ptr {code.offset(slot, 'i64', str(n))}") for n in range(self.lanes)]
        kind = stored_type(element, part)
        pieces = [code.op(f"load {kind}, ptr {code.at(row, start)}, align 1") for start in starts]
        rows = [
            widen(code, element, side_by_side(code, element, pieces[j::part]), self.lanes)
            for j in range(part)
        ]
        for value in zip_lanes(code, element, rows, self.lanes):
            store(code, element, value, dst, self.lanes)
            dst = code.at(dst, "%ds")

    # -- all ----------------------------------------------------------------------------------------

    def write(self) -> Routine:
        """The ways, the fastest first."""
        code, size = self.code, self.size
        slot = self.columns()
        offsets = code.op(f"load {self.wide}, ptr {slot}, align 64")
        first = code.op(f"extractelement {self.wide} {offsets}, i64 0")

        def matches(base: str, step: int) -> str:
            return code.op(f"icmp eq {self.wide} {offsets}, {self._line_of(base, step)}")

        unit = matches(first, size)
        with code.either(self._all(unit)) as otherwise:
            self._rows(lambda row: self._load(code.at(row, first)))
            next(otherwise)
            with code.either(self._all(matches(first, 2 * size))) as more:
                self._rows(lambda row: self._apart(row, first))
                next(more)
                self._uneven(slot, offsets, first, unit)
        return code

    def _uneven(self, slot: str, offsets: str, first: str, unit: str) -> None:
        """Columns that are not one run."""
        code, part = self.code, 16 // self.element.bytes
        runs = code.both(code.compare("eq", self.k.strides[-1], str(self.size)),
                         code.compare("sge", self.k.sizes[-1], str(part)))  # fmt: skip
        with code.either(runs) as otherwise:
            self._turned(slot, offsets)
            next(otherwise)
            if not code.target.masks:
                self._rows(lambda row: self._gathered(row, offsets))
                return
            last = code.sub("%width", "1")
            inside = code.op(f"icmp sle {self.wide} {self._line_of('0', 1)}, {self._spread(last)}")
            end = code.op(f"load i64, ptr {code.offset(slot, 'i64', last)}")
            base = code.sub(end, code.mul(last, str(self.size)))
            low = code.op(f"and {self.bits} {unit}, {inside}")
            high = code.op(f"icmp eq {self.wide} {offsets}, {self._line_of(base, self.size)}")
            high = code.op(f"and {self.bits} {high}, {inside}")
            both = code.op(f"or {self.bits} {low}, {high}")
            outside = code.op(f"xor {self.bits} {inside}, splat (i1 true)")
            with code.either(self._all(code.op(f"or {self.bits} {both}, {outside}"))) as gathered:
                self._rows(
                    lambda row: self._masked(
                        code.at(row, base), high, self._masked(code.at(row, first), low, "zeroinitializer")
                    )
                )
                next(gathered)
                self._rows(lambda row: self._gathered(row, offsets))

    def _spread(self, x: str) -> str:
        return self._line_of(x, 0)


def window(target: Target, element: Element) -> Routine:
    """The routine window: dst[k - from][c] = B[k, column + c] for depth k's and one vector of columns.

    Columns past the width hold anything finite in B, or zero; their products are never stored.
    """
    return _Window(target, element).write()
