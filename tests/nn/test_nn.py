"""Modules, layers, initialisation and parameter helpers, against PyTorch where it has the same."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from backend import filled, kiln

from kiln import nn

LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Linear", (4, 3), {}, (5, 4)),
    ("Linear", (4, 3), {"bias": False}, (2, 5, 4)),
    ("Linear", (4, 3), {}, (4,)),
    ("ReLU", (), {}, (3, 4)),
    ("GELU", (), {}, (3, 4)),
    ("GELU", ("tanh",), {}, (3, 4)),
    ("Tanh", (), {}, (3, 4)),
    ("SiLU", (), {}, (3, 4)),
    ("LeakyReLU", (0.2,), {}, (3, 4)),
    ("ELU", (1.5,), {}, (3, 4)),
    ("Softplus", (2.0, 3.0), {}, (3, 4)),
    ("LogSigmoid", (), {}, (3, 4)),
    ("Sigmoid", (), {}, (3, 4)),
    ("Softmax", (1,), {}, (3, 4)),
    ("LogSoftmax", (-1,), {}, (3, 4)),
    ("LayerNorm", (4,), {}, (3, 4)),
    ("LayerNorm", ((3, 4),), {"eps": 1e-3}, (2, 3, 4)),
    ("LayerNorm", (4,), {"bias": False}, (3, 4)),
    ("LayerNorm", (4,), {"elementwise_affine": False}, (3, 4)),
    ("RMSNorm", (4,), {}, (3, 4)),
    ("RMSNorm", ((3, 4),), {"eps": 1e-3, "elementwise_affine": False}, (2, 3, 4)),
    ("GroupNorm", (2, 4), {}, (3, 4, 2)),
    ("GroupNorm", (1, 3), {"affine": False}, (2, 3, 2)),
    ("BatchNorm1d", (3,), {}, (4, 3)),
    ("BatchNorm1d", (3,), {"affine": False, "momentum": None}, (2, 3, 4)),
    ("BatchNorm2d", (3,), {"bias": False}, (2, 3, 2, 2)),
    ("BatchNorm3d", (2,), {"track_running_stats": False}, (2, 2, 2, 2, 2)),
    ("InstanceNorm1d", (3,), {"affine": True}, (2, 3, 4)),
    ("InstanceNorm1d", (3,), {}, (3, 4)),
    ("InstanceNorm2d", (3,), {"track_running_stats": True}, (2, 3, 3, 2)),
    ("InstanceNorm3d", (2,), {}, (1, 2, 2, 2, 2)),
    ("MaxPool1d", (3, 2, 1), {}, (2, 3, 7)),
    ("MaxPool2d", (3,), {"stride": (2, 1), "padding": 1, "ceil_mode": True}, (2, 3, 6, 5)),
    ("MaxPool3d", (2,), {}, (3, 4, 4, 4)),
    ("AvgPool1d", (3, 2, 1), {"count_include_pad": False}, (2, 3, 7)),
    ("AvgPool2d", ((2, 3),), {"divisor_override": 5}, (2, 3, 6, 5)),
    ("AvgPool3d", (2, 1), {"padding": 1}, (2, 3, 3, 3)),
    ("LPPool1d", (2.0, 3), {}, (2, 3, 6)),
    ("LPPool2d", (2, (2, 3)), {"stride": 1}, (2, 3, 4, 5)),
    ("LPPool3d", (2.0, 2), {}, (2, 4, 4, 4)),
    ("AdaptiveAvgPool1d", (3,), {}, (2, 3, 7)),
    ("AdaptiveAvgPool2d", ((None, 2),), {}, (2, 3, 4, 5)),
    ("AdaptiveAvgPool3d", (1,), {}, (2, 3, 4, 3)),
    ("AdaptiveMaxPool1d", (3,), {}, (2, 3, 7)),
    ("AdaptiveMaxPool2d", ((3, 1),), {}, (2, 3, 6, 5)),
    ("AdaptiveMaxPool3d", (2,), {}, (2, 4, 3, 5)),
    ("Unfold", ((2, 3), 1, (0, 1), 2), {}, (2, 3, 5, 6)),
    ("Fold", (4, 2), {"stride": 2, "padding": 1}, (2, 8, 9)),
    ("Upsample", (), {"scale_factor": 2}, (2, 3, 4)),
    ("Upsample", ((5, 7),), {"mode": "bilinear"}, (2, 3, 4, 3)),
    ("UpsamplingNearest2d", (3,), {}, (2, 3, 4, 5)),
    ("UpsamplingBilinear2d", (), {"scale_factor": (2, 1.5)}, (2, 3, 4, 5)),
    ("LocalResponseNorm", (3,), {"alpha": 0.5}, (2, 4, 3)),
    ("Flatten", (), {}, (2, 3, 4)),
    ("Flatten", (0, 1), {}, (2, 3, 4)),
    ("Identity", (1,), {"any": 2}, (3,)),
    ("Dropout", (0.0,), {}, (3,)),
]
NAMES = [f"{name}{k}" for k, (name, *_) in enumerate(LAYERS)]


def ramp(shape: tuple[int, ...]) -> list[Any]:
    """Values between -2 and 2 of a shape, no two neighbours alike."""
    values: list[Any] = (2 * np.sin(np.linspace(-2, 2, math.prod(shape)))).reshape(shape).tolist()
    return values


def close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> bool:
    flat = [float(v) for v in theirs.numpy().ravel().tolist()]
    assert ours.shape == theirs.shape
    return bool(ours.numpy().ravel().tolist() == pytest.approx(flat, rel=tolerance, abs=1e-6, nan_ok=True))


class Tied(nn.Module):
    """A module that owns one of each kind, with a parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(kiln.tensor(2.0))
        self.register_buffer("mean", kiln.zeros(2))
        self.register_buffer("cache", kiln.ones(1), persistent=False)
        self.register_parameter("absent", None)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) * self.scale - self.mean


