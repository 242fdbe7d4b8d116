"""Calls of scripted programs: their arguments, gradients of what they give, whether that is the same."""

from __future__ import annotations

from typing import Any

from scripted_programs import Py

from kiln.tracing.trees import flatten


def arguments(module: Any, call: tuple[Any, ...]) -> list[Any]:
    """The arguments of a call: tensors of lists, floats with gradients."""
    made = []
    for x in call:
        if isinstance(x, Py):
            made.append(x.value)
            continue
        tensor = module.tensor(x)
        if tensor.is_floating_point():
            tensor.requires_grad_()
        if tensor.numel() == 1:
            tensor = tensor.detach().reshape(()).requires_grad_(tensor.requires_grad)
        made.append(tensor)
    return made


def gradients(module: Any, result: Any, args: list[Any]) -> list[Any]:
    """The gradients of the floats in a result, zeros where there are none."""
    leaves: list[Any] = []
    _leaves(module, result, leaves)
    total = sum([(y * y).sum() for y in leaves if y.requires_grad], module.tensor(0.0))
    inputs = [x for x in args if isinstance(x, module.Tensor) and x.requires_grad]
    if not total.requires_grad or not inputs:
        return []
    found = module.autograd.grad(total, inputs, allow_unused=True)
    return [module.zeros_like(x) if g is None else g for x, g in zip(inputs, found)]


def _leaves(module: Any, value: Any, found: list[Any]) -> None:
    if isinstance(value, module.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            _leaves(module, v, found)
    elif isinstance(value, dict):
        for v in value.values():
            _leaves(module, v, found)


def assert_same(a: Any, b: Any, what: str) -> None:
    """Two results are alike to the bit."""
    one: list[Any] = []
    other: list[Any] = []
    trees = flatten(a, one), flatten(b, other)
    assert _plain(trees[0]) == _plain(trees[1]), what
    for x, y in zip(one, other):
        assert x.dtype == y.dtype and x.shape == y.shape, what
        assert x.detach().numpy().tobytes() == y.detach().numpy().tobytes(), (what, x, y)


def _plain(tree: Any) -> Any:
    return tree.kind, type(tree.value), repr(tree.value), tree.keys, tuple(map(_plain, tree.items))
