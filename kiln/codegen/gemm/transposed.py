"""Register tiles of very few rows by columns whose k lie side by side: transposed in registers on their way.

A tile is a few rows, or the only one, by a panel of columns, several vectors. Some k of all its columns are
loaded as they lie, transposed and multiplied at once; nothing is packed. The sums are the chains of any tile,
and have their bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.codegen.gemm.element import Element, multiply_add
from kiln.codegen.gemm.pack import interleave, load, shuffle, side_by_side, stored_type, turned, widen
from kiln.codegen.gemm.workspace import ROW_PITCH
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.memory import Memory
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import LLVM, Value
from kiln.codegen.target import Target
from kiln.table.order import LANES

CROWDED = 4096  # bytes a multiple of which columns are apart that share cache sets
NARROW_BYTES = 16  # of sums: a vector of few columns
ROW_BITS = 256  # of a vector of columns of one row: 16 columns are at least two chains
# Eight columns from a base, as in x86 addresses: base + scale * index, (element type that scales, index).
COLUMN_AT = [
    ("i8", "0"), ("i8", "%bs"), ("i16", "%bs"), ("i8", "%bs3"), ("i32", "%bs"), ("i8", "%bs5"),
    ("i16", "%bs3"), ("i8", "%bs7"),
]  # fmt: skip
# The same of the k of a row of A as it lies in memory.
K_AT = [("i8", "0"), ("i8", "%ks"), ("i16", "%ks"), ("i8", "%ks3")]

Sums = list[list[Value]]  # chains, by row and vector


def crowded(column: Index) -> Condition:
    """Whether columns so many bytes apart share cache sets."""
    return (column & (CROWDED - 1)).equals(0)


def by_squares(target: Target, element: Element, b: Pointer, column: Index, k: Index) -> Condition:
    """Whether columns from `b` on, so many bytes apart, are transposed square by square: they are crowded, so
    that what is left of a line would be gone when the next k are loaded, or each is whole vectors.
    """
    fits = crowded(column)
    if target.fma.squares:
        fits |= ((b.address() | column) & (target.vector_bits // 8 - 1)).equals(0)
    return fits & (k >= element.lanes(target))


class _Transposed:
    """A routine under construction; `lanes` columns to a vector, `vectors` of them to a panel, `heights` of
    tiles. `square`: as many k as columns are transposed at once, so that each cache line is read once.
    """

    def __init__(
        self,
        code: Routine,
        element: Element,
        lanes: int,
        vectors: int,
        heights: Sequence[int],
        square: bool = False,
    ) -> None:
        self.code, self.element, self.lanes, self.vectors = code, element, lanes, vectors
        self.heights, self.square = heights, square
        self.group = len(COLUMN_AT)  # columns that are addressed from one base
        self.part = lanes if square else 16 // element.bytes  # k that are transposed at once
        self.kind = LLVM[element.summed]
        self.vector = f"<{lanes} x {self.kind}>"
        self.bs, self.k = code.indices("bs", "k")
        for times in (3, 5, 7):
            code.line(f"%bs{times} = mul i64 %bs, {times}")
        self.taken = code.slot(self.vector, self.part * vectors)  # columns, by k and vector
        self.sums = code.slot(self.vector, heights[-1] * vectors)

    def panels(self) -> None:
        """Tiles of `rows` rows by panels of columns, from the first to the last."""
        code, panel, part = self.code, self.lanes * self.vectors, self.part
        a, b = code.pointers("a", "b")
        rows, columns = code.indices("rows", "cols")
        past = self.k - part
        ends, last = past * self.step_of_a(), past * self.element.stored_bytes
        start = part - (self.k & (part - 1))
        with code.times(columns, panel) as left:
            bases = [b[self.bs * column] for column in self.bases(left)]
            with code.times(rows, self.heights[-1]) as above:
                here, count = self.row(a, above), (rows - above).min(self.heights[-1])
                for below, height in zip((0, *self.heights), self.heights):
                    with code.when((count > below) & (count <= height)):
                        self._whole(height, here, bases)
                with code.when(start < part):
                    transposed = self._columns([base[last] for base in bases])
                    for n, column in enumerate(x for xs in transposed for x in xs):
                        self._put(self.taken, code.index(n), column)
                with code.times(count) as row:
                    chains = [self._value(x) for x in self._get(self.sums, row)]
                    with code.loop(start, part, 1, chains) as turn:
                        x = self.row(here, row)[ends, turn.index * self.step_of_a()]
                        (turn.next,) = self._step([x], self._get(self.taken, turn.index), [turn.values])
                    self.store(above + row, left, turn.values)

    def bases(self, left: Index) -> list[Index]:
        """The columns of a panel whose addresses are computed; the next ones are at offsets from them."""
        return [left + at for at in range(0, self.lanes * self.vectors, self.group)]

    def x(self, place: Pointer) -> str:
        """An element of A."""
        return place.load(self.kind, self.element.bytes)

    def row(self, a: Pointer, row: Integer) -> Pointer:
        """Where a row of A has the k that the first has at `a`."""
        return a[row * (ROW_PITCH * self.element.bytes)]

    def step_of_a(self) -> Integer:
        """The bytes from one k of A to the next."""
        return self.element.bytes

    def some_of_a(self, a: Pointer) -> list[Pointer]:
        """The k of A that are multiplied together, from `a` on."""
        return [a[j * self.element.bytes] for j in range(self.part)]

    def store(self, row: Index, left: Index, chains: list[Value]) -> None:
        """Adds a row's sums of the panel that begins there to the old ones."""
        code = self.code
        cs, os, op = code.indices("cs", "os", "op")
        c, old = code.pointers("c", "old")
        for v, chain in enumerate(chains):
            place = v * self.lanes * self.element.bytes
            into = c[left * self.element.bytes, row * cs, place]
            before = old[left * op, row * os, place].load(self.vector, self.element.bytes)
            self.add(before, chain, into)

    def add(self, before: str, chain: Value, into: Pointer) -> None:
        """Stores the sum of two vectors."""
        total = self.code.op(f"{self.element.add} {self.vector} {before}, {chain.text}")
        into.store(f"{self.vector} {total}", self.element.bytes)

    # -- chains -------------------------------------------------------------------------------------

    def _whole(self, height: int, a: Pointer, bases: list[Pointer]) -> None:
        """Leaves the chains over all k that can be transposed together in `sums`."""
        code, part, size = self.code, self.part, self.element.stored_bytes
        starts: list[Pointer] = [a, *bases]
        steps: list[Integer] = [self.step_of_a() * part, *[part * size] * len(bases)]
        at = [code.pointer(code.name()) for _ in starts]
        sums = [[self._value(code.name()) for _ in range(self.vectors)] for _ in range(height)]
        left = code.index(code.name())
        whole = self.k & -part
        before, loop, done = code.block, code.label(), code.label()
        code.jump(loop)
        code.begin(loop)
        place = len(code.lines)
        columns, after = self._columns(at[1:]), sums
        for column, x in zip(columns, self.some_of_a(at[0])):
            after = self._step([self.row(x, r) for r in range(height)], column, after)
        carried = [
            (pointer.text, "ptr", start.text, pointer[by].text)
            for pointer, start, by in zip(at, starts, steps)
        ]
        rest = left - part
        carried.append((left.text, "i64", whole.text, rest.text))
        carried += [
            (old.text, self.vector, "zeroinitializer", new.text)
            for olds, news in zip(sums, after)
            for old, new in zip(olds, news)
        ]
        code.lines[place:place] = [
            f"  {name} = phi {type} [ {first}, %{before} ], [ {then}, %{code.block} ]"
            for name, type, first, then in carried
        ]
        code.branch(rest.differs(0), loop, done)
        code.begin(done)
        for n, chain in enumerate(chain for chains in after for chain in chains):
            self._put(self.sums, code.index(n), chain.text)

    def _put(self, memory: Pointer, n: Index, vector: str) -> None:
        memory.element(self.vector, n).store(f"{self.vector} {vector}", 16)

    def _get(self, memory: Pointer, n: Index) -> list[str]:
        """The vectors of a row, or of a k."""
        places = [memory.element(self.vector, n * self.vectors + v) for v in range(self.vectors)]
        return [place.load(self.vector, 16) for place in places]

    def _value(self, text: str) -> Value:
        return Value(text, self.element.summed, self.lanes)

    def _columns(self, bases: list[Pointer]) -> list[list[str]]:
        """The columns from the bases on, transposed: by k and vector."""
        code, element, part, lanes = self.code, self.element, self.part, self.lanes
        kind = stored_type(element, part)
        near = COLUMN_AT[: self.group]
        columns = [base.element(scale, code.index(at)) for base in bases for scale, at in near]
        vectors = []
        for v in range(self.vectors):
            own = columns[v * lanes : (v + 1) * lanes]
            if self.square:
                rows = [load(code, element, column, lanes) for column in own]
                vectors.append(turned(code, element, rows))
                continue
            if lanes == 2 * part and not element.widened:
                rows = [self._pair(*own[j::part]) for j in range(part)]
            else:
                pieces = [column.load(kind, 1) for column in own]
                joined = [side_by_side(code, element, pieces[j::part]) for j in range(part)]
                rows = [widen(code, element, raw, lanes) for raw in joined]
            vectors.append(interleave(code, element, rows, lanes))
        return [[vector[j] for vector in vectors] for j in range(part)]

    def _pair(self, low: Pointer, high: Pointer) -> str:
        """Some k of two columns side by side. Of the second, what lies before is loaded too, which is of the
        columns between them: a blend with memory is faster than an insertion from it.
        """
        code, part, lanes = self.code, self.part, self.lanes
        half = low.load(f"<{part} x {self.kind}>", 1)
        wide = shuffle(code, f"<{part} x {self.kind}>", half, "poison", list(range(lanes)))
        whole = high[-16].load(self.vector, 1)
        return shuffle(code, self.vector, wide, whole, [n if n < part else lanes + n for n in range(lanes)])

    def _step(self, xs: list[Pointer], columns: list[str], sums: Sums) -> Sums:
        """The sums after one more k: of each row its element of A, on all lanes, times the columns of B."""
        code, element, lanes = self.code, self.element, self.lanes
        after = []
        for place, chains in zip(xs, sums):
            x = Memory(code).machine.spread(Value(self.x(place), element.summed), lanes).text
            made = [multiply_add(code, element, lanes, x, c, s.text) for c, s in zip(columns, chains)]
            after.append([self._value(text) for text in made])
        return after


