"""How values of several ranks become one: from the first rank to the last, two at a time.

The order is the ranks', whatever carries the values and however they are cut into pieces: a number of ranks
has one result, the one that a process gets which adds the values to each other in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from kiln import ops
from kiln._core import Tensor


class ReduceOp(Enum):
    """How values of several ranks become one."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


_FUNCTIONS = {
    ReduceOp.SUM: "add",
    ReduceOp.AVG: "add",
    ReduceOp.PRODUCT: "mul",
    ReduceOp.MIN: "minimum",
    ReduceOp.MAX: "maximum",
    ReduceOp.BAND: "bitwise_and",
    ReduceOp.BOR: "bitwise_or",
    ReduceOp.BXOR: "bitwise_xor",
}


def check(name: str, op: Any, dtype: Any) -> None:
    """TypeError or RuntimeError for an op that is none, or none of the dtype."""
    if not isinstance(op, ReduceOp):
        raise TypeError(f"{name}: expected a ReduceOp, got {type(op).__name__}")
    if op is ReduceOp.AVG and not dtype.is_floating_point:
        raise RuntimeError(f"{name}: ReduceOp.AVG of {dtype}: only floats have a mean; divide a sum")
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and dtype.is_floating_point:
        raise RuntimeError(f"{name}: Cannot use ReduceOp.{op.name} with {dtype}: floats have no bits to join")


def fold(op: ReduceOp, values: Sequence[Tensor], out: Tensor) -> None:
    """Writes ((v0 op v1) op v2) ... into `out`, which is none of the values, or exactly one."""
    function: Any = getattr(ops, _FUNCTIONS[op])
    first, *rest = values
    apart = len(rest) < 2 or all(x.data_ptr() != out.data_ptr() for x in rest[1:])
    target = out if apart else ops.empty_like(out)
    if not rest:
        target.copy_(first)
    for x in rest:
        function(first, x, out=target)
        first = target
    if op is ReduceOp.AVG:
        target.div_(len(values))
    if not apart:
        out.copy_(target)
