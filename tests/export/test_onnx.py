"""ONNX models: what is in the file, in which names and sizes, and what is refused; no other package is
needed.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import nn
from kiln.export import Dim


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message: number, and an integer or bytes."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
            continue
        length = varint() if key & 7 == 2 else 4
        found.append((key >> 3, data[at : at + length]))
        at += length
    return found


def all_of(message: list[tuple[int, Any]], number: int) -> list[Any]:
    """The fields of a number."""
    return [value for n, value in message if n == number]


class Model:
    """What a test looks at."""

    def __init__(self, data: bytes) -> None:
        whole = fields(data)
        (self.ir,), (opset,) = all_of(whole, 1), all_of(whole, 8)
        self.opset = all_of(fields(opset), 2)[0]
        graph = fields(all_of(whole, 7)[0])
        self.nodes = [fields(x) for x in all_of(graph, 1)]
        self.kinds = [all_of(x, 4)[0].decode() for x in self.nodes]
        self.tensors = {all_of(fields(x), 8)[0].decode(): fields(x) for x in all_of(graph, 5)}
        self.inputs, self.outputs = (dict(map(self._value, all_of(graph, n))) for n in (11, 12))
        self.body_inputs: list[str] = []

    def all_nodes(self) -> Iterator[list[tuple[int, Any]]]:
        """Its nodes and those of graphs that nodes call."""
        queue = list(self.nodes)
        while queue:
            node = queue.pop()
            yield node
            for body in (g for a in all_of(node, 5) for g in all_of(fields(a), 6)):
                queue += [fields(x) for x in all_of(fields(body), 1)]
                self.body_inputs += [all_of(fields(x), 1)[0].decode() for x in all_of(fields(body), 11)]

    @staticmethod
    def _value(data: bytes) -> tuple[str, tuple[int, list[Any]]]:
        """A name, the number of its dtype, its sizes."""
        message = fields(data)
        kind = fields(all_of(fields(all_of(message, 2)[0]), 1)[0])
        sizes = []
        for dim in all_of(fields(all_of(kind, 2)[0]), 1):
            ((number, value),) = fields(dim)
            sizes.append(value.decode() if number == 2 else value)
        return all_of(message, 1)[0].decode(), (all_of(kind, 1)[0], sizes)


def test_a_small_model() -> None:
    """Inputs and outputs in the names that are given, weights by theirs, a batch that varies."""
    model, file = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.ReLU(), nn.Linear(8, 2)), io.BytesIO()
    axes = {"x": {0: "batch"}}
    made = kiln.onnx.export(
        model, (kiln.ones(3, 4),), file, input_names=["x"], output_names=["y"], dynamic_axes=axes
    )
    found = Model(file.getvalue())
    assert (found.opset, found.ir) == (26, 13) and made.data == file.getvalue()
    assert found.inputs == {"x": (1, ["batch", 4])} and found.outputs == {"y": (1, ["batch", 2])}
    assert found.kinds == ["Gemm", "Relu", "Gemm", "Identity"]
    assert {"0.weight", "0.bias", "3.weight", "3.bias"} <= set(found.tensors)
    weight = found.tensors["0.weight"]
    assert all_of(weight, 1) == [8, 4] and all_of(weight, 2) == [1]
    assert all_of(weight, 9)[0] == model[0].weight.detach().numpy().tobytes()
    assert model.training and all(m.training for m in model.modules())


def test_a_program_writes_itself(tmp_path: Path) -> None:
    program = kiln.export.export(
        nn.Conv2d(1, 2, 3), (kiln.ones(1, 1, 5, 5),), dynamic_shapes=({0: Dim("n")},)
    )
    path = tmp_path / "model.onnx"
    program.to_onnx(path, opset=20, output_names=["features"])
    found = Model(path.read_bytes())
    assert (found.opset, found.ir, found.kinds[0]) == (20, 9, "Conv")
    assert found.outputs == {"features": (1, ["n", 2, 3, 3])}


def test_written_tensors_are_inputs_and_outputs() -> None:
    """A buffer that the program writes comes in, and goes out under another name."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", kiln.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * self.count

    found = Model(kiln.onnx.export(Counter(), (kiln.ones(2),)).data)
    assert list(found.inputs) == ["x", "count"] and list(found.outputs) == ["output", "count.after"]


