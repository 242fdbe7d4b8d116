"""Cells for rows: a pure function's steps, each done for rows by its own rule.

    Node      linear  chunk  sigmoid ...      steps of one call, on h [1, 150]
    rows      linear  chunk  sigmoid ...      of many, on h [B, 1, 150]; parameters are the same for all

So the values have the bits of the steps one by one, and gradients are each step's own derivative: no gradient
passes where the cell detached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.capture.pure.function import CellOp, Given, Made, Walk, function_for
from kiln.capture.pure.steps import DETACH, Step
from kiln.graph.graph import Graph, Value
from kiln.graph.size import single_slot
from kiln.table.record import Op

Looks = tuple[tuple[int, bool, str], ...]
Rule = Callable[[Op, tuple[Any, ...], Looks], Any]  # `rules.rows_op`


class RowsCell(CellOp):
    """A cell some of whose operands have a dim of rows in front."""

    __slots__ = ("flags", "rows_rule")
    _made: dict[tuple[int, tuple[bool, ...]], RowsCell] = {}

    def __init__(self, base: CellOp, flags: tuple[bool, ...], rule: Rule) -> None:
        super().__init__(f"rows_{base.name}", base.cell)
        self.flags, self.rows_rule = flags, rule
        self.identity = None if base.identity is None else f"rows({base.identity}{flags!r})"

    @classmethod
    def of(cls, base: CellOp, flags: tuple[bool, ...], rule: Rule) -> RowsCell:
        """The one of these operands; ops live as long as the process."""
        found = cls._made.get((id(base), flags))
        if found is None:
            found = cls._made[id(base), flags] = cls(base, flags, rule)
        return found

    def walk(self, graph: Graph, given: list[Given], hidden: bool) -> Walk:
        return _RowsWalk(self, graph, given, hidden)


class _RowsWalk(Walk):
    """The steps on values some of which have rows."""

    def __init__(self, op: RowsCell, graph: Graph, given: list[Given], hidden: bool) -> None:
        self.rule = op.rows_rule
        self.rows = {k for k, flag in enumerate(op.flags) if flag}
        of_rows = [given[k] for k in sorted(self.rows)]
        for x in of_rows:
            graph.require_equal(x.shape[0], of_rows[0].shape[0], op.name)
        self.count = graph.canonical(of_rows[0].shape[0])
        super().__init__(graph, op.cell, given, hidden)
        if not all(k in self.rows for k in op.cell.results):
            raise RuntimeError("a result is the same for all calls")

    def _step(self, step: Step) -> None:
        flags = [kind != "number" and k in self.rows for kind, k in step.args]
        if not any(flags):
            return super()._step(step)
        self.rows.update(step.outs)
        inputs: list[Given] = [x if kind == "number" else self.values[x] for kind, x in step.args]
        if step.op == DETACH:
            made = Made(None, (), inputs)
            made.outputs = [self.constant(inputs[0])]
        elif isinstance(step.op, str):
            raise RuntimeError("it writes into memory of its own")
        else:
            op, structure, counted = self._rule(step, tuple(map(_look, inputs, flags)))
            if counted:
                inputs.insert(1, self._count())
            made = self._computed(step, function_for(op, structure), inputs)
        self._keep(step, made, tuple(tuple(d + 1 for d in ones) for ones in step.ones))

    def _rule(self, step: Step, looks: Looks) -> Any:
        arrays = [look for look in looks if look[0] >= 0]
        most = max(ndim for ndim, _, _ in arrays)
        if step.op.kind == "pointwise" and most and all(ndim == most for ndim, rows, _ in arrays if rows):
            return step.op, step.structure, False
        found = self.rule(step.op, step.structure, looks)
        if isinstance(found, str):
            raise RuntimeError(f"of {step.name}, {found}")
        return found

    def _count(self) -> Value:
        """How many rows there are, as a number that sizes are made of."""
        number = Value(self.graph, None, "int64", ())
        number.weak, number.slot = True, single_slot(self.count)
        assert number.slot >= 0
        return number


def _look(x: Given, has_rows: bool) -> tuple[int, bool, str]:
    if isinstance(x, Value) and not (x.weak and x.node is None):
        return x.ndim - has_rows, has_rows, x.dtype
    if isinstance(x, Value):
        return -1, False, x.dtype
    return -1, False, "bool" if isinstance(x, bool) else "int64" if isinstance(x, int) else "float64"
