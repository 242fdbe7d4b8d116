"""Views that see places several times, of memory that is written later: gradients add up at each place."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

import kiln
import kiln.nn.functional as F


def _strided(x: Any) -> Any:
    y = x * 1
    v = y.as_strided((2, 2), (1, 1))
    y[0] = y[0] * 3
    return v.square().sum() + y.sum()


def _windows(x: Any) -> Any:
    y = x * 1
    v = y.unfold(0, 2, 1)
    y[0] = y[0] * 3
    return v.square().sum() + y.sum()


def _expanded(x: Any) -> Any:
    y = x * 1
    v = y[None].expand(2, 3)[:, 1:]
    y[1] = y[0] * 3
    return (v * kiln.arange(4.0).reshape(2, 2)).square().sum()


def _apart(x: Any) -> Any:
    y = x * 1
    v = y[1:]
    y[1] = y[0] * 3
    return (v * kiln.arange(2.0)).square().sum()


_BODIES = [_strided, _windows, _expanded, _apart]


class _Net(kiln.nn.Module):
    def __init__(self, body: Callable[[Any], Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


def _loaded(program: Any) -> Any:
    file = io.BytesIO()
    kiln.export.save(program, file)
    file.seek(0)
    return kiln.export.load(file).module()


def _gradient(call: Callable[[Any], Any], x: Any) -> list[float]:
    x = x.clone().requires_grad_()
    call(x).square().sum().backward()
    found: list[float] = x.grad.flatten().tolist()
    return found


@pytest.mark.parametrize("body", _BODIES)
def test_memory_that_is_written_behind_a_view(body: Callable[[Any], Any]) -> None:
    x = kiln.tensor([1.0, 2.0, 3.0])
    program = kiln.export.export(_Net(body), (x,))
    ways = [kiln.jit.trace(body, x), kiln.compile(body, pure=True), kiln.jit.script(body)]
    for call in (*ways, program.module(), _loaded(program), program.run_decompositions().module()):
        assert _gradient(call, x) == _gradient(body, x)


_CALLS: dict[str, Callable[[Any], Any]] = {
    "conv1d": lambda x: F.conv1d(x[:, None], kiln.ones(1, 1, 2)),
    "conv2d": lambda x: F.conv2d(x[None, None], kiln.ones(1, 1, 2, 2)),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[:, None], kiln.ones(1, 1, 2)),
    "unfold": lambda x: F.unfold(x[None, None], 2),
    "as_strided": lambda x: x.as_strided((2, 2, 2), (3, 1, 1)) * 2.0,
}


@pytest.mark.parametrize("name", _CALLS)
def test_files_and_programs_of_primitives(name: str) -> None:
    x, body = kiln.arange(6.0).reshape(2, 3), _CALLS[name]
    program = kiln.export.export(_Net(body), (x,))
    for call in (_loaded(program), program.run_decompositions().module()):
        assert _gradient(call, x) == _gradient(body, x)
