"""Programs beside what is made of them for elsewhere: `kiln.export.verification.beside`, and ONNX models."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import nn
from kiln.export import Dim, export
from kiln.export.verification import beside
from kiln.nn import functional as F

PROGRAM = export(
    lambda x, y: (x * y, x > 0), (kiln.rand(4, 3), kiln.rand(3)), dynamic_shapes=({0: Dim("n")}, None)
)


def same(arrays: dict[str, Any]) -> list[Any]:
    """What the program is, by NumPy."""
    return [arrays["x"] * arrays["y"], arrays["x"] > 0]


def test_equal_bits_at_every_corner() -> None:
    report = beside(PROGRAM, same)
    assert report.equal and report.holds and report.largest == {"output[0]": 0.0, "output[1]": 0.0}
    assert {case.sizes["n"] for case in report.cases} >= {1, 3, 4} and "equal bits" in str(report)


def test_bounds_are_of_the_largest_element() -> None:
    """Two units of the largest element are as many anywhere; without a bound each element has its own."""

    def apart(arrays: dict[str, Any]) -> list[Any]:
        product, flag = same(arrays)
        return [product + 2 * np.spacing(np.abs(product).max(initial=1e-30)), flag]

    near = beside(PROGRAM, apart, {"float32": 4})
    assert near.holds and not near.equal and 1 <= near.largest["output[0]"] <= 3
    assert "ULP of the largest element, at most 4 expected" in str(near) and "within the bounds" in str(near)
    assert not beside(PROGRAM, apart, {"float32": 1}).holds
    assert beside(PROGRAM, apart).largest["output[0]"] > 3 and not beside(PROGRAM, apart).holds


WRONG = {
    "another value": lambda a: [a["x"] * a["y"] + 1, a["x"] > 0],
    "a NaN": lambda a: [a["x"] * np.float32("nan"), a["x"] > 0],
    "a flag": lambda a: [a["x"] * a["y"], a["x"] <= 0],
    "a dtype": lambda a: [(a["x"] * a["y"]).astype("float64"), a["x"] > 0],
    "a shape": lambda a: [(a["x"] * a["y"])[None], a["x"] > 0],
    "an output less": lambda a: [a["x"] * a["y"]],
    "an error": lambda a: a["z"],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_differs_does_not_hold(name: str) -> None:
    report = beside(PROGRAM, WRONG[name], {"float32": 1024})
    assert not report.holds and not report.equal and "they differ" in str(report)


class Counter(nn.Module):
    """Writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(kiln.tensor(2.0))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x * self.count


def test_written_tensors_are_given_and_come_back() -> None:
    program = export(Counter(), (kiln.rand(3),))
    report = beside(program, lambda a: [a["x"] * (a["count"] + 1), a["count"] + 1])
    assert report.equal and list(report.largest) == ["output", "count afterwards"]
    assert not beside(program, lambda a: [a["x"] * (a["count"] + 1), a["count"]]).equal
    assert program.count == 2


def test_narrow_floats() -> None:
    program = export(lambda x: x * 2, (kiln.rand(3).to(kiln.bfloat16),))

    def doubled(arrays: dict[str, Any]) -> list[Any]:
        wide = (arrays["x"].astype(np.uint32) << 16).view(np.float32) * 2
        return [(wide.view(np.uint32) >> 16).astype(np.uint16)]

    assert beside(program, doubled).equal


def test_random_numbers_say_nothing() -> None:
    with pytest.raises(ValueError, match="draws random numbers"):
        beside(export(lambda x: x + kiln.rand(3), (kiln.rand(3),)), lambda a: [a["x"]])


def test_onnx_models(capsys: Any) -> None:
    """`verify` prints the report, of names that were given too."""
    pytest.importorskip("onnxruntime")
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(1), nn.Linear(36, 5), nn.Softmax(1))
    axes = {"image": {0: "batch"}}
    made = kiln.onnx.export(
        model, (kiln.rand(2, 1, 5, 5),), io.BytesIO(), input_names=["image"], dynamic_axes=axes, verify=True
    )
    told = capsys.readouterr().out
    assert "by ONNX Runtime" in told and "at most 1024 expected" in told and "within the bounds" in told
    report = made.verify(3)
    assert report.holds and len({case.sizes["batch"] for case in report.cases}) > 2
    export(Counter(), (kiln.rand(3),)).to_onnx(verify=True)
    assert "count afterwards: 0 ULP" in capsys.readouterr().out


def test_a_wrong_model_is_found() -> None:
    pytest.importorskip("onnxruntime")
    right, wrong = (
        export(f, (kiln.rand(3),)) for f in (lambda x: F.softplus(x), lambda x: F.softplus(x) * 1.01)
    )
    made = right.to_onnx()
    made.exported_program = wrong
    assert made.verify().largest["output"] > 1024 and not made.verify().holds


def test_without_the_runtime(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'kiln\[runtimes\]'"):
        PROGRAM.to_onnx(verify=True)
