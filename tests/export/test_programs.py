"""Programs: exported, saved and loaded they give the model's bits; what is no program is refused."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program_files import Memory, again, tensors, with_texts

import kiln
import kiln.nn.functional as F
from kiln import nn
from kiln.export import Dim, export, load, save
from kiln.testing import program_fuzz

Pair = namedtuple("Pair", "left right")


class Block(nn.Module):
    """One layer of a transformer with a causal mask."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (y.reshape(b, t, 2, c // 2).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, c))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(12, 2)

    def forward(self, x: Any) -> Any:
        return self.head(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Containers(nn.Module):
    def forward(self, batch: Any, scale: float, flag: bool = True) -> Any:
        x, (y, rest) = batch["x"], batch["more"]
        return {"sum": x + y * scale, "pair": Pair(x, rest[0]), "flag": flag, 3: [x.int(), None, "done", 1.5]}


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), lambda: (kiln.rand(3, 4),)),
    "block": (Block, lambda: (kiln.rand(2, 5, 8),)),
    "convolution": (Conv, lambda: (kiln.rand(2, 1, 4, 4),)),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2)),
        lambda: (kiln.tensor([[1, 6], [0, 3]]),),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(1, 2, 3, stride=2), lambda: (kiln.rand(2, 1, 3, 3),)),
    "gru": (lambda: nn.GRU(4, 3, bidirectional=True), lambda: (kiln.rand(3, 2, 4),)),
    "rnn": (lambda: nn.RNN(4, 3), lambda: (kiln.rand(3, 4),)),
    "half": (lambda: nn.Linear(4, 3).to(kiln.bfloat16), lambda: (kiln.rand(2, 4).to(kiln.bfloat16),)),
}


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and kiln.equal(a, b)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True])
def test_a_loaded_program_has_the_models_bits_and_gradients(name: str, training: bool) -> None:
    make, example = MODELS[name]
    kiln.manual_seed(1)
    model = make().train(training)
    twin = make().train(training)
    twin.load_state_dict(model.state_dict())
    program = again(export(model, example()))
    args = example()
    expected, got = tensors(twin(*args)), tensors(program(*args))
    assert [same(a, b) for a, b in zip(expected, got, strict=True)] == [True] * len(got)
    for results in (expected, got):
        sum((y.float() ** 2).sum() for y in results).backward()
    loaded = dict(program.named_parameters())
    assert loaded.keys() == dict(twin.named_parameters()).keys()
    for key, parameter in twin.named_parameters():
        assert same(parameter.grad, loaded[key].grad), key
    buffers = dict(program.named_buffers())
    for key, buffer in twin.named_buffers():
        if key in buffers:
            assert same(buffer, buffers[key]), key


def test_gradients_reach_inputs_that_had_none_in_the_example() -> None:
    program = again(export(lambda x, y: (x * y).tanh().sum(), (kiln.rand(3), kiln.rand(3))))
    x, y = kiln.rand(3, requires_grad=True), kiln.rand(3)
    program(x, y).backward()
    z = x.detach().clone().requires_grad_()
    (z * y).tanh().sum().backward()
    assert kiln.equal(x.grad, z.grad)


def test_what_is_detached_stays_so() -> None:
    def f(x: Any) -> Any:
        with kiln.no_grad():
            scale = x.abs().max()
        return x / scale + x.detach() ** 2

    x = kiln.rand(4, requires_grad=True)
    program = again(export(f, (kiln.rand(4, requires_grad=True),)))
    z = x.detach().clone().requires_grad_()
    program(x).sum().backward()
    f(z).sum().backward()
    assert kiln.equal(x.grad, z.grad)


def test_state_is_written_as_the_model_writes_it() -> None:
    model, twin = Memory(), Memory()
    program = again(export(model, (kiln.rand(3),)))
    assert int(program.calls) == 0, "tracing computes nothing"
    for _ in range(3):
        x = kiln.rand(3)
        assert kiln.equal(program(x), twin(x))
    assert int(program.calls) == 3
    assert kiln.equal(program.cache, twin.cache)
    assert program.state_dict().keys() == twin.state_dict().keys()


