"""The Kullback-Leibler divergence KL(p || q), the mean under p of log p(x) - log q(x), where it has a
formula.

Pairs of one family have formulas of their own. The others follow from

    KL(p || q) = -entropy(p) - mean under p of log q(x)

where log q needs few means of p: of x and x^2 (q normal, exponential), of log x (gamma, Pareto, beta), of
exp(-x) (Gumbel). So a family that knows its means (`mean_log`, `mean_exp`) has its divergence from each of
these q, and infinity where q gives no chance to what p may draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any

from kiln import linalg, ops
from kiln._core import Tensor
from kiln.distributions.categories import Categorical, OneHotCategorical
from kiln.distributions.combined import Independent, TransformedDistribution
from kiln.distributions.counts import Bernoulli, Binomial, Geometric, Poisson
from kiln.distributions.distribution import Distribution, ExponentialFamily
from kiln.distributions.half_line import Exponential, Gamma
from kiln.distributions.real_line import Cauchy, Gumbel, Laplace, Normal, Uniform
from kiln.distributions.transformed import HalfNormal, Pareto
from kiln.distributions.unit_interval import Beta, ContinuousBernoulli, Dirichlet
from kiln.distributions.utils import broadcast_shapes, euler_constant, sum_rightmost
from kiln.distributions.vectors import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    _batch_lowrank_logdet,
    _batch_lowrank_mahalanobis,
    _batch_mahalanobis,
    half_log_det,
)
from kiln.errors import warn
from kiln.table.callables import name_all as _name_all

__all__ = ["kl_divergence", "register_kl"]

Formula = Callable[[Any, Any], Tensor]

_REGISTERED: dict[tuple[type, type], Formula] = {}
_FOUND: dict[tuple[type, type], Formula | None] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Registers, as a decorator, a function of p and q for two classes and those derived from them.

    Of several that fit, the one of the most derived classes is taken; where p and q disagree on which that
    is, a RuntimeWarning says what to register. TypeError for what is not a class of distributions.

    >>> from kiln.distributions import Normal, kl_divergence, register_kl
    >>> class Mine(Normal): pass
    >>> @register_kl(Mine, Mine)
    ... def of_mine(p, q):
    ...     return p.loc * 0
    >>> kl_divergence(Mine(1.0, 1.0), Mine(0.0, 1.0))
    tensor(0.)
    """
    for name, kind in (("type_p", type_p), ("type_q", type_q)):
        if not isinstance(kind, type):  # a base of distributions need not be one: libraries have their own
            raise TypeError(f"Expected {name} to be a Distribution subclass but got {kind}")

    def decorator(formula: Formula) -> Formula:
        _REGISTERED[type_p, type_q] = formula
        _FOUND.clear()
        return formula

    return decorator


