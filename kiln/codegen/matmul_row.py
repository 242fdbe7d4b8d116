"""Products of one row: out[b, 0, n] = epilogue(sum over k of A[b, 0, k] * B[b, k, n]).

B is read once and nothing else is large, so nothing is packed: each column is a lane, and B comes as it lies.

    wide       unit stride along n:  each k: WIDE vectors of neighbouring columns
    narrow     the same, a few masked vectors, or a whole one where the machine has no masks
    turned     unit stride along k:  two vectors of columns, four k of each at a time, turned in registers
    gathered   any strides, or fewer columns than lanes:  one vector, columns past the last repeat it

Each routine makes one segment's chains and adds them to what the segments before left. A vector is 16 lanes
on every machine. A unit is one batch index and UNIT_COLUMNS columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.code import IOTA64, LANES, LLVM, Loop, Value
from kiln.codegen.matmul_pack import load, side_by_side, stored_type, widen, zip_lanes
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import SEGMENT, Element, multiply_add
from kiln.codegen.memory import Memory
from kiln.codegen.target import Target

UNIT_COLUMNS = 128
TURNED = 2  # vectors of columns turned by turns
LINE = 16  # k of one vector before the other has its turn: a cache line of float32
AHEAD = 8  # k: rows of B lie far apart, where the machine does not prefetch by itself
# Eight columns from a base, as in x86 addresses: base + scale * index, (element type that scales, index).
COLUMN_AT = [
    ("i8", "0"), ("i8", "%bn"), ("i16", "%bn"), ("i8", "%bn3"), ("i32", "%bn"), ("i8", "%bn5"),
    ("i16", "%bn3"), ("i8", "%bn7"),
]  # fmt: skip
MASKED = 4  # vectors of columns with masks of their own
PARAMS = "ptr %a, i64 %ak, ptr %b, i64 %bk, i64 %bn, ptr %c, i64 %k, i64 %cols, i1 %first"


def wide_vectors(target: Target, element: Element) -> int:
    """How many vectors of columns have their sums in registers: eight registers in all, at most."""
    return max(target.vector_bits // 64 * 4 // element.bytes, 1)


class _Sums:
    """A routine that sums some vectors of columns over one segment of k."""

    def __init__(self, target: Target, element: Element, name: str, vectors: int) -> None:
        self.code = Routine(target, name, PARAMS)
        self.element, self.vectors = element, vectors
        self.kind = f"<{LANES} x {LLVM[element.summed]}>"
        self.bytes = LANES * element.bytes

    def zeros(self) -> list[Value]:
        """What chains start with."""
        return [Value("zeroinitializer", self.element.summed, LANES)] * self.vectors

    def scalar(self, k: str) -> str:
        """A[k] on every lane."""
        code = self.code
        x = load(code, self.element, code.at("%a", code.mul(k, "%ak")), 1)
        return Memory(code).machine.spread(Value(x, self.element.summed), LANES).text

    def step(self, x: str, columns: list[str], sums: list[Value]) -> list[Value]:
        """sums + x * columns."""
        made = [multiply_add(self.code, self.element, LANES, x, y, s.text) for y, s in zip(columns, sums)]
        return [Value(text, self.element.summed, LANES) for text in made]

    @contextmanager
    def chain(self, start: str, end: str, step: int, place: str) -> Iterator[Loop]:
        """A loop that carries the sum kept at `place`."""
        code = self.code
        before = Value(code.op(f"load {self.kind}, ptr {place}, align 64"), self.element.summed, LANES)
        with code.loop(start, end, step, [before]) as turn:
            yield turn
        code.line(f"store {turn.values[0].typed}, ptr {place}, align 64")

    def finish(self, sums: list[Value], c: str = "%c") -> None:
        """Adds the chains to the sums so far; the first segment's are the sums."""
        code, add = self.code, "fadd" if self.element.floating else "add"
        nothing = "splat (" + LLVM[self.element.summed] + (" -0.0)" if self.element.floating else " 0)")
        for v, chain in enumerate(sums):
            into = code.at(c, str(v * self.bytes))
            old = code.op(f"load {self.kind}, ptr {into}, align {self.element.bytes}")
            old = code.op(f"select i1 %first, {self.kind} {nothing}, {self.kind} {old}")
            total = code.op(f"{add} {self.kind} {old}, {chain.text}")
            code.line(f"store {self.kind} {total}, ptr {into}, align {self.element.bytes}")


def narrow_vectors(target: Target) -> int:
    """How many vectors of columns the narrow routine sums."""
    return MASKED if target.masks else 1