def test_the_state_names_parameters_before_buffers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    state = export(model, (kiln.ones(3, 2),)).state_dict
    names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    assert list(state) == names != list(state())
    assert list(state()) == list(model.state_dict())


def test_random_numbers_are_drawn_anew_and_as_the_model_draws_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    program = again(export(model, (kiln.ones(2, 4),)))
    x = kiln.ones(2, 4)
    kiln.manual_seed(5)
    expected = [model(x) for _ in range(3)]
    kiln.manual_seed(5)
    got = [program(x) for _ in range(3)]
    assert all(map(kiln.equal, expected, got))
    assert not kiln.equal(got[0], got[1])


def test_containers_come_back() -> None:
    model = Containers()
    batch = {"x": kiln.rand(2), "more": (kiln.rand(2), [kiln.rand(3)])}
    program = again(export(model, (batch, 0.5)))
    result = program(batch, 0.5)
    expected = model(batch, 0.5)
    assert list(result) == list(expected) == ["sum", "pair", "flag", 3]
    assert type(result["pair"]).__name__ == "Pair" and result["pair"]._fields == ("left", "right")
    assert result[3][1:] == [None, "done", 1.5] and result["flag"] is True
    assert all(map(same, tensors(expected), tensors(result)))
    with pytest.raises(TypeError, match=r"scale: must be 0\.5, got 0\.25"):
        program(batch, 0.25)
    with pytest.raises(TypeError, match=r"missing \['more'\]"):
        program({"x": batch["x"]}, 0.5)


def test_sizes_that_vary_are_checked_in_the_inputs_own_names() -> None:
    n, model = Dim("n", min=1, max=6), nn.Linear(3, 2)
    program = again(export(model, (kiln.rand(4, 3),), dynamic_shapes={"input": {0: n}}))
    assert program.range_constraints == {"n": (1, 6)}
    for size in (1, 2, 5, 6):
        x = kiln.rand(size, 3)
        assert same(program(x), model(x))
    for bad, text in (
        (kiln.rand(7, 3), r"input: dim 0 is 7, n must be from 1 to 6"),
        (kiln.rand(4, 5), r"input: dim 1 must be 3, got 5"),
        (kiln.rand(3), r"input: must have 2 dims, got 1"),
        (kiln.rand(4, 3).double(), r"input: expected float32, got float64"),
    ):
        with pytest.raises(RuntimeError, match=text):
            program(bad)


def test_a_program_is_a_module_among_others() -> None:
    model = nn.Linear(3, 3)
    program = again(export(model, (kiln.rand(2, 3),)))
    x = kiln.rand(2, 3)
    assert kiln.equal(nn.Sequential(program, nn.Tanh())(x), model(x).tanh())
    assert kiln.equal(kiln.compile(program)(x), model(x))
    optimizer = kiln.optim.SGD(program.parameters(), lr=0.1)
    before = program.weight.detach().clone()
    program(x).sum().backward()
    optimizer.step()
    assert not kiln.equal(before, program.weight)


def test_verify_finds_equal_bits_and_a_model_that_differs() -> None:
    n, model = Dim("n", min=0, max=9), nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    program = export(model, (kiln.rand(4, 3),), dynamic_shapes=({0: n},))
    report = program.verify(4)
    assert report.equal and report.largest == {"output": 0.0}
    assert {case.sizes["n"] for case in report.cases} >= {0, 1, 3, 9}
    other = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    other.load_state_dict(model.state_dict())
    with kiln.no_grad():
        other[0].bias.mul_(1.0000001)
    assert not again(program).verify(2, against=other).equal
    with pytest.raises(ValueError, match="against="):
        again(program).verify()


