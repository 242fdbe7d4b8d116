"""Scripts that give a buffer another tensor: who holds the one before keeps its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kiln
from kiln import nn
from kiln.tracing.recorder import TracingError


class _Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", kiln.zeros(2))
        self.register_buffer("c", kiln.ones(2))


class _Read(_Held):
    def forward(self, x: Any) -> Any:
        old = self.b
        self.b = self.b * 0.5 + x
        return self.b - old


class _Swapped(_Held):
    def forward(self, x: Any) -> Any:
        self.b, self.c = self.c, self.b
        return self.b, self.c, x + self.b


class _InPlace(_Held):
    def forward(self, x: Any) -> Any:
        old = self.b
        self.b = old + x
        old.add_(5)
        self.b.mul_(2)
        return old, self.b * 1


class _InBranch(_Held):
    def forward(self, x: Any) -> Any:
        old = self.b
        if x.sum() > 0:
            self.b = self.b + x
            before = self.b
            if x[0] > 1:
                self.b = x
            self.b = self.b + before
        return self.b - old, old


class _InLoop(_Held):
    def forward(self, x: Any) -> Any:
        old = self.b
        while self.b.sum() < 6:
            before = self.b
            self.b = self.b + x.abs() + 1
            if self.b[0] > 2:
                x = x + before
        return old, x


class _ByMethod(_Held):
    def step(self, x: Any) -> Any:
        before = self.b
        self.b = before + x
        return before

    def forward(self, x: Any) -> Any:
        return self.step(x) + self.step(x)


def _values(found: Any) -> list[Any]:
    return [y.tolist() for y in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("on", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("kind", [_Read, _Swapped, _InPlace, _InBranch, _InLoop, _ByMethod])
def test_the_tensor_before_stays(kind: Callable[[], Any], on: bool) -> None:
    eager, module = kind(), kind()
    script = kiln.jit.script(module)
    with kiln.set_grad_enabled(on):
        for values in ([1.0, 2.0], [1.0, 2.0], [-1.0, -2.0], [3.0, 0.5], [3.0, 0.5]):
            x = kiln.tensor(values)
            assert _values(script(x)) == _values(eager(x))
            assert [b.tolist() for b in module.buffers()] == [b.tolist() for b in eager.buffers()]


def test_a_buffer_of_another_module_is_refused() -> None:
    held = [_Held()]
    before = held[0].b

    def f(x: Any) -> Any:
        held[0].b = held[0].b + x
        return x * 1

    with pytest.raises(TracingError, match="sets the buffer b of a module that is not the script's"):
        kiln.jit.script(f)(kiln.ones(2))
    assert held[0].b is before and before.tolist() == [0, 0]
