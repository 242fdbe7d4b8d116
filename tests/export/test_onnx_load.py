"""ONNX models that are read: what kiln wrote comes back as the same program, sizes that vary stay so, and
what is no whole model is refused by one class of error. No other package is needed.
"""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_models import ENTRIES, MODELS, NAMES
from sample_calls import given, tensors

import kiln
from kiln import nn
from kiln.export import Dim
from kiln.onnx import LoadError, UnsupportedError
from kiln.onnx import protobuf as pb
from kiln.tracing.recorder import TracingError
from kiln.tracing.trees import flatten


def near(found: Any, expected: Any, close: float) -> None:
    """Results beside results, leaf by leaf."""
    own: list[Any] = []
    wanted: list[Any] = []
    flatten(found, own)
    flatten(expected, wanted)
    assert len(own) == len(wanted)
    for a, b in zip(own, wanted):
        assert a.dtype is b.dtype and a.shape == b.shape
        np.testing.assert_allclose(
            a.detach().double().numpy(),
            b.detach().double().numpy(),
            rtol=close,
            atol=close / 10,
            equal_nan=True,
        )


def model(
    *nodes: bytes, inputs: Any = (("x", "float32", (2, 3)),), tensors: Any = (), opset: int = 26
) -> bytes:
    """A file of nodes whose last result is `y`."""
    infos = [pb.value_info(*x) for x in inputs]
    outputs = [pb.value_info("y", "float32", None)]
    return pb.model(pb.graph("g", nodes, tensors, infos, outputs), opset, "test", "1")


def node(kind: str, *names: str, **attributes: Any) -> bytes:
    """A node whose last name is its result."""
    return pb.node(kind, "", names[:-1], names[-1:], attributes)


def ints(name: str, *values: int) -> bytes:
    """A tensor of int64."""
    return pb.tensor(name, "int64", (len(values),), struct.pack(f"<{len(values)}q", *values))


# -- there and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_ops(name: str) -> None:
    """A program of one op, written and read: node by node and as a program it gives what the op gives."""
    op = ENTRIES[name]
    function = getattr(op, "handle", None) or op.function
    sample = op.samples(np.random.default_rng(3), "int64" if op.dtypes == "integral" else "float32")[0]
    args, kwargs = tuple(map(given, sample.args)), {k: given(v) for k, v in sample.kwargs.items()}
    found = tensors([*args, *kwargs.values()])
    if not found or not all(x.numel() for x in found):
        return
    try:
        expected = function(*args, **kwargs)
        program = kiln.export.export(lambda *a, **k: function(*a, **k), args, kwargs)
        data = program.to_onnx().data
    except (RuntimeError, NotImplementedError, ValueError, TypeError, TracingError):
        return  # what cannot be written is asked elsewhere
    leaves: list[Any] = []
    flatten((args, kwargs), leaves)
    inputs = [leaves[k] for k in program._captured.distinct]
    near(kiln.onnx.read(data)(*inputs), _flat(expected), 2e-5)
    try:
        again = kiln.onnx.load(data)
    except UnsupportedError as error:
        assert "reads the value" in str(error), error
        return
    near(again(*inputs), _flat(expected), 2e-5)


def _flat(value: Any) -> Any:
    """Results as a model has them: one, or a tuple."""
    found: list[Any] = []
    flatten(value, found)
    return found[0] if len(found) == 1 else tuple(found)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Whole models: sizes that vary keep their names, other sizes than the example's work, gradients flow."""
    kiln.manual_seed(0)
    make, first, second, shapes = MODELS[name]
    original = make().eval()
    program = kiln.export.export(original, first, dynamic_shapes=shapes)
    data = program.to_onnx().data
    module, again = kiln.onnx.read(data), kiln.onnx.load(data)
    assert set(again.range_constraints) == set(program.range_constraints)
    for args in (first, second):
        if args is not None:
            with kiln.no_grad():
                expected = _flat(original(*args))
                near(module(*args), expected, 1e-4)
                near(again(*args), expected, 1e-4)
    results: list[Any] = []
    flatten(again(*first), results)
    results[0].sum().backward()
    assert any(p.grad is not None for p in again.parameters())


def test_a_loaded_model_is_a_usual_program(tmp_path: Path) -> None:
    """It is saved, loaded, written again, verified; weights and inputs have their names."""
    original = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    kiln.onnx.export(original, (kiln.ones(3, 4),), tmp_path / "a.onnx", input_names=["features"],
                     dynamic_axes={"features": {0: "batch"}})  # fmt: skip
    program = kiln.onnx.load(tmp_path / "a.onnx")
    assert [x.name for x in program._captured.inputs] == ["features"]
    assert set(program.state_dict()) == set(original.state_dict())
    assert program.range_constraints == {"batch": (0, None)}
    program.save(tmp_path / "a.kiln")
    x = kiln.randn(5, 4)
    saved = kiln.export.load(tmp_path / "a.kiln")
    assert (saved(x) == program(x)).all() and (saved(x) == original(x)).all()
    assert (program(features=x) == original(x)).all()
    again = kiln.onnx.load(program.to_onnx().data)
    assert (again(x) == original(x)).all()
    assert program.verify(2).equal
    with open(tmp_path / "a.onnx", "rb") as file:
        assert (kiln.onnx.load(file)(x) == original(x)).all()
    assert (kiln.onnx.read(io.BytesIO((tmp_path / "a.onnx").read_bytes()))(x) == original(x)).all()


