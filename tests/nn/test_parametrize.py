"""Weights that are computed: parametrizations, weight_norm and spectral_norm, against PyTorch."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
from backend import kiln


def layer(lib: Any, kind: str) -> Any:
    make = {
        "Linear": lambda: lib.nn.Linear(3, 4),
        "Conv1d": lambda: lib.nn.Conv1d(3, 4, 2),
        "ConvTranspose2d": lambda: lib.nn.ConvTranspose2d(3, 4, 2),
    }
    return make[kind]().double()


def norm(lib: Any, form: str, what: str, module: Any, **options: Any) -> Any:
    """`what`, "weight_norm" or "spectral_norm", of a module by its old form or its new one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        home = lib.nn.utils if form == "hook" else lib.nn.utils.parametrizations
        return getattr(home, what)(module, **options)


SHAPES = {"Linear": (5, 3), "Conv1d": (2, 3, 5), "ConvTranspose2d": (2, 3, 4, 3)}


def normed(lib: Any, form: str, what: str, kind: str, options: dict[str, Any]) -> Any:
    """A layer with the norm, in which everything is drawn; vectors are of length 1."""
    module, rng = norm(lib, form, what, layer(lib, kind), **options), np.random.default_rng(0)
    with lib.no_grad():
        for name, value in sorted(module.state_dict().items()):
            drawn = rng.standard_normal(tuple(value.shape))
            vector = name.endswith(("_u", "_v"))
            value.copy_(lib.from_numpy(drawn / np.linalg.norm(drawn) if vector else drawn))
    return module


def steps_of(lib: Any, form: str, what: str, kind: str, options: dict[str, Any], x: Any) -> Any:
    """The layer's text and what it holds; of two steps of training and of evaluation all that they give."""
    module = normed(lib, form, what, kind, options)
    shown = [repr(module) if form == "property" else "", list(module.state_dict())]
    results = []
    for training in (True, True, False):
        module.train(training).zero_grad()
        y = module(lib.from_numpy(x))
        y.square().sum().backward()
        held = [y.detach(), *(p.grad for p in module.parameters()), *module.buffers()]
        results.append([v.numpy().copy() for v in held])
    return shown, results


@pytest.mark.parametrize("form", ["hook", "property"])
@pytest.mark.parametrize(
    ("what", "kind", "options"),
    [
        ("weight_norm", "Linear", {}),
        ("weight_norm", "Conv1d", {"dim": None}),
        ("weight_norm", "ConvTranspose2d", {"dim": 1}),
        ("spectral_norm", "Linear", {"n_power_iterations": 2}),
        ("spectral_norm", "Conv1d", {}),
        ("spectral_norm", "ConvTranspose2d", {"eps": 1e-6}),
    ],
)
def test_norms(form: str, what: str, kind: str, options: dict[str, Any], answers: Any) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPES[kind])
    (shown, mine), (wanted, theirs) = answers.both(steps_of, form, what, kind, options, x)
    assert shown == wanted
    for ours, others in zip(mine, theirs, strict=True):
        for a, b in zip(ours, others, strict=True):
            assert a == pytest.approx(b, rel=1e-10, abs=1e-12)
    module = normed(kiln, form, what, kind, options)
    assert form == "hook" or type(module).__name__ == f"Parametrized{kind}"
    module(kiln.from_numpy(x))
    module.eval()
    before = module(kiln.from_numpy(x)).detach()
    if form == "hook":
        getattr(kiln.nn.utils, f"remove_{what}")(module)
        with pytest.raises(ValueError, match=f"{what} of 'weight' not found"):
            getattr(kiln.nn.utils, f"remove_{what}")(module)
    else:
        kiln.nn.utils.parametrize.remove_parametrizations(module, "weight")
    assert sorted(module.state_dict()) == ["bias", "weight"] and type(module).__name__ == kind
    assert (module(kiln.from_numpy(x)) - before).abs().max().item() < 1e-12


