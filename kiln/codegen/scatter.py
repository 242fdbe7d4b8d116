"""Scatter: additions at indexed places of an array that holds its base already, in index order.

    out[.., index[.., i, ..], ..] += source[.., i, ..]        i ascending along one dim

A *column* is one index of the other dims; columns write different places, so a unit is a block of COLUMNS
neighbours along the last of them, and its additions are done in ascending i: the result does not depend on
who does which block. An index out of range adds nothing (the caller has raised before).

    for unit in begin .. end:
        pointers at its first column
        for i in 0 .. along:
            rows      (index not read along the last column dim, out and source dense)
                t = index[i];  if 0 <= t < bound:  out[t, c ..] += source[i, c ..]      16 columns at a time
            columns   for c:  t = index[i, c];  if 0 <= t < bound:  out[t, c] += source[i, c]

Kernel arguments: `ptr` = out, index, source; `arg` = along, bound, the size of every column dim, then for
out, index and source the strides (in elements) along the indexed dim and along every column dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kiln.codegen.code import LANES, Code, Value
from kiln.codegen.emit import Machine
from kiln.codegen.memory import Memory, element
from kiln.codegen.target import Target

COLUMNS = 64


class ScatterSpec(NamedTuple):
    """The pattern of a scatter; `strides`: classes of out, index and source, the indexed dim first."""

    dtype: str
    positions: str  # the index's dtype: "int64" or "int32"
    strides: tuple[str, ...]

    @property
    def rows(self) -> bool:
        """Whether one index serves neighbouring columns that lie side by side."""
        out, index, source = self.strides
        return (out[-1], index[-1], source[-1]) == ("1", "0", "1")

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return f"scatter_add {self.dtype} index {self.positions} strides {' '.join(self.strides)}"

    def units(self, sizes: Sequence[Any]) -> Any:
        """The units of work over column dims of these sizes, ints or symbolic."""
        total = (sizes[-1] + (COLUMNS - 1)) // COLUMNS
        for size in sizes[:-1]:
            total = total * size
        return total


class _Scatter:
    """A kernel being written."""

    def __init__(self, spec: ScatterSpec, target: Target) -> None:
        self.spec = spec
        self.code = code = Code(target)
        self.memory = Memory(code)
        self.machine = Machine(code)
        self.dtypes = (spec.dtype, spec.positions, spec.dtype)
        dims = len(spec.strides[0])
        self.base = [code.op(f"load ptr, ptr {code.offset('%ptr', 'ptr', str(k))}") for k in range(3)]
        self.along, self.bound = self._argument(0), self._argument(1)
        self.sizes = [self._argument(2 + d) for d in range(dims - 1)]
        first = 1 + dims
        self.stride = [
            [kind if kind in "01" else self._argument(first + k * dims + d) for d, kind in enumerate(classes)]
            for k, classes in enumerate(spec.strides)
        ]

    def _argument(self, place: int) -> str:
        return self.code.op(f"load i64, ptr {self.code.offset('%arg', 'i64', str(place))}")

    def emit(self) -> str:
        """The kernel's LLVM text."""
        code = self.code
        blocks = code.op(f"udiv i64 {code.add(self.sizes[-1], str(COLUMNS - 1))}, {COLUMNS}")
        with code.loop("%begin", "%end", 1) as unit:
            first, pointers = self._unit(unit.index, blocks)
            count = code.minimum(code.sub(self.sizes[-1], first), str(COLUMNS))
            with code.loop("0", self.along, 1) as turn:
                if self.spec.rows:
                    self._row(pointers, turn.index, count)
                else:
                    with code.loop("0", count, 1) as column:
                        self._column(pointers, turn.index, column.index)
        code.line("ret void")
        return code.text()

    def _unit(self, unit: str, blocks: str) -> tuple[str, list[str]]:
        """The first column of a unit along the last column dim, and the three pointers there."""
        code = self.code
        block = code.op(f"urem i64 {unit}, {blocks}")
        rest = code.op(f"udiv i64 {unit}, {blocks}")
        first = code.mul(block, str(COLUMNS))
        position = [first]
        for size in reversed(self.sizes[:-1]):
            position.insert(0, code.op(f"urem i64 {rest}, {size}"))
            rest = code.op(f"udiv i64 {rest}, {size}")
        pointers = []
        for k in range(3):
            pointer = self.base[k]
            for at, stride in zip(position, self.stride[k][1:]):
                pointer = self._at(k, pointer, at, stride)
            pointers.append(pointer)
        return first, pointers

    def _at(self, k: int, pointer: str, position: str, stride: str) -> str:
        """`pointer` moved to a position along a dim of operand k."""
        code = self.code
        return (
            pointer
            if stride == "0"
            else code.offset(pointer, element(self.dtypes[k]), code.mul(position, stride))
        )

    def _target(self, pointers: list[str], i: str, column: str | None) -> tuple[str, str, str]:
        """Whether index i (at a column) is in range, and the places it adds to and from."""
        code = self.code
        out, index, source = pointers
        if column is not None:
            out, index, source = (self._at(k, p, column, self.stride[k][-1]) for k, p in enumerate(pointers))
        where = self.memory.read(self.spec.positions, self._at(1, index, i, self.stride[1][0]))
        place = self.machine.cast("sext", where, "i64").text if where.type != "i64" else where.text
        inside = code.op(f"icmp ult i64 {place}, {self.bound}")
        return inside, self._at(0, out, place, self.stride[0][0]), self._at(2, source, i, self.stride[2][0])

    def _row(self, pointers: list[str], i: str, count: str) -> None:
        """One index for `count` neighbouring columns."""
        code, dtype = self.code, self.spec.dtype
        inside, out, source = self._target(pointers, i, None)
        with code.when(inside):
            whole = code.op(f"and i64 {count}, -{LANES}")
            with code.loop("0", whole, LANES) as turn:
                to = code.offset(out, element(dtype), turn.index)
                lanes = self.memory.read_lanes(
                    dtype, code.offset(source, element(dtype), turn.index), None, None
                )
                self.memory.write_lanes(
                    dtype, to, self._sum(self.memory.read_lanes(dtype, to, None, None), lanes), None, None
                )
            with code.loop(whole, count, 1) as turn:
                self._add(
                    code.offset(out, element(dtype), turn.index),
                    code.offset(source, element(dtype), turn.index),
                )

    def _column(self, pointers: list[str], i: str, column: str) -> None:
        """One index for one column."""
        inside, out, source = self._target(pointers, i, column)
        with self.code.when(inside):
            self._add(out, source)

    def _add(self, out: str, source: str) -> None:
        """*out += *source"""
        dtype = self.spec.dtype
        self.memory.write(
            dtype, out, self._sum(self.memory.read(dtype, out), self.memory.read(dtype, source))
        )

    def _sum(self, x: Value, y: Value) -> Value:
        how = "or" if x.type == "i1" else "fadd" if x.type in ("f32", "f64") else "add"
        return self.machine.instruction(how, x, y)


def scatter_ir(spec: ScatterSpec, target: Target) -> str:
    """The LLVM text of the kernel: one function `kernel`, nothing undefined."""
    return _Scatter(spec, target).emit()
