"""Forward hooks: functions called before or after a module's `forward`, and the handle that removes one.
Hooks of every module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from warnings import warn

_numbers = count()


class Hook:
    """One hook: the function, whether it takes the keyword arguments, whether it is called after errors."""

    __slots__ = ("always", "function", "with_kwargs")

    def __init__(self, function: Callable[..., Any], with_kwargs: bool, always: bool = False) -> None:
        self.function = function
        self.with_kwargs = with_kwargs
        self.always = always

    def before(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments forward is to get: those given, or those the hook returned."""
        if not self.with_kwargs:
            came = self.function(module, args)
            return (args if came is None else came if isinstance(came, tuple) else (came,)), kwargs
        came = self.function(module, args, kwargs)
        if came is None:
            return args, kwargs
        if not isinstance(came, tuple) or len(came) != 2:
            raise RuntimeError(f"forward pre-hook: expected None or a tuple (args, kwargs), got {came!r}")
        return came[0], came[1]

    def after(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The result the caller is to get: forward's, or what the hook returned."""
        given = (args, kwargs) if self.with_kwargs else (args,)
        came = self.function(module, *given, result)
        return result if came is None else came


def of_pytorch(state: dict[str, Any]) -> dict[str, Any]:
    """What a pickled module of PyTorch's has under other names: its hooks are functions by number, and apart
    from them it says which take keyword arguments, and which are called after errors.
    """

    def said(name: str) -> dict[int, Any]:
        return dict(state.get(name) or {})

    def hooks(name: str) -> dict[int, Hook]:
        with_kwargs, always = said(f"{name}_with_kwargs"), said(f"{name}_always_called")
        return {n: Hook(function, n in with_kwargs, n in always) for n, function in said(name).items()}

    forward = {name: hooks(name) for name in ("_forward_pre_hooks", "_forward_hooks")}
    backward = {name: said(name) for name in ("_backward_pre_hooks", "_backward_hooks")}
    hooked = any(forward.values()) or any(backward.values())
    absent = set(state.get("_non_persistent_buffers_set") or ())
    return {**forward, **backward, "_hooked": hooked, "_non_persistent": absent}


def call_after_error(
    hooks: Iterable[Hook], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Calls those of the hooks that are called whatever happens; what they raise is only a warning."""
    for hook in hooks:
        if hook.always:
            try:
                result = hook.after(module, args, kwargs, result)
            except Exception as error:
                warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as "
                    f"another error was raised in forward: {error}",
                    stacklevel=3,
                )


class Everywhere:
    """The hooks of every module, called before its own."""

    forward_pre: dict[int, Hook] = {}
    forward: dict[int, Hook] = {}
    backward_pre: dict[int, Callable[..., Any]] = {}
    backward: dict[int, Callable[..., Any]] = {}


class RemovableHandle:
    """Removes its hook by `remove()` or at the end of a `with` block; removing twice is no error."""

    __slots__ = ("_hooks", "id")

    def __init__(self, hooks: dict[int, Any], hook: Any, first: bool) -> None:
        self._hooks = hooks
        self.id = next(_numbers)
        others = dict(hooks) if first else {}
        if first:
            hooks.clear()
        hooks[self.id] = hook
        hooks.update(others)

    def remove(self) -> None:
        """Take the hook out."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()
