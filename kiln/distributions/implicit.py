"""Gamma and Dirichlet draws as differentiable functions of their concentrations."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import Function
from kiln.autograd.function import once_differentiable
from kiln.distributions.utils import finfo
from kiln.ops.random.gammas import at_once, beta_slope, gamma_slope, log_standard_gamma


class _StandardGamma(Function):
    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        drawn: Tensor = log_standard_gamma(concentration).exp().to(concentration.dtype)
        drawn = drawn.clamp(min=finfo(drawn.dtype).tiny)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        concentration, drawn = ctx.saved_tensors
        slope: Tensor = at_once(gamma_slope, concentration, drawn)
        return g * slope.to(g.dtype)


class _Dirichlet(Function):
    """Draws of gammas over their sum, from logarithms: none is 0 for being small."""

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        drawn = ops.softmax(log_standard_gamma(concentration), -1).to(concentration.dtype)
        drawn = drawn.clamp(min=finfo(drawn.dtype).tiny)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        concentration, drawn = ctx.saved_tensors
        rest = concentration.sum(-1, True) - concentration
        slope: Tensor = at_once(beta_slope, drawn, concentration, rest)
        return slope.to(g.dtype) * (g - (drawn * g).sum(-1, True))  # type: ignore[no-any-return]


def standard_gamma(concentration: Tensor) -> Tensor:
    """Draws of gamma(concentration, 1), at least the dtype's smallest normal number."""
    drawn: Tensor = _StandardGamma.apply(concentration)
    return drawn


def dirichlet(concentration: Tensor) -> Tensor:
    """Draws of Dirichlet distributions, whose concentrations are the last dim."""
    drawn: Tensor = _Dirichlet.apply(concentration)
    return drawn
