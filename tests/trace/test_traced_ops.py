"""Every op's samples, traced, and exported, saved and loaded: the bits of the op alone. All of them with
KILN_TEST_FULL=1, else some.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from program_files import again
from sample_calls import assert_same, given, tensors

import kiln
from kiln import ops
from kiln.tracing.recorder import TracingError

FULL = bool(os.environ.get("KILN_TEST_FULL"))
OPS = sorted((op for op in ops.table() if op.samples is not None and op.public), key=lambda op: op.name)


@pytest.mark.parametrize("op", OPS if FULL else OPS[::12], ids=lambda op: op.name)
def test_a_traced_op_has_its_bits(op: Any) -> None:
    """The first sample of an op; numbers and settings are the trace's, tensors are given anew."""
    dtype = "int64" if op.dtypes == "integral" else "float32"
    for sample in op.samples(np.random.default_rng(3), dtype)[: None if FULL else 1]:
        args = tuple(map(given, sample.args))
        kwargs = {k: given(v) for k, v in sample.kwargs.items()}
        if not tensors([*args, *kwargs.values()]):
            continue
        kiln.manual_seed(1)
        try:
            expected = tensors(op.handle(*args, **kwargs))
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
            assert_same(op.name, expected, tensors(made(*args, **kwargs)))
