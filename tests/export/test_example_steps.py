"""The steps of the project's examples, as programs that went through a file: the bits of the model."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from program_files import again, tensors

import kiln
from kiln import nn
from kiln.export import export

FULL = bool(os.environ.get("KILN_TEST_FULL"))
EXAMPLES = Path(__file__).parents[2] / "examples"


class Call(nn.Module):
    """A module of which another method is called."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *args: Any) -> Any:
        return getattr(self.model, self.name)(*args)


def _numbers(*shape: int, below: int = 9) -> Any:
    return kiln.randint(0, below, shape)


def _speller(m: ModuleType) -> Any:
    return m.Speller(), (_numbers(2), kiln.rand(2, m.WIDTH), kiln.rand(2, m.WIDTH))


def _state(m: ModuleType) -> Any:
    return kiln.rand(2, 2, m.WIDTH), kiln.rand(2, 2, m.WIDTH)


# example -> its model and what a step is given; what goes by values (which rows an expert is given, how long
# a sentence is) is no one program
STEPS: dict[str, list[Callable[[ModuleType], Any]]] = {
    "beam_search": [_speller, lambda m: (Call(m.Speller(), "read"), (_numbers(5),))],
    "cartpole": [lambda m: (m.ActorCritic(), (kiln.rand(3, 4),))],
    "char_gpt": [lambda m: (m.GPT(9), (_numbers(2, 5),))],
    "char_lstm": [lambda m: (m.Model(9), (_numbers(2, 5), _state(m)))],
    "diffusion": [lambda m: (m.Denoiser(), (kiln.rand(3, 2), kiln.rand(3)))],
    "digits": [lambda m: (m.network(), (kiln.rand(3, 64),))],
    "karate": [lambda m: (m.Network(), (kiln.eye(m.MEMBERS), m.normalised_adjacency()))],
    "mnist": [lambda m: (m.Net(), (kiln.rand(2, 1, 28, 28),))],
    "mixture_of_experts": [lambda m: (m.network(2, 8, 1), (kiln.rand(3, 2),))],
    "neural_ode": [lambda m: (lambda x: m.rk4(lambda s: (s[0].sin(),), (x,), 0.1), (kiln.rand(3, 2),))],
    "syntax_trees": [lambda m: (m.Bag(9), (None, _numbers(4, 3)))],
    "translation": [
        lambda m: (
            Call(m.Translator(9, 9, 8), "step"),
            (_numbers(2), kiln.rand(2, 8), kiln.rand(2, 5, 8), kiln.rand(2, 5, 8), kiln.zeros(2, 5) > 0),
        )
    ],
    "variational_autoencoder": [lambda m: (m.VAE(), (kiln.rand(3, 64),))],
}
NO_MODEL = {"reinforce": "its policy is a Sequential inside of main()"}


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*STEPS, *NO_MODEL}


@pytest.mark.parametrize("name", [*STEPS] if FULL else ["cartpole", "karate", "syntax_trees"])
def test_a_step_of_an_example_is_a_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    for make in STEPS[name]:
        kiln.manual_seed(0)
        model, args = make(module)
        program = again(export(model, args))
        traced = kiln.jit.trace(model, args)
        kiln.manual_seed(1)
        expected = tensors(model(*args))
        for made in (program, traced):
            kiln.manual_seed(1)
            got = tensors(made(*args))
            assert len(got) == len(expected) and all(map(kiln.equal, got, expected)), name
