"""Pools as layers: what is largest in each window, means, powers, to a given size, and max pools undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from kiln._core import Tensor
from kiln.nn import functional
from kiln.nn.module import Module

Numbers = Union[int, Sequence[int]]
Sizes = Union[int, None, Sequence[Union[int, None]]]


class _Pool(Module):
    """A module of windows over the last `dims` dims; `function` names what it computes."""

    dims = 0
    function = ""

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(functional, f"{self.function}{self.dims}d")(*args, **kwargs)

    def _each(self, value: Numbers) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, Sequence) else (value,) * self.dims


class _MaxPool(_Pool):
    """The largest element of each window; with `return_indices` also where it is."""

    function = "max_pool"

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        settings = (self.kernel_size, self.stride, self.padding, self.dilation)
        y: Tensor = self._run(
            input, *settings, ceil_mode=self.ceil_mode, return_indices=self.return_indices
        )  # or two of them, which unpack as a tensor does to checkers
        return y

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window of (n, c, l) or (c, l).

    >>> import kiln
    >>> kiln.nn.MaxPool1d(2)(kiln.tensor([[1.0, 3.0, 2.0, 0.0]]))
    tensor([[3., 2.]])
    """

    dims = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window of (n, c, h, w) or (c, h, w).

    >>> import kiln
    >>> kiln.nn.MaxPool2d(3, stride=2, padding=1)(kiln.zeros(2, 4, 8, 8)).shape
    kiln.Size([2, 4, 4, 4])
    """

    dims = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window of (n, c, d, h, w) or (c, d, h, w).

    >>> import kiln
    >>> kiln.nn.MaxPool3d(2)(kiln.zeros(2, 4, 4, 4)).shape
    kiln.Size([2, 2, 2, 2])
    """

    dims = 3


class _MaxUnpool(_Pool):
    """Elements back where a max pool found them, zeros elsewhere."""

    function = "max_unpool"

    def __init__(self, kernel_size: Numbers, stride: Numbers | None = None, padding: Numbers = 0) -> None:
        super().__init__()
        self.kernel_size = self._each(kernel_size)
        self.stride = self._each(kernel_size if stride is None else stride)
        self.padding = self._each(padding)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        settings = (self.kernel_size, self.stride, self.padding)
        y: Tensor = self._run(input, indices, *settings, output_size)
        return y

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """(n, c, l) or (c, l) laid out at indices of a MaxPool1d, zeros elsewhere.

    >>> import kiln
    >>> y, at = kiln.nn.MaxPool1d(2, return_indices=True)(kiln.tensor([[1.0, 3.0, 2.0, 0.0]]))
    >>> kiln.nn.MaxUnpool1d(2)(y, at)
    tensor([[0., 3., 2., 0.]])
    """

    dims = 1


class MaxUnpool2d(_MaxUnpool):
    """(n, c, h, w) or (c, h, w) laid out at indices of a MaxPool2d, zeros elsewhere."""

    dims = 2


class MaxUnpool3d(_MaxUnpool):
    """(n, c, d, h, w) or (c, d, h, w) laid out at indices of a MaxPool3d, zeros elsewhere."""

    dims = 3


