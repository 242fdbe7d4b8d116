"""Loop nests: what a fused group looks like just before it becomes LLVM text.

    nest    := dims operands numbers stores
    dim     := "p" (parallel) | "r" (reduced); all r dims are adjacent in meaning but may stand anywhere
    operand := dtype, mode ("in" | "out" | sum prod max min all any), one stride class per dim: "1" unit,
               "2" every other one (the last dim), "0" not read along it, "s" any
    store   := operand, scalar   -- a scalar built of `load k`, `number k`, `index d` and reductions
                                    over all r dims (sum prod max min argmax argmin all any)

A store whose scalar reads along r dims happens at every point; one that does not (only reductions,
p-level loads, numbers) happens once per p point. Reductions may feed point-level scalars, which may be
reduced again (softmax): the emitter cuts the nest into passes over the r dims.

A store to an operand whose mode is a reduction folds its values down the columns, over the p dim, in the
order of 16 lanes as far as one lane goes (`kiln.codegen.nests.strips`). The operand's row u holds the
accumulators of unit u, then as many elements that only the kernel uses. A nest of `block` 16 over these rows
completes the order.

`load k` reads operand k at the current point, by its strides; `Scalar("load", (i0, i1, ...), type, k)`
reads it at computed i64 positions, one per dim of the operand's own strides (a gather), clamped to be in
range by whoever built the nest (`within`). The type of a load is the compute type of the operand's dtype
(f32 for float16 and bfloat16, i1 for bool); a store takes the compute type and rounds to the dtype.

Units of work: see `Nest.schedule`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kiln.codegen.arguments import Arguments
from kiln.scalars.scalar import REDUCE, WIDTH, Scalar, convert, program_text, select, topological
from kiln.table.kinds import ROUNDED
from kiln.table.order import CHAIN, LANES, REDUCE_BLOCK

NOWHERE = (1 << 63) - 1  # the position of an absent element: every real one is earlier
TURN = convert(Scalar("index", (), "i64", 1) >> 4 & 7, "u8")  # of a product's column: its place in its chain
ROW_ACCUMULATORS = REDUCE_BLOCK // CHAIN  # the block of nests whose elements are a product's chains
TEXTS = 256  # remembered: a pattern is asked for its text by whoever hands it on


class Operand(NamedTuple):
    """One array a nest reads or writes; `strides` holds a class per dim: "1", "2", "0" or "s"."""

    dtype: str  # a kiln dtype name: "float32", "bool", ...
    mode: str  # "in", "out" or the reduction that stores are folded by
    strides: tuple[str, ...]
    part: int = -1  # the number that holds the array's elements where other launches write some of them

    @property
    def folds(self) -> bool:
        """Whether stores are folded into columns."""
        return self.mode in REDUCE


class Nest(NamedTuple):
    """A loop nest; see the module's grammar."""

    dims: tuple[str, ...]
    operands: tuple[Operand, ...]
    numbers: tuple[str, ...]  # "i64" or "f64" each
    stores: tuple[tuple[int, Scalar], ...]
    block: int = REDUCE_BLOCK  # elements reduced by 16 lanes; the results of blocks are added ascending
    small: bool = False  # no output bypasses the caches: none is so large, or it is then written into

    def schedule(self) -> str:
        """How work is cut into units; a function of the pattern alone.

        "flat":    one p dim, no r: a unit is one element (any cut is right, cuts at multiples of 16 are
                   fast).
        "map":     several p dims, no r: a unit is one row, that is one index of all dims but the last.
        "rows":    r dims last in memory: a unit is one p point.
        "columns": the last p dim is unit-stride and the r dims are not: a unit is `column_block()`
                   neighbouring points of the last p dim, at one index of the other p dims.
        "strips":  p r, with stores folded over p: a unit is one lane's rows in one block of REDUCE_BLOCK.
        """
        if "r" not in self.dims:
            return "flat" if len(self.dims) == 1 else "map"
        if any(o.folds for o in self.operands):
            return "strips"
        p = [d for d, role in enumerate(self.dims) if role == "p"]
        r = [d for d, role in enumerate(self.dims) if role == "r"]
        if self.block in (1, ROW_ACCUMULATORS) or not p:
            return "rows"
        direct = [o for o in self.operands if o.mode == "in" and len(o.strides) == len(self.dims)]
        inputs = [o for o in direct if any(o.strides[d] != "0" for d in r)]
        # what only varies along the row costs a gather at most, once per row where lanes are columns
        by_row = sum(o.strides[r[-1]] == "1" and o.strides[p[-1]] != "0" for o in inputs)
        by_column = sum(o.strides[p[-1]] == "1" for o in inputs)
        return "columns" if by_column > by_row else "rows"

    def column_block(self) -> int:
        """The columns of a unit of schedule "columns": fewer where much is stored for each."""
        stack = 160 << 10  # bytes, less than native/base/threads.h asks for
        columns, each = 256, _stored_bytes(self)
        while columns > LANES and columns * each > stack:
            columns //= 2
        return columns

    @property
    def arguments(self) -> Arguments:
        """The kernel's arguments; numbers are int64, or the bits of a double. Where the core launches
        pointwise kernels by itself (native/call/pointwise.cpp), it puts them in the same order.
        """
        strides = {k: range(len(operand.strides)) for k, operand in enumerate(self.operands)}
        dims, numbers = range(len(self.dims)), range(len(self.numbers))
        return Arguments(range(len(self.operands)), size=dims, stride=strides, number=numbers)

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return _text(self)


