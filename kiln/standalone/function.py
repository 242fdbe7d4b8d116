"""Functions of a library that are not kernels: LLVM text, with results and calls; what they ask of its
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Union

from kiln.codegen.ir.code import Code
from kiln.codegen.ir.index import Condition, Integer, Pointer
from kiln.codegen.target import Target
from kiln.graph.graph import Graph
from kiln.graph.size import Dim
from kiln.passes.launch import Kernel
from kiln.passes.plan import Plan
from kiln.standalone.sizes import Interval


class Function(Code):
    """One function of a module under construction."""

    def __init__(
        self, target: Target, result: str, name: str, params: str, linkage: str = "internal"
    ) -> None:
        super().__init__(target)
        self.head = f"define {linkage} {result} @{name}({params}) #0 {{\nentry:"

    def text(self) -> str:
        return "\n".join([self.head, *self.slots, *self.lines, "}", ""])

    def call_for(self, result: str, name: str, *arguments: Integer | Pointer) -> str:
        """Call a function: what it gives, of an LLVM type, or "" for void."""
        typed = ", ".join(f"{'i64' if isinstance(x, int) else x.llvm} {x}" for x in arguments)
        text = f"call {result} @{name}({typed})"
        if result == "void":
            self.line(text)
            return ""
        return self.op(text)

    def return_where(self, condition: Condition, returned: Callable[[], str]) -> None:
        """Return where a condition holds; `returned` writes a value after its type, where it is needed."""
        stop, go_on = self.label(), self.label()
        self.branch(condition, stop, go_on)
        self.begin(stop)
        self.line(f"ret {returned()}")
        self.begin(go_on)


class Data(NamedTuple):
    """A tensor of the library: where it lies in its data, in bytes."""

    offset: int


Source = Union[int, Data]  # of an array: the number of the caller's, or one of the library's


class Runs(Protocol):
    """A graph that a library runs (body.py), as far as those know it that call it."""

    plan: Plan
    symbol: str

    def elements(self, k: int) -> Dim: ...
    def itemsize(self, k: int) -> int: ...
    def intervals(self, bounds: Mapping[int, Interval]) -> Iterator[Interval]: ...
    def write(self) -> None: ...


class Module(Protocol):
    """The module of a library (driver.py), as far as its parts know it."""

    found: Any
    graph: Graph
    name: str
    launcher: str
    mover: str
    counter: str
    most_pointers: int
    threads: bool
    blobs: dict[str, bytes]

    def function(self, result: str, name: str, params: str, linkage: str = "internal") -> Function: ...
    def new_body(
        self, graph: Graph, stated: Sequence[int], sources: Sequence[Source], called: bool
    ) -> Runs: ...
    def new_symbol(self, kind: str) -> str: ...
    def kernel(self, kernel: Kernel, launches: Sequence[Sequence[Dim]]) -> str: ...
    def data_at(self, f: Function) -> Pointer: ...
    def code_of(self, message: str) -> int: ...
