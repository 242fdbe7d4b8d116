"""The grad-mode switches: each a context manager and a decorator that restores what it found.

The flag lives in the core, one per thread. Entering remembers the flag, leaving (by any way out) puts it
back; one object may be entered several times, nested or in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from kiln import _core

Function = TypeVar("Function", bound=Callable[..., Any])

_GENERATOR = 0x20  # CO_GENERATOR of a code object's flags


class _GradMode:
    """Sets the core's grad flag to `mode` between entry and exit."""

    __slots__ = ("_found", "mode")

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self._found: list[bool] = []  # one entry for each time this object is entered

    def __enter__(self) -> None:
        self._found.append(_core.grad_enabled())
        _core.set_grad_enabled(self.mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _core.set_grad_enabled(self._found.pop())

    def __call__(self, function: Function) -> Function:
        """`function` run under this mode; a generator function gets the mode in each of its resumes."""
        mode = self.mode
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _GENERATOR:
            return cast(Function, _generator_under(function, mode))

        @wraps(function)
        def under_mode(*args: Any, **kwargs: Any) -> Any:
            found = _core.grad_enabled()
            _core.set_grad_enabled(mode)
            try:
                return function(*args, **kwargs)
            finally:
                _core.set_grad_enabled(found)

        return cast(Function, under_mode)


def _generator_under(function: Callable[..., Any], mode: bool) -> Callable[..., Any]:
    """A generator function whose body runs under `mode`, while whoever resumes it keeps their own mode."""

    def resume(step: Callable[..., Any], *values: Any) -> Any:
        with _GradMode(mode):
            return step(*values)

    @wraps(function)
    def under_mode(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body = function(*args, **kwargs)
        try:
            item = resume(next, body)
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    resume(body.close)
                    raise
                except BaseException as error:
                    item = resume(body.throw, error)
                else:
                    item = resume(body.send, sent)
        except StopIteration as end:
            return end.value

    return under_mode


class no_grad(_GradMode):
    """Nothing computed inside is recorded for backward; `@no_grad` and `@no_grad()` decorate.

    >>> import kiln
    >>> x = kiln.ones(2, requires_grad=True)
    >>> with kiln.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    __slots__ = ()

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        mode = super().__new__(cls)
        if function is None:
            return mode
        _GradMode.__init__(mode, False)
        return mode(function)

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_GradMode):
    """Records for backward inside, also within `no_grad`; `@enable_grad` and `@enable_grad()` decorate."""

    __slots__ = ()

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        mode = super().__new__(cls)
        if function is None:
            return mode
        _GradMode.__init__(mode, True)
        return mode(function)

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(_GradMode):
    """Sets the grad mode at once; as a context manager it also restores the mode it replaced.

    >>> import kiln
    >>> with kiln.set_grad_enabled(False):
    ...     kiln.is_grad_enabled()
    False
    """

    __slots__ = ("_before",)

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._before: bool | None = _core.grad_enabled()
        _core.set_grad_enabled(self.mode)

    def __enter__(self) -> None:
        found = _core.grad_enabled() if self._before is None else self._before
        self._before = None
        self._found.append(found)
        _core.set_grad_enabled(self.mode)

    def __call__(self, function: Function) -> Function:
        if self._before is not None:  # used as a decorator: the construction was not meant to switch
            _core.set_grad_enabled(self._before)
            self._before = None
        return super().__call__(function)
