"""How a composite computes in float32 what is float16 or bfloat16, and rounds once.

A composite's own operands are float32 by the time its body runs (`kiln.capture.function`); what a body rounds
to a dtype that is asked for, and what the derivative of a primitive is given, is not.
"""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise.arithmetic import convert
from kiln.table import kinds
from kiln.table.arguments import type_name


def wide(x: Any) -> Any:
    """A float16 or bfloat16 value of a body as float32; others as they are."""
    return convert(x, "float32") if x is not None and not x.weak and x.dtype in ("float16", "bfloat16") else x


def narrow(x: Any, dtype: str) -> Any:
    """x as `dtype`, at the end of a body that computed wide."""
    return x if x.dtype == dtype else convert(x, dtype)


def floating(x: Any, op: str) -> Any:
    """x wide, or PyTorch's error for an array that is not of floats."""
    if x.dtype not in kinds.FLOATS:
        raise NotImplementedError(f"\"{op}\" not implemented for '{type_name(x.dtype)}'")
    return wide(x)
