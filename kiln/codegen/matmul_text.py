"""Routines: the functions a matmul kernel is made of, written with `Code`.

Tiles and packing, which do not depend on the epilogue, are parts that kernels share; a kernel's own are the
driver, which is compiled quickly, and the finishing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from kiln.codegen.code import Code
from kiln.codegen.compile import Part
from kiln.codegen.target import Target


class Routine(Code):
    """One function under construction; i64 values, byte offsets, variables on the stack."""

    def __init__(self, target: Target, name: str, params: str, quick: bool = False) -> None:
        super().__init__(target)
        self.title, self.quick, self.head = name, quick, f"void @{name}({params}) #0 {{"

    def variable(self, value: str) -> str:
        """A mutable i64 on the stack, holding `value`."""
        slot = self.slot("i64")
        self.set(slot, value)
        return slot

    def set(self, slot: str, value: str) -> None:
        """Store an i64 into a variable."""
        self.line(f"store i64 {value}, ptr {slot}")

    def get(self, slot: str) -> str:
        """Load an i64 variable."""
        return self.op(f"load i64, ptr {slot}")

    def compare(self, relation: str, x: str, y: str) -> str:
        """The i1 of a comparison of two i64: eq ne slt sle sgt sge."""
        return self.op(f"icmp {relation} i64 {x}, {y}")

    def both(self, *conditions: str) -> str:
        """The conjunction of several i1."""
        first, *rest = conditions
        for condition in rest:
            first = self.op(f"and i1 {first}, {condition}")
        return first

    def choose(self, condition: str, x: str, y: str, type: str = "i64") -> str:
        """`condition ? x : y`."""
        return self.op(f"select i1 {condition}, {type} {x}, {type} {y}")

    def ceil_div(self, x: str, y: int) -> str:
        """ceil(x / y) of a non-negative i64."""
        return self.op(f"sdiv i64 {self.add(x, str(y - 1))}, {y}")

    def at(self, base: str, *offsets: str) -> str:
        """`base` advanced by the sum of the byte offsets."""
        for offset in offsets:
            base = self.offset(base, "i8", offset)
        return base

    def run(self, name: str, *arguments: str) -> None:
        """Call another routine; arguments are typed, or i64."""
        typed = [a if " " in a else f"i64 {a}" for a in arguments]
        self.line(f"call void @{name}({', '.join(typed)})")
        self.declared[name] = f"declare void @{name}({', '.join(a.split()[0] for a in typed)})"

    @contextmanager
    def times(self, limit: str, step: int = 1) -> Iterator[str]:
        """for index = 0; index < limit; index += step: yields the index."""
        with self.loop("0", limit, step) as turn:
            yield turn.index

    @contextmanager
    def during(self, slot: str, limit: str) -> Iterator[str]:
        """while (index = variable) < limit, whose body must advance the variable: yields the index."""
        head, body, out = self.label(), self.label(), self.label()
        self.jump(head)
        self.begin(head)
        index = self.get(slot)
        self.branch(self.compare("slt", index, limit), body, out)
        self.begin(body)
        yield index
        self.jump(head)
        self.begin(out)

    @contextmanager
    def either(self, condition: str) -> Iterator[Iterator[None]]:
        """if/else: yields an iterator; `next` on it ends the first half and begins the second."""
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

    def routine(self) -> str:
        """The finished function."""
        return "\n".join(["define " + self.head, "entry:", *self.slots, *self.lines, "  ret void", "}"])


def module(target: Target, routines: Sequence[Routine], constants: Sequence[str] = ()) -> str:
    """The module of some routines, with the constants that they name."""
    written = "\n".join(routine.routine() for routine in routines)
    declared = {name: text for routine in routines for name, text in routine.declared.items()}
    for routine in routines:
        declared.pop(routine.title, None)
    return "\n".join([
        f'target triple = "{target.triple}"',
        *(text for text in constants if text.split(" ", 1)[0] in written),
        written,
        f"attributes #0 = {{ {target.attributes()} }}",
        *declared.values(), "",
    ])  # fmt: skip


def own_parts(target: Target, routines: Sequence[Routine], constants: Sequence[str] = ()) -> list[Part]:
    """Routines as the parts of one kernel."""
    found = []
    for quick in (True, False):
        chosen = [routine for routine in routines if routine.quick == quick]
        if chosen:
            names = tuple(routine.title for routine in chosen)
            found.append(Part(names, partial(module, target, chosen, constants), quick))
    return found
