"""Hooks: what is called before or after a module's `forward`, the handle that removes one, hooks of every
module.

A module keeps functions by number, and beside them which take keyword arguments and which are called after
errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from kiln.absent import leave_out
from kiln.errors import warn

_numbers = count()
_LATER = object()


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


class RemovableHandle:
    """Removes its hook by `remove()` or at the end of a `with` block; removing twice is no error.

    Without a `hook` it only draws a number, under which the caller enters one. `extra_dict` is a dict, or a
    list of some, with what else is said of a hook by its number.
    """

    __slots__ = ("__weakref__", "_extra", "_hooks", "id")

    def __init__(
        self,
        hooks_dict: dict[int, Any],
        hook: Any = _LATER,
        first: bool = False,
        *,
        extra_dict: dict[int, Any] | list[dict[int, Any]] | None = None,
    ) -> None:
        self._hooks = hooks_dict
        self._extra = [extra_dict] if isinstance(extra_dict, dict) else list(extra_dict or ())
        self.id = next(_numbers)
        if hook is _LATER:
            return
        others = dict(hooks_dict) if first else {}
        if first:
            hooks_dict.clear()
        hooks_dict[self.id] = hook
        hooks_dict.update(others)

    def remove(self) -> None:
        """Take the hook out."""
        for names in (self._hooks, *self._extra):
            names.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


leave_out(RemovableHandle, "next_id", "numbers of hooks are drawn inside; a handle has `id`")