def test_verify_tells_a_zeros_sign_and_sizes_that_are_declared_but_not_taken() -> None:
    program = export(lambda x: x * 0, (kiln.rand(4),))
    assert program.verify(2).equal
    assert program.verify(2, against=lambda x: (x * 0).abs()).largest == {"output": 1.0}

    def halves(x: Any) -> Any:
        return x[: x.shape[0] // 2] if x.shape[0] > 2 else x

    some = export(halves, (kiln.rand(6),), dynamic_shapes=({0: Dim("n", min=1, max=8)},))
    report = some.verify(2)
    assert not report.equal and any(sizes == {"n": 1} for sizes, _ in report.refused)


def test_verify_leaves_state_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    program = export(model, (kiln.rand(5, 3),))
    before = [b.clone() for b in model.buffers()]
    assert program.verify(2).equal
    assert all(map(kiln.equal, before, model.buffers()))


def test_the_file_is_safetensors_and_holds_texts_beside() -> None:
    file = io.BytesIO()
    save(export(nn.Linear(3, 2), (kiln.rand(1, 3),)), file, extra_files={"labels": "cat,dog"})
    file.seek(0)
    assert kiln.load(file).keys() == {"weight", "bias"}
    file.seek(0)
    texts: dict[str, Any] = {"labels": ""}
    load(file, extra_files=texts)
    assert texts == {"labels": "cat,dog"}


def _signature(**changes: Any) -> Any:
    return lambda text: json.dumps({**json.loads(text), **changes})


GRAPH = "graph 7\n%0 = input float32[2, 3]\n%1 = input float32[2, 3]\n%2 = input float32[2]\n"


BAD_GRAPHS = {
    "%3 = linear(%0, %9): float32[2, 2]": "line 5: %9 is used before it is defined",
    "%3 = os_system(%0): float32[2, 2]": "line 5: no op is called 'os_system'",
    "%3 = linear(%0, %1, %2): float32[2, 9]": r"line 5: says float32\[2, 9\]",
    "%3 = slice(%0; 1, (0, 9, 1)): float32[2, 9]": "a place behind the last",
    "%3 = slice(%0; 1, (-1, 2, 1)): float32[2, 2]": "a place before the first",
    "%3 = slice(%0; 5, (0, 2, 1)): float32[2, 2]": ".",
    "%3 = as_strided(%0; (9), (1), (0)): float32[9]": "places outside",
    "%3 = as_strided(%0; (2), (1), (-1)): float32[2]": "a negative offset",
    "%3 = write(%0, %1; (9, 1), (0)): float32[2, 3]": "places outside",
    "%3 = permute(%0; (0, 0)): float32[2, 2]": "no order of dims",
    "%3 = reshape(%0; (-2, -3)): float32[-2, -3]": "negative size",
}
CODE = [["weight", "code", True], ["bias", "parameter", True]]
NAMELESS = [["x", "parameter", True], ["bias", "parameter", True]]


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({"program": "7"}, "a program of format 7; this kiln"),
        ({"graph": "graph 7\n"}, "no 'return'"),
        *(({"graph": f"{GRAPH}{line}\nreturn %3\n"}, told) for line, told in BAD_GRAPHS.items()),
        ({"signature": "{"}, "signature: no JSON"),
        ({"signature": "[]"}, "signature: expected an object"),
        ({"signature": _signature(inputs=["a", "b"])}, "2 inputs and 2 tensors, graph has 3"),
        ({"signature": _signature(state=CODE)}, "no kind 'code'"),
        ({"signature": _signature(state=NAMELESS)}, "no tensor called"),
        ({"signature": _signature(mutated=[["state", 9]])}, "the graph returns 1 values"),
        ({"signature": _signature(same=[[0, "state", 5]])}, "there is no 'state' 5"),
        ({"signature": _signature(results={"c": 1})}, "0 tensors in the results"),
        ({"signature": _signature(aliases=[3])}, "an alias of a later tensor"),
    ],
)
def test_a_file_that_is_edited_is_refused_with_what_is_wrong(texts: dict[str, Any], told: str) -> None:
    file = io.BytesIO()
    save(export(nn.Linear(3, 2), (kiln.rand(2, 3),)), file)
    load(io.BytesIO(file.getvalue()))
    with pytest.raises(ValueError, match=told):
        load(with_texts(file.getvalue(), **texts))


