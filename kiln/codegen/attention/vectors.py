"""The driver of attention on vectors: a block of queries by all keys at once.

    each block:   S = q k^T;  weigh S;  sums = S v;  out = sums / sum of the weights
    gradients:    S = q k^T, D = g v^T;  weigh S;  slopes: S becomes p, D becomes dS
                  dq = dS k * scale;  dk += dS^T q;  dv += p^T g
                  dk * scale, dv at the end

Keys and values are packed once per head, into panels that a tile reads (gemm/fma_tile.py), and the block's
rows too (values that one block of queries meets are read where they lie, if they can be); every product is
the routine multiply.
"""

from __future__ import annotations

from kiln.codegen.attention.spec import PAD, PITCH, AttentionSpec, padded
from kiln.codegen.attention.units import AttentionDriver, Block, Rows
from kiln.codegen.attention.vector_rows import deliver, draw, kept_bytes, slopes, thin, weigh
from kiln.codegen.gemm.element import Element
from kiln.codegen.gemm.pack import clear
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer, every
from kiln.codegen.ir.routine import Routine
from kiln.codegen.target import Target
from kiln.table.order import ATTENTION_ROWS, SEGMENT

Factor = tuple[Pointer, Integer, Integer]  # where it lies, and its two strides


def multiply(target: Target, element: Element) -> Routine:
    """The routine multiply: c = a b, or c + a b, by tiles; c's columns are written to whole panels.

    each panel of columns:  each segment of depth:  tiles of all rows
    """
    params = "ptr %a, i64 %rs, i64 %ks, ptr %b, i64 %bp, i64 %bs, ptr %c, i64 %cs, i64 %depth, i64 %rows,"
    code = Routine(target, "multiply", params + " i64 %columns, i1 %fresh")
    a, b, c = code.pointers("a", "b", "c")
    rs, ks, bp, bs, cs, depth, rows, columns = code.indices(
        "rs", "ks", "bp", "bs", "cs", "depth", "rows", "columns"
    )
    fresh = code.condition("%fresh")
    lanes = element.lanes(target)
    panel = element.panel(target)
    with code.when(depth.equals(0) & fresh):
        with code.times(rows) as r:
            clear(code, c[r * cs], _bytes(element, columns, panel))
    with code.times(columns, panel) as column:
        panels = b[column // panel * bp]
        narrow = columns - column <= lanes
        sums = c[column * element.bytes]
        with code.times(depth, SEGMENT) as k:
            left = (depth - k).min(SEGMENT)
            first = k.equals(0) & fresh
            here = a[k * ks]
            there = panels[k * bs]
            code.run(
                "tile", here, rs, ks, there, bs, sums, cs, first.choose(code.pointer("@nothing"), sums),
                first.choose(0, cs), left, rows, narrow,
            )  # fmt: skip
    return code


def _bytes(element: Element, columns: Index, panel: int) -> Index:
    """The bytes of so many columns, in whole panels."""
    return columns.ceil_div(panel) * panel * element.bytes


class VectorDriver(AttentionDriver):
    """The routine kernel under construction."""

    rows = rows_back = ATTENTION_ROWS
    keys = PAD

    def __init__(self, spec: AttentionSpec, target: Target, element: Element) -> None:
        super().__init__(spec, target, element)
        self.panel = element.panel(target)
        self.pitch = {name: self._pitch(name) for name in "sev"}
        self.value_place, self.value_step = self.code.slot("ptr"), self.code.variable()

    def _pitch(self, name: str) -> Index:
        """The bytes between rows of a size's elements."""
        bytes: Index = padded(self.size[name]) * self.element.bytes
        return bytes + PITCH * self.element.bytes

    # -- packing ------------------------------------------------------------------------------------

    def pack_head(self, head: Index) -> None:
        key, value = self.rows_of("k", head), self.rows_of("v", head)
        self._pack_transposed("k", key, "kt", "e")
        if self.spec.backward:
            self._pack_transposed("v", value, "vt", "v")
            self._copy("k", key, "key", "e", self.size["s"])
            return
        code = self.code
        self.value_place.put(self.region["value"])
        self.value_step.set(self.pitch["v"])
        with code.either(self._lies_well()) as packed:
            self.value_place.put(value.place)
            self.value_step.set(value.pitch)
            next(packed)
            self._copy("v", value, "value", "v", self.size["s"])

    def _lies_well(self) -> Condition:
        """Whether values are read where they lie: whole panels, for one block of queries."""
        if self.element.widened:
            return self.code.condition(False)
        return every(
            self.size["l"] <= ATTENTION_ROWS,
            self.stride["v"][4].equals(self.element.stored_bytes),
            (self.size["v"] % self.panel).equals(0),
        )

    def _copy(self, name: str, rows: Rows, region: str, width: str, count: Index) -> None:
        """Rows side by side, in the summed type."""
        code, size = self.code, self.size[width]
        pitch, step = self.pitch[width], self.stride[name][4]
        ragged = (size % self.panel).differs(0)
        with code.when(ragged):
            clear(code, self.region[region], count * pitch)
        code.run(
            "copy", rows.place, rows.pitch, step, self.region[region], pitch,
            self.panel * self.element.bytes, count, size,
        )  # fmt: skip

    def _pack_transposed(self, name: str, rows: Rows, region: str, width: str) -> None:
        """Panels of a transposed factor: [panel of keys][element][key]."""
        code, element, depth = self.code, self.element, self.size[width]
        step, line = self.stride[name][4], self.panel * element.bytes
        near = step.equals(element.stored_bytes) & (depth >= 16 // element.bytes)
        whole = self.size["s"] // self.panel * self.panel
        column = depth * element.bytes
        rest: Index = padded(self.size["s"]) - whole
        clear(code, self.region[region][whole * column], rest * column)
        with code.times(self.size["s"], self.panel) as first:
            count = (self.size["s"] - first).min(self.panel)
            src = rows.place[first * rows.pitch]
            dst = self.region[region][first * column]
            with code.either(near) as otherwise:
                code.run("transpose", src, rows.pitch, dst, line, depth, count)
                next(otherwise)
                code.run("copy", src, step, rows.pitch, dst, line, line, depth, count)

    # -- products -----------------------------------------------------------------------------------

    def _multiply(
        self, a: Factor, b: Factor, c: Rows, depth: Index, shape: tuple[Index, Index], fresh: bool = True
    ) -> None:
        """c = a b: `a` by its strides along rows and depth, `b` by those of its panels and along depth."""
        self.code.run("multiply", *a, *b, c.place, c.pitch, depth, *shape, self.code.condition(fresh))

    def _left(self, region: str, width: str) -> Factor:
        """A region of rows as the left factor."""
        return self.region[region], self.pitch[width], self.element.bytes

    def _left_transposed(self, region: str, width: str) -> Factor:
        """A region of rows, transposed, as the left factor."""
        return self.region[region], self.element.bytes, self.pitch[width]

    def _panels(self, region: str, width: str) -> Factor:
        """A region of rows as the right factor."""
        return self.region[region], self.panel * self.element.bytes, self.pitch[width]

    def _transposed_panels(self, region: str, width: str) -> Factor:
        """Panels of a transposed factor as the right factor."""
        line = self.panel * self.element.bytes
        return self.region[region], self.size[width] * line, line

    # -- blocks -------------------------------------------------------------------------------------

    def _scores(self, block: Block) -> tuple[Index, Index]:
        """The block's rows packed, its scores made weights; the keys it meets, and how many columns."""
        code, size = self.code, self.size
        keys = self.visible(block)
        columns: Index = padded(keys)
        self._copy("q", self.rows_of("q", *block[:3]), "query", "e", block.rows)
        scores = Rows(self.region["weights"], self.pitch["s"])
        query, panels = self._left("query", "e"), self._transposed_panels("kt", "e")
        self._multiply(query, panels, scores, size["e"], (block.rows, columns))
        code.run(
            "weigh", scores.place, scores.pitch, block.rows, columns, size["s"], block.row,
            self.scale, *self.mask_of(block), self.region["shares"],
        )  # fmt: skip
        if self.spec.drop is not None:
            self.draw(self.spec.drop, block, 0, columns, self._kept())
        return keys, columns

    def _kept(self) -> tuple[Pointer, Index]:
        """Where the block's bits lie, and the pitch of its rows."""
        pitch = self.size["s"].ceil_div(PAD) * kept_bytes(PAD)
        return self.region["kept"], pitch

    def forward(self, block: Block) -> None:
        keys, columns = self._scores(block)
        if self.spec.drop is not None:
            self.code.run(
                "thin", self.region["weights"], self.pitch["s"], block.rows, columns,
                *self._kept(), self.factor,
            )  # fmt: skip
        sums = Rows(self.region["sums"], self.pitch["v"])
        shape = (block.rows, self.size["v"])
        self._multiply(self._left("weights", "s"), self._values(), sums, keys, shape)
        factors = self.region["shares"], self.element.bytes
        self.deliver(sums, self.rows_of("O", *block[:3]), block.rows, "v", factors)

    def _values(self) -> Factor:
        """The values as the right factor, packed or where they lie."""
        line = self.panel * self.element.bytes
        return self.value_place.pointer(), line, self.value_step.get()

    # -- gradients ----------------------------------------------------------------------------------

    def _sums(self, low: Index) -> dict[str, tuple[Rows, str, Pointer]]:
        """Of each gradient of keys that is wanted: its sums from a key on, their width, their factor."""
        found = {}
        for name, region, width, factor in (("k", "dk", "e", self.one), ("v", "dv", "v", self.unit_factor)):
            if name in self.spec.gives:
                pitch = self.pitch[width]
                place = self.region[region][low * pitch]
                found[name] = Rows(place, pitch), width, factor
        return found

    def clear_sums(self, low: Index, high: Index) -> None:
        for rows, _, _ in self._sums(low).values():
            bytes = (high - low) * rows.pitch
            clear(self.code, rows.place, bytes)

    def deliver_sums(self, head: Index, low: Index, high: Index) -> None:
        for name, (rows, width, factor) in self._sums(low).items():
            into, count = self.rows_of(name.upper(), head, row=low), high - low
            self.deliver(rows, into, count, width, (factor, 0))

    def backward(self, block: Block, low: Index, high: Index, mine: Condition) -> None:
        code, size, rows = self.code, self.size, block.rows
        keys, columns = self._scores(block)
        self._copy("g", self.rows_of("g", *block[:3]), "grad", "v", rows)
        into = Rows(self.region["slopes"], self.pitch["s"])
        grad, values = self._left("grad", "v"), self._transposed_panels("vt", "v")
        self._multiply(grad, values, into, size["v"], (rows, columns))
        kept = (*self._kept(), self.factor) if self.spec.drop is not None else ()
        code.run(
            "slopes", self.region["weights"], into.place, into.pitch, rows, columns,
            self.region["shares"], *kept,
        )  # fmt: skip
        if "q" in self.spec.gives:
            with code.when(mine):
                sums = Rows(self.region["sums"], self.pitch["e"])
                slopes = self._left("slopes", "s")
                self._multiply(slopes, self._panels("key", "e"), sums, keys, (rows, size["e"]))
                self.deliver(sums, self.rows_of("Q", *block[:3]), rows, "e", (self.one, 0))
        count = keys.min(high) - low
        factors = {"k": ("slopes", "query"), "v": ("weights", "grad")}
        for name, (total, width, _) in self._sums(low).items():
            left, right = factors[name]
            place, by_row, by_key = self._left_transposed(left, "s")
            a = place[low * self.element.bytes], by_row, by_key
            self._multiply(a, self._panels(right, width), total, rows, (count, size[width]), fresh=False)


def vector_routines(spec: AttentionSpec, target: Target, element: Element) -> list[Routine]:
    """A kernel's own routines."""
    drops, rounds = spec.drop is not None, element.dtype == "bfloat16" and spec.gives == "o"
    return [
        weigh(target, element, spec.mask, spec.causal, rounds and not drops), deliver(target, element),
        multiply(target, element),
        *([slopes(target, element, drops)] if spec.backward else []),
        *([draw(target, element)] if drops else []),
        *([thin(target, element)] if drops and not spec.backward else []),
        VectorDriver(spec, target, element).write(),
    ]  # fmt: skip