class _Row(_Transposed):
    """The same of one row as it lies in memory, whose elements are widened where they are read."""

    def x(self, place: Pointer) -> str:
        return load(self.code, self.element, place, 1)

    def row(self, a: Pointer, row: Integer) -> Pointer:
        return a

    def step_of_a(self) -> Integer:
        return self.code.index("%ks")

    def some_of_a(self, a: Pointer) -> list[Pointer]:
        code = self.code
        fours = [a[self.step_of_a() * j] for j in range(0, self.part, len(K_AT))]
        return [four.element(kind, code.index(at)) for four in fours for kind, at in K_AT][: self.part]

    def store(self, row: Index, left: Index, chains: list[Value]) -> None:
        code, size, nothing = self.code, self.element.bytes, self.element.nothing
        c = code.pointer("%c")
        places = [c[column * size] for column in self.begins(left)]
        before = []
        for into in places:  # all are read before any is written: they may overlap
            old = into.load(self.vector, size)
            before.append(code.op(f"select i1 %first, {self.vector} splat ({nothing}), {self.vector} {old}"))
        for old, chain, into in zip(before, chains, places):
            self.add(old, chain, into)

    def begins(self, left: Index) -> list[Index]:
        """The first columns of the panel's vectors."""
        return [left + v * self.lanes for v in range(self.vectors)]


