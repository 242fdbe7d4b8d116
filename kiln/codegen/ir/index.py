"""Integers of addresses, pointers and conditions, written with operators.

    b[column // panel * pitch]          %v1 = sdiv i64 %column, 32
                                        %v2 = mul i64 %v1, %pitch
                                        %v3 = getelementptr i8, ptr %b, i64 %v2

An operator writes its instruction where it stands, its operands before, from left to right. A Python int may
stand on either side. What is known when the kernel is written is computed then: operators on two literals,
adding 0, multiplying by 0 or 1, comparisons of literals and what they choose write nothing.

`==` asks of Python whether two are one object, and is no instruction: `equals` is. A driver has thousands of
these, so an operator makes one call, `Code.make`, which writes the instruction and makes its result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NoReturn, Protocol, TypeAlias, TypeVar, overload

from kiln.codegen.ir.value import Value

Named = TypeVar("Named", "Index", "Pointer", "Condition")

WORDS = 1 << 64  # an i64 without a sign is below it
COMPUTED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "sdiv": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "srem": lambda x, y: abs(x) % abs(y) * (1 if x >= 0 else -1),
    "udiv": lambda x, y: x % WORDS // (y % WORDS),
    "urem": lambda x, y: x % WORDS % (y % WORDS),
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "lshr": lambda x, y: x % WORDS >> y,
    "ashr": operator.rshift,
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
    "ult": lambda x, y: x % WORDS < y % WORDS,
    "ule": lambda x, y: x % WORDS <= y % WORDS,
    "ugt": lambda x, y: x % WORDS > y % WORDS,
    "uge": lambda x, y: x % WORDS >= y % WORDS,
    "eq": operator.eq,
    "ne": operator.ne,
}
KNOWN = ("true", "false")
DIVISIONS = ("sdiv", "srem", "udiv", "urem")


class Code(Protocol):
    """What instructions are written with: `kiln.codegen.ir.code.Code`, as far as it is needed here."""

    def op(self, text: str) -> str: ...
    def make(self, kind: type[Named], text: str) -> Named: ...
    def line(self, text: str) -> None: ...
    def index(self, x: Integer | str | Value) -> Index: ...


class Index:
    """An i64, an SSA name or a literal. Division is towards zero; numbers are hardly ever negative."""

    __slots__ = ("code", "text")
    type, width, llvm = "i64", 1, "i64"  # as a Value has them

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        self.text = text

    def __format__(self, form: str) -> str:
        return self.text

    @property
    def value(self) -> Value:
        """The same as an element."""
        return Value(self.text, "i64")

    def _with(self, how: str, other: Integer) -> Index:
        x, y = self.text, other.text if other.__class__ is Index else str(other)
        if x[0] != "%" and y[0] != "%" and (y != "0" or how not in DIVISIONS):
            found = COMPUTED[how](int(x), int(y))
            return Index(self.code, str((found + WORDS // 2) % WORDS - WORDS // 2))
        return self.code.make(Index, f"{how} i64 {x}, {y}")

    # -- arithmetic ---------------------------------------------------------------------------------

    def __add__(self, other: Integer) -> Index:
        x, y = self.text, other.text if other.__class__ is Index else str(other)
        if y == "0":
            return self
        return Index(self.code, y) if x == "0" else self._with("add", other)

    def __radd__(self, other: int) -> Index:
        return self.code.index(other) + self

    def __sub__(self, other: Integer) -> Index:
        return self if text_of(other) == "0" else self._with("sub", other)

    def __rsub__(self, other: int) -> Index:
        return self.code.index(other) - self

    def __mul__(self, other: Integer) -> Index:
        x, y = self.text, other.text if other.__class__ is Index else str(other)
        if y == "1" or x == "0":
            return self
        return Index(self.code, y) if x == "1" or y == "0" else self._with("mul", other)

    def __rmul__(self, other: int) -> Index:
        return self.code.index(other) * self

    def __floordiv__(self, other: Integer) -> Index:
        return self if text_of(other) == "1" or self.text == "0" else self._with("sdiv", other)

    def __rfloordiv__(self, other: int) -> Index:
        return self.code.index(other) // self

    def __mod__(self, other: Integer) -> Index:
        return self._with("srem", other)

    def __divmod__(self, other: Integer) -> tuple[Index, Index]:
        quotient = self // other
        return quotient, self - quotient * other

    def udiv(self, other: Integer) -> Index:
        """The quotient of numbers without a sign."""
        return self._with("udiv", other)

    def urem(self, other: Integer) -> Index:
        """The remainder of numbers without a sign."""
        return self._with("urem", other)

    def ceil_div(self, other: int) -> Index:
        """self / other, rounded up, of a number that is not negative."""
        return (self + (other - 1)) // other

    def min(self, other: Integer) -> Index:
        """The smaller of two, signed."""
        return self._chosen("slt", other)

    def max(self, other: Integer) -> Index:
        """The larger of two, signed."""
        return self._chosen("sgt", other)

    def _chosen(self, relation: str, other: Integer) -> Index:
        return self._compared(relation, other).choose(self, other)

    # -- bits ---------------------------------------------------------------------------------------

    def __and__(self, other: Integer) -> Index:
        return self._with("and", other)

    def __or__(self, other: Integer) -> Index:
        return self._with("or", other)

    def __xor__(self, other: Integer) -> Index:
        return self._with("xor", other)

    def __lshift__(self, other: Integer) -> Index:
        return self._with("shl", other)

    def __rlshift__(self, other: int) -> Index:
        return self.code.index(other) << self

    def __rshift__(self, other: Integer) -> Index:
        """Zeros come in at the top."""
        return self._with("lshr", other)

    def __rrshift__(self, other: int) -> Index:
        return self.code.index(other) >> self

    def ashr(self, other: Integer) -> Index:
        """Shifted to the right; the sign comes in at the top."""
        return self._with("ashr", other)

    def bits(self, width: int) -> str:
        """So many low bits, an integer of that width."""
        return self.code.op(f"trunc i64 {self.text} to i{width}")

    # -- comparisons --------------------------------------------------------------------------------

    def _compared(self, relation: str, other: Integer) -> Condition:
        x, y = self.text, other.text if other.__class__ is Index else str(other)
        if x == y:
            return Condition(self.code, KNOWN[not COMPUTED[relation](0, 0)])
        if x[0] != "%" and y[0] != "%":
            return Condition(self.code, KNOWN[not COMPUTED[relation](int(x), int(y))])
        return self.code.make(Condition, f"icmp {relation} i64 {x}, {y}")

    def __lt__(self, other: Integer) -> Condition:
        return self._compared("slt", other)

    def __le__(self, other: Integer) -> Condition:
        return self._compared("sle", other)

    def __gt__(self, other: Integer) -> Condition:
        return self._compared("sgt", other)

    def __ge__(self, other: Integer) -> Condition:
        return self._compared("sge", other)

    def equals(self, other: Integer) -> Condition:
        """Whether they are the same number."""
        return self._compared("eq", other)

    def differs(self, other: Integer) -> Condition:
        """Whether they are two numbers."""
        return self._compared("ne", other)

    def unsigned(self, relation: str, other: Integer) -> Condition:
        """A comparison of numbers without a sign, lt le gt ge: a negative one is larger than all others."""
        return self._compared("u" + relation, other)


Integer: TypeAlias = Index | int


def text_of(x: Integer) -> str:
    """An i64 as it is written."""
    return x.text if x.__class__ is Index else str(x)


class Condition:
    """An i1. Python is told no truth of it: what depends on it is written for both cases."""

    __slots__ = ("code", "text")
    llvm = "i1"

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        self.text = text

    def __format__(self, form: str) -> str:
        return self.text

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the condition {self.text} is known when the kernel runs, not when it is written")

    @property
    def value(self) -> Value:
        """The same as an element."""
        return Value(self.text, "i1")

    def __and__(self, other: Condition) -> Condition:
        if self.text in KNOWN or other.text in KNOWN:
            return self if self.text == "false" or other.text == "true" else other
        return self.code.make(Condition, f"and i1 {self.text}, {other.text}")

    def __or__(self, other: Condition) -> Condition:
        if self.text in KNOWN or other.text in KNOWN:
            return self if self.text == "true" or other.text == "false" else other
        return self.code.make(Condition, f"or i1 {self.text}, {other.text}")

    def __invert__(self) -> Condition:
        if self.text in KNOWN:
            return Condition(self.code, KNOWN[self.text == "true"])
        return self.code.make(Condition, f"xor i1 {self.text}, true")

    def index(self) -> Index:
        """1 where it holds, else 0."""
        if self.text in KNOWN:
            return Index(self.code, str(int(self.text == "true")))
        return self.code.make(Index, f"zext i1 {self.text} to i64")

    @overload
    def choose(self, x: Integer, y: Integer) -> Index: ...
    @overload
    def choose(self, x: Pointer, y: Pointer) -> Pointer: ...
    @overload
    def choose(self, x: Condition, y: Condition) -> Condition: ...

    def choose(
        self, x: Integer | Pointer | Condition, y: Integer | Pointer | Condition
    ) -> Index | Pointer | Condition:
        """x where it holds, else y."""
        kind = Index if isinstance(x, int) else x.__class__
        if self.text in KNOWN or f"{x}" == f"{y}":
            found = y if self.text == "false" else x
            return Index(self.code, str(found)) if isinstance(found, int) else found
        return kind(self.code, self.code.op(f"select i1 {self.text}, {kind.llvm} {x}, {kind.llvm} {y}"))


def every(*conditions: Condition) -> Condition:
    """Whether all hold: all are written before any two are joined."""
    found, *more = conditions
    for condition in more:
        found = found & condition
    return found


class Pointer:
    """A ptr: `p[n]` lies n bytes after p, `p[n, m]` m bytes after that."""

    __slots__ = ("code", "text")
    llvm = "ptr"

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        self.text = text

    def __format__(self, form: str) -> str:
        return self.text

    def __getitem__(self, bytes: Integer | tuple[Integer, ...]) -> Pointer:
        if isinstance(bytes, tuple):
            found = self
            for step in bytes:
                found = found[step]
            return found
        code, place = self.code, bytes.text if bytes.__class__ is Index else str(bytes)
        return self if place == "0" else code.make(Pointer, f"getelementptr i8, ptr {self.text}, i64 {place}")

    def element(self, kind: str, index: Integer) -> Pointer:
        """The address `index` elements of an LLVM type after this one."""
        code, place = self.code, index.text if index.__class__ is Index else str(index)
        if place == "0":
            return self
        return code.make(Pointer, f"getelementptr {kind}, ptr {self.text}, i64 {place}")

    def address(self) -> Index:
        """The pointer as an integer."""
        return self.code.make(Index, f"ptrtoint ptr {self.text} to i64")

    def differs(self, other: Pointer) -> Condition:
        """Whether they are two addresses."""
        return self.code.make(Condition, f"icmp ne ptr {self.text}, {other.text}")

    # -- what lies there ----------------------------------------------------------------------------

    def word(self, n: Integer = 0) -> Index:
        """The n-th of the i64 that lie here."""
        return self.code.make(Index, f"load i64, ptr {self.element('i64', n).text}")

    def pointer(self, n: Integer = 0) -> Pointer:
        """The n-th of the pointers that lie here."""
        return self.code.make(Pointer, f"load ptr, ptr {self.element('ptr', n).text}")

    def put(self, x: Integer | Pointer, n: Integer = 0) -> None:
        """Stores an i64 or a pointer, the n-th that lies here."""
        kind = "ptr" if isinstance(x, Pointer) else "i64"
        self.element(kind, n).store(f"{kind} {x}")

    def load(self, kind: str, align: int = 0) -> str:
        """What lies here, of an LLVM type."""
        end = f", align {align}" if align else ""
        return self.code.op(f"load {kind}, ptr {self.text}{end}")

    def store(self, typed: str, align: int = 0) -> None:
        """Stores a value, which is written after its type."""
        end = f", align {align}" if align else ""
        self.code.line(f"store {typed}, ptr {self.text}{end}")


class Variable:
    """An i64 on the stack that changes while the kernel runs."""

    __slots__ = ("place",)

    def __init__(self, place: Pointer) -> None:
        self.place = place

    def get(self) -> Index:
        """Its value now."""
        return self.place.code.make(Index, f"load i64, ptr {self.place.text}")

    def set(self, x: Integer) -> None:
        """A new value."""
        self.place.code.line(f"store i64 {text_of(x)}, ptr {self.place.text}")
