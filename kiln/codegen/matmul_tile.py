"""Register tiles: the inner loop of a matrix product, and how rows are covered by tiles.

A tile is some rows by two vectors of columns. Its sums live in registers for a whole segment of k, each an
ascending FMA chain from zero. A is read one element at a time by any two strides (so no layout of A needs
copying); B is two vectors per k, or one where no more columns are left. A machine has a few tile heights;
the rows that are left over are an edge tile's, which repeats its last row.
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.code import LLVM
from kiln.codegen.matmul_text import Routine
from kiln.codegen.memory import MEMORY, compute_type
from kiln.codegen.target import Target
from kiln.ops.scalar import FLOATS, WIDTH

SEGMENT = 512  # k per FMA chain: part of the order of arithmetic, never tuned
VECTORS = 2  # vectors of columns per tile
EDGE = 4  # the height of the tile that ends a block, its last row repeated


class Element(NamedTuple):
    """The factors' dtype, the scalar type its elements have, and the one their products are summed in."""

    dtype: str
    compute: str
    summed: str  # "f32" "f64" "i32" "i64"

    @property
    def total(self) -> str:
        """The dtype of the sums."""
        return {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}[self.summed]

    @property
    def stored_bytes(self) -> int:
        """Bytes of an element in memory."""
        return MEMORY[self.dtype][1]

    @property
    def bytes(self) -> int:
        """Bytes of a summed element."""
        return WIDTH[self.summed] // 8

    @property
    def widened(self) -> bool:
        """Whether elements change on their way from memory into a product."""
        return self.stored_bytes != self.bytes

    @property
    def floating(self) -> bool:
        """Whether products are summed by FMA (else by wrapping integers)."""
        return self.summed in FLOATS

    def lanes(self, target: Target) -> int:
        """Summed elements per vector register."""
        return target.vector_bits // 8 // self.bytes


def element_of(dtype: str) -> Element:
    """How factors of `dtype` are multiplied: 16-bit floats in f32, narrow integers modulo 2^32."""
    compute = compute_type(dtype)
    assert compute != "i1", "a matrix product of bool has no arithmetic"
    summed = compute if compute in FLOATS else "i64" if WIDTH[compute] == 64 else "i32"
    return Element(dtype, compute, summed)


def heights(target: Target) -> tuple[int, ...]:
    """The tile heights of a target, tallest first: 2 registers a row, 2 for B and at least 1 for A."""
    return (6, EDGE) if target.name.startswith("x86-64-v3") else (12, 8, EDGE)


def multiply_add(code: Routine, element: Element, lanes: int, x: str, y: str, z: str) -> str:
    """z + x * y of vectors: rounded once for floats, wrapping for integers."""
    vector = f"<{lanes} x {LLVM[element.summed]}>"
    if element.floating:
        name = f"llvm.fma.v{lanes}f{element.bytes * 8}"
        return code.call(name, vector, [f"{vector} {x}", f"{vector} {y}", f"{vector} {z}"])
    return code.op(f"add {vector} {z}, {code.op(f'mul {vector} {x}, {y}')}")


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