# -- sizes --------------------------------------------------------------------------------------------


def test_shapes_that_are_computed_are_followed() -> None:
    """Shape, Gather, Div and Concat before a Reshape are arithmetic on sizes: the program has no such op."""
    data = model(
        node("Shape", "x", "s"), node("Gather", "s", "zero", "n"), node("Gather", "s", "one", "m"),
        node("Div", "m", "two", "half"), node("Unsqueeze", "n", "axes", "n1"), node("Mul", "half", "n", "h"),
        node("Unsqueeze", "h", "axes", "h1"), node("Concat", "h1", "pair", "shape", axis=0),
        node("Reshape", "x", "shape", "y"),
        inputs=[("x", "float32", ("n", 4, "m"))],
        tensors=[ints("axes", 0), ints("pair", 2, -1), *[
            pb.tensor(name, "int64", (), struct.pack("<q", k))
            for name, k in (("zero", 0), ("one", 1), ("two", 2))
        ]],
    )  # fmt: skip
    program = kiln.onnx.load(data)
    assert {n.op.name for n in program.graph.nodes} == {"reshape"}
    for n, m in ((3, 4), (1, 6), (5, 3)):
        assert program(kiln.ones(n, 4, m)).shape == (2 * n, 2, m)
    fixed = kiln.onnx.load(data, dims={"m": 6, "n": Dim("rows", max=9)})
    assert fixed.range_constraints == {"rows": (0, 9)}
    with pytest.raises(ValueError, match="no size called 'k'"):
        kiln.onnx.load(data, dims={"k": 1})


def test_inputs_that_are_shapes_are_told_their_values() -> None:
    data = model(
        node("Reshape", "x", "shape", "y"), inputs=[("x", "float32", (2, 3)), ("shape", "int64", (1,))]
    )
    with pytest.raises(UnsupportedError, match="node 0, Reshape: its input 1 goes by values.*`values`"):
        kiln.onnx.load(data)
    shape = kiln.tensor([6])
    assert kiln.onnx.load(data, values={"shape": shape})(kiln.ones(2, 3)).shape == (6,)
    assert kiln.onnx.read(data)(kiln.ones(2, 3), shape).shape == (6,)
    with pytest.raises(ValueError, match="no input called 'form'"):
        kiln.onnx.read(data, values={"form": shape})


def _body(*nodes: bytes, inputs: Any, outputs: Any) -> bytes:
    infos = [[pb.value_info(*x) for x in given] for given in (inputs, outputs)]
    return pb.graph("body", nodes, [], *infos)


def _doubled(x: Any) -> Any:
    """At least once, and until an element is 10."""
    x = x + x
    return x if x.max() >= 10 else _doubled(x)


def test_branches_and_loops_on_values_are_nodes() -> None:
    """If becomes a cond and Loop a while_loop: one program for every value."""
    one = [("r", "float32", (2, 3))]
    doubled = _body(node("Add", "x", "x", "r"), inputs=[], outputs=one)
    negative = _body(node("Neg", "x", "r"), inputs=[], outputs=one)
    flag = node("Greater", "total", "limit", "flag"), node("ReduceSum", "x", "total", keepdims=0)
    limit = pb.tensor("limit", "float32", (), struct.pack("<f", 0.0))
    data = model(
        flag[1], flag[0], node("If", "flag", "y", then_branch=doubled, else_branch=negative), tensors=[limit]
    )
    loop = _body(
        node("Add", "v", "v", "w"), node("ReduceMax", "w", "top", keepdims=0),
        node("Less", "top", "ten", "again"),
        inputs=[("k", "int64", ()), ("c", "bool", ()), ("v", "float32", (2, 3))],
        outputs=[("again", "bool", ()), ("w", "float32", (2, 3))],
    )  # fmt: skip
    ten = pb.tensor("ten", "float32", (), struct.pack("<f", 10.0))
    looped = model(node("Loop", "", "", "x", "y", body=loop), tensors=[ten])
    x = kiln.arange(6.0).reshape(2, 3)
    cases: list[tuple[bytes, Callable[[Any], Any], str]] = [
        (data, lambda x: x + x if x.sum() > 0 else -x, "cond"),
        (looped, _doubled, "while_loop"),
    ]
    for written, expected, kind in cases:
        program = kiln.onnx.load(written)
        assert kind in {n.op.name for n in program.graph.nodes}
        for example in (x, -x + 2.0) if kind == "cond" else (x, x + 1.0):
            wanted = expected(example)
            near(program(example), wanted, 1e-6)
            near(kiln.onnx.read(written)(example), wanted, 1e-6)


