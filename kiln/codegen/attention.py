"""Attention: what its kernels are, and their LLVM text.

    out = softmax(q k^T * scale + mask) v          for every batch index n, head h, member r of its group

    query [n, l, h, r, e]     key [n, s, h, e]     value [n, s, h, v]     mask [n, h, r, l, s]

A block of ROWS (48) queries meets all keys at once: its scores lie in memory of the thread's own. So a
softmax is one of whole rows, and a kernel computes what the products and reductions written out do, bit by
bit:

    forward, a unit: UNIT_BLOCKS blocks of queries of one head
        each block:   S = q k^T;  weigh S;  sums = S v;  out = sums / sum of the weights
    gradients, a unit: a head and all queries of its group; a head alone is two, each with part of the keys
        each block:   S = q k^T, D = g v^T;  weigh S;  slopes: S becomes p, D becomes dS
                      dq = dS k * scale;  dk += dS^T q;  dv += p^T g
        dk * scale, dv

With dropout the block draws, in both, one bit per weight: a position's number is a function of seed and
position alone (ops/scalars/philox.py). The weights are divided by their sum before they meet the values then,
as dropout of a softmax is written.

The sums over queries are of a documented order of their own: one FMA chain over the rows of a block, blocks
added ascending, then members of the group. Nothing depends on how many threads run. Of a causal block keys
beyond its last query are left out: their weights are 0, and so they add nothing to a sum of finite numbers.
(To one of infinities or NaN they would add NaN; here they do not.)

Keys and values are packed once per head, into panels that a tile reads (matmul_tile.py), and the block's rows
too (values that one block of queries meets are read where they lie, if they can be); every product is the
routine multiply.

Kernel arguments: `ptr` = the operands, then the thread's own memory, of `regions`; `arg` = the sizes n h r l
s e v, where each region begins, for every operand its strides (in elements) along (n, h, r, row, column), the
numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from kiln.codegen.attention_rows import KEPT_BYTES, Mask, deliver, draw, slopes, thin, weigh
from kiln.codegen.code import LANES, LLVM, Value
from kiln.codegen.compile import Part
from kiln.codegen.emit import Expression
from kiln.codegen.matmul import chains, product
from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_text import Routine, own_parts
from kiln.codegen.matmul_tile import SEGMENT, VECTORS, Element, element_of, identity
from kiln.codegen.nest import TEXTS
from kiln.codegen.target import Target
from kiln.ops.kinds import ATTENTION_ROWS as ROWS
from kiln.ops.scalar import LEAVES, Scalar, program_text, select, topological

UNIT_BLOCKS = 4  # blocks of a unit: packed keys are used as often
UNIT_ROWS = ROWS * UNIT_BLOCKS
PAD = 32  # columns of every region are a multiple of this, the most a panel has
PITCH = 16  # further elements of its rows, so that they fall into different cache sets
SIZES = ("n", "h", "r", "l", "s", "e", "v")
DIMS = 5  # strides of an operand: n, h, r, row, column


class Drop(NamedTuple):
    """Dropout: the probability (f64), the position of the first weight and the seed (i64), of numbers."""

    chance: Scalar
    position: Scalar
    seed: Scalar

    @property
    def factor(self) -> Scalar:
        """What is kept is multiplied by it; where nothing is kept, 0."""
        return select(self.chance < 1.0, 1.0 / (1.0 - self.chance), 0.0)


class AttentionSpec(NamedTuple):
    """The pattern of an attention kernel: what is given, what it gives, how scores are made."""

    dtype: str  # of all operands but the mask
    mask: Mask | None
    causal: bool
    gives: str  # "o", or of the gradients of query, key and value those that are wanted: "qkv"
    scale: Scalar  # of numbers
    drop: Drop | None
    numbers: tuple[str, ...]  # "i64" or "f64" each

    @property
    def backward(self) -> bool:
        """Whether gradients are computed."""
        return self.gives != "o"

    @property
    def operands(self) -> str:
        """The operands in order: g q k v mask, then what is given, in capitals."""
        return ("g" if self.backward else "") + "qkv" + ("m" if self.mask else "") + self.gives.upper()

    @property
    def scalars(self) -> list[Scalar]:
        """What is computed of the numbers."""
        return [self.scale, *(self.drop or ())]

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return _text(self)

    def units(self, sizes: dict[str, Any]) -> Any:
        """The units of work of a launch, on ints or symbolic sizes."""
        heads = sizes["n"] * sizes["h"]
        if self.backward:
            return heads + 2 * heads // (
                heads * heads + 1
            )  # the quotient is 1 of one head, 0 of more: one is cut in two
        return heads * sizes["r"] * ((sizes["l"] + UNIT_ROWS - 1) // UNIT_ROWS)

    def regions(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """The regions of a thread's own memory and their sizes in summed elements."""
        keys, e, v = (_padded(sizes[name]) for name in "sev")
        found = {
            "kt": keys * sizes["e"], "query": (e + PITCH) * ROWS, "weights": (keys + PITCH) * ROWS,
            "sums": (v + e + PITCH) * ROWS, "shares": ROWS,
        }  # fmt: skip
        if self.drop is not None:
            found["kept"] = keys // PAD * ROWS
        if not self.backward:
            return {**found, "value": (v + PITCH) * sizes["s"]}
        return {
            **found, "vt": keys * sizes["v"], "key": (e + PITCH) * sizes["s"], "grad": (v + PITCH) * ROWS,
            "slopes": (keys + PITCH) * ROWS, "dk": (e + PITCH) * sizes["s"], "dv": (v + PITCH) * sizes["s"],
        }  # fmt: skip


