"""Products of bfloat16 on AMX: what tiles compute, and the packing they want.

A tile register is 16 rows of 64 bytes. One instruction multiplies 16 rows of A, 32 k each, by 32 k of 16
columns of B, whose k lie in pairs:

    C[16 x f32][16] += A[16][32 x bf16] * B[16 pairs][16 columns][2 x bf16]

Per 32 k (a *step*) it makes two chains of fused multiply-adds from zero, one over the even k and one over the
odd, adds the second to the first, and that to C. Denormals count as zero, in and out. That, ascending over
the steps of all k, is the order of arithmetic here; a step's missing k are zeros, which change nothing.

    tile     blocks of 32 rows by 32 columns: four accumulators, two tiles of A where it lies, two of packed B
    pairs    B, or an A whose k do not lie side by side, as rows of pairs of k
    lines    rows of A that lie badly, or the last k of each that make no whole step, with zeros
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import Element
from kiln.codegen.target import Target

STEP = 32  # k an instruction multiplies: part of the order of arithmetic
DEPTH = 1024  # k of packed panels; sums go to memory and back between two such
HEIGHT = 16  # rows of a tile, and columns of one accumulator
PANEL = 2 * HEIGHT  # columns of a panel of B, rows of a block
LINE = 64  # bytes of a tile's row
ROW = 2 * LINE  # bytes of a row of pairs
PITCH = 4 * 256  # bytes of a row of sums: of the columns whose sums are kept at once
STEP_BYTES = STEP // 2 * ROW  # of a panel of B
PANEL_BYTES = DEPTH // 2 * ROW + ROW  # from panel to panel, which are written side by side
AHEAD = 16  # pairs of k: their rows lie on different pages, where the machine does not prefetch by itself
RAW = Element("int16", "i16", "i16")  # bfloat16 that is only moved
PAIRS = Element("int32", "i32", "i32")  # two of them, side by side along k
WORDS = f"<{PANEL} x i16>"
# The tile registers' shapes: palette 1, bytes of a row (two bytes each from 16), rows (a byte each from 48).
CONFIG = [1] + [0] * 15 + [LINE, 0] * 8 + [0] * 16 + [HEIGHT] * 8 + [0] * 8
ROWS_AT = 48
A_TILES, B_TILES = (4, 5), (6, 7)  # 0 to 3 are sums: row of tiles * 2 + column


def config() -> str:
    """The constant @shapes: all tiles of 16 rows."""
    return f"@shapes = internal unnamed_addr constant [64 x i8] [{', '.join(f'i8 {n}' for n in CONFIG)}]"


class _Tile:
    """The routine tile under construction."""

    def __init__(self, target: Target) -> None:
        params = "ptr %a, i64 %rs, i64 %whole, ptr %end, ptr %b, i64 %steps, ptr %c, i1 %first, i64 %rows"
        self.code = Routine(target, "tile", params)
        self.shapes = self.code.slot("i8", LINE)

    def tiles(self, name: str, *arguments: str) -> None:
        """One instruction on tiles; numbers of tiles are bytes."""
        self.code.call(f"llvm.x86.{name}", "void", arguments)

    def write(self) -> Routine:
        """Whole blocks, then one row of tiles at a time, the last one as high as rows are left."""
        code = self.code
        whole = code.op(f"and i64 %rows, -{PANEL}")
        with code.when(code.compare("sgt", whole, "0")):
            self.tiles("ldtilecfg", "ptr @shapes")
            with code.times(whole, PANEL) as row:
                self._block(row, 2)
        with code.loop(whole, "%rows", HEIGHT) as turn:
            rows = code.minimum(code.sub("%rows", turn.index), str(HEIGHT))
            self._configure(rows)
            self._block(turn.index, 1)
        self.tiles("tilerelease")
        return code

    def _configure(self, rows: str) -> None:
        """Tiles of `rows` rows for A and the sums."""
        code, height = self.code, self.code.op(f"trunc i64 {rows} to i8")
        words = code.op("load <64 x i8>, ptr @shapes, align 1")
        code.line(f"store <64 x i8> {words}, ptr {self.shapes}, align 64")
        for tile in (0, 1, A_TILES[0]):
            code.line(f"store i8 {height}, ptr {code.at(self.shapes, str(ROWS_AT + tile))}, align 1")
        self.tiles("ldtilecfg", f"ptr {self.shapes}")

    def _block(self, row: str, high: int) -> None:
        """The sums of `high` by two tiles from `row` on."""
        code = self.code
        c = code.at("%c", code.mul(row, str(PITCH)))
        places = [code.at(c, str(tile // 2 * HEIGHT * PITCH + tile % 2 * LINE)) for tile in range(2 * high)]
        with code.either("%first") as later:
            for tile in range(2 * high):
                self.tiles("tilezero", f"i8 {tile}")
            next(later)
            for tile, place in enumerate(places):
                self._load(tile, place, str(PITCH))
        a = code.at("%a", code.mul(row, "%rs"))
        below = code.mul("%rs", str(HEIGHT))
        with code.times("%whole") as step:
            here = code.at(a, code.mul(step, str(LINE)))
            self._step([here, code.at(here, below)][:high], "%rs", step)
        with code.when(code.compare("slt", "%whole", "%steps")):
            here = code.at("%end", code.mul(row, str(LINE)))
            self._step([here, code.at(here, str(HEIGHT * LINE))][:high], str(LINE), "%whole")
        for tile, place in enumerate(places):
            self.tiles("tilestored64", f"i8 {tile}", f"ptr {place}", f"i64 {PITCH}")

    def _step(self, a: Sequence[str], stride: str, step: str) -> None:
        """Sums take the products of one step."""
        code = self.code
        b = code.at("%b", code.mul(step, str(STEP_BYTES)))
        for column, tile in enumerate(B_TILES):
            self._load(tile, code.at(b, str(column * LINE)), str(ROW))
        for tile, place in zip(A_TILES, a):
            self._load(tile, place, stride)
        for row, x in enumerate(A_TILES[: len(a)]):
            for column, y in enumerate(B_TILES):
                self.tiles("tdpbf16ps", f"i8 {2 * row + column}", f"i8 {x}", f"i8 {y}")

    def _load(self, tile: int, place: str, stride: str) -> None:
        self.tiles("tileloadd64", f"i8 {tile}", f"ptr {place}", f"i64 {stride}")


def tile(target: Target) -> Routine:
    """The routine tile: rows x 32 sums at c take the products of some steps.

        each 32 rows:  4 sums = 0 (first), or what is at c
                       each step:  2 tiles of A (from `end` where a step is not whole), 2 of B, 4 products
                       store
        each 16 rows left, one row of tiles

    A's rows are `rs` bytes apart, `end` has rows of 64 bytes, c of PITCH.
    """
    return _Tile(target).write()


def _masked(code: Routine, address: str, mask: str) -> str:
    name = f"llvm.masked.load.v{PANEL}i16.p0"
    return code.call(
        name, WORDS, [f"ptr {address}", "i32 1", f"<{PANEL} x i1> {mask}", f"{WORDS} zeroinitializer"]
    )


def _mask(code: Routine, count: str) -> str:
    """The first `count` of 32 lanes, 1 at least."""
    bits = code.op(f"lshr i64 {(1 << PANEL) - 1}, {code.sub(str(PANEL), count)}")
    return code.op(f"bitcast i{PANEL} {code.op(f'trunc i64 {bits} to i{PANEL}')} to <{PANEL} x i1>")


class _Pairs:
    """The routine pairs under construction."""

    def __init__(self, target: Target) -> None:
        params = "ptr %src, i64 %ks, i64 %cs, ptr %dst, i64 %depth, i64 %width, i64 %rows"
        self.code = Routine(target, "pairs", params)

    def write(self) -> Routine:
        """Rows of two k, then the odd one, then zeros."""
        code = self.code
        whole = code.op("sdiv i64 %depth, 2")
        filled = code.ceil_div("%depth", 2)
        with code.either(code.compare("eq", "%cs", "2")) as apart:
            with code.times(whole) as pair:
                self._beside(pair, True)
            with code.loop(whole, filled, 1) as turn:
                self._beside(turn.index, False)
            next(apart)
            with code.times(whole) as pair:
                self._apart(pair, True)
            with code.loop(whole, filled, 1) as turn:
                self._apart(turn.index, False)
        with code.loop(filled, "%rows", 1) as turn:
            dst = self._places(turn.index)[1]
            with code.times("%width", PANEL) as column:
                for half in range(2):
                    place = code.at(self._panel(dst, column), str(half * LINE))
                    code.line(f"store {WORDS} zeroinitializer, ptr {place}, align 64")
        return code

    def _panel(self, dst: str, column: str) -> str:
        """Where the panel that begins with a column has the row that the first has at dst."""
        code = self.code
        return code.at(dst, code.mul(code.op(f"sdiv i64 {column}, {PANEL}"), str(PANEL_BYTES)))

    def _places(self, pair: str) -> tuple[str, str]:
        """Where a row begins in the source and the destination."""
        code = self.code
        return code.at("%src", code.mul(pair, code.mul("%ks", "2"))), code.at(
            "%dst", code.mul(pair, str(ROW))
        )

    def _beside(self, pair: str, both: bool) -> None:
        """Columns side by side: two rows of them, zipped. All panels take theirs of a row, which may be a
        page away from the next.
        """
        code = self.code
        src, dst = self._places(pair)
        with code.times("%width", PANEL) as column:
            mask = _mask(code, code.minimum(code.sub("%width", column), str(PANEL)))
            here, into = code.at(src, code.mul(column, str(RAW.bytes))), self._panel(dst, column)
            for odd in range(1 + both):
                ahead = code.at(here, code.mul("%ks", str(2 * AHEAD + odd)))
                code.prefetch(ahead)
            x = _masked(code, here, mask)
            y = _masked(code, code.at(here, "%ks"), mask) if both else "zeroinitializer"
            for half in range(2):
                lanes = [n + 32 * odd for n in range(half * HEIGHT, (half + 1) * HEIGHT) for odd in (0, 1)]
                pick = ", ".join(f"i32 {n}" for n in lanes)
                zipped = code.op(f"shufflevector {WORDS} {x}, {WORDS} {y}, <{PANEL} x i32> <{pick}>")
                code.line(f"store {WORDS} {zipped}, ptr {code.at(into, str(half * LINE))}, align 64")

    def _apart(self, pair: str, both: bool) -> None:
        """Any columns, one by one."""
        code = self.code
        src, dst = self._places(pair)
        with code.times("%width") as column:
            inside = code.op(f"and i64 {column}, {PANEL - 1}")
            panel = self._panel(dst, code.sub(column, inside))
            at, into = code.at(src, code.mul(column, "%cs")), code.at(panel, code.mul(inside, "4"))
            x = code.op(f"load i16, ptr {at}, align 1")
            y = code.op(f"load i16, ptr {code.at(at, '%ks')}, align 1") if both else "0"
            code.line(f"store i16 {x}, ptr {into}, align 2")
            code.line(f"store i16 {y}, ptr {code.at(into, '2')}, align 2")


def pairs(target: Target) -> Routine:
    """The routine pairs: dst[p][c] = (src[2 p][c], src[2 p + 1][c]) for depth k and width columns, which go
    into panels PANEL_BYTES apart.

    `rows` rows of 128 bytes are written in all; past the depth they are zeros, past the width anything.
    """
    return _Pairs(target).write()


def lines(target: Target) -> Routine:
    """The routine lines: dst[row] = `count` elements (1 or more) side by side at src + row * rs, then zeros
    to the end of a line.
    """
    code = Routine(target, "lines", "ptr %src, i64 %rs, ptr %dst, i64 %ds, i64 %rows, i64 %count")
    whole = code.op(f"and i64 {code.sub('%count', '1')}, -{PANEL}")
    mask = _mask(code, code.sub("%count", whole))
    with code.times("%rows") as row:
        src, dst = code.at("%src", code.mul(row, "%rs")), code.at("%dst", code.mul(row, "%ds"))
        with code.times(whole, PANEL) as at:
            place = code.mul(at, str(RAW.bytes))
            words = code.op(f"load {WORDS}, ptr {code.at(src, place)}, align 1")
            code.line(f"store {WORDS} {words}, ptr {code.at(dst, place)}, align 64")
        place = code.mul(whole, str(RAW.bytes))
        words = _masked(code, code.at(src, place), mask)
        code.line(f"store {WORDS} {words}, ptr {code.at(dst, place)}, align 64")
    return code
