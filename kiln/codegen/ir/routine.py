"""Routines: the functions that a kernel of several is made of (a product, attention, a recurrence), written
with `Code`.

Tiles and packing, which do not depend on what is fused, are parts that kernels share; a kernel's own are the
driver, which is compiled quickly, and what is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from kiln.codegen.compile import Part
from kiln.codegen.ir.code import Code
from kiln.codegen.ir.index import Condition, Index, Integer, Pointer, Variable
from kiln.codegen.ir.value import Value
from kiln.codegen.target import Target

Argument: TypeAlias = Integer | Pointer | Condition | Value  # of a routine


class Routine(Code):
    """One function under construction; variables on the stack, calls of others."""

    def __init__(self, target: Target, name: str, params: str, quick: bool = False) -> None:
        super().__init__(target)
        self.title, self.quick, self.head = name, quick, f"void @{name}({params}) #0 {{"

    def variable(self, value: Integer | None = None) -> Variable:
        """A variable, that holds `value` if one is given."""
        made = Variable(self.slot("i64"))
        if value is not None:
            made.set(value)
        return made

    def run(self, name: str, *arguments: Argument) -> None:
        """Call another routine."""
        self._call(f"@{name}", arguments)
        if name not in self.declared:
            types = ("i64" if isinstance(x, int) else x.llvm for x in arguments)
            self.declared[name] = f"declare void @{name}({', '.join(types)})"

    def run_at(self, address: Pointer, *arguments: Argument) -> None:
        """Call the routine that lies at an address."""
        self._call(address.text, arguments)

    def _call(self, callee: str, arguments: Sequence[Argument]) -> None:
        typed = [f"i64 {x}" if isinstance(x, int) else f"{x.llvm} {x.text}" for x in arguments]
        self.line(f"call void {callee}({', '.join(typed)})")

    @contextmanager
    def times(self, limit: Integer, step: int = 1) -> Iterator[Index]:
        """for index = 0; index < limit; index += step: yields the index."""
        with self.loop(0, limit, step) as turn:
            yield turn.index

    @contextmanager
    def during(self, variable: Variable, limit: Integer) -> Iterator[Index]:
        """while (index = variable) < limit, whose body must advance the variable: yields the index."""
        head, body, out = self.label(), self.label(), self.label()
        self.jump(head)
        self.begin(head)
        index = variable.get()
        self.branch(index < limit, body, out)
        self.begin(body)
        yield index
        self.jump(head)
        self.begin(out)

    def routine(self) -> str:
        """The finished function; hidden, so that code names its address relative to itself, and in a section
        of its own, so that a linker can leave it out.
        """
        section = f' section ".text.{self.title}" {{'
        head = f"define hidden {self.head.removesuffix(' {')}{section}"
        return "\n".join([head, "entry:", *self.slots, *self.lines, "  ret void", "}"])


def module(target: Target, routines: Sequence[Routine], constants: Sequence[str] = ()) -> str:
    """The module of some routines, with the constants that they name."""
    written = "\n".join(routine.routine() for routine in routines)
    declared = {name: text for routine in routines for name, text in routine.declared.items()}
    for routine in routines:
        declared.pop(routine.title, None)
    return "\n".join([
        target.head(),
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


def shared_part(
    target: Target, element: Any, *makers: Callable[[Target, Any], Routine], constants: Sequence[str] = ()
) -> Part:
    """Routines that all kernels of the same elements have, each with the name of what makes it."""
    names = tuple(make.__name__ for make in makers)

    def text() -> str:
        return module(target, [make(target, element) for make in makers], constants)

    return Part(names, text, shared=f"{' '.join(names)} of {element}")
