"""Python's pickles and copies of what kiln has: values, what is shared, what a program put on them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from backend import kiln as lib
from backend import needs_torch, torch

import kiln


def pickled(protocol: int) -> Callable[[Any], Any]:
    def way(obj: Any) -> Any:
        return pickle.loads(pickle.dumps(obj, protocol))

    way.__name__ = f"protocol {protocol}"
    return way


def out_of_band(obj: Any) -> Any:
    """Bytes apart from the pickle, read-only and at odd addresses."""
    buffers: list[pickle.PickleBuffer] = []
    raw = pickle.dumps(obj, 5, buffer_callback=buffers.append)
    apart = [memoryview(b"-" + bytes(buffer.raw()))[1:] for buffer in buffers]
    return pickle.loads(raw, buffers=apart)


def in_a_file(obj: Any) -> Any:
    file = io.BytesIO()
    kiln.save(obj, file)
    file.seek(0)
    return kiln.load(file, weights_only=False)


WAYS = pytest.mark.parametrize(
    "way", [*map(pickled, range(2, 6)), out_of_band, copy.deepcopy, in_a_file], ids=lambda way: way.__name__
)


class Named(kiln.Tensor):
    """A user's class of tensors."""


class Slotted(kiln.Tensor):
    __slots__ = ("unit",)


