"""Packing: copying a block of A or B into a stack panel, in the order and the type a tile reads.

    copy       dst[o][i] = src[o * os + i * is]     rows of vectors where is = 1, elements otherwise
    turn       dst[k][c] = src[c * cs + k]          transposed in registers, a vector of k at a time

Strides of the source are bytes; the panel's elements have the summed type. Neither reads past the block.
"""

from __future__ import annotations

from kiln.codegen.code import Value, llvm_type
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import VECTORS, Element
from kiln.codegen.memory import MEMORY, SUFFIX, Memory
from kiln.codegen.target import Target

AHEAD = 16  # rows: they lie on different pages, where the machine does not prefetch by itself


def widen(code: Routine, element: Element, raw: str, lanes: int) -> str:
    """`lanes` raw elements from memory as the summed type."""
    memory = Memory(code)
    return memory.machine.convert(memory.decode(raw, element.dtype, lanes), element.summed).text


def load(code: Routine, element: Element, address: str, lanes: int) -> str:
    """`lanes` neighbouring elements in memory as the summed type."""
    return widen(code, element, code.op(f"load {stored_type(element, lanes)}, ptr {address}, align 1"), lanes)


def stored_type(element: Element, lanes: int) -> str:
    """The LLVM type of `lanes` elements in memory."""
    kind = MEMORY[element.dtype][0]
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def store(code: Routine, element: Element, value: str, address: str, lanes: int) -> None:
    """Store summed elements into a panel."""
    kind = llvm_type(element.summed, lanes)
    code.line(f"store {kind} {value}, ptr {address}, align {element.bytes}")


def copy(target: Target, element: Element) -> Routine:
    """The routine copy: outer x inner elements; a row of dst may be written up to the next whole vector.

    if is = one element:
        if inner = a panel:              each o:  two vectors
        if inner < a vector (masks):     each o:  one masked vector
        else:  each o:  vectors, two at a time;  whole vectors;  the rest, masked or element by element
    else:  each o, i:  store dst, widen(load src)
    """
    code = Routine(target, "copy", "ptr %src, i64 %os, i64 %is, ptr %dst, i64 %ds, i64 %outer, i64 %inner")
    lanes = element.lanes(target)
    unit = code.compare("eq", "%is", str(element.stored_bytes))
    with code.either(code.both(unit, code.compare("eq", "%inner", str(VECTORS * lanes)))) as otherwise:
        with code.times("%outer") as o:
            src, dst = _row(code, o)
            for v in range(VECTORS):
                _prefetch(code, src, v * lanes * element.stored_bytes)
                _move(code, element, src, dst, str(v * lanes))
        next(otherwise)
        mask = _mask(code, code.op(f"and i64 %inner, {lanes - 1}"), lanes)
        narrow = code.both(unit, code.compare("slt", "%inner", str(lanes))) if target.masks else "false"
        with code.either(narrow) as general:
            with code.times("%outer") as o:
                src, dst = _row(code, o)
                if target.masks:
                    _prefetch(code, src, 0)
                    _move_masked(code, element, src, dst, mask)
            next(general)
            _copy_rows(code, element, unit, mask)
    return code


def _row(code: Routine, o: str) -> tuple[str, str]:
    """Row o of the source and of the destination."""
    return code.at("%src", code.mul(o, "%os")), code.at("%dst", code.mul(o, "%ds"))


def _prefetch(code: Routine, src: str, offset: int) -> None:
    """Ask for the line `offset` bytes into the row that is AHEAD of the one at src."""
    where = code.at(src, code.mul("%os", str(AHEAD)), str(offset))
    code.call("llvm.prefetch.p0", "void", [f"ptr {where}", "i32 0", "i32 3", "i32 1"])


def _copy_rows(code: Routine, element: Element, unit: str, mask: str) -> None:
    """The general case of copy."""
    lanes = element.lanes(code.target)
    whole, pairs = (
        code.choose(unit, code.op(f"and i64 %inner, {-step}"), "0") for step in (lanes, VECTORS * lanes)
    )
    rest = code.both(unit, code.compare("slt", whole, "%inner"))
    ones = code.choose(unit, "%inner", "0") if code.target.masks else whole
    with code.times("%outer") as o:
        src, dst = _row(code, o)
        with code.times(pairs, VECTORS * lanes) as i:
            for v in range(VECTORS):
                _move(code, element, src, dst, code.add(i, str(v * lanes)))
        with code.loop(pairs, whole, lanes) as turn:
            _move(code, element, src, dst, turn.index)
        if code.target.masks:
            with code.when(rest):
                from_, to = (
                    code.at(p, code.mul(whole, str(n)))
                    for p, n in ((src, element.stored_bytes), (dst, element.bytes))
                )
                _move_masked(code, element, from_, to, mask)
        with code.loop(ones, "%inner", 1) as turn:
            value = load(code, element, code.at(src, code.mul(turn.index, "%is")), 1)
            store(code, element, value, code.at(dst, code.mul(turn.index, str(element.bytes))), 1)


def _move_masked(code: Routine, element: Element, src: str, dst: str, mask: str) -> None:
    """The lanes of `mask` from src; a whole vector, zero elsewhere, to dst."""
    lanes = element.lanes(code.target)
    kind, memory = stored_type(element, lanes), MEMORY[element.dtype][0]
    name = f"llvm.masked.load.v{lanes}{SUFFIX.get(memory, memory)}.p0"
    raw = code.call(name, kind, [f"ptr {src}", "i32 1", mask, f"{kind} zeroinitializer"])
    store(code, element, widen(code, element, raw, lanes), dst, lanes)


