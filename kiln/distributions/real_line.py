"""Distributions of one real number, mostly by a location and a scale."""

from __future__ import annotations

import math
from typing import Any

from kiln import ops, special
from kiln._core import Tensor, float64
from kiln.autograd import no_grad
from kiln.distributions import constraints
from kiln.distributions.distribution import Distribution, ExponentialFamily, Shape, checked
from kiln.distributions.half_line import Chi2
from kiln.distributions.utils import _standard_normal, broadcast_all, euler_constant, finfo, lazy_property

__all__ = ["Cauchy", "Gumbel", "Laplace", "Normal", "StudentT", "Uniform", "VonMises"]


class LocationScale(Distribution):
    """loc + scale * noise, for noise of a distribution that has no parameters."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    def _standard(self, value: Tensor) -> Tensor:
        """The noise that gives `value`."""
        return (value - self.loc) / self.scale

    def _noise(self, sample_shape: Shape) -> Tensor:
        """A tensor of a sample's shape, to be filled."""
        return self.loc.new_empty(tuple(self._extended_shape(sample_shape)))


class Normal(LocationScale, ExponentialFamily):
    """The normal distribution of mean `loc` and standard deviation `scale` > 0.

    >>> kiln.distributions.Normal(0.0, 1.0).log_prob(kiln.tensor(0.0))
    tensor(-0.9189)
    """

    _mean_carrier_measure = 0

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        noise = _standard_normal(self._extended_shape(sample_shape), self.loc.dtype)
        return self.loc + noise * self.scale

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        z = self._standard(value)
        return z * z * -0.5 - self.scale.log() - 0.5 * math.log(2 * math.pi)

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        return (1 + (self._standard(value) * math.sqrt(0.5)).erf()) * 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (value * 2 - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        return self.scale.log() + (0.5 + 0.5 * math.log(2 * math.pi))

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        precision = self.scale.square().reciprocal()
        return self.loc * precision, precision * -0.5

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        return x.square() / y * -0.25 + (math.pi / -y).log() * 0.5


class Laplace(LocationScale):
    """The density exp(-|x - loc| / scale) / (2 scale).

    >>> kiln.distributions.Laplace(0.0, 1.0).log_prob(kiln.tensor(1.0))
    tensor(-1.6931)
    """

    @property
    def stddev(self) -> Tensor:
        return self.scale * math.sqrt(2)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * 2

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._centered_icdf(self._noise(sample_shape).uniform_(finfo(self.loc.dtype).eps - 1, 1))

    def _centered_icdf(self, u: Tensor) -> Tensor:
        """The quantile of (1 + u) / 2, for u between -1 and 1."""
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return -(self.scale * 2).log() - (value - self.loc).abs() / self.scale

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        distance = value - self.loc
        return 0.5 - distance.sign() * (-distance.abs() / self.scale).expm1() * 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return self._centered_icdf((value - 0.5) * 2)

    def entropy(self) -> Tensor:
        return (self.scale * 2).log() + 1


class Cauchy(LocationScale):
    """The quotient of two normal numbers, moved and scaled: it has no mean.

    >>> kiln.distributions.Cauchy(0.0, 1.0).cdf(kiln.tensor(1.0))
    tensor(0.7500)
    """

    @property
    def mean(self) -> Tensor:
        return self._full(math.nan, self.loc)

    @property
    def variance(self) -> Tensor:
        return self._full(math.inf, self.loc)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.loc + self._noise(sample_shape).cauchy_() * self.scale

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - self._standard(value).square().log1p()

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        return self._standard(value).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return ((value - 0.5) * math.pi).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return self.scale.log() + math.log(4 * math.pi)


class StudentT(LocationScale):
    """Student's t of `df` > 0 degrees of freedom, moved and scaled.

    >>> kiln.distributions.StudentT(3.0).variance
    tensor(3.)
    """

    arg_constraints = {"df": constraints.positive, **LocationScale.arg_constraints}

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, loc, scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df, validate_args=False)
        super().__init__(loc, scale, validate_args)

    @property
    def mean(self) -> Tensor:
        return ops.where(self.df > 1, self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        df = ops.where(self.df > 2, self.df, math.inf)
        finite = self.scale.square() * self.df / (df - 2)
        return ops.where(self.df > 2, finite, ops.where(self.df > 1, math.inf, math.nan))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        noise = _standard_normal(self._extended_shape(sample_shape), self.loc.dtype)
        return self.loc + self.scale * noise * (self._chi2.rsample(sample_shape) / self.df).rsqrt()

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        z = self._standard(value)
        half = (self.df + 1) * 0.5
        normalizer = self.scale.log() + self._log_beta() + self.df.log() * 0.5
        return -half * (z.square() / self.df).log1p() - normalizer

    def _log_beta(self) -> Tensor:
        """log B(df / 2, 1 / 2)."""
        half = self.df * 0.5
        return half.lgamma() + 0.5 * math.log(math.pi) - (half + 0.5).lgamma()

    def entropy(self) -> Tensor:
        half = self.df * 0.5
        spread = (half + 0.5) * ((half + 0.5).digamma() - half.digamma())
        return self.scale.log() + spread + self.df.log() * 0.5 + self._log_beta()


class Gumbel(LocationScale):
    """The limit of the largest of many numbers: density exp(-z - exp(-z)) / scale, z = (x - loc) / scale.

    >>> kiln.distributions.Gumbel(0.0, 1.0).mean
    tensor(0.5772)
    """

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * euler_constant

    @property
    def stddev(self) -> Tensor:
        return self.scale * (math.pi / math.sqrt(6))

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.loc - self.scale * self._noise(sample_shape).exponential_().log()

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        z = -self._standard(value)
        return z - z.exp() - self.scale.log()

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        return (-(-self._standard(value)).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + euler_constant)


class Uniform(Distribution):
    """Every number of [low, high) alike.

    >>> kiln.distributions.Uniform(0.0, 2.0).cdf(kiln.tensor(0.5))
    tensor(0.2500)
    """

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        return {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)}

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        return self.high * math.nan

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / math.sqrt(12)

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low).square() / 12

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = ops.rand(tuple(self._extended_shape(sample_shape)), dtype=self.low.dtype)
        return self.low + u * (self.high - self.low)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()


