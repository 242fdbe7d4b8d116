"""Generators, coroutines and asynchronous generators: each resume is a recorded region of its own.

    resume -> begin -> the body runs, ops are appended -> it yields, awaits or returns -> end: they run

Nothing is pending while the body is suspended, so what runs meanwhile sees eager's values. A resume from
inside another region joins that one, as a call does. A body that is dropped unfinished is closed by the
interpreter as any other is, outside of its region.
"""

from __future__ import annotations

from collections import abc
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType, MethodType
from typing import Any

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # of a code object's flags


class _Resumed:
    """What can be sent values and exceptions; each of them runs the body in the region."""

    def __init__(self, body: Any, region: Any) -> None:
        self._body, self._region = body, region

    def _resume(self, step: Callable[..., Any], *values: Any) -> Any:
        return self._region.resume(step, *values)

    def send(self, value: Any) -> Any:
        return self._resume(self._body.send, value)

    def throw(self, *error: Any) -> Any:
        return self._resume(self._body.throw, *error)

    def close(self) -> None:
        self._resume(self._body.close)

    def __next__(self) -> Any:
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        """Its frame, code and state are the body's: `gi_frame`, `cr_code`, `ag_running`."""
        return getattr(self._body, name)


class _Generator(_Resumed, Generator[Any, Any, Any]):
    """A generator in a region."""


class Coroutine(_Resumed, abc.Coroutine[Any, Any, Any]):
    """A coroutine in a region, or one step of an asynchronous generator."""

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self


class _AsyncGenerator(AsyncGenerator[Any, Any]):
    """An asynchronous generator in a region."""

    def __init__(self, body: Any, region: Any) -> None:
        self._body, self._region = body, region

    def asend(self, value: Any) -> Any:
        return Coroutine(self._body.asend(value), self._region)

    def athrow(self, *error: Any) -> Any:
        return Coroutine(self._body.athrow(*error), self._region)

    def aclose(self) -> Any:
        return Coroutine(self._body.aclose(), self._region)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


def written(function: Any) -> Any:
    """The function that was written, behind partials, methods and `__call__` of an object."""
    while isinstance(function, (partial, MethodType)):
        function = function.func if isinstance(function, partial) else function.__func__
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return function


def suspended(function: Any) -> Callable[[Any, Any], Any] | None:
    """What to put around the bodies `function` makes, if calling it makes one: wrapper(body, region)."""
    code = getattr(written(function), "__code__", None)
    if not isinstance(code, CodeType):
        return None
    kinds = ((_GENERATOR, _Generator), (_COROUTINE, Coroutine), (_ASYNC_GENERATOR, _AsyncGenerator))
    return next((wrapper for flag, wrapper in kinds if code.co_flags & flag), None)


def suspended_forward(forward: Any) -> Callable[[Any, Any], Any] | None:
    """The same for an object that calls `forward`, and may give something else than its body."""
    wrapper = suspended(forward)
    if wrapper is None:
        return None
    bodies = (GeneratorType, CoroutineType, AsyncGeneratorType)
    return lambda result, region: wrapper(result, region) if isinstance(result, bodies) else result
