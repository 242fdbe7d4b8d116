"""The names of safetensors' library: `kiln.utils.safetensors`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln.utils.safetensors import load, load_file, load_model, safe_open, save, save_file, save_model


def tied() -> Any:
    model = kiln.nn.Sequential(kiln.nn.Linear(2, 2), kiln.nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    return model


def test_tensors_by_name(tmp_path: Path) -> None:
    made = {
        "a": kiln.arange(6).reshape(2, 3).t(),
        "b": kiln.ones(2, dtype=kiln.bfloat16),
        "c": kiln.zeros(0, 2),
    }
    save_file(made, tmp_path / "x", metadata={"by": "hand"})
    for found in (load_file(tmp_path / "x"), load((tmp_path / "x").read_bytes()), load(save(made))):
        assert {k: (v.dtype, v.tolist()) for k, v in found.items()} == {
            k: (v.dtype, v.tolist()) for k, v in made.items()
        }
    assert {k: v.tolist() for k, v in kiln.load(tmp_path / "x").items()} == {
        k: v.tolist() for k, v in made.items()
    }


def test_what_is_saved_by_name(tmp_path: Path) -> None:
    x = kiln.ones(2)
    for wrong, error, text in (
        ({"a": x, "b": x[1:]}, RuntimeError, "share memory"),
        ({"a": 3}, ValueError, "invalid"),
        ([x], ValueError, "Expected a dict"),
    ):
        with pytest.raises(error, match=text):
            save_file(wrong, tmp_path / "x")
    with pytest.raises(TypeError, match="metadata"):
        save_file({"a": x}, tmp_path / "x", metadata={"a": 1})
    assert not (tmp_path / "x").exists()


def test_a_file_is_opened_without_being_read(tmp_path: Path) -> None:
    x = kiln.arange(24.0).reshape(4, 3, 2)
    save_file({"x": x, "flag": kiln.tensor(True)}, tmp_path / "x")
    with safe_open(tmp_path / "x", framework="pt", device="cpu") as file:
        assert file.keys() == ["flag", "x"] and file.offset_keys() == ["x", "flag"] and list(file)
        assert file.metadata() == {"format": "pt"} and file.get_tensor("flag").item() is True
        part = file.get_slice("x")
        assert part.get_shape() == [4, 3, 2] and part.get_dtype() == "F32"
        for index in (
            1,
            slice(1, 3),
            slice(None),
            slice(3, 1),
            (slice(1, None), 0),
            (..., 1),
            slice(0, 4, 2),
        ):
            assert part[index].tolist() == x[index].tolist()
        with pytest.raises(KeyError, match="y"):
            file.get_tensor("y")
    with pytest.raises(RuntimeError, match="cpu"):
        safe_open(tmp_path / "x", device="cuda")


def test_models(tmp_path: Path) -> None:
    model, other = tied(), tied()
    save_model(model, str(tmp_path / "x"))
    assert sorted(load_file(tmp_path / "x")) == ["0.bias", "0.weight"]
    assert load_model(other, tmp_path / "x") == ([], [])
    assert other[1].weight is other[0].weight and other[0].weight.tolist() == model[0].weight.tolist()
    plain = kiln.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="Missing key"):
        load_model(plain, tmp_path / "x")
    assert load_model(plain, tmp_path / "x", strict=False)[0] == ["weight", "bias"]


@pytest.mark.parametrize("read", [load_file, safe_open, lambda path: load(path.read_bytes())])
def test_damaged_files(read: Any, tmp_path: Path) -> None:
    raw = save({"x": kiln.ones(2)})
    for bad in (raw[:-1], raw[:20], b"\xff" * 20):
        (tmp_path / "x").write_bytes(bad)
        with pytest.raises(ValueError, match="is not a whole safetensors file"):
            read(tmp_path / "x")


def test_the_library_reads_it(tmp_path: Path) -> None:
    peer = pytest.importorskip("safetensors.numpy")
    save_file({"x": kiln.arange(3)}, tmp_path / "x")
    assert peer.load_file(tmp_path / "x")["x"].tolist() == [0, 1, 2]