class AvgPool1d(_Pool):
    """The mean of each window of (n, c, l) or (c, l).

    >>> import kiln
    >>> kiln.nn.AvgPool1d(2)(kiln.tensor([[1.0, 3.0, 2.0, 0.0]]))
    tensor([[2., 1.]])
    """

    dims = 1
    function = "avg_pool"

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = self._each(kernel_size)
        self.stride = self._each(kernel_size if stride is None else stride)
        self.padding = self._each(padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        settings = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        y: Tensor = self._run(input, *settings)
        return y

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_Pool):
    """The mean of each window, or its sum over `divisor_override`."""

    function = "avg_pool"

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        settings = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        y: Tensor = self._run(input, *settings, self.divisor_override)
        return y

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of each window of (n, c, h, w) or (c, h, w)."""

    dims = 2


class AvgPool3d(_AvgPool):
    """The mean of each window of (n, c, d, h, w) or (c, d, h, w)."""

    dims = 3


class _LPPool(_Pool):
    """(sum of x**norm_type)**(1 / norm_type) over each window."""

    function = "lp_pool"

    def __init__(
        self,
        norm_type: float,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        settings = (float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        y: Tensor = self._run(input, *settings)
        return y

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """The norm of order `norm_type` of each window of (n, c, l) or (c, l)."""

    dims = 1


class LPPool2d(_LPPool):
    """The norm of order `norm_type` of each window of (n, c, h, w) or (c, h, w)."""

    dims = 2


class LPPool3d(_LPPool):
    """The norm of order `norm_type` of each window of (n, c, d, h, w) or (c, d, h, w)."""

    dims = 3


class _AdaptiveAvgPool(_Pool):
    """Means of as many windows as `output_size` says; None: as many as elements."""

    function = "adaptive_avg_pool"

    def __init__(self, output_size: Sizes) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self._run(input, self.output_size)
        return y

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of `output_size` windows of (n, c, l) or (c, l)."""

    dims = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of `output_size` windows of (n, c, h, w) or (c, h, w).

    >>> import kiln
    >>> kiln.nn.AdaptiveAvgPool2d((1, None))(kiln.zeros(2, 4, 5, 6)).shape
    kiln.Size([2, 4, 1, 6])
    """

    dims = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of `output_size` windows of (n, c, d, h, w) or (c, d, h, w)."""

    dims = 3


class _AdaptiveMaxPool(_Pool):
    """The largest of as many windows as `output_size` says; with `return_indices` also where it is."""

    function = "adaptive_max_pool"

    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self._run(input, self.output_size, self.return_indices)
        return y

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest of `output_size` windows of (n, c, l) or (c, l)."""

    dims = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest of `output_size` windows of (n, c, h, w) or (c, h, w)."""

    dims = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest of `output_size` windows of (n, c, d, h, w) or (c, d, h, w)."""

    dims = 3


class _FractionalMaxPool(_Pool):
    """The largest of each of so many windows, which begin at random places."""

    function = "fractional_max_pool"
    _random_samples: Tensor | None

    def __init__(
        self,
        kernel_size: Numbers,
        output_size: Numbers | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.return_indices = self._each(kernel_size), return_indices
        if any(isinstance(k, int) and k <= 0 for k in self.kernel_size):
            raise ValueError(f"kernel_size must be greater than 0, but got {kernel_size}")
        self.register_buffer("_random_samples", _random_samples)
        if output_size is None and output_ratio is None:
            raise ValueError(
                f"{type(self).__name__} requires specifying either an output size, or a pooling ratio"
            )
        if output_size is not None and output_ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")
        self.output_size = None if output_size is None else self._each(output_size)
        self.output_ratio = None if output_ratio is None else self._ratios(output_ratio)

    def _ratios(self, value: float | Sequence[float]) -> tuple[float, ...]:
        ratios = tuple(value) if isinstance(value, Sequence) else (value,) * self.dims
        if not all(0 < r < 1 for r in ratios):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {value})")
        return ratios

    def forward(self, input: Tensor) -> Tensor:
        settings = (self.kernel_size, self.output_size, self.output_ratio, self.return_indices)
        y: Tensor = self._run(input, *settings, self._random_samples)
        return y


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest of each of `output_size` windows of (n, c, h, w) or (c, h, w), which begin at random
    places.

    `output_ratio` in place of `output_size`: fractions of h and w, in (0, 1). ValueError for both or neither.

    >>> import kiln
    >>> kiln.nn.FractionalMaxPool2d(2, output_ratio=0.5)(kiln.zeros(1, 3, 8, 10)).shape
    kiln.Size([1, 3, 4, 5])
    """

    dims = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest of each of `output_size` windows of (n, c, d, h, w) or (c, d, h, w), which begin at random
    places.

    `output_ratio` in place of `output_size`: fractions of the sizes, in (0, 1). ValueError for both or
    neither.
    """

    dims = 3
