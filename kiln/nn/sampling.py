"""Layers that lay images out anew: windows as columns and back, other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from kiln._core import Tensor
from kiln.nn import functional
from kiln.nn.module import Module

Numbers = Union[int, Sequence[int]]
Factors = Union[float, Sequence[float]]


class Unfold(Module):
    """Windows of (n, c, h, w) or (c, h, w) as columns (n, c * taps, windows).

    >>> import kiln
    >>> kiln.nn.Unfold((1, 2))(kiln.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[1., 2.],
            [2., 3.]])
    """

    def __init__(
        self, kernel_size: Numbers, dilation: Numbers = 1, padding: Numbers = 0, stride: Numbers = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return functional.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Module):
    """Columns (n, c * taps, windows), or without n, added up where their windows are in an image.

    >>> import kiln
    >>> kiln.nn.Fold((1, 3), (1, 2))(kiln.ones(2, 2))
    tensor([[[1., 2., 1.]]])
    """

    def __init__(
        self,
        output_size: Numbers,
        kernel_size: Numbers,
        dilation: Numbers = 1,
        padding: Numbers = 0,
        stride: Numbers = 1,
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        settings = (self.kernel_size, self.dilation, self.padding, self.stride)
        y: Tensor = functional.fold(input, self.output_size, *settings)
        return y

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )


class Upsample(Module):
    """(n, c, ...) with its last dims of `size`, or `scale_factor` times as large; see `interpolate`.

    >>> import kiln
    >>> kiln.nn.Upsample(scale_factor=2)(kiln.tensor([[[1.0, 3.0]]]))
    tensor([[[1., 1., 3., 3.]]])
    """

    def __init__(
        self,
        size: Numbers | None = None,
        scale_factor: Factors | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.size = size
        self.scale_factor: Any = (
            tuple(map(float, scale_factor))
            if isinstance(scale_factor, Sequence) and not isinstance(scale_factor, bytes)
            else float(scale_factor)
            if scale_factor
            else None
        )
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )
        return y

    def extra_repr(self) -> str:
        given = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{given}, mode='{self.mode}'"


class UpsamplingNearest2d(Upsample):
    """(n, c, h, w) of another size, each element the nearest one."""

    def __init__(self, size: Numbers | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """(n, c, h, w) of another size by straight lines between elements, the corners where they are."""

    def __init__(self, size: Numbers | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
