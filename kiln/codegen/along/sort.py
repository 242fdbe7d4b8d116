"""Sort: the positions that put the elements along a dim in order, or some of them (top k, a median).

A *record* is a key and a position: one word (key in its upper half) for keys of 32 bits, two for 64. Keys
are unsigned and ascend in the order asked for: floats by their bits with the sign made monotone, -0 as 0, NaN
last of all; descending, complemented. So every sort is stable and compares integers.

    the first ones by far:  some records go by at a time; else all at once
    records = key(x[i]), i                                             into scratch A
    sort them:
        few asked for:  digit by digit from the top, count, find the digit of the last record wanted, and keep
                        what is not above it (of one asked for: what has it)      in A, in order
        32 records or fewer:  insertion
        else per digit of 8 bits from the bottom, if not all are equal:    count, then move A -> B; swap them
    while elements are left:  as many records as are wanted stay; those of the next elements that are below
                              them all join them, until they are four times as many as before; sort them
    out[j] = position of record first + j
"""

from __future__ import annotations

from typing import Any

from kiln.codegen.along.along import Along, AlongSpec
from kiln.codegen.ir.code import Loop
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer
from kiln.codegen.ir.memory import compute_type
from kiln.codegen.target import Target
from kiln.scalars.scalar import FLOATS, SIGNED, WIDTH, Scalar, bits, const, convert, select
from kiln.table.order import LANES

DIGITS = 256
FEW = 32  # records sorted by insertion
# Records that go by together: so many for each that is wanted, and so many more; FEW, if that is enough.
EACH, MORE = 4, 64
ENOUGH = 5  # times as many as are wanted
WORTH = 4  # times as many elements, at least
GROWTH = 4  # of that number each time: where all elements are below those before, a third more go by


def key_of(x: Scalar, descending: bool) -> Scalar:
    """An unsigned integer that orders as x does: u32, or u64 for types of 64 bits."""
    if x.type == "i1":
        key = convert(x, "u32")
    elif x.type in FLOATS:
        signed, unsigned = ("i32", "u32") if x.type == "f32" else ("i64", "u64")
        width = WIDTH[x.type]
        word = bits(select(x.eq(0), const(0, x.type), x))
        top = const(-(1 << (width - 1)), signed)
        ordered = select(word < 0, ~word, word ^ top)
        key = convert(select(x.ne(x), const(-1, signed), ordered), unsigned)
    else:
        signed, unsigned = ("i64", "u64") if WIDTH[x.type] == 64 else ("i32", "u32")
        wide = convert(x, signed)
        key = convert(wide ^ const(-(1 << (WIDTH[signed] - 1)), signed), unsigned)
        if x.type not in SIGNED:
            key = convert(x, unsigned)
        elif WIDTH[x.type] < 32:  # fewer digits differ
            key = convert(wide + const(1 << (WIDTH[x.type] - 1), signed), unsigned)
    return ~key if descending else key


