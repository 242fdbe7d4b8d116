"""Packing: copying a block of A or B into memory of the thread, in the order and the type a tile reads.

    copy       dst[o][i] = src[o * os + i * is]     rows of vectors where is = 1, elements otherwise
    transpose  dst[k][c] = src[c * cs + k]          in registers, a 128-bit lane of k at a time
    zeros      dst[..] = 0

Strides of the source are bytes; the panel's elements have the summed type. Neither reads past the block.
`transpose` wants 16 bytes of k at least: it begins the last ones earlier, over those before.
"""

from __future__ import annotations

from kiln.codegen.gemm.element import Element
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.masked import lanes_below, load_masked, store_masked
from kiln.codegen.ir.memory import MEMORY, Memory
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import LLVM, Value, llvm_type
from kiln.codegen.target import Target

AHEAD = 16  # rows: they lie on different pages, where the machine does not prefetch by itself


def widen(code: Routine, element: Element, raw: str, lanes: int) -> str:
    """`lanes` raw elements from memory as the summed type."""
    memory = Memory(code)
    return memory.machine.convert(memory.decode(raw, element.dtype, lanes), element.summed).text


def load(code: Routine, element: Element, address: Pointer, lanes: int) -> str:
    """`lanes` neighbouring elements in memory as the summed type."""
    return widen(code, element, address.load(stored_type(element, lanes), 1), lanes)


def stored_type(element: Element, lanes: int) -> str:
    """The LLVM type of `lanes` elements in memory."""
    kind = MEMORY[element.dtype][0]
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def store(code: Routine, element: Element, value: str, address: Pointer, lanes: int) -> None:
    """Store summed elements into a panel."""
    kind = llvm_type(element.summed, lanes)
    address.store(f"{kind} {value}", element.bytes)


def copy(target: Target, element: Element) -> Routine:
    """The routine copy: outer x inner elements; a row of dst may be written up to the next whole vector.

    if is = one element:
        if inner is some panels:         each o:  two vectors to every panel; those lie `ps` bytes apart
        if inner < a vector (masks):     each o:  one masked vector
        else:  each o:  vectors, two at a time;  whole vectors;  the rest, masked or element by element
    else:  each o, i:  store dst, widen(load src)
    """
    params = "ptr %src, i64 %os, i64 %is, ptr %dst, i64 %ds, i64 %ps, i64 %outer, i64 %inner"
    code = Routine(target, "copy", params)
    is_, ps, outer, inner = code.indices("is", "ps", "outer", "inner")
    lanes, panel = element.lanes(target), element.panel(target)
    unit = is_.equals(element.stored_bytes)
    panels = (inner & (panel - 1)).equals(0)
    with code.either(unit & panels) as otherwise:
        with code.times(outer) as o:
            row, into = _row(code, o)
            with code.loop(0, inner, panel, [code.index(0)]) as turn:
                src = row[turn.index * element.stored_bytes]
                (place,) = turn.indices
                for v in range(code.target.fma.vectors):
                    _prefetch(code, src, v * lanes * element.stored_bytes)
                    _move(code, element, src, into[place], code.index(v * lanes))
                turn.next = [place + ps]
        next(otherwise)
        mask = lanes_below(code, inner & (lanes - 1), lanes)
        narrow = unit & (inner < lanes) if target.masks else code.condition(False)
        with code.either(narrow) as general:
            with code.times(outer) as o:
                src, dst = _row(code, o)
                if target.masks:
                    _prefetch(code, src, 0)
                    _move_masked(code, element, src, dst, mask)
            next(general)
            _copy_rows(code, element, unit, mask)
    return code


def _row(code: Routine, o: Index) -> tuple[Pointer, Pointer]:
    """Row o of the source and of the destination."""
    src, dst = code.pointers("src", "dst")
    os, ds = code.indices("os", "ds")
    return src[o * os], dst[o * ds]


def _prefetch(code: Routine, src: Pointer, offset: int) -> None:
    """Ask for the line `offset` bytes into the row that is AHEAD of the one at src."""
    os = code.index("%os")
    where = src[os * AHEAD, offset]
    code.prefetch(where)


def _copy_rows(code: Routine, element: Element, unit: Condition, mask: Value) -> None:
    """The general case of copy."""
    is_, outer, inner = code.indices("is", "outer", "inner")
    lanes, panel = element.lanes(code.target), element.panel(code.target)
    whole, pairs = (unit.choose(inner & -step, 0) for step in (lanes, panel))
    rest = unit & (whole < inner)
    ones = unit.choose(inner, 0) if code.target.masks else whole
    with code.times(outer) as o:
        src, dst = _row(code, o)
        with code.times(pairs, panel) as i:
            for v in range(code.target.fma.vectors):
                _move(code, element, src, dst, i + v * lanes)
        with code.loop(pairs, whole, lanes) as turn:
            _move(code, element, src, dst, turn.index)
        if code.target.masks:
            with code.when(rest):
                from_, to = (p[whole * n] for p, n in ((src, element.stored_bytes), (dst, element.bytes)))
                _move_masked(code, element, from_, to, mask)
        with code.loop(ones, inner, 1) as turn:
            value = load(code, element, src[turn.index * is_], 1)
            store(code, element, value, dst[turn.index * element.bytes], 1)


def _move_masked(code: Routine, element: Element, src: Pointer, dst: Pointer, mask: Value) -> None:
    """The lanes of `mask` from src; a whole vector, zero elsewhere, to dst."""
    lanes = element.lanes(code.target)
    raw = load_masked(code, MEMORY[element.dtype][0], src, mask)
    store(code, element, widen(code, element, raw, lanes), dst, lanes)


