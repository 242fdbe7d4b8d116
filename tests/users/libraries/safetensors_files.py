"""Files of safetensors, written and read by the package's own functions and by kiln's."""

import os
import tempfile

import safetensors
import torch
from safetensors.torch import load, load_file, load_model, save, save_file, save_model
from torch import nn

torch.manual_seed(0)
tensors = {
    "a": torch.randn(3, 4),
    "half": torch.randn(5).half(),
    "brain": torch.randn(2, 2).bfloat16(),
    "whole": torch.arange(6).view(2, 3),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
}


def same(found):
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "a.safetensors")
    save_file(tensors, path, metadata={"format": "pt"})
    same(load_file(path))
    same(load(save(tensors)))
    same(torch.load(path))
    torch.save(tensors, os.path.join(folder, "b.safetensors"))
    same(load_file(os.path.join(folder, "b.safetensors")))
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert torch.equal(file.get_tensor("a"), tensors["a"])
        assert torch.equal(file.get_slice("whole")[:, 1:], tensors["whole"][:, 1:])

    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    save_model(model, path)
    other = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    other[1].weight = other[0].weight
    assert load_model(other, path) == (set(), [])
    assert torch.equal(other[0].weight, model[0].weight) and other[1].weight is other[0].weight

    try:
        save_file({"a": tensors["a"], "view": tensors["a"][1:]}, path)
    except RuntimeError as error:
        assert "share memory" in str(error)
    else:
        raise AssertionError("shared memory was written")
print("ok")
