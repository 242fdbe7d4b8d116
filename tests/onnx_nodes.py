"""The ONNX project's own tests of operators, run by kiln: `python tests/onnx_nodes.py [name]` counts what
passes, what is refused for which reason, and what is wrong.

Every model is run node by node (`kiln.onnx.read`) and as a program (`kiln.onnx.load`). A program needs to
know numbers that a shape is made of: inputs of at most one dim are told it where it asks for them.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import kiln

onnx = pytest.importorskip("onnx")
collected = pytest.importorskip("onnx.backend.test.case.node")

DRAWS = {"Bernoulli", "RandomUniformLike"}
# What narrow floats may differ by: results here are rounded once, the tests' own after each operator.
CLOSE = {"float16": 2.0**-9, "bfloat16": 2.0**-6}


class Case(NamedTuple):
    """A model, what it is given and gives, and how near that is to be."""

    name: str
    model: Any
    sets: list[Any]
    rtol: float
    atol: float

    @property
    def draws(self) -> bool:
        """Whether results are random numbers."""
        kinds = {node.op_type for node in self.model.graph.node}
        return (
            bool(kinds & DRAWS) or self.name.startswith("test_training_dropout") and "zero" not in self.name
        )


@cache
def cases() -> list[Case]:
    """All of them; making their data takes some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [Case(c.name, c.model, c.data_sets, c.rtol, c.atol) for c in collected.collect_testcases(None)]


def tensor(value: Any) -> Any:
    """An array as kiln has it."""
    if value is None or isinstance(value, list):
        return value and [tensor(x) for x in value]
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    own = np.array(value, order="C", copy=True)
    if own.dtype.name == "bfloat16":
        return kiln.from_numpy(own.view(np.int16)).view(kiln.bfloat16)
    try:
        return kiln.from_numpy(own)
    except TypeError as error:
        raise kiln.onnx.UnsupportedError(f"an input is of a dtype that kiln has not: {error}") from None


def check(found: Any, expected: Any, case: Case) -> None:
    """AssertionError unless a result is near what is expected, and of its dtype and shape."""
    if expected is None or isinstance(expected, list):
        assert (found is None) == (expected is None) and len(found or ()) == len(expected or ())
        for a, b in zip(found or (), expected or ()):
            check(a, b, case)
        return
    wanted = onnx.numpy_helper.to_array(expected) if isinstance(expected, onnx.TensorProto) else expected
    wanted = np.asarray(wanted)
    dtype = found.dtype.name
    assert (dtype, tuple(found.shape)) == (wanted.dtype.name, wanted.shape)
    if dtype in CLOSE:
        found, wanted = found.float(), wanted.astype(np.float32)
    # of transforms the expected values have the rounding of a float32 FFT in them
    atol = max(case.atol, 1e-6) if "_dft" in case.name else case.atol
    rtol = max(case.rtol, CLOSE.get(dtype, 0.0))
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=rtol, atol=atol)


def program(data: bytes, given: list[Any]) -> tuple[Any, list[Any]]:
    """A program of a model, and what of its inputs it is called with."""
    try:
        return kiln.onnx.load(data, given), given
    except kiln.onnx.UnsupportedError as error:
        if "goes by values" not in str(error):
            raise
    names = [x.name for x in onnx.ModelProto.FromString(data).graph.input]
    told = {n: x for n, x in zip(names[1:], given[1:]) if x.ndim < 2} or {names[0]: given[0]}
    rest = [x for n, x in zip(names, given) if n not in told]
    return kiln.onnx.load(data, rest, values=told), rest


def run(case: Case, as_program: bool) -> None:
    """Runs a case. kiln.onnx.UnsupportedError where it is refused, AssertionError where a result is wrong."""
    data = case.model.SerializeToString()
    for inputs, outputs in case.sets:
        module = kiln.onnx.read(data)
        given = [tensor(x) for x in inputs]
        if as_program:
            module, given = program(data, given)
        with kiln.no_grad():
            results = module(*given)
        results = results if isinstance(results, tuple) else (results,)
        assert len(results) == len(outputs)
        for found, expected in zip(results, outputs):
            if not case.draws:
                check(found, expected, case)


def outcome(case: Case, as_program: bool) -> str:
    """ "passed", "refused: .." with what kiln has not, or "wrong: ..."."""
    try:
        run(case, as_program)
    except kiln.onnx.UnsupportedError as error:
        return f"refused: {str(error).rpartition(': ')[2]:.80}"
    except Exception as error:
        return f"wrong: {case.name}: {type(error).__name__} {error!s:.300}"
    return "passed"


def main(part: str = "") -> None:
    """Counts for all cases whose name has a part."""
    for as_program in (False, True):
        found = Counter(outcome(c, as_program) for c in cases() if part in c.name)
        kinds = Counter[str]()
        for text, count in found.items():
            kinds[text.partition(":")[0]] += count
        print("as programs" if as_program else "node by node", dict(kinds))
        for text, count in found.most_common():
            if text != "passed":
                print(f"{count:5} {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