def _dispatch(type_p: type, type_q: type) -> Formula | None:
    """The formula of the nearest classes, those of p first; a warning if those of q first are others."""
    fitting = [(p, q) for p, q in _REGISTERED if issubclass(type_p, p) and issubclass(type_q, q)]
    if not fitting:
        return None
    far_p, far_q = type_p.__mro__.index, type_q.__mro__.index
    by_p = min(fitting, key=lambda pair: (far_p(pair[0]), far_q(pair[1])))
    by_q = min(fitting, key=lambda pair: (far_q(pair[1]), far_p(pair[0])))
    if _REGISTERED[by_p] is not _REGISTERED[by_q]:
        warn(
            f"Ambiguous kl_divergence({type_p.__name__}, {type_q.__name__}). Please register_kl("
            f"{by_p[0].__name__}, {by_q[1].__name__})",
            RuntimeWarning,
        )
    return _REGISTERED[by_p]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q), in nats, of the batch shape that both broadcast to. NotImplementedError without a formula.

    >>> from kiln.distributions import Normal, kl_divergence
    >>> kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0))
    tensor(0.5000)
    """
    kinds = type(p), type(q)
    if kinds not in _FOUND:
        _FOUND[kinds] = _dispatch(*kinds)
    formula = _FOUND[kinds]
    if formula is None:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {kinds[0].__name__} and q type {kinds[1].__name__}"
        )
    return formula(p, q)


def _infinite_if(bad: Tensor, value: Tensor) -> Tensor:
    return ops.where(bad, math.inf, value)


# -- pairs of one family ------------------------------------------------------------------------------------


@register_kl(ExponentialFamily, ExponentialFamily)
def _families(p: ExponentialFamily, q: ExponentialFamily) -> Tensor:
    """F(q) - F(p) - (q - p) . F'(p): the Bregman divergence of the log normalizer F."""
    if type(p) is not type(q):
        raise NotImplementedError(
            "The cross KL-divergence between different exponential families cannot be computed using Bregman "
            "divergences"
        )
    params, normalizer, means = p._mean_statistics()
    result = q._log_normalizer(*q._natural_params) - normalizer
    for ours, theirs, mean in zip(params, q._natural_params, means):
        term = (theirs - ours) * mean
        result = result - sum_rightmost(term, term.ndim - result.ndim)
    return result


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return distance / q.scale + ratio * (-distance / p.scale).exp() - ratio.log() - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    """Chyzak and Nielsen, A closed-form formula for the Kullback-Leibler divergence between Cauchy
    distributions, 2019.
    """
    sum_of_squares = (p.scale + q.scale).square() + (p.loc - q.loc).square()
    return sum_of_squares.log() - (4 * p.scale * q.scale).log()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc) / q.scale
    rest = ratio * euler_constant + ((1 + ratio).lgamma() - distance).exp()
    return distance - ratio.log() + rest - (1 + euler_constant)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    spread = ((q.high - q.low) / (p.high - p.low)).log()
    return _infinite_if((q.low > p.low) | (q.high < p.high), spread)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    shapes = b.lgamma() - a.lgamma() + (a - b) * a.digamma()
    return b * (p.rate / q.rate).log() + shapes + (q.rate - p.rate) * (a / p.rate)


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    result = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return _infinite_if(p.scale < q.scale, result)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    normalizers = total.lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    return normalizers + ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    of_p = p._log_norm() + (-p.probs).log1p()
    return p.mean * (p.logits - q.logits) + of_p - q._log_norm() - (-q.probs).log1p()


def _weighed(chance: Tensor, excess: Tensor, impossible: Tensor) -> Tensor:
    """chance * excess: infinite for what q finds impossible, 0 for what p does."""
    return ops.where(chance == 0, 0.0, _infinite_if(impossible, chance * excess))


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    heads = _weighed(p.probs, ops.softplus(-q.logits) - ops.softplus(-p.logits), q.probs == 0)
    return heads + _weighed(1 - p.probs, ops.softplus(q.logits) - ops.softplus(p.logits), q.probs == 1)


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    return _weighed(p.probs, p.logits - q.logits, q.probs == 0).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError(
            "KL between Binomials where q.total_count > p.total_count is not implemented"
        )
    each = p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    return _infinite_if(p.total_count > q.total_count, p.total_count * each)


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("KL of transformed distributions needs the same transforms and event shape")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("KL of Independent distributions needs as many reinterpreted dims")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


# -- multivariate normal ------------------------------------------------------------------------------------


def _of_normals(log_det: Tensor, trace: Tensor, distance: Tensor, n: int) -> Tensor:
    """By log det(q) / det(p), the trace of q^-1 p, and the distance of the means in terms of q."""
    return 0.5 * (log_det + trace + distance - n)


def _same_events(p: Distribution, q: Distribution, what: str) -> int:
    if p.event_shape != q.event_shape:
        raise ValueError(f"KL-divergence between two {what} with different event shapes cannot be computed")
    return p.event_shape[0]


def _squares(matrix: Tensor) -> Tensor:
    """The trace of A A'."""
    return matrix.square().sum((-2, -1))


def _solved(lower: Tensor, right: Tensor) -> Tensor:
    """lower^-1 right, batches broadcast."""
    solution: Tensor = linalg.solve_triangular(lower, right, upper=False)
    return solution


