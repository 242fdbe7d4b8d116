"""The frame of attention's drivers: arguments, units of work, what both do with operands.

forward, a unit: UNIT_ROWS queries of one head, in blocks
gradients, a unit: a head and all queries of its group; a head alone is two, each with part of the keys
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.attention.spec import DIMS, SIZES, UNIT_ROWS, AttentionSpec, Drop
from kiln.codegen.gemm.element import Element
from kiln.codegen.ir.emit import Expression
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer, Variable
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import LLVM, Value
from kiln.codegen.target import Target
from kiln.scalars.scalar import Scalar


class Rows(NamedTuple):
    """Rows of a region or an operand: where they begin, bytes from one to the next."""

    place: Pointer
    pitch: Index


class Block(NamedTuple):
    """Some queries: their head, the member of its group, the first, how many."""

    head: Index
    member: Index
    row: Index
    rows: Index


class AttentionDriver:
    """The routine kernel under construction; strides in bytes."""

    rows: int  # of a block of queries, forward
    rows_back: int  # and of gradients
    keys: int  # the keys of a head that are cut in two are multiples of it

    def __init__(self, spec: AttentionSpec, target: Target, element: Element) -> None:
        self.spec, self.element, self.target = spec, element, target
        self.code = code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", quick=True)
        self.places = places = spec.arguments
        self.size = {name: code.argument(places.word("size", name)) for name in SIZES}
        memory = code.operand(places.pointer("memory"))
        self.region = {
            name: memory[code.argument(places.word("region", name)) * element.bytes]
            for name in spec.regions(dict.fromkeys(SIZES, 0))
        }
        self.base = {name: code.operand(places.pointer(name)) for name in spec.operands}
        self.stride = {
            name: [code.argument(places.word("stride", name, d)) * self._bytes_of(name) for d in DIMS]
            for name in spec.operands
        }
        self.kind = kind = LLVM[element.summed]
        self.scale = self._number(spec.scale, element.summed)
        self.one = code.slot(kind, 2)
        self.one.store(self.scale.typed)
        self.one.element(kind, 1).store(f"{kind} 1.0")
        self.unit_factor = self.one.element(kind, 1)
        self.factor = (
            self._number(spec.drop.factor, element.summed) if spec.drop else Value("1.0", element.summed)
        )

    def _bytes_of(self, name: str) -> int:
        dtype = self.spec.mask.dtype if name == "m" and self.spec.mask else self.spec.dtype
        return Element(dtype, "", "").stored_bytes

    def _number(self, value: Scalar, type: str) -> Value:
        """A number the kernel is given, or what is computed of such."""

        def number(node: Scalar) -> Value:
            return self.code.number(self.places.word("number", node.data), self.spec.numbers[node.data])

        scope = Expression(self.code, number)
        return scope.machine.convert(scope.value(value), type)

    # -- what a driver writes -----------------------------------------------------------------------

    def pack_head(self, head: Index) -> None:
        """The head's keys and values as the products read them."""
        raise NotImplementedError

    def forward(self, block: Block) -> None:
        """A block of queries."""
        raise NotImplementedError

    def clear_sums(self, low: Index, high: Index) -> None:
        """The gradients of some keys before the first block of queries."""
        raise NotImplementedError

    def backward(self, block: Block, low: Index, high: Index, mine: Condition) -> None:
        """A block of queries: its own gradient, if it is `mine`, and what it adds to those of some keys."""
        raise NotImplementedError

    def deliver_sums(self, head: Index, low: Index, high: Index) -> None:
        """The gradients of some keys after the last block of queries."""
        raise NotImplementedError

    # -- units --------------------------------------------------------------------------------------

    def write(self) -> Routine:
        """Units, in order of n, h, r, rows."""
        code = self.code
        begin, end = code.indices("begin", "end")
        if self.spec.backward:
            alone = (self.size["n"] * self.size["h"]).equals(1)
            first, last = begin.equals(0), end.equals(2)
            with code.either(alone) as several:
                self._head(code.index(0), first, last)
                next(several)
                with code.loop(begin, end, 1) as turn:
                    self._head(turn.index, code.condition(True), code.condition(True))
            return code
        head = code.variable(-1)
        with code.loop(begin, end, 1) as turn:
            self._unit(turn.index, head)
        return code

    def _unit(self, unit: Index, head: Variable) -> None:
        """Some blocks of queries of one head; `head` is the one whose keys are packed."""
        code, size = self.code, self.size
        index, group = divmod(unit, size["l"].ceil_div(UNIT_ROWS))
        index, r = divmod(index, size["r"])
        with code.when(index.differs(head.get())):
            self.pack_head(index)
            head.set(index)
        start = group * UNIT_ROWS
        end = size["l"].min(start + UNIT_ROWS)
        with code.loop(start, end, self.rows) as turn:
            rows = (end - turn.index).min(self.rows)
            self.forward(Block(index, r, turn.index, rows))

    def _head(self, head: Index, first: Condition, last: Condition) -> None:
        """The gradients of a head: of the `first` part of its keys, the `last` one or both, and of queries.

        The softmax is one of whole rows, so whoever has a part computes scores of all keys. Of a causal head
        the last part is larger: it is met by the queries from its first key on alone.
        """
        code, size = self.code, self.size
        self.pack_head(head)
        eighths = 3 if self.spec.causal else 4
        cut = size["s"] * eighths // (8 * self.keys)
        cut = cut * self.keys
        low, high = first.choose(0, cut), last.choose(size["s"], cut)
        edge = cut if self.spec.causal else size["l"] // 2
        self.clear_sums(low, high)
        with code.times(size["r"]) as r, code.times(size["l"], self.rows_back) as row:
            rows = (size["l"] - row).min(self.rows_back)
            late = row + rows > edge
            mine = late.choose(last, first)
            needed, sums = code.condition(True), set(self.spec.gives) - {"q"}
            if self.spec.causal or not sums:  # later keys see none of the early queries
                needed = mine | first if sums else mine
            with code.when(needed):
                self.backward(Block(head, r, row, rows), low, high, mine)
        self.deliver_sums(head, low, high)

    # -- operands -----------------------------------------------------------------------------------

    def rows_of(self, name: str, head: Index, r: Integer = 0, row: Integer = 0) -> Rows:
        """Rows of an operand, from one on."""
        stride = self.stride[name]
        n, h = divmod(head, self.size["h"])
        steps = (i * s for i, s in zip((n, h, r, row), stride))
        return Rows(self.base[name][*steps], stride[3])

    def mask_of(self, block: Block, key: Integer = 0) -> tuple[Pointer, Integer, Integer]:
        """The mask of some queries from a key on: where it lies, its strides."""
        if self.spec.mask is None:
            return self.code.pointer("null"), 0, 0
        rows, step = self.rows_of("m", *block[:3]), self.stride["m"][4]
        return rows.place[key * step], rows.pitch, step

    def visible(self, block: Block) -> Index:
        """How many keys the queries of a block look at."""
        if not self.spec.causal:
            return self.size["s"]
        return self.size["s"].min(block.row + block.rows)

    def draw(
        self, drop: Drop, block: Block, key: Integer, columns: Index, kept: tuple[Pointer, Integer]
    ) -> None:
        """Which weights of some queries are kept, from a key on; where their bits go, and rows' distance."""
        code, keys = self.code, self.size["s"]
        query = block.head * self.size["r"] + block.member
        query = query * self.size["l"] + block.row
        first = code.index(self._number(drop.position, "i64")) + query * keys + key
        code.run(
            "draw", *kept, block.rows, columns, first, keys, self._number(drop.seed, "i64"),
            self._number(drop.chance, "f32"),
        )  # fmt: skip

    def deliver(self, src: Rows, dst: Rows, rows: Index, width: str, factors: tuple[Pointer, int]) -> None:
        """Sums to an output, times a factor for each row or for all."""
        self.code.run(
            "deliver", src.place, src.pitch, dst.place, dst.pitch, rows, self.size[width],
            *factors,
        )  # fmt: skip
