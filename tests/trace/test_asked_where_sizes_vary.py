"""Tensors some of whose sizes vary, samples in them, and one tensor as several arguments."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

import kiln
import kiln.nn.functional as F
from kiln.export import Dim
from kiln.utils.checkpoint import checkpoint

_KINDS = (
    "is_cpu is_cuda is_meta is_mkldnn is_mps is_nested is_quantized is_sparse is_sparse_csr is_xla".split()
)


def _loaded(program: Any) -> Any:
    file = io.BytesIO()
    kiln.export.save(program, file)
    file.seek(0)
    return kiln.export.load(file).module()


class _Net(kiln.nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, *args: Any) -> Any:
        return self.body(*args)


def _of_its_kind(x: Any) -> Any:
    asked = [getattr(x, name) for name in _KINDS]
    mapped = kiln.vmap(lambda row: row * sum(getattr(row, name) for name in _KINDS))(x)
    return mapped * sum(asked) * (3 if x.is_inference() else 2)


def _checkpointed(x: Any) -> Any:
    return checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False) + x


@pytest.mark.parametrize("body", [_of_its_kind, _checkpointed])
def test_what_is_no_value_is_answered(body: Callable[..., Any]) -> None:
    program = _loaded(kiln.export.export(_Net(body), (kiln.rand(3, 2),), dynamic_shapes=(({0: Dim("n")},),)))
    for n in (2, 3, 7):
        x = kiln.rand(n, 2)
        assert kiln.equal(program(x), body(x))
    with kiln.inference_mode():
        other = kiln.rand(3, 2)
        if body is _of_its_kind:
            with pytest.raises(RuntimeError, match="must not be made in inference mode"):
                program(other)


def test_one_tensor_may_be_several_arguments_whose_sizes_are_left_open() -> None:
    x = kiln.rand(3, 2)
    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO})
    program = kiln.export.export(_Net(lambda a, b: a + b), (x, x), dynamic_shapes=(shapes,)).module()
    y = kiln.rand(5, 2)
    assert kiln.equal(program(y, y), y + y)


_MAPPED: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: kiln.vmap(lambda row: F.linear(row, kiln.ones(2, 3)))(x),
    "softmax": lambda x: kiln.vmap(lambda row: row.softmax(0))(x),
    "conv1d": lambda x: kiln.vmap(lambda row: F.conv1d(row[None, None], kiln.ones(1, 1, 2)))(x),
    "topk": lambda x: kiln.vmap(lambda row: row.topk(2)[0])(x),
    "twice": lambda x: kiln.vmap(kiln.vmap(lambda e: F.gelu(e)))(x),
}


@pytest.mark.parametrize("name", _MAPPED)
def test_a_file_may_hold_what_is_mapped_over_samples(name: str) -> None:
    f, x = _MAPPED[name], kiln.randn(2, 3)
    program = _loaded(kiln.export.export(_Net(f), (x,)))
    gradients = []
    for call in (program, f):
        y = x.clone().requires_grad_()
        made = call(y)
        assert kiln.equal(made, f(x))
        made.square().sum().backward()
        gradients.append(y.grad)
    assert kiln.allclose(*gradients, atol=1e-6)
