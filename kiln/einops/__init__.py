"""kiln's tensors for the package einops, and its layers as modules of kiln's.

    import einops, kiln
    einops.rearrange(x, "b c h w -> b (c h w)")
    kiln.einops.Rearrange("b c h w -> b (c h w)")       a layer, like einops.layers.torch's

einops looks for a library among the classes that derive from its `AbstractBackend`; this module has that of
kiln. It is imported with einops, whichever of the two a program imports first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from einops._backends import AbstractBackend

import kiln
from kiln.absent import hidden, no_attribute

if TYPE_CHECKING:
    from kiln.einops.layers import EinMix as EinMix
    from kiln.einops.layers import Rearrange as Rearrange
    from kiln.einops.layers import Reduce as Reduce

__all__ = ["EinMix", "Rearrange", "Reduce"]


class Backend(AbstractBackend):  # type: ignore[misc]
    """What einops asks of a library."""

    framework_name = "kiln"

    def is_appropriate_type(self, tensor: Any) -> bool:
        """Whether it is kiln's to do."""
        return isinstance(tensor, kiln.Tensor)

    def from_numpy(self, x: Any) -> Any:
        """A tensor of an array's memory."""
        return kiln.from_numpy(x)

    def to_numpy(self, x: Any) -> Any:
        """An array of a tensor's memory."""
        return x.detach().numpy()

    def arange(self, start: int, stop: int) -> Any:
        """Integers in order."""
        return kiln.arange(start, stop)

    def transpose(self, x: Any, axes: Any) -> Any:
        """Dims in another order."""
        return x.permute(axes)

    def reduce(self, x: Any, operation: str, axes: Any) -> Any:
        """One of einops' reductions along dims."""
        if operation in ("min", "max"):
            return getattr(x, f"a{operation}")(dim=tuple(axes))
        if operation in ("sum", "mean", "any", "all"):
            return getattr(x, operation)(dim=tuple(axes))
        if operation == "prod":
            for dim in sorted(axes, reverse=True):
                x = x.prod(dim)
            return x
        raise NotImplementedError("Unknown reduction ", operation)

    def stack_on_zeroth_dimension(self, tensors: Any) -> Any:
        """Tensors of one shape as one."""
        return kiln.stack(list(tensors))

    def add_axis(self, x: Any, new_position: int) -> Any:
        """A dim of size 1 more."""
        return x.unsqueeze(new_position)

    def add_axes(self, x: Any, n_axes: int, pos2len: dict[int, int]) -> Any:
        """Dims more, along which the tensor is repeated without memory."""
        repeats = [-1] * n_axes
        for position, length in pos2len.items():
            x = self.add_axis(x, position)
            repeats[position] = length
        return x.expand(repeats)

    def tile(self, x: Any, repeats: Any) -> Any:
        """The tensor repeated along its dims."""
        return x.repeat(repeats)

    def concat(self, tensors: Any, axis: int) -> Any:
        """Tensors one after the other along a dim."""
        return kiln.cat(list(tensors), dim=axis)

    def is_float_type(self, x: Any) -> bool:
        """Whether a mean can be taken."""
        return bool(x.dtype.is_floating_point)

    def einsum(self, pattern: str, *x: Any) -> Any:
        """Products summed over letters."""
        return kiln.einsum(pattern, *x)


def _found(name: str) -> Any:
    """`__getattr__`, which type checkers do not see: layers are read when they are asked for."""
    if name not in __all__:
        no_attribute(__name__, name)
    return getattr(import_module("kiln.einops.layers"), name)


if not TYPE_CHECKING:
    __getattr__ = hidden(_found)
