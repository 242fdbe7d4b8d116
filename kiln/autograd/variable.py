"""`Variable`: the name tensors with gradients had, which many programs still write."""

from __future__ import annotations

from typing import Any

from kiln._core import Tensor


class _VariableType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor)


class Variable(metaclass=_VariableType):
    """`Variable(data, requires_grad)` is `data.detach().requires_grad_(requires_grad)`; every tensor is one.

    Without data it is a tensor of no elements. TypeError for what is no tensor, RuntimeError where integers
    are to require gradients.

    >>> from kiln.autograd import Variable
    >>> x = Variable(kiln.ones(2), requires_grad=True)
    >>> x, isinstance(x, Variable), isinstance(x, kiln.Tensor)
    (tensor([1., 1.], requires_grad=True), True, True)
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = False) -> Any:
        if data is None:
            data = Tensor()
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)
