"""Hooks of every module, for those who watch a whole program; each is called before a module's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.nn.hooks import Everywhere, Hook, RemovableHandle
from kiln.nn.module import Module as Module


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, args)` before every forward; what it returns replaces the arguments."""
    return _added(Everywhere.forward_pre, Hook(hook, False))


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
    return _added(Everywhere.forward, Hook(hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_outputs)` where backward comes to a module's results."""
    return _added(Everywhere.backward_pre, hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_inputs, grad_outputs)` when backward has passed a module."""
    return _added(Everywhere.backward, hook)


def _added(hooks: dict[int, Any], hook: Any) -> RemovableHandle:
    Module._hooked = True
    return RemovableHandle(hooks, hook, False)