def _padded(size: Any) -> Any:
    return (size + (PAD - 1)) // PAD * PAD


@lru_cache(maxsize=TEXTS)
def _text(spec: AttentionSpec) -> str:
    mask = " ".join(spec.mask) if spec.mask else "none"
    return "\n".join([
        f"attention {spec.dtype} gives {spec.gives} {'causal' if spec.causal else 'whole'} mask {mask}",
        f"numbers {' '.join(spec.numbers)}".rstrip(),
        program_text(spec.scalars),
    ])  # fmt: skip


def attention_parts(spec: AttentionSpec, target: Target) -> list[Part]:
    """The parts of the kernel: its own, and those that products of such factors share."""
    _verify(spec)
    element = element_of(spec.dtype)
    routines = [
        weigh(target, element, spec.mask, spec.causal), deliver(target, element), multiply(target, element),
        *([slopes(target, element, spec.drop is not None)] if spec.backward else []),
        *([draw(target, element)] if spec.drop is not None else []),
        *([thin(target, element)] if spec.drop is not None and not spec.backward else []),
        _Driver(spec, target, element).write(),
    ]  # fmt: skip
    return own_parts(target, routines, [identity(target, element)]) + chains(product(spec.dtype), target)


def _verify(spec: AttentionSpec) -> None:
    wrong = [n.op for n in topological(spec.scalars) if n.op in LEAVES and n.op not in ("number", "const")]
    if wrong or not set(spec.gives) <= set("qkv" if spec.backward else "o"):
        raise ValueError(f"attention: gives {spec.gives!r}, scale of {wrong}")


def multiply(target: Target, element: Element) -> Routine:
    """The routine multiply: c = a b, or c + a b, by tiles; c's columns are written to whole panels.

    each panel of columns:  each segment of depth:  tiles of all rows
    """
    params = "ptr %a, i64 %rs, i64 %ks, ptr %b, i64 %bp, i64 %bs, ptr %c, i64 %cs, i64 %depth, i64 %rows,"
    code = Routine(target, "multiply", params + " i64 %columns, i1 %fresh")
    lanes = element.lanes(target)
    panel = VECTORS * lanes
    with code.when(code.both(code.compare("eq", "%depth", "0"), "%fresh")):
        with code.times("%rows") as r:
            clear(code, element, code.at("%c", code.mul(r, "%cs")), _bytes(code, element, "%columns", panel))
    with code.times("%columns", panel) as column:
        b = code.at("%b", code.mul(code.op(f"sdiv i64 {column}, {panel}"), "%bp"))
        narrow = code.compare("sle", code.sub("%columns", column), str(lanes))
        c = code.at("%c", code.mul(column, str(element.bytes)))
        with code.times("%depth", SEGMENT) as k:
            depth = code.minimum(code.sub("%depth", k), str(SEGMENT))
            first = code.both(code.compare("eq", k, "0"), "%fresh")
            here = code.at("%a", code.mul(k, "%ks"))
            there = code.at(b, code.mul(k, "%bs"))
            code.run(
                "tile", f"ptr {here}", "%rs", "%ks", f"ptr {there}", "%bs", f"ptr {c}", "%cs",
                f"ptr {code.choose(first, '@nothing', c, 'ptr')}", code.choose(first, "0", "%cs"), depth,
                "%rows", f"i1 {narrow}",
            )  # fmt: skip
    return code


def _bytes(code: Routine, element: Element, columns: str, panel: int) -> str:
    """The bytes of so many columns, in whole panels."""
    return code.mul(code.mul(code.ceil_div(columns, panel), str(panel)), str(element.bytes))