def same(a: Any, b: Any) -> bool:
    """Equal in values and in what they are."""
    return (
        type(a) is type(b)
        and (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
        and a.tolist() == b.tolist()
    )


@WAYS
def test_views_stay_views(way: Callable[[Any], Any]) -> None:
    x = kiln.arange(12.0).reshape(3, 4)
    made = [x, x.t()[1:], x[1], x[0].expand(2, 4), kiln.tensor(1.5), kiln.zeros(0, 3), kiln.arange(3)]
    found = way(made)
    for a, b in zip(made, found, strict=True):
        assert same(a, b) and (a.data_ptr() != b.data_ptr() or not a.numel()) and b._base is None
    found[0][1, 2] = 50.0
    assert found[1][1, 1].item() == 50.0 and found[2][2].item() == 50.0 and x[1, 2].item() == 6.0


@WAYS
@pytest.mark.parametrize("name", "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split())
def test_every_dtype(way: Callable[[Any], Any], name: str) -> None:
    x = kiln.arange(4).reshape(2, 2).to(getattr(kiln, name))
    assert same(x, way(x)) and same(x.t(), way(x.t()))


@WAYS
def test_what_a_program_put_on_a_tensor(way: Callable[[Any], Any]) -> None:
    x, y = kiln.ones(2, requires_grad=True), kiln.zeros(1)
    x.note = {"of": [y, y]}
    found = way(x)
    assert same(x, found) and same(y, found.note["of"][0]) and found.note["of"][0] is found.note["of"][1]
    x.note["of"][0] = x
    if way is in_a_file:
        with pytest.raises(ValueError, match="attributes of a tensor that do not hold it"):
            way(x)
    else:
        found = way(x)
        assert found.note["of"][0] is found
    named = kiln.ones(2)._make_subclass(Named, kiln.ones(2))
    named.unit = "m"
    slotted = kiln.ones(2)._make_subclass(Slotted, kiln.ones(2))
    slotted.unit = "s"
    for a in (named, slotted):
        b = way(a)
        assert same(a, b) and b.unit == a.unit


@WAYS
def test_modules_and_optimizers(way: Callable[[Any], Any]) -> None:
    model = kiln.nn.Sequential(kiln.nn.Linear(2, 2), kiln.nn.Linear(2, 2), kiln.nn.BatchNorm1d(2)).eval()
    model[1].weight = model[0].weight
    model.register_buffer("kept", kiln.ones(2), persistent=False)
    model.extra = kiln.nn.Buffer(kiln.zeros(1), persistent=False)
    optimizer = kiln.optim.Adam(model.parameters(), lr=0.5)
    model(kiln.ones(3, 2)).sum().backward()
    optimizer.step()
    twin, other = way((model, optimizer))
    assert (
        repr(twin) == repr(model)
        and not twin.training
        and list(twin.state_dict()) == list(model.state_dict())
    )
    assert twin[1].weight is twin[0].weight and twin[0].weight is not model[0].weight
    assert type(twin.extra) is kiln.nn.Buffer and not twin.extra.persistent
    x = kiln.ones(1, 2)
    assert twin(x).tolist() == model(x).tolist()
    for m, o in ((model, optimizer), (twin, other)):
        o.zero_grad()
        m(x).sum().backward()
        o.step()
    assert twin(x).tolist() == model(x).tolist()
    assert all(p is q for p, q in zip(twin.parameters(), other.param_groups[0]["params"], strict=True))


def hook(module: Any, args: Any, result: Any) -> Any:
    return result * 2


@WAYS
def test_hooks_of_modules_are_kept(way: Callable[[Any], Any]) -> None:
    model = kiln.nn.Identity()
    model.register_forward_hook(hook)
    assert way(model)(kiln.ones(1)).tolist() == [2.0]


@WAYS
def test_what_is_no_tensor(way: Callable[[Any], Any]) -> None:
    g = kiln.Generator().manual_seed(3)
    kiln.rand(5, generator=g)
    for a in (g, kiln.default_generator):
        b = way(a)
        assert type(b) is kiln.Generator and b is not a and b.get_state().tolist() == a.get_state().tolist()
    named = [kiln.float32, kiln.strided, kiln.channels_last, kiln.preserve_format]
    assert all(a is b for a, b in zip(named, way(named), strict=True))
    size, device = way([kiln.Size([1, 2]), kiln.device("cpu")])
    assert type(size) is kiln.Size and size == (1, 2) and device == kiln.device("cpu")
    storage = way(kiln.arange(3.0).storage())
    assert type(storage) is kiln.TypedStorage and storage.tolist() == [0.0, 1.0, 2.0]
    assert way(kiln.ones(1).untyped_storage()).tolist() == [0, 0, 128, 63]


@WAYS
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_lazy_parameters(way: Callable[[Any], Any]) -> None:
    layer = way(kiln.nn.LazyLinear(2, dtype=kiln.float64))
    assert type(layer.weight) is kiln.nn.UninitializedParameter
    assert layer(kiln.ones(1, 3, dtype=kiln.float64)).shape == (1, 2)


def test_copies_of_what_was_computed_are_refused() -> None:
    y = kiln.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(y)
    found = pickle.loads(pickle.dumps(y))
    assert found.is_leaf and found.requires_grad


def test_gradients_are_copied_and_not_pickled() -> None:
    x = kiln.ones(2, requires_grad=True)
    x.sum().backward()
    assert copy.deepcopy(x).grad.tolist() == [1.0, 1.0] and pickle.loads(pickle.dumps(x)).grad is None


def test_a_saved_parameter_is_still_written_by_programs() -> None:
    """Saving, copying and loading lend no memory for good: recorded steps go on in one region."""
    step = kiln.compile(lambda w: w.mul_(2), wait=True)
    w = kiln.ones(1000)
    for _ in range(3):
        step(w)
    file = io.BytesIO()
    kiln.save(w, file)
    file.seek(0)
    found = [w, kiln.load(file), copy.deepcopy(w), pickle.loads(pickle.dumps(w))]
    for x in found:
        before = kiln.compiler.stats(step)["runs"]
        step(x)
        assert x[0].item() == 16.0 and kiln.compiler.stats(step)["runs"] == before + 1


def test_a_storage_is_pickled_once() -> None:
    x = kiln.zeros(100_000)
    assert len(pickle.dumps([x, x[1:], x.view(10, -1), x.storage()])) < 810_000
    base = kiln.zeros(4)
    bits = base.view(kiln.int32)
    one, two = pickle.loads(pickle.dumps([base, bits]))
    one[0] = 1.0
    assert two[0].item() == 0x3F800000


@needs_torch
@pytest.mark.parametrize("case", ["tensor", "parameter", "buffer", "view", "subclass attributes"])
def test_copies_keep_what_pytorchs_keep(case: str) -> None:
    def facts(of: Any) -> Any:
        x = of.arange(6.0).reshape(2, 3)
        x = {"parameter": of.nn.Parameter(x), "buffer": of.nn.Buffer(x), "view": x.t()[1:]}.get(case, x)
        x.note = [1]
        x.grad = of.ones_like(x) if case == "parameter" else None
        made = []
        for y in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
            kind = type(y).__name__ if isinstance(y, of.nn.Parameter) else isinstance(y, of.nn.Buffer)
            made.append(
                [kind, y.tolist(), y.stride(), y.requires_grad, y.grad is None, getattr(y, "note", None)]
            )
        return made

    assert facts(lib)[0][:5] == facts(torch)[0][:5]
    assert facts(lib)[0][5] == facts(torch)[0][5] and facts(lib)[2] == facts(torch)[2]
