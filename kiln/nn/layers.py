"""Layers: parameters with a shape, an initialisation and a function of `kiln.nn.functional`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Tensor
from kiln.nn import init
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType


class Identity(Module):
    """Gives back its input; takes and ignores any constructor arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """x @ weight.T + bias: (..., in_features) -> (..., out_features).

    weight (out, in) and bias (out) start uniform in +-1/sqrt(in).

    >>> import kiln
    >>> kiln.nn.Linear(3, 2)(kiln.zeros(5, 3)).shape
    kiln.Size([5, 2])
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(ops.empty(out_features, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(ops.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = ops.linear(input, self.weight, self.bias)
        return y

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class Bilinear(Module):
    """y[o] = x1 @ W[o] @ x2 + b[o]: inputs (..., in1), (..., in2); W of (out, in1, in2).

    Weight and bias start uniform in +-1/sqrt(in1). ValueError for an in1 that is not positive.

    >>> import kiln
    >>> kiln.nn.Bilinear(2, 3, 4)(kiln.ones(5, 2), kiln.ones(5, 3)).shape
    kiln.Size([5, 4])
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got (in1_features={in1_features})")
        super().__init__()
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        weight = ops.empty(out_features, in1_features, in2_features, device=device, dtype=dtype)
        self.weight = Parameter(weight)
        start = Parameter(ops.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", start)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        bound = 1 / math.sqrt(self.in1_features)
        for param in self.parameters():
            init.uniform_(param, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        y: Tensor = ops.bilinear(input1, input2, self.weight, self.bias)
        return y

    def extra_repr(self) -> str:
        sizes = f"in1_features={self.in1_features}, in2_features={self.in2_features}"
        return f"{sizes}, out_features={self.out_features}, bias={self.bias is not None}"


class Flatten(Module):
    """Joins dims start_dim to end_dim into one: (N, C, H, W) -> (N, C*H*W) by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = input.flatten(self.start_dim, self.end_dim)
        return y

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