def _log_det(p: Any) -> Tensor:
    if isinstance(p, LowRankMultivariateNormal):
        return _batch_lowrank_logdet(*p._parts, p._capacitance_tril)
    return 2 * half_log_det(p._unbroadcasted_scale_tril)


def _roots(p: Any) -> list[Tensor]:
    """Matrices whose products A A' sum up to the covariance."""
    if isinstance(p, LowRankMultivariateNormal):
        return [p._unbroadcasted_cov_factor, p._unbroadcasted_cov_diag.sqrt().diag_embed()]
    return [p._unbroadcasted_scale_tril]


@register_kl(MultivariateNormal, MultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def _to_full(p: Any, q: MultivariateNormal) -> Tensor:
    n = _same_events(p, q, "Multivariate Normals")
    lower = q._unbroadcasted_scale_tril
    trace: Any = sum(_squares(_solved(lower, root)) for root in _roots(p))
    return _of_normals(_log_det(q) - _log_det(p), trace, _batch_mahalanobis(lower, q.loc - p.loc), n)


@register_kl(MultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _to_low_rank(p: Any, q: LowRankMultivariateNormal) -> Tensor:
    """q^-1 = D^-1 - A' A by Woodbury's identity, A = capacitance^-1 W' D^-1."""
    n = _same_events(p, q, "(Low Rank) Multivariate Normals")
    factor, diagonal = q._parts
    inner = _solved(q._capacitance_tril, factor.mT / diagonal.unsqueeze(-2))
    root_precision = diagonal.rsqrt().unsqueeze(-1)
    trace: Any = sum(_squares(root * root_precision) - _squares(inner @ root) for root in _roots(p))
    distance = _batch_lowrank_mahalanobis(factor, diagonal, q.loc - p.loc, q._capacitance_tril)
    return _of_normals(_log_det(q) - _log_det(p), trace, distance, n)


# -- pairs of different families: by means of p -------------------------------------------------------------


@singledispatch
def mean_log(p: Any) -> Tensor:
    """The mean of log x."""
    raise NotImplementedError(type(p).__name__)


@mean_log.register
def _(p: Exponential) -> Tensor:
    return -p.rate.log() - euler_constant


@mean_log.register
def _(p: Gamma) -> Tensor:
    return p.concentration.digamma() - p.rate.log()


@mean_log.register
def _(p: Beta) -> Tensor:
    return p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()


@mean_log.register
def _(p: Pareto) -> Tensor:
    return p.scale.log() + p.alpha.reciprocal()


@mean_log.register
def _(p: Uniform) -> Tensor:
    return _uniform_mean_log(p.low, p.high)


def _uniform_mean_log(low: Tensor, high: Tensor) -> Tensor:
    return (ops.xlogy(high, high) - ops.xlogy(low, low)) / (high - low) - 1


@singledispatch
def mean_exp(p: Any, loc: Tensor, scale: Tensor) -> Tensor:
    """The mean of exp(-(x - loc) / scale)."""
    raise NotImplementedError(type(p).__name__)


@mean_exp.register
def _(p: Exponential, loc: Tensor, scale: Tensor) -> Tensor:
    rate = p.rate * scale
    return (loc / scale).exp() * rate / (rate + 1)


@mean_exp.register
def _(p: Gamma, loc: Tensor, scale: Tensor) -> Tensor:
    return (loc / scale).exp() * (1 + (p.rate * scale).reciprocal()).pow(-p.concentration)


@mean_exp.register
def _(p: Normal, loc: Tensor, scale: Tensor) -> Tensor:
    return ((loc - p.loc) / scale + 0.5 * (p.scale / scale).square()).exp()


@mean_exp.register
def _(p: Uniform, loc: Tensor, scale: Tensor) -> Tensor:
    ends = ((loc - p.low) / scale).exp() - ((loc - p.high) / scale).exp()
    return ends * scale / (p.high - p.low)


def _to(type_q: type, *types_p: type) -> Callable[[Formula], Formula]:
    """Registers the mean of -log q under p, and bounds, for every p among `types_p`."""

    def decorator(cross: Formula) -> Formula:
        for type_p in types_p:
            register_kl(type_p, type_q)(lambda p, q: cross(p, q) - p.entropy())
        return cross

    return decorator


@_to(Normal, Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Laplace, Pareto, Uniform)
def _to_normal(p: Any, q: Normal) -> Tensor:
    square: Tensor = p.variance + (p.mean - q.loc).square()
    return q.scale.log() + 0.5 * math.log(2 * math.pi) + square / (2 * q.scale.square())


@_to(Exponential, Beta, ContinuousBernoulli, Gamma, Pareto, Uniform)
def _to_exponential(p: Any, q: Exponential) -> Tensor:
    return _below_zero(p, q.rate * p.mean - q.rate.log())


@_to(Gamma, Beta, Exponential, Pareto, Uniform)
def _to_gamma(p: Any, q: Gamma) -> Tensor:
    a = q.concentration
    return _below_zero(p, a.lgamma() - a * q.rate.log() - (a - 1) * mean_log(p) + q.rate * p.mean)


def _below_zero(p: Any, value: Tensor) -> Tensor:
    """Infinite where p draws numbers below 0, which of those asked only a uniform one can."""
    return _infinite_if(p.low < 0, value) if isinstance(p, Uniform) else value


@_to(Gumbel, Exponential, Gamma, Normal, Uniform)
def _to_gumbel(p: Any, q: Gumbel) -> Tensor:
    mean: Tensor = p.mean
    return q.scale.log() + (mean - q.loc) / q.scale + mean_exp(p, q.loc, q.scale)


@_to(ContinuousBernoulli, Beta, Uniform)
def _to_continuous_bernoulli(p: Any, q: ContinuousBernoulli) -> Tensor:
    cross = -p.mean * q.logits - (-q.probs).log1p() - q._log_norm()
    return _infinite_if((p.low < 0) | (p.high > 1), cross) if isinstance(p, Uniform) else cross


@_to(Beta, Uniform)
def _to_beta(p: Uniform, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    normalizer = a.lgamma() + b.lgamma() - (a + b).lgamma()
    tails = _uniform_mean_log(1 - p.high, 1 - p.low)
    return _infinite_if((p.low < 0) | (p.high > 1), normalizer - (a - 1) * mean_log(p) - (b - 1) * tails)


@_to(Uniform, Beta, ContinuousBernoulli)
def _to_uniform(p: Any, q: Uniform) -> Tensor:
    return _infinite_if((q.low > 0) | (q.high < 1), (q.high - q.low).log())


@_to(Pareto, Uniform)
def _to_pareto(p: Uniform, q: Pareto) -> Tensor:
    cross = (q.alpha + 1) * mean_log(p) - q.alpha.log() - q.alpha * q.scale.log()
    return _infinite_if(p.low < q.scale, cross)


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return q.rate - p.entropy() - p.probs * q.rate.log()


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    """By the mean of |x - q.loc|, of the folded normal distribution."""
    distance = p.loc - q.loc
    z = distance / p.scale
    spread = p.scale * (math.sqrt(2 / math.pi) * (z.square() * -0.5).exp())
    mean = spread + distance * (z * math.sqrt(0.5)).erf()
    return (2 * q.scale).log() + mean / q.scale - p.entropy()


def _infinity(p: Any, q: Any) -> Tensor:
    """p draws what q cannot."""
    shape = broadcast_shapes(p.batch_shape, q.batch_shape)
    return ops.full(shape, math.inf, dtype=p.mean.dtype)


for _p, _qs in {
    Beta: (Pareto,),
    ContinuousBernoulli: (Pareto,),
    Exponential: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gamma: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gumbel: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Laplace: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Normal: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Pareto: (Beta, ContinuousBernoulli, Uniform),
    Poisson: (Bernoulli, Binomial),
}.items():
    for _q in _qs:
        register_kl(_p, _q)(_infinity)


_name_all(globals(), __name__)