def test_positions_are_checked_though_a_file_says_nothing_of_checks() -> None:
    program = again(export(nn.Embedding(4, 2), (kiln.tensor([1, 2]),)))
    with pytest.raises(IndexError, match="index out of range"):
        program(kiln.tensor([1, 4]))


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_file_that_was_cut_off_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "m.kiln"
    save(export(nn.Linear(3, 2), (kiln.rand(2, 3),)), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"m\.kiln'? is not a whole safetensors file"):
        load(path)
    kiln.save({"x": kiln.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="holds tensors but no program"):
        load(tmp_path / "x.safetensors")


def test_files_changed_at_random_do_no_harm() -> None:
    files = program_fuzz.seeds()
    for number in range(60):
        rng = random.Random(f"program/{number}")
        raw = program_fuzz.edited(rng.choice(files), rng)
        assert program_fuzz.check(raw) == "", number


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_an_infinite_fill_is_a_number_of_the_program(value: float) -> None:
    """A fill beside sizes, that is no size: of a tensor, and inside an op that joins."""
    program = kiln.export.export(
        lambda x: kiln.cat([kiln.full((x.shape[0],), value), x]), (kiln.ones(3),),
        dynamic_shapes=({0: kiln.export.Dim("n")},),
    )  # fmt: skip
    found = program(kiln.ones(2)).tolist()
    assert str(found) == str([value, value, 1.0, 1.0])


def test_what_a_program_cannot_be_is_refused_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="a tuple of example arguments"):
        export(nn.Linear(3, 2), kiln.rand(2, 3))
    with pytest.raises(RuntimeError, match=r"test_programs\.py:\d+"):
        export(lambda x: x if x.sum() > 0 else -x, (kiln.rand(3),))
    with pytest.raises(TypeError, match="ExportedProgram"):
        save(nn.Linear(3, 2), io.BytesIO())


def test_a_program_runs_where_its_models_code_never_was(tmp_path: Path) -> None:
    model = Block()
    path = tmp_path / "block.kiln"
    save(export(model, (kiln.rand(2, 5, 8),), dynamic_shapes=({0: Dim("batch", max=8)},)), path)
    x = kiln.rand(3, 5, 8)
    np.save(tmp_path / "x.npy", x.numpy())

    def command(*args: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "kiln", *map(str, args)], capture_output=True, text=True, timeout=300
        )

    shown = command("show", path, "--graph")
    assert shown.returncode == 0, shown.stderr
    assert "x: float32[batch, 5, 8]" in shown.stdout and "batch: 0 to 8" in shown.stdout
    done = command("run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "y.npy")
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "y.npy"), model(x).detach().numpy())
    wrong = command("run", path, "--input", path)
    assert wrong.returncode == 2 and "no array of numbers" in wrong.stderr
    none = command("show", tmp_path / "x.npy")
    assert none.returncode == 1 and "not a whole safetensors file" in none.stderr


def test_ordered_dicts_come_back_as_dicts() -> None:
    program = again(export(lambda x: OrderedDict(a=x + 1), (kiln.rand(2),)))
    assert type(program(kiln.rand(2))) is dict


def test_save_is_a_method_too(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    x = kiln.ones(1, 2)
    program = export(model, (x,))
    program.save(tmp_path / "m.kiln", extra_files={"note": "a"})
    read = {"note": ""}
    assert kiln.equal(load(tmp_path / "m.kiln", extra_files=read)(x), model(x)) and read["note"] == "a"
