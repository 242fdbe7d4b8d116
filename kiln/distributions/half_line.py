"""Distributions of one positive number."""

from __future__ import annotations

import math
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.distributions import constraints
from kiln.distributions.distribution import Distribution, ExponentialFamily, Shape, checked
from kiln.distributions.implicit import standard_gamma
from kiln.distributions.utils import broadcast_all, finfo

__all__ = ["Chi2", "Exponential", "FisherSnedecor", "Gamma", "GeneralizedPareto"]


class Exponential(ExponentialFamily):
    """The density rate exp(-rate x): the time until what happens `rate` times in a unit of time.

    >>> kiln.distributions.Exponential(2.0).mean
    tensor(0.5000)
    """

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    stddev = mean

    @property
    def mode(self) -> Tensor:
        return ops.zeros_like(self.rate)

    @property
    def variance(self) -> Tensor:
        return self.rate.pow(-2)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.rate.new_empty(tuple(self._extended_shape(sample_shape))).exponential_() / self.rate

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * value

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        return -(-self.rate * value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (-self.rate,)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        return -(-natural_params[0]).log()


class Gamma(ExponentialFamily):
    """The density rate^a x^(a - 1) exp(-rate x) / gamma(a), a = `concentration`.

    >>> kiln.distributions.Gamma(2.0, 1.0).log_prob(kiln.tensor(1.0))
    tensor(-1.)
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        drawn = standard_gamma(self.concentration.expand(tuple(self._extended_shape(sample_shape))))
        return (drawn / self.rate).clamp(min=finfo(drawn.dtype).tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        value = ops.as_tensor(value, dtype=self.rate.dtype)
        if self._validate_args:
            self._validate_sample(value)
        a, rate = self.concentration, self.rate
        return ops.xlogy(a, rate) + ops.xlogy(a - 1, value) - rate * value - a.lgamma()

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        share: Tensor = ops.igamma(self.concentration, self.rate * value)
        return share

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return self.concentration - 1, -self.rate

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        return (x + 1).lgamma() - (x + 1) * (-y).log()


class Chi2(Gamma):
    """The sum of `df` squares of standard normal numbers.

    >>> kiln.distributions.Chi2(3.0).mean
    tensor(3.)
    """

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        super().__init__(df * 0.5, 0.5, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        new = super().expand(batch_shape, _instance)
        new.concentration, new.rate = (x.expand(tuple(batch_shape)) for x in (self.concentration, self.rate))
        return new

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self.concentration * 2


class FisherSnedecor(Distribution):
    """The quotient of two chi2 numbers, each over its degrees of freedom `df1` and `df2`.

    >>> kiln.distributions.FisherSnedecor(1.0, 4.0).mean
    tensor(2.)
    """

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._gamma1 = Gamma(self.df1 * 0.5, self.df1, validate_args=False)
        self._gamma2 = Gamma(self.df2 * 0.5, self.df2, validate_args=False)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return ops.where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Tensor:
        mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return ops.where(self.df1 > 2, mode, math.nan)

    @property
    def variance(self) -> Tensor:
        n, m = self.df1, self.df2
        variance = 2 * m.square() * (n + m - 2) / (n * (m - 2).square() * (m - 4))
        return ops.where(m > 4, variance, math.nan)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        quotient = self._gamma1.rsample(sample_shape) / self._gamma2.rsample(sample_shape)
        return quotient.clamp(min=finfo(quotient.dtype).tiny)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        a, b, ratio = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        normalizer = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return normalizer + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()


class GeneralizedPareto(Distribution):
    """What exceeds a high threshold `loc`, by `scale` and a shape, `concentration`.

    The share exp(-z) is above loc + scale z where the concentration is 0, else (1 + concentration z)^(-1 /
    concentration); a negative one bounds the support. Near 0 (1e-8) the concentration counts as 0.

    >>> kiln.distributions.GeneralizedPareto(0.0, 1.0, 0.5).mean
    tensor(2.)
    """

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        end = self.loc - self.scale / self.concentration
        return constraints.interval(self.loc, ops.where(self.concentration < 0, end, math.inf))

    def _shape(self) -> tuple[Tensor, Tensor]:
        """Where the concentration counts as 0, and it with a 1 there."""
        zero = self.concentration.abs() <= 1e-8
        return zero, ops.where(zero, 1.0, self.concentration)

    @property
    def mean(self) -> Tensor:
        finite = self.concentration < 1
        mean = self.loc + self.scale / (1 - ops.where(finite, self.concentration, 0.5))
        return ops.where(finite, mean, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = self.concentration < 0.5
        shape = ops.where(finite, self.concentration, 0.25)
        variance = self.scale.square() / ((1 - shape).square() * (1 - 2 * shape))
        return ops.where(finite, variance, math.nan)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.icdf(ops.rand(tuple(self._extended_shape(sample_shape)), dtype=self.loc.dtype))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        zero, shape = self._shape()
        power = shape.reciprocal() + 1
        fall = ops.where(power == 0, 0.0, power * (shape * z).log1p())
        return -self.scale.log() - ops.where(zero, z, fall)

    @checked
    def log_survival_function(self, value: Tensor) -> Tensor:
        """The logarithm of the share above `value`."""
        z = (value - self.loc) / self.scale
        zero, shape = self._shape()
        return ops.where(zero, -z, -(shape * z).log1p() / shape)

    def log_cdf(self, value: Tensor) -> Tensor:
        """The logarithm of the share below `value`."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return self.log_cdf(value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        zero, shape = self._shape()
        log_above = (-value).log1p()
        z = ops.where(zero, -log_above, (-shape * log_above).expm1() / shape)
        return self.loc + self.scale * z

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1
