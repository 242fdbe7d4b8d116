"""Operators of ONNX as functions on tensors; see `table.py`."""

from __future__ import annotations

from kiln.onnx.reading.operators import (  # noqa: F401
    arranging,
    attention,
    elementwise,
    indexing,
    losses,
    normalising,
    quantised,
    random,
    recurrent,
    reducing,
    resizing,
    sequences,
    signals,
    windows,
)
from kiln.onnx.reading.operators.table import BY_VALUE, OPERATORS, Operator, as_array, as_items, called, found
from kiln.onnx.reading.operators.unsigned import unsigned

__all__ = ["BY_VALUE", "OPERATORS", "Operator", "as_array", "as_items", "called", "found", "unsigned"]