def neighbours(target: Target, element: Element, name: str, vectors: int, masked: bool) -> Routine:
    """The routine wide or narrow: columns side by side; masked, those past the last are zero.

    each k:  prefetch b of AHEAD k on;  x = splat(load a);  each v:  sum[v] = fma(x, load b + v, sum[v])
    """
    made = _Sums(target, element, name, vectors)
    code, step = made.code, LANES * element.stored_bytes
    memory = Memory(code)
    masks = [_mask(made, v) for v in range(vectors if masked else 0)]

    def read(place: str, v: int) -> str:
        if not masked:
            return load(code, element, place, LANES)
        found = memory.read_lanes(element.dtype, place, "", masks[v])
        return memory.machine.convert(found, element.summed).text

    with code.loop("0", "%k", 1, made.zeros()) as turn:
        row = code.at("%b", code.mul(turn.index, "%bk"))
        ahead = code.at(row, code.mul("%bk", str(AHEAD)))
        for place in range(0, vectors * step, 64):
            where = code.at(ahead, str(place))
            code.call("llvm.prefetch.p0", "void", [f"ptr {where}", "i32 0", "i32 3", "i32 1"])
        columns = [read(code.at(row, str(v * step)), v) for v in range(vectors)]
        turn.next = made.step(made.scalar(turn.index), columns, turn.values)
    made.finish(turn.values)
    return code


def _mask(made: _Sums, v: int) -> Value:
    """Which columns of vector v there are."""
    machine = Memory(made.code).machine
    left = machine.spread(Value(made.code.sub("%cols", str(v * LANES)), "i64"), LANES)
    return machine.compare("lt", Value(IOTA64, "i64", LANES, True), left)


def _places(made: _Sums, clamped: bool) -> Value:
    """The positions of 16 columns, in elements; `clamped`, columns past the last repeat it."""
    code, machine = made.code, Memory(made.code).machine
    lanes = Value(IOTA64, "i64", LANES, True)
    if clamped:
        last = machine.spread(Value(code.sub("%cols", "1"), "i64"), LANES)
        lanes = machine.choose(machine.compare("lt", lanes, last), lanes, last)
    step = code.op(f"sdiv i64 %bn, {made.element.stored_bytes}")
    return machine.instruction("mul", lanes, machine.spread(Value(step, "i64"), LANES))


def _gather(made: _Sums, row: str, places: Value) -> str:
    """The elements of a row at `places`, as summed."""
    memory = Memory(made.code)
    column = memory.gather(made.element.dtype, row, places, None)
    return memory.machine.convert(column, made.element.summed).text


def gathered(target: Target, element: Element) -> Routine:
    """The routine gathered: each k:  sum = fma(splat(load a), gather b, sum)."""
    made = _Sums(target, element, "gathered", 1)
    code, places = made.code, _places(made, True)
    with code.loop("0", "%k", 1, made.zeros()) as turn:
        column = _gather(made, code.at("%b", code.mul(turn.index, "%bk")), places)
        turn.next = made.step(made.scalar(turn.index), [column], turn.values)
    made.finish(turn.values)
    return code


def turned(target: Target, element: Element) -> Routine:
    """The routine turned: columns whose k lie side by side, L at a time where a 128-bit piece holds L sums.

    each LINE of k:  each v:  each L of k:
        load L elements of each of 16 columns, zip them until row[j] holds k + j of all
        j < L:  sum[v] = fma(splat(load a[k + j]), row[j], sum[v])
    each v:  each k left:  sum[v] = fma(splat(load a), gather b, sum[v])

    A chain waits for itself; two of them overlap. A line is used up at once, so that columns which share a
    cache set do no harm.
    """
    made = _Sums(target, element, "turned", 1)
    code, part = made.code, 16 // element.bytes
    for times in (3, 5, 7, 8):
        code.line(f"%bn{times} = mul i64 %bn, {times}")
    sums = code.slot(made.kind, TURNED)
    for v in range(TURNED):
        code.line(f"store {made.kind} zeroinitializer, ptr {code.offset(sums, made.kind, str(v))}, align 64")
    whole = code.op(f"and i64 %k, -{part}")
    with code.times(whole, LINE) as line:
        end = code.minimum(whole, code.add(line, str(LINE)))
        with code.times(str(TURNED)) as at:
            b = code.at("%b", code.mul(at, code.mul("%bn8", "2")))
            place = code.offset(sums, made.kind, at)
            with made.chain(line, end, part, place) as turn:
                rows = _turn(made, code.at(b, code.mul(turn.index, str(element.stored_bytes))))
                for j, row in enumerate(rows):
                    turn.next = made.step(made.scalar(code.add(turn.index, str(j))), [row], turn.next)
    places = _places(made, False)
    with code.times(str(TURNED)) as at:
        b = code.at("%b", code.mul(at, code.mul("%bn8", "2")))
        place = code.offset(sums, made.kind, at)
        with made.chain(whole, "%k", 1, place) as turn:
            column = _gather(made, code.at(b, code.mul(turn.index, "%bk")), places)
            turn.next = made.step(made.scalar(turn.index), [column], turn.values)
        made.finish(turn.values, code.at("%c", code.mul(at, str(made.bytes))))
    return code


