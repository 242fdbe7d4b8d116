"""A call of a module: forward between its hooks, and how hooks are registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.late import later
from kiln.nn.hooks import Everywhere, Post, RemovableHandle, after, before, call_after_error

_compiled_in_place = later("kiln.capture.compile", "in_place")
_watched_call = later("kiln.nn.backward_hooks", "Call")
_watch_node = later("kiln.nn.backward_hooks", "watch_node")

# by number, in the order of calls: functions; of some of them that they take keyword arguments, or are
# always called
HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip


class Calls:
    """What of `Module` is about calls. `forward` is the module's own."""

    _forward_pre_hooks: dict[int, Callable[..., Any]]
    _forward_pre_hooks_with_kwargs: dict[int, bool]
    _forward_hooks: dict[int, Callable[..., Any]]
    _forward_hooks_with_kwargs: dict[int, bool]
    _forward_hooks_always_called: dict[int, bool]
    _backward_pre_hooks: dict[int, Callable[..., Any]]
    _backward_hooks: dict[int, Callable[..., Any]]
    # whether any of these ever held one, or every module has, or compile() was called: all that a call asks
    _hooked = False
    _compiled_call_impl: Callable[..., Any] | None = None
    # of _backward_hooks: whether they are of the module, not of a node
    _is_full_backward_hook: bool | None = None
    forward: Callable[..., Any]

    def _no_hooks(self) -> None:
        self.__dict__.update({name: {} for name in HOOKS})
        self.__dict__["_is_full_backward_hook"] = None

    def compile(self, **options: Any) -> None:
        """From now on calls of this module are recorded and run as programs; options as of `kiln.compile`."""
        options.pop("name", None)  # of a region, in reports: here it is the class's
        if not options.pop("disable", False):
            name = type(self).__qualname__
            self._hooked, self._compiled_call_impl = (
                True,
                _compiled_in_place(Calls._call_impl, name, **options),
            )

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is more than `forward` alone."""
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(self, *args, **kwargs)
        return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """forward between its hooks; a hook that returns something replaces the arguments or the result."""
        result = None
        posts = _posts(
            Everywhere.forward, Everywhere.forward_with_kwargs, Everywhere.forward_always_called
        ) + _posts(self._forward_hooks, self._forward_hooks_with_kwargs, self._forward_hooks_always_called)
        try:
            for pre in list(Everywhere.forward_pre.values()):
                args, kwargs = before(pre, False, self, args, kwargs)
            for number, pre in list(self._forward_pre_hooks.items()):
                args, kwargs = before(pre, number in self._forward_pre_hooks_with_kwargs, self, args, kwargs)
            leading, (full, of_node) = list(Everywhere.backward_pre.values()), self._backward_ends()
            leading += self._backward_pre_hooks.values()
            call = _watched_call(self, leading, full) if leading or full else None
            if call is not None:
                args = call.enter(args)
            result = self.forward(*args, **kwargs)
            while posts:
                result = after(posts.pop(0), self, args, kwargs, result)
            if call is not None:
                result = call.leave(result)
            if of_node:
                _watch_node(self, of_node, args, result)
            return result
        except Exception:
            call_after_error(posts, self, args, kwargs, result)
            raise

    def _backward_ends(self) -> tuple[list[Callable[..., Any]], list[Callable[..., Any]]]:
        """The backward hooks of the whole module, and those of its last node."""
        ends: tuple[list[Callable[..., Any]], list[Callable[..., Any]]] = ([], [])
        ends[Everywhere.is_full_backward_hook is False].extend(Everywhere.backward.values())
        ends[self._is_full_backward_hook is False].extend(self._backward_hooks.values())
        return ends

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args[, kwargs])` before forward; what it returns replaces the arguments."""
        self._hooked = True
        chosen = self._forward_pre_hooks_with_kwargs
        handle = RemovableHandle(self._forward_pre_hooks, hook, prepend, extra_dict=chosen)
        if with_kwargs:
            chosen[handle.id] = True
        return handle

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call `hook(module, args[, kwargs], result)` after forward; what it returns replaces the result.

        With `always_call` also after an error, with the result as far as there is one.
        """
        self._hooked = True
        chosen = [self._forward_hooks_with_kwargs, self._forward_hooks_always_called]
        handle = RemovableHandle(self._forward_hooks, hook, prepend, extra_dict=chosen)
        for names, wanted in zip(chosen, (with_kwargs, always_call), strict=True):
            if wanted:
                names[handle.id] = True
        return handle

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, grad_outputs)` when backward comes to the module's results.

        `grad_outputs` is a tuple, None for what has no gradient; a tuple it returns goes on instead.
        """
        self._hooked = True
        return RemovableHandle(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_inputs, grad_outputs)` when backward has passed the module.

        Tuples of the gradients of the positional arguments and of the results (a tensor or a tuple of some),
        None for what has none; a tuple it returns goes on in place of `grad_inputs`. If no argument requires
        gradients it is called with those of the results. RuntimeError beside register_backward_hook.
        """
        return self._add_backward_hook(True, hook, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, grad_inputs, grad_outputs)` of the last node of forward: deprecated.

        Where forward makes several nodes, `grad_inputs` are not the module's, which a FutureWarning says:
        register_full_backward_hook has them. RuntimeError beside it.
        """
        return self._add_backward_hook(False, hook, False)

    def _add_backward_hook(self, full: bool, hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
        if self._is_full_backward_hook is (not full):
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. Please "
                "use only one of them."
            )
        self._hooked, self._is_full_backward_hook = True, full
        return RemovableHandle(self._backward_hooks, hook, prepend)


def _posts(
    hooks: dict[int, Callable[..., Any]], with_kwargs: dict[int, bool], always: dict[int, bool]
) -> list[Post]:
    return [(hook, number in with_kwargs, number in always) for number, hook in list(hooks.items())]
