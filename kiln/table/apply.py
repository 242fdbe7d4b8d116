"""A pointwise node on scalars: operands converted, the body run, the result rounded to its dtype.

The interpreter and every kernel go through here, so a node rounds in one place only.
"""

from __future__ import annotations

from typing import Any

from kiln.graph.graph import Node
from kiln.scalars.scalar import FLOATS, Scalar, const, const_value, convert, lift, round_to
from kiln.table.kinds import COMPUTE, operand_dtypes

EXACT = 1 << 53  # integers below are floats
LARGEST = 3.4028234663852886e38


def convert_dtype(x: Scalar, source: str, target: str) -> Scalar:
    """A scalar that holds a `source` as a `target`; floats of 16 bits are rounded f32s (through float32)."""
    if source == target:
        return x
    if target == "bool":
        return x if x.type == "i1" else x.ne(0)
    literal = _literal(x, COMPUTE[target])
    return round_to(convert(x, COMPUTE[target]) if literal is None else literal, target)


def _literal(x: Scalar, type: str) -> Scalar | None:
    """A literal as a literal of another type, where Python rounds once as a machine would; else None."""
    if x.op != "const" or type not in FLOATS or type == x.type:
        return None
    number = const_value(x)
    if isinstance(number, float) and abs(number) > LARGEST:
        return None
    return const(number, type) if abs(number) < EXACT or isinstance(number, float) else None


def apply_pointwise(node: Node, operands: list[Scalar]) -> Scalar:
    """The scalar of a pointwise node's result; `operands` hold its inputs in their own dtypes."""
    op: Any = node.op
    wanted, result = operand_dtypes(op, node.inputs, node.attrs)
    scalars = iter([convert_dtype(x, v.dtype, d) for x, v, d in zip(operands, node.inputs, wanted)])
    structure = iter(node.attrs)
    bound = [next(structure) if p.kind in "SZ" else next(scalars, None) for p in op.params]
    out = op.body(*bound)
    if not isinstance(out, Scalar):
        out = const(out, COMPUTE[result])
    elif out.type != COMPUTE[result]:
        out = convert_dtype(out, "", result)
    return round_to(lift(out, COMPUTE[result]), result)
