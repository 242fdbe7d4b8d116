"""Models by ONNX Runtime, which is not needed to write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.export.program import ExportedProgram
from kiln.export.verification import Run, Verification, beside

# How far an output may be away, in ULP of its largest element: rounding of another order, not other numbers.
BOUNDS = {"float64": 1024.0, "float32": 1024.0, "float16": 32.0, "bfloat16": 32.0}


def verified(program: ExportedProgram, data: bytes, inputs: list[str], cases: Any, seed: int) -> Verification:
    """A program beside the file it was written as; `inputs`: what the file calls the program's."""
    called = dict(zip((x.name for x in program._captured.inputs), inputs))
    return beside(program, by_runtime(data, called), BOUNDS, cases, seed)


def by_runtime(data: bytes, called: Mapping[str, str]) -> Run:
    """A model in ONNX Runtime, which gives the outputs for arrays; `called`: other names of its inputs.

    ImportError where ONNX Runtime is not installed.
    """
    try:
        from onnxruntime import InferenceSession, SessionOptions
    except ImportError as error:
        raise ImportError("to_onnx: verify needs ONNX Runtime: pip install 'kiln[runtimes]'") from error

    options = SessionOptions()
    options.log_severity_level = 3  # errors
    session = InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(arrays: dict[str, Any]) -> list[Any]:
        made: list[Any] = session.run(None, {called.get(name, name): x for name, x in arrays.items()})
        return made

    return run