def _stored_bytes(nest: Nest) -> int:
    """What the "columns" schedule may store of a column: accumulators, chains and results of reductions, and
    values that are computed once per column.
    """
    total = 0
    for node in topological([value for _, value in nest.stores]):
        if node.op in REDUCE:
            accumulators = WIDTH[node.args[0].type] // 8 or 1
            accumulators += 8 if node.op in ("argmax", "argmin") else 0
            total += (LANES + 2) * accumulators
        elif node.args:
            total += WIDTH[node.type] // 8 or 1
    return total


@lru_cache(maxsize=TEXTS)
def _text(nest: Nest) -> str:
    how = "" if nest.block == REDUCE_BLOCK else f" block {nest.block}"
    how += " small" if nest.small else ""
    lines = ["nest " + "".join(nest.dims) + how + " numbers " + " ".join(nest.numbers)]
    for k, o in enumerate(nest.operands):
        part = f" part {o.part}" if o.part >= 0 else ""
        lines.append(f"operand {k} {o.mode} {o.dtype} {''.join(o.strides)}{part}")
    lines.append(program_text([value for _, value in nest.stores]))
    lines.append("stores " + " ".join(str(k) for k, _ in nest.stores))
    return "\n".join(lines)


def moved(nest: Nest) -> Nest:
    """The nest with its elements of 16 bits as integers, if it only chooses among them and zeros: they need
    not become float32 and be rounded again.
    """
    todo = [(value, nest.operands[k].dtype) for k, value in nest.stores if nest.operands[k].dtype in ROUNDED]
    others = [value for k, value in nest.stores if nest.operands[k].dtype not in ROUNDED]
    chosen: dict[Scalar, str] = {}
    while todo:
        node, dtype = todo.pop()
        if chosen.get(node) == dtype:
            continue
        if node in chosen and node.op != "const":  # the same elements are moved and converted
            return nest
        chosen[node] = dtype
        if node.op == "select":
            others.append(node.args[0])
            todo += [(x, dtype) for x in node.args[1:]]
        elif node.op == "round" and node.data == dtype:
            todo.append((node.args[0], dtype))
        elif node.op == "load" and nest.operands[node.data].dtype == dtype:
            others.extend(node.args)
        elif node.op != "const" or node.data:
            return nest
    computed = (x for x in topological(others) if x.op == "load")
    if not chosen or any(nest.operands[x.data].dtype in ROUNDED for x in computed):
        return nest
    bits: dict[Scalar, Scalar] = {}
    for node in topological([value for _, value in nest.stores]):
        if node in chosen:
            args = tuple(bits.get(x, x) for x in node.args)
            bits[node] = args[0] if node.op == "round" else Scalar(node.op, args, "i16", node.data)
    operands = (o._replace(dtype="int16") if o.dtype in ROUNDED else o for o in nest.operands)
    stores = tuple((k, bits.get(value, value)) for k, value in nest.stores)
    return nest._replace(operands=tuple(operands), stores=stores)


def within(position: Scalar, last: Scalar) -> Scalar:
    """The position of a computed load, kept in range: between 0 and `last`."""
    below = select(position.__gt__(last), last, position)
    return select(below.__lt__(0), 0, below)


def reductions(nest: Nest) -> list[Scalar]:
    """The reductions of a nest, each before those that depend on it."""
    return [s for s in topological([value for _, value in nest.stores]) if s.op in REDUCE]
