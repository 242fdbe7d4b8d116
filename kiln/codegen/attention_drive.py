"""The driver of attention on vectors: a block of queries by all keys at once.

    each block:   S = q k^T;  weigh S;  sums = S v;  out = sums / sum of the weights
    gradients:    S = q k^T, D = g v^T;  weigh S;  slopes: S becomes p, D becomes dS
                  dq = dS k * scale;  dk += dS^T q;  dv += p^T g
                  dk * scale, dv at the end

Keys and values are packed once per head, into panels that a tile reads (matmul_tile.py), and the block's rows
too (values that one block of queries meets are read where they lie, if they can be); every product is the
routine multiply.
"""

from __future__ import annotations

from kiln.codegen.attention_rows import deliver, draw, slopes, thin, weigh
from kiln.codegen.attention_spec import PAD, PITCH, AttentionSpec
from kiln.codegen.attention_units import Block, Driver, Rows, kept_bytes
from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import SEGMENT, VECTORS, Element
from kiln.codegen.target import Target
from kiln.table.kinds import ATTENTION_ROWS


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


class _Driver(Driver):
    """The routine kernel under construction."""

    rows = rows_back = ATTENTION_ROWS
    keys = PAD

    def __init__(self, spec: AttentionSpec, target: Target, element: Element) -> None:
        super().__init__(spec, target, element)
        self.panel = VECTORS * element.lanes(target)
        self.pitch = {name: self._pitch(name) for name in "sev"}
        self.value_place, self.value_step = self.code.slot("ptr"), self.code.slot("i64")

    def _pitch(self, name: str) -> str:
        """The bytes between rows of a size's elements."""
        bytes = self.code.mul(self.padded(self.size[name]), str(self.element.bytes))
        return self.code.add(bytes, str(PITCH * self.element.bytes))

    # -- packing ------------------------------------------------------------------------------------

    def pack_head(self, head: str) -> None:
        key, value = self.rows_of("k", head), self.rows_of("v", head)
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
            code.compare("sle", self.size["l"], str(ATTENTION_ROWS)),
            code.compare("eq", self.stride["v"][4], str(self.element.stored_bytes)),
            code.compare("eq", code.op(f"srem i64 {self.size['v']}, {self.panel}"), "0"),
        )

    def _copy(self, name: str, rows: Rows, region: str, width: str, count: str) -> None:
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

    def _turn(self, name: str, rows: Rows, region: str, width: str) -> None:
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
        self, a: tuple[str, str, str], b: tuple[str, str, str], c: Rows, depth: str, shape: tuple[str, str],
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

    # -- blocks -------------------------------------------------------------------------------------

    def _scores(self, block: Block) -> tuple[str, str]:
        """The block's rows packed, its scores made weights; the keys it meets, and how many columns."""
        code, size = self.code, self.size
        keys = self.visible(block)
        columns = self.padded(keys)
        self._copy("q", self.rows_of("q", *block[:3]), "query", "e", block.rows)
        scores = Rows(self.region["weights"], self.pitch["s"])
        self._multiply(
            self._across("query", "e"), self._turned("kt", "e"), scores, size["e"], (block.rows, columns)
        )
        code.run(
            "weigh", f"ptr {scores.place}", scores.pitch, block.rows, columns, size["s"], block.row,
            f"{self.kind} {self.scale}", *self.mask_of(block), f"ptr {self.region['shares']}",
        )  # fmt: skip
        if self.spec.drop is not None:
            self.draw(self.spec.drop, block, "0", columns, self._kept())
        return keys, columns

    def _kept(self) -> tuple[str, str]:
        """Where the block's bits lie, and how far apart its rows'."""
        pitch = self.code.mul(self.code.ceil_div(self.size["s"], PAD), str(kept_bytes(PAD)))
        return f"ptr {self.region['kept']}", pitch

    def forward(self, block: Block) -> None:
        keys, columns = self._scores(block)
        if self.spec.drop is not None:
            self.code.run(
                "thin", f"ptr {self.region['weights']}", self.pitch["s"], block.rows, columns,
                *self._kept(), f"{self.kind} {self.factor}",
            )  # fmt: skip
        sums = Rows(self.region["sums"], self.pitch["v"])
        shape = (block.rows, self.size["v"])
        self._multiply(self._across("weights", "s"), self._values(), sums, keys, shape)
        factors = f"ptr {self.region['shares']}", str(self.element.bytes)
        self.deliver(sums, self.rows_of("O", *block[:3]), block.rows, "v", factors)

    def _values(self) -> tuple[str, str, str]:
        """The values as the right factor, packed or where they lie."""
        code = self.code
        line = str(self.panel * self.element.bytes)
        return code.op(f"load ptr, ptr {self.value_place}"), line, code.get(self.value_step)

    # -- gradients ----------------------------------------------------------------------------------

    def _sums(self, low: str) -> dict[str, tuple[Rows, str, str]]:
        """Of each gradient of keys that is wanted: its sums from a key on, their width, their factor."""
        found = {}
        for name, region, width, factor in (("k", "dk", "e", self.one), ("v", "dv", "v", self.unit_factor)):
            if name in self.spec.gives:
                pitch = self.pitch[width]
                place = self.code.at(self.region[region], self.code.mul(low, pitch))
                found[name] = Rows(place, pitch), width, factor
        return found

    def clear_sums(self, low: str, high: str) -> None:
        for rows, _, _ in self._sums(low).values():
            bytes = self.code.mul(self.code.sub(high, low), rows.pitch)
            clear(self.code, self.element, rows.place, bytes)

    def deliver_sums(self, head: str, low: str, high: str) -> None:
        for name, (rows, width, factor) in self._sums(low).items():
            into, count = self.rows_of(name.upper(), head, row=low), self.code.sub(high, low)
            self.deliver(rows, into, count, width, (f"ptr {factor}", "0"))

    def backward(self, block: Block, low: str, high: str, mine: str) -> None:
        code, size, rows = self.code, self.size, block.rows
        keys, columns = self._scores(block)
        self._copy("g", self.rows_of("g", *block[:3]), "grad", "v", rows)
        into = Rows(self.region["slopes"], self.pitch["s"])
        self._multiply(self._across("grad", "v"), self._turned("vt", "v"), into, size["v"], (rows, columns))
        kept = (*self._kept(), f"{self.kind} {self.factor}") if self.spec.drop is not None else ()
        code.run(
            "slopes", f"ptr {self.region['weights']}", f"ptr {into.place}", into.pitch, rows, columns,
            f"ptr {self.region['shares']}", *kept,
        )  # fmt: skip
        if "q" in self.spec.gives:
            with code.when(mine):
                sums = Rows(self.region["sums"], self.pitch["e"])
                across = self._across("slopes", "s")
                self._multiply(across, self._panels("key", "e"), sums, keys, (rows, size["e"]))
                self.deliver(sums, self.rows_of("Q", *block[:3]), rows, "e", (f"ptr {self.one}", "0"))
        count = code.sub(code.minimum(keys, high), low)
        factors = {"k": ("slopes", "query"), "v": ("weights", "grad")}
        for name, (total, width, _) in self._sums(low).items():
            left, right = factors[name]
            place, by_row, by_key = self._down(left, "s")
            a = code.at(place, code.mul(low, str(self.element.bytes))), by_row, by_key
            self._multiply(a, self._panels(right, width), total, rows, (count, size[width]), "false")


def vector_routines(spec: AttentionSpec, target: Target, element: Element) -> list[Routine]:
    """A kernel's own routines."""
    drops, rounds = spec.drop is not None, element.dtype == "bfloat16" and spec.gives == "o"
    return [
        weigh(target, element, spec.mask, spec.causal, rounds and not drops), deliver(target, element),
        multiply(target, element),
        *([slopes(target, element, drops)] if spec.backward else []),
        *([draw(target, element)] if drops else []),
        *([thin(target, element)] if drops and not spec.backward else []),
        _Driver(spec, target, element).write(),
    ]  # fmt: skip
