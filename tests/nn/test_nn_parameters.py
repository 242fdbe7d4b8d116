"""Parameters in lists and dicts, buffers, PyTorch's paths and kinds of layers, against PyTorch."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
from backend import kiln, torch

LIBS = (kiln, torch)
nn = kiln.nn


def outcome(program: Any, lib: Any) -> Any:
    """What a program gives with one library, or the type of its error."""
    try:
        return program(lib)
    except Exception as error:
        return type(error)


def lists(lib: Any) -> Any:
    held = lib.nn.ParameterList([lib.ones(2, 3), lib.nn.Parameter(lib.ones(1)), 5])
    held += [lib.zeros(2)]
    held.append("x").extend(lib.ones(1) for _ in range(2))
    held[-1] = lib.zeros(4)
    part = held[1:4]
    return (
        repr(held).replace("kiln", "torch"), len(held), len(part), part[0] is held[1], type(part).__name__,
        list(held.state_dict()), [tuple(p.shape) for p in held.parameters()],
        list(copy.deepcopy(held).state_dict()),
    )  # fmt: skip


def dicts(lib: Any) -> Any:
    held = lib.nn.ParameterDict({"b": lib.ones(2), "a": lib.nn.Parameter(lib.ones(1)), "kind": "x"})
    held["c"] = lib.zeros(3)
    first = held.pop("a")
    more = held | lib.nn.ParameterDict([("d", lib.ones(1))])
    held.setdefault("e", lib.ones(1))
    last = held.popitem()
    return (
        list(more), list(held.keys()), tuple(first.shape), last[0], held.get("zz", 3), "b" in held, len(held),
        list(reversed(held)), list(held.fromkeys(["p", "q"], 1).values()), list(more.state_dict()),
        more["b"] is held["b"], [type(v).__name__ for v in held.values()], [k for k, _ in held.items()],
        repr(held).replace("kiln", "torch"),
    )  # fmt: skip


def buffers(lib: Any) -> Any:
    layer = lib.nn.Linear(1, 1)
    layer.mean = lib.nn.Buffer(lib.zeros(2))
    layer.cache = lib.nn.Buffer(lib.ones(1), persistent=False)
    layer.mean = lib.ones(2)
    layer.double()
    return (
        list(layer.state_dict()), [n for n, _ in layer.named_buffers()], layer.mean.tolist(),
        str(layer.cache.dtype)[-7:], (layer.cache + 1).tolist(),
    )  # fmt: skip


@pytest.mark.parametrize("program", [lists, dicts, buffers])
def test_holders(program: Any, answers: Any) -> None:
    ours, theirs = answers.both(program)
    assert ours == theirs


@pytest.mark.parametrize(
    "program",
    [
        lambda t: t.nn.ParameterList([t.ones(1)])[1],
        lambda t: t.nn.ParameterList([t.ones(1)])(),
        lambda t: t.nn.ParameterList(3),
        lambda t: t.nn.ParameterDict().update(3),
        lambda t: t.nn.ParameterDict({3: t.ones(1)}),
        lambda t: t.nn.ParameterDict({"update": t.ones(1)}),
        lambda t: t.nn.ParameterDict({"a": t.ones(1)}).pop("b"),
        lambda t: t.nn.ParameterDict({"a": t.ones(1)}).update(t.nn.Linear(1, 1)),
        lambda t: t.nn.Bilinear(0, 1, 1),
    ],
)
def test_refusals(program: Any, answers: Any) -> None:
    ours, theirs = outcome(program, kiln), answers([outcome, program], lambda: outcome(program, torch))
    assert isinstance(ours, type) and (ours is theirs or (ours, theirs) == (KeyError, AttributeError))


@pytest.mark.parametrize("key", ["items", "forward", "training", "_keys", "_parameters"])
@pytest.mark.parametrize("value", ["x", kiln.ones(1), None])
def test_a_key_does_not_replace_an_attribute(key: str, value: Any) -> None:
    held = kiln.nn.ParameterDict({"a": kiln.ones(1)})
    with pytest.raises(KeyError, match=key):
        held[key] = value
    assert [k for k, _ in held.items()] == list(held.state_dict()) == ["a"] and held.training is True


@pytest.mark.parametrize("value", ["x", None, kiln.nn.Identity()])
def test_what_is_held_is_replaced_by_a_value_of_any_kind(value: Any) -> None:
    for held, key in (
        (kiln.nn.ParameterDict({"a": kiln.ones(1), "b": kiln.ones(2)}), "a"),
        (kiln.nn.ParameterList([kiln.ones(1), kiln.ones(2)]), 0),
    ):
        held[key] = value
        assert held[key] is value and len(held) == 2 and len(list(held.parameters())) == 1
        held[key] = "y"
        assert held[key] == "y" and not list(held.children())
        held[key] = kiln.zeros(3)
        assert held[key].tolist() == [0, 0, 0] and len(list(held.parameters())) == 2


@pytest.mark.parametrize("persistent", [True, False])
def test_a_copy_of_a_buffer_is_a_buffer(persistent: bool) -> None:
    buffer = kiln.nn.Buffer(kiln.ones(2), persistent=persistent)
    near, far, twin = copy.copy(buffer), *copy.deepcopy([buffer, buffer])
    assert far is twin is not buffer
    for made in (near, far):
        layer = kiln.nn.Identity()
        layer.mean = made
        assert type(made) is kiln.nn.Buffer and made.persistent is persistent
        assert [n for n, _ in layer.named_buffers()] == ["mean"]
        assert list(copy.deepcopy(layer).state_dict()) == ["mean"] * persistent
        assert type(copy.deepcopy(layer).mean) is kiln.nn.Buffer
    buffer.fill_(3.0)
    assert near.tolist() == [3, 3] and far.tolist() == [1, 1]

    trained = kiln.nn.Buffer(kiln.ones(2, requires_grad=True))
    trained.sum().backward()
    made = copy.deepcopy(trained)
    assert made.requires_grad and made.grad.tolist() == [1, 1] and made.grad is not trained.grad


def test_bilinear(answers: Any) -> None:
    def run(lib: Any) -> list[Any]:
        layer = lib.nn.Bilinear(2, 3, 4)
        assert repr(layer) == "Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)"
        assert layer.weight.abs().max().item() <= 2**-0.5 and lib.nn.Bilinear(2, 3, 4, False).bias is None
        with lib.no_grad():
            for p in layer.parameters():
                p.copy_(lib.arange(float(p.numel())).reshape(p.shape).sin())
        y = layer(lib.ones(5, 2, dtype=lib.float32), lib.arange(15.0).reshape(5, 3))
        y.sum().backward()
        return [y.detach().numpy(), layer.weight.grad.numpy(), layer.bias.grad.numpy()]

    for ours, theirs in zip(*answers.both(run), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


PATHS = {
    "conv": "Conv2d _ConvNd", "batchnorm": "BatchNorm1d _BatchNorm _NormBase", "dropout": "_DropoutNd",
    "instancenorm": "_InstanceNorm", "loss": "_Loss MSELoss", "linear": "Linear Bilinear Identity",
    "rnn": "LSTM RNNBase", "container": "Sequential", "activation": "ReLU", "normalization": "LayerNorm",
    "padding": "ZeroPad2d", "pooling": "MaxPool2d", "sparse": "Embedding", "transformer": "Transformer",
    "upsampling": "Upsample",
}  # fmt: skip


def test_paths() -> None:
    for path, names in PATHS.items():
        module = importlib.import_module(f"kiln.nn.modules.{path}")
        assert module is getattr(kiln.nn.modules, path)
        for name in names.split():
            assert isinstance(getattr(module, name), type)
    assert kiln.nn.modules.Linear is kiln.nn.Linear and not hasattr(kiln.nn.modules, "functional")
    from kiln.nn.modules.utils import _pair, _triple

    assert (_pair(2), _pair([1, 2]), _triple("ab")) == ((2, 2), (1, 2), ("a", "b"))


def test_which_layers_are_which(answers: Any) -> None:
    names = sorted(n for n, v in vars(kiln.nn).items() if isinstance(v, type) and not n.startswith("Lazy"))

    def below(lib: Any, names: list[str]) -> list[str]:
        pairs = [(a, b) for a in names for b in names if a != b]
        return [f"{a} is a {b}" for a, b in pairs if issubclass(getattr(lib.nn, a), getattr(lib.nn, b))]

    ours, theirs = answers.both(below, names)
    assert len(theirs) > len(names) - 10  # almost all are modules
    assert ours == theirs


def test_a_child_named_as_a_method_leaves_the_method() -> None:
    """As in PyTorch: `self.type = module` is a child, and `model.type` the method."""
    model = nn.Module()
    model.type, model.half = nn.Linear(1, 1), nn.ReLU()
    model.register_buffer("kept", kiln.ones(1))
    for copied in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [name for name, _ in copied.named_children()] == ["type", "half"]
        assert copied.type(kiln.float64)._modules["type"].weight.dtype == kiln.float64
        assert copied.kept.dtype == kiln.float64
    with pytest.raises(KeyError, match="already exists"):
        model.add_module("float", nn.ReLU())


def test_getattr_of_module_called_by_name() -> None:
    """In a program of its own, as every module has `__getattr__` from then on."""
    program = (
        "import kiln\n"
        "class Net(kiln.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.body = kiln.nn.Linear(2, 3)\n"
        "    def __getattr__(self, name):\n"
        "        try: return kiln.nn.Module.__getattr__(self, name)\n"
        "        except AttributeError: return getattr(self._modules['body'], name)\n"
        "print(Net().body.in_features, Net().out_features)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "3"], done.stderr
