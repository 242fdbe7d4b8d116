"""Steps of optimizers as functions of lists (`optim.adam.adam`) beside PyTorch's, and what they write."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln

ADAM = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.1, "eps": 1e-8}
# what each state starts with (None: it is made by the step), and the settings
CASES: dict[str, tuple[list[float | None], dict[str, Any]]] = {
    "adadelta": ([0, 0], {"lr": 0.5, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.1, "maximize": False}),
    "adagrad": ([0], {"lr": 0.5, "weight_decay": 0.1, "lr_decay": 0.1, "eps": 1e-6, "maximize": False}),
    "adam": ([0, 0, 0], {"amsgrad": True, "maximize": False, **ADAM}),
    "adamax": ([0, 0], ADAM),
    "adamw": ([0, 0, 0], {"amsgrad": True, "maximize": True, **ADAM}),
    "asgd": ([0, 1.0, 0.1], {"lambd": 1e-4, "lr": 0.1, "t0": 1.0, "alpha": 0.75, "weight_decay": 0.1}),
    "nadam": ([0, 0, 1.0], {"momentum_decay": 4e-3, **ADAM}),
    "radam": ([0, 0], ADAM),
    "rmsprop": (
        [0, 0, 0],
        {"lr": 0.1, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.1, "momentum": 0.9, "centered": True},
    ),
    "rprop": ([0, 0.01], {"step_size_min": 1e-6, "step_size_max": 50, "etaminus": 0.5, "etaplus": 1.2}),
    "sgd": (
        [None],
        {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.2, "nesterov": False,
         "maximize": False},
    ),
}  # fmt: skip
NUMBERS = {"asgd": (1, 2), "nadam": (2,)}  # states that are one number


def step_of(library: Any, name: str) -> Any:
    return getattr(importlib.import_module(f"{library.__name__}.optim.{name}"), name)


def stepped(library: Any, name: str) -> list[Any]:
    """Parameters and lists after three steps."""
    rng = np.random.default_rng(0)
    starts, settings = CASES[name]
    params = [library.tensor(rng.normal(size=shape), dtype=library.float32) for shape in ((3, 4), (5,))]
    lists: list[Any] = []
    for k, start in enumerate(starts):
        number = k in NUMBERS.get(name, ())
        made = [library.tensor(start) if number else library.full_like(p, start or 0.0) for p in params]
        lists.append([None, None] if start is None else made)
    if name != "sgd":
        lists.append([library.tensor(0.0) for _ in params])
    for _ in range(3):
        grads = [library.tensor(rng.normal(size=tuple(p.shape)), dtype=library.float32) for p in params]
        step_of(library, name)(params, grads, *lists, **settings)
    return [params, *lists]


@pytest.mark.parametrize("name", CASES)
def test_three_steps(name: str, answers: Any) -> None:
    ours, theirs = answers.both(lambda library: [stepped(library, name)])
    for mine, other in zip(ours[0], theirs[0], strict=True):
        for x, y in zip(mine, other, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("name", CASES)
def test_signatures(name: str, answers: Any) -> None:
    def said(library: Any) -> list[tuple[str, str, Any]]:
        found = inspect.signature(step_of(library, name)).parameters.values()
        return [(p.name, p.kind.name, None if p.default is p.empty else p.default) for p in found]

    ours, theirs = answers.both(said)
    assert list(map(tuple, ours)) == list(map(tuple, theirs))


def test_the_scaler_s_numbers_are_of_fused_steps() -> None:
    p, settings = kiln.ones(2), CASES["sgd"][1] | {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
    sgd = step_of(kiln, "sgd")
    with pytest.raises(AssertionError, match="Expected grad_scale and found_inf to be None"):
        sgd([p], [kiln.ones(2)], [None], found_inf=kiln.tensor(1.0), **settings)
    sgd([p], [kiln.ones(2)], [None], fused=True, found_inf=kiln.tensor(1.0), **settings)
    assert p.tolist() == [1, 1]
    sgd([p], [kiln.ones(2) * 4], [None], fused=True, grad_scale=kiln.tensor(4.0), **settings)
    np.testing.assert_allclose(p.numpy(), [0.9, 0.9])
    with pytest.raises(TypeError, match="missing a required argument: 'nesterov'"):
        sgd([p], [p], [None], weight_decay=0, momentum=0, lr=0.1, dampening=0)
    with pytest.raises(RuntimeError, match="list of singleton tensors"):
        step_of(kiln, "adam")([p], [p], [p], [p], [], [1], amsgrad=False, maximize=False, **ADAM)


def test_their_place_in_pytorch() -> None:
    from kiln.optim import _functional

    assert all(getattr(_functional, name) is step_of(kiln, name) for name in CASES)