def doubled(lib: Any) -> Any:
    class Doubled(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x * 2

        def right_inverse(self, x: Any) -> Any:
            return x / 2

    return Doubled()


def symmetric(lib: Any) -> Any:
    class Symmetric(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(0, 1)

    return Symmetric()


def story(lib: Any, doubled: Any, symmetric: Any) -> Any:
    """A weight parametrized twice and a buffer once; read, written, copied, trained, set free."""
    tools = lib.nn.utils.parametrize
    module = lib.nn.Linear(3, 3)
    module.register_buffer("scale", lib.ones(2))
    told = []
    with lib.no_grad():
        module.weight.copy_(lib.arange(9.0).reshape(3, 3))
    param = module.weight
    tools.register_parametrization(module, "weight", doubled(lib))
    told.append((module.parametrizations.weight.original is param, param.tolist(), module.weight.tolist()))
    tools.register_parametrization(module, "weight", symmetric(lib))
    tools.register_parametrization(module, "scale", doubled(lib))
    told.append((module.weight.tolist(), module.scale.tolist(), len(module.parametrizations["weight"])))
    told.append([n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()])
    told.append((type(module).__name__, tools.type_before_parametrizations(module) is lib.nn.Linear))
    module.scale = lib.full((2,), 5.0)
    told.append((module.scale.tolist(), module.parametrizations.scale.original.tolist()))
    with tools.cached():
        told.append(module.weight is module.weight)
    told.append(module.weight is module.weight)
    module.weight.sum().backward()
    told.append(param.grad.tolist())
    tools.remove_parametrizations(module, "weight")
    tools.remove_parametrizations(module, "scale")
    told.append(
        (module.weight is param, param.tolist(), tools.is_parametrized(module), type(module).__name__)
    )
    return told


def test_parametrizations(answers: Any) -> None:
    ours, theirs = answers.both(story, doubled, symmetric)
    assert ours == theirs


def diagonal(lib: Any, cut: bool = False) -> Any:
    class Diagonal(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x if cut else lib.diag(x)

        def right_inverse(self, x: Any) -> Any:
            return lib.diagonal(x)

    return Diagonal()


@pytest.mark.parametrize("name", ["weight", "scale"])
def test_an_inverse_of_another_shape(name: str, answers: Any) -> None:
    def run(lib: Any, name: str, inverse: Any) -> list[Any]:
        module = lib.nn.Linear(3, 3, bias=False)
        module.register_buffer("scale", lib.ones(3, 3))
        with lib.no_grad():
            module.weight.copy_(lib.arange(9.0).reshape(3, 3))
        lib.nn.utils.parametrize.register_parametrization(module, name, inverse(lib))
        original = module.parametrizations[name].original
        told = [getattr(module, name).tolist(), original.tolist(), list(module.state_dict())]
        setattr(module, name, lib.eye(3) * 4)
        return [*told, getattr(module, name).tolist(), original.tolist()]

    ours, theirs = answers.both(run, name, diagonal)
    assert ours == theirs


@pytest.mark.parametrize("name", ["weight", "scale"])
def test_a_refused_parametrization_leaves_the_layer_as_it_was(name: str) -> None:
    module = kiln.nn.Linear(3, 3)
    module.register_buffer("scale", kiln.ones(3, 3))
    old = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(ValueError, match="may not change the dtype or the shape"):
        kiln.nn.utils.parametrize.register_parametrization(module, name, diagonal(kiln, cut=True))
    assert list(module.state_dict()) == list(old) and type(module) is kiln.nn.Linear
    assert all(kiln.equal(v, old[k]) for k, v in module.state_dict().items())
    assert module(kiln.ones(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("trained", [True, False])
def test_what_a_weight_is_computed_from_is_trained_as_it_was(trained: bool, answers: Any) -> None:
    def run(lib: Any, trained: bool) -> Any:
        module = lib.nn.Linear(3, 4, bias=False).requires_grad_(trained)
        old = module.weight.detach().clone()
        held = lib.nn.utils.parametrizations.weight_norm(module).parametrizations.weight
        assert lib.equal(held.original1, old)  # the weight as it was, not of length 1
        return [p.requires_grad for p in held.parameters()], module.weight.requires_grad

    ours, theirs = answers.both(run, trained)
    assert ours == theirs == ([trained, trained], trained)


def test_a_copy_is_free_of_its_original() -> None:
    tools = kiln.nn.utils.parametrize
    module = tools.register_parametrization(kiln.nn.Linear(3, 3), "weight", doubled(kiln))
    twin = copy.deepcopy(module)
    weight = module.weight.tolist()
    tools.remove_parametrizations(twin, "weight", leave_parametrized=False)
    tools.register_parametrization(twin, "bias", doubled(kiln))
    assert module.weight.tolist() == weight and module.bias is module._parameters["bias"]
    assert twin.weight.tolist() == module.parametrizations.weight.original.tolist()


class Wider(kiln.nn.Module):
    def forward(self, x: Any) -> Any:
        return kiln.cat([x, x])


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (lambda t, m: t.register_parametrization(m, "none", doubled(kiln)), "does not have a parameter"),
        (
            lambda t, m: t.register_parametrization(m, "weight", Wider()),
            "may not change the dtype or the shape",
        ),
        (lambda t, m: t.remove_parametrizations(m, "weight"), "does not have a parametrization on weight"),
        (lambda t, m: t.ParametrizationList([], m.weight), "requires one or more modules"),
        (lambda t, m: kiln.nn.utils.parametrizations.spectral_norm(m, "none"), "no parameter or buffer"),
        (lambda t, m: kiln.nn.utils.spectral_norm(m, n_power_iterations=0), "to be positive"),
    ],
)
def test_refusals(program: Any, match: str) -> None:
    module = kiln.nn.Linear(2, 3)
    with pytest.raises(ValueError, match=match):
        program(kiln.nn.utils.parametrize, module)
    assert list(module.state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("what", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("form", ["hook", "property"])
def test_recorded(form: str, what: str) -> None:
    kiln.manual_seed(0)
    module = norm(kiln, form, what, kiln.nn.Conv1d(3, 4, 2))
    x = kiln.randn(2, 3, 8)
    losses = []
    for compiled in (False, True):
        model = copy.deepcopy(module) if form == "property" else module
        start = {k: v.clone() for k, v in model.state_dict().items()}
        optimizer = kiln.optim.SGD(model.parameters(), lr=0.1)

        def step(model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = kiln.compile(step, wait=True) if compiled else step
        losses.append([run().item() for _ in range(4)])
        model.load_state_dict(start)
    assert losses[0] == losses[1]