class Sort(Along):
    """A kernel being written; `what` of its pattern: "sort", ascending or descending."""

    operands = ("out", "x")
    numbers = ("along", "first", "wanted")  # elements; the first rank wanted, how many are

    def __init__(self, spec: AlongSpec, target: Target) -> None:
        super().__init__(spec, target)
        self.words = self._words_of(spec)
        self.bytes = 4 * self.words  # of a key
        self.shift = 64 - 8 * self.bytes  # of the key in its word
        self.scratch = self.code.operand(self.arguments(spec).pointer("scratch"))
        self.counts = self.code.slot("i64", DIGITS)
        self.along, self.first, self.wanted = (self.number[name] for name in self.numbers)

    @staticmethod
    def _words_of(spec: AlongSpec) -> int:
        """The words of a record."""
        return 2 if WIDTH[compute_type(spec.dtypes[1])] == 64 else 1

    @classmethod
    def scratch_words(cls, spec: AlongSpec, along: Any) -> Any:
        """Records, twice."""
        return along * (2 * cls._words_of(spec))

    # -- records ------------------------------------------------------------------------------------

    def _word(self, place: Index, which: int = 0) -> Pointer:
        """The address of a word of the record at a place of the scratch memory (in records)."""
        return self.scratch.element("i64", place * self.words + which)

    def _load(self, place: Index) -> list[Index]:
        return [self._word(place, w).word() for w in range(self.words)]

    def _store(self, place: Index, record: list[Index]) -> None:
        for w, word in enumerate(record):
            self._word(place, w).put(word)

    def _digit(self, record: list[Index], shift: Index) -> Index:
        return (record[0] >> shift) & (DIGITS - 1)

    def _count(self, digit: Index) -> Pointer:
        return self.counts.element("i64", digit)

    def _clear(self) -> None:
        with self.code.loop(0, DIGITS, 8) as turn:
            self._count(turn.index).store("<8 x i64> zeroinitializer", 64)

    def _count_up(self, digit: Index, more: Integer = 1) -> Index:
        """Adds to a digit's count; what it was."""
        place = self._count(digit)
        before = place.word()
        place.put(before + more)
        return before

    # -- the steps ----------------------------------------------------------------------------------

    def columns(self, unit: Index, pointers: list[Pointer], count: Index) -> None:
        """One column."""
        code = self.code
        last = self.first + self.wanted
        room = (last * ENOUGH <= FEW).choose(FEW, last * EACH + MORE)
        sparse = (last > 0) & (room * WORTH <= self.along)
        room = sparse.choose(room, self.along)
        self.ranks = sparse.choose(0, self.first), sparse.choose(last, self.wanted)
        self._make_records(pointers[1], room)
        # elements that went by, records there are and may be, the first of those that are sorted, whether
        # any are not
        begin = [room, room, room, code.index(0), code.index(1)]
        with code.repeat(begin, lambda turn: turn.indices[4] > 0) as loop:
            done, left, room, *_ = loop.indices
            left, passed = self._select(left)
            with code.when(left <= FEW):
                self._insertion(left)
            start = self._radix(left, (left <= FEW).choose(0, 8 * self.bytes))
            others = done < self.along
            with code.loop(0, others.choose(last, 0), 1) as turn:
                self._store(turn.index, self._load(start + turn.index))
            room = room * GROWTH
            done, left = self._below(pointers[1], done, last, room)
            loop.next = [done, left, room, start - passed, others.index()]
        start = loop.indices[3] + self.first
        with code.loop(0, self.wanted, 1) as turn:
            record = self._load(start + turn.index)
            mask = (1 << 32) - 1
            position = record[0] & mask if self.words == 1 else record[1]
            self.memory.write("int64", self.at(0, pointers[0], turn.index), position.value)

    def _key(self, pointer: Pointer, place: Index) -> Index:
        """The key of an element."""
        x = self.read(1, self.at(1, pointer, place))
        (key,) = self.computed(lambda e: [self._ordered(e)], [x])
        return self.code.index(self.machine.convert(key, "u64"))

    def _ordered(self, x: Scalar) -> Scalar:
        return key_of(x, self.spec.what == "sort descending")

    def _put(self, place: Index, key: Index, position: Index) -> None:
        """A record."""
        self._store(place, [(key << 32) | position] if self.words == 1 else [key, position])

    def _make_records(self, pointer: Pointer, count: Index) -> None:
        """Those of the first elements."""
        with self.code.loop(0, count, 1) as turn:
            self._put(turn.index, self._key(pointer, turn.index), turn.index)

    def _below(self, pointer: Pointer, done: Index, kept: Index, room: Index) -> tuple[Index, Index]:
        """Puts records of further elements that are below all of those kept behind them, while there is room:
        how many elements went by, how many records there are.

        while done < along and left < room:
            any of the next 16 below:  each:  A[left] = its record;  left += it is below
        """
        code, machine = self.code, self.machine
        kind = "u64" if self.words == 2 else "u32"
        side_by_side = self.spec.strides[1][0] == "1"

        def goes_on(turn: Loop) -> Condition:
            done, left = turn.indices
            return (done < self.along) & (left < room)

        with code.repeat([done, kept], goes_on) as loop:
            done, left = loop.indices
            group = (self.along - done).min(LANES)
            count, bound = group, self._load(kept - 1)[0] >> self.shift
            if side_by_side:
                whole = done.min(self.along - LANES)
                xs = self.memory.read_lanes(self.spec.dtypes[1], self.at(1, pointer, whole), None, None)
                limits = machine.spread(machine.convert(bound.value, kind), LANES)
                (below,) = self.computed(lambda x, y: [self._ordered(x) < y], [xs, limits])
                count = (machine.any(below) | (group < LANES)).choose(group, 0)
            with code.loop(0, count, 1, [left]) as turn:
                (place,) = turn.indices
                at = done + turn.index
                key = self._key(pointer, at)
                self._put(place, key, at)
                turn.next = [place + key.unsigned("lt", bound).index()]
            loop.next = [done + group, turn.indices[0]]
        return loop.indices[0], loop.indices[1]

    def _select(self, count: Index) -> tuple[Index, Index]:
        """Leaves in A what can be among the wanted, if that is few: how many records, and how many before.

        while left > 2 wanted + FEW and shift >= the lowest:      (key >> shift + 8) == prefix: undecided
            count the digits of the undecided;  find b: below it fewer than `need`, with it enough
            prefix = prefix . b;  need -= those below
            keep records with (key >> shift) <= prefix, of one wanted == prefix
        """
        code = self.code
        start, wanted = self.ranks
        sparse = wanted * 4 <= count
        most = sparse.choose(wanted * 2, count)
        limit = most + FEW
        one = wanted.equals(1)
        last = start + wanted
        first = [
            count,
            code.index(56),
            code.index(0),
            last,
            code.index(0),
        ]  # left, shift, prefix, need, passed

        def undecided(turn: Loop) -> Condition:
            left, shift, *_ = turn.indices
            larger = left > limit
            return larger & (shift >= self.shift)

        with code.repeat(first, undecided) as loop:
            left, shift, prefix, need, passed = loop.indices
            self._clear()
            with code.loop(0, left, 1) as turn:
                record = self._load(turn.index)
                same = self._above(record[0], shift).equals(prefix)
                more = same.index()
                self._count_up(self._digit(record, shift), more)
            digit, below = self._boundary(need)
            prefix = (prefix << 8) | digit
            lowest = one.choose(prefix, 0)
            kept = self._keep(left, shift, lowest, prefix)
            passed = passed + one.choose(below, 0)
            loop.next = [kept, shift - 8, prefix, need - below, passed]
        return loop.indices[0], loop.indices[4]

    def _above(self, key: Index, shift: Index) -> Index:
        """The digits of a key above the one at `shift`: nothing at the top."""
        return key >> shift >> 8

    def _boundary(self, need: Index) -> tuple[Index, Index]:
        """The digit the record number `need` has, and how many records have a smaller one."""
        code = self.code

        def short(turn: Loop) -> Condition:
            digit, below = turn.indices
            count = self._count(digit).word()
            return below + count < need

        with code.repeat([code.index(0), code.index(0)], short) as loop:
            digit, below = loop.indices
            count = self._count(digit).word()
            loop.next = [digit + 1, below + count]
        digit, below = loop.indices
        return digit, below

    def _keep(self, left: Index, shift: Index, lowest: Index, prefix: Index) -> Index:
        """Moves the records whose upper digits are from `lowest` to `prefix` together; how many they are."""
        code = self.code
        with code.loop(0, left, 1, [code.index(0)]) as turn:
            record = self._load(turn.index)
            (kept,) = turn.indices
            self._store(kept, record)
            upper = record[0] >> shift
            below = upper.unsigned("le", prefix)
            fits = below & upper.unsigned("ge", lowest)
            turn.next = [kept + fits.index()]
        return kept

    def _insertion(self, left: Index) -> None:
        """for i in 1 .. left: r = A[i]; j = i; while j > 0 and A[j-1] > r: A[j] = A[j-1], j--; A[j] = r"""
        code = self.code
        with code.loop(1, left, 1) as turn:
            record = self._load(turn.index)

            def larger(turn: Loop) -> Condition:
                (place,) = turn.indices
                inside = place > 0
                before = inside.choose(place - 1, 0)
                key = self._word(before).word()
                return inside & key.unsigned("gt", record[0])

            with code.repeat([turn.index], larger) as loop:
                (place,) = loop.indices
                before = place - 1
                self._store(place, self._load(before))
                loop.next = [before]
            self._store(place, record)

    def _radix(self, left: Index, bits_: Index) -> Index:
        """Sorts by digits up to `bits_` of the key; the place of the first record, A's or B's."""
        code = self.code
        with code.loop(0, bits_, 8, [code.index(0), self.along]) as turn:
            here, there = turn.indices
            shift = turn.index + self.shift
            self._clear()
            with code.loop(0, left, 1) as inner:
                self._count_up(self._digit(self._load(here + inner.index), shift))
            first = self._count(self._digit(self._load(here), shift)).word()
            differ = first.differs(left)
            with code.when(differ):
                self._add_up()
                with code.loop(0, left, 1) as inner:
                    record = self._load(here + inner.index)
                    place = self._count_up(self._digit(record, shift))
                    self._store(there + place, record)
            turn.next = [differ.choose(there, here), differ.choose(here, there)]
        return here

    def _add_up(self) -> None:
        """Counts become the places of the first record of each digit."""
        code = self.code
        with code.loop(0, DIGITS, 1, [code.index(0)]) as turn:
            count = self._count(turn.index).word()
            (before,) = turn.indices
            self._count(turn.index).put(before)
            turn.next = [before + count]
