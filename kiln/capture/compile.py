"""`kiln.compile`: a function whose ops are recorded and run as programs.

    call -> begin -> Python runs, ops are appended -> a value is read, or the call returns -> the program runs

What was recorded is what runs, so there is nothing a guard could miss: the recording, hashed, finds its
program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from types import MethodType
from typing import Any

from kiln import _core
from kiln.capture import service
from kiln.capture.explain import explain
from kiln.capture.suspend import Coroutine, leave, suspended


class Compiled:
    """A callable that records its ops; see `compile`."""

    def __init__(self, function: Callable[..., Any], wait: bool) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._region = _core.Region(self._name, wait)
        self._suspended = suspended(function)
        if hasattr(function, "__name__"):
            update_wrapper(self, function)
        if self._suspended is Coroutine:  # say so too: `asyncio.iscoroutinefunction`
            self._is_coroutine = import_module("asyncio.coroutines")._is_coroutine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        region = self._region
        if self._suspended:
            return self._suspended(self._function(*args, **kwargs), region)
        region.begin()
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            leave(region, error)
            raise
        region.end("the call returned")
        return result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance is the first argument."""
        if instance is None:
            return self
        return MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        """What is not the compiled callable's own is the function's (or module's)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return f"<compiled {self._function!r}>"

    def stats(self) -> dict[str, Any]:
        """Counts: runs of programs, compiles, replays op by op, recordings remembered and forgotten;
        whether the region is switched off."""
        found: dict[str, Any] = self._region.stats()
        return found

    def wait(self) -> None:
        """Returns when no program is being compiled any more, for this function or another."""
        service.wait()

    def explain(self) -> str:
        """In plain words: what was recorded and why anew, what ended each recording and where, what it
        costs.
        """
        return explain(self._name, self._region)


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    wait: bool = False,
) -> Any:
    """The callable with its ops recorded and run as programs; also a decorator. Results are the same bits.

    Any Python may run inside. A recording seen once runs op by op on ready kernels, or by its program if the
    disk has it. One seen again is compiled by another thread while calls go on op by op; `wait()` of the
    result returns when that is done. With `wait=True` the first call compiles. Sizes are run-time arguments
    whatever `dynamic` says. `fullgraph=True` raises NotImplementedError: a value may be read anywhere, so
    there is no break to refuse.

    >>> @kiln.compile
    ... def f(x):
    ...     return (x * 2 + 1).sum()
    >>> f(kiln.ones(3))
    tensor(9.)
    """
    if fullgraph:
        raise NotImplementedError(
            "compile: fullgraph=True is not supported: nothing breaks a recording; see explain()"
        )
    if model is None:
        return lambda function: compile(function, dynamic=dynamic, wait=wait)
    if not callable(model):
        raise TypeError(f"compile: expected a callable, got {type(model).__name__}")
    return Compiled(model, wait)
