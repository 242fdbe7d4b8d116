"""The frame of attention's drivers: arguments, units of work, what both do with operands.

forward, a unit: UNIT_BLOCKS blocks of queries of one head
gradients, a unit: a head and all queries of its group; a head alone is two, each with part of the keys
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.attention_rows import KEPT_BYTES
from kiln.codegen.attention_spec import DIMS, PAD, SIZES, UNIT_ROWS, AttentionSpec, Drop
from kiln.codegen.code import LANES
from kiln.codegen.emit import Expression
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import Element
from kiln.codegen.target import Target
from kiln.codegen.value import LLVM, Value
from kiln.scalars.scalar import Scalar


class Rows(NamedTuple):
    """Rows of a region or an operand: where they begin, bytes from one to the next."""

    place: str
    pitch: str


class Block(NamedTuple):
    """Some queries: their head, the member of its group, the first, how many."""

    head: str
    member: str
    row: str
    rows: str


class Driver:
    """The routine kernel under construction; strides in bytes."""

    rows: int  # of a block of queries, forward
    rows_back: int  # and of gradients
    keys: int  # the keys of a head that are cut in two are multiples of it

    def __init__(self, spec: AttentionSpec, target: Target, element: Element) -> None:
        self.spec, self.element, self.target = spec, element, target
        self.code = code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", quick=True)
        self.size = {name: self._argument(k) for k, name in enumerate(SIZES)}
        names = list(spec.regions(dict.fromkeys(SIZES, 0)))
        first = len(SIZES)
        memory = self._pointer(len(spec.operands))
        self.region = {
            name: code.at(memory, code.mul(self._argument(first + k), str(element.bytes)))
            for k, name in enumerate(names)
        }
        first += len(names)
        self.base = {name: self._pointer(k) for k, name in enumerate(spec.operands)}
        self.stride = {
            name: [code.mul(self._argument(first + DIMS * k + d), self._bytes_of(name)) for d in range(DIMS)]
            for k, name in enumerate(spec.operands)
        }
        self.numbers = first + DIMS * len(spec.operands)
        self.kind = kind = LLVM[element.summed]
        self.scale = self._number(spec.scale, element.summed)
        self.one = code.slot(kind, 2)
        code.line(f"store {kind} {self.scale}, ptr {self.one}")
        code.line(f"store {kind} 1.0, ptr {code.offset(self.one, kind, '1')}")
        self.unit_factor = code.offset(self.one, kind, "1")
        self.factor = self._number(spec.drop.factor, element.summed) if spec.drop else "1.0"

    def _bytes_of(self, name: str) -> str:
        dtype = self.spec.mask.dtype if name == "m" and self.spec.mask else self.spec.dtype
        return str(Element(dtype, "", "").stored_bytes)

    def _argument(self, place: int, type: str = "i64") -> str:
        return self.code.op(f"load {type}, ptr {self.code.offset('%arg', 'i64', str(place))}")

    def _pointer(self, place: int) -> str:
        return self.code.op(f"load ptr, ptr {self.code.offset('%ptr', 'ptr', str(place))}")

    def _number(self, value: Scalar, type: str) -> str:
        """A number the kernel is given, or what is computed of such."""

        def number(node: Scalar) -> Value:
            kind = self.spec.numbers[node.data]
            return Value(self._argument(self.numbers + node.data, "double" if kind == "f64" else "i64"), kind)

        scope = Expression(self.code, number)
        return scope.machine.convert(scope.value(value), type).text

    # -- what a driver writes -----------------------------------------------------------------------

    def pack_head(self, head: str) -> None:
        """The head's keys and values as the products read them."""
        raise NotImplementedError

    def forward(self, block: Block) -> None:
        """A block of queries."""
        raise NotImplementedError

    def clear_sums(self, low: str, high: str) -> None:
        """The gradients of some keys before the first block of queries."""
        raise NotImplementedError

    def backward(self, block: Block, low: str, high: str, mine: str) -> None:
        """A block of queries: its own gradient, if it is `mine`, and what it adds to those of some keys."""
        raise NotImplementedError

    def deliver_sums(self, head: str, low: str, high: str) -> None:
        """The gradients of some keys after the last block of queries."""
        raise NotImplementedError

    # -- units --------------------------------------------------------------------------------------

    def write(self) -> Routine:
        """Units, in order of n, h, r, rows."""
        code = self.code
        if self.spec.backward:
            alone = code.compare("eq", code.mul(self.size["n"], self.size["h"]), "1")
            first, last = code.compare("eq", "%begin", "0"), code.compare("eq", "%end", "2")
            with code.either(alone) as several:
                self._head("0", first, last)
                next(several)
                with code.loop("%begin", "%end", 1) as turn:
                    self._head(turn.index, "true", "true")
            return code
        head = code.variable("-1")
        with code.loop("%begin", "%end", 1) as turn:
            self._unit(turn.index, head)
        return code

    def _unit(self, unit: str, head: str) -> None:
        """Some blocks of queries of one head; `head` is the one whose keys are packed."""
        code, size = self.code, self.size
        index, group = self._divide(unit, code.ceil_div(size["l"], UNIT_ROWS))
        index, r = self._divide(index, size["r"])
        with code.when(code.compare("ne", index, code.get(head))):
            self.pack_head(index)
            code.set(head, index)
        start = code.mul(group, str(UNIT_ROWS))
        end = code.minimum(size["l"], code.add(start, str(UNIT_ROWS)))
        with code.loop(start, end, self.rows) as turn:
            rows = code.minimum(code.sub(end, turn.index), str(self.rows))
            self.forward(Block(index, r, turn.index, rows))

    def _head(self, head: str, first: str, last: str) -> None:
        """The gradients of a head: of the `first` part of its keys, the `last` one or both, and of queries.

        The softmax is one of whole rows, so whoever has a part computes scores of all keys. Of a causal head
        the last part is larger: it is met by the queries from its first key on alone.
        """
        code, size = self.code, self.size
        self.pack_head(head)
        eighths = "3" if self.spec.causal else "4"
        cut = code.op(f"sdiv i64 {code.mul(size['s'], eighths)}, {8 * self.keys}")
        cut = code.mul(cut, str(self.keys))
        low, high = code.choose(first, "0", cut), code.choose(last, size["s"], cut)
        edge = cut if self.spec.causal else code.op(f"sdiv i64 {size['l']}, 2")
        self.clear_sums(low, high)
        with code.times(size["r"]) as r, code.times(size["l"], self.rows_back) as row:
            rows = code.minimum(code.sub(size["l"], row), str(self.rows_back))
            late = code.compare("sgt", code.add(row, rows), edge)
            mine = code.choose(late, last, first, "i1")
            needed, sums = "true", set(self.spec.gives) - {"q"}
            if self.spec.causal or not sums:  # later keys see none of the early queries
                needed = code.op(f"or i1 {mine}, {first}") if sums else mine
            with code.when(needed):
                self.backward(Block(head, r, row, rows), low, high, mine)
        self.deliver_sums(head, low, high)

    # -- operands -----------------------------------------------------------------------------------

    def _divide(self, x: str, y: str) -> tuple[str, str]:
        quotient = self.code.op(f"sdiv i64 {x}, {y}")
        return quotient, self.code.sub(x, self.code.mul(quotient, y))

    def rows_of(self, name: str, head: str, r: str = "0", row: str = "0") -> Rows:
        """Rows of an operand, from one on."""
        code, stride = self.code, self.stride[name]
        n, h = self._divide(head, self.size["h"])
        steps = (code.mul(i, s) for i, s in zip((n, h, r, row), stride))
        return Rows(code.at(self.base[name], *steps), stride[3])

    def mask_of(self, block: Block, key: str = "0") -> tuple[str, str, str]:
        """The mask of some queries from a key on: where it lies, its strides."""
        if self.spec.mask is None:
            return "ptr null", "0", "0"
        rows, step = self.rows_of("m", *block[:3]), self.stride["m"][4]
        return f"ptr {self.code.at(rows.place, self.code.mul(key, step))}", rows.pitch, step

    def visible(self, block: Block) -> str:
        """How many keys the queries of a block look at."""
        if not self.spec.causal:
            return self.size["s"]
        return self.code.minimum(self.size["s"], self.code.add(block.row, block.rows))

    def padded(self, columns: str) -> str:
        """Columns in whole panels."""
        return self.code.mul(self.code.ceil_div(columns, PAD), str(PAD))

    def draw(self, drop: Drop, block: Block, key: str, columns: str, kept: tuple[str, str]) -> None:
        """Which weights of some queries are kept, from a key on; where their bits go, and rows' distance."""
        code, keys = self.code, self.size["s"]
        query = code.add(code.mul(block.head, self.size["r"]), block.member)
        query = code.add(code.mul(query, self.size["l"]), block.row)
        first = code.add(code.add(self._number(drop.position, "i64"), code.mul(query, keys)), key)
        code.run(
            "draw", *kept, block.rows, columns, first, keys, self._number(drop.seed, "i64"),
            f"float {self._number(drop.chance, 'f32')}",
        )  # fmt: skip

    def deliver(self, src: Rows, dst: Rows, rows: str, width: str, factors: tuple[str, str]) -> None:
        """Sums to an output, times a factor for each row or for all."""
        self.code.run(
            "deliver", f"ptr {src.place}", src.pitch, f"ptr {dst.place}", dst.pitch, rows, self.size[width],
            *factors,
        )  # fmt: skip


def kept_bytes(columns: int) -> int:
    """The bytes of the bits of so many columns."""
    return columns * KEPT_BYTES // LANES
