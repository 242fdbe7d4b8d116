"""Hooks: what is called before or after a module's `forward`, the handle that removes one, hooks of every
module.

A module keeps functions by number, and beside them which take keyword arguments and which are called after
errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kiln.autograd.handles import RemovableHandle as RemovableHandle
from kiln.errors import warn


def before(
    hook: Callable[..., Any], with_kwargs: bool, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments forward is to get: those given, or those the hook returned."""
    if not with_kwargs:
        came = hook(module, args)
        return (args if came is None else came if isinstance(came, tuple) else (came,)), kwargs
    came = hook(module, args, kwargs)
    if came is None:
        return args, kwargs
    if not isinstance(came, tuple) or len(came) != 2:
        raise RuntimeError(
            f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), got {came!r}"
        )
    return came[0], came[1]


# the function, whether it takes the keyword arguments, whether it is called after errors
Post = tuple[Callable[..., Any], bool, bool]


def after(hook: Post, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The result the caller is to get: forward's, or what the hook returned."""
    function, with_kwargs, _ = hook
    came = function(module, args, kwargs, result) if with_kwargs else function(module, args, result)
    return result if came is None else came


def call_after_error(
    hooks: Iterable[Post], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Calls those of the hooks that are called whatever happens; what they raise is only a warning."""
    for hook in hooks:
        if hook[2]:
            try:
                result = after(hook, module, args, kwargs, result)
            except Exception as error:
                warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as "
                    f"another error was raised in forward: {error}"
                )


class Everywhere:
    """The hooks of every module, called before its own."""

    forward_pre: dict[int, Callable[..., Any]] = {}
    forward: dict[int, Callable[..., Any]] = {}
    forward_with_kwargs: dict[int, bool] = {}
    forward_always_called: dict[int, bool] = {}
    backward_pre: dict[int, Callable[..., Any]] = {}
    backward: dict[int, Callable[..., Any]] = {}
    is_full_backward_hook: bool | None = None
    # called with (module, name, value) where a module is given something to own; what they return replaces it
    registration: dict[str, dict[int, Callable[..., Any]]] = {
        "_parameters": {},
        "_buffers": {},
        "_modules": {},
    }


def registered(module: Any, kind: str, name: str, value: Any) -> Any:
    """What a module is to own under `name`: `value`, or what hooks of every module put in its place."""
    for hook in list(Everywhere.registration[kind].values()):
        came = hook(module, name, value)
        value = value if came is None else came
    return value