class VonMises(Distribution):
    """An angle from -pi to pi around `loc`: density exp(concentration cos(x - loc)) / (2 pi
    I0(concentration)).

    Draws by Best and Fisher, Efficient simulation of the von Mises distribution (1979).

    >>> kiln.distributions.VonMises(0.0, 1.0).mean
    tensor(0.)
    """

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    mode = mean

    @lazy_property
    def variance(self) -> Tensor:
        """The circular variance, 1 - I1 / I0."""
        ratio: Tensor = special.i1e(self.concentration) / special.i0e(self.concentration)
        return 1 - ratio

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        kappa = self.concentration.to(float64)
        tau = (kappa.square() * 4 + 1).sqrt() + 1
        rho = (tau - (tau * 2).sqrt()) / (kappa * 2)
        r = ops.where(kappa < 1e-5, kappa.reciprocal() + kappa, (rho.square() + 1) / (rho * 2))
        angle = ops.full(shape, math.nan, dtype=float64)
        drawable = r.isfinite()
        while bool((missing := angle.isnan() & drawable).any()):
            turn, height, sign = ops.rand((3, *shape), dtype=float64).unbind()
            z = (turn * math.pi).cos()
            f = (r * z + 1) / (r + z)
            c = kappa * (r - f)
            kept = (c * (2 - c) > height) | ((c / height).log() + 1 >= c)
            angle = ops.where(missing & kept, (sign - 0.5).sign() * f.acos(), angle)
        return ((angle + math.pi + self.loc) % (2 * math.pi) - math.pi).to(self.loc.dtype)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        kappa = self.concentration
        log_i0 = special.i0e(kappa).log() + kappa
        return kappa * (value - self.loc).cos() - math.log(2 * math.pi) - log_i0
