"""Every op's samples, traced, and exported, saved and loaded: the bits of the op alone. All of them with
KILN_TEST_FULL=1, else some.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from program_files import again

import kiln
from kiln import ops
from kiln.tracing.recorder import TracingError

FULL = bool(os.environ.get("KILN_TEST_FULL"))
OPS = sorted((op for op in ops.table() if op.samples is not None and op.public), key=lambda op: op.name)


def _given(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return kiln.from_numpy(np.ascontiguousarray(x))
    if isinstance(x, (list, tuple)):
        return type(x)(map(_given, x))
    return x


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, kiln.Tensor):
        return [value]
    return [y for item in value for y in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _same(op: Any, expected: list[Any], came: list[Any]) -> None:
    assert len(came) == len(expected)
    for a, b in zip(expected, came):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert bool(((a == b) | ((a != a) & (b != b))).all()), op.name


@pytest.mark.parametrize("op", OPS if FULL else OPS[::12], ids=lambda op: op.name)
def test_a_traced_op_has_its_bits(op: Any) -> None:
    """The first sample of an op; numbers and settings are the trace's, tensors are given anew."""
    dtype = "int64" if op.dtypes == "integral" else "float32"
    for sample in op.samples(np.random.default_rng(3), dtype)[: None if FULL else 1]:
        args = tuple(map(_given, sample.args))
        kwargs = {k: _given(v) for k, v in sample.kwargs.items()}
        if not _tensors([*args, *kwargs.values()]):
            continue
        kiln.manual_seed(1)
        try:
            expected = _tensors(op.handle(*args, **kwargs))
        except (RuntimeError, NotImplementedError):
            continue  # of floats it is not

        def called(*a: Any, **k: Any) -> Any:
            return op.handle(*a, **k)

        try:
            traced = kiln.jit.trace(called, args, example_kwarg_inputs=kwargs)
            program = kiln.export.export(called, args, kwargs)
        except TracingError as error:
            assert "reads" in str(error), f"{op.name}: {error}"
            continue
        for made in (traced, again(program)):
            kiln.manual_seed(1)
            _same(op, expected, _tensors(made(*args, **kwargs)))
