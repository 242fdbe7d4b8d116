"""Hooks of every module, for those who watch a whole program; each is called before a module's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln._core import Tensor as Tensor
from kiln.nn.hooks import Everywhere, RemovableHandle
from kiln.nn.module import Module as Module
from kiln.nn.parameter import Buffer as Buffer
from kiln.nn.parameter import Parameter as Parameter
from kiln.nn.state import EXTRA as _EXTRA_STATE_KEY_SUFFIX  # noqa: F401  # libraries look for such entries
from kiln.nn.state import _IncompatibleKeys as _IncompatibleKeys
from kiln.table.callables import name_helpers as _name_helpers

__all__ = [
    "Module",
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]

# PyTorch's names of these dicts, in which programs look for hooks that were left
_global_forward_pre_hooks = Everywhere.forward_pre
_global_forward_hooks = Everywhere.forward
_global_forward_hooks_with_kwargs = Everywhere.forward_with_kwargs
_global_forward_hooks_always_called = Everywhere.forward_always_called
_global_backward_pre_hooks = Everywhere.backward_pre
_global_backward_hooks = Everywhere.backward


def _addindent(s_: str, numSpaces: int) -> str:  # libraries print with it
    """A text with every line but the first moved in."""
    return s_.replace("\n", "\n" + " " * numSpaces)


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, args)` before every forward; what it returns replaces the arguments."""
    return _added(Everywhere.forward_pre, hook)


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call `hook(module, args[, kwargs], result)` after every forward; what it returns replaces the result.

    >>> import kiln
    >>> from kiln.nn.modules.module import register_module_forward_hook
    >>> with register_module_forward_hook(lambda m, args, y: print(type(m).__name__, tuple(y.shape))):
    ...     _ = kiln.nn.Sequential(kiln.nn.Linear(2, 3), kiln.nn.ReLU())(kiln.ones(1, 2))
    Linear (1, 3)
    ReLU (1, 3)
    Sequential (1, 3)
    """
    chosen = [Everywhere.forward_with_kwargs, Everywhere.forward_always_called]
    handle = _added(Everywhere.forward, hook, chosen)
    for names, wanted in zip(chosen, (with_kwargs, always_call), strict=True):
        if wanted:
            names[handle.id] = True
    return handle


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_outputs)` where backward comes to a module's results."""
    return _added(Everywhere.backward_pre, hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_inputs, grad_outputs)` when backward has passed a module.

    RuntimeError beside register_module_backward_hook.
    """
    return _added_backward(hook, True)


def register_module_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_inputs, grad_outputs)` of the last node of every forward: deprecated.

    register_module_full_backward_hook has the module's own gradients. RuntimeError beside it.
    """
    return _added_backward(hook, False)


def register_module_parameter_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, parameter)` where a module is given a parameter; what it returns replaces it.

    >>> import kiln
    >>> from kiln.nn.modules.module import register_module_parameter_registration_hook
    >>> with register_module_parameter_registration_hook(lambda m, name, p: print(name, tuple(p.shape))):
    ...     _ = kiln.nn.Linear(2, 3)
    weight (3, 2)
    bias (3,)
    """
    return RemovableHandle(Everywhere.registration["_parameters"], hook)


def register_module_buffer_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, buffer)` where a module is given a buffer; what it returns replaces it."""
    return RemovableHandle(Everywhere.registration["_buffers"], hook)


def register_module_module_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, child)` where a module is given a child; what it returns replaces it."""
    return RemovableHandle(Everywhere.registration["_modules"], hook)


def _added(hooks: dict[int, Any], hook: Any, extra: list[dict[int, Any]] | None = None) -> RemovableHandle:
    Module._hooked = True
    return RemovableHandle(hooks, hook, extra_dict=extra)


def _added_backward(hook: Any, full: bool) -> RemovableHandle:
    if Everywhere.is_full_backward_hook is (not full):
        raise RuntimeError(
            "Cannot use both regular backward hooks and full backward hooks as a global Module hook. "
            "Please use "
            "only one of them."
        )
    Everywhere.is_full_backward_hook = full
    return _added(Everywhere.backward, hook)


_name_helpers(globals(), __name__)