class _Narrow(_Row):
    """The same of a row whose columns are fewer than a panel and a vector at least: the last vectors begin
    where they end with the last column.
    """

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.group = self.lanes

    def bases(self, left: Index) -> list[Index]:
        last = self.code.index("%cols") - self.lanes
        return [last.min(v * self.lanes) for v in range(self.vectors)]

    begins = bases


def tile_transposed(target: Target, element: Element) -> Routine:
    """The routine tile_transposed: a segment of tiles of few rows, side by side; A is copied (ROW_PITCH), of
    an odd number of rows one more; it and sums are of the summed type.

        each panel of the columns, which are whole ones:
            sum[r][v] = 0
            each L of k, where a 128-bit lane holds L sums:
                load L elements of each column, interleave them until b[j] holds k + j of all
                each j < L, r:  sum[r][..] = fma(splat(load a[r][k + j]), b[j][..], sum[r][..])
            each k left:  the same, from the last L of k transposed once more
            store old[r * os + v * vector] + sum[r][v] at c + r * cs + v * vector
            next panel, old += op * columns

    Strides are bytes, k >= L, bs > 0. As rows of A are a constant apart, one address serves all of them.
    """
    return _few(target, element, "tile_transposed", target.fma.vectors)


def tile_squares(target: Target, element: Element) -> Routine:
    """The routine tile_squares: the same of a vector of columns and as many k at a time, k >= that."""
    return _few(target, element, "tile_squares", 1, square=True)


def _few(target: Target, element: Element, name: str, vectors: int, square: bool = False) -> Routine:
    factors, sums = "ptr %a, ptr %b, i64 %bs", "ptr %c, i64 %cs, ptr %old, i64 %os, i64 %op"
    code = Routine(target, name, f"{factors}, {sums}, i64 %k, i64 %rows, i64 %cols")
    heights = range(2, target.fma.transposed + 1, 2)
    _Transposed(code, element, element.lanes(target), vectors, heights, square).panels()
    return code


def row_transposed(target: Target, element: Element) -> Routine:
    """The routine row_transposed: the same of one row, 16 columns at a time and elements of A as they lie in
    memory; c takes the sums of the first segment, later ones are added.
    """
    return _one(target, element, "row_transposed", min(target.vector_bits, ROW_BITS) // 8 // element.bytes)


def row_squares(target: Target, element: Element) -> Routine:
    """The routine row_squares: the same of a vector of columns and as many k at a time, k >= that."""
    return _one(target, element, "row_squares", element.lanes(target), square=True)


def row_narrow(target: Target, element: Element) -> Routine:
    """The routine row_narrow: row_transposed of fewer than 16 columns, in vectors that overlap."""
    return _one(target, element, "row_narrow", NARROW_BYTES // element.bytes, kind=_Narrow)


def _one(
    target: Target,
    element: Element,
    name: str,
    lanes: int,
    square: bool = False,
    kind: type[_Row] = _Row,
) -> Routine:
    factors = "ptr %a, i64 %ks, ptr %b, i64 %bk, i64 %bs"
    code = Routine(target, name, f"{factors}, ptr %c, i64 %k, i64 %cols, i1 %first")
    code.line("%rows = add i64 0, 1")
    code.line("%ks3 = mul i64 %ks, 3")
    vectors = 1 if square else LANES // lanes
    kind(code, element, lanes, vectors, (1,), square).panels()
    return code
