"""What calls of modules take and give, to type checkers: what the `forward` of their class does.

    class Net(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...

    Net()(x, mask=m)     a Tensor; Net()("text") is an error

Nothing imports it at run time.
"""

from __future__ import annotations

from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result", covariant=True)


class HasForward(Protocol[P, Result]):
    """A module, by its `forward`."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...
