"""Products of bfloat16, int8 and uint8 on AMX: what tiles compute, and the layouts they want.

A tile register is 16 rows of 64 bytes. One instruction multiplies 16 rows of A, a line of k each, by these
k of 16 columns of B, which lie in the VNNI layout: words of 32 bits, of two k or four of a column.

    C[16 x f32][16] += A[16][32 x bf16] * B[16 words][16 columns][2 x bf16]
    C[16 x i32][16] += A[16][64 x i8]   * B[16 words][16 columns][4 x i8]

Per line of k (a *step*) of bfloat16 it makes two chains of fused multiply-adds from zero, one over the even k
and one over the odd, adds the second to the first, and that to C. Denormals count as zero, in and out. That,
ascending over the steps of all k, is the order of arithmetic here; a step's missing k are zeros, which change
nothing. Sums of integers are exact modulo 2^32, so they have the bits of every other order.

    panels      32 rows by panels of 32 columns: four accumulators, two tiles of packed A, two of packed B
    tiles       panels, configured and released
    pack_vnni   B, or an A whose k do not lie side by side, as rows of words
    pack_lines  rows of A, a step of all of them after the other

What tiles read must be close: one core multiplies twice as fast with A in the first cache and B in the second
as with both in the second. So packed A is 32 rows of some k, two thirds of the first cache (`AmxBlocking`),
all panels go by it, and B is loaded with a hint that keeps it out of there.

Where nothing but bytes and words matter, the dtype does not: a step is a line, and a word is a word.
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.gemm.element import Element
from kiln.codegen.ir.index import Index, Integer, Pointer
from kiln.codegen.ir.masked import first_lanes, load_masked
from kiln.codegen.ir.routine import Routine
from kiln.codegen.target import Target

HEIGHT = 16  # rows of a tile, and columns of one accumulator
PANEL = 2 * HEIGHT  # MR and NR: rows of packed A, columns of a panel of B
WORD = 4  # bytes: of the k of a column that lie side by side
LINE = 64  # bytes of a tile's row: a step's k of one row of A
ROW = 2 * LINE  # bytes of a row of words
STEP_WORDS = LINE // WORD
STEP_BYTES = STEP_WORDS * ROW  # of a panel of B, and of packed A
AHEAD = 32  # rows of words: they lie on different pages, where the machine does not prefetch by itself
SOON = 4  # rows of A
WORDS = Element("int32", "i32", "i32")  # the k of one word
BYTES = f"<{LINE} x i8>"


class Factor(NamedTuple):
    """A dtype that tiles multiply: its elements where they are only moved, and the instruction."""

    raw: Element
    multiply: str

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return self.raw.bytes

    @property
    def per_word(self) -> int:
        """Elements of a word."""
        return WORD // self.bytes

    @property
    def step(self) -> int:
        """k an instruction multiplies: part of the order of arithmetic."""
        return LINE // self.bytes


FACTORS = {
    "bfloat16": Factor(Element("int16", "i16", "i16"), "tdpbf16ps"),
    "int8": Factor(Element("int8", "i8", "i8"), "tdpbssd"),
    "uint8": Factor(Element("int8", "i8", "i8"), "tdpbuud"),
}
# The tile registers' shapes: palette 1, bytes of a row (two bytes each from 16), rows (a byte each from 48).
CONFIG = [1] + [0] * 15 + [LINE, 0] * 8 + [0] * 16 + [HEIGHT] * 8 + [0] * 8
ROWS_AT = 48
A_TILES, B_TILES = (4, 5), (6, 7)  # 0 to 3 are sums: row of tiles * 2 + column


def config() -> str:
    """The constant @shapes: all tiles of 16 rows."""
    return f"@shapes = internal unnamed_addr constant [64 x i8] [{', '.join(f'i8 {n}' for n in CONFIG)}]"


SUMS = "ptr %a, ptr %b, i64 %ps, i64 %steps, ptr %c, i64 %cs, i1 %first, i64 %rows, i64 %width"


class _Panels:
    """The routine panels under construction."""

    def __init__(self, target: Target, factor: Factor) -> None:
        self.code, self.multiply = Routine(target, "panels", SUMS), factor.multiply
        self.a, self.b, self.c = self.code.pointers("a", "b", "c")
        self.ps, self.steps, self.cs, self.rows, self.width = self.code.indices(
            "ps", "steps", "cs", "rows", "width"
        )

    def write(self) -> Routine:
        """Two rows of tiles or one."""
        code = self.code
        with code.either(self.rows > HEIGHT) as low:
            self._panels(2)
            next(low)
            self._panels(1)
        return code

    def _panels(self, high: int) -> None:
        """The sums of `high` by two tiles, for each panel."""
        code = self.code
        with code.times(self.width, PANEL) as left:
            panel = left // PANEL
            self._block(high, self.b[panel * self.ps], self.c[panel * ROW])

    def _block(self, high: int, b: Pointer, c: Pointer) -> None:
        """The sums of a panel."""
        code = self.code
        first = code.condition("%first")
        below = c[self.cs * HEIGHT]
        places = [base[column * LINE] for base in (c, below)[:high] for column in range(2)]
        with code.either(first) as later:
            for tile in range(2 * high):
                on_tiles(code, "tilezero", f"i8 {tile}")
            next(later)
            for tile, place in enumerate(places):
                self._load(tile, place, self.cs)
        with code.times(self.steps * STEP_BYTES, STEP_BYTES) as at:
            self._step(high, self.a[at], b[at])
        for tile, place in enumerate(places):
            on_tiles(code, "tilestored64", f"i8 {tile}", f"ptr {place}", "i64 %cs")

    def _step(self, high: int, a: Pointer, b: Pointer) -> None:
        """Sums take the products of one step."""
        for column, tile in enumerate(B_TILES):
            self._load(tile, b[column * LINE], ROW, "t1")
        for row, tile in enumerate(A_TILES[:high]):
            self._load(tile, a[row * HEIGHT * LINE], LINE)
        for row, x in enumerate(A_TILES[:high]):
            for column, y in enumerate(B_TILES):
                on_tiles(self.code, self.multiply, f"i8 {2 * row + column}", f"i8 {x}", f"i8 {y}")

    def _load(self, tile: int, place: Pointer, stride: Integer, hint: str = "") -> None:
        on_tiles(self.code, f"tileloadd{hint}64", f"i8 {tile}", f"ptr {place}", f"i64 {stride}")


def on_tiles(code: Routine, name: str, *arguments: str) -> None:
    """One instruction on tiles; numbers of tiles are bytes."""
    code.call(f"llvm.x86.{name}", "void", arguments)


def panels(target: Target, factor: Factor) -> Routine:
    """The routine panels: up to 32 rows x width sums at c take the products of some steps.

        each 32 columns:  4 sums = 0 (first), or what is at c
                          each step:  2 tiles of A, 2 of B, 4 products
                          store

    c's rows are `cs` bytes apart, B's panels `ps`. A tile that has no rows is left out; of the others as many
    rows are computed as the caller has configured.
    """
    return _Panels(target, factor).write()


def tiles(target: Target, factor: Factor) -> Routine:
    """The routine tiles: configured for `rows` rows, panels; then the tiles are released."""
    del factor
    code = Routine(target, "tiles", SUMS)
    rows = code.index("%rows")
    shapes = code.slot("i8", LINE)
    shapes.store(f"<64 x i8> {code.op('load <64 x i8>, ptr @shapes, align 1')}", 64)
    low = rows <= HEIGHT
    rest = (rows - low.choose(0, HEIGHT)).bits(8)
    for row, tile in enumerate(A_TILES):
        height = code.op(f"select i1 {low}, i8 {rest}, i8 {HEIGHT}") if row == 0 else rest
        for k in (2 * row, 2 * row + 1, tile):
            shapes[ROWS_AT + k].store(f"i8 {height}", 1)
    on_tiles(code, "ldtilecfg", f"ptr {shapes}")
    a, b, c = code.pointers("a", "b", "c")
    ps, steps, cs, width = code.indices("ps", "steps", "cs", "width")
    code.run("panels", a, b, ps, steps, c, cs, code.condition("%first"), rows, width)
    on_tiles(code, "tilerelease")
    return code


def store_vnni(code: Routine, kind: str, rows: list[str], into: Pointer) -> None:
    """Vectors of a panel's columns, one for each k of a word, interleaved to a row of words."""
    halves = f"<{PANEL} x i16>"
    while len(rows) > 2:  # bytes of two rows as halves of words
        low, high = (
            [code.op(f"zext <{PANEL} x {kind}> {row} to {halves}") for row in rows[n::2]] for n in (0, 1)
        )
        high = [code.op(f"shl {halves} {x}, splat (i16 8)") for x in high]
        rows = [code.op(f"or {halves} {x}, {y}") for x, y in zip(low, high)]
    for half in range(2):
        lanes = [n + PANEL * odd for n in range(half * HEIGHT, (half + 1) * HEIGHT) for odd in (0, 1)]
        pick = ", ".join(f"i32 {n}" for n in lanes)
        found = code.op(f"shufflevector {halves} {rows[0]}, {halves} {rows[1]}, <{PANEL} x i32> <{pick}>")
        into[half * LINE].store(f"{halves} {found}", 64)


