"""The switches of grad mode and inference mode: context managers and decorators that restore what they found.

Both flags live in the core, one pair per thread. Entering remembers them, leaving (by any way out) puts them
back; one object may be entered several times, nested or in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ContextDecorator
from functools import wraps
from typing import Any, Self, TypeVar, cast, overload

from kiln import _core
from kiln.errors import warn
from kiln.table.arguments import answered

Function = TypeVar("Function", bound=Callable[..., Any])

_GENERATOR = 0x20  # CO_GENERATOR of a code object's flags


class Mode(_core.ModeSwitch):
    """Sets the core's flags between entry and exit, which are the core's too (native/binding/modes.cpp)."""

    __slots__ = ()

    def _given(self) -> tuple[Any, ...]:
        """What another one that does the same is made of."""
        return () if isinstance(self, (no_grad, enable_grad)) else (self.mode,)

    def clone(self) -> Any:
        """Another one that does the same."""
        return type(self)(*self._given())

    def __reduce__(self) -> Any:
        """For copies and pickles of what holds it: the copy is entered nowhere yet."""
        return type(self), self._given(), getattr(self, "__dict__", None)

    @overload
    def __call__(self, function: Function) -> Function: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...  # to mypy `@no_grad` leaves one of these
    def __call__(self, function: Function) -> Function:
        """`function` run under this mode; a generator function gets the mode in each of its resumes.

        Of a class it is the constructor, with a FutureWarning.
        """
        if isinstance(function, type):
            warn(
                "Decorating classes is deprecated and will be disabled in future versions. You should only "
                "decorate functions or methods. To preserve the current behavior of class decoration, you "
                "can directly decorate the `__init__` method and nothing else.",
                FutureWarning,
            )
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _GENERATOR:
            return cast(Function, self._generator_under(function))

        @wraps(function)
        def under_mode(*args: Any, **kwargs: Any) -> Any:
            return self.call(function, *args, **kwargs)

        return cast(Function, under_mode)

    def _generator_under(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A generator function whose body runs under the mode, while whoever resumes it keeps their own."""

        resume = self.call

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


class no_grad(Mode):
    """Nothing computed inside is recorded for backward; `@no_grad` and `@no_grad()` decorate.

    >>> import kiln
    >>> x = kiln.ones(2, requires_grad=True)
    >>> with kiln.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    __slots__ = ()

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: Function) -> Function: ...  # type: ignore[misc]
    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        mode = super().__new__(cls)
        if function is None:
            return mode
        Mode.__init__(mode, False)
        return mode(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(False)


class enable_grad(Mode):
    """Records for backward inside, also within `no_grad`; `@enable_grad` and `@enable_grad()` decorate."""

    __slots__ = ()

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: Function) -> Function: ...  # type: ignore[misc]
    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        mode = super().__new__(cls)
        if function is None:
            return mode
        Mode.__init__(mode, True)
        return mode(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(True)


class set_grad_enabled(Mode):
    """Sets the grad mode at once; as a context manager it also restores the mode it replaced.

    >>> import kiln
    >>> with kiln.set_grad_enabled(False):
    ...     kiln.is_grad_enabled()
    False
    """

    __slots__ = ()

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self.now()

    def __reduce__(self) -> Any:
        return _unset, (self.mode,)

    def __call__(self, function: Function) -> Function:
        self.undo()  # used as a decorator: the construction was not meant to switch
        decorated: Function = super().__call__(function)
        return decorated


def _unset(mode: bool) -> set_grad_enabled:
    """One that has set nothing yet: a copy switches when it is entered."""
    made = set_grad_enabled.__new__(set_grad_enabled)
    Mode.__init__(made, mode)
    return made


class inference_mode(Mode):
    """Inside, nothing is recorded for backward, and what is made never can be: cheaper than no_grad.

    Tensors made inside have no `_version`, cannot be saved for backward, and can be changed in place inside
    only; `clone()` outside makes an ordinary tensor. Views of ordinary tensors are ordinary. Tensors made
    outside may be changed inside. Per thread; `inference_mode(False)` ends it inside, and records.
    `enable_grad` has no effect inside. `@inference_mode` and `@inference_mode()` decorate.

    >>> import kiln
    >>> x = kiln.ones(2, requires_grad=True)
    >>> with kiln.inference_mode():
    ...     y = x * 2
    >>> y.requires_grad, y.is_inference()
    (False, True)
    >>> x * y
    Traceback (most recent call last):
    RuntimeError: Inference tensors cannot be saved for backward. Please do not use Tensors created in \
inference mode in computation tracked by autograd. To work around this, you can make a clone to get a normal \
tensor and use it in autograd, or use no_grad() instead of inference_mode().
    """

    __slots__ = ()

    @overload
    def __new__(cls, mode: bool = True) -> Self: ...
    @overload
    def __new__(cls, mode: Function) -> Function: ...  # type: ignore[misc]
    def __new__(cls, mode: Any = True) -> Any:
        made = super().__new__(cls)
        if isinstance(mode, bool):
            return made
        Mode.__init__(made, False, True)
        return made(mode)

    def __init__(self, mode: bool | Callable[..., Any] = True) -> None:
        super().__init__(not mode, bool(mode))


def is_grad_enabled() -> bool:
    """Whether gradients are recorded in this thread.

    >>> import kiln
    >>> with kiln.no_grad():
    ...     kiln.is_grad_enabled()
    False
    """
    return bool(answered("is_grad_enabled", _core.grad_enabled()))


def is_inference_mode_enabled() -> bool:
    """Whether inference mode is on in this thread.

    >>> import kiln
    >>> with kiln.inference_mode():
    ...     kiln.is_inference_mode_enabled()
    True
    """
    return bool(answered("is_inference_mode_enabled", _core.modes()[1]))


def is_inference(input: Any) -> bool:
    """Whether a tensor was made in inference mode."""
    return bool(input.is_inference())


_multithreading = True


class set_multithreading_enabled(ContextDecorator):
    """Says something at once and as a context manager that changes nothing: one thread runs backward, its
    kernels use several. is_multithreading_enabled() is what was said last.
    """

    def __init__(self, mode: bool) -> None:
        global _multithreading
        self.mode, self._found = mode, _multithreading
        _multithreading = mode

    def __enter__(self) -> set_multithreading_enabled:
        return self

    def __exit__(self, *exception: object) -> None:
        global _multithreading
        _multithreading = self._found


def is_multithreading_enabled() -> bool:
    """What set_multithreading_enabled last said; it changes nothing here.

    >>> import kiln
    >>> kiln.autograd.is_multithreading_enabled()
    True
    """
    return _multithreading
