"""Distributions of transformed draws that have names."""

from __future__ import annotations

import math
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.distributions import constraints
from kiln.distributions.combined import TransformedDistribution
from kiln.distributions.distribution import Distribution, checked
from kiln.distributions.half_line import Exponential, Gamma
from kiln.distributions.real_line import Cauchy, Normal, Uniform
from kiln.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ExpTransform,
    PowerTransform,
    StickBreakingTransform,
)
from kiln.distributions.utils import broadcast_all, euler_constant

__all__ = [
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "Kumaraswamy",
    "LogNormal",
    "LogisticNormal",
    "Pareto",
    "Weibull",
]


class of_base:
    """A parameter that the base distribution has."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.__doc__ = name, text

    def __get__(self, instance: Any, owner: Any = None) -> Tensor:
        found: Any = self if instance is None else getattr(instance.base_dist, self.name)
        return found  # type: ignore[no-any-return]


class _Half(TransformedDistribution):
    """The absolute value of a number distributed evenly around 0."""

    arg_constraints: dict[str, constraints.Constraint] = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    scale = of_base("scale", "The scale of the number that may be negative.")

    def __init__(self, base: Distribution, validate_args: bool | None) -> None:
        super().__init__(base, AbsTransform(), validate_args=validate_args)

    @property
    def mode(self) -> Tensor:
        return ops.zeros_like(self.scale)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        density = self.base_dist.log_prob(value) + math.log(2)
        return ops.where(value >= 0, density, -math.inf)

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    """The absolute value of a normal number of mean 0 and standard deviation `scale`.

    >>> kiln.distributions.HalfNormal(1.0).mean
    tensor(0.7979)
    """

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0, scale, validate_args=False), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """The absolute value of a Cauchy number around 0.

    >>> kiln.distributions.HalfCauchy(1.0).cdf(kiln.tensor(1.0))
    tensor(0.5000)
    """

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0, scale, validate_args=False), validate_args)

    @property
    def mean(self) -> Tensor:
        return self._full(math.inf, self.scale)

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(ops.as_tensor(value, dtype=self.scale.dtype))


class LogNormal(TransformedDistribution):
    """exp(x) for a normal x of mean `loc` and standard deviation `scale`.

    >>> kiln.distributions.LogNormal(0.0, 1.0).mean
    tensor(1.6487)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive
    has_rsample = True
    loc = of_base("loc", "The mean of the logarithm.")
    scale = of_base("scale", "The standard deviation of the logarithm.")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.square()
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class LogisticNormal(TransformedDistribution):
    """A point (n + 1,) of the simplex, by breaking a stick as a normal vector (n,) says.

    >>> kiln.distributions.LogisticNormal(kiln.zeros(2), kiln.ones(2)).sample().shape
    kiln.Size([3])
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        if not base.batch_shape:
            base = base.expand([1])
        super().__init__(base, StickBreakingTransform(), validate_args=validate_args)

    @property
    def loc(self) -> Tensor:
        """The means of the normal vector."""
        return self.base_dist.base_dist.loc  # type: ignore[attr-defined, no-any-return]

    @property
    def scale(self) -> Tensor:
        """Its standard deviations."""
        return self.base_dist.base_dist.scale  # type: ignore[attr-defined, no-any-return]


class InverseGamma(TransformedDistribution):
    """1 / x for x of Gamma(concentration, rate).

    >>> kiln.distributions.InverseGamma(3.0, 1.0).mean
    tensor(0.5000)
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    has_rsample = True
    concentration = of_base("concentration", "The concentration of 1 / x.")
    rate = of_base("rate", "The rate of 1 / x.")

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        power = PowerTransform(base.rate.new_full((), -1.0))
        super().__init__(base, power, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return ops.where(a > 1, self.rate / (a - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        return ops.where(a > 2, self.rate.square() / ((a - 1).square() * (a - 2)), math.inf)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class Pareto(TransformedDistribution):
    """The density alpha scale^alpha / x^(alpha + 1) above `scale`.

    >>> kiln.distributions.Pareto(1.0, 2.0).mean
    tensor(2.)
    """

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        stretch: list[Any] = [ExpTransform(), AffineTransform(0, self.scale)]
        super().__init__(base, stretch, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = self.alpha.clamp(min=2)
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + self.alpha.reciprocal() + 1


class Weibull(TransformedDistribution):
    """scale x^(1 / concentration) for x of Exponential(1): lifetimes of parts that age, or do not.

    >>> kiln.distributions.Weibull(2.0, 1.0).mean
    tensor(2.)
    """

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        base = Exponential(ops.ones_like(self.scale), validate_args=validate_args)
        stretch: list[Any] = [PowerTransform(self.concentration_reciprocal), AffineTransform(0, self.scale)]
        super().__init__(base, stretch, validate_args=validate_args)

    @property
    def concentration_reciprocal(self) -> Tensor:
        """1 / concentration."""
        return self.concentration.reciprocal()

    def _moment(self, power: int) -> Tensor:
        """The mean of (x / scale)^power."""
        return (1 + power * self.concentration_reciprocal).lgamma().exp()

    @property
    def mean(self) -> Tensor:
        return self.scale * self._moment(1)

    @property
    def mode(self) -> Tensor:
        return self.scale * (1 - self.concentration_reciprocal).pow(self.concentration_reciprocal)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (self._moment(2) - self._moment(1).square())

    def entropy(self) -> Tensor:
        inverse = self.concentration_reciprocal
        return euler_constant * (1 - inverse) + (self.scale * inverse).log() + 1


class Kumaraswamy(TransformedDistribution):
    """(1 - u^(1 / b))^(1 / a) for uniform u; a = `concentration1`, b = `concentration0`. It resembles
    Beta(a, b).

    >>> kiln.distributions.Kumaraswamy(1.0, 1.0).mean
    tensor(0.5000)
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = a, b = broadcast_all(concentration1, concentration0)
        base = Uniform(ops.zeros_like(a), ops.ones_like(a), validate_args=validate_args)
        bend: list[Any] = [
            PowerTransform(b.reciprocal()),
            AffineTransform(1.0, -1.0),
            PowerTransform(a.reciprocal()),
        ]
        super().__init__(base, bend, validate_args=validate_args)

    def _moment(self, power: int) -> Tensor:
        """The mean of x^power."""
        more, b = 1 + power / self.concentration1, self.concentration0
        return b * (more.lgamma() + b.lgamma() - (more + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        log_mode = (-b).log1p() / b - (-b * a).log1p()
        return ops.where((a < 1) | (b < 1), math.nan, log_mode).exp()

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1).square()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + euler_constant
        return 1 - b.reciprocal() + (1 - a.reciprocal()) * harmonic - a.log() - b.log()