def _move(code: Routine, element: Element, src: Pointer, dst: Pointer, index: Index) -> None:
    """One vector, `index` elements into a row."""
    lanes = element.lanes(code.target)
    value = load(code, element, src[index * element.stored_bytes], lanes)
    store(code, element, value, dst[index * element.bytes], lanes)


def clear(code: Routine, dst: Pointer, bytes: Integer) -> None:
    """Zeros in `bytes` of a panel: past the last column nothing may slow sums down."""
    code.run("zeros", dst, bytes)


def zeros(target: Target, element: Element) -> Routine:
    """The routine zeros: whole vectors of them."""
    code = Routine(target, "zeros", "ptr %dst, i64 %bytes")
    dst = code.pointer("%dst")
    bytes = code.index("%bytes")
    kind = llvm_type(element.summed, element.lanes(target))
    with code.times(bytes, target.vector_bits // 8) as at:
        dst[at].store(f"{kind} zeroinitializer", element.bytes)
    return code


def transpose(target: Target, element: Element) -> Routine:
    """The routine transpose: dst[k][c] for depth k's (at least one lane of them) and width columns.

    With L elements in a 128-bit lane and G lanes in a vector:

        each group of L * G columns:  each L of k, the last ones standing over their neighbours:
            j < L:  row[j] = L elements of columns j, L + j, 2 L + j ... side by side, from k on
            interleave the rows inside their lanes until row[n] holds k + n of all the group's columns
            n < L:  store dst[k + n][group], row[n]

    Columns past the width are not written, or, without masks, repeat the last one.
    """
    code = Routine(target, "transpose", "ptr %src, i64 %cs, ptr %dst, i64 %ds, i64 %depth, i64 %width")
    columns, panel = code.pointers("src", "dst")
    ds, cs, depth, width = code.indices("ds", "cs", "depth", "width")
    lanes, size, part = element.lanes(target), element.bytes, 16 // element.bytes
    last, top = width - 1, depth - part
    with code.times(width, lanes) as group:
        starts = [(group + n).min(last) * cs for n in range(lanes)]
        dst = panel[group * size]
        inside = lanes_below(code, width - group, lanes) if target.masks else None
        with code.times(depth, part) as step:
            k = step.min(top)
            src = columns[k * element.stored_bytes]
            pieces = [src[start].load(stored_type(element, part), 1) for start in starts]
            rows = [
                widen(code, element, side_by_side(code, element, pieces[j::part]), lanes) for j in range(part)
            ]
            into = dst[k * ds]
            for value in interleave(code, element, rows, lanes):
                if inside is None:
                    store(code, element, value, into, lanes)
                else:
                    store_masked(code, LLVM[element.summed], value, into, inside)
                into = into[ds]
    return code


def shuffle(code: Routine, kind: str, x: str, y: str, mask: list[int]) -> str:
    """Elements of two vectors of a type, by number."""
    text = ", ".join(f"i32 {n}" for n in mask)
    return code.op(f"shufflevector {kind} {x}, {kind} {y}, <{len(mask)} x i32> <{text}>")


def side_by_side(code: Routine, element: Element, pieces: list[str]) -> str:
    """The concatenation of a power of two of raw pieces."""
    count = 16 // element.bytes
    while len(pieces) > 1:
        kind, joined = stored_type(element, count), list(range(2 * count))
        pieces = [shuffle(code, kind, x, y, joined) for x, y in zip(pieces[::2], pieces[1::2])]
        count *= 2
    return pieces[0]


def interleave(code: Routine, element: Element, rows: list[str], width: int, run: int = 1) -> list[str]:
    """Inside each 128-bit lane, interleave neighbouring rows `run` elements at a time until a lane holds one
    k.
    """
    if len(rows) == 1:
        return rows
    part = 16 // element.bytes
    found: list[str] = []
    for half in (0, part // 2):
        pick = [half + n // (2 * run) * run + n % run + width * (n // run % 2) for n in range(part)]
        mask = [base + n for base in range(0, width, part) for n in pick]
        kind = llvm_type(element.summed, width)
        pairs = [shuffle(code, kind, x, y, mask) for x, y in zip(rows[::2], rows[1::2])]
        found += interleave(code, element, pairs, width, 2 * run)
    return found


def turned(code: Routine, element: Element, rows: list[str]) -> list[str]:
    """A square of summed elements, as many rows as there are lanes, transposed."""
    lanes, part = len(rows), 16 // element.bytes
    strips = [interleave(code, element, rows[r : r + part], lanes) for r in range(0, lanes, part)]
    after = code.label()  # LLVM looks at the shuffles of a block all together, for long
    code.jump(after)
    code.begin(after)
    columns = [_by_piece(code, element, [strip[n] for strip in strips], lanes) for n in range(part)]
    return [columns[n % part][n // part] for n in range(lanes)]


def _by_piece(code: Routine, element: Element, vectors: list[str], lanes: int) -> list[str]:
    """The first 128-bit lanes of all vectors side by side, the second ones, and so on: as many as vectors."""
    if len(vectors) == 1:
        return vectors
    part, kind = 16 // element.bytes, llvm_type(element.summed, lanes)
    halves = []
    for which in (0, 1):
        mask = [n for n in range(2 * lanes) if n // part % 2 == which]
        joined = [shuffle(code, kind, x, y, mask) for x, y in zip(vectors[::2], vectors[1::2])]
        halves.append(_by_piece(code, element, joined, lanes))
    return [vector for pair in zip(*halves) for vector in pair]
