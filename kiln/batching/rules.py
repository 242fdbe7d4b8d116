"""Functions on rows: the op that does in one call what a function does in many.

The core asks once for a function and for which of its operands have a row for each call:

    linear(x [150], w, b)          rows of x                 linear itself, of x [B, 150]
    slice(x [750]; dim 0)          rows of x                 slice of x [B, 750] along dim 1
    softmax(x [n], dim 0)          rows of x                 the composite of kiln.func: each node by its rule
    reduce_sum(x [n]; dim 0)       rows of x                 a composite of one node, by its kind's rule

    a cell                         rows of any              a cell whose steps are done so (cells.py)

A function is here only where each row gets the bits that it gets alone; for any other, `rows` says why not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kiln import ops
from kiln.batching.cells import RowsCell
from kiln.capture.pure.function import CellOp
from kiln.func import rules
from kiln.func.composite import Look, batched_op
from kiln.func.rules import ALGORITHMS, RULES, Operand
from kiln.table.arguments import number
from kiln.table.record import Op, find

Looks = tuple[
    tuple[int, bool, str], ...
]  # of each operand: its dims (-1: a number), whether it has rows, dtype
Found = tuple[
    Any, tuple[Any, ...], bool
]  # an op, a structure, whether its numbers begin with the count of rows

Made = tuple[Op, tuple[Any, ...], bool]

# what takes rows in front of its first operand's dims as it is, with the fewest dims that operand may have
_IN_FRONT = {"linear": 1, "matmul": 1, "embedding": 0}


def rows(op: Op, structure: tuple[Any, ...], looks: Looks) -> Found | str:
    """The function on rows, or a sentence that says why there is none."""
    found = rows_op(op, structure, looks)
    return found if isinstance(found, str) else (found[0].handle, *found[1:])


def rows_op(op: Op, structure: tuple[Any, ...], looks: Looks) -> Made | str:
    """The same, as its record."""
    if isinstance(op, CellOp):
        return RowsCell.of(op, tuple(has_rows for _, has_rows, _ in looks), rows_op), structure, False
    if op.kind == "composite":
        return _in_front(op, structure, looks) or _of_composite(op, structure, looks)
    if not op.algorithm and op.kind not in RULES:
        return "the size of its result depends on values"
    if op.algorithm and op.algorithm not in ALGORITHMS:
        return f"{op.algorithm} has no rule for rows"
    if op.kind == "as_strided":
        return "it speaks of places in memory"
    return _of_view(op, structure, looks) or _one_node(op, structure, looks)


def _in_front(op: Op, structure: tuple[Any, ...], looks: Looks) -> Made | None:
    """The op itself, where it takes rows in front of its first operand as it is: rows by one matrix, with a
    bias of one dim. Where each call picks rows from an array of its own: from all arrays as one.
    """
    if op.name == "take_at" and structure[1] == 0 and all(has_rows for _, has_rows, _ in looks):
        return _rows_taken(op), structure, False
    first, *others = looks
    if not first[1] or any(has_rows for _, has_rows, _ in others) or first[0] < _IN_FRONT.get(op.name, 65):
        return None
    fits = others[0][0] == 2 and all(ndim == 1 for ndim, _, _ in others[1:])
    return (op, structure, False) if fits else None


class _RowsTaken(Op):
    """`take_at` along dim 0 of arrays of many calls, at positions of their own: one array, in which each
    call's positions begin behind those of the calls before it.
    """

    __slots__ = ()

    def __init__(self, base: Op) -> None:
        super().__init__(f"rows_{base.name}", "composite", base.params, self._of_rows, listed=False)
        self.identity = None if base.identity is None else f"rows_together({base.identity})"
        self.differentiable = base.differentiable
        self.public = False

    def _of_rows(self, input: Any, dim: int, index: Any) -> Any:
        count, each, *rest = input.shape
        input.graph.require_equal(index.shape[0], count, self.name)
        size = number(input, each)
        places = ops.where(index < 0, index + size, index)
        first = index.graph.add(find("iota"), (), (tuple(index.shape), 0)) * size
        return find("rows_at")(ops.reshape(input, (count * each, *rest)), 0, places + first)


_rows_taken = cache(_RowsTaken)  # ops live as long as the process


def _of_view(op: Op, structure: tuple[Any, ...], looks: Looks) -> Made | None:
    """The same view, its dims counted one further; so for arrays that are joined along a dim."""
    ndim = looks[0][0]
    if op.kind == "reshape" or (op.kind == "expand" and structure[1] == ndim):
        return op, ("t", structure[1] + 1), True
    if op.kind == "permute":
        return op, ("t", (0, *(d + 1 for d in structure[1]))), False
    if op.kind == "slice":
        (dim,) = structure[1]
        return op, ("t", (dim + 1,), *structure[2:]), False
    if op.kind in ("select", "unbind", "split"):
        return op, ("t", structure[1] + 1, *structure[2:]), False
    if op.kind in ("concat", "stack") and all(look[1] for look in looks):
        count, dim = structure
        return op, (count, dim + 1), False
    return None


class _Walk:
    """The operands and the structure of a call, parameter by parameter."""

    def __init__(self, op: Op, structure: tuple[Any, ...], looks: Looks) -> None:
        self.flags: list[Any] = []
        self.ranks: list[int] = []
        self.plain = op.kind == "pointwise"
        own, arrays = iter(structure), iter(looks)
        for param in op.params:
            self._take(param.kind, own, arrays)

    def _take(self, kind: str, own: Any, arrays: Any) -> None:
        if kind == "S":
            next(own)
            self._add(None, -1)
        elif kind == "Z":
            for _ in range(next(own)):
                next(arrays)
            self._add(None, -1)
        elif kind == "L":
            self._add(tuple(next(arrays)[1] for _ in range(next(own))), -1)
        elif not self.plain and next(own) is None:
            self._add(None, -1)
        else:
            ndim, has_rows, _ = next(arrays)
            self._add(has_rows, ndim)

    def _add(self, flag: Any, rank: int) -> None:
        self.flags.append(flag)
        self.ranks.append(rank)


def _of_composite(op: Op, structure: tuple[Any, ...], looks: Looks) -> Made:
    walk = _Walk(op, structure, looks)
    return batched_op(op, Look(tuple(walk.flags), tuple(walk.ranks))), structure, False


class _OneNode(Op):
    """A composite of one node: a primitive done for rows by the rule of its kind."""

    __slots__ = ("base", "flags")

    def __init__(self, base: Op, flags: tuple[Any, ...]) -> None:
        self.base, self.flags = base, flags
        params = tuple(
            p._replace(kind="T") if p.kind in "NVO" and flag is True else p
            for p, flag in zip(base.params, flags)
        )
        super().__init__(f"rows_{base.name}", "composite", params, self._of_rows, listed=False)
        self.identity = None if base.identity is None else f"rows({base.identity}{flags!r})"
        self.differentiable = base.differentiable
        self.public = False

    def _of_rows(self, *args: Any) -> Any:
        operands: list[Operand] = []
        attrs: list[Any] = []
        for param, value, flag in zip(self.base.params, args, self.flags):
            if param.kind == "Z":
                attrs.append(tuple(value) if isinstance(value, (tuple, list)) else (value,))
            elif param.kind == "S":
                attrs.append(value)
            elif param.kind == "L":
                operands += [Operand(x, f) for x, f in zip(value, flag)]
            elif value is not None:
                operands.append(Operand(value, bool(flag)))
        size = next(x.value.shape[0] for x in operands if x.batched)
        for x in operands:
            if x.batched:
                x.value.graph.require_equal(x.value.shape[0], size, self.name)
        return rules.batched(self.base, operands, attrs, size)


_made: dict[tuple[int, tuple[Any, ...]], _OneNode] = {}


_LETTERS = {"float64": "f", "int64": "i", "bool": "b"}  # of numbers in a composite's structure


def _one_node(op: Op, structure: tuple[Any, ...], looks: Looks) -> Made:
    flags = tuple(_Walk(op, structure, looks).flags)
    if (id(op), flags) not in _made:
        _made[id(op), flags] = _OneNode(op, flags)
    if op.kind == "pointwise":  # whose own structure does not say what its operands are
        own, arrays = iter(structure), iter(looks)
        structure = tuple(
            next(own) if p.kind == "S" else "t" if look[0] >= 0 else _LETTERS[look[2]]
            for p in op.params
            for look in ([next(arrays)] if p.kind != "S" else [(0, False, "")])
        )
    return _made[id(op), flags], structure, False


def stacked(gradients: tuple[Any, ...], sizes: tuple[int, ...], dtype: Any) -> Any:
    """One gradient of all rows, by ops that are differentiable: of each row's (None: it has none) and, as the
    last, one of the whole.
    """
    *of_rows, whole = gradients
    if all(g is None for g in of_rows):
        return whole
    nothing = ops.zeros(sizes[1:], dtype=dtype)
    together = ops.stack([nothing if g is None else g for g in of_rows])
    return together if whole is None else whole + together


def unstacked(gradient: Any) -> tuple[Any, ...]:
    """A gradient's rows."""
    return tuple(ops.unbind(gradient, 0))
