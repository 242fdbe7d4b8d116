"""What calls take and give, to type checkers. A module's what the `forward` of its class does:

    class Net(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...

    Net()(x, mask=m)     a Tensor; Net()("text") is an error

and `kiln.compile` gives what it was given, with its parameters and result.

Nothing imports it at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
Rest = ParamSpec("Rest")
Result = TypeVar("Result", covariant=True)
Instance = TypeVar("Instance")
Model = TypeVar("Model", bound="HasForward[..., Any]")


class HasForward(Protocol[P, Result]):
    """A module, by its `forward`."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...


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
