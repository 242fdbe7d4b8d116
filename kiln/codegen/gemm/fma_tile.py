"""Register tiles of products on vectors: the inner loop, and how rows are covered by tiles.

A tile is MR rows by NR columns, two vectors. Its sums live in registers for a whole segment of k, each an
ascending FMA chain from zero. A is read one element at a time by any two strides (so no layout of A needs
copying); B is two vectors per k, or one where no more columns are left, and may be masked. A machine has a
few heights of tiles; the rows that are left over are one of the two lowest's, which repeat the last row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from kiln.codegen.gemm.element import Element, multiply_add
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.masked import lanes_below, load_masked, store_masked
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import LLVM, Value
from kiln.codegen.target import Target

COVERS = 32  # rows from which every even number is whole tiles


@lru_cache
def _well_covered(sizes: tuple[int, ...]) -> int:
    """A bit for each number of rows that tiles of these heights cover well."""
    well = sizes[:-1] if len(sizes) > 2 else sizes
    found = {0}
    for n in range(1, COVERS):
        if any(n - height in found for height in well):
            found.add(n)
    return sum(1 << n for n in found)


def covered(code: Routine, rows: Index) -> Condition:
    """Whether so many rows are tiles that repeat none. (Where several are taller, the lowest is slow.)"""
    few = _well_covered(code.target.fma.mr) >> (rows & (COVERS - 1))
    even = rows ^ 1
    bit = (rows < COVERS).choose(few, even)
    return code.condition(bit.bits(1))


# Row r of a tall tile is base + scale * index, as in an x86 address: (base, element type that scales, index).
ROW_AT = [
    (base, scale, index)
    for base in ("a", "a7")
    for scale, index in (
        ("i8", "0"),
        ("i8", "%rs"),
        ("i16", "%rs"),
        ("i8", "%rs3"),
        ("i32", "%rs"),
        ("i8", "%rs5"),
        ("i16", "%rs3"),
    )
]


Sums = dict[tuple[int, int], str]  # by (row, vector)


class _Tile:
    """The tile routine under construction; `indirect`: a table says where k lie in A; `masked`: of a panel's
    columns only some exist.
    """

    def __init__(self, code: Routine, element: Element, indirect: bool, masked: bool) -> None:
        self.code, self.element, self.indirect, self.masked = code, element, indirect, masked
        self.blocking = code.target.fma
        self.lanes, self.kind = element.lanes(code.target), LLVM[element.summed]
        self.vector, self.bytes = f"<{self.lanes} x {self.kind}>", element.bytes
        self.masks: dict[int, Value] = {}  # by vector
        self.row_at = [(base, scale, code.index(index)) for base, scale, index in ROW_AT]

    def write(self) -> None:
        """The loop over tiles of rows."""
        code, blocking = self.code, self.blocking
        sizes, ahead = blocking.mr, blocking.prefetch_k
        a, c, old = code.pointers("a", "c", "old")
        self.rs, self.cs, self.os, bs, rows, cols = code.indices("rs", "cs", "os", "bs", "rows", "cols")
        for times in (3, 5, 7):
            code.line(f"%rs{times} = mul i64 %rs, {times}")
        panel = code.index(blocking.vectors * code.target.vector_bits // 8)
        self.bs, self.ahead = panel, panel * ahead
        if not self.indirect:
            packed = bs.equals(panel)
            self.bs, self.ahead = bs, bs * packed.choose(ahead, ahead // 2)
        if self.masked:
            narrow = cols <= self.lanes
            masks = [lanes_below(code, cols - v * self.lanes, self.lanes) for v in range(blocking.vectors)]
        with code.repeat([code.index(0)], lambda turn: turn.indices[0] < rows) as turn:
            (row,) = turn.indices
            self.left = rows - row
            self.a, self.c, self.old = a[row * self.rs], c[row * self.cs], old[row * self.os]
            last = self.left - 1
            self.steps = [code.index(0), *(last.min(r) for r in range(1, blocking.edges[0]))]
            height = self._height(sizes)
            self.fits = {size: height >= size for size in sizes[:-1]}
            if self.masked:
                for vectors, fits in ((1, narrow), (blocking.vectors, ~narrow)):
                    self.masks = {v: masks[v] for v in range(min(1, vectors - 1), vectors)}
                    with code.when(fits):
                        self._tile(0, sizes[::-1], vectors)
            else:
                tall = code.condition("%narrow") & (self.left >= blocking.narrow)
                with code.either(tall) as wide:
                    self._store(self._sum(blocking.narrow, 1, near=True), 0, blocking.narrow)
                    next(wide)
                    self._tile(0, sizes[::-1], blocking.vectors)
                height = tall.choose(blocking.narrow, height)
            turn.next = [row + height]

    def _height(self, sizes: Sequence[int]) -> Index:
        """The tallest tile after which the rows are whole tiles; if they are never, the tallest there is. The
        last rows are one edge, if one is as high.
        """
        code, height = self.code, self.code.index(sizes[-1])
        never = ~covered(code, self.left)
        for size in sizes[-2::-1]:
            rest = self.left - size
            well = never | covered(code, rest)
            height = ((rest >= 0) & well).choose(size, height)
        high, low = self.blocking.edges
        return ((self.left > low) & (self.left <= high)).choose(high, height)

    def _tile(self, done: int, sizes: Sequence[int], vectors: int) -> Sums:
        """Sums of the rows before `done`, of the tallest tile that fits; those of the others are stored."""
        height, *taller = sizes
        if taller:
            ways = (lambda: self._tile(height, taller, vectors), lambda: self._sum(height, vectors))
            sums = self._either(self.fits[taller[0]], *ways)
        else:
            sums = self._sum(height, vectors)
        self._store({cell: chain for cell, chain in sums.items() if cell[0] >= done}, done, height)
        return {cell: chain for cell, chain in sums.items() if cell[0] < done}

    def _either(self, condition: Condition, *ways: Callable[[], Sums]) -> Sums:
        """The sums that the first or the second way gives."""
        code = self.code
        with code.either(condition) as other:
            first, here = ways[0](), code.block
            next(other)
            second, there = ways[1](), code.block
        return {
            cell: code.op(f"phi {self.vector} [ {first[cell]}, %{here} ], [ {chain}, %{there} ]")
            for cell, chain in second.items()
        }

    def _store(self, sums: Sums, first: int, end: int) -> None:
        """Adds the sums of some rows to the old ones."""
        code, size = self.code, self.bytes
        into, old = (self._rows(*place, first, end) for place in ((self.c, self.cs), (self.old, self.os)))
        totals = {(r, v): self._total(old[r - first], v, chain) for (r, v), chain in sums.items()}
        for (r, v), total in totals.items():  # all reads come before any write: rows may be repeated
            place = self._column(into[r - first], v)
            if v in self.masks:
                store_masked(code, self.kind, total, place, self.masks[v])
            else:
                place.store(f"{self.vector} {total}", size)

    def _rows(self, base: Pointer, step: Index, first: int, end: int) -> list[Pointer]:
        """The addresses of some of the tile's rows; those of an edge may be its last."""
        rows, edge = list[Pointer](), self.blocking.edges[0]
        for r in range(first, end):
            if r == 0:
                rows.append(base)
            elif rows and r >= edge:
                rows.append(rows[-1][step])
            else:
                rows.append(base[step * (self.steps[r] if r < edge else r)])
        return rows

    def _column(self, row: Pointer, v: int) -> Pointer:
        return row[v * self.lanes * self.bytes]

    def _vector(self, place: Pointer, v: int) -> str:
        """Vector v of a row, there."""
        if v in self.masks:
            return load_masked(self.code, self.kind, place, self.masks[v])
        return place.load(self.vector, self.bytes)

    def _total(self, row: Pointer, v: int, chain: str) -> str:
        code = self.code
        old = self._vector(self._column(row, v), v)
        return code.op(f"{self.element.add} {self.vector} {old}, {chain}")

    def _sum(self, height: int, vectors: int, near: bool = False) -> Sums:
        """The chains over k of a tile: cleared before the loop, in registers while it runs. `near`: B is not
        asked for ahead, which costs a load.
        """
        code = self.code
        rs7, ks = code.indices("rs7", "ks")
        places_of_k, b = code.pointers("ks", "b")
        edge = [("a", "i8", step * self.rs if r else step) for r, step in enumerate(self.steps[:height])]
        places = edge if height in self.blocking.edges else self.row_at
        rows = {"a": self.a, **({"a7": self.a[rs7]} if height > 7 and places is not edge else {})}
        bases: dict[str, tuple[Pointer, Integer]] = {name: (row, ks) for name, row in rows.items()}
        if self.indirect:
            bases = {"ks": (places_of_k, 8)}
        bases["b"] = (b, self.bs)
        at = {name: code.pointer(code.name()) for name in bases}
        sums = {(r, v): code.name() for r in range(height) for v in range(vectors)}
        left = code.index(code.name())
        before, loop, done = code.block, code.label(), code.label()
        code.jump(loop)
        code.begin(loop)
        place = len(code.lines)
        if self.indirect:
            k = at["ks"].word()
            soon = at["ks"].word(self.blocking.prefetch_offsets)
            code.prefetch(rows.get("a7", self.a)[soon])
            at.update({name: row[k] for name, row in rows.items()})
        columns = [self._vector(self._column(at["b"], v), v) for v in range(vectors)]
        if not near:
            self._prefetch(at, vectors)
        after = self._step(at, places[:height], columns, sums)
        carried = [
            (at[name].text, "ptr", first.text, at[name][by].text) for name, (first, by) in bases.items()
        ]
        rest = left + -1
        carried.append((left.text, "i64", "%k", rest.text))
        carried += [(chain, self.vector, "zeroinitializer", after[cell]) for cell, chain in sums.items()]
        code.lines[place:place] = [
            f"  {name} = phi {type} [ {first}, %{before} ], [ {then}, %{loop} ]"
            for name, type, first, then in carried
        ]
        code.branch(rest.differs(0), loop, done)
        code.begin(done)
        return after

    def _step(
        self,
        at: dict[str, Pointer],
        places: Sequence[tuple[str, str, Index]],
        columns: list[str],
        sums: Sums,
    ) -> Sums:
        """The sums after one more k: of each row its element of A, on all lanes, times the columns of B."""
        code, after = self.code, Sums()
        for r, (base, scale, index) in enumerate(places):
            x = at[base].element(scale, index).load(self.kind, self.bytes)
            x = code.op(f"insertelement {self.vector} poison, {self.kind} {x}, i64 0")
            x = code.op(
                f"shufflevector {self.vector} {x}, {self.vector} poison, <{self.lanes} x i32> zeroinitializer"
            )
            for v, column in enumerate(columns):
                after[r, v] = multiply_add(code, self.element, self.lanes, x, column, sums[r, v])
        return after

    def _prefetch(self, at: dict[str, Pointer], vectors: int) -> None:
        """Asks for B of some k ahead."""
        for v in range(vectors):
            self.code.prefetch(self._column(at["b"][self.ahead], v))


