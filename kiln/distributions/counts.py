"""Distributions of whole numbers: one trial, several, and counts without a bound."""

from __future__ import annotations

import math
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.distributions import constraints
from kiln.distributions.distribution import ExponentialFamily, Shape, WithProbs, checked
from kiln.distributions.half_line import Gamma
from kiln.distributions.utils import broadcast_all, finfo

__all__ = ["Bernoulli", "Binomial", "Geometric", "NegativeBinomial", "Poisson"]


def binary_log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """value log p + (1 - value) log(1 - p) for log odds: `value` (logits) - log(1 + exp(logits))."""
    logits, value = broadcast_all(logits, value)
    return value * logits + ops.logsigmoid(-logits)


class Bernoulli(WithProbs, ExponentialFamily):
    """1 with probability `probs`, of log odds `logits`; else 0.

    >>> kiln.distributions.Bernoulli(kiln.tensor(0.25)).log_prob(kiln.tensor(1.0))
    tensor(-1.3863)
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.boolean
    has_enumerate_support = True
    _mean_carrier_measure = 0

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (given,) = broadcast_all(self._take(probs, logits))
        setattr(self, self._given, given)
        super().__init__(given.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        likely = (self.probs >= 0.5).to(self.probs.dtype)
        return ops.where(self.probs == 0.5, math.nan, likely)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return ops.bernoulli(self.probs.expand(tuple(self._extended_shape(sample_shape))))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return binary_log_prob(self.logits, value)

    def entropy(self) -> Tensor:
        return -binary_log_prob(self.logits, self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(ops.arange(2, dtype=self._param.dtype), expand)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.probs.logit(),)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        return natural_params[0].exp().log1p()


class _WithCount(WithProbs):
    """Distributions by a count, which may be another one along the batch, and the odds of one trial."""

    def __init__(self, total_count: Any, probs: Any, logits: Any, validate_args: bool | None) -> None:
        count, given = broadcast_all(total_count, self._take(probs, logits))
        self.total_count = count.to(given.dtype)
        setattr(self, self._given, given)
        super().__init__(given.shape, validate_args=validate_args)


class Binomial(_WithCount):
    """How many of `total_count` trials succeed, each with probability `probs`.

    >>> kiln.distributions.Binomial(3, kiln.tensor(0.5)).mean
    tensor(1.5000)
    """

    arg_constraints = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    has_enumerate_support = True

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(total_count, probs, logits, validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        return ops.binomial(self.total_count.expand(shape), self.probs.expand(shape))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        n, logits = self.total_count, self.logits
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * logits + n * ops.logsigmoid(-logits)

    def _one_count(self, what: str) -> int:
        count = int(self.total_count.max())
        if bool((self.total_count != count).any()):
            raise NotImplementedError(f"Inhomogeneous total count not supported by `{what}`.")
        return count

    def entropy(self) -> Tensor:
        self._one_count("entropy")
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        count = self._one_count("enumerate_support")
        return self._enumerated(ops.arange(1 + count, dtype=self._param.dtype), expand)


class NegativeBinomial(_WithCount):
    """How many trials succeed, each with probability `probs`, before `total_count` >= 0 have failed.

    >>> kiln.distributions.NegativeBinomial(3, kiln.tensor(0.5)).mean
    tensor(3.)
    """

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(total_count, probs, logits, validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.mean / (-self.logits).sigmoid()

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        rate = Gamma(self.total_count, (-self.logits).exp(), validate_args=False)
        return ops.poisson(rate.sample(sample_shape))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        n = self.total_count
        ways = (n + value).lgamma() - (value + 1).lgamma() - n.lgamma()
        ways = ops.where(n + value == 0, 0.0, ways)
        return n * ops.logsigmoid(-self.logits) + value * ops.logsigmoid(self.logits) + ways


class Geometric(WithProbs):
    """How many trials fail before the first succeeds, each with probability `probs` > 0.

    >>> kiln.distributions.Geometric(kiln.tensor(0.25)).mean
    tensor(3.)
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (given,) = broadcast_all(self._take(probs, logits))
        setattr(self, self._given, given)
        super().__init__(given.shape, validate_args=validate_args)
        if self._validate_args and self._given == "probs" and bool((given <= 0).any()):
            raise ValueError(
                f"Expected parameter probs ({type(given).__name__} of shape {tuple(given.shape)}) of "
                f"distribution {self!r} to be positive but found invalid values:\n{given[given <= 0]}"
            )

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return ops.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        u = self.probs.new_empty(tuple(self._extended_shape(sample_shape)))
        u.uniform_(finfo(u.dtype).tiny, 1)
        return (u.log() / (-self.probs).log1p()).floor()

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        value, probs = broadcast_all(value, self.probs)
        failing = ops.where((probs == 1) & (value == 0), 0.0, probs)
        return value * (-failing).log1p() + probs.log()

    def entropy(self) -> Tensor:
        return -binary_log_prob(self.logits, self.probs) / self.probs


class Poisson(ExponentialFamily):
    """How often what happens `rate` >= 0 times in the mean does.

    >>> kiln.distributions.Poisson(kiln.tensor(1.0)).log_prob(kiln.tensor(0.0))
    tensor(-1.)
    """

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate

    variance = mean

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return ops.poisson(self.rate.expand(tuple(self._extended_shape(sample_shape))))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        rate, value = broadcast_all(self.rate, value)
        return ops.xlogy(value, rate) - rate - (value + 1).lgamma()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.rate.log(),)

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        return natural_params[0].exp()
