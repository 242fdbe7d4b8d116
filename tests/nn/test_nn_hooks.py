"""Hooks of modules, and programs that write to what a module owns."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import kiln
from kiln import nn


def test_forward_hooks() -> None:
    model, log = nn.Identity(), []
    before = model.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    after = model.register_forward_hook(lambda m, args, result: result * 10)
    model.register_forward_hook(lambda m, args, result: log.append(result))
    model.register_forward_hook(lambda m, args, kwargs, result: result + 0.5, with_kwargs=True, prepend=True)
    assert model(1) == 25 and log == [25]
    before.remove()
    after.remove()
    after.remove()
    assert model(1) == 1.5
    with nn.ReLU().register_forward_hook(lambda *a: None) as handle:
        assert handle.id >= 0


@pytest.mark.parametrize("lib", ["kiln", "torch"])
def test_backward_hooks(lib: str) -> None:
    """Before the module its results' gradients are seen, behind it its arguments', and both replaced."""
    lib_ = pytest.importorskip(lib)
    log: list[Any] = []

    class Two(lib_.nn.Module):
        def forward(self, a: Any, n: int, b: Any) -> Any:
            return a * b, a + n, 5

    def show(m: Any, inside: Any, outside: Any) -> Any:
        log.append([[g if g is None else g.tolist() for g in gs] for gs in (inside, outside)])
        return (inside[0] * 100, *inside[1:])

    module, a, b = Two(), lib_.tensor([1.0, 2.0], requires_grad=True), lib_.tensor([3.0, 4.0])
    module.register_full_backward_hook(show)
    double = module.register_full_backward_pre_hook(lambda m, gs: (2 * gs[0], None, None))
    product, _, five = module(a, 7, b)
    product.sum().backward()
    assert five == 5 and log.pop() == [[[6.0, 8.0], None, [0.0, 0.0]], [[2.0, 2.0], None, None]]
    assert a.grad.tolist() == [600.0, 800.0]
    double.remove()
    (g,) = lib_.autograd.grad(module(a * a, 7, b)[0].sum(), a, create_graph=True)  # the hook is part of it
    g.sum().backward()
    assert a.grad.tolist() == [1200.0, 1600.0]
    module.register_full_backward_hook(lambda m, inside, outside: inside[:1])
    with pytest.raises(RuntimeError, match="invalid number of grad_input, got 1, but expected 3"):
        module(a, 7, b)[0].sum().backward()


@pytest.mark.parametrize("lib", ["kiln", "torch"])
def test_hooks_of_every_module(lib: str) -> None:
    """Called for each module in its turn, before its own; removed, nothing is called."""
    lib_ = pytest.importorskip(lib)
    all_ = lib_.nn.modules.module
    log: list[Any] = []
    net = lib_.nn.Sequential(lib_.nn.ReLU(), lib_.nn.Tanh())
    net[1].register_forward_hook(lambda m, args, y: log.append("own"))
    x = lib_.zeros(2, requires_grad=True)

    def note(what: str) -> Any:
        return lambda m, *rest: log.append(f"{what} {type(m).__name__}")

    with (
        all_.register_module_forward_pre_hook(note("to")),
        all_.register_module_forward_hook(note("from")),
        all_.register_module_full_backward_pre_hook(note("back to")),
        all_.register_module_full_backward_hook(note("back from")),
        all_.register_module_forward_pre_hook(lambda m, args: (args[0] + 0.0,)),
    ):
        net(x).sum().backward()
    assert " ".join(log) == (
        "to Sequential to ReLU from ReLU to Tanh from Tanh own from Sequential back to Sequential "
        "back to Tanh back from Tanh back to ReLU back from ReLU back from Sequential"
    )
    del log[:]
    net(x)
    assert log == ["own"]


@pytest.mark.parametrize("lib", ["kiln", "torch"])
def test_hooks_called_whatever_happens(lib: str) -> None:
    lib_ = pytest.importorskip(lib)
    log: list[Any] = []

    class Fails(lib_.nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("forward")

    model, other = Fails(), lib_.nn.Identity()
    other.register_forward_hook(lambda m, args, y: 1 / 0)
    for m in (model, other):
        m.register_forward_hook(lambda m, args, y: log.append(y), always_call=True)
    model.register_forward_hook(lambda m, args, y: log.append("never"))
    model.register_forward_hook(lambda m, args, y: 1 / 0, always_call=True)
    with pytest.raises(ValueError, match="forward"), pytest.warns(UserWarning, match="was silenced"):
        model(3)
    with pytest.raises(ZeroDivisionError):
        other(3)
    assert log == [None, 3]


@pytest.mark.parametrize("lib", ["kiln", "torch"])
def test_old_backward_hooks(lib: str) -> None:
    """Those of the last node: said where it is not the whole module; not beside full ones."""
    lib_ = pytest.importorskip(lib)
    leaf, log = lib_.zeros(2, requires_grad=True), []

    class Two(lib_.nn.Module):
        def forward(self, x: Any) -> Any:
            return (lib_.exp(x * 2) + x,)

    one, two = lib_.nn.Tanh(), Two()
    one.register_backward_hook(lambda m, inside, outside: tuple(g * 3 for g in inside))
    two.register_backward_hook(lambda m, inside, outside: log.append([g.tolist() for g in inside + outside]))
    with pytest.raises(RuntimeError, match="Cannot use both regular backward hooks and full"):
        one.register_full_backward_hook(lambda *a: None)
    one(leaf * 2).sum().backward()
    assert leaf.grad.tolist() == [6.0, 6.0]
    with pytest.warns(FutureWarning, match="missing some grad_input"):
        (y,) = two(leaf * 1)
    y.sum().backward()
    assert log == [[[1.0, 1.0]] * 3] and leaf.grad.tolist() == [9.0, 9.0]


def test_what_a_module_owns_can_be_written_in_its_dicts() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    twin = copy.deepcopy(model)
    model._modules["1"] = nn.Identity()
    assert isinstance(model.get_submodule("1"), nn.Identity) and isinstance(twin.get_submodule("1"), nn.ReLU)
    weight = model[0]._parameters["weight"] = nn.Parameter(kiln.tensor([[-3.0]]))
    assert model[0].weight is weight and twin[0].weight is not weight
    assert model[0]._parameters.pop("bias") is not None and not hasattr(model[0], "bias")
    twin[0]._parameters.update(bias=nn.Parameter(kiln.tensor([1.0])))
    assert twin[0].bias.item() == 1 and list(twin[0].state_dict()) == ["weight", "bias"]


def test_train_reaches_modules_through_their_own_train() -> None:
    class Frozen(nn.Dropout):
        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    model = nn.Sequential(Frozen(0.5), nn.Sequential(Frozen(0.5), nn.Dropout()))
    assert [m.training for m in model.train().modules()] == [True, False, True, False, True]
