"""The grad-mode switches and the functions of `kiln.autograd`."""

from __future__ import annotations

from typing import Any

import pytest

import kiln


def test_grad_modes_restore() -> None:
    x = kiln.ones(1, requires_grad=True)
    with pytest.raises(KeyError), kiln.no_grad():
        raise KeyError
    assert (x * 2).requires_grad
    mode = kiln.no_grad()
    with mode, kiln.enable_grad(), mode:
        assert not (x * 2).requires_grad
    with kiln.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    kiln.set_grad_enabled(False)
    assert not (x * 2).requires_grad
    kiln.set_grad_enabled(True)
    assert (x * 2).requires_grad


def test_grad_modes_decorate() -> None:
    x = kiln.ones(1, requires_grad=True)

    @kiln.no_grad()
    def one() -> bool:
        return bool((x * 2).requires_grad)

    @kiln.no_grad
    def two() -> bool:
        return bool((x * 2).requires_grad)

    @kiln.no_grad()
    def many() -> Any:
        got = yield (x * 2).requires_grad
        while got != "stop":
            got = yield (got, (x * 2).requires_grad)
        return "end"

    assert not one() and not two() and one.__name__ == "one"
    stream = many()
    assert next(stream) is False and (x * 2).requires_grad
    assert stream.send(3) == (3, False) and (x * 2).requires_grad
    with pytest.raises(StopIteration) as end:
        stream.send("stop")
    assert end.value.value == "end"
    stream = many()
    next(stream)
    with pytest.raises(KeyError):
        stream.throw(KeyError())
    assert (x * 2).requires_grad


def test_autograd_functions() -> None:
    x = kiln.tensor([1.0, 2.0], requires_grad=True)
    z = kiln.ones(1, requires_grad=True)
    y = x * x
    (g,) = kiln.autograd.grad(y, x, kiln.tensor([1.0, 10.0]), retain_graph=True)
    assert g.tolist() == [2.0, 40.0] and x.grad is None
    assert kiln.autograd.grad(y.sum(), [x, z], allow_unused=True, retain_graph=True)[1] is None
    assert kiln.autograd.grad(y.sum(), [x, z], materialize_grads=True, retain_graph=True)[1].tolist() == [0.0]
    kiln.autograd.backward([y.sum(), (x * 3).sum()])
    assert x.grad.tolist() == [5.0, 7.0]
    (g,) = kiln.autograd.grad((x**3).sum(), x, create_graph=True)
    assert kiln.autograd.grad(g.sum(), x)[0].tolist() == [6.0, 12.0]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x, z: kiln.autograd.grad(x * 2, x), "scalar"),
        (lambda x, z: kiln.autograd.grad((x * 2).sum(), z), "appears to not have been used"),
        (lambda x, z: kiln.autograd.grad((x * 2).sum(), kiln.ones(1)), "require grad"),
        (lambda x, z: kiln.autograd.grad(x * 2, x, kiln.ones(3)), r"shape of \(2,\)"),
        (lambda x, z: kiln.autograd.backward([x.sum()], [kiln.tensor(1.0), kiln.tensor(1.0)]), "1 gradients"),
        (lambda x, z: kiln.autograd.backward(kiln.ones(1)), "grad"),
    ],
)
def test_autograd_refuses(call: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        call(kiln.ones(2, requires_grad=True), kiln.ones(1, requires_grad=True))
