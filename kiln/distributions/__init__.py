"""Probability distributions, under the names of torch.distributions. The README says how they are built."""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module

from kiln.distributions import constraints, transforms
from kiln.distributions.categories import (
    Categorical,
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
)
from kiln.distributions.combined import Independent, MixtureSameFamily, TransformedDistribution
from kiln.distributions.constraint_registry import biject_to, transform_to
from kiln.distributions.counts import Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson
from kiln.distributions.distribution import Distribution, ExponentialFamily
from kiln.distributions.half_line import Chi2, Exponential, FisherSnedecor, Gamma, GeneralizedPareto
from kiln.distributions.kl import kl_divergence, register_kl
from kiln.distributions.matrices import LKJCholesky, Wishart
from kiln.distributions.real_line import Cauchy, Gumbel, Laplace, Normal, StudentT, Uniform, VonMises
from kiln.distributions.transformed import (
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    LogisticNormal,
    LogNormal,
    Pareto,
    Weibull,
)
from kiln.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    CatTransform,
    ComposeTransform,
    CorrCholeskyTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StackTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)
from kiln.distributions.unit_interval import (
    Beta,
    ContinuousBernoulli,
    Dirichlet,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
)
from kiln.distributions.unit_interval import (
    ExpRelaxedCategorical as ExpRelaxedCategorical,
)
from kiln.distributions.unit_interval import (
    LogitRelaxedBernoulli as LogitRelaxedBernoulli,
)
from kiln.distributions.vectors import LowRankMultivariateNormal, MultivariateNormal
from kiln.table.callables import name_all as _name_all
from kiln.table.callables import name_methods as _name_methods

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli", "Dirichlet",
    "Distribution", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma", "GeneralizedPareto",
    "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy",
    "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "MixtureSameFamily",
    "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Pareto", "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT",
    "Poisson", "Uniform", "VonMises", "Weibull", "Wishart", "TransformedDistribution", "biject_to",
    "kl_divergence", "register_kl", "transform_to", "AbsTransform", "AffineTransform", "CatTransform",
    "ComposeTransform", "CorrCholeskyTransform", "CumulativeDistributionTransform", "ExpTransform",
    "IndependentTransform", "LowerCholeskyTransform", "PositiveDefiniteTransform", "PowerTransform",
    "ReshapeTransform", "SigmoidTransform", "SoftplusTransform", "TanhTransform", "SoftmaxTransform",
    "StackTransform", "StickBreakingTransform", "Transform", "constraints", "identity_transform",
    "transforms",
]  # fmt: skip

# PyTorch's files, each another module's here: `distributions.normal.Normal`
_FILES = {
    "categories": "categorical multinomial one_hot_categorical",
    "combined": "independent mixture_same_family transformed_distribution",
    "counts": "bernoulli binomial geometric negative_binomial poisson",
    "distribution": "exp_family",
    "half_line": "chi2 exponential fishersnedecor gamma generalized_pareto",
    "matrices": "lkj_cholesky wishart",
    "real_line": "cauchy gumbel laplace normal studentT uniform von_mises",
    "transformed": "half_cauchy half_normal inverse_gamma kumaraswamy log_normal logistic_normal pareto "
    "weibull",
    "unit_interval": "beta continuous_bernoulli dirichlet relaxed_bernoulli relaxed_categorical",
    "vectors": "lowrank_multivariate_normal multivariate_normal",
}
_METHODS = "log_prob sample rsample sample_n cdf icdf entropy expand enumerate_support".split()

_name_all(globals(), "kiln.distributions")
for _made in tuple(globals().values()):
    if isinstance(_made, type) and issubclass(_made, Distribution):
        _name_methods(_made, _METHODS)
del _made
for _file, _names in _FILES.items():
    for _name in _names.split():
        globals()[_name] = _sys.modules[f"{__name__}.{_name}"] = _import_module(f"{__name__}.{_file}")