class _Tile:
    """One shape of the tile routine under construction."""

    def __init__(self, code: Routine, element: Element, height: int, vectors: int) -> None:
        self.code, self.element = code, element
        self.height, self.vectors = height, vectors
        self.lanes, self.kind = element.lanes(code.target), LLVM[element.summed]
        self.vector = f"<{self.lanes} x {self.kind}>"
        self.cells = [(r, v) for r in range(self.height) for v in range(self.vectors)]

    def write(self, start: str, end: str) -> None:
        """The loop over tiles of rows."""
        code = self.code
        with code.loop(start, end, self.height) as turn:
            row = turn.index
            a, c, old = (
                code.at(base, code.mul(row, step))
                for base, step in (("%a", "%rs"), ("%c", "%cs"), ("%old", "%os"))
            )
            last = code.sub(code.sub("%rows", row), "1")
            steps = [code.minimum(last, str(r)) for r in range(self.height)] if self.height == EDGE else []
            into, before = (self._rows(base, step, steps) for base, step in ((c, "%cs"), (old, "%os")))
            for r, v in self.cells:
                code.prefetch(self._column(into[r], v), write=True)
            sums = self._sum(a, steps)
            totals = {cell: self._total(before[cell[0]], cell[1], sums[cell]) for cell in self.cells}
            for (r, v), total in totals.items():  # all reads come before any write: rows may be repeated
                code.line(
                    f"store {self.vector} {total}, ptr {self._column(into[r], v)}, align {self.element.bytes}"
                )

    def _rows(self, base: str, step: str, steps: list[str]) -> list[str]:
        """The addresses of the tile's rows."""
        code, rows = self.code, [base]
        for r in range(1, self.height):
            rows.append(code.at(base, code.mul(steps[r], step)) if steps else code.at(rows[-1], step))
        return rows

    def _column(self, row: str, v: int) -> str:
        return self.code.at(row, str(v * self.lanes * self.element.bytes))

    def _total(self, row: str, v: int, chain: str) -> str:
        code, add = self.code, "fadd" if self.element.floating else "add"
        old = code.op(f"load {self.vector}, ptr {self._column(row, v)}, align {self.element.bytes}")
        return code.op(f"{add} {self.vector} {old}, {chain}")

    def _sum(self, a: str, steps: list[str]) -> dict[tuple[int, int], str]:
        """The chains over k of the tile whose A begins at `a`."""
        code, size = self.code, self.element.bytes
        bases = {"a": (a, "%ks"), "b": ("%b", "%bs")}
        if self.height > 7:
            bases["a7"] = (code.at(a, "%rs7"), "%ks")
        at = {name: code.name() for name in bases}
        sums = {cell: code.name() for cell in self.cells}
        left = code.name()
        places = [("a", "i8", code.mul(step, "%rs") if r else "0") for r, step in enumerate(steps)]
        before, loop, done = code.block, code.label(), code.label()
        code.jump(loop)
        code.begin(loop)
        place = len(code.lines)
        columns = [
            code.op(f"load {self.vector}, ptr {self._column(at['b'], v)}, align {size}")
            for v in range(self.vectors)
        ]
        self._prefetch(at)
        after = {}
        for r in range(self.height):
            base, scale, index = (places or ROW_AT)[r]
            x = code.op(f"load {self.kind}, ptr {code.offset(at[base], scale, index)}, align {size}")
            x = code.op(f"insertelement {self.vector} poison, {self.kind} {x}, i64 0")
            x = code.op(
                f"shufflevector {self.vector} {x}, {self.vector} poison, <{self.lanes} x i32> zeroinitializer"
            )
            for v in range(self.vectors):
                after[r, v] = multiply_add(code, self.element, self.lanes, x, columns[v], sums[r, v])
        carried = {at[name]: ("ptr", first, code.at(at[name], by)) for name, (first, by) in bases.items()}
        rest = code.add(left, "-1")
        carried[left] = ("i64", "%k", rest)
        carried.update({sums[cell]: (self.vector, "zeroinitializer", after[cell]) for cell in self.cells})
        code.lines[place:place] = [
            f"  {name} = phi {type} [ {first}, %{before} ], [ {then}, %{loop} ]"
            for name, (type, first, then) in carried.items()
        ]
        code.branch(code.compare("ne", rest, "0"), loop, done)
        code.begin(done)
        return after

    def _prefetch(self, at: dict[str, str]) -> None:
        """Asks for B of 8 k ahead."""
        ahead = self.code.offset(at["b"], "i64", "%bs")
        for v in range(self.vectors):
            self.code.prefetch(self._column(ahead, v))


def tile(target: Target, element: Element) -> Routine:
    """The routine tile: a segment of tiles, one below the other; elements of summed type.

        each height, the tallest first, and an edge tile for what is left (the tallest also one vector wide):
            as many rows as fit, `height` at a time:
                sum[r][v] = 0
                k times:   b0, b1 = load b, b + vector;  prefetch them of 8 k ahead
                           each r:  x = splat(load a + r * rs)
                                    sum[r][0] = fma(x, b0, sum[r][0]);  sum[r][1] = fma(x, b1, sum[r][1])
                           a += ks, a7 += ks, b += bs
                store old[r * os + v * vector] + sum[r][v] at c + r * cs + v * vector

    Strides are bytes, k >= 1. `old` holds the sums of the segments before, or what adds nothing. The edge
    tile repeats the last row where rows end.

    a7 is a + 7 * rs, rs3 and rs5 are rs times 3 and 5: with them each row is one address (base +
    index * 1, 2 or 4). Loop strength reduction must be off (`compile` sees to it): it would exchange the
    addresses for a chain of additions or for spilled pointers, and a sixth of the speed. The shapes are one
    function, because LLVM's passes cost as much for a function as for ten rows of a tile.
    """
    params = (
        "ptr %a, i64 %rs, i64 %ks, ptr %b, i64 %bs, ptr %c, i64 %cs, ptr %old, i64 %os, i64 %k, i64 %rows"
    )
    code = Routine(target, "tile", params + ", i1 %narrow")
    for times in (3, 5, 7):
        code.line(f"%rs{times} = mul i64 %rs, {times}")
    done = "0"
    for height in heights(target):
        left = code.sub("%rows", done)
        end = (
            "%rows"
            if height == EDGE
            else code.add(done, code.sub(left, code.op(f"srem i64 {left}, {height}")))
        )
        if done == "0":
            with code.either("%narrow") as wide:
                _Tile(code, element, height, 1).write(done, end)
                next(wide)
                _Tile(code, element, height, VECTORS).write(done, end)
        else:
            _Tile(code, element, height, VECTORS).write(done, end)
        done = end
    return code


def identity(target: Target, element: Element) -> str:
    """The constant @nothing: one row of a tile that adds nothing to any sum, -0.0 among them."""
    lanes = VECTORS * element.lanes(target)
    kind, zero = LLVM[element.summed], "-0.0" if element.floating else "0"
    text = ", ".join([f"{kind} {zero}"] * lanes)
    return f"@nothing = internal unnamed_addr constant [{lanes} x {kind}] [{text}], align 64"
