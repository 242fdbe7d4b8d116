"""Scatter: values put at indexed places of an array that holds its base already, in index order.

    out[.., index[.., i, ..], ..] = step(that, source[.., i, ..])        i ascending along one dim

The step (kiln/ops/reductions/scan_and_scatter_steps.py) adds, multiplies, replaces, or keeps the larger or
the smaller. An index out of range does nothing (whoever minds has raised before).

    for i in 0 .. along:
        rows      (index not read along the last column dim, out and source dense)
            t = index[i];  if 0 <= t < bound:  out[t, c ..] .= source[i, c ..]      16 columns at a time
        columns   for c:  t = index[i, c];  if 0 <= t < bound:  out[t, c] .= source[i, c]
"""

from __future__ import annotations

from kiln.codegen.along.along import Along
from kiln.codegen.ir.index import Condition, Index, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import Value
from kiln.ops.reductions.scan_and_scatter_steps import scatter_step
from kiln.table.order import LANES


class Scatter(Along):
    """A kernel being written."""

    operands = ("out", "index", "source")
    numbers = ("along", "bound")
    block = 64

    def columns(self, unit: Index, pointers: list[Pointer], count: Index) -> None:
        """The positions along the dim, ascending."""
        out, index, source = (classes[-1] for classes in self.spec.strides)
        with self.code.loop(0, self.number["along"], 1) as turn:
            if (out, index, source) == ("1", "0", "1"):
                self._row(pointers, turn.index, count)
            elif self.alone:
                self._column(pointers, turn.index)
            else:
                with self.code.loop(0, count, 1) as column:
                    moved = [self.column(k, p, column.index) for k, p in enumerate(pointers)]
                    self._column(moved, turn.index)

    def _target(self, pointers: list[Pointer], i: Index) -> tuple[Condition, Pointer, Pointer]:
        """Whether index i is in range, and the places it goes to and comes from."""
        out, index, source = pointers
        where = self.code.index(self.machine.convert(self.read(1, self.at(1, index, i)), "i64"))
        inside = where.unsigned("lt", self.number["bound"])
        return inside, self.at(0, out, where), self.at(2, source, i)

    def _row(self, pointers: list[Pointer], i: Index, count: Index) -> None:
        """One index for `count` neighbouring columns."""
        code, dtype = self.code, self.spec.dtypes[0]
        inside, out, source = self._target(pointers, i)
        with code.when(inside):
            whole = count & -LANES
            with code.loop(0, whole, LANES) as turn:
                to = out.element(element(dtype), turn.index)
                lanes = self.read_lanes(2, source.element(element(dtype), turn.index))
                self.write_lanes(0, to, self._step(self.read_lanes(0, to), lanes))
            with code.loop(whole, count, 1) as turn:
                self._put(
                    out.element(element(dtype), turn.index),
                    source.element(element(dtype), turn.index),
                )

    def _column(self, pointers: list[Pointer], i: Index) -> None:
        """One index for one column."""
        inside, out, source = self._target(pointers, i)
        with self.code.when(inside):
            self._put(out, source)

    def _put(self, out: Pointer, source: Pointer) -> None:
        """*out = step(*out, *source)"""
        self.memory.write(self.spec.dtypes[0], out, self._step(self.read(0, out), self.read(2, source)))

    def _step(self, total: Value, x: Value) -> Value:
        (result,) = self.computed(lambda a, b: [scatter_step(self.spec.what, a, b)], [total, x])
        return result
