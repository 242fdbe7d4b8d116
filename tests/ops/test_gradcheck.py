"""gradcheck and gradgradcheck: they pass what is right, find what is wrong, and say so as PyTorch does."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

Program = Callable[..., Any]


def leaf(k: Any, *shape: int, dtype: Any = None, seed: int = 0) -> Any:
    """A leaf of seeded values around 1, float64 if nothing else is said."""
    array = np.random.default_rng(seed).uniform(0.5, 2.0, shape)
    flat = k.from_numpy(np.asarray(array).ravel()).to(dtype or k.float64).clone()
    return flat.reshape(shape).requires_grad_()


def doubled(k: Any, backward: Program, forward: Program = lambda x: x * 2, **fixed: Any) -> Program:
    """2x as a function of the user's, with a backward of its own."""

    class Doubled(k.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            if "materialize" in fixed:
                ctx.set_materialize_grads(fixed["materialize"])
            return forward(x)

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            return backward(*gs)

    return Doubled.apply  # type: ignore[no-any-return]


def drifting(k: Any) -> Program:
    """A backward that gives something else at every run."""
    runs = iter(range(10**6))
    return doubled(k, lambda g: g * (2 + 1e-7 * next(runs)))


def refused() -> None:
    raise RuntimeError("no gradient")


def check(k: Any, func: Program, *inputs: Any, **options: Any) -> Any:
    return k.autograd.gradcheck(func, inputs, **options)


def check2(k: Any, func: Program, *inputs: Any, **options: Any) -> Any:
    return k.autograd.gradgradcheck(func, inputs, **options)


# name -> a check on a framework: its outcome is that on PyTorch
SCENARIOS: dict[str, Callable[[Any], Any]] = {
    "right": lambda k: check(k, lambda x, y: x.exp() * y, leaf(k, 2, 3), leaf(k, 3)),
    "one tensor": lambda k: k.autograd.gradcheck(lambda x: x * x, leaf(k, 3)),
    "a list": lambda k: k.autograd.gradcheck(lambda x, y: x * y, [leaf(k, 3), leaf(k, 3)]),
    "0-d": lambda k: check(k, lambda x: x**3, leaf(k)),
    "empty": lambda k: check(k, lambda x: x * 2, leaf(k, 0, 3)),
    "a sum of nothing": lambda k: check(k, lambda x: x.sum(), leaf(k, 0, 3)),
    "empty result": lambda k: check(k, lambda x: x[:0] * 2, leaf(k, 3)),
    "several results": lambda k: check(k, lambda x: (x * 2, [x][0].exp(), x.sum()), leaf(k, 3)),
    "an integer beside": lambda k: check(k, lambda x: (x * 2, x.argmax()), leaf(k, 3)),
    "a constant beside": lambda k: check(k, lambda x: (x.detach() * 2, x.exp()), leaf(k, 3)),
    "a number as input": lambda k: check(k, lambda x, n: x**n, leaf(k, 3), 3),
    "a constant input": lambda k: check(k, lambda x, c: x * c, leaf(k, 3), leaf(k, 3).detach()),
    "the input itself": lambda k: check(k, lambda x: x, leaf(k, 3)),
    "a view": lambda k: check(k, lambda x: x.t(), leaf(k, 3, 2)),
    "inputs not passed": lambda k: (lambda x: check(k, lambda *_: x * x, x))(leaf(k, 3)),
    "in place inside": lambda k: check(k, lambda x: (x * 1).mul_(x), leaf(k, 3)),
    "transposed": lambda k: check(k, lambda x: x.exp() @ x, leaf(k, 3, 3).detach().t().requires_grad_()),
    "strided": lambda k: check(k, lambda x: x * x, leaf(k, 6).detach()[::2].requires_grad_()),
    "not differentiable": lambda k: check(k, lambda x: x.detach().round(), leaf(k, 3)),
    "hidden from backward": lambda k: check(k, lambda x: x.detach() * 2, leaf(k, 3)),
    "wrong": lambda k: check(k, lambda x: x * x.detach(), leaf(k, 3)),
    "wrong by the second": lambda k: check(k, lambda x, y: x * y.detach() + y * 0, leaf(k, 3), leaf(k, 3)),
    "wrong, asked": lambda k: check(k, lambda x: x * x.detach(), leaf(k, 3), raise_exception=False),
    "wrong within atol": lambda k: check(k, lambda x: x * 2 + x.detach() * 1e-3, leaf(k, 3), atol=1e-2),
    "wrong within rtol": lambda k: check(k, lambda x: x * 2 + x.detach() * 1e-1, leaf(k, 3), rtol=1e-1),
    "a coarse step": lambda k: check(k, lambda x: x**3, leaf(k, 3), eps=1.0),
    "float32": lambda k: check(k, lambda x: x * x, leaf(k, 3, dtype=k.float32), raise_exception=False),
    "float32, coarse": lambda k: check(
        k, lambda x: x * x, leaf(k, 3, dtype=k.float32), eps=1e-2, atol=1e-2, rtol=1e-2
    ),
    "nothing requires grad": lambda k: check(k, lambda x: x * x, leaf(k, 3).detach()),
    "nothing, asked": lambda k: check(k, lambda x: x, leaf(k, 3).detach(), raise_exception=False),
    "expanded": lambda k: check(k, lambda x: x * x, leaf(k, 1).detach().expand(3).requires_grad_()),
    "expanded by 1": lambda k: check(k, lambda x: x * x, leaf(k, 1).detach().expand(1, 1).requires_grad_()),
    "shape moves": lambda k: check(
        k, lambda x: x[: 1 + int(x[0] > 1)] * 2, k.ones(2).double().requires_grad_()
    ),
    "neither way": lambda k: check(k, lambda x: x, leaf(k, 3), check_backward_ad=False),
    "drifting": lambda k: check(k, drifting(k), leaf(k, 3)),
    "drifting, allowed": lambda k: check(k, drifting(k), leaf(k, 3), nondet_tol=1e-4),
    "not linear": lambda k: check(k, doubled(k, lambda g: g * 2 + 1e-9), leaf(k, 3)),
    "a bias": lambda k: check(k, doubled(k, lambda g: g + (g == g).to(g.dtype)), leaf(k)),
    "undefined refused": lambda k: check(
        k, doubled(k, lambda g: g * 2 if g is not None else refused(), materialize=False), leaf(k, 3)
    ),
    "undefined taken": lambda k: check(
        k, doubled(k, lambda g: None if g is None else g * 2, materialize=False), leaf(k, 3)
    ),
    "undefined not asked": lambda k: check(
        k,
        doubled(k, lambda g: g * 2 if g is not None else refused(), materialize=False),
        leaf(k, 3),
        check_undefined_grad=False,
    ),
    "one of two undefined": lambda k: check(
        k, doubled(k, lambda g, h: g * 2 + h * 3, lambda x: (x * 2, x * 3)), leaf(k, 3)
    ),
    "fast": lambda k: check(
        k, lambda x, y: (x.exp() * y, x.sum()), leaf(k, 2, 3), leaf(k, 3), fast_mode=True
    ),
    "fast, wrong": lambda k: check(k, lambda x: x * x.detach(), leaf(k, 3), fast_mode=True),
    "fast, hidden": lambda k: check(k, lambda x: x.detach() * 2, leaf(k, 3), fast_mode=True),
    "fast, empty": lambda k: check(k, lambda x: x * 2, leaf(k, 0, 3), fast_mode=True),
    "second": lambda k: check2(k, lambda x, y: x.exp() * y, leaf(k, 2, 3), leaf(k, 3)),
    "second of a list": lambda k: check2(k, lambda x: [x.exp(), x.sin()], leaf(k, 2)),
    "second, linear": lambda k: check2(k, lambda x: x * 3, leaf(k, 2)),
    "second, 0-d": lambda k: check2(k, lambda x: x**3, leaf(k)),
    "second, fast": lambda k: check2(k, lambda x: x.exp() * x, leaf(k, 3), fast_mode=True),
    "second, strided": lambda k: check2(
        k, lambda x: x.exp() * x.sum(), leaf(k, 2, 3), gen_non_contig_grad_outputs=True
    ),
    "second, given": lambda k: k.autograd.gradgradcheck(lambda x: x.exp(), leaf(k, 3), leaf(k, 3, seed=1)),
    "second, constant": lambda k: k.autograd.gradgradcheck(
        lambda x: x.exp(), leaf(k, 3), (leaf(k, 3, seed=1).detach(),)
    ),
    "second, wrong": lambda k: check2(k, lambda x: x * (x * x).detach() + x.detach() ** 2 * x, leaf(k, 2)),
    "second, wrong by g": lambda k: check2(k, doubled(k, lambda g: g.detach() * 2), leaf(k, 2)),
    "second, asked": lambda k: check2(
        k, doubled(k, lambda g: g.detach() * 2), leaf(k, 2), raise_exception=False
    ),
}


def outcome(k: Any, name: str) -> tuple[Any, str, list[str]]:
    """The result of a scenario or the exception's class, the message, and warnings but deprecations."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result, text = SCENARIOS[name](k), ""
        except Exception as error:
            result, text = type(error).__name__, str(error)
    return result, text, [str(w.message) for w in seen if "Backwards compat" not in str(w.message)]


def opening(result: Any, text: str, warned: list[str]) -> tuple[Any, str, list[str]]:
    """An outcome with the first words of its message and of its warnings."""
    return result, text.split(",")[0][:40], [w[:60] for w in warned]


@pytest.mark.parametrize("name", SCENARIOS)
def test_outcome_is_pytorch(name: str, answers: Any) -> None:
    """True, False, the kind of exception and the first words of its message, warnings."""
    got, text, warned = outcome(kiln, name)
    want, theirs, expected = answers(SCENARIOS[name], lambda: opening(*outcome(torch, name)))
    assert got == want, text
    assert opening(got, text, warned)[1:] == (theirs, expected)


def test_message_shows_where() -> None:
    """The Jacobians, and the entry that differs most."""
    x = leaf(kiln, 3)
    with pytest.raises(
        RuntimeError, match="(?s)Jacobian mismatch for output 1 with respect to input 0.*numerical.*"
    ):
        check(kiln, lambda x: (x * 2, x * x.detach()), x)


@needs_kiln
def test_worst_entry() -> None:
    scale = kiln.tensor([0.0, 0.0, 1.0], dtype=kiln.float64)
    with pytest.raises(RuntimeError, match=r"d output\[2\] / d input\[2\]"):
        check(kiln, lambda x: x * 2 + x.detach() * scale, leaf(kiln, 3))


@needs_kiln
def test_inputs_are_restored() -> None:
    """Bit by bit, also where the function raises."""
    x = leaf(kiln, 4)
    before = x.detach().clone()
    assert check(kiln, lambda x: x.exp(), x)
    assert bool((x == before).all()) and x.grad is None

    def fails(x: Any) -> Any:
        if bool((x != before).any()):
            raise KeyError("moved")
        return x * 2

    with pytest.raises(KeyError):
        check(kiln, fails, x)
    assert bool((x == before).all())


def test_random_state_is_left_alone() -> None:
    """What the checks draw does not move the program's generator."""
    kiln.manual_seed(3)
    expected = kiln.rand(2).tolist()
    kiln.manual_seed(3)
    assert check(kiln, lambda x: x * x, leaf(kiln, 3), fast_mode=True)
    if kiln.is_kiln:
        assert check2(kiln, lambda x: x * x, leaf(kiln, 3))
    assert kiln.rand(2).tolist() == expected


@needs_kiln
def test_there_is_no_forward_mode() -> None:
    with pytest.raises(NotImplementedError, match="forward mode"):
        check(kiln, lambda x: x, leaf(kiln, 3), check_forward_ad=True)
    with pytest.raises(NotImplementedError, match="forward mode"):
        check2(kiln, lambda x: x, leaf(kiln, 3), check_fwd_over_rev=True)


@needs_kiln
@pytest.mark.parametrize("check", [check, check2])
def test_recorded(check: Any) -> None:
    """The derivative of a recorded region, at every sight of it."""
    program = kiln.compile(lambda x, y: (x.exp() * y).sum(1) * x[:, 0])
    assert check(kiln, program, leaf(kiln, 2, 3), leaf(kiln, 3))
    wrong = kiln.compile(lambda x: x * x.detach())
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        kiln.autograd.gradcheck(wrong, leaf(kiln, 3))


def test_names_are_pytorch(answers: Any) -> None:
    """The function under the package, the error in the module, PyTorch's parameters."""
    module = importlib.import_module("kiln.autograd.gradcheck")
    mine = importlib.import_module("kiln.autograd")
    names = ("gradcheck", "gradgradcheck")

    def parameters(other: Any) -> list[Any]:
        found = [inspect.signature(getattr(other, name)).parameters.values() for name in names]
        return [[(p.name, p.kind.name, repr(p.default)) for p in many] for many in found]

    want = answers([*names], lambda: parameters(importlib.import_module("torch.autograd.gradcheck")))
    assert parameters(module) == want
    assert all(getattr(mine, name) is getattr(module, name) for name in names)
    assert issubclass(module.GradcheckError, RuntimeError)
