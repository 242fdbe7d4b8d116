"""Sort: the positions that put the elements along a dim in order, or some of them (top k, a median).

A *record* is a key and a position: one word (key in its upper half) for keys of 32 bits, two for 64. Keys
are unsigned and ascend in the order asked for: floats by their bits with the sign made monotone, -0 as 0, NaN
last of all; descending, complemented. So every sort is stable and compares integers.

    records = key(x[i]), i                                             into scratch A
    few asked for:  digit by digit from the top, count, find the digit of the last record wanted, and keep
                    what is not above it (of one asked for: what has it)      in A, in order
    32 records or fewer:  insertion
    else per digit of 8 bits from the bottom, if not all are equal:    count, then move A -> B; exchange them
    out[j] = position of record first + j

Operands: out, x; then the thread's scratch memory, 64-bit words. Numbers: elements along, the first rank
wanted, how many are.
"""

from __future__ import annotations

from kiln.codegen.along import Along, AlongSpec
from kiln.codegen.memory import compute_type
from kiln.codegen.target import Target
from kiln.codegen.value import Value
from kiln.scalars.scalar import FLOATS, SIGNED, WIDTH, Scalar, bits, const, convert, select

DIGITS = 256
FEW = 32  # records sorted by insertion
SPARSE = 4  # the first of so many are found without sorting all


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


def words(dtype: str) -> int:
    """The words of a record."""
    return 2 if WIDTH[compute_type(dtype)] == 64 else 1


