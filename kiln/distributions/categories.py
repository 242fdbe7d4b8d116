"""Choices among n: as a number, as a one-hot vector, and how often each is made."""

from __future__ import annotations

import math
from typing import Any

from kiln import ops
from kiln._core import Size, Tensor
from kiln.autograd import no_grad
from kiln.distributions import constraints
from kiln.distributions.distribution import Distribution, Shape, WithProbs, checked
from kiln.distributions.utils import broadcast_all, broadcast_shapes, finfo
from kiln.ops.indexing.gathering import one_hot

__all__ = ["Categorical", "Multinomial", "OneHotCategorical", "OneHotCategoricalStraightThrough"]

_PROBS_OR_LOGITS: dict[str, constraints.Constraint] = {
    "probs": constraints.simplex,
    "logits": constraints.real_vector,
}


class Categorical(WithProbs):
    """A number from 0 to n - 1, by probabilities (..., n), or their logarithms, up to a factor.

    `probs` and `logits` are kept normalized: their sum, or that of their exponentials, is 1.

    >>> kiln.distributions.Categorical(kiln.tensor([1.0, 3.0])).log_prob(kiln.tensor(1))
    tensor(-0.2877)
    """

    arg_constraints = _PROBS_OR_LOGITS
    has_enumerate_support = True
    _is_binary = False

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        given = self._take(probs, logits)
        if given.ndim < 1:
            raise ValueError(f"`{self._given}` parameter must be at least one-dimensional.")
        is_probs = self._given == "probs"
        setattr(
            self, self._given, given / given.sum(-1, True) if is_probs else given - given.logsumexp(-1, True)
        )
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        return self._full(math.nan, self._param)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Tensor:
        return self._full(math.nan, self._param)

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        if math.prod(sample_shape) == 1:  # what happens first, each with its probability as the rate
            waiting = -ops.rand(tuple(self.probs.shape), dtype=self.probs.dtype).log()
            return (self.probs / waiting).argmax(-1).reshape(shape)
        rows = self.probs.reshape((-1, self._num_events))
        draws = ops.multinomial(rows, math.prod(sample_shape), True)
        return draws.T.reshape(shape)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        index, logits = value.long().unsqueeze(-1), self.logits
        if index.shape[:-1] != tuple(self._batch_shape):
            shape = broadcast_shapes(index.shape[:-1], self._batch_shape)
            logits, index = logits.expand((*shape, self._num_events)), index.expand((*shape, 1))
        return logits.gather(-1, index).squeeze(-1)

    def entropy(self) -> Tensor:
        logits = self.logits.clamp(min=finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(ops.arange(self._num_events), expand)


class ByCategorical(Distribution):
    """Distributions of vectors (n,) by a choice among n, which is their `_categorical`."""

    arg_constraints = _PROBS_OR_LOGITS

    def __init__(self, probs: Any, logits: Any, validate_args: bool | None) -> None:
        self._categorical = Categorical(probs, logits)
        super().__init__(
            self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args=validate_args
        )

    @property
    def probs(self) -> Tensor:
        """Probabilities whose sum is 1."""
        found: Tensor = self._categorical.probs
        return found

    @property
    def logits(self) -> Tensor:
        """Logarithms of the probabilities."""
        found: Tensor = self._categorical.logits
        return found

    @property
    def _param(self) -> Tensor:
        return self._categorical._param

    @property
    def param_shape(self) -> Size:
        """The shape of `probs`."""
        return self._categorical.param_shape


class OneHotCategorical(ByCategorical):
    """`Categorical` with one-hot vectors for its draws.

    >>> kiln.distributions.OneHotCategorical(kiln.tensor([0.0, 1.0])).sample()
    tensor([0., 1.])
    """

    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    def _one_hot(self, index: Tensor) -> Tensor:
        hot: Tensor = one_hot(index, self._event_shape[0])
        return hot.to(self._param.dtype)

    @property
    def mode(self) -> Tensor:
        return self._one_hot(self._categorical.mode)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self._one_hot(self._categorical.sample(sample_shape))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        (n,) = self._event_shape
        values = ops.eye(n, dtype=self._param.dtype).reshape((n, *[1] * len(self._batch_shape), n))
        return values.expand((n, *self._batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """The same, whose draws have the gradient of `probs` (Bengio et al., Estimating or propagating gradients
    through stochastic neurons, 2013).

    >>> kiln.distributions.OneHotCategoricalStraightThrough(kiln.tensor([0.0, 1.0])).rsample()
    tensor([0., 1.])
    """

    has_rsample = True

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(ByCategorical):
    """How often each of n is chosen in `total_count` choices, an int.

    >>> kiln.distributions.Multinomial(4, kiln.tensor([0.25, 0.75])).mean
    tensor([1., 3.])
    """

    def __init__(
        self,
        total_count: int = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)
        if self._validate_args and total_count < 0:
            raise ValueError(f"Expected parameter total_count of Multinomial to be >= 0, got {total_count}")

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        chosen = self._categorical.sample((self.total_count, *sample_shape)).movedim(0, -1)
        counts = ops.zeros(tuple(self._extended_shape(sample_shape)), dtype=self._param.dtype)
        return counts.scatter_add_(-1, chosen, ops.ones_like(chosen, dtype=counts.dtype))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, value)
        logits = ops.where((value == 0) & (logits == -math.inf), 0.0, logits)
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return ways + (logits * value).sum(-1)

    def entropy(self) -> Tensor:
        """Of the choices one by one, less the mean of log(n! / prod k!), each k binomial."""
        n, probs = self.total_count, self.probs
        k = ops.arange(1, n + 1, dtype=probs.dtype).reshape((-1, *[1] * probs.ndim))
        ways = math.lgamma(n + 1) - (k + 1).lgamma() - (n - k + 1).lgamma()
        chance = (ways + ops.xlogy(k, probs) + (n - k).xlogy(1 - probs)).exp()
        repeated = (chance * (k + 1).lgamma()).sum((0, -1))
        return n * self._categorical.entropy() - math.lgamma(n + 1) + repeated
