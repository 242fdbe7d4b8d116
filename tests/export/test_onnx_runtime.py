"""ONNX models by the official checker and by ONNX Runtime, where these are installed: every op with samples
(some of them unless KILN_TEST_FULL=1), and whole models, beside kiln.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from exported_models import ENTRIES, MODELS, NAMES
from onnx_models import compared
from sample_calls import given, tensors

import kiln
from kiln.tracing.recorder import TracingError

FULL = bool(os.environ.get("KILN_TEST_FULL"))
# What has no form: a size that is a value, the gradient of a pool, draws from a place of one's own.
WITHOUT = {"places_of", "pool_spread", "draw_below"}


@pytest.mark.parametrize("name", NAMES)
def test_ops(name: str) -> None:
    """The first samples of an op, or all."""
    op = ENTRIES[name]
    function = getattr(op, "handle", None) or op.function
    for sample in op.samples(np.random.default_rng(3), "int64" if op.dtypes == "integral" else "float32")[
        : None if FULL else 2
    ]:
        args, kwargs = tuple(map(given, sample.args)), {k: given(v) for k, v in sample.kwargs.items()}
        if any(not x.numel() for x in tensors([*args, *kwargs.values()])) or not tensors(
            [*args, *kwargs.values()]
        ):
            continue
        try:
            expected = function(*args, **kwargs)
            program = kiln.export.export(lambda *a, **k: function(*a, **k), args, kwargs)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, TracingError):
            continue  # not of floats, or goes by values
        if program._captured.by_steps:
            with pytest.raises(NotImplementedError, match="which NumPy and SciPy compute"):
                program.to_onnx()
            continue
        try:
            compared(program, args, kwargs, expected, 1e9 if program._captured.random else 2e-5)
        except ValueError as error:
            assert "to_onnx" in str(error) and name in WITHOUT, error


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Whole models in evaluation, at the example's sizes and at others."""
    kiln.manual_seed(0)
    make, first, second, shapes = MODELS[name]
    model = make().eval()
    program = kiln.export.export(model, first, dynamic_shapes=shapes)
    for args in (first, second):
        if args is not None:
            with kiln.no_grad():
                compared(program, args, {}, model(*args), 1e-4)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int8", "bool"])
def test_dtypes(dtype: str) -> None:
    """Arithmetic, comparison, sums and views in a dtype."""
    kind = getattr(kiln, dtype)
    x = (kiln.randn(3, 4) * 5).to(kind)

    def program(x: Any) -> Any:
        y = x.T.reshape(-1)[2:9].flip(0)
        z = (
            x == y[0],
            x.sum(),
            y.max(),
            kiln.where(x > 0, x, x * 0),
            x.to(kiln.float32) / 3,
            kiln.cat([y, y]),
        )
        if dtype == "bool":
            return (*z, x.logical_not(), x.any(0))
        return (*z, x + 2, x * x, -x, x.abs(), x.cumsum(1), x.sort(1), x @ x.T, x.prod(0))

    made = kiln.export.export(program, (x,))
    compared(made, (x,), {}, program(x), {"float64": 1e-12, "float16": 2e-3}.get(dtype, 0.0))
