"""Kernels that go along one dim: what scatter, scan, sort and search share.

A *column* is one index of the other dims. Columns do not touch each other, so a unit of work is a block of
neighbours along the last of them, and everything along the dim happens in a fixed order: the result does not
depend on who does which block.

    for unit in begin .. end:
        pointers of every operand at the unit's first column;  count = columns in it, at most `block`
        ...                                                     (the kernel's own)

A kernel of one algorithm is a class below `Along`, which names its operands and its own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kiln.codegen.arguments import Arguments
from kiln.codegen.ir.code import Code
from kiln.codegen.ir.emit import Expression, Machine
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import Memory, element
from kiln.codegen.ir.value import Value
from kiln.codegen.target import Target
from kiln.scalars.scalar import Scalar


class AlongSpec(NamedTuple):
    """The pattern of a kernel along one dim."""

    algorithm: str
    what: str  # it does
    dtypes: tuple[str, ...]  # of its operands
    strides: tuple[str, ...]  # the classes of each, the dim first

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return f"{self.what} {' '.join(self.dtypes)} strides {' '.join(self.strides)}"


def blocks(sizes: Sequence[Any], block: int) -> Any:
    """The units of work over column dims of these sizes, ints or symbolic."""
    total = (sizes[-1] + (block - 1)) // block
    for size in sizes[:-1]:
        total = total * size
    return total


class Along:
    """A kernel being written."""

    operands: tuple[str, ...]
    numbers: tuple[str, ...] = ("along",)  # the elements along the dim; what else the algorithm is told
    block = 1  # columns of a unit

    def __init__(self, spec: AlongSpec, target: Target) -> None:
        self.spec = spec
        self.code = code = Code(target)
        self.memory = Memory(code)
        self.machine = Machine(code)
        places = self.arguments(spec)
        self.base = [code.operand(places.pointer(name)) for name in self.operands]
        self.number = {name: code.argument(places.word("number", name)) for name in self.numbers}
        self.sizes = [code.argument(places.word("size", d)) for d in range(1, len(spec.strides[0]))]
        self.stride = [
            [
                code.index(kind) if kind in "01" else code.argument(places.word("stride", name, d))
                for d, kind in enumerate(classes)
            ]
            for name, classes in zip(self.operands, spec.strides)
        ]

    @classmethod
    def arguments(cls, spec: AlongSpec) -> Arguments:
        """The kernel's arguments: sizes are of the columns' dims, strides along the dim, then along those."""
        dims = range(len(spec.strides[0]))
        strides = dict.fromkeys(cls.operands, dims)
        return Arguments(cls.operands, ("scratch",), number=cls.numbers, size=dims[1:], stride=strides)

    @classmethod
    def scratch_words(cls, spec: AlongSpec, along: Any) -> Any:
        """The 64-bit words of memory that each thread needs to itself; `along` is an int or symbolic."""
        return 0

    def emit(self) -> str:
        """The kernel's LLVM text: one function `kernel`, nothing undefined."""
        code = self.code
        begin, end = code.indices("begin", "end")
        total = (self.sizes[-1] + (self.block - 1)).udiv(self.block)
        with code.loop(begin, end, 1) as unit:
            first, pointers = self._unit(unit.index, total)
            count = (self.sizes[-1] - first).min(self.block)
            self.columns(unit.index, pointers, count)
        code.line("ret void")
        return code.text()

    @property
    def alone(self) -> bool:
        """Whether the pattern has one column: nobody writes one place for several."""
        return set(self.spec.strides[0][1:]) == {"0"}

    def columns(self, unit: Index, pointers: list[Pointer], count: Index) -> None:
        """Writes what is done for `count` columns from the pointers on."""
        raise NotImplementedError

    def _unit(self, unit: Index, total: Index) -> tuple[Index, list[Pointer]]:
        """The first column of a unit along the last column dim, and every operand's pointer there."""
        first = unit.urem(total) * self.block
        rest = unit.udiv(total)
        position = [first]
        for size in reversed(self.sizes[:-1]):
            position.insert(0, rest.urem(size))
            rest = rest.udiv(size)
        pointers = []
        for k, pointer in enumerate(self.base):
            for at, stride in zip(position, self.stride[k][1:]):
                pointer = self._moved(k, pointer, at, stride)
            pointers.append(pointer)
        return first, pointers

    def _moved(self, k: int, pointer: Pointer, position: Index, stride: Index) -> Pointer:
        if stride.text == "0":
            return pointer
        return pointer.element(element(self.spec.dtypes[k]), position * stride)

    def at(self, k: int, pointer: Pointer, position: Index) -> Pointer:
        """A pointer of operand k moved to a position along the dim."""
        return self._moved(k, pointer, position, self.stride[k][0])

    def column(self, k: int, pointer: Pointer, position: Index) -> Pointer:
        """A pointer of operand k moved to a column of its unit."""
        return self._moved(k, pointer, position, self.stride[k][-1])

    def computed(self, make: Callable[..., Sequence[Scalar]], values: Sequence[Value]) -> list[Value]:
        """The scalars that `make` gives of leaves that stand for values."""
        scope = Expression(self.code, lambda leaf: values[leaf.data])
        leaves = [Scalar("number", (), v.type, k) for k, v in enumerate(values)]
        return [scope.value(s) for s in make(*leaves)]

    def read(self, k: int, pointer: Pointer) -> Value:
        """An element of operand k."""
        return self.memory.read(self.spec.dtypes[k], pointer)

    def read_lanes(self, k: int, pointer: Pointer) -> Value:
        """Operand k at 16 neighbouring columns."""
        dtype, stride = self.spec.dtypes[k], self.stride[k][-1]
        if stride.text == "0":
            return self.memory.read(dtype, pointer)
        if stride.text == "1":
            return self.memory.read_lanes(dtype, pointer, None, None)
        return self.memory.gather(dtype, pointer, self.memory.strided(stride), None)

    def write_lanes(self, k: int, pointer: Pointer, x: Value) -> None:
        """Operand k at 16 neighbouring columns."""
        dtype, stride = self.spec.dtypes[k], self.stride[k][-1]
        if stride.text == "1":
            self.memory.write_lanes(dtype, pointer, x, None, None)
        else:
            self.memory.scatter(dtype, pointer, self.memory.strided(stride), x, None)
