"""Sort: the positions that put the elements along a dim in order, or some of them (top k, a median).

A *record* is a key and a position: one word (key in its upper half) for keys of 32 bits, two for 64. Keys
are unsigned and ascend in the order asked for: floats by their bits with the sign made monotone, -0 as 0, NaN
last of all; descending, complemented. So every sort is stable and compares integers.

    records = key(x[i]), i                                             into scratch A
    few asked for:  digit by digit from the top, count, find the digit of the last record wanted, and keep
                    what is not above it (of one asked for: what has it)      in A, in order
    32 records or fewer:  insertion
    else per digit of 8 bits from the bottom, if not all are equal:    count, then move A -> B; swap them
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

DIGITS = 256
FEW = 32  # records sorted by insertion


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
        self._make_records(pointers[1])
        left, passed = self._select()
        few = left <= FEW
        with code.when(few):
            self._insertion(left)
        many = few.choose(0, 8 * self.bytes)
        start = self._radix(left, many)
        with code.loop(0, self.wanted, 1) as turn:
            record = self._load(start + (self.first - passed) + turn.index)
            mask = (1 << 32) - 1
            position = record[0] & mask if self.words == 1 else record[1]
            self.memory.write("int64", self.at(0, pointers[0], turn.index), position.value)

    def _make_records(self, pointer: Pointer) -> None:
        code = self.code
        descending = self.spec.what == "sort descending"
        with code.loop(0, self.along, 1) as turn:
            x = self.read(1, self.at(1, pointer, turn.index))
            (key,) = self.computed(lambda e: [key_of(e, descending)], [x])
            found = code.index(self.machine.convert(key, "u64"))
            if self.words == 1:
                upper = found << 32
                self._store(turn.index, [upper | turn.index])
            else:
                self._store(turn.index, [found, turn.index])

    def _select(self) -> tuple[Index, Index]:
        """Leaves in A what can be among the wanted, if that is few: how many records, and how many before.

        while left > 2 wanted + FEW and shift >= the lowest:      (key >> shift + 8) == prefix: undecided
            count the digits of the undecided;  find b: below it fewer than `need`, with it enough
            prefix = prefix . b;  need -= those below
            keep records with (key >> shift) <= prefix, of one wanted == prefix
        """
        code = self.code
        sparse = self.wanted * 4 <= self.along
        most = sparse.choose(self.wanted * 2, self.along)
        limit = most + FEW
        one = self.wanted.equals(1)
        last = self.first + self.wanted
        first = [
            self.along,
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
