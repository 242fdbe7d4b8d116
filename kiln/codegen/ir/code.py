"""Writing LLVM text: names, blocks, loops, stack slots, declarations.

loop:                      what `Code.loop` writes; the values carried round are phis of the head
    head:  i = phi start, i + step;  c = phi init, next;  if i >= limit goto exit
    body:  ...; i += step; goto head
    exit:
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from kiln.codegen.ir.index import KNOWN, Condition, Index, Integer, Named, Pointer
from kiln.codegen.ir.value import Value, llvm_type
from kiln.codegen.target import Target, intrinsic_allowed
from kiln.scalars.scalar import Scalar
from kiln.table.order import LANES

new = object.__new__
Carried: TypeAlias = Value | Index  # round a loop
Mark: TypeAlias = tuple[int, int, dict[str, str], str]  # how much of a kernel is written: see `Code.mark`
IOTA32 = "<" + ", ".join(f"i32 {n}" for n in range(LANES)) + ">"
IOTA64 = "<" + ", ".join(f"i64 {n}" for n in range(LANES)) + ">"


class Loop:
    """One loop under construction: `index`, the values of this turn, and `next`, those of the coming one."""

    __slots__ = ("index", "next", "values")

    def __init__(self, index: Index, values: list[Value]) -> None:
        self.index = index
        self.values = values
        self.next: Sequence[Carried] = values

    @property
    def indices(self) -> list[Index]:
        """The values of this turn, of a loop that carries integers."""
        return [Index(self.index.code, v.text) for v in self.values]


class Code:
    """The text of one kernel under construction; blocks are written in order."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.declared: dict[str, str] = {}
        self.rare: dict[int, list[Scalar]] = {}  # see kiln.codegen.ir.emit.rare_families
        self.rounded: dict[tuple[str, str], Value] = {}  # bits of what is rounded to 16, by name and dtype
        self.block = "entry"
        self._names = 0

    def name(self) -> str:
        """A fresh SSA name."""
        self._names += 1
        return f"%v{self._names}"

    def label(self) -> str:
        """A fresh block label."""
        self._names += 1
        return f"b{self._names}"

    def op(self, text: str) -> str:
        """Write `name = text`; the name."""
        self._names = number = self._names + 1
        name = f"%v{number}"
        self.lines.append(f"  {name} = {text}")
        return name

    def make(self, kind: type[Named], text: str) -> Named:
        """The same, of one of the types of addresses; without `__init__`, which takes as long as the rest."""
        self._names = number = self._names + 1
        name = f"%v{number}"
        self.lines.append(f"  {name} = {text}")
        made = new(kind)
        made.code, made.text = self, name
        return made

    def line(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append("  " + text)

    def begin(self, label: str) -> None:
        """Start the block `label`."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End the block by going to `label`."""
        self.line(f"br label %{label}")

    def branch(self, condition: Condition, then: str, otherwise: str) -> None:
        """End the block by going to `then` where the i1 `condition` holds, else to `otherwise`."""
        self.line(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def slot(self, type: str, count: int = 1) -> Pointer:
        """A pointer to `count` elements of LLVM type `type` on the stack, 64-byte aligned."""
        name = self.name()
        self.slots.append(f"  {name} = alloca {type}, i64 {count}, align 64")
        return Pointer(self, name)

    def call(self, intrinsic: str, result: str, arguments: Sequence[str]) -> str:
        """Call an allowed intrinsic by its full name; the result's name ("" for void)."""
        if intrinsic not in self.declared:
            assert intrinsic_allowed(intrinsic, self.target), f"{intrinsic} not allowed on {self.target.name}"
            types = ", ".join(
                a.rsplit(" ", 1)[0] if "splat (" not in a else _literal_type(a) for a in arguments
            )
            self.declared[intrinsic] = f"declare {result} @{intrinsic}({types})"
        text = f"call {result} @{intrinsic}({', '.join(arguments)})"
        if result == "void":
            self.line(text)
            return ""
        return self.op(text)

    def prefetch(self, where: Pointer, write: bool = False) -> None:
        """Ask for the cache line at `where`, to be read or written; any address will do."""
        self.call("llvm.prefetch.p0", "void", [f"ptr {where}", f"i32 {int(write)}", "i32 3", "i32 1"])

    # -- names and literals, typed ------------------------------------------------------------------

    def index(self, x: Integer | str | Value) -> Index:
        """An i64: a literal, or one that has a name."""
        if isinstance(x, Index):
            return x
        return Index(self, x.text if isinstance(x, Value) else str(x))

    def pointer(self, name: str) -> Pointer:
        """A pointer that has a name."""
        return Pointer(self, name)

    def indices(self, *names: str) -> list[Index]:
        """The function's own arguments that are i64."""
        return [Index(self, f"%{name}") for name in names]

    def pointers(self, *names: str) -> list[Pointer]:
        """Those that are pointers."""
        return [Pointer(self, f"%{name}") for name in names]

    def condition(self, x: bool | str | Value) -> Condition:
        """An i1: a literal, or one that has a name."""
        if isinstance(x, bool):
            return Condition(self, "true" if x else "false")
        return Condition(self, x.text if isinstance(x, Value) else x)

    # -- the kernel's arguments: operands in `ptr`, integers and numbers in `arg` -------------------

    @property
    def ptr(self) -> Pointer:
        """The operands' pointers."""
        return Pointer(self, "%ptr")

    @property
    def arg(self) -> Pointer:
        """Integers and numbers."""
        return Pointer(self, "%arg")

    def operand(self, place: int) -> Pointer:
        """Where an operand lies."""
        return self.ptr.pointer(place)

    def argument(self, place: int) -> Index:
        """An integer."""
        return self.arg.word(place)

    def number(self, place: int, type: str) -> Value:
        """A number of scalar type "i64" or "f64"."""
        return Value(self.arg.element("i64", place).load(llvm_type(type, 1)), type)

    # -- control ------------------------------------------------------------------------------------

    @contextmanager
    def repeat(self, carried: Sequence[Carried], test: Callable[[Loop], Condition]) -> Iterator[Loop]:
        """while test(turn): ...; its `values` are those of this turn, and after the loop the final ones."""
        before, head, body, out = self.block, self.label(), self.label(), self.label()
        self.jump(head)
        self.begin(head)
        turn = Loop(self.index(0), [Value(self.name(), v.type, v.width) for v in carried])
        place = len(self.lines)
        self.branch(test(turn), body, out)
        self.begin(body)
        yield turn
        self.lines[place:place] = self._phis(turn, carried, before)
        self.jump(head)
        self.begin(out)

    def _phis(self, turn: Loop, carried: Sequence[Carried], before: str) -> list[str]:
        """The phis of the values a loop carries from the block `before` and from the current block."""
        return [
            f"  {v.text} = phi {v.llvm} [ {first.text}, %{before} ], [ {after.text}, %{self.block} ]"
            for v, first, after in zip(turn.values, carried, turn.next)
        ]

    @contextmanager
    def loop(
        self, start: Integer, limit: Integer, step: int, carried: Sequence[Carried] = ()
    ) -> Iterator[Loop]:
        """for index = start; index < limit; index += step. `values` after it are the final carried ones."""
        before, head, body, out = self.block, self.label(), self.label(), self.label()
        self.jump(head)
        self.begin(head)
        values = [Value(self.name(), v.type, v.width) for v in carried]
        turn = Loop(Index(self, self.name()), values)
        place = len(self.lines)
        self.branch(turn.index < limit, body, out)
        self.begin(body)
        yield turn
        following = self.op(f"add i64 {turn.index}, {step}")
        phis = [f"  {turn.index} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]"]
        self.lines[place:place] = phis + self._phis(turn, carried, before)
        self.jump(head)
        self.begin(out)

    def mark(self) -> Mark:
        """What is written so far."""
        return len(self.lines), len(self.slots), dict(self.declared), self.block

    def cut(self, mark: Mark) -> None:
        """Takes back what was written since, which would never run."""
        lines, slots, self.declared, self.block = mark
        del self.lines[lines:], self.slots[slots:]

    @contextmanager
    def when(self, condition: Condition) -> Iterator[None]:
        """Run what is written inside only where `condition` holds."""
        if condition.text in KNOWN:
            before = self.mark()
            yield
            if condition.text == "false":
                self.cut(before)
            return
        inside, out = self.label(), self.label()
        self.branch(condition, inside, out)
        self.begin(inside)
        yield
        self.jump(out)
        self.begin(out)

    @contextmanager
    def either(self, condition: Condition) -> Iterator[Iterator[None]]:
        """if/else: yields an iterator; `next` on it ends the first half and begins the second."""
        if condition.text in KNOWN:
            halves = self._one_of(condition.text == "true", self.mark())
            yield halves
            for _ in halves:
                pass
            return
        then, other, out = self.label(), self.label(), self.label()
        self.branch(condition, then, other)
        self.begin(then)

        def turn() -> Iterator[None]:
            self.jump(out)
            self.begin(other)
            yield

        yield turn()
        self.jump(out)
        self.begin(out)

    def _one_of(self, first: bool, before: Mark) -> Iterator[None]:
        """The same of a condition that is known: one half is taken back."""
        if not first:
            self.cut(before)
        after = self.mark()
        yield
        if first:
            self.cut(after)

    def text(self) -> str:
        """The module: one function `kernel` and the intrinsics it names."""
        head = "define void @kernel(ptr %ptr, ptr %arg, i64 %begin, i64 %end) #0 {\nentry:"
        tail = f"}}\nattributes #0 = {{ {self.target.attributes()} }}\n"
        one = "!0 = !{i32 1}"  # what `!nontemporal` names
        return "\n".join(
            [self.target.head(), head, *self.slots, *self.lines, tail, *self.declared.values(), one, ""]
        )


def _literal_type(argument: str) -> str:
    """The type of a written argument whose value is a splat literal."""
    return argument.split(" splat (", 1)[0]
