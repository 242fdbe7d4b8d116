"""`Variable`, PyTorch's old name of a tensor: a call gives one that starts a graph of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import warn
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["Variable", "VariableMeta"]


class _Engine:
    """What `Variable._execution_engine` is: the engine of backward."""

    @staticmethod
    def queue_callback(callback: Callable[[], Any]) -> None:
        """Calls a function when the backward under way is over, its `.grad`s stored; it may queue others.

        RuntimeError where no backward is under way.
        """
        _core.queue_callback(callback)


class VariableMeta(type):
    """Says that every tensor is a Variable."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=VariableMeta):
    """`Variable(data, requires_grad)`: the memory of a tensor without its history, a leaf.

    What old programs call before they differentiate; `requires_grad_()` and `detach()` are today's names.
    Without data it is empty. TypeError if data is no tensor, RuntimeError if it is to require grad and is
    not of floating point.

    >>> import kiln
    >>> x = kiln.autograd.Variable(kiln.ones(2), requires_grad=True)
    >>> (x * 3).sum().backward()
    >>> x.grad
    tensor([3., 3.])
    >>> isinstance(x, kiln.autograd.Variable)
    True
    """

    _execution_engine = _Engine()

    def __new__(  # type: ignore[misc]
        cls, data: Tensor | None = None, requires_grad: bool = False, volatile: bool = False
    ) -> Tensor:
        if volatile:
            warn("volatile was removed and now has no effect. Use `with no_grad():` instead.")
        if data is not None and not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        tensor: Tensor = ops.empty(0) if data is None else data.detach()
        return tensor.requires_grad_(requires_grad)


_name_helpers(globals(), __name__)
