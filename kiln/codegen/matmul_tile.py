"""Register tiles: the inner loop of a matrix product, and how rows are covered by tiles.

A tile is some rows by two vectors of columns. Its sums live in registers for a whole segment of k, each an
ascending FMA chain from zero. A is read one element at a time by any two strides (so no layout of A needs
copying); B is two vectors per k. A machine has a handful of tile heights; any number of rows is covered by
them, the last tile standing over rows already done where that is the cheaper way.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kiln.codegen.code import LLVM
from kiln.codegen.matmul_text import Routine
from kiln.codegen.memory import MEMORY, compute_type
from kiln.codegen.target import Target
from kiln.ops.scalar import FLOATS, WIDTH

SEGMENT = 512  # k per FMA chain: part of the order of arithmetic, never tuned
VECTORS = 2  # vectors of columns per tile


class Element(NamedTuple):
    """The factors' dtype, the scalar type its elements have, and the one their products are summed in."""

    dtype: str
    compute: str
    summed: str  # "f32" "f64" "i32" "i64"

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
    return (6, 4, 2, 1) if target.name.startswith("x86-64-v3") else (14, 12, 8, 4, 1)


@cache
def next_height(choices: tuple[int, ...]) -> tuple[int, ...]:
    """The height of the next tile when `rem` rows remain, for rem in 0 .. 2 * tallest.

    A tile taller than rem stands over rows already done. A row costs 1, a tile at least 4 (the latency of
    its chains) and half a row for starting. From 2 * tallest up, the answer is the tallest.
    """
    cost, best = [0.0], [choices[-1]]
    for rem in range(1, 2 * choices[0] + 1):
        least, height = min((max(h, 4) + 0.5 + cost[max(rem - h, 0)], -h) for h in choices)
        cost.append(least)
        best.append(-height)
    return tuple(best)


def multiply_add(code: Routine, element: Element, x: str, y: str, z: str) -> str:
    """z + x * y of vectors: rounded once for floats, wrapping for integers."""
    lanes = element.lanes(code.target)
    vector = f"<{lanes} x {LLVM[element.summed]}>"
    if element.floating:
        name = f"llvm.fma.v{lanes}f{element.bytes * 8}"
        return code.call(name, vector, [f"{vector} {x}", f"{vector} {y}", f"{vector} {z}"])
    return code.op(f"add {vector} {z}, {code.op(f'mul {vector} {x}, {y}')}")


TILE_PARAMS = (
    "i64 %height, ptr %a, i64 %rs, i64 %rs3, i64 %rs5, i64 %ks, ptr %a7,"
    + " ptr %b, i64 %bs, ptr %c, i64 %cs, i64 %k"
)
# Row r of a tile is base + scale * index, as in an x86 address: (base, element type that scales, index).
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


def tile(target: Target, element: Element) -> Routine:
    """The routine tile: one segment of one tile; strides in bytes, k >= 1, every element summed type.

        each of the target's heights, if it is height:
            sum[r][v] = 0
            k times:   b0, b1 = load b, b + vector;  prefetch them and a, a7 of 8 k ahead
                       each r:  x = splat(load a + r * rs)
                                sum[r][0] = fma(x, b0, sum[r][0]);  sum[r][1] = fma(x, b1, sum[r][1])
                       a += ks, a7 += ks, b += bs
            store sum[r][v] at c + r * cs + v * vector

    a7 is a + 7 * rs, rs3 and rs5 are rs times 3 and 5: with them each of 14 rows is one address (base +
    index * 1, 2 or 4). Loop strength reduction must be off (`compile` sees to it): it would exchange the
    addresses for a chain of additions or for spilled pointers, and a sixth of the speed. The heights are one
    function, because LLVM's passes cost as much for a function as for ten rows of a tile.
    """
    code = Routine(target, "tile", TILE_PARAMS)
    for height in heights(target):
        with code.when(code.compare("eq", "%height", str(height))):
            _tile(code, element, height)
    return code


def _tile(code: Routine, element: Element, height: int) -> None:
    """The loop and the stores of one height."""
    lanes, size, kind = element.lanes(code.target), element.bytes, LLVM[element.summed]
    vector = f"<{lanes} x {kind}>"
    cells = [(r, v) for r in range(height) for v in range(VECTORS)]
    before, loop, done = code.block, code.label(), code.label()
    code.jump(loop)
    code.begin(loop)
    place = len(code.lines)
    sums = {cell: code.name() for cell in cells}
    at = {name: code.name() for name in ("a", "a7", "b")}
    left = code.name()
    columns = [
        code.op(f"load {vector}, ptr {code.at(at['b'], str(v * lanes * size))}, align {size}")
        for v in range(VECTORS)
    ]
    ahead = code.offset(at["b"], "i64", "%bs")
    soon = [code.at(ahead, str(v * lanes * size)) for v in range(VECTORS)]
    soon += [code.offset(at[name], "i64", "%ks") for name in ("a", "a7")[: 1 + (height > 7)]]
    for where in soon:
        code.call("llvm.prefetch.p0", "void", [f"ptr {where}", "i32 0", "i32 3", "i32 1"])
    after = {}
    for r in range(height):
        base, scale, index = ROW_AT[r]
        x = code.op(f"load {kind}, ptr {code.offset(at[base], scale, index)}, align {size}")
        x = code.op(f"insertelement {vector} poison, {kind} {x}, i64 0")
        x = code.op(f"shufflevector {vector} {x}, {vector} poison, <{lanes} x i32> zeroinitializer")
        for v in range(VECTORS):
            after[r, v] = multiply_add(code, element, x, columns[v], sums[r, v])
    steps = [
        (at[name], "ptr", f"%{name}", code.at(at[name], by))
        for name, by in (("a", "%ks"), ("a7", "%ks"), ("b", "%bs"))
    ]
    rest = code.add(left, "-1")
    steps.append((left, "i64", "%k", rest))
    steps += [(sums[cell], vector, "zeroinitializer", after[cell]) for cell in cells]
    code.lines[place:place] = [
        f"  {name} = phi {type} [ {first}, %{before} ], [ {next}, %{loop} ]"
        for name, type, first, next in steps
    ]
    code.branch(code.compare("ne", rest, "0"), loop, done)
    code.begin(done)
    row = "%c"
    for r, v in cells:
        row = code.at(row, "%cs") if r and not v else row
        code.line(f"store {vector} {after[r, v]}, ptr {code.at(row, str(v * lanes * size))}, align {size}")


def add_rows(code: Routine, element: Element, c: str, cs: str, x: str, xs: str, rows: str) -> None:
    """c[r][:] += x[r][:] over one tile's width: how segments are summed.

    rows times:  store c, load c + load x   for both vectors;  c += cs, x += xs
    """
    lanes, size = element.lanes(code.target), element.bytes
    vector = f"<{lanes} x {LLVM[element.summed]}>"
    add = "fadd" if element.floating else "add"
    with code.times(rows) as r:
        to, from_ = code.at(c, code.mul(r, cs)), code.at(x, code.mul(r, xs))
        for v in range(VECTORS):
            into, more = code.at(to, str(v * lanes * size)), code.at(from_, str(v * lanes * size))
            old, new = (code.op(f"load {vector}, ptr {p}, align {size}") for p in (into, more))
            code.line(f"store {vector} {code.op(f'{add} {vector} {old}, {new}')}, ptr {into}, align {size}")
