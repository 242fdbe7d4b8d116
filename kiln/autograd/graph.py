"""What happens to the tensors that ops save for backward."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from kiln import _core
from kiln._core import Tensor


class saved_tensors_hooks:
    """Inside, what an op saves is `pack(tensor)`; backward reads `unpack` of that.

    `pack` is called once for every tensor saved, in order, without recording gradients; what it returns is
    kept. `unpack` must give a tensor of the same shape, dtype and values. The innermost pair counts.
    Where hooks are, in-place changes of a saved tensor go unnoticed: they are theirs to find.

    >>> import kiln
    >>> x = kiln.tensor([1.0, 2.0], requires_grad=True)
    >>> with kiln.autograd.graph.saved_tensors_hooks(lambda t: t.tolist(), kiln.tensor):
    ...     y = x * x
    >>> y.sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0]
    """

    __slots__ = ("_found", "_hooks")

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self._hooks = (pack_hook, unpack_hook)
        self._found: list[tuple[Any, Any] | None] = []  # one entry for each time this object is entered

    def __enter__(self) -> None:
        self._found.append(_core.saved_tensors_hooks())
        _core.set_saved_tensors_hooks(self._hooks)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _core.set_saved_tensors_hooks(self._found.pop())
