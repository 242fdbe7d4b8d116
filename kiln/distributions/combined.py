"""Distributions made of others: dims read as events, transformed draws, mixtures."""

from __future__ import annotations

import math
from typing import Any

from kiln._core import Size, Tensor
from kiln.autograd import no_grad
from kiln.distributions import constraints
from kiln.distributions.categories import Categorical
from kiln.distributions.distribution import Distribution, Shape, checked
from kiln.distributions.transforms import ComposeTransform, Transform
from kiln.distributions.utils import sum_rightmost

__all__ = ["Independent", "MixtureSameFamily", "TransformedDistribution"]


class Independent(Distribution):
    """A distribution whose last `reinterpreted_batch_ndims` batch dims are dims of the event.

    >>> normal = kiln.distributions.Normal(kiln.zeros(3), kiln.ones(3))
    >>> kiln.distributions.Independent(normal, 1).log_prob(kiln.zeros(3))
    tensor(-2.7568)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        shape = base_distribution.batch_shape
        if reinterpreted_batch_ndims > len(shape):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {len(shape)}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        cut = len(shape) - reinterpreted_batch_ndims
        event_shape = (*shape[cut:], *base_distribution.event_shape)
        super().__init__(shape[:cut], event_shape, validate_args=validate_args)

    def _part_shape(self, name: str, batch_shape: Shape) -> Shape:
        return (*batch_shape, *self.event_shape[: self.reinterpreted_batch_ndims])

    @property
    def has_rsample(self) -> Any:
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> Any:
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        base, count = self.base_dist.support, self.reinterpreted_batch_ndims
        return constraints.independent(base, count) if count else base

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """What becomes of draws of `base_distribution` when `transforms` are applied, one after another.

    The density is the base's over the volume that the transforms stretch: log p(y) = log p(x) - log|dy/dx|.
    Batch dims that a transform works along, or makes, are dims of the event.

    >>> from kiln.distributions import ExpTransform, Normal, TransformedDistribution
    >>> TransformedDistribution(Normal(0.0, 1.0), [ExpTransform()]).log_prob(kiln.tensor(1.0))
    tensor(-0.9189)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | list[Transform],
        validate_args: bool | None = None,
    ) -> None:
        if isinstance(transforms, Transform):
            transforms = [transforms]
        elif not isinstance(transforms, list):
            raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
        if not all(isinstance(t, Transform) for t in transforms):
            raise ValueError("transforms must be a Transform or a list of Transforms")
        self.transforms = transforms
        composed = ComposeTransform(transforms)
        domain_dim, codomain_dim = composed.domain.event_dim, composed.codomain.event_dim
        base_dim = len(base_distribution.event_shape)
        base_shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        if len(base_shape) < domain_dim:
            raise ValueError(
                f"base_distribution needs to have shape with size at least {domain_dim}, but got "
                f"{Size(base_shape)}."
            )
        shape = tuple(composed.forward_shape(base_shape))
        wanted = tuple(composed.inverse_shape(shape))
        if wanted != base_shape:  # parameters of transforms have dims that the base has not
            base_distribution = base_distribution.expand(wanted[: len(wanted) - base_dim])
        if domain_dim > base_dim:
            base_distribution = Independent(base_distribution, domain_dim - base_dim)
        self.base_dist = base_distribution
        cut = len(shape) - max(codomain_dim, base_dim + codomain_dim - domain_dim)
        super().__init__(shape[:cut], shape[cut:], validate_args=validate_args)

    def _part_shape(self, name: str, batch_shape: Shape) -> Shape:
        base_dim = len(self.base_dist.event_shape)
        inner = tuple(ComposeTransform(self.transforms).inverse_shape((*batch_shape, *self.event_shape)))
        return inner[: len(inner) - base_dim]

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        more = len(self.event_shape) - found.event_dim
        return constraints.independent(found, more) if more > 0 else found

    @property
    def has_rsample(self) -> Any:
        return self.base_dist.has_rsample

    def _forward(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._forward(self.base_dist.rsample(sample_shape))

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        event_dim = len(self.event_shape)
        stretch: Tensor | float = 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(value)
            domain_dim = transform.domain.event_dim
            event_dim += domain_dim - transform.codomain.event_dim
            own = transform.log_abs_det_jacobian(x, value)
            stretch = stretch + sum_rightmost(own, event_dim - domain_dim)
            value = x
        density = self.base_dist.log_prob(value)
        return sum_rightmost(density, event_dim - len(self.base_dist.event_shape)) - stretch

    def _monotone(self, share: Tensor) -> Tensor:
        """A share of all draws, from the other end where the transforms turn them round."""
        sign: Any = math.prod(t.sign for t in self.transforms)
        return share if isinstance(sign, int) and sign == 1 else sign * (share - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._monotone(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._forward(self.base_dist.icdf(self._monotone(value)))


class MixtureSameFamily(Distribution):
    """A mixture: each draw is one of a component, chosen by `mixture_distribution`.

    The components are the last batch dim of `component_distribution`.

    >>> from kiln.distributions import Categorical, MixtureSameFamily, Normal
    >>> which = Categorical(kiln.tensor([0.25, 0.75]))
    >>> MixtureSameFamily(which, Normal(kiln.tensor([0.0, 4.0]), kiln.ones(2))).mean
    tensor(3.)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(
                "The Mixture distribution needs to be an instance of torch.distributions.Categorical"
            )
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "The Component distribution needs to be an instance of torch.distributions.Distribution"
            )
        outer, (*inner, count) = mixture_distribution.batch_shape, component_distribution.batch_shape
        if any(1 != a != b != 1 for a, b in zip(reversed(outer), reversed(inner))):
            raise ValueError(
                f"`mixture_distribution.batch_shape` ({outer}) is not compatible with "
                f"`component_distribution.batch_shape`({Size(inner)})"
            )
        weights = mixture_distribution.param_shape[-1]
        if weights != count:
            raise ValueError(
                f"`mixture_distribution component` ({weights}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({count})"
            )
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        super().__init__(inner, component_distribution.event_shape, validate_args=validate_args)

    def _part_shape(self, name: str, batch_shape: Shape) -> Shape:
        if name == "_mixture_distribution":
            return batch_shape
        return (*batch_shape, self._component_distribution.batch_shape[-1])

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        """The distribution of the component's number."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component_distribution

    @property
    def _dim(self) -> int:
        """That of the components, among those of one event."""
        return -1 - len(self._event_shape)

    def _weighted(self, values: Tensor) -> Tensor:
        """The mean over components of values, one for each of them."""
        probs = self.mixture_distribution.probs
        probs = probs.reshape((*probs.shape, *[1] * len(self._event_shape)))
        return (probs * values).sum(self._dim)

    @property
    def mean(self) -> Tensor:
        return self._weighted(self.component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        means = self.component_distribution.mean
        spread = (means - self.mean.unsqueeze(self._dim)).square()
        return self._weighted(self.component_distribution.variance + spread)

    def cdf(self, value: Tensor) -> Tensor:
        shares = self.component_distribution.cdf(value.unsqueeze(self._dim))
        return (shares * self.mixture_distribution.probs).sum(-1)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        densities = self.component_distribution.log_prob(value.unsqueeze(self._dim))
        return (densities + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        draws = self.component_distribution.sample(sample_shape)
        which = self.mixture_distribution.expand(self._batch_shape).sample(sample_shape)
        which = which.reshape((*which.shape, *[1] * -self._dim))
        which = which.expand((*which.shape[: self._dim], 1, *self._event_shape))
        return draws.gather(self._dim, which).squeeze(self._dim)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self.mixture_distribution},\n  {self.component_distribution})"
