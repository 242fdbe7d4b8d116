"""Transforms of numbers, element by element."""

from __future__ import annotations

import math
from typing import Any

from kiln import ops
from kiln._core import Size, Tensor
from kiln.distributions import constraints
from kiln.distributions.distribution import Distribution
from kiln.distributions.transforms.base import Shape, Transform, widened
from kiln.distributions.utils import broadcast_all, broadcast_shapes, finfo, lazy_property, sum_rightmost


class Plain(Transform):
    """A rising map of numbers without parameters: two of a class are equal."""

    domain: Any = constraints.real
    bijective = True
    sign: Any = +1

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = object.__hash__


class ExpTransform(Plain):
    """y = exp(x).

    >>> kiln.distributions.ExpTransform()(kiln.tensor(0.0))
    tensor(1.)
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


def inside(y: Tensor) -> Tensor:
    """Probabilities that are neither 0 nor 1."""
    info = finfo(y.dtype)
    return y.clamp(info.tiny, 1.0 - info.eps)


class SigmoidTransform(Plain):
    """y = 1 / (1 + exp(-x)), never 0 nor 1.

    >>> kiln.distributions.SigmoidTransform()(kiln.tensor(0.0))
    tensor(0.5000)
    """

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        return inside(x.sigmoid())

    def _inverse(self, y: Tensor) -> Tensor:
        y = inside(y)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        stretch: Tensor = -ops.softplus(-x) - ops.softplus(x)
        return stretch


class SoftplusTransform(Plain):
    """y = log(1 + exp(x)).

    >>> kiln.distributions.SoftplusTransform()(kiln.tensor(0.0))
    tensor(0.6931)
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        y: Tensor = ops.softplus(x)
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        stretch: Tensor = -ops.softplus(-x)
        return stretch


class TanhTransform(Plain):
    """y = tanh(x).

    >>> kiln.distributions.TanhTransform()(kiln.tensor(0.0))
    tensor(0.)
    """

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # log(1 - tanh(x)^2), without its cancellation
        stretch: Tensor = 2 * (math.log(2.0) - x - ops.softplus(-2 * x))
        return stretch


class AbsTransform(Plain):
    """y = |x|; its inverse is y itself.

    >>> kiln.distributions.AbsTransform()(kiln.tensor(-1.0))
    tensor(1.)
    """

    codomain = constraints.positive
    bijective = False

    @property
    def sign(self) -> Any:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


def _with_parameters(shape: Shape, *parameters: Any) -> Size:
    """A shape broadcast with those of parameters that are tensors."""
    held = [tuple(p.shape) for p in parameters if isinstance(p, Tensor)]
    return Size(broadcast_shapes(tuple(shape), *held))


class PowerTransform(Transform):
    """y = x^exponent, of positive x.

    >>> kiln.distributions.PowerTransform(kiln.tensor(2.0))(kiln.tensor(3.0))
    tensor(9.)
    """

    domain = constraints.positive
    codomain = constraints.positive
    bijective = True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        (self.exponent,) = broadcast_all(exponent)

    def _with(self, cache_size: int) -> Transform:
        return PowerTransform(self.exponent, cache_size)

    @lazy_property
    def sign(self) -> Any:
        return self.exponent.sign()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool((self.exponent == other.exponent).all())

    __hash__ = object.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(self.exponent.reciprocal())

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Shape) -> Shape:
        return _with_parameters(shape, self.exponent)

    inverse_shape = forward_shape


def _same(a: Any, b: Any) -> bool:
    """Whether parameters, numbers or tensors, are equal."""
    return bool(ops.as_tensor(a == b).all())


class AffineTransform(Transform):
    """y = loc + scale x, of numbers or tensors; the last `event_dim` dims are an event's.

    >>> kiln.distributions.AffineTransform(1.0, 2.0)(kiln.tensor(3.0))
    tensor(7.)
    """

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc: Tensor | float = loc
        self.scale: Tensor | float = scale
        self._event_dim = event_dim

    def _with(self, cache_size: int) -> Transform:
        return AffineTransform(self.loc, self.scale, self._event_dim, cache_size)

    @property
    def event_dim(self) -> int:
        return self._event_dim

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return widened(constraints.real, self._event_dim)

    codomain = domain

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AffineTransform)
            and _same(self.loc, other.loc)
            and _same(self.scale, other.scale)
        )

    __hash__ = object.__hash__

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            stretch = self.scale.abs().log().expand(tuple(x.shape))
        else:
            stretch = ops.full_like(x, math.log(abs(self.scale)))
        return sum_rightmost(stretch, self._event_dim)

    def forward_shape(self, shape: Shape) -> Shape:
        return _with_parameters(shape, self.loc, self.scale)

    inverse_shape = forward_shape


class CumulativeDistributionTransform(Transform):
    """The distribution function of a distribution of numbers: its draws become uniform.

    >>> from kiln.distributions import CumulativeDistributionTransform, Normal
    >>> CumulativeDistributionTransform(Normal(0.0, 1.0))(kiln.tensor(0.0))
    tensor(0.5000)
    """

    bijective = True
    codomain = constraints.unit_interval
    sign: Any = +1

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    def _with(self, cache_size: int) -> Transform:
        return CumulativeDistributionTransform(self.distribution, cache_size)

    @property
    def domain(self) -> Any:
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)