def clear_vnni(code: Routine, into: Pointer) -> None:
    """A row of words becomes zeros."""
    for half in range(2):
        into[half * LINE].store(f"{BYTES} zeroinitializer", 64)


class _Vnni:
    """The routine pack_vnni under construction."""

    def __init__(self, target: Target, factor: Factor) -> None:
        params = "ptr %src, i64 %ks, i64 %cs, ptr %dst, i64 %depth, i64 %width, i64 %rows, i64 %ps"
        self.code = Routine(target, "pack_vnni", params)
        self.bytes, self.per_word, self.kind = factor.bytes, factor.per_word, factor.raw.compute
        self.src, self.dst = self.code.pointers("src", "dst")
        self.ks, self.cs, self.depth, self.width, self.rows, self.ps = self.code.indices(
            "ks", "cs", "depth", "width", "rows", "ps"
        )

    def write(self) -> Routine:
        """Rows of whole words, then the one that lacks k, then zeros."""
        code = self.code
        whole, filled = self.depth // self.per_word, self.depth.ceil_div(self.per_word)
        with code.either(self.cs.equals(self.bytes)) as strided:
            with code.times(whole) as word:
                self._contiguous(word, True)
            with code.loop(whole, filled, 1) as turn:
                self._contiguous(turn.index, False)
            next(strided)
            with code.times(whole) as word:
                self._strided(word, True)
            with code.loop(whole, filled, 1) as turn:
                self._strided(turn.index, False)
        with code.loop(filled, self.rows, 1) as turn:
            dst = self._places(turn.index)[1]
            with code.times(self.width, PANEL) as column:
                clear_vnni(code, self._panel(dst, column))
        return code

    def _panel(self, dst: Pointer, column: Index) -> Pointer:
        """Where the panel that begins with a column has the row that the first has at dst."""
        return dst[column // PANEL * self.ps]

    def _places(self, word: Index) -> tuple[Pointer, Pointer]:
        """Where a row begins in the source and the destination."""
        return self.src[word * (self.ks * self.per_word)], self.dst[word * ROW]

    def _left(self, word: Index) -> Index:
        """How many k there are from a word's first on."""
        return self.depth - word * self.per_word

    def _contiguous(self, word: Index, whole: bool) -> None:
        """Columns of unit stride: rows of them, interleaved. A row goes to all panels before the next, which
        may be a page away.
        """
        code = self.code
        src, dst = self._places(word)
        with code.times(self.width, PANEL) as column:
            mask = first_lanes(code, (self.width - column).min(PANEL), PANEL)
            here, into = src[column * self.bytes], self._panel(dst, column)
            rows = []
            for k in range(self.per_word):
                place, inside = here[self.ks * k], mask
                if whole:
                    ahead = here[self.ks * (self.per_word * AHEAD + k)]
                    code.prefetch(ahead)
                else:
                    there = self._left(word) > k
                    chosen = f"select i1 {there}, {mask.typed}, {mask.llvm} zeroinitializer"
                    inside = mask._replace(text=code.op(chosen))
                rows.append(load_masked(code, self.kind, place, inside))
            store_vnni(code, self.kind, rows, into)

    def _strided(self, word: Index, whole: bool) -> None:
        """Columns of any stride, one by one."""
        code = self.code
        src, dst = self._places(word)
        with code.times(self.width) as column:
            inside = column & (PANEL - 1)
            panel = self._panel(dst, column - inside)
            at, into = src[column * self.cs], panel[inside * WORD]
            if whole:
                for k in range(self.per_word):
                    self._move(at[self.ks * k], into[k * self.bytes])
            else:
                into.store("i32 0", 4)
                with code.times(self._left(word)) as one:
                    self._move(at[self.ks * one], into[one * self.bytes])

    def _move(self, src: Pointer, dst: Pointer) -> None:
        value = src.load(self.kind, 1)
        dst.store(f"{self.kind} {value}", 1)


def pack_vnni(target: Target, factor: Factor) -> Routine:
    """The routine pack_vnni: dst[w][c] = the k of word w of column c side by side, src[k][c], for depth k and
    width columns, which go into panels `ps` bytes apart.

    `rows` rows of 128 bytes are written in all; past the depth they are zeros, past the width anything.
    """
    return _Vnni(target, factor).write()


def pack_lines(target: Target, factor: Factor) -> Routine:
    """The routine pack_lines: A packed, of `count` bytes (1 or more) that lie side by side at src + row * rs.

    dst[step][row] = a line of row; past its last byte, zeros
    """
    code = Routine(target, "pack_lines", "ptr %src, i64 %rs, ptr %dst, i64 %rows, i64 %count")
    block, packed = code.pointers("src", "dst")
    rows, rs, count = code.indices("rows", "rs", "count")
    whole = (count - 1) & -LINE
    mask = first_lanes(code, count - whole, LINE)
    with code.times(rows) as row:
        src, dst = block[row * rs], packed[row * LINE]
        with code.times(whole, LINE) as at:
            here = src[at]
            code.prefetch(here[rs * SOON])
            line = here.load(BYTES, 1)
            dst[at * PANEL].store(f"{BYTES} {line}", 64)
        line = load_masked(code, "i8", src[whole], mask)
        dst[whole * PANEL].store(f"{BYTES} {line}", 64)
    return code


def trim(target: Target, factor: Factor) -> Routine:
    """The routine trim: in a panel of some rows of words, zeros for all k from `depth` on."""
    code = Routine(target, "trim", "ptr %dst, i64 %depth, i64 %rows")
    dst = code.pointer("%dst")
    rows, depth = code.indices("rows", "depth")
    whole, filled = depth // factor.per_word, depth.ceil_div(factor.per_word)
    kind = f"<{STEP_WORDS} x i32>"
    bits = (depth - whole * factor.per_word) * (8 * factor.bytes)
    mask = ((1 << bits) - 1).bits(32)
    mask = code.op(f"insertelement {kind} poison, i32 {mask}, i64 0")
    mask = code.op(f"shufflevector {kind} {mask}, {kind} poison, {kind} zeroinitializer")
    with code.loop(whole, filled, 1) as turn:
        for half in range(2):
            place = dst[turn.index * ROW, half * LINE]
            row = code.op(f"and {kind} {place.load(kind, 64)}, {mask}")
            place.store(f"{kind} {row}", 64)
    with code.loop(filled, rows, 1) as turn:
        clear_vnni(code, dst[turn.index * ROW])
    return code
