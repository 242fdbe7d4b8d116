"""Gradients of convolutions, of their input or weight, from the gradient of their result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.autograd import enable_grad, grad
from kiln.table.callables import name_all

Sizes = Sequence[int]
Setting = int | Sequence[int]


def _gradient(dims: int, of: int, size: Sizes, other: Tensor, grad_output: Tensor, *settings: Any) -> Tensor:
    """That of operand `of`, which has this size; of any values, a convolution being linear in each."""
    recorded = _core.grad_enabled() and (other.requires_grad or grad_output.requires_grad)
    with enable_grad():
        start = ops.zeros(*size, dtype=other.dtype).requires_grad_()
        first, second = (start, other) if of == 0 else (other, start)
        y = getattr(ops, f"conv{dims}d")(first, second, None, *settings)
        (found,) = grad(y, [start], [grad_output], create_graph=recorded)
    return found


def conv1d_input(
    input_size: Sizes,
    weight: Tensor,
    grad_output: Tensor,
    stride: Setting = 1,
    padding: Setting = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv1d's input, of size `input_size`, from its other operand and its result's gradient.

    >>> import kiln
    >>> kiln.nn.grad.conv1d_input((1, 2, 4), kiln.ones(3, 2, 3), kiln.ones(1, 3, 2)).shape
    kiln.Size([1, 2, 4])
    """
    settings = (stride, padding, dilation, groups)
    return _gradient(1, 0, input_size, weight, grad_output, *settings)


def conv1d_weight(
    input: Tensor,
    weight_size: Sizes,
    grad_output: Tensor,
    stride: Setting = 1,
    padding: Setting = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv1d's weight, of size `weight_size`, from its other operand and its result's
    gradient.

    >>> import kiln
    >>> kiln.nn.grad.conv1d_weight(kiln.ones(1, 2, 4), (3, 2, 3), kiln.ones(1, 3, 2)).shape
    kiln.Size([3, 2, 3])
    """
    settings = (stride, padding, dilation, groups)
    return _gradient(1, 1, weight_size, input, grad_output, *settings)


def conv2d_input(
    input_size: Sizes,
    weight: Tensor,
    grad_output: Tensor,
    stride: Setting = 1,
    padding: Setting = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv2d's input, of size `input_size`, from its other operand and its result's gradient.

    >>> import kiln
    >>> kiln.nn.grad.conv2d_input((1, 2, 4, 4), kiln.ones(3, 2, 3, 3), kiln.ones(1, 3, 2, 2)).shape
    kiln.Size([1, 2, 4, 4])
    """
    settings = (stride, padding, dilation, groups)
    return _gradient(2, 0, input_size, weight, grad_output, *settings)


def conv2d_weight(
    input: Tensor,
    weight_size: Sizes,
    grad_output: Tensor,
    stride: Setting = 1,
    padding: Setting = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv2d's weight, of size `weight_size`, from its other operand and its result's
    gradient.

    >>> import kiln
    >>> kiln.nn.grad.conv2d_weight(kiln.ones(1, 2, 4, 4), (3, 2, 3, 3), kiln.ones(1, 3, 2, 2)).shape
    kiln.Size([3, 2, 3, 3])
    """
    settings = (stride, padding, dilation, groups)
    return _gradient(2, 1, weight_size, input, grad_output, *settings)


def conv3d_input(
    input_size: Sizes,
    weight: Tensor,
    grad_output: Tensor,
    stride: Setting = 1,
    padding: Setting = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv3d's input, of size `input_size`, from its other operand and its result's gradient.

    >>> import kiln
    >>> kiln.nn.grad.conv3d_input((1, 2, 4, 4, 4), kiln.ones(3, 2, 3, 3, 3), kiln.ones(1, 3, 2, 2, 2)).shape
    kiln.Size([1, 2, 4, 4, 4])
    """
    settings = (stride, padding, dilation, groups)
    return _gradient(3, 0, input_size, weight, grad_output, *settings)


def conv3d_weight(
    input: Tensor,
    weight_size: Sizes,
    grad_output: Tensor,
    stride: Setting = 1,
    padding: Setting = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of conv3d's weight, of size `weight_size`, from its other operand and its result's
    gradient.

    >>> import kiln
    >>> kiln.nn.grad.conv3d_weight(kiln.ones(1, 2, 4, 4, 4), (3, 2, 3, 3, 3), kiln.ones(1, 3, 2, 2, 2)).shape
    kiln.Size([3, 2, 3, 3, 3])
    """
    settings = (stride, padding, dilation, groups)
    return _gradient(3, 1, weight_size, input, grad_output, *settings)


name_all(globals(), "kiln.nn")