def test_sizes_are_computed() -> None:
    """A size that a shape needs is taken from the input that has it."""
    program = kiln.onnx.export(
        lambda x: x.reshape(-1).sum() / x.shape[0], (kiln.ones(3, 4),), dynamic_axes={"x": {0: "n"}}
    )
    found = Model(program.data)
    assert {"Shape", "Mul"} <= set(found.kinds) and found.inputs["x"] == (1, ["n", 4])


def test_bfloat16_weights() -> None:
    weight = kiln.tensor([1.0, -2.5], dtype=kiln.bfloat16)
    found = Model(kiln.onnx.export(lambda x: x * weight, (kiln.ones(2),)).data)
    (held,) = [t for t in found.tensors.values() if all_of(t, 2) == [16]]
    assert struct.unpack("<2H", all_of(held, 9)[0]) == (0x3F80, 0xC020)


@kiln.jit.script
def loop(x: Any, n: Any) -> Any:
    """A loop with a branch in it."""
    for _ in range(int(n)):
        if x.sum() > 0:
            x = x * 2
        else:
            x = x + 1
    return x


def nothing(x: Any) -> None:
    """What gives nothing."""


def test_a_loop_with_a_branch() -> None:
    """One Loop with one If; bodies see what is around them, and no name is twice in the model."""
    found = Model(kiln.onnx.export(loop, (kiln.ones(2), kiln.tensor(3)), input_names=["If_1", "Loop_2"]).data)
    made = list(found.all_nodes())
    kinds = [all_of(x, 4)[0].decode() for x in made]
    assert kinds.count("Loop") == kinds.count("If") == 1 and found.kinds.count("If") == 0
    names = [name.decode() for x in made for name in all_of(x, 2)]
    names += [*found.inputs, *found.tensors, *found.body_inputs]
    assert len(names) == len(set(names)) and list(found.inputs) == ["If_1", "Loop_2"]
    assert len(found.body_inputs) == 4  # of the Loop: the step, whether it goes on, the counter and x


def test_a_known_branch_is_no_branch() -> None:
    """Of a condition on numbers alone one side is written."""

    def program(x: Any) -> Any:
        return kiln.graph.cond(kiln.tensor(2) > 1, lambda x: x * 2, lambda x: x / 3, (x,))

    assert {"If", "Div"}.isdisjoint(Model(kiln.onnx.export(program, (kiln.ones(2),)).data).kinds)


LINEAR = nn.Linear(4, 2)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "opset": (
        lambda: kiln.onnx.export(LINEAR, (kiln.ones(1, 4),), opset_version=9),
        ValueError,
        "from 18 to 26",
    ),
    "names": (
        lambda: kiln.onnx.export(LINEAR, (kiln.ones(1, 4),), input_names=["a", "b"]),
        ValueError,
        "2 input names for 1 inputs",
    ),
    "a name twice": (
        lambda: kiln.onnx.export(LINEAR, (kiln.ones(1, 4),), input_names=["a"], output_names=["a"]),
        ValueError,
        "called 'a'",
    ),
    "parameters": (
        lambda: kiln.onnx.export(LINEAR, (kiln.ones(1, 4),), export_params=False),
        NotImplementedError,
        "parameters are in the file",
    ),
    "an old opset": (
        lambda: kiln.onnx.export(lambda x: x.lgamma(), (kiln.ones(2),), opset_version=18),
        ValueError,
        r"lgamma .*test_onnx.py:\d+\) needs BitCast, which came with opset 26",
    ),
    "no result": (
        lambda: kiln.onnx.export(kiln.jit.script(nothing), (kiln.ones(2),)),
        ValueError,
        "nothing gives no tensor",
    ),
    "a place": (lambda: kiln.onnx.export(LINEAR, (kiln.ones(1, 4),), 5), TypeError, "a path or an open file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written(case: str) -> None:
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        call()


def test_a_file_that_would_be_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of protobuf holds less than 2 GiB: told before anything is written."""
    from kiln.onnx import model

    assert model.LARGEST < 1 << 31
    program = kiln.export.export(nn.Linear(64, 32), (kiln.ones(1, 64),))
    monkeypatch.setattr(model, "LARGEST", 4 * 64 * 32)  # the weights alone
    with pytest.raises(ValueError, match="and a file holds 2 GiB at most"):
        program.to_onnx(tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    """What fails writes nothing."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"kept")
    with pytest.raises(ValueError, match="needs BitCast"):
        kiln.onnx.export(lambda x: x.lgamma(), (kiln.ones(2),), path, opset_version=18)
    assert path.read_bytes() == b"kept" and list(tmp_path.iterdir()) == [path]
