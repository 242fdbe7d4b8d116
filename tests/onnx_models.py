"""Programs beside their ONNX models: by the official checker and by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln.tracing.trees import flatten

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


class Model:
    """The model of a program, loaded."""

    def __init__(self, program: Any, **settings: Any) -> None:
        self.program, self.data = program, program.to_onnx(**settings).data
        onnx.checker.check_model(self.data, full_check=True)
        self.session = runtime.InferenceSession(self.data, providers=["CPUExecutionProvider"])

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """What the runtime gives."""
        found, given = self.program._captured, leaves((args, kwargs))
        feeds = {x.name: given[k].detach().numpy() for x, k in zip(found.inputs, found.distinct)}
        came: list[Any] = self.session.run(None, {x.name: feeds[x.name] for x in self.session.get_inputs()})
        return came

    def compare(self, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any, close: float) -> None:
        """The runtime's results are those that are expected: dtype, shape, numbers within rounding."""
        came, results = self.run(args, kwargs), leaves(expected)
        assert len(came) >= len(results)
        for a, b in zip(results, came):
            wanted = a.detach().numpy()
            assert wanted.shape == b.shape and wanted.dtype == b.dtype
            np.testing.assert_allclose(b, wanted, rtol=close, atol=close / 10, equal_nan=True)


def leaves(tree: Any) -> list[Any]:
    """The tensors of arguments or results."""
    found: list[Any] = []
    flatten(tree, found)
    return found


def compared(
    program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any, close: float
) -> None:
    """A program beside its model."""
    Model(program).compare(args, kwargs, expected, close)


def look(args: tuple[Any, ...]) -> str:
    """What a program is made for: dtypes and shapes of tensors, other arguments."""
    return repr([(x.dtype, x.shape) if isinstance(x, kiln.Tensor) else x for x in args])