# -- layers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS, ids=NAMES)
def test_layers_forward_and_backward(
    name: str, args: Any, options: Any, shape: tuple[int, ...], answers: Any
) -> None:
    def run(lib: Any, name: str, args: Any, options: Any, x: Any) -> Any:
        layer = getattr(lib.nn, name)(*args, **options)
        starts = {k: None if name == "Linear" else v.tolist() for k, v in layer.state_dict().items()}
        filled(lib, layer)
        x = lib.tensor(x, requires_grad=True)
        y = layer(x)
        # cubes: the sum of squares of normalised rows has no gradient but rounding
        (y * y * y).sum().backward()
        return y, [x.grad, *[p.grad for p in layer.parameters()]], [repr(layer), starts]

    (y, gradients, shown), (y_, gradients_, shown_) = answers.both(run, name, args, options, ramp(shape))
    assert close(y, y_)
    for g, g_ in zip(gradients, gradients_, strict=True):
        assert close(g, g_, 1e-4)
    assert shown == shown_


def test_embedding(answers: Any) -> None:
    def run(lib: Any, padding: int | None) -> Any:
        layer = lib.nn.Embedding(5, 3, padding)
        if padding is not None:
            assert layer.weight[padding].tolist() == [0.0] * 3
        filled(lib, layer)
        y = layer(lib.tensor([[0, 2, 2], [4, 1, 0]]))
        (y * y).sum().backward()
        return repr(layer), y, layer.weight.grad

    for padding in (None, 2, -1):
        (text, *ours), (text_, *theirs) = answers.both(run, padding)
        assert text == text_
        assert all(map(close, ours, theirs))
    with pytest.raises(IndexError):
        nn.Embedding(5, 3)(kiln.tensor([5]))
    with pytest.raises(AssertionError, match="padding_idx"):
        nn.Embedding(5, 3, padding_idx=5)


