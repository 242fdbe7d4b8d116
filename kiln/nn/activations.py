"""Activations as modules, each of a function of `kiln.nn.functional` and of the numbers it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Tensor
from kiln.errors import warn
from kiln.nn import functional
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType


class _Activation(Module):
    """A module that calls `_function` with its attributes named in `_settings`, and shows those in
    `_shown`.
    """

    _function: Callable[..., Any]
    _settings: tuple[str, ...] = ()
    _shown = "{}={}"

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = type(self)._function(input, *(getattr(self, name) for name in self._settings))
        return result

    def extra_repr(self) -> str:
        shown = [
            self._shown.format(name, getattr(self, name)) for name in self._settings if name != "inplace"
        ]
        return ", ".join([*shown, *(["inplace=True"] if getattr(self, "inplace", False) else [])])


class _InPlace(_Activation):
    """An activation without numbers that may write over its input."""

    _settings: tuple[str, ...] = ("inplace",)

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        function = type(self)._function  # as its class calls it, without a step for each setting
        result: Tensor = function(input, inplace=True) if self.inplace else function(input)
        return result


class ReLU(_InPlace):
    """max(x, 0), elementwise."""

    _function = functional.relu


class SiLU(_InPlace):
    """x * sigmoid(x), elementwise."""

    _function = functional.silu


class Mish(_InPlace):
    """x * tanh(softplus(x)), elementwise."""

    _function = functional.mish


class SELU(_InPlace):
    """The scaled exponential unit, elementwise."""

    _function = functional.selu


class Hardswish(_InPlace):
    """x * hardsigmoid(x), elementwise."""

    _function = functional.hardswish

    def extra_repr(self) -> str:
        return ""


class Hardsigmoid(_InPlace):
    """(x + 3) / 6 within [0, 1], elementwise."""

    _function = functional.hardsigmoid

    def extra_repr(self) -> str:
        return ""


class LeakyReLU(_Activation):
    """x where it is positive, else negative_slope * x."""

    _function = functional.leaky_relu
    _settings = ("negative_slope", "inplace")

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace


class _Exponential(_Activation):
    """An exponential below 0 that comes to -alpha."""

    _settings = ("alpha", "inplace")

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace


class ELU(_Exponential):
    """x where it is positive, else alpha * (exp(x) - 1)."""

    _function = functional.elu


class CELU(_Exponential):
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""

    _function = functional.celu


class Hardtanh(_Activation):
    """x within [min_val, max_val], elementwise; `min_value` and `max_value` are old names of the two."""

    _function = functional.hardtanh
    _settings = ("min_val", "max_val", "inplace")

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__()
        if min_value is not None:
            warn("keyword argument `min_value` is deprecated and renamed to `min_val`", FutureWarning)
            min_val = min_value
        if max_value is not None:
            warn("keyword argument `max_value` is deprecated and renamed to `max_val`", FutureWarning)
            max_val = max_value
        if not max_val > min_val:
            raise AssertionError(f"Hardtanh: expected max_val above min_val, got {max_val} and {min_val}")
        self.min_val = min_val
        self.max_val = max_val
        self.inplace = inplace


class ReLU6(Hardtanh):
    """x within [0, 6], elementwise."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Threshold(_Activation):
    """x where it is above the threshold, else value."""

    _function = functional.threshold
    _settings = ("threshold", "value", "inplace")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace


class RReLU(_Activation):
    """x where it is positive, else x times a slope: one from [lower, upper) in training, else their mean."""

    _function = functional.rrelu
    _settings = ("lower", "upper", "inplace")

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = functional.rrelu(input, self.lower, self.upper, self.training, self.inplace)
        return result


class Softplus(_Activation):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold."""

    _function = functional.softplus
    _settings = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold


class _Shrink(_Activation):
    """A function of how far to shrink."""

    _settings = ("lambd",)
    _shown = "{1}"

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd


class Softshrink(_Shrink):
    """x moved by lambd towards 0, where it stays."""

    _function = functional.softshrink


class Hardshrink(_Shrink):
    """0 where x lies within [-lambd, lambd], else x."""

    _function = functional.hardshrink


class Tanhshrink(_Activation):
    """x - tanh(x), elementwise."""

    _function = functional.tanhshrink


class Softsign(_Activation):
    """x / (1 + |x|), elementwise."""

    _function = functional.softsign


class LogSigmoid(_Activation):
    """The logarithm of sigmoid, elementwise."""

    _function = functional.logsigmoid


class Tanh(_Activation):
    """The hyperbolic tangent, elementwise."""

    _function = ops.tanh


class Sigmoid(_Activation):
    """1 / (1 + exp(-x)), elementwise."""

    _function = ops.sigmoid


class GELU(_Activation):
    """x times the normal distribution function at x; approximate="tanh" takes the tanh formula."""

    _function = functional.gelu
    _settings = ("approximate",)
    _shown = "{}={!r}"

    def forward(self, input: Tensor) -> Tensor:
        return functional.gelu(input, approximate=self.approximate)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate


class _AlongDim(_Activation):
    """A function along a dim."""

    _settings = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class _SharesAlongDim(_AlongDim):
    """One whose warning of a missing dim tells the line of the layer's caller."""

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = type(self)._function(input, self.dim, _stacklevel=5)
        return result


class Softmax(_SharesAlongDim):
    """exp(x) over its sum along `dim`."""

    _function = functional.softmax


class LogSoftmax(_SharesAlongDim):
    """The logarithm of softmax along `dim`."""

    _function = functional.log_softmax


class Softmin(_SharesAlongDim):
    """softmax(-x) along `dim`."""

    _function = functional.softmin


class Softmax2d(Module):
    """softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return functional.softmax(input, -3, _stacklevel=5)


class GLU(_AlongDim):
    """The first half of x along `dim` times the sigmoid of the second."""

    _function = functional.glu

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class PReLU(Module):
    """x where it is positive, else weight * x; the weights, one or one per channel, are learned."""

    weight: Parameter

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(ops.empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every weight to `init`."""
        self.weight.data.fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = functional.prelu(input, self.weight)
        return result

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