def _turn(made: _Sums, b: str) -> list[str]:
    """Row j: element j of 16 columns from b on, as summed."""
    code, element, part = made.code, made.element, 16 // made.element.bytes
    pieces: list[str] = []
    for base in (b, code.at(b, "%bn8")):
        kind = stored_type(element, part)
        pieces += [code.op(f"load {kind}, ptr {code.offset(base, *at)}, align 1") for at in COLUMN_AT]
    rows = [widen(code, element, side_by_side(code, element, pieces[j::part]), LANES) for j in range(part)]
    return zip_lanes(code, element, rows, LANES)


def row_routines(target: Target, element: Element) -> list[Routine]:
    """The routines that sum columns."""
    return [
        neighbours(target, element, "wide", wide_vectors(target, element), False),
        neighbours(target, element, "narrow", narrow_vectors(target), target.masks),
        turned(target, element),
        gathered(target, element),
    ]


class _Driver:
    """The driver under construction."""

    def __init__(self, target: Target, element: Element) -> None:
        self.code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", "#1")
        self.element, self.wide = element, LANES * wide_vectors(target, element)
        self.narrow = LANES * narrow_vectors(target)
        self.least = 1 if target.masks else LANES  # columns for the narrow routine
        self.buffer = self.code.slot("i8", UNIT_COLUMNS * element.bytes)

    def _argument(self, place: int) -> str:
        return self.code.op(f"load i64, ptr {self.code.offset('%arg', 'i64', str(place))}")

    def write(self) -> Routine:
        """Units one by one: each segment, then the epilogue, from a buffer on the stack."""
        code, stored = self.code, str(self.element.stored_bytes)
        n, k = (self._argument(place) for place in (2, 3))
        a_batch, self.a_k, b_batch, self.b_k, self.b_column = (
            code.mul(self._argument(place), stored) for place in (4, 6, 7, 8, 9)
        )
        factors = [code.op(f"load ptr, ptr {code.offset('%ptr', 'ptr', place)}") for place in "01"]
        per_batch = code.ceil_div(n, UNIT_COLUMNS)
        self.unit, self.along = (code.compare("eq", x, stored) for x in (self.b_column, self.b_k))
        done = code.variable("0")
        with code.loop("%begin", "%end", 1) as turn:
            batch = code.op(f"sdiv i64 {turn.index}, {per_batch}")
            column = code.mul(code.sub(turn.index, code.mul(batch, per_batch)), str(UNIT_COLUMNS))
            cols = code.minimum(code.sub(n, column), str(UNIT_COLUMNS))
            a, b = (code.at(x, code.mul(batch, by)) for x, by in zip(factors, (a_batch, b_batch)))
            b = code.at(b, code.mul(column, self.b_column))
            segments = code.choose(code.compare("eq", k, "0"), "1", k)  # without k, zeros
            with code.times(segments, SEGMENT) as from_k:
                rows = code.at(b, code.mul(from_k, self.b_k))
                here = code.at(a, code.mul(from_k, self.a_k))
                depth = code.minimum(code.sub(k, from_k), str(SEGMENT))
                code.set(done, "0")
                with code.during(done, cols) as start:
                    count = self._columns(here, rows, start, code.sub(cols, start), depth, from_k)
                    code.set(done, code.add(start, count))
            code.line(
                f"call void @finish(ptr %ptr, ptr %arg, i64 {batch}, i64 0, i64 1, i64 {column}, i64 {cols}, "
                f"ptr {self.buffer}, i64 0)"
            )
        return code

    def _columns(self, a: str, b: str, start: str, cols: str, depth: str, from_k: str) -> str:
        """Sums some of the next `cols` columns; how many."""
        code = self.code
        first = code.compare("eq", from_k, "0")
        column = code.at(b, code.mul(start, self.b_column))
        into = code.at(self.buffer, code.mul(start, str(self.element.bytes)))
        arguments = (
            f"ptr {a}, i64 {self.a_k}, ptr {column}, i64 {self.b_k}, i64 {self.b_column}, ptr {into}, "
            f"i64 {depth}, i64 {cols}, i1 {first}"
        )
        count = code.variable(str(LANES))
        ways = [
            ("wide", self.wide, code.both(self.unit, code.compare("sge", cols, str(self.wide)))),
            ("narrow", self.narrow, code.both(self.unit, code.compare("sge", cols, str(self.least)))),
            ("turned", TURNED * LANES, code.both(self.along, code.compare("sge", cols, str(TURNED * LANES)))),
            ("gathered", LANES, "true"),
        ]
        out = code.label()
        for name, columns, fits in ways:
            chosen, other = code.label(), code.label()
            code.branch(fits, chosen, other)
            code.begin(chosen)
            code.line(f"call void @{name}({arguments})")
            code.set(count, str(columns))
            code.jump(out)
            code.begin(other)
        code.jump(out)
        code.begin(out)
        return code.get(count)


def drive_row(target: Target, element: Element) -> Routine:
    """The routine kernel of products of one row."""
    return _Driver(target, element).write()
