"""What an attention kernel on tiles does with blocks of scores: rows of queries by KEYS keys.

    highest    lanes of a row = max(those, x), x = s * scale + mask
    peak       lanes -> m, what is taken from the row's x; the lanes of its sums begin
    weigh      scores -> e = exp(x - m), as the products with values read it; its sums go on
    tally      scores, dP -> sums of e, sums of e * dP
    settle     lanes of sums -> sums, shares and means
    slopes     scores, dP -> p and dS = p * (dP - mean), as three products read them

A block's scores are made anew for each of these, which costs less than keeping a row's. They lie in the first
cache; beside them:

    lanes[row][16]                      totals of a reduction in its order, one block of keys after the other
    tops, totals, shares, means [row]   m; sums; 1 / sum; share * sum of e * dP

What tiles read is bfloat16. A packed row is a line of 32 elements, `across`: [32 keys][row][32]. Where
queries are summed over, two rows are interleaved, which is VNNI packing, `down`: [32 keys][2 rows][32][2].
(Denormals become zero as they are rounded, which tiles take them for.)
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.codegen.attention.spec import KEYS, PAD, QUERIES, AttentionSpec
from kiln.codegen.attention.vector_rows import INFINITY, Row, Rows, Scores, float_kind, kept_bytes
from kiln.codegen.gemm.amx_tile import LINE, PANEL, ROW, STEP_BYTES, store_vnni
from kiln.codegen.gemm.element import Element
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import Value
from kiln.codegen.target import Target
from kiln.table.order import GROUP, LANES

HALVES = f"<{2 * LANES} x i16>"
KEPT_PITCH = kept_bytes(KEYS)  # bytes between the bits of rows
VECTOR = LANES * 4  # bytes
DOWN_PITCH = QUERIES * LINE  # bytes between VNNI panels whose k are queries


class _Lanes(Rows):
    """A routine over lanes of rows under construction."""

    def begin(self, base: Pointer, r: Index) -> Value:
        """The lanes of a row."""
        kind = f"<{LANES} x float>"
        return Value(self._place(base, r).load(kind, 64), self.type, LANES)

    def end(self, base: Pointer, r: Index, x: Value) -> None:
        """Keeps them."""
        self._place(base, r).store(x.typed, 64)

    def products(self, lanes: Pointer) -> Pointer:
        """The lanes of the second sum."""
        return lanes[PANEL * VECTOR]

    def _place(self, base: Pointer, r: Index) -> Pointer:
        return base[r * VECTOR]


class _Blocks(Scores, _Lanes):
    """A routine over blocks of scores under construction."""

    def __init__(self, spec: AttentionSpec, target: Target, element: Element, name: str, params: str) -> None:
        self.drops = spec.drop is not None
        kept = f", ptr %kept, {float_kind(element)} %factor" if self.drops else ""
        super().__init__(target, element, name, params + kept, spec.mask, spec.causal)

    def of_row(self, base: Pointer, r: Index) -> Value:
        """A row's number, for 16 columns."""
        return self.machine.spread(self.one(self.at(base, r)), LANES)

    def weights(self, row: Row, top: Value, column: Index, edge: bool) -> list[Value]:
        """e of 32 columns."""
        return [self.weight(self.x(row, c, edge), top, edge) for c in self.pair(column)]

    def drop(self, r: Index, column: Index, x: Value) -> Value:
        """What dropout leaves, if there is any."""
        kept = self.code.pointer("%kept")
        return self.kept(kept[r * KEPT_PITCH], column, x) if self.drops else x

    def grad(self, r: Index, row: Row, column: Index, edge: bool) -> Value:
        """What dropout leaves of dP; 0 where it may not be looked at."""
        grads = self.code.pointer("%grads")
        pitch = self.code.index("%pitch")
        place = grads[r * pitch]
        d = self.drop(r, column, self.read(place, column))
        return self.machine.choose(self.inside(row, column), d, self.zero) if edge else d

    def beyond(self, limit: Index) -> Index:
        """The first of 32 columns of which none may be looked at."""
        return limit.ceil_div(PAD) * PAD

    def pair(self, column: Index) -> tuple[Index, Index]:
        """Where the two vectors of 32 columns begin."""
        return column, column + LANES

    def totals(
        self, limit: Index, lanes: list[Value], elements: Callable[[Index, bool], list[list[Value]]]
    ) -> list[Value]:
        """Lanes of sums after a block's elements, two vectors of 32 columns for each sum.

        each GROUP of columns:  a chain of its elements, then onto the lanes
        """
        code, reducer = self.code, self.reducer("sum")
        none = reducer.identity(LANES) * len(lanes)

        def added(values: list[Value], found: list[list[Value]]) -> list[Value]:
            for several in zip(*found):
                values = [reducer.step([x], [y])[0] for x, y in zip(values, several)]
            return values

        with code.loop(0, limit, GROUP, lanes) as group:
            stop = limit.min(group.index + GROUP)
            whole = self.whole(stop)
            with code.loop(group.index, whole, PAD, none) as turn:
                turn.next = added(turn.values, elements(turn.index, False))
            with code.loop(whole, stop, PAD, turn.values) as rest:
                rest.next = added(rest.values, elements(rest.index, True))
            group.next = added(group.values, [[x] for x in rest.values])
        return group.values

    def halves(self, x: Value, y: Value) -> str:
        """Two vectors as bfloat16, side by side."""
        brains = f"<{2 * LANES} x bfloat>"
        found = self.code.call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", brains, [y.typed, x.typed])
        return self.code.op(f"bitcast {brains} {found} to {HALVES}")

    def line(self, place: Pointer, halves: str = "zeroinitializer") -> None:
        """Stores 32 elements of bfloat16."""
        place.store(f"{HALVES} {halves}", 64)

    def across(self, base: Pointer, r: Index, column: Index) -> Pointer:
        """Where 32 columns of a packed row lie."""
        return base[column * (STEP_BYTES // PAD), r * LINE]


def highest(spec: AttentionSpec, target: Target, element: Element) -> Routine:
    """The routine highest: lanes = max(lanes, x); the first block is `fresh`. A NaN stays out of it."""
    made = _Blocks(spec._replace(drop=None), target, element, "highest", ", ptr %lanes, i1 %fresh")
    code = made.code
    lanes = code.pointer("%lanes")
    rows = code.index("%rows")
    with code.times(rows) as r:
        row, whole = made.row(r), made.whole(made.row(r).limit)
        before = code.op(f"select i1 %fresh, {made.low.typed}, {made.begin(lanes, r).typed}")
        with code.loop(0, whole, PAD, [Value(before, made.type, LANES), made.low]) as turn:
            xs = [made.x(row, column, False) for column in made.pair(turn.index)]
            turn.next = [made.larger(best, x) for best, x in zip(turn.values, xs)]
        with code.loop(whole, row.limit, LANES, [made.larger(*turn.values)]) as rest:
            rest.next = [made.larger(rest.values[0], made.x(row, rest.index, True))]
        made.end(lanes, r, rest.values[0])
    return code


def peak(target: Target, element: Element) -> Routine:
    """The routine peak: each row:  m = max lanes, 0 where every x is -inf or `none`;  nothing is in
    its sums.
    """
    made = _Lanes(target, element, "peak", "ptr %lanes, ptr %tops, i64 %rows, i1 %none")
    code, nothing = made.code, made.reducer("sum").identity(LANES)[0]
    lanes, tops = code.pointers("lanes", "tops")
    rows = code.index("%rows")
    with code.times(rows) as r:
        largest = made.top(made.reducer("max").tree([made.begin(lanes, r)])[0])
        top = made.machine.choose(code.condition("%none").value, made.number(0.0), largest)
        made.memory.write(made.dtype, made.at(tops, r), top)
        for place in (lanes, made.products(lanes)):
            made.end(place, r, nothing)
    return code


def settle(target: Target, element: Element) -> Routine:
    """The routine settle: each row, both sums:  total (0 where `fresh`) += its lanes, which begin again;
    share = 1 / total, mean = share * the other total.
    """
    made = _Lanes(
        target, element, "settle", "ptr %lanes, ptr %totals, ptr %shares, ptr %means, i64 %rows, i1 %fresh"
    )
    code, reducer = made.code, made.reducer("sum")
    lanes, totals, shares, means = code.pointers("lanes", "totals", "shares", "means")
    rows = code.index("%rows")
    nothing = reducer.identity(LANES)[0]
    places = [(lanes, totals), (made.products(lanes), made.at(totals, code.index(PANEL)))]
    with code.times(rows) as r:
        found = []
        for own, sums in places:
            place = made.at(sums, r)
            before = code.op(f"select i1 %fresh, {reducer.identity()[0].typed}, {made.one(place).typed}")
            total = reducer.step([Value(before, made.type)], reducer.tree([made.begin(own, r)]))[0]
            made.memory.write(made.dtype, place, total)
            made.end(own, r, nothing)
            found.append(total)
        share = made.share(found[0])
        made.memory.write(made.dtype, made.at(shares, r), share)
        mean = made.machine.instruction("fmul", share, found[1])
        made.memory.write(made.dtype, made.at(means, r), mean)
    return code


def weigh(spec: AttentionSpec, target: Target, element: Element) -> Routine:
    """The routine weigh: each row:  weights = what dropout leaves of e, across;  lanes += e."""
    made = _Blocks(spec, target, element, "weigh", ", ptr %tops, ptr %lanes, ptr %weights")
    code = made.code
    lanes, tops, weights = code.pointers("lanes", "tops", "weights")
    count, rows = code.indices("count", "rows")
    with code.times(rows) as r:
        row, top = made.row(r), made.of_row(tops, r)

        def elements(
            column: Index, edge: bool, r: Index = r, row: Row = row, top: Value = top
        ) -> list[list[Value]]:
            es = made.weights(row, top, column, edge)
            kept = [made.drop(r, c, e) for c, e in zip(made.pair(column), es)]
            made.line(made.across(weights, r, column), made.halves(*kept))
            return [es]

        made.end(lanes, r, made.totals(row.limit, [made.begin(lanes, r)], elements)[0])
        with code.loop(made.beyond(row.limit), count, PAD) as turn:
            made.line(made.across(weights, r, turn.index))
    return code


def tally(spec: AttentionSpec, target: Target, element: Element) -> Routine:
    """The routine tally: each row:  lanes += e, the second's += e * kept dP."""
    made = _Blocks(spec, target, element, "tally", ", ptr %grads, ptr %tops, ptr %lanes")
    code = made.code
    lanes, tops = code.pointers("lanes", "tops")
    rows = code.index("%rows")
    both = [lanes, made.products(lanes)]
    with code.times(rows) as r:
        row, top = made.row(r), made.of_row(tops, r)

        def elements(
            column: Index, edge: bool, r: Index = r, row: Row = row, top: Value = top
        ) -> list[list[Value]]:
            es = made.weights(row, top, column, edge)
            ds = [made.grad(r, row, c, edge) for c in made.pair(column)]
            return [es, [made.machine.instruction("fmul", e, d) for e, d in zip(es, ds)]]

        totals = made.totals(row.limit, [made.begin(place, r) for place in both], elements)
        for place, total in zip(both, totals):
            made.end(place, r, total)
    return code


class _Slopes(_Blocks):
    """The routine slopes under construction."""

    def __init__(self, spec: AttentionSpec, target: Target, element: Element) -> None:
        params = ", ptr %grads, ptr %tops, ptr %shares, ptr %means, ptr %across, ptr %down, ptr %weights"
        super().__init__(spec, target, element, "slopes", params)
        self.gives = spec.gives

    def write_rows(self) -> Routine:
        """Two rows at a time; past the last of `rows` those whose weights are 0."""
        code = self.code
        shares, means = code.pointers("shares", "means")
        rows, count = code.indices("rows", "count")
        last = rows - 1
        with code.times(PANEL, 2) as r:
            places = (r, r + 1)
            pair = [self.row(k, k.min(last)) for k in places]
            numbers = [[self._top(k), *(self.of_row(base, k) for base in (shares, means))] for k in places]
            limit, whole = pair[1].limit, self.whole(pair[0].limit)
            for start, end, edge in ((code.index(0), whole, False), (whole, limit, True)):
                with code.loop(start, end, PAD) as turn:
                    first, second = (
                        self._found(k, row, own, turn.index, edge)
                        for k, row, own in zip(places, pair, numbers)
                    )
                    self._store(r, turn.index, first, second)
            nothing = ("zeroinitializer", "zeroinitializer")
            with code.loop(self.beyond(limit), count, PAD) as turn:
                self._store(r, turn.index, nothing, nothing)
        return code

    def _top(self, r: Index) -> Value:
        """What is taken from a row's x; all, whatever the mask adds to it, where there is no such row."""
        rows = self.code.index("%rows")
        there = (r < rows).value
        return self.machine.choose(there, self.of_row(self.code.pointer("%tops"), r), self.number(INFINITY))

    def _found(self, r: Index, row: Row, numbers: list[Value], column: Index, edge: bool) -> tuple[str, str]:
        """p and dS of 32 columns."""
        machine, (top, share, mean) = self.machine, numbers
        ps, slopes = [], []
        for c, e in zip(self.pair(column), self.weights(row, top, column, edge)):
            p = machine.instruction("fmul", e, share)
            less = machine.instruction("fsub", self.grad(r, row, c, edge), mean)
            ps.append(self.drop(r, c, p))
            slopes.append(machine.instruction("fmul", p, less))
        return self.halves(*ps), self.halves(*slopes)

    def _store(self, r: Index, column: Index, first: tuple[str, str], second: tuple[str, str]) -> None:
        """What products read of two rows: each as it is, both interleaved in the panel of these columns."""
        code = self.code
        across, down, weights = code.pointers("across", "down", "weights")
        if "q" in self.gives:
            for k, (_, slopes) in enumerate((first, second)):
                self.line(self.across(across, r + k, column), slopes)
        for name, base, which in (("v", weights, 0), ("k", down, 1)):
            if name in self.gives:
                place = base[column * (DOWN_PITCH // PAD), r * (ROW // 2)]
                store_vnni(code, "i16", [first[which], second[which]], place)


def slopes(spec: AttentionSpec, target: Target, element: Element) -> Routine:
    """The routine slopes: each row:  p = e * share;  dS = p * (kept dP - mean);  kept p and dS are stored.

    VNNI panels have the pitch DOWN_PITCH; `%down` and `%weights` are those of the first row. Rows are a whole
    PANEL: past the last of `rows`, what is stored is 0, as the weights and the shares are.
    """
    return _Slopes(spec, target, element).write_rows()
