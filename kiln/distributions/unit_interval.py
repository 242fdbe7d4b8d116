"""Distributions of a number between 0 and 1, and of several whose sum is 1."""

from __future__ import annotations

import math
from typing import Any

from kiln import ops
from kiln._core import Size, Tensor
from kiln.distributions import constraints
from kiln.distributions.categories import ByCategorical
from kiln.distributions.combined import TransformedDistribution
from kiln.distributions.counts import binary_log_prob
from kiln.distributions.distribution import ExponentialFamily, Shape, WithProbs, checked
from kiln.distributions.implicit import dirichlet
from kiln.distributions.transformed import of_base
from kiln.distributions.transforms import ExpTransform, SigmoidTransform
from kiln.distributions.utils import broadcast_all, clamp_probs, lazy_property, logits_to_probs

__all__ = [
    "Beta",
    "ContinuousBernoulli",
    "Dirichlet",
    "ExpRelaxedCategorical",
    "LogitRelaxedBernoulli",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
]


class Dirichlet(ExponentialFamily):
    """Numbers (n,) of sum 1, of density prod x_k^(a_k - 1) times gamma(sum a) / prod gamma(a_k).

    Draws have the gradient of implicit reparameterization (`kiln.distributions.implicit`).

    >>> kiln.distributions.Dirichlet(kiln.tensor([1.0, 3.0])).mean
    tensor([0.2500, 0.7500])
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        above = (self.concentration - 1).clamp(min=0)
        mode = above / above.sum(-1, True)
        first = ops.arange(mode.shape[-1]) == 0  # where no element is above 1, every corner is a mode
        return ops.where((self.concentration < 1).all(-1, True), first.to(mode.dtype), mode)

    @property
    def variance(self) -> Tensor:
        a, total = self.concentration, self.concentration.sum(-1, True)
        return a * (total - a) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return dirichlet(self.concentration.expand(tuple(self._extended_shape(sample_shape))))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return ops.xlogy(a - 1, value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, total, n = self.concentration, self.concentration.sum(-1), self._event_shape[0]
        each = (a - 1) * a.digamma()
        return a.lgamma().sum(-1) - total.lgamma() - (n - total) * total.digamma() - each.sum(-1)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration,)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        (x,) = natural_params
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()


class Beta(ExponentialFamily):
    """The density x^(a - 1) (1 - x)^(b - 1) / B(a, b); a = `concentration1`, b = `concentration0`.

    >>> kiln.distributions.Beta(1.0, 3.0).mean
    tensor(0.2500)
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        both = ops.stack(broadcast_all(concentration1, concentration0), -1)
        self._dirichlet = Dirichlet(both, validate_args=validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    @property
    def concentration1(self) -> Tensor:
        """The power of x, and 1."""
        return self._dirichlet.concentration.select(-1, 0)

    @property
    def concentration0(self) -> Tensor:
        """The power of 1 - x, and 1."""
        return self._dirichlet.concentration.select(-1, 1)

    @property
    def mean(self) -> Tensor:
        return self._dirichlet.mean.select(-1, 0)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode.select(-1, 0)

    @property
    def variance(self) -> Tensor:
        return self._dirichlet.variance.select(-1, 0)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return self._dirichlet.log_prob(ops.stack([value, 1 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return self.concentration1, self.concentration0

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        return x.lgamma() + y.lgamma() - (x + y).lgamma()


class ContinuousBernoulli(WithProbs, ExponentialFamily):
    """The density C probs^x (1 - probs)^(1 - x) on [0, 1] (Loaiza-Ganem and Cunningham, The continuous
    Bernoulli, 2019).

    Where `probs` lies between `lims`, near 1/2, its formulas cancel, and Taylor series take their place.

    >>> kiln.distributions.ContinuousBernoulli(kiln.tensor(0.5)).mean
    tensor(0.5000)
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(
        self,
        probs: Any = None,
        logits: Any = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        (given,) = broadcast_all(self._take(probs, logits))
        if self._given == "probs":
            if validate_args is not None and not constraints.unit_interval.check(given).all():
                raise ValueError("The parameter probs has invalid values")
            given = clamp_probs(given)
        setattr(self, self._given, given)
        self._lims = lims
        super().__init__(given.shape, validate_args=validate_args)

    @lazy_property
    def probs(self) -> Tensor:
        return clamp_probs(logits_to_probs(self.logits, is_binary=True))

    def _cut(self) -> tuple[Tensor, Tensor]:
        """Where the formulas hold, and `probs` with a safe number elsewhere."""
        low, high = self._lims
        outside = (self.probs <= low) | (self.probs > high)
        return outside, ops.where(outside, self.probs, low)

    def _log_norm(self) -> Tensor:
        """log C."""
        outside, cut = self._cut()
        norm = ((-cut).log1p() - cut.log()).abs().log() - (1 - 2 * cut).abs().log()
        x = (self.probs - 0.5).square()
        return ops.where(outside, norm, math.log(2.0) + (4 / 3 + 104 / 45 * x) * x)

    @property
    def mean(self) -> Tensor:
        outside, cut = self._cut()
        mean = cut / (2 * cut - 1) + 1 / ((-cut).log1p() - cut.log())
        x = self.probs - 0.5
        return ops.where(outside, mean, 0.5 + (1 / 3 + 16 / 45 * x.square()) * x)

    @property
    def variance(self) -> Tensor:
        outside, cut = self._cut()
        variance = cut * (cut - 1) / (1 - 2 * cut).square() + 1 / ((-cut).log1p() - cut.log()).square()
        x = (self.probs - 0.5).square()
        return ops.where(outside, variance, 1 / 12 - (1 / 15 - 128 / 945 * x) * x)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.icdf(ops.rand(tuple(self._extended_shape(sample_shape)), dtype=self._param.dtype))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return binary_log_prob(self.logits, value) + self._log_norm()

    @checked
    def cdf(self, value: Tensor) -> Tensor:
        outside, cut = self._cut()
        share = (cut.pow(value) * (1 - cut).pow(1 - value) + cut - 1) / (2 * cut - 1)
        share = ops.where(outside, share, value)
        return ops.where(value <= 0, 0.0, ops.where(value >= 1, 1.0, share))

    def icdf(self, value: Tensor) -> Tensor:
        outside, cut = self._cut()
        low = (-cut).log1p()
        return ops.where(outside, ((value * (2 * cut - 1) - cut).log1p() - low) / (cut.log() - low), value)

    def entropy(self) -> Tensor:
        tails, heads = (-self.probs).log1p(), self.probs.log()
        return self.mean * (tails - heads) - self._log_norm() - tails

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.logits,)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        (x,) = natural_params
        low, high = self._lims
        outside = (x <= low - 0.5) | (x > high - 0.5)
        cut = ops.where(outside, x, low - 0.5)
        norm = cut.expm1().abs().log() - cut.abs().log()
        return ops.where(outside, norm, x * 0.5 + x.square() / 24 - x.pow(4) / 2880)


class LogitRelaxedBernoulli(WithProbs):
    """The log odds of a `RelaxedBernoulli`: (logits + logistic noise) / temperature.

    >>> kiln.distributions.LogitRelaxedBernoulli(kiln.tensor(1.0), 0.5).sample().shape
    kiln.Size([])
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.temperature: Tensor = temperature
        (given,) = broadcast_all(self._take(probs, logits))
        setattr(self, self._given, given)
        super().__init__(given.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        probs = clamp_probs(self.probs.expand(shape))
        u = clamp_probs(ops.rand(shape, dtype=probs.dtype))
        return (u.logit() + probs.logit()) / self.temperature

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, value)
        difference = logits - value * self.temperature
        return ops.as_tensor(self.temperature).log() + difference - 2 * difference.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """A number between 0 and 1 that tends to a Bernoulli draw as `temperature` > 0 falls, with a gradient
    (Maddison, Mnih and Teh, The concrete distribution, 2017; Jang, Gu and Poole, 2017).

    >>> kiln.distributions.RelaxedBernoulli(kiln.tensor(0.5), kiln.tensor([0.1, 0.9])).sample().shape
    kiln.Size([2])
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True
    temperature = of_base("temperature", "How far draws are from 0 and 1.")
    probs = of_base("probs", "The probability of 1.")
    logits = of_base("logits", "Its log odds.")

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits)
        super().__init__(base, SigmoidTransform(), validate_args=validate_args)


class ExpRelaxedCategorical(ByCategorical):
    """The logarithm of a `RelaxedOneHotCategorical`: softmax of (logits + Gumbel noise) / temperature.

    >>> kiln.distributions.ExpRelaxedCategorical(kiln.tensor(1.0), kiln.ones(3)).sample().shape
    kiln.Size([3])
    """

    support = constraints.real_vector  # that the sum of exponentials is 1 is not checked
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.temperature: Tensor = temperature
        super().__init__(probs, logits, validate_args)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        u = clamp_probs(ops.rand(shape, dtype=self.logits.dtype))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, True)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        n = self._event_shape[0]
        logits, value = broadcast_all(self.logits, value)
        score = logits - value * self.temperature
        score = (score - score.logsumexp(-1, True)).sum(-1)
        return score + math.lgamma(n) + ops.as_tensor(self.temperature).log() * (n - 1)


class RelaxedOneHotCategorical(TransformedDistribution):
    """A point of the simplex that tends to a one-hot draw as `temperature` > 0 falls, with a gradient
    (Maddison, Mnih and Teh, 2017; Jang, Gu and Poole, Categorical reparameterization with Gumbel-softmax,
    2017).

    >>> kiln.distributions.RelaxedOneHotCategorical(kiln.tensor(0.5), kiln.ones(3)).sample().shape
    kiln.Size([3])
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex
    has_rsample = True
    temperature = of_base("temperature", "How far draws are from one-hot.")
    probs = of_base("probs", "Probabilities whose sum is 1.")
    logits = of_base("logits", "Their logarithms.")

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    @property
    def param_shape(self) -> Size:
        """The shape of `probs`."""
        found: Size = self.base_dist.param_shape  # type: ignore[attr-defined]
        return found
