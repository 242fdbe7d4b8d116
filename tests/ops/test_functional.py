"""autograd.functional beside torch.autograd.functional: results, their trees and histories, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

pytestmark = needs_kiln


def curved(x: Any) -> Any:
    return (x.sin() * x).sum()


def curved_in_two(x: Any, y: Any) -> Any:
    return (x * y * y).sin().sum()


def pair(x: Any, y: Any) -> Any:
    return (x * y).sin(), x.sum() * y


def linear(x: Any) -> Any:
    return (x * 2).sum()


def first_alone(x: Any, y: Any) -> Any:
    return (x**3).sum()


def elementwise(x: Any) -> Any:
    return x * x


def constant(x: Any) -> Any:
    return x.new_ones(2)


def no_tensor(x: Any) -> Any:
    return 3


def described(m: Any, name: str, function: Any, count: int, requires_grad: bool, v: Any, options: Any) -> Any:
    """What a call gives: its tree with shapes and histories, and its values; or its error."""
    rng = np.random.default_rng(0)
    xs = tuple(m.tensor(rng.normal(size=(3,)), requires_grad=requires_grad) for _ in range(count))
    vs = {"ones": tuple(m.ones(3).double() for _ in xs), "one": m.ones(()).double()}.get(v, v)
    vs = vs[0] if v == "ones" and count == 1 else vs
    given = (xs if count > 1 else xs[0],) + (() if v == "no" else (vs,))
    values: list[Any] = []

    def tree(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(tree, x))
        values.append(x.detach().numpy())
        return tuple(x.shape), x.requires_grad

    try:
        shown = tree(getattr(m.autograd.functional, name)(function, *given, **options))
    except Exception as error:
        return type(error), str(error).replace("torch.", "").replace("kiln.", "")
    assert all(x.grad is None and x.requires_grad == requires_grad for x in xs)
    return shown, values


JACOBIANS = [(curved, 1), (pair, 2), (elementwise, 1), (first_alone, 2), (constant, 1), (no_tensor, 1)]
HESSIANS = [(curved, 1), (curved_in_two, 2), (linear, 1), (elementwise, 1), (pair, 2)]
OPTIONS: list[dict[str, Any]] = [
    {}, {"create_graph": True}, {"strict": True}, {"strict": True, "create_graph": True},
]  # fmt: skip
FASTER: list[dict[str, Any]] = [{"vectorize": True}, {"vectorize": True, "create_graph": True}]
CALLS: list[tuple[str, Any, int, Any, dict[str, Any]]] = [
    *(("jacobian", f, n, "no", o) for f, n in JACOBIANS for o in (*OPTIONS, *FASTER)),
    *(("hessian", f, n, "no", o) for f, n in HESSIANS for o in (*OPTIONS, *FASTER)),
    *(("vjp", f, n, "one" if f is not elementwise else "ones", o) for f, n in HESSIANS[:4] for o in OPTIONS),
    *(("jvp", f, n, "ones", o) for f, n in JACOBIANS[:3] for o in OPTIONS),
    *((name, f, n, "ones", o) for name in ("hvp", "vhp") for f, n in HESSIANS for o in OPTIONS),
    *((name, f, 1, None, {}) for name in ("vjp", "jvp", "hvp", "vhp") for f in (curved, elementwise)),
]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", ["jacobian", "hessian", "vjp", "jvp", "hvp", "vhp"])
def test_beside_torch(name: str, requires_grad: bool, answers: Any) -> None:
    """Trees, shapes, whether there is a history, values; where PyTorch raises, its words."""
    for _, function, count, v, options in (c for c in CALLS if c[0] == name):
        ours, theirs = answers.both(described, name, function, count, requires_grad, v, options)
        what = f"{name}({function.__name__}, v={v}, {options})"
        assert ours[0] == theirs[0], what
        if isinstance(ours[0], type):
            assert ours[1] == theirs[1], what
            continue
        for x, y in zip(ours[1], theirs[1], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12, err_msg=what)


MISTAKES: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("inputs given to jacobian must be either", lambda F, x: F.jacobian(curved, 3)),
    ("value at index 1 has type", lambda F, x: F.jacobian(curved, (x, 3))),
    ("should contain a single Tensor", lambda F, x: F.vjp(elementwise, x, (x, x))),
    ("tuple of invalid length", lambda F, x: F.jvp(curved_in_two, (x, x), (x,))),
    ("v has invalid size", lambda F, x: F.hvp(curved, x, x[:2])),
    ("Entry 1 in v has invalid size", lambda F, x: F.vhp(curved_in_two, (x, x), (x, x[:2]))),
    ("not supported together", lambda F, x: F.jacobian(curved, x, strict=True, vectorize=True)),
    ("only implemented for `vectorize=True`", lambda F, x: F.jacobian(curved, x, strategy="forward-mode")),
    ("strategy to be either", lambda F, x: F.jacobian(curved, x, strategy="sideways")),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number: int, answers: Any) -> None:
    """The same exception, with its key phrase (PyTorch forgets a space in one)."""
    match, call = MISTAKES[number]

    def raised() -> type:
        with pytest.raises(Exception, match=match.removeprefix("only ")) as theirs:
            call(torch.autograd.functional, torch.ones(3))
        return theirs.type

    with pytest.raises(answers([match, call], raised), match=match):
        call(kiln.autograd.functional, kiln.ones(3))


def test_forward_mode() -> None:
    """The Jacobian by columns is the Jacobian, and has no history."""
    x, y = kiln.tensor([0.5, 1.0, 2.0], requires_grad=True), kiln.tensor([1.0, 2.0, 3.0])
    functional = kiln.autograd.functional
    rows = functional.jacobian(pair, (x, y))
    columns = functional.jacobian(pair, (x, y), vectorize=True, strategy="forward-mode")
    for row, column in zip(rows, columns):
        for a, b in zip(row, column):
            assert kiln.allclose(a, b)
            assert not b.requires_grad
    forward = functional.hessian(curved, x, vectorize=True, outer_jacobian_strategy="forward-mode")
    assert kiln.allclose(forward, functional.hessian(curved, x))


def test_no_grad_outside() -> None:
    """The mode around a call does not matter, and is as before afterwards."""
    x = kiln.tensor([1.0, 2.0])
    with kiln.no_grad():
        assert kiln.autograd.functional.jacobian(elementwise, x).tolist() == [[2.0, 0.0], [0.0, 4.0]]
        assert not kiln.is_grad_enabled()


def test_create_graph_reaches_what_the_function_reads() -> None:
    """A Jacobian can be differentiated with respect to inputs and to other tensors."""
    x = kiln.tensor([1.0, 2.0], requires_grad=True)
    w = kiln.tensor(3.0, requires_grad=True)
    for vectorize in (False, True):
        found = kiln.autograd.functional.jacobian(
            lambda x: w * x**2, x, create_graph=True, vectorize=vectorize
        )
        gx, gw = kiln.autograd.grad(found.sum(), (x, w))
        assert gx.tolist() == [6.0, 6.0]
        assert gw.item() == 6.0
