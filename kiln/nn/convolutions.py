"""Convolution layers, and their transposed forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from kiln import ops
from kiln._core import Tensor
from kiln.nn import functional, init
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType

Numbers = Union[int, Sequence[int]]

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """weight and bias start uniform in +-1/sqrt(channels and taps of one output)."""

    dims = 0
    transposed = False
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Union[str, Numbers],
        output_padding: Numbers,
        dilation: Numbers,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Device | None,
        dtype: DType | None,
    ) -> None:
        super().__init__()
        self._check(in_channels, out_channels, groups, padding, stride, padding_mode)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.dilation = map(self._per_dim, (kernel_size, stride, dilation))
        self.padding = padding if isinstance(padding, str) else self._per_dim(padding)
        self.output_padding = self._per_dim(output_padding)
        self.groups, self.padding_mode = groups, padding_mode
        rows, columns = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (rows, columns // groups, *self.kernel_size)
        self.weight = Parameter(ops.empty(*shape, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(ops.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _check(self, inputs: int, outputs: int, groups: int, padding: Any, stride: Any, mode: str) -> None:
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if inputs % groups:
            raise ValueError("in_channels must be divisible by groups")
        if outputs % groups:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}")
            if padding == "same" and any(s != 1 for s in self._per_dim(stride)):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if self.transposed and mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        if mode not in _MODES:
            raise ValueError(f"padding_mode must be one of {set(_MODES)}, but got padding_mode='{mode}'")

    def _per_dim(self, value: Numbers) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, Sequence) else (value,) * self.dims

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            taps = self.weight.shape[1] * math.prod(self.kernel_size)
            bound = 1 / math.sqrt(taps) if taps else 0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}", f"kernel_size={self.kernel_size}"]
        parts.append(f"stride={self.stride}")
        nothing, one = (0,) * self.dims, (1,) * self.dims
        shown: list[tuple[str, Any, Any]] = [
            ("padding", self.padding, nothing),
            ("dilation", self.dilation, one),
            ("output_padding", self.output_padding, nothing),
            ("groups", self.groups, 1),
            ("bias", self.bias is not None, True),
            ("padding_mode", self.padding_mode, "zeros"),
        ]
        parts += [f"{name}={value}" for name, value, usual in shown if value != usual]
        return ", ".join(parts)


class _Conv(_ConvNd):
    """Windows of the input times the weight."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Union[str, Numbers] = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode,
            device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self._conv_forward(input, self.weight, self.bias)
        return y

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        """As a subclass with a weight of its own calls it."""
        conv = getattr(functional, f"conv{self.dims}d")
        if self.padding_mode == "zeros":
            return conv(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        input = functional.pad(input, self._widths(), self.padding_mode)
        return conv(input, weight, bias, self.stride, (0,) * self.dims, self.dilation, self.groups)

    def _widths(self) -> tuple[int, ...]:
        """The zeros in front of and behind each dim, the last dim first."""
        found = []
        for k in reversed(range(self.dims)):
            total = self.dilation[k] * (self.kernel_size[k] - 1) if self.padding == "same" else 0
            wide = 0 if isinstance(self.padding, str) else self.padding[k]
            found += [total // 2 + wide, total - total // 2 + wide]
        return tuple(found)


class _ConvTranspose(_ConvNd):
    """Every element spreads by the taps."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Numbers = 1,
        padding_mode: str = "zeros",
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        more = self.output_padding if output_size is None else self._more(input, output_size)
        conv = getattr(functional, f"conv_transpose{self.dims}d")
        y: Tensor = conv(
            input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation
        )
        return y

    def _more(self, input: Tensor, wanted: Sequence[int]) -> tuple[int, ...]:
        """The output padding that gives the sizes wanted. ValueError if none does."""
        sizes = tuple(input.shape[-self.dims :])
        wanted = tuple(wanted)[-self.dims :]
        if len(wanted) != self.dims:
            raise ValueError(f"ConvTranspose{self.dims}d: output_size must have {self.dims} elements")
        assert not isinstance(self.padding, str)
        least = [
            (n - 1) * s - 2 * p + r * (k - 1) + 1
            for n, s, p, r, k in zip(sizes, self.stride, self.padding, self.dilation, self.kernel_size)
        ]
        most = [n + s - 1 for n, s in zip(least, self.stride)]
        if any(not a <= n <= b for a, n, b in zip(least, wanted, most)):
            raise ValueError(
                f"requested an output size of {list(wanted)}, but valid sizes range from {least} to {most} "
                f"(for an input of {list(sizes)})"
            )
        return tuple(n - a for a, n in zip(least, wanted))


class Conv1d(_Conv):
    """[N, in, L] -> [N, out, L'], or without N; weight (out, in / groups, kernel), bias (out).

    >>> import kiln
    >>> kiln.nn.Conv1d(3, 2, 5, padding=2)(kiln.zeros(4, 3, 8)).shape
    kiln.Size([4, 2, 8])
    """

    dims = 1


class Conv2d(_Conv):
    """[N, in, H, W] -> [N, out, H', W'], or without N; weight (out, in / groups, *kernel), bias (out).

    >>> import kiln
    >>> kiln.nn.Conv2d(3, 2, 3, stride=2)(kiln.zeros(4, 3, 9, 9)).shape
    kiln.Size([4, 2, 4, 4])
    """

    dims = 2


class Conv3d(_Conv):
    """[N, in, D, H, W] -> [N, out, D', H', W'], or without N; weight (out, in / groups, *kernel), bias (out).

    >>> import kiln
    >>> kiln.nn.Conv3d(3, 2, 2)(kiln.zeros(3, 4, 4, 4)).shape
    kiln.Size([2, 3, 3, 3])
    """

    dims = 3


class ConvTranspose1d(_ConvTranspose):
    """[N, in, L] -> [N, out, L'], or without N; weight (in, out / groups, kernel), bias (out).

    >>> import kiln
    >>> kiln.nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1)(kiln.zeros(4, 3, 8)).shape
    kiln.Size([4, 2, 16])
    """

    dims = 1


class ConvTranspose2d(_ConvTranspose):
    """[N, in, H, W] -> [N, out, H', W'], or without N; weight (in, out / groups, *kernel), bias (out).

    >>> import kiln
    >>> kiln.nn.ConvTranspose2d(3, 2, 2, stride=2)(kiln.zeros(4, 3, 5, 5)).shape
    kiln.Size([4, 2, 10, 10])
    """

    dims = 2


class ConvTranspose3d(_ConvTranspose):
    """[N, in, D, H, W] -> [N, out, D', H', W'], or without N; weight (in, out / groups, *kernel), bias (out).

    >>> import kiln
    >>> kiln.nn.ConvTranspose3d(3, 2, 2)(kiln.zeros(3, 4, 4, 4)).shape
    kiln.Size([2, 5, 5, 5])
    """

    dims = 3
