"""The driver of attention of bfloat16 on AMX: scores of KEYS keys at a time, which stay in the first cache.

    each 32 queries:   each KEYS:  S = q k^T;  highest       peak
                       each KEYS:  S;  weigh;  sums += P v   settle
                       out = sums / sum of the weights
    gradients, each QUERIES queries:
        each 32:       each KEYS:  S;  highest               peak
                       each KEYS:  S, D = g v^T;  tally      settle
        each KEYS:     each 32 queries:  S, D;  slopes
                       dq += dS k,  dk^T += q^T dS,  dv^T += g^T P
        dq * scale
        dk * scale, dv, transposed, at the end

Scores are computed up to three times: a product on tiles costs less than memory for whole rows, and long rows
are as fast as short ones. Every sum of products goes on where it lies, in ascending steps of 32 keys (of 32
queries of a member of the group, for dk and dv), so bits depend on none of these numbers.

What products read is packed as gemm/amx_tile.py says: keys and values once per head, queries and their
gradients once per block, weights and slopes as they are made (amx_rows.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiln.codegen.attention import amx_rows as blocks
from kiln.codegen.attention.amx_rows import DOWN_PITCH, KEPT_PITCH
from kiln.codegen.attention.spec import KEYS, PITCH, QUERIES, AttentionSpec, padded
from kiln.codegen.attention.units import AttentionDriver, Block, Rows
from kiln.codegen.attention.vector_rows import deliver, draw
from kiln.codegen.gemm.amx_pack import pack_a, pack_panels
from kiln.codegen.gemm.amx_tile import FACTORS, LINE, PANEL, ROW, STEP_BYTES, on_tiles
from kiln.codegen.gemm.element import Element
from kiln.codegen.gemm.pack import clear, zeros
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import Value
from kiln.codegen.target import Target
from kiln.table.order import REDUCE_BLOCK

FLOAT = 4  # bytes
PACKED_ROWS = PANEL * KEYS * 2  # bytes of packed rows of weights or slopes


class AmxDriver(AttentionDriver):
    """The routine kernel under construction."""

    rows, rows_back, keys = PANEL, QUERIES, KEYS

    def __init__(self, spec: AttentionSpec, target: Target, element: Element) -> None:
        super().__init__(spec, target, element)
        self.packed = FACTORS[spec.dtype]
        self.steps = {name: self.size[name].ceil_div(PANEL) for name in "sev"}
        # Bytes: of a packed block of 32 rows, of a row of sums, of a VNNI panel whose k are the keys.
        self.block = {name: self.steps[name] * STEP_BYTES for name in "sev"}
        self.pitch = {name: self.steps[name] * (PANEL * FLOAT) for name in "sev"}
        self.panel_pitch = self.block["s"] + ROW
        self.scores = Rows(self._region("scores"), self.code.index(KEYS * FLOAT))
        numbers = self._region("rows")
        self.tops, self.shares, self.means, self.totals = (numbers[k * QUERIES * FLOAT] for k in range(4))
        self.lanes = self._region("lanes")

    def write(self) -> Routine:
        """With tiles configured once: memory has room for whole ones."""
        on_tiles(self.code, "ldtilecfg", "ptr @shapes")
        super().write()
        on_tiles(self.code, "tilerelease")
        return self.code

    def _region(self, name: str) -> Pointer:
        return self.region[f"tile {name}"]

    # -- packing ------------------------------------------------------------------------------------

    def pack_head(self, head: Index) -> None:
        key, value = self.rows_of("k", head), self.rows_of("v", head)
        self._pack_transposed("k", key, "keys", "e")
        if self.spec.backward:
            self._pack_transposed("v", value, "values", "v")
            self._pack_rows("k", key, "key", "e")
        else:
            self._pack_rows("v", value, "values", "v")

    def _pack_transposed(self, name: str, rows: Rows, region: str, width: str) -> None:
        """Keys or values as the right factor of scores: they are columns."""
        strides, shape = (self.stride[name][4], rows.pitch), (self.size[width], self.size["s"])
        self._pack(rows.place, strides, region, shape, self.block[width])

    def _pack_rows(self, name: str, rows: Rows, region: str, width: str) -> None:
        """The same as the right factor of weights or slopes: they are summed over."""
        strides, shape = (rows.pitch, self.stride[name][4]), (self.size["s"], self.size[width])
        self._pack(rows.place, strides, region, shape, self.panel_pitch)

    def _pack(
        self,
        src: Pointer,
        strides: tuple[Index, Index],
        region: str,
        shape: tuple[Index, Index],
        panel_pitch: Index,
    ) -> None:
        pack_panels(self.code, self.packed, src, strides, self._region(region), shape, panel_pitch)

    def _pack_left(self, name: str, block: Block, width: str, dst: Pointer) -> None:
        """Queries, or their gradients, as the left factor of scores."""
        rows, shape = self.rows_of(name, *block[:3]), (block.rows, self.size[width])
        strides = rows.pitch, self.stride[name][4]
        pack_a(self.code, self.packed, rows.place, strides, dst, shape, self._region("stage"))

    def _pack_left_transposed(self, name: str, block: Block, width: str, region: str) -> None:
        """The same, transposed, as the left factor of sums over queries; 32 elements of all at a time."""
        code, step = self.code, self.stride[name][4]
        rows = self.rows_of(name, *block[:3])
        with self._blocks(self.size[width]) as (at, count):
            src, dst = rows.place[at * step], self._region(region)
            dst, shape = dst[at * (DOWN_PITCH // PANEL)], (count, block.rows)
            pack_a(code, self.packed, src, (step, rows.pitch), dst, shape, self._region("stage"))

    @contextmanager
    def _blocks(self, count: Index) -> Iterator[tuple[Index, Index]]:
        """Each 32 of so many: the first, and how many."""
        with self.code.times(count, PANEL) as at:
            yield at, (count - at).min(PANEL)

    # -- products and what is done with scores ------------------------------------------------------

    def _add(
        self,
        a: Pointer,
        b: tuple[Pointer, Integer],
        steps: Index,
        c: Rows,
        shape: tuple[Index, Index],
        first: Condition | None = None,
    ) -> None:
        """c += a b, or c = a b: `b` and the pitch of its panels; shape: rows, columns."""
        fresh = self.code.condition(False) if first is None else first
        self.code.run("panels", a, *b, steps, c.place, c.pitch, fresh, *shape)

    def _multiply(
        self, a: Pointer, region: str, width: str, c: Rows, key: Index, shape: tuple[Index, Index]
    ) -> None:
        """Scores, or the gradients of weights, from a key on."""
        panels = key // PANEL * self.block[width]
        b = self._region(region)[panels], self.block[width]
        self._add(a, b, self.steps[width], c, shape, self.code.condition(True))

    def _scores(self, a: Pointer, block: Block, key: Index, columns: Index) -> None:
        self._multiply(a, "keys", "e", self.scores, key, (block.rows, columns))

    def _summed(self, region: str, key: Index) -> tuple[Pointer, Index]:
        """VNNI panels of keys, which are summed over, from a key on."""
        return self._region(region)[key * LINE], self.panel_pitch

    def _columns(self, keys: Index, key: Index) -> Index:
        """The columns of a block of scores."""
        columns: Index = padded(keys - key)
        return columns.min(KEYS)

    def _do(
        self, name: str, block: Block, key: Index, columns: Index, *arguments: Condition | Pointer | Value
    ) -> None:
        """One of the routines of blocks of scores."""
        code = self.code
        code.run(
            name, self.scores.place, self.scores.pitch, block.rows, columns,
            self.size["s"] - key, block.row - key, self.scale,
            *self.mask_of(block, key), *arguments,
        )  # fmt: skip

    def _dropped(self, block: Block, key: Index, columns: Index) -> tuple[Pointer | Value, ...]:
        """What is kept of a block of scores, drawn: the last arguments of what is done with them."""
        if self.spec.drop is None:
            return ()
        kept = self._region("kept")
        self.draw(self.spec.drop, block, key, columns, (kept, KEPT_PITCH))
        return kept, self.factor

    def _peaks(self, a: Pointer, block: Block, tops: Pointer) -> None:
        """What is taken from the scores of a block's rows, and their sums begun."""
        code, keys = self.code, self.visible(block)
        lanes = self.lanes
        with code.times(keys, KEYS) as key:
            columns = self._columns(keys, key)
            self._scores(a, block, key, columns)
            self._do("highest", block, key, columns, lanes, key.equals(0))
        code.run("peak", lanes, tops, block.rows, keys.equals(0))

    def _fresh_sums(self, block: Block, width: str) -> Rows:
        """Room for sums of a block's rows that the first keys begin; where there are none, zeros."""
        sums = Rows(self._region("sums"), self.pitch[width])
        with self.code.when(self.visible(block).equals(0)):
            clear(self.code, sums.place, block.rows * sums.pitch)
        return sums

    def _settle(self, rows: Index, key: Index, shares: Pointer, means: Pointer) -> None:
        """The sums of the keys before one."""
        fresh = key <= REDUCE_BLOCK
        self.code.run("settle", self.lanes, self.totals, shares, means, rows, fresh)

    @contextmanager
    def _summing(self, block: Block, shares: Pointer, means: Pointer) -> Iterator[tuple[Index, Index]]:
        """Each block of keys, whose weights are summed, and how many columns it has."""
        code, keys = self.code, self.visible(block)
        with code.times(keys, KEYS) as key:
            begins = (key & (REDUCE_BLOCK - 1)).equals(0)
            with code.when(begins & key.differs(0)):
                self._settle(block.rows, key, shares, means)
            yield key, self._columns(keys, key)
        self._settle(block.rows, keys, shares, means)

    # -- forward ------------------------------------------------------------------------------------

    def forward(self, block: Block) -> None:
        code, query, weights = self.code, self._region("query"), self._region("weights")
        several = self.visible(block) > KEYS
        sums, shape = self._fresh_sums(block, "v"), (block.rows, self.size["v"])
        self._pack_left("q", block, "e", query)
        self._peaks(query, block, self.tops)
        with self._summing(block, self.shares, self.means) as (key, columns):
            with code.when(several):
                self._scores(query, block, key, columns)
            dropped = self._dropped(block, key, columns)
            self._do("weigh", block, key, columns, self.tops, self.lanes, weights, *dropped)
            steps, first = columns.ceil_div(PANEL), key.equals(0)
            self._add(weights, self._summed("values", key), steps, sums, shape, first)
        factors = self.shares, FLOAT
        self.deliver(sums, self.rows_of("O", *block[:3]), block.rows, "v", factors)

    # -- gradients ----------------------------------------------------------------------------------

    def backward(self, block: Block, low: Index, high: Index, mine: Condition) -> None:
        code, keys, rows = self.code, self.visible(block), block.rows
        mine = mine if "q" in self.spec.gives else code.condition(False)
        with self._blocks(rows) as (at, count):
            self._statistics(self._part(block, at, count), at)
        for given, name, width, region in (("k", "q", "e", "queries"), ("v", "g", "v", "grads")):
            if given in self.spec.gives:
                self._pack_left_transposed(name, block, width, region)
        sums = self._fresh_sums(block, "e")
        start, end = mine.choose(0, low), mine.choose(keys, keys.min(high))
        with code.loop(start, end, KEYS) as turn:
            key, columns = turn.index, self._columns(keys, turn.index)
            with self._blocks(rows) as (at, count):
                self._slopes(self._part(block, at, count), at, key, columns)
            with code.when(mine):
                self._add_queries(sums, rows, key, columns)
            own = (key >= low) & (key < high)
            with code.when(own):
                self._add_keys(rows, key, columns)
        if "q" in self.spec.gives:
            with code.when(mine):
                self.deliver(sums, self.rows_of("Q", *block[:3]), rows, "e", (self.one, 0))

    def _part(self, block: Block, at: Index, count: Index) -> Block:
        return Block(block.head, block.member, block.row + at, count)

    def _packed(self, region: str, at: Index, width: str) -> Pointer:
        """Where 32 queries of a block are packed."""
        bytes = self.steps[width] * LINE
        return self._region(region)[at * bytes]

    def _numbers(self, at: Index) -> tuple[Pointer, Pointer, Pointer]:
        """Where the tops, shares and means of 32 queries of a block are."""
        step = at * FLOAT
        return self.tops[step], self.shares[step], self.means[step]

    def _statistics(self, block: Block, at: Index) -> None:
        """32 queries packed, their numbers; those that do not exist are 0, and so are their numbers."""
        code = self.code
        query, grad = self._packed("query", at, "e"), self._packed("grad", at, "v")
        tops, shares, means = self._numbers(at)
        with code.when(block.rows < PANEL):
            clear(code, query, self.block["e"])
            clear(code, grad, self.block["v"])
            clear(code, self._region("stage"), STEP_BYTES)
            for place in (tops, shares, means):
                clear(code, place, PANEL * FLOAT)
        self._pack_left("q", block, "e", query)
        self._pack_left("g", block, "v", grad)
        self._peaks(query, block, tops)
        with self._summing(block, shares, means) as (key, columns):
            self._both(block, at, key, columns)
            dropped = self._dropped(block, key, columns)
            self._do("tally", block, key, columns, self._region("slopes"), tops, self.lanes, *dropped)

    def _both(self, block: Block, at: Index, key: Index, columns: Index) -> None:
        """Scores, and the gradients of weights."""
        self._scores(self._packed("query", at, "e"), block, key, columns)
        grads = self.scores._replace(place=self._region("slopes"))
        self._multiply(self._packed("grad", at, "v"), "values", "v", grads, key, (block.rows, columns))

    def _slopes(self, block: Block, at: Index, key: Index, columns: Index) -> None:
        """What 32 queries put into the products that follow."""
        code = self.code
        with code.when(key < self.visible(block)):
            self._both(block._replace(rows=code.index(PANEL)), at, key, columns)
        across = self._region("across")[at * (PACKED_ROWS // PANEL)]
        down = (self._region(name)[at * LINE] for name in ("down", "weights"))
        places = (self._region("slopes"), *self._numbers(at), across, *down)
        dropped = self._dropped(block, key, columns)
        self._do("slopes", block, key, columns, *places, *dropped)

    def _add_queries(self, sums: Rows, rows: Index, key: Index, columns: Index) -> None:
        """dq += dS k."""
        steps = columns.ceil_div(PANEL)
        first = key.equals(0)
        with self._blocks(rows) as (at, count):
            a = self._region("across")[at * (PACKED_ROWS // PANEL)]
            into = Rows(sums.place[at * sums.pitch], sums.pitch)
            self._add(a, self._summed("key", key), steps, into, (count, self.size["e"]), first)

    def _totals(self) -> list[tuple[str, str, Rows, str, str, Pointer]]:
        """Of each gradient of keys that is wanted: its name, its width, its transposed sums, where
        the factors of their products are, and what they are multiplied by at the end.
        """
        pitch = self.pitch["s"] + PITCH * FLOAT
        found = [
            ("k", "e", Rows(self._region("dk"), pitch), "queries", "down", self.one),
            ("v", "v", Rows(self._region("dv"), pitch), "grads", "weights", self.unit_factor),
        ]
        return [total for total in found if total[0] in self.spec.gives]

    def _add_keys(self, rows: Index, key: Index, columns: Index) -> None:
        """dk^T += q^T dS,  dv^T += g^T P."""
        steps = rows.ceil_div(PANEL)
        for _, width, total, left, right, _ in self._totals():
            with self._blocks(self.size[width]) as (at, count):
                a = self._region(left)[at * (DOWN_PITCH // PANEL)]
                c = total.place[at * total.pitch, key * FLOAT]
                b = self._region(right), DOWN_PITCH
                self._add(a, b, steps, Rows(c, total.pitch), (count, columns))

    def clear_sums(self, low: Index, high: Index) -> None:
        for _, width, total, *_ in self._totals():
            clear(self.code, total.place, self.size[width] * total.pitch)

    def deliver_sums(self, head: Index, low: Index, high: Index) -> None:
        code = self.code
        for name, width, total, _, _, factor in self._totals():
            stage = Rows(self._region("sums"), self.pitch[width])
            with code.loop(low, high, PANEL) as turn:
                src = total.place[turn.index * FLOAT]
                place, size = stage.place, self.size[width]
                code.run("transpose", src, total.pitch, place, stage.pitch, PANEL, size)
                rows = (high - turn.index).min(PANEL)
                into = self.rows_of(name.upper(), head, row=turn.index)
                self.deliver(stage, into, rows, width, (factor, 0))


def tile_routines(spec: AttentionSpec, target: Target, element: Element) -> list[Routine]:
    """A kernel's own routines."""
    named = [blocks.highest, *([blocks.tally, blocks.slopes] if spec.backward else [blocks.weigh])]
    return [
        *(make(spec, target, element) for make in named),
        *(make(target, element) for make in (blocks.peak, blocks.settle, deliver, zeros)),
        *([draw(target, element)] if spec.drop is not None else []),
        AmxDriver(spec, target, element).write(),
    ]  # fmt: skip
