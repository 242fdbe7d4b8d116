"""Layers that move or add elements: padding by every mode, shuffles of channels, Unflatten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from kiln._core import Tensor
from kiln.nn import functional
from kiln.nn.module import Module

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unflatten",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    """Pads the last `dims` dims by `padding`: one width, or a pair for each, the last dim first."""

    dims = 1
    mode = "constant"

    def __init__(self, padding: Union[int, Sequence[int]]) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.dims) if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.pad(input, self.padding, self.mode)
        return y

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """Pads by one value."""

    def __init__(self, padding: Union[int, Sequence[int]], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.pad(input, self.padding, "constant", self.value)
        return y

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _CircularPad(_Pad):
    """Pads by the other end."""

    mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (self.dims + 1, self.dims + 2):
            raise ValueError(f"expected {self.dims + 1}D or {self.dims + 2}D input (got {input.ndim}D input)")
        return super().forward(input)


class ConstantPad1d(_ConstantPad):
    """One value at the edges of the last dim."""

    dims = 1


class ConstantPad2d(_ConstantPad):
    """One value at the edges of the last two dims."""

    dims = 2


class ConstantPad3d(_ConstantPad):
    """One value at the edges of the last three dims."""

    dims = 3


class _ZeroPad(_ConstantPad):
    """Pads by zeros."""

    def __init__(self, padding: Union[int, Sequence[int]]) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad1d(_ZeroPad, ConstantPad1d):
    """Zeros at the edges of the last dim."""


class ZeroPad2d(_ZeroPad, ConstantPad2d):
    """Zeros at the edges of the last two dims."""


class ZeroPad3d(_ZeroPad, ConstantPad3d):
    """Zeros at the edges of the last three dims."""


class ReflectionPad1d(_Pad):
    """A mirror at the edges of the last dim.

    >>> import kiln
    >>> kiln.nn.ReflectionPad1d(1)(kiln.tensor([[1.0, 2.0, 3.0]]))
    tensor([[2., 1., 2., 3., 2.]])
    """

    mode = "reflect"


class ReflectionPad2d(_Pad):
    """A mirror at the edges of the last two dims."""

    dims = 2
    mode = "reflect"


class ReflectionPad3d(_Pad):
    """A mirror at the edges of the last three dims."""

    dims = 3
    mode = "reflect"


class ReplicationPad1d(_Pad):
    """The edges repeated around the last dim."""

    mode = "replicate"


class ReplicationPad2d(_Pad):
    """The edges repeated around the last two dims."""

    dims = 2
    mode = "replicate"


class ReplicationPad3d(_Pad):
    """The edges repeated around the last three dims."""

    dims = 3
    mode = "replicate"


class CircularPad1d(_CircularPad):
    """The other end beyond each edge of the last dim."""

    dims = 1


class CircularPad2d(_CircularPad):
    """The other end beyond each edge of the last two dims."""

    dims = 2


class CircularPad3d(_CircularPad):
    """The other end beyond each edge of the last three dims."""

    dims = 3


class PixelShuffle(Module):
    """[..., c * r * r, h, w] as [..., c, h * r, w * r] for r = upscale_factor."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.pixel_shuffle(input, self.upscale_factor)
        return y

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """[..., c, h * r, w * r] as [..., c * r * r, h, w] for r = downscale_factor."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.pixel_unshuffle(input, self.downscale_factor)
        return y

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels (dim 1), taken in turn from each of `groups` groups."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.channel_shuffle(input, self.groups)
        return y

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unflatten(Module):
    """Dim `dim` as several of the given sizes, one of which may be -1."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = input.unflatten(self.dim, self.unflattened_size)
        return y

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