class Sort(Along):
    """A kernel being written; `what` of its pattern: "sort", ascending or descending."""

    numbers = 3

    def __init__(self, spec: AlongSpec, target: Target) -> None:
        super().__init__(spec, target)
        self.words = words(spec.dtypes[1])
        self.bytes = 4 * self.words  # of a key
        self.shift = 64 - 8 * self.bytes  # of the key in its word
        self.scratch = self.pointer(2)
        self.counts = self.code.slot("i64", DIGITS)
        self.along, self.first, self.wanted = self.number

    # -- records ------------------------------------------------------------------------------------

    def _word(self, place: str, which: int = 0) -> str:
        """The address of a word of the record at a place of the scratch memory (in records)."""
        code = self.code
        return code.offset(self.scratch, "i64", code.add(code.mul(place, str(self.words)), str(which)))

    def _load(self, place: str) -> list[str]:
        return [self.code.op(f"load i64, ptr {self._word(place, w)}") for w in range(self.words)]

    def _store(self, place: str, record: list[str]) -> None:
        for w, word in enumerate(record):
            self.code.line(f"store i64 {word}, ptr {self._word(place, w)}")

    def _digit(self, record: list[str], shift: str) -> str:
        return self.code.op(f"and i64 {self.code.op(f'lshr i64 {record[0]}, {shift}')}, {DIGITS - 1}")

    def _count(self, digit: str) -> str:
        return self.code.offset(self.counts, "i64", digit)

    def _clear(self) -> None:
        with self.code.loop("0", str(DIGITS), 8) as turn:
            self.code.line(f"store <8 x i64> zeroinitializer, ptr {self._count(turn.index)}, align 64")

    def _count_up(self, digit: str, more: str = "1") -> str:
        """Adds to a digit's count; what it was."""
        place = self._count(digit)
        before = self.code.op(f"load i64, ptr {place}")
        self.code.line(f"store i64 {self.code.op(f'add i64 {before}, {more}')}, ptr {place}")
        return before

    # -- the steps ----------------------------------------------------------------------------------

    def columns(self, unit: str, pointers: list[str], count: str) -> None:
        """One column."""
        code = self.code
        self._make_records(pointers[1])
        left, passed = self._select()
        few = code.op(f"icmp sle i64 {left}, {FEW}")
        with code.when(few):
            self._insertion(left)
        many = code.op(f"select i1 {few}, i64 0, i64 {8 * self.bytes}")
        start = self._radix(left, many)
        with code.loop("0", self.wanted, 1) as turn:
            record = self._load(code.add(code.add(start, code.sub(self.first, passed)), turn.index))
            mask = (1 << 32) - 1
            position = code.op(f"and i64 {record[0]}, {mask}") if self.words == 1 else record[1]
            self.memory.write("int64", self.at(0, pointers[0], turn.index), Value(position, "i64"))

    def _make_records(self, pointer: str) -> None:
        code = self.code
        descending = self.spec.what == "sort descending"
        with code.loop("0", self.along, 1) as turn:
            x = self.read(1, self.at(1, pointer, turn.index))
            (key,) = self.computed(lambda e: [key_of(e, descending)], [x])
            found = self.machine.convert(key, "u64").text
            if self.words == 1:
                upper = code.op(f"shl i64 {found}, 32")
                self._store(turn.index, [code.op(f"or i64 {upper}, {turn.index}")])
            else:
                self._store(turn.index, [found, turn.index])

    def _select(self) -> tuple[str, str]:
        """Leaves in A what can be among the wanted, if that is few: how many records, and how many before.

        while left > 2 wanted + FEW and shift >= the lowest:      (key >> shift + 8) == prefix: undecided
            count the digits of the undecided;  find b: below it fewer than `need`, with it enough
            prefix = prefix . b;  need -= those below
            keep records with (key >> shift) <= prefix, of one wanted == prefix
        """
        code = self.code
        sparse = code.op(f"icmp sle i64 {code.mul(self.wanted, str(SPARSE))}, {self.along}")
        most = code.op(f"select i1 {sparse}, i64 {code.mul(self.wanted, '2')}, i64 {self.along}")
        limit = code.add(most, str(FEW))
        one = code.op(f"icmp eq i64 {self.wanted}, 1")
        last = code.add(self.first, self.wanted)
        first = [self.along, "56", "0", last, "0"]  # left, shift, prefix, need, passed

        def undecided(v: list[Value]) -> str:
            larger = code.op(f"icmp sgt i64 {v[0].text}, {limit}")
            return code.op(f"and i1 {larger}, {code.op(f'icmp sge i64 {v[1].text}, {self.shift}')}")

        with code.repeat([Value(x, "i64") for x in first], undecided) as loop:
            left, shift, prefix, need, passed = (v.text for v in loop.values)
            self._clear()
            with code.loop("0", left, 1) as turn:
                record = self._load(turn.index)
                same = code.op(f"icmp eq i64 {self._above(record[0], shift)}, {prefix}")
                more = code.op(f"zext i1 {same} to i64")
                self._count_up(self._digit(record, shift), more)
            digit, below = self._boundary(need)
            prefix = code.op(f"or i64 {code.op(f'shl i64 {prefix}, 8')}, {digit}")
            lowest = code.op(f"select i1 {one}, i64 {prefix}, i64 0")
            kept = self._keep(left, shift, lowest, prefix)
            passed = code.add(passed, code.op(f"select i1 {one}, i64 {below}, i64 0"))
            values = [kept, code.sub(shift, "8"), prefix, code.sub(need, below), passed]
            loop.next = [Value(v, "i64") for v in values]
        return loop.values[0].text, loop.values[4].text

    def _above(self, key: str, shift: str) -> str:
        """The digits of a key above the one at `shift`: nothing at the top."""
        code = self.code
        upper = code.op(f"lshr i64 {code.op(f'lshr i64 {key}, {shift}')}, 8")
        return upper

    def _boundary(self, need: str) -> tuple[str, str]:
        """The digit the record number `need` has, and how many records have a smaller one."""
        code = self.code

        def short(v: list[Value]) -> str:
            count = code.op(f"load i64, ptr {self._count(v[0].text)}")
            return code.op(f"icmp slt i64 {code.op(f'add i64 {v[1].text}, {count}')}, {need}")

        with code.repeat([Value("0", "i64"), Value("0", "i64")], short) as loop:
            digit, below = (v.text for v in loop.values)
            count = code.op(f"load i64, ptr {self._count(digit)}")
            loop.next = [
                Value(code.op(f"add i64 {x}, {y}"), "i64") for x, y in ((digit, "1"), (below, count))
            ]
        return loop.values[0].text, loop.values[1].text

    def _keep(self, left: str, shift: str, lowest: str, prefix: str) -> str:
        """Moves the records whose upper digits are from `lowest` to `prefix` together; how many they are."""
        code = self.code
        with code.loop("0", left, 1, [Value("0", "i64")]) as turn:
            record = self._load(turn.index)
            self._store(turn.values[0].text, record)
            upper = code.op(f"lshr i64 {record[0]}, {shift}")
            below = code.op(f"icmp ule i64 {upper}, {prefix}")
            fits = code.op(f"and i1 {below}, {code.op(f'icmp uge i64 {upper}, {lowest}')}")
            more = code.op(f"zext i1 {fits} to i64")
            turn.next = [Value(code.op(f"add i64 {turn.values[0].text}, {more}"), "i64")]
        return turn.values[0].text

    def _insertion(self, left: str) -> None:
        """for i in 1 .. left: r = A[i]; j = i; while j > 0 and A[j-1] > r: A[j] = A[j-1], j--; A[j] = r"""
        code = self.code
        with code.loop("1", left, 1) as turn:
            record = self._load(turn.index)

            def larger(v: list[Value]) -> str:
                inside = code.op(f"icmp sgt i64 {v[0].text}, 0")
                before = code.op(f"select i1 {inside}, i64 {code.sub(v[0].text, '1')}, i64 0")
                key = code.op(f"load i64, ptr {self._word(before)}")
                return code.op(f"and i1 {inside}, {code.op(f'icmp ugt i64 {key}, {record[0]}')}")

            with code.repeat([Value(turn.index, "i64")], larger) as loop:
                place = loop.values[0].text
                before = code.sub(place, "1")
                self._store(place, self._load(before))
                loop.next = [Value(before, "i64")]
            self._store(loop.values[0].text, record)

    def _radix(self, left: str, bits_: str) -> str:
        """Sorts by digits up to `bits_` of the key; the place of the first record, A's or B's."""
        code = self.code
        starts = [Value("0", "i64"), Value(self.along, "i64")]
        with code.loop("0", bits_, 8, starts) as turn:
            here, there = (v.text for v in turn.values)
            shift = code.add(turn.index, str(self.shift))
            self._clear()
            with code.loop("0", left, 1) as inner:
                self._count_up(self._digit(self._load(code.add(here, inner.index)), shift))
            first = code.op(f"load i64, ptr {self._count(self._digit(self._load(here), shift))}")
            differ = code.op(f"icmp ne i64 {first}, {left}")
            with code.when(differ):
                self._add_up()
                with code.loop("0", left, 1) as inner:
                    record = self._load(code.add(here, inner.index))
                    place = self._count_up(self._digit(record, shift))
                    self._store(code.add(there, place), record)
            moved = Value(differ, "i1")
            pair = [Value(here, "i64"), Value(there, "i64")]
            turn.next = [self.machine.choose(moved, y, x) for x, y in zip(pair, reversed(pair))]
        return turn.values[0].text

    def _add_up(self) -> None:
        """Counts become the places of the first record of each digit."""
        code = self.code
        with code.loop("0", str(DIGITS), 1, [Value("0", "i64")]) as turn:
            count = code.op(f"load i64, ptr {self._count(turn.index)}")
            code.line(f"store i64 {turn.values[0].text}, ptr {self._count(turn.index)}")
            turn.next = [Value(code.op(f"add i64 {turn.values[0].text}, {count}"), "i64")]


def sort_ir(spec: AlongSpec, target: Target) -> str:
    """The LLVM text of the kernel: one function `kernel`, nothing undefined."""
    return Sort(spec, target).emit()