def test_embedding_of_a_given_table(answers: Any) -> None:
    """Rows made shorter, gradients by frequency, frozen tables: values, gradients, the table afterwards."""
    table = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]

    def run(f: Any, table: list[list[float]]) -> Any:
        index = f.tensor([[0, 1, 2], [2, 2, 3]])
        options = {"padding_idx": 1, "max_norm": 3.0, "scale_grad_by_freq": True}
        layer = f.nn.Embedding(4, 2, **options, _weight=f.tensor(table))
        y = layer(index)
        (y * f.arange(12.0).reshape(2, 3, 2)).sum().backward()
        frozen = f.nn.Embedding.from_pretrained(f.tensor(table), padding_idx=0)
        assert not frozen.weight.requires_grad
        texts = (repr(layer), repr(frozen), repr(f.nn.EmbeddingBag(4, 2, mode="sum")))
        return [y, layer.weight, layer.weight.grad, frozen(index)], texts

    (ours, texts), (theirs, texts_) = answers.both(run, table)
    assert texts == texts_
    for x, x_ in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x.numpy(), x_.numpy(), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="sparse"):
        nn.functional.embedding(kiln.tensor([0]), kiln.ones(2, 2), sparse=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction: str, answers: Any) -> None:
    def run(lib: Any, x: Any, target: Any, reduction: str) -> list[Any]:
        x, target = lib.tensor(x), lib.tensor(target)
        found = [lib.nn.MSELoss(reduction=reduction)(x, target.t())]
        for options in ({}, {"label_smoothing": 0.1}, {"ignore_index": 2}):
            classes = lib.tensor([2, 0, 1 if "ignore_index" in options else -100, 1])
            for weight in (None, lib.tensor([0.5, 1.0, 2.0])):
                loss = lib.nn.CrossEntropyLoss(weight, reduction=reduction, **options)
                found.append(loss(x, classes))
        return found

    ours, theirs = answers.both(run, ramp((4, 3)), ramp((3, 4)), reduction)
    assert len(ours) == len(theirs) == 7 and all(map(close, ours, theirs))
    x = kiln.tensor(ramp((4, 3)))
    with pytest.raises(ValueError, match="reduction"):
        nn.functional.mse_loss(x, x, reduction="average")


ELEMENTWISE: list[tuple[str, tuple[Any, ...]]] = [
    ("silu", ()), ("leaky_relu", (0.2,)), ("elu", (1.5,)), ("relu", ()), ("gelu", ()), ("tanh", ()),
    ("sigmoid", ()), ("softplus", (2.0,)), ("logsigmoid", ()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), ELEMENTWISE)
def test_activations(name: str, args: tuple[Any, ...], answers: Any) -> None:
    def run(lib: Any, name: str, args: tuple[Any, ...], inplace: bool) -> list[Any]:
        x = lib.tensor([-30.0, -1.0, -0.25, 0.5, 2.0, 25.0], requires_grad=True)
        h = x * 1
        y = getattr(lib.nn.functional, name)(h, *args, **({"inplace": True} if inplace else {}))
        assert (y is h) == inplace
        y.sum().backward()
        return [y, x.grad]

    for inplace in (False, True) if name in ("silu", "leaky_relu", "elu", "relu") else (False,):
        ours, theirs = answers.both(run, name, args, inplace)
        assert all(map(close, ours, theirs))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_functional_losses(reduction: str, answers: Any) -> None:
    shares = (1 / (1 + np.exp(-np.array(ramp((4, 3)))))).tolist()

    def run(lib: Any, x: Any, y: Any, reduction: str) -> list[Any]:
        x, y, f = lib.tensor(x), lib.tensor(y), lib.nn.functional
        found = [f.l1_loss(x, y, reduction=reduction)]
        classes = lib.tensor([2, 0, -100, 1])
        for w in (None, lib.tensor([0.5, 1.0, 2.0])):
            found.append(f.nll_loss(f.log_softmax(x, 1), classes, w, reduction=reduction))
            loss = f.binary_cross_entropy_with_logits
            found.append(loss(x, y, w, reduction=reduction, pos_weight=w))
        return found

    ours, theirs = answers.both(run, ramp((4, 3)), shares, reduction)
    assert len(ours) == len(theirs) == 5 and all(map(close, ours, theirs))
    x, y = kiln.tensor(ramp((4, 3))), kiln.tensor(shares)
    f, w = nn.functional, kiln.tensor([0.5, 1.0, 2.0])
    assert f.l1_loss(x, y, None, None, reduction).tolist() == ours[0].tolist()  # by place as by name
    assert f.binary_cross_entropy_with_logits(x, y, w, None, None, reduction, w).tolist() == ours[-1].tolist()
    for name in ("l1_loss", "nll_loss", "binary_cross_entropy_with_logits"):
        with pytest.raises(ValueError, match="reduction"):
            getattr(nn.functional, name)(x, y, reduction="average")


def test_dropout() -> None:
    kiln.manual_seed(0)
    layer, x = nn.Dropout(0.25), kiln.ones(20_000, requires_grad=True)
    y = layer(x)
    values = set(y.tolist())
    assert values == {0.0, kiln.tensor(1 / 0.75).item()}
    assert 0.23 < (y == 0).to(kiln.float32).mean().item() < 0.27
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
    assert layer.eval()(x) is x
    assert nn.functional.dropout(x, 1.0).tolist() == [0.0] * 20_000
    with pytest.raises(ValueError, match="probability"):
        nn.Dropout(1.5)


