"""ONNX files: kiln writes none yet; the names are there for programs that could write one."""

from __future__ import annotations

from typing import Any, NoReturn

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse

__all__ = ["export", "is_in_onnx_export", "register_custom_op_symbolic", "unregister_custom_op_symbolic"]


def is_in_onnx_export() -> bool:
    """False: nothing is being exported.

    >>> kiln.onnx.is_in_onnx_export()
    False
    """
    return False


def export(model: Any, args: Any = (), f: Any = None, **kwargs: Any) -> NoReturn:
    """NotImplementedError: kiln writes no ONNX file; `kiln.save(model.state_dict(), f)` keeps weights."""
    _refuse("onnx.export")


def register_custom_op_symbolic(
    symbolic_name: str, symbolic_fn: Any, opset_version: int, **kwargs: Any
) -> None:
    """Says how an operator would be written: nothing is."""


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Takes that back."""


_hint_missing(__name__)
