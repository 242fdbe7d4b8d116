"""What `kiln.compile` gives, to type checkers: what it was given, with its parameters and result.

Nothing imports it at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from kiln.nn.module import Module

P = ParamSpec("P")
Rest = ParamSpec("Rest")
Result = TypeVar("Result", covariant=True)
Instance = TypeVar("Instance")
Model = TypeVar("Model", bound="Module")


class CompiledFunction(Protocol[P, Result]):
    """A function recorded as programs (`kiln.capture.compile.Compiled`); in a class it is a method."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> CompiledFunction[P, Result]: ...
    @overload
    def __get__(
        self: CompiledFunction[Concatenate[Instance, Rest], Result],
        instance: Instance,
        owner: type | None = None,
        /,
    ) -> CompiledFunction[Rest, Result]: ...

    def stats(self) -> dict[str, Any]: ...

    def wait(self) -> None: ...

    def explain(self) -> str: ...


class Decorator(Protocol):
    """`kiln.compile` with settings alone."""

    def __call__(self, function: Callable[P, Result], /) -> CompiledFunction[P, Result]: ...