def test_functional_extras() -> None:
    hot = nn.functional.one_hot(kiln.tensor([0, 2]), 4)
    assert hot.tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]] and hot.dtype == kiln.int64
    assert tuple(nn.functional.one_hot(kiln.tensor([[1]])).shape) == (1, 1, 2)
    with pytest.raises(RuntimeError, match="one_hot"):
        nn.functional.one_hot(kiln.tensor([3]), 2)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        assert nn.functional.softmax(kiln.ones(2)).tolist() == [0.5, 0.5]
    assert nn.functional.softmax(kiln.ones(2), 0, dtype=kiln.float64).dtype == kiln.float64


# -- the tree -----------------------------------------------------------------------------------------


def test_names_and_sharing() -> None:
    model = Tied()
    names = ["scale", "first.weight", "first.bias", "second.bias"]
    assert [name for name, _ in model.named_parameters()] == names
    assert len(list(model.named_parameters(remove_duplicate=False))) == 5
    assert [name for name, _ in model.named_buffers()] == ["mean", "cache"]
    assert [name for name, _ in model.named_modules()] == ["", "first", "second"]
    assert list(model.state_dict()) == [
        "scale",
        "mean",
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
    ]
    assert model.get_parameter("second.weight") is model.first.weight
    assert model.get_submodule("") is model and model.get_buffer("mean") is model.mean
    for path in ("third", "first.weight"):
        with pytest.raises(AttributeError, match=path.rpartition(".")[2]):
            model.get_submodule(path)