def tile(target: Target, element: Element) -> Routine:
    """The routine tile: a segment of tiles, one below the other; elements of summed type.

        each tile of rows, as high as fits:
            sum[r][v] = 0
            k times:   b0, b1 = load b, b + vector;  prefetch them of some k ahead
                       each r:  x = splat(load a + r * rs)
                                sum[r][0] = fma(x, b0, sum[r][0]);  sum[r][1] = fma(x, b1, sum[r][1])
                       a += ks, a7 += ks, b += bs
            store old[r * os + v * vector] + sum[r][v] at c + r * cs + v * vector
                the rows that only taller tiles have first, then, of tiles of all heights, the others

    Strides are bytes, k >= 1. `old` holds the sums of the segments before, or what adds nothing. The edge
    tile repeats the last row where rows end.

    a7 is a + 7 * rs, rs3 and rs5 are rs times 3 and 5: with them each row is one address (base +
    index * 1, 2 or 4). Loop strength reduction must be off (`compile` sees to it): it would replace the
    addresses for a chain of additions or for spilled pointers, and a sixth of the speed. The heights are one
    function, and store their sums in one place, because of LLVM's time. One more is one vector wide.
    """
    return _routine(target, element, "tile")


def tile_masked(target: Target, element: Element) -> Routine:
    """The same of `cols` columns, fewer than two vectors have: of others nothing is read or written."""
    return _routine(target, element, "tile_masked")


def tile_indirect(target: Target, element: Element) -> Routine:
    """The same of a packed B, where a table has the offset of each k in A."""
    return _routine(target, element, "tile_indirect")


def _routine(target: Target, element: Element, name: str) -> Routine:
    """One of the three."""
    indirect, masked = name == "tile_indirect", name == "tile_masked"
    factors = "ptr %ks, ptr %b" if indirect else "i64 %ks, ptr %b, i64 %bs"
    sums = "ptr %c, i64 %cs, ptr %old, i64 %os"
    columns = "i64 %cols" if masked else "i1 %narrow"
    params = f"ptr %a, i64 %rs, {factors}, {sums}, i64 %k, i64 %rows, {columns}"
    code = Routine(target, name, params)
    _Tile(code, element, indirect, masked).write()
    return code


def nothing(target: Target, element: Element) -> str:
    """The constant @nothing: one row of a tile that adds nothing."""
    panel = element.panel(target)
    text = ", ".join([element.nothing] * panel)
    return f"@nothing = internal unnamed_addr constant [{panel} x {LLVM[element.summed]}] [{text}], align 64"
