"""Handles of hooks: what registering one gives, on a module, an optimizer, a tensor or a node."""

from __future__ import annotations

from itertools import count
from typing import Any

from kiln import _core
from kiln.absent import leave_out

_numbers = count()
_LATER = object()


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


class HookHandle(RemovableHandle):
    """That of a tensor's or a node's hook, which the core keeps by its number. The core makes it."""

    __slots__ = ()
    id: int

    def remove(self) -> None:
        """Take the hook out; nothing, if it is gone."""
        _core.remove_hook(self.id)


HookHandle.__module__ = "kiln.autograd"
leave_out(RemovableHandle, "next_id", "numbers of hooks are drawn inside; a handle has `id`")
