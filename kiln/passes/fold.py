"""Folding of literals: the scalar arithmetic that Python's own numbers do exactly as a kernel would."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Union

from kiln.graph.graph import Node
from kiln.scalars.scalar import Scalar, const, const_value, topological
from kiln.table.apply import apply_pointwise
from kiln.table.kinds import COMPUTE

Number = Union[int, float, bool]


def _divide(x: float, y: float) -> float:
    if y:
        return x / y
    return math.nan if not x or x != x else math.copysign(math.inf, x) * math.copysign(1.0, y)


_FLOAT: dict[str, Callable[..., Number]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": _divide,
    "neg": lambda x: -x,
    "abs": abs,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "select": lambda c, x, y: x if c else y,
}
_INTEGER = {name: f for name, f in _FLOAT.items() if name != "div"}
_BOOL: dict[str, Callable[..., Number]] = {
    "and": lambda x, y: x and y,
    "or": lambda x, y: x or y,
    "xor": lambda x, y: x != y,
    "not": lambda x: not x,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "select": lambda c, x, y: x if c else y,
}


def _step(node: Scalar, args: list[Number]) -> Number | None:
    """One scalar op on Python numbers, or None where Python's arithmetic is not the machine's."""
    type = node.args[-1].type if node.args else node.type
    if node.op == "convert":
        number = args[0]
        if node.type == "f64" or (node.type == "i64" and not isinstance(number, float)):
            return float(number) if node.type == "f64" else int(number)
        return bool(number) if node.type == "i1" else None
    table = {"f64": _FLOAT, "i64": _INTEGER, "i1": _BOOL}.get(type, {})
    if node.op not in table:
        return None
    result = table[node.op](*args)
    if node.type == "i64" and not -(1 << 63) <= result < 1 << 63:
        return None
    return result


def fold_pointwise(node: Node, numbers: list[Any]) -> Number | None:
    """The value of a pointwise node on literals, or None if it is left to the kernel."""
    operands = [const(n, COMPUTE[v.dtype]) for n, v in zip(numbers, node.inputs)]
    root = apply_pointwise(node, operands)
    values: dict[int, Number] = {}
    for scalar in topological([root]):
        found = (
            const_value(scalar)
            if scalar.op == "const"
            else _step(scalar, [values[id(a)] for a in scalar.args])
        )
        if found is None:
            return None
        values[id(scalar)] = found
    return values[id(root)]