def _move(code: Routine, element: Element, src: str, dst: str, index: str) -> None:
    """One vector, `index` elements into a row."""
    lanes = element.lanes(code.target)
    value = load(code, element, code.at(src, code.mul(index, str(element.stored_bytes))), lanes)
    store(code, element, value, code.at(dst, code.mul(index, str(element.bytes))), lanes)


def _mask(code: Routine, count: str, lanes: int) -> str:
    """lane < count, typed."""
    spread = Memory(code).machine.spread(Value(count, "i64"), lanes)
    iota = ", ".join(f"i64 {n}" for n in range(lanes))
    return f"<{lanes} x i1> {code.op(f'icmp sgt {spread.typed}, <{iota}>')}"


def clear(target: Target, element: Element) -> Routine:
    """The routine clear: zero `bytes` of a panel: past the last column nothing may slow sums down."""
    code = Routine(target, "clear", "ptr %dst, i64 %bytes")
    kind = llvm_type(element.summed, element.lanes(target))
    with code.times("%bytes", target.vector_bits // 8) as at:
        code.line(f"store {kind} zeroinitializer, ptr {code.at('%dst', at)}, align {element.bytes}")
    return code


def turn(target: Target, element: Element) -> Routine:
    """The routine turn: dst[k][c] for depth k's (at least a vector of them) and width columns.

    With L elements in a 128-bit lane and G lanes in a vector, each square of L * G columns and k's, the last
    ones standing over their neighbours:

        row[c] = load src[c][k ..]                        whole vectors: a cache line is read once
        prefetch the same place of the next columns       they lie on other pages
        zip L neighbouring rows inside their lanes:       lane j holds L columns at k = L j + n
        exchange lanes between G such results:            lane g holds columns L g .. at one k
        store dst[k ..][group]

    Columns past the width repeat the last one; their products are never stored.
    """
    code = Routine(target, "turn", "ptr %src, i64 %cs, ptr %dst, i64 %ds, i64 %depth, i64 %width")
    lanes, size, part = element.lanes(target), element.bytes, 16 // element.bytes
    last, top = code.sub("%width", "1"), code.sub("%depth", str(lanes))
    following = code.mul("%cs", str(lanes))
    with code.times("%width", lanes) as group:
        starts = [code.mul(code.minimum(code.add(group, str(n)), last), "%cs") for n in range(lanes)]
        dst = code.at("%dst", code.mul(group, str(size)))
        with code.times("%depth", lanes) as step:
            k = code.minimum(step, top)
            src = code.at("%src", code.mul(k, str(element.stored_bytes)))
            rows = []
            for start in starts:
                address = code.at(src, start)
                rows.append(load(code, element, address, lanes))
                soon = code.at(address, following)
                code.call("llvm.prefetch.p0", "void", [f"ptr {soon}", "i32 0", "i32 3", "i32 1"])
            zipped = [_zip_lanes(code, element, rows[n : n + part], 1) for n in range(0, lanes, part)]
            crossed = [_cross_lanes(code, element, [z[n] for z in zipped]) for n in range(part)]
            into = code.at(dst, code.mul(k, "%ds"))
            for n in range(lanes):
                store(code, element, crossed[n % part][n // part], into, lanes)
                into = code.at(into, "%ds")
    return code


def _shuffle(code: Routine, kind: str, x: str, y: str, mask: list[int]) -> str:
    text = ", ".join(f"i32 {n}" for n in mask)
    return code.op(f"shufflevector {kind} {x}, {kind} {y}, <{len(mask)} x i32> <{text}>")


def _cross_lanes(code: Routine, element: Element, rows: list[str]) -> list[str]:
    """The 128-bit lanes of G vectors of G lanes, transposed: result j holds lane j of every one, in order."""
    width, part, lanes = element.lanes(code.target), 16 // element.bytes, len(rows)
    kind = llvm_type(element.summed, width)

    def pick(x: str, y: str, *chosen: int) -> str:
        return _shuffle(code, kind, x, y, [part * lane + n for lane in chosen for n in range(part)])

    if lanes == 1:
        return rows
    if lanes == 2:
        return [pick(*rows, 0, 2), pick(*rows, 1, 3)]
    halves = [[pick(x, y, *chosen) for x, y in (rows[:2], rows[2:])] for chosen in ((0, 1, 4, 5), (2, 3, 6, 7))]
    return [pick(*pair, *chosen) for pair in halves for chosen in ((0, 2, 4, 6), (1, 3, 5, 7))]


def _zip_lanes(code: Routine, element: Element, rows: list[str], run: int) -> list[str]:
    """Inside each 128-bit lane, zip neighbouring rows `run` elements at a time until a lane holds one k."""
    if len(rows) == 1:
        return rows
    width, part = element.lanes(code.target), 16 // element.bytes
    zipped: list[str] = []
    for half in (0, part // 2):
        pick = [half + n // (2 * run) * run + n % run + width * (n // run % 2) for n in range(part)]
        mask = [base + n for base in range(0, width, part) for n in pick]
        kind = llvm_type(element.summed, width)
        pairs = [_shuffle(code, kind, x, y, mask) for x, y in zip(rows[::2], rows[1::2])]
        zipped += _zip_lanes(code, element, pairs, 2 * run)
    return zipped