# -- what is refused ----------------------------------------------------------------------------------

SMALL = model(node("Relu", "x", "y"))
DEEP = pb.data(1, b"")
for _ in range(200):  # attributes that hold graphs that hold nodes
    DEEP = pb.data(1, pb.data(5, pb.data(6, DEEP)))
REFUSED: dict[str, tuple[bytes, type[LoadError], str]] = {
    "nothing": (b"", LoadError, "no ONNX model"),
    "another file": (b"\x89PNG\r\n\x1a\n" + bytes(40), LoadError, "damaged|no ONNX model"),
    "cut short": (SMALL[:-3], LoadError, "cut short"),
    "too deep": (pb.data(7, DEEP) + pb.data(8, pb.integer(2, 20)), LoadError, "deep"),
    "a name of nothing": (model(node("Relu", "z", "y")), LoadError, "reads 'z', which no node before it"),
    "no result": (model(node("Relu", "x", "z")), LoadError, "no node gives its output 'y'"),
    "an operator": (model(node("Frobnicate", "x", "y")), UnsupportedError, "node 0, Frobnicate: .*operator"),
    "an attribute": (model(node("Relu", "x", "y", slope=2)), UnsupportedError, "attribute 'slope'"),
    "an attribute of a wrong type": (model(node("Softmax", "x", "y", axis="b")), LoadError, "node 0"),
    "an input too many": (model(node("Relu", "x", "x", "y")), UnsupportedError, "at most 1 inputs"),
    "no input": (model(node("Add", "x", "y")), LoadError, "at least 2 inputs, got 1"),
    "sizes": (model(node("MatMul", "x", "x", "y")), LoadError, "node 0, MatMul"),
    "a dtype": (
        model(node("Relu", "x", "y"), inputs=[("x", "uint64", (2,))]), UnsupportedError, "dtype uint64",
    ),
    "a newer version": (model(node("Relu", "x", "y"), opset=99), UnsupportedError, "opset 99"),
    "few bytes": (
        model(node("Add", "x", "w", "y"), tensors=[pb.tensor("w", "float32", (2, 3), bytes(20))]),
        LoadError, "20 bytes are not 6 elements",
    ),
    "a huge shape": (
        model(node("Add", "x", "w", "y"), tensors=[pb.tensor("w", "float32", (1 << 40, 1 << 40), b"abcd")]),
        LoadError, "no memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    data, error, text = REFUSED[case]
    with pytest.raises(LoadError, match=text) as raised:
        kiln.onnx.load(data)
    assert type(raised.value) is error


def _beside(location: str, **more: str) -> bytes:
    """A model with a weight in another file."""
    entries = {"location": location, **more}
    weight = b"".join(
        [pb.integer(1, 3), pb.integer(2, 1), pb.data(8, "w"), pb.integer(14, 1),
         *(pb.data(13, pb.data(1, k) + pb.data(2, v)) for k, v in entries.items())]
    )  # fmt: skip
    return model(node("Add", "x", "w", "y"), tensors=[weight])


def test_weights_in_files_beside_the_model(tmp_path: Path) -> None:
    """They are read in the model's folder, and nowhere else."""
    home = tmp_path / "home"
    (home / "parts").mkdir(parents=True)
    (home / "parts" / "w.bin").write_bytes(bytes(4) + struct.pack("<3f", 1, 2, 3))
    (tmp_path / "outside.bin").write_bytes(bytes(12))
    (home / "link.bin").symlink_to(tmp_path / "outside.bin")
    path = home / "m.onnx"
    path.write_bytes(_beside("parts/w.bin", offset="4", length="12"))
    assert kiln.onnx.load(path)(kiln.zeros(2, 3)).tolist() == [[1, 2, 3], [1, 2, 3]]
    with pytest.raises(LoadError, match="load the model by its path"):
        kiln.onnx.load(path.read_bytes())
    wrong = {
        "../outside.bin": {}, str(tmp_path / "outside.bin"): {}, "link.bin": {}, "": {}, ".": {}, "a\0b": {},
        "parts/../../outside.bin": {}, "missing.bin": {}, "parts": {},
        "parts/w.bin": {"offset": "8"}, "parts\\w.bin": {"offset": "-4"}, "./parts/w.bin": {"length": "99"},
    }  # fmt: skip
    for location, more in wrong.items():
        path.write_bytes(_beside(location, **more))
        with pytest.raises(LoadError, match="tensor 'w'"):
            kiln.onnx.load(path)


def test_files_changed_at_random_are_read_or_refused() -> None:
    """Cut short at every byte, and with bits turned: a LoadError or a module, and nothing else."""
    whole = kiln.onnx.export(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), (kiln.ones(1, 1, 4, 4),)
    ).data
    for end in range(0, len(whole), 7):
        with pytest.raises(LoadError):
            kiln.onnx.read(whole[:end])
    draw, read = random.Random(5), 0
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 8))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        try:
            kiln.onnx.load(bytes(changed))
            read += 1
        except LoadError:
            continue
    assert 0 < read < 300
