"""PyTorch's protocol for classes that stand in for tensors, `__torch_function__`: kiln calls none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from kiln._core import Tensor
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import leave_out as _leave_out
from kiln.table.callables import name_helpers as _name_helpers

__all__ = [
    "get_default_nowrap_functions", "get_ignored_functions", "handle_torch_function", "has_torch_function",
    "is_tensor_like", "is_tensor_method_or_property", "resolve_name",
]  # fmt: skip


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """False: what a function does with its arguments is kiln's own, whatever their class.

    >>> kiln.overrides.has_torch_function((kiln.ones(1),))
    False
    """
    return False


def has_torch_function_unary(arg: Any) -> bool:
    """`has_torch_function` of one argument."""
    return False


def has_torch_function_variadic(*args: Any) -> bool:
    """`has_torch_function` of several."""
    return False


def is_tensor_like(inp: Any) -> bool:
    """Whether something is a tensor, or says of itself that it stands in for one.

    >>> kiln.overrides.is_tensor_like(kiln.ones(1)), kiln.overrides.is_tensor_like(1)
    (True, False)
    """
    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__")


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> NoReturn:
    """NotImplementedError: see `has_torch_function`, by which nothing comes here."""
    raise NotImplementedError("overrides.handle_torch_function: kiln calls no __torch_function__")


def get_ignored_functions() -> set[Callable[..., Any]]:
    """Functions that classes cannot take over: all of them, of which none is named."""
    return set()


def get_default_nowrap_functions() -> set[Callable[..., Any]]:
    """Functions whose results stay plain tensors: none is named."""
    return set()


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Whether a function is one of tensors' methods.

    >>> kiln.overrides.is_tensor_method_or_property(kiln.Tensor.add)
    True
    """
    name = getattr(func, "__name__", "")
    return getattr(Tensor, name, None) is func


def resolve_name(f: Any) -> str | None:
    """The name of a function with that of its module; None of what has none."""
    name = getattr(f, "__name__", None)
    return None if name is None else f"{getattr(f, '__module__', None) or 'kiln'}.{name}"


class TorchFunctionMode:
    """`with` one, functions would be handed over to it. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("overrides.TorchFunctionMode: kiln calls no __torch_function__")


_hint_missing(__name__)


_leave_out(TorchFunctionMode, "push", "PyTorch removed it; `with mode:` enters it")


_name_helpers(globals(), __name__)
