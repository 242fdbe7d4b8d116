"""ONNX: programs as models that other runtimes run, and models as programs.

    kiln.onnx.export(model, (x,), "model.onnx", input_names=["x"], dynamic_axes={"x": {0: "batch"}})

    program = kiln.onnx.load("model.onnx")

What is written is the program that `kiln.export.export` makes; `ExportedProgram.to_onnx` writes one that is
there.
"""

from __future__ import annotations

from kiln.absent import hint_missing as _hint_missing
from kiln.onnx.exporting import ONNXProgram, export
from kiln.onnx.reading.loading import load, read
from kiln.onnx.reading.refusal import LoadError, UnsupportedError

__all__ = [
    "LoadError", "ONNXProgram", "UnsupportedError", "export", "is_in_onnx_export", "load", "read",
    "register_custom_op_symbolic", "unregister_custom_op_symbolic",
]  # fmt: skip


def is_in_onnx_export() -> bool:
    """False: a program is traced as for any other use.

    >>> kiln.onnx.is_in_onnx_export()
    False
    """
    return False


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: object, opset_version: int) -> None:
    """Nothing: ops are written by what they are made of."""


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Nothing."""


_hint_missing(__name__)
