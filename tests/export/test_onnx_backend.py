"""The ONNX project's own tests of its operators and of models, where the package is installed: some of them
unless KILN_TEST_FULL=1. None is wrong; what is refused is of an operator or dtype that kiln has not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln

onnx = pytest.importorskip("onnx")

from onnx_nodes import cases, outcome, tensor  # noqa: E402

FULL = bool(os.environ.get("KILN_TEST_FULL"))
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = sorted(p.parent for kind in ("pytorch-operator", "pytorch-converted", "simple")
                 for p in (DATA / kind).glob("*/model.onnx"))  # fmt: skip
# Operators that are refused by name: of texts, images as files, trees, training inside a model.
WITHOUT = {
    "ImageDecoder", "TfIdfVectorizer", "ai.onnx.preview.FlexAttention", "ai.onnx.preview.training.Momentum",
    "ai.onnx.preview.training.Adagrad", "ai.onnx.preview.training.Adam", "ai.onnx.ml.TreeEnsemble",
    "ai.onnx.ml.ArrayFeatureExtractor", "ai.onnx.ml.Binarizer",
}  # fmt: skip
# Other reasons, for which no operator is absent.
REASONS = (
    r"is of dtype (string|u?int[24]|uint16|uint32|uint64|float4\w+|float8\w+), which kiln has not",
    r"of a dtype that kiln has not",
    r"attribute 'type' is of type 13",
    r"Scan as it is since opset 9",
)
BY_VALUES = (
    r"goes by values of tensors, of which no program is made",
    r"reads the value of a tensor",
    r"a loop (that stacks results and|over sequences that) ends by a value is not followed",
    r"the trace would keep it ever after",
    r"not all sizes that 'N' may have are right",
)


@pytest.mark.parametrize("way", ["node by node", "as programs"])
def test_operators(way: str) -> None:
    """No result is wrong, and what is refused is so for a reason that is known."""
    some = cases() if FULL else cases()[3::7]
    passed, as_program = 0, way == "as programs"
    for case in some:
        found = outcome(case, as_program)
        passed += found == "passed"
        assert not found.startswith("wrong"), found
        absent = re.search(r"kiln has not the operator (\S+)", found)
        known = absent[1] in WITHOUT if absent else any(re.search(r, found) for r in REASONS)
        known = known or as_program and any(re.search(r, found) for r in BY_VALUES)
        assert found == "passed" or known, f"{case.name}: {found}"
    assert passed > len(some) * (0.79 if as_program else 0.82)


def _arrays(folder: Path, what: str) -> list[Any]:
    """The arrays of files in the order of their numbers."""
    found = []
    for k in range(len(list(folder.glob(f"{what}_*.pb")))):
        message = onnx.TensorProto.FromString((folder / f"{what}_{k}.pb").read_bytes())
        found.append(onnx.numpy_helper.to_array(message))
    return found


@pytest.mark.parametrize("folder", FOLDERS if FULL else FOLDERS[::5], ids=lambda p: p.name)
def test_models_of_old(folder: Path) -> None:
    """Models as PyTorch wrote them for old opsets: both give what is expected, or what is absent is told."""
    try:
        ways = [kiln.onnx.read(folder / "model.onnx")]
        ways += [kiln.onnx.load(folder / "model.onnx")]
    except kiln.onnx.UnsupportedError as error:
        assert re.search(r"dtype string|operator ai.onnx.preview.training|values", str(error)), error
        return
    for data in folder.glob("test_data_set_*"):
        for module in ways:
            with kiln.no_grad():
                results = module(*[tensor(x) for x in _arrays(data, "input")])
            results = results if isinstance(results, tuple) else (results,)
            for found, expected in zip(results, _arrays(data, "output"), strict=True):
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "shufflenet", "inception_v1"])
def test_images(name: str) -> None:
    """Nets of images become programs whose convolutions are ops of their own; nothing runs here."""
    path = DATA / "light" / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip("the package came without its models")
    program = kiln.onnx.load(path)
    (x,) = program._captured.inputs
    assert x.shape == (1, 3, 224, 224)
    assert any(n.op.name == "convolve" for n in program.graph.nodes)
