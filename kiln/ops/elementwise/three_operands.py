"""Formulas of three arrays: addcmul, addcdiv, lerp."""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise.arithmetic import convert, where
from kiln.ops.elementwise.elementary import abs
from kiln.ops.elementwise.precision import narrow, wide
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.record import Number, Operand, Tensor, composite


def _three(rng: Any, dtype: str) -> Any:
    return tuple(d.array(rng, (3, 5), dtype, 0.5, 3) for _ in range(3)), {"value": 0.5}


def _operands(*values: Any) -> tuple[list[Any], str]:
    """Operands of a formula in their common dtype, wide, and the dtype of its result; True counts as 1."""
    dtype = kinds.result_type(values)
    numbers = [v + 0 if v.weak and v.dtype == "bool" else v for v in values]
    return [wide(v if v.dtype == dtype or v.weak else convert(v, dtype)) for v in numbers], dtype


@composite(
    samples=d.samples(_three),
    inplace=True,
    reference=d.reference(lambda np, x, a, b, value=1: x + x.dtype.type(value) * a * b),
)
def addcmul(input: Tensor, tensor1: Operand, tensor2: Operand, value: Number = 1) -> Any:
    """`input + value * tensor1 * tensor2`, broadcast.

    >>> kiln.addcmul(kiln.tensor([1.0]), kiln.tensor([2.0]), kiln.tensor([3.0]), value=10)
    tensor([61.])
    """
    (x, a, b), dtype = _operands(input, tensor1, tensor2)
    return narrow(x + value * a * b, dtype)


@composite(
    samples=d.samples(_three),
    inplace=True,
    reference=d.reference(lambda np, x, a, b, value=1: x + x.dtype.type(value) * a / b),
)
def addcdiv(input: Tensor, tensor1: Operand, tensor2: Operand, value: Number = 1) -> Any:
    """`input + value * tensor1 / tensor2`, broadcast; floats. RuntimeError for integers.

    >>> kiln.addcdiv(kiln.tensor([1.0]), kiln.tensor([3.0]), kiln.tensor([2.0]))
    tensor([2.5000])
    """
    (x, a, b), dtype = _operands(input, tensor1, tensor2)
    if dtype not in kinds.FLOATS:
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported; use (input + value * tensor1 / tensor2)"
        )
    return narrow(x + value * a / b, dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t), 0.3), {}),
        lambda rng, t: (tuple(d.array(rng, (4,), t, 0, 1) for _ in range(3)), {}),
    ),
    reference=d.reference(lambda np, a, b, w: a + np.asarray(w, a.dtype) * (b - a)),
    inplace=True,
)
def lerp(input: Tensor, end: Operand, weight: Operand) -> Any:
    """The point `weight` of the way from `input` to `end`, broadcast; exact at both ends.

    >>> kiln.lerp(kiln.tensor([1.0]), kiln.tensor([3.0]), 0.5)
    tensor([2.])
    """
    (start, stop, w), dtype = _operands(input, end, weight)
    span = stop - start
    return narrow(where(abs(w) < 0.5, start + w * span, stop - span * (1 - w)), dtype)
