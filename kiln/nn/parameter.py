"""`Parameter`: the tensors a module trains.

A parameter is the core's tensor under another Python type, so `isinstance(p, Parameter)` tells what a
module should train; every op on it gives a plain tensor.
"""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.errors import describe, message


class Parameter(Tensor):
    """A leaf tensor to be trained: shares memory with `data`, has no history, requires a gradient.

    `data` is a tensor of any shape (None: an empty one); a dtype that is not floating needs
    `requires_grad=False` (RuntimeError otherwise).

    >>> import kiln
    >>> kiln.nn.Parameter(kiln.ones(2))
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = ops.empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(message("Parameter", "a tensor", describe(data), "make it one with kiln.tensor"))
        made: Parameter = Tensor._make_subclass(cls, data.detach(), requires_grad)
        return made

    def __copy__(self) -> Parameter:
        return type(self)(self.detach(), self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        copied: Parameter = memo[id(self)]
        return copied

    def __repr__(self) -> str:  # type: ignore[override,unused-ignore]
        return "Parameter containing:\n" + super().__repr__()