def test_assignment_keeps_the_lists_in_step() -> None:
    model = Tied()
    fresh = nn.Parameter(kiln.ones(3))
    model.scale = fresh
    assert model._parameters["scale"] is fresh is model.scale
    model.mean = kiln.ones(2)
    assert model._buffers["mean"] is model.mean
    model.mean = None
    assert "mean" not in model.state_dict() and model.mean is None
    model.first = nn.ReLU()
    assert list(model._modules) == ["first", "second"]
    del model.scale
    assert "scale" not in model.state_dict() and not hasattr(model, "scale")
    model.scale = 3
    assert model.scale == 3 and "scale" not in dict(model.named_parameters())
    model.scale = fresh
    assert "scale" in dict(model.named_parameters())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda m: setattr(m, "scale", kiln.ones(1)), TypeError),
        (lambda m: setattr(m, "first", 3), TypeError),
        (lambda m: setattr(m, "mean", 3), TypeError),
        (lambda m: m.register_parameter("forward", nn.Parameter(kiln.ones(1))), KeyError),
        (lambda m: m.register_parameter("a.b", None), KeyError),
        (lambda m: m.register_parameter("", None), KeyError),
        (lambda m: m.register_parameter("p", kiln.ones(1)), TypeError),
        (lambda m: m.register_buffer("b", 3), TypeError),
        (lambda m: m.add_module("m", 3), TypeError),
        (lambda m: m.train("yes"), ValueError),
        (lambda m: m.missing, AttributeError),
        (lambda m: m.to(kiln.int64), TypeError),
        (lambda m: nn.Module()(1), NotImplementedError),
        (lambda m: nn.Parameter([1.0]), TypeError),
    ],
)
def test_refusals(change: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        change(Tied())


def test_assignment_before_init() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(kiln.ones(1))

    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        Early()


def test_modes_and_freezing() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    assert all(not m.training for m in model.eval().modules())
    assert all(m.training for m in model.train().modules())
    model = Tied().requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())
    model.requires_grad_()
    model(kiln.ones(1, 2)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert model.scale.grad.item() == 0
    model.zero_grad()
    assert model.scale.grad is None


def test_apply_visits_children_first() -> None:
    visited: list[str] = []
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    assert model.apply(lambda m: visited.append(type(m).__name__)) is model
    assert visited == ["ReLU", "Tanh", "Sequential"]


def test_conversion_keeps_parameters() -> None:
    model = Tied()
    model.register_buffer("count", kiln.zeros(1, dtype=kiln.int64))
    weight = model.first.weight
    model(kiln.ones(1, 2)).sum().backward()
    assert model.double() is model and model.first.weight is weight is model.second.weight
    assert weight.dtype == weight.grad.dtype == model.mean.dtype == kiln.float64 and weight.requires_grad
    assert model.count.dtype == kiln.int64
    assert model.to("cpu", kiln.float32).first.weight.dtype == kiln.float32
    assert model.to(kiln.ones(1, dtype=kiln.float64)).scale.dtype == kiln.float64


def test_deepcopy() -> None:
    model = Tied()
    twin = copy.deepcopy(model)
    assert twin.first.weight is twin.second.weight is not model.first.weight
    assert (
        isinstance(twin.first.weight, nn.Parameter) and twin.first._parameters["weight"] is twin.first.weight
    )
    with kiln.no_grad():
        twin.scale.fill_(7)
    assert model.scale.item() == 2.0


# -- state --------------------------------------------------------------------------------------------


def test_state_round_trip_and_sharing() -> None:
    model, other = Tied(), Tied()
    state = model.state_dict()
    assert not state["scale"].requires_grad and state["scale"].data_ptr() == model.scale.data_ptr()
    assert model.state_dict(keep_vars=True)["scale"] is model.scale
    assert repr(other.load_state_dict(state)) == "<All keys matched successfully>"
    assert other.first.weight.tolist() == model.first.weight.tolist()
    other.load_state_dict(state, assign=True)
    assert other.scale.data_ptr() == model.scale.data_ptr() and isinstance(other.scale, nn.Parameter)


def test_state_that_does_not_fit() -> None:
    model = Tied()
    before = model.scale.item()
    state = {**model.state_dict(), "scale": kiln.tensor(9.0), "more": kiln.ones(1)}
    del state["first.bias"]
    with pytest.raises(RuntimeError, match=r'(?s)Missing key.*"first.bias".*Unexpected key.*"more"'):
        model.load_state_dict(state)
    assert model.scale.item() == before
    found = model.load_state_dict(state, strict=False)
    assert (
        found.missing_keys == ["first.bias"]
        and found.unexpected_keys == ["more"]
        and model.scale.item() == 9.0
    )
    with pytest.raises(RuntimeError, match="size mismatch for scale"):
        model.load_state_dict({**model.state_dict(), "scale": kiln.ones(2)}, strict=False)
    with pytest.raises(RuntimeError, match='"scale", expected kiln.Tensor'):
        model.load_state_dict({**model.state_dict(), "scale": 3.0})
    with pytest.raises(TypeError, match="dict"):
        model.load_state_dict([1])  # type: ignore[arg-type]


# -- containers ---------------------------------------------------------------------------------------


def test_sequential() -> None:
    a, b, c = nn.ReLU(), nn.Tanh(), nn.Sigmoid()
    model = nn.Sequential(a, b)
    assert model(kiln.tensor([0.0])).tolist() == [0.0] and len(model) == 2
    assert model.append(c) is model and model[-1] is c and list(model[1:]) == [b, c]
    del model[0]
    assert list(model._modules) == ["0", "1"] and model[0] is b
    model[0] = a
    model.insert(1, nn.Flatten())
    assert [type(m).__name__ for m in model] == ["ReLU", "Flatten", "Sigmoid"]
    named = nn.Sequential({"in": a, "out": b})
    assert list(named._modules) == ["in", "out"] and list(named[:1]._modules) == ["in"]
    with pytest.raises(IndexError):
        model[3]
    with pytest.raises(TypeError):
        nn.Sequential(lambda x: x)  # type: ignore[arg-type]


def test_a_wrapper_asks_the_module_that_it_holds() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

    class Outer(Wrapper, nn.Identity):  # one below, which has its own
        def __getattr__(self, name: str) -> Any:
            return 7 if name == "seven" else super().__getattr__(name)

    for wrapper in (copy.deepcopy(Wrapper(nn.Linear(2, 3))), Outer(nn.Linear(2, 3))):
        assert wrapper.out_features == 3 and wrapper.weight is wrapper.module.weight
        assert wrapper.__getattr__("module") is wrapper.module and not hasattr(wrapper, "nothing")
        assert list(wrapper.state_dict()) == ["module.weight", "module.bias"]
    assert wrapper.seven == 7
    assert "__getattr__" not in dir(nn.Linear)  # which every attribute would pay for


def test_a_method_may_ask_its_module_by_name() -> None:
    """`self.__getattr__(name)` finds what is owned and nothing else, as PyTorch's; in classes below too."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = 3
            self.register_buffer("start", kiln.ones(2))
            for k in range(2):
                setattr(self, f"layer{k}", nn.Linear(2, 2))

        def forward(self, x: Any) -> Any:
            for k in range(2):
                x = self.__getattr__(f"layer{k}")(x)
            return x + self.__getattr__("start")

    class More(Layers):
        pass

    for model in (Layers(), More(), copy.deepcopy(More())):
        assert model(kiln.ones(1, 2)).shape == (1, 2)
        with pytest.raises(AttributeError, match=f"'{type(model).__name__}' object has no attribute 'plain'"):
            model.__getattr__("plain")
    assert "__getattr__" not in dir(nn.Linear)


def joined(lib: Any) -> list[Any]:
    """Sequentials added and multiplied: names, how often a parameter is there, what is refused."""
    n, found = lib.nn, []
    a, b = n.Sequential(n.Linear(1, 1), n.ReLU()), n.Sequential(OrderedDict(last=n.Tanh()))
    for made in (a + b, b + a, a * 2, 3 * b):
        found.append((repr(made), list(made._modules), len(list(made.parameters()))))
    a += b
    found.append(list(a._modules))
    a *= 2
    found.append((list(a._modules), len(list(a.parameters())), a[0] is a[3]))
    for refused in (lambda: a + [n.ReLU()], lambda: a * 1.5, lambda: a * 0, lambda: a.__iadd__(3)):
        with pytest.raises((TypeError, ValueError)) as error:
            refused()
        found.append((error.type.__name__, str(error.value).split("<")[0]))
    return found


def test_sequentials_are_added_and_multiplied(answers: Any) -> None:
    ours, theirs = answers.both(joined)
    assert ours == theirs


def test_module_list() -> None:
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    assert len(list(layers.parameters())) == 6
    first = layers[0]
    layers.insert(0, nn.ReLU())
    assert layers[1] is first and layers.pop(0) is not first and layers[0] is first
    layers += [nn.Tanh()]
    assert len(layers) == 4 and first in layers and isinstance(layers[1:], nn.ModuleList)
    with pytest.raises(NotImplementedError):
        layers(1)


def test_module_dict() -> None:
    layers = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(1, 1)})
    layers["c"] = nn.Tanh()
    assert list(layers) == ["a", "b", "c"] and "b" in layers and len(list(layers.parameters())) == 2
    layers.update([("a", nn.Tanh())])
    assert isinstance(layers["a"], nn.Tanh) and isinstance(layers.pop("a"), nn.Tanh)
    assert [k for k, _ in layers.items()] == ["b", "c"]
    layers.clear()
    assert len(layers) == 0
    with pytest.raises(KeyError):
        layers["b"]


def test_printed_trees(answers: Any) -> None:
    def tree(lib: Any) -> str:
        n = lib.nn
        inner = n.ModuleDict({"norm": n.LayerNorm(4), "drop": n.Dropout(0.1)})
        return repr(n.Sequential(n.Linear(4, 4), n.ReLU(), n.Sequential(), n.ModuleList(), inner))

    ours, theirs = answers.both(tree)
    assert ours == theirs


# -- helpers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [2.0, 1.0, math.inf, 3.0])
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clip_grad_norm(norm: float, limit: float, answers: Any) -> None:
    def run(lib: Any, limit: float, norm: float) -> list[Any]:
        params = [
            lib.ones(2, 3, requires_grad=True),
            lib.ones(4, requires_grad=True),
            lib.ones(1, requires_grad=True),
        ]
        params[0].grad = lib.arange(6.0).reshape(2, 3)
        params[1].grad = -lib.arange(4.0)
        total = lib.nn.utils.clip_grad_norm_(params, limit, norm)
        assert params[2].grad is None
        return [total, *(p.grad for p in params[:2])]

    ours, theirs = answers.both(run, limit, norm)
    assert len(ours) == len(theirs) and all(map(close, ours, theirs))


def test_clipping_edges() -> None:
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0.0
    p = kiln.ones(2, requires_grad=True)
    p.grad = kiln.tensor([math.inf, 1.0])
    with pytest.raises(RuntimeError, match="finite"):
        nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    p.grad = kiln.tensor([-3.0, 0.5])
    nn.utils.clip_grad_value_([p], 1.0)
    assert p.grad.tolist() == [-1.0, 0.5]


def test_parameters_as_a_vector() -> None:
    model = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.tolist() == model.weight.reshape(-1).tolist() + model.bias.tolist()
    nn.utils.vector_to_parameters(kiln.arange(9.0), model.parameters())
    assert model.bias.tolist() == [6.0, 7.0, 8.0] and tuple(model.weight.shape) == (3, 2)
    with pytest.raises(ValueError, match=r"\(9,\)"):
        nn.utils.vector_to_parameters(kiln.zeros(8), model.parameters())