class _Rows(NamedTuple):
    """Rows of a region or an operand: where they begin, bytes from one to the next."""

    place: str
    pitch: str


class _Driver:
    """The routine kernel under construction; strides in bytes."""

    def __init__(self, spec: AttentionSpec, target: Target, element: Element) -> None:
        self.spec, self.element, self.target = spec, element, target
        self.code = code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", quick=True)
        self.size = {name: self._argument(k) for k, name in enumerate(SIZES)}
        self.panel = VECTORS * element.lanes(target)
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
        self.pitch = {name: code.add(self._room(name), str(PITCH * element.bytes)) for name in "sev"}
        self.value_place, self.value_step = code.slot("ptr"), code.slot("i64")
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

    def _room(self, name: str) -> str:
        """The bytes of a size's elements, padded."""
        code = self.code
        return code.mul(code.mul(code.ceil_div(self.size[name], PAD), str(PAD)), str(self.element.bytes))

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
            self._pack_head(index)
            code.set(head, index)
        start = code.mul(group, str(UNIT_ROWS))
        end = code.minimum(size["l"], code.add(start, str(UNIT_ROWS)))
        with code.loop(start, end, ROWS) as block:
            self._forward(index, r, block.index, code.minimum(code.sub(end, block.index), str(ROWS)))

    def _divide(self, x: str, y: str) -> tuple[str, str]:
        quotient = self.code.op(f"sdiv i64 {x}, {y}")
        return quotient, self.code.sub(x, self.code.mul(quotient, y))

    def _rows_of(self, name: str, head: str, r: str = "0", row: str = "0") -> _Rows:
        """Rows of an operand, from one on."""
        code, stride = self.code, self.stride[name]
        n, h = self._divide(head, self.size["h"])
        steps = (code.mul(i, s) for i, s in zip((n, h, r, row), stride))
        return _Rows(code.at(self.base[name], *steps), stride[3])

    # -- packing ------------------------------------------------------------------------------------

    def _pack_head(self, head: str) -> None:
        """The head's keys and values as the products read them."""
        key, value = self._rows_of("k", head), self._rows_of("v", head)
        self._turn("k", key, "kt", "e")
        if self.spec.backward:
            self._turn("v", value, "vt", "v")
            self._copy("k", key, "key", "e", self.size["s"])
            return
        code = self.code
        code.line(f"store ptr {self.region['value']}, ptr {self.value_place}")
        code.set(self.value_step, self.pitch["v"])
        with code.either(self._lies_well()) as packed:
            code.line(f"store ptr {value.place}, ptr {self.value_place}")
            code.set(self.value_step, value.pitch)
            next(packed)
            self._copy("v", value, "value", "v", self.size["s"])

    def _lies_well(self) -> str:
        """Whether values are read where they lie: whole panels, for one block of queries."""
        code = self.code
        if self.element.widened:
            return "false"
        return code.both(
            code.compare("sle", self.size["l"], str(ROWS)),
            code.compare("eq", self.stride["v"][4], str(self.element.stored_bytes)),
            code.compare("eq", code.op(f"srem i64 {self.size['v']}, {self.panel}"), "0"),
        )

    def _copy(self, name: str, rows: _Rows, region: str, width: str, count: str) -> None:
        """Rows side by side, in the summed type."""
        code, size = self.code, self.size[width]
        pitch, step = self.pitch[width], self.stride[name][4]
        ragged = code.compare("ne", code.op(f"srem i64 {size}, {self.panel}"), "0")
        with code.when(ragged):
            clear(code, self.element, self.region[region], code.mul(count, pitch))
        code.run(
            "copy", f"ptr {rows.place}", rows.pitch, step, f"ptr {self.region[region]}", pitch,
            str(self.panel * self.element.bytes), count, size,
        )  # fmt: skip

    def _turn(self, name: str, rows: _Rows, region: str, width: str) -> None:
        """Panels of a transposed factor: [panel of keys][element][key]."""
        code, element, depth = self.code, self.element, self.size[width]
        step, line = self.stride[name][4], str(self.panel * element.bytes)
        near = code.both(
            code.compare("eq", step, str(element.stored_bytes)),
            code.compare("sge", depth, str(16 // element.bytes)),
        )
        whole = code.mul(code.op(f"sdiv i64 {self.size['s']}, {self.panel}"), str(self.panel))
        column = code.mul(depth, str(element.bytes))
        rest = code.sub(code.mul(code.ceil_div(self.size["s"], PAD), str(PAD)), whole)
        clear(code, element, code.at(self.region[region], code.mul(whole, column)), code.mul(rest, column))
        with code.times(self.size["s"], self.panel) as first:
            count = code.minimum(code.sub(self.size["s"], first), str(self.panel))
            src = code.at(rows.place, code.mul(first, rows.pitch))
            dst = code.at(self.region[region], code.mul(first, column))
            with code.either(near) as otherwise:
                code.run("turn", f"ptr {src}", rows.pitch, f"ptr {dst}", line, depth, count)
                next(otherwise)
                code.run("copy", f"ptr {src}", step, rows.pitch, f"ptr {dst}", line, line, depth, count)

    # -- products -----------------------------------------------------------------------------------

    def _multiply(
        self, a: tuple[str, str, str], b: tuple[str, str, str], c: _Rows, depth: str, shape: tuple[str, str],
        fresh: str = "true",
    ) -> None:  # fmt: skip
        """c = a b: `a` by its strides along rows and depth, `b` by those of its panels and along depth."""
        self.code.run(
            "multiply", f"ptr {a[0]}", *a[1:], f"ptr {b[0]}", *b[1:], f"ptr {c.place}", c.pitch, depth,
            *shape, f"i1 {fresh}",
        )  # fmt: skip

    def _across(self, region: str, width: str) -> tuple[str, str, str]:
        """A region of rows as the left factor."""
        return self.region[region], self.pitch[width], str(self.element.bytes)

    def _down(self, region: str, width: str) -> tuple[str, str, str]:
        """A region of rows, transposed, as the left factor."""
        return self.region[region], str(self.element.bytes), self.pitch[width]

    def _panels(self, region: str, width: str) -> tuple[str, str, str]:
        """A region of rows as the right factor."""
        return self.region[region], str(self.panel * self.element.bytes), self.pitch[width]

    def _turned(self, region: str, width: str) -> tuple[str, str, str]:
        """Panels of a transposed factor as the right factor."""
        line = str(self.panel * self.element.bytes)
        return self.region[region], self.code.mul(self.size[width], line), line

    def _scores(self, head: str, r: str, row: str, rows: str) -> tuple[str, str]:
        """The block's rows packed, its scores made weights; the keys it meets, and how many columns."""
        code, size = self.code, self.size
        keys = size["s"]
        if self.spec.causal:
            keys = code.minimum(keys, code.add(row, rows))
        columns = code.mul(code.ceil_div(keys, PAD), str(PAD))
        self._copy("q", self._rows_of("q", head, r, row), "query", "e", rows)
        scores = _Rows(self.region["weights"], self.pitch["s"])
        self._multiply(
            self._across("query", "e"), self._turned("kt", "e"), scores, size["e"], (rows, columns)
        )
        mask, steps = "null", ["0", "0"]
        if self.spec.mask is not None:
            mask, steps = self._rows_of("m", head, r, row).place, self.stride["m"][3:]
        code.run(
            "weigh", f"ptr {scores.place}", scores.pitch, rows, columns, size["s"], row,
            f"{self.kind} {self.scale}", f"ptr {self.region['shares']}", f"ptr {mask}", *steps,
        )  # fmt: skip
        if self.spec.drop is not None:
            self._draw(
                self.spec.drop,
                code.add(code.mul(code.add(code.mul(head, size["r"]), r), size["l"]), row),
                rows,
                columns,
            )
        return keys, columns

    def _draw(self, drop: Drop, query: str, rows: str, columns: str) -> None:
        """Which weights of some queries are kept; the first is query `query` of all."""
        code, keys = self.code, self.size["s"]
        position = code.add(self._number(drop.position, "i64"), code.mul(query, keys))
        code.run(
            "draw", *self._kept(), rows, columns, position, keys, self._number(drop.seed, "i64"),
            f"float {self._number(drop.chance, 'f32')}",
        )  # fmt: skip

    def _kept(self) -> tuple[str, str]:
        """Where the block's bits lie, and how far apart its rows'."""
        pitch = self.code.mul(self.code.ceil_div(self.size["s"], PAD), str(PAD * KEPT_BYTES // LANES))
        return f"ptr {self.region['kept']}", pitch

    def _forward(self, head: str, r: str, row: str, rows: str) -> None:
        """A block of queries."""
        keys, columns = self._scores(head, r, row, rows)
        factors = f"ptr {self.region['shares']}", str(self.element.bytes)
        if self.spec.drop is not None:
            self.code.run(
                "thin", f"ptr {self.region['weights']}", self.pitch["s"], rows, columns, factors[0],
                *self._kept(), f"{self.kind} {self.factor}",
            )  # fmt: skip
            factors = f"ptr {self.unit_factor}", "0"
        sums = _Rows(self.region["sums"], self.pitch["v"])
        self._multiply(self._across("weights", "s"), self._values(), sums, keys, (rows, self.size["v"]))
        self._deliver(sums, self._rows_of("O", head, r, row), rows, "v", factors)

    def _values(self) -> tuple[str, str, str]:
        """The values as the right factor, packed or where they lie."""
        code = self.code
        line = str(self.panel * self.element.bytes)
        return code.op(f"load ptr, ptr {self.value_place}"), line, code.get(self.value_step)

    def _deliver(self, src: _Rows, dst: _Rows, rows: str, width: str, factors: tuple[str, str]) -> None:
        self.code.run(
            "deliver", f"ptr {src.place}", src.pitch, f"ptr {dst.place}", dst.pitch, rows, self.size[width],
            *factors,
        )  # fmt: skip

    def _head(self, head: str, first: str, last: str) -> None:
        """The gradients of a head: of the `first` part of its keys, the `last` one or both, and of queries.

        The softmax is one of whole rows, so whoever has a part computes scores of all keys. Of a causal head
        the last part is larger: it is met by the queries from its first key on alone.
        """
        code, size = self.code, self.size
        self._pack_head(head)
        eighths = "3" if self.spec.causal else "4"
        cut = code.mul(code.op(f"sdiv i64 {code.mul(size['s'], eighths)}, {8 * PAD}"), str(PAD))
        low, high = code.choose(first, "0", cut), code.choose(last, size["s"], cut)
        edge = cut if self.spec.causal else code.op(f"sdiv i64 {size['l']}, 2")
        totals = {"k": ("dk", "e", self.one), "v": ("dv", "v", self.unit_factor)}
        totals = {name: total for name, total in totals.items() if name in self.spec.gives}
        own = {}
        for name, (region, width, _) in totals.items():
            own[name] = _Rows(
                code.at(self.region[region], code.mul(low, self.pitch[width])), self.pitch[width]
            )
            clear(code, self.element, own[name].place, code.mul(code.sub(high, low), self.pitch[width]))
        with code.times(size["r"]) as r, code.times(size["l"], ROWS) as row:
            rows = code.minimum(code.sub(size["l"], row), str(ROWS))
            late = code.compare("sgt", code.add(row, rows), edge)
            mine = code.choose(late, last, first, "i1")
            needed = "true"
            if self.spec.causal or not totals:  # later keys see none of the early queries
                needed = code.op(f"or i1 {mine}, {first}") if totals else mine
            with code.when(needed):
                self._backward(head, r, row, rows, (low, high), own, mine)
        for name, (_, width, factor) in totals.items():
            into = self._rows_of(name.upper(), head, row=low)
            self._deliver(own[name], into, code.sub(high, low), width, (f"ptr {factor}", "0"))

    def _backward(
        self, head: str, r: str, row: str, rows: str, part: tuple[str, str], totals: dict[str, _Rows],
        mine: str,
    ) -> None:  # fmt: skip
        """A block of queries: its own gradient, if it is `mine`, and what it adds to those of some keys."""
        code, size = self.code, self.size
        keys, columns = self._scores(head, r, row, rows)
        self._copy("g", self._rows_of("g", head, r, row), "grad", "v", rows)
        into = _Rows(self.region["slopes"], self.pitch["s"])
        self._multiply(self._across("grad", "v"), self._turned("vt", "v"), into, size["v"], (rows, columns))
        kept = (*self._kept(), f"{self.kind} {self.factor}") if self.spec.drop is not None else ()
        code.run(
            "slopes", f"ptr {self.region['weights']}", f"ptr {into.place}", into.pitch, rows, columns,
            f"ptr {self.region['shares']}", *kept,
        )  # fmt: skip
        if "q" in self.spec.gives:
            with code.when(mine):
                sums = _Rows(self.region["sums"], self.pitch["e"])
                across = self._across("slopes", "s")
                self._multiply(across, self._panels("key", "e"), sums, keys, (rows, size["e"]))
                self._deliver(sums, self._rows_of("Q", head, r, row), rows, "e", (f"ptr {self.one}", "0"))
        low, high = part
        count = code.sub(code.minimum(keys, high), low)
        for name, left, right, width in (("k", "slopes", "query", "e"), ("v", "weights", "grad", "v")):
            if name in totals:
                place, by_row, by_key = self._down(left, "s")
                a = code.at(place, code.mul(low, str(self.element.bytes))), by_row, by_key
                shape = (count, size[width])
                self._multiply(a, self._panels(right, width), totals[name], rows, shape, "false")
