"""Distributions of matrices: covariances, and factors of correlations."""

from __future__ import annotations

import math
from typing import Any

from kiln import linalg, ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.distributions import constraints
from kiln.distributions.distribution import Distribution, ExponentialFamily, Shape, checked
from kiln.distributions.half_line import Chi2
from kiln.distributions.unit_interval import Beta
from kiln.distributions.utils import broadcast_all, broadcast_shapes, finfo
from kiln.distributions.vectors import ByScaleTril, factor_of, given_matrix, half_log_det
from kiln.errors import warn

__all__ = ["LKJCholesky", "Wishart"]


class LKJCholesky(Distribution):
    """Lower factors L of correlation matrices (dim, dim), of density det(L L')^(concentration - 1).

    Draws row by row, each a direction of random length ("onion"; Lewandowski, Kurowicka and Joe, Generating
    random correlation matrices based on vines and extended onion method, 2009).

    >>> kiln.distributions.LKJCholesky(3, 0.5).sample().shape
    kiln.Size([3, 3])
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    @no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        dtype = self.concentration.dtype
        row = ops.arange(self.dim, dtype=dtype)
        before = (row - 1).clamp(min=0)  # the first row is (1, 0, ...), and what is drawn for it not used
        rest = self.concentration.unsqueeze(-1) + 0.5 * (self.dim - 2 - before)
        square = Beta(before + 0.5, rest, validate_args=False).sample(sample_shape).unsqueeze(-1)
        noise = ops.randn(tuple(self._extended_shape(sample_shape)), dtype=dtype).tril(-1)
        length = noise.square().sum(-1, True).sqrt()
        below = ops.where(length > 0, square.sqrt() * noise / length, 0.0)
        diagonal = (1 - below.square().sum(-1)).clamp(min=finfo(dtype).tiny).sqrt()
        return below + diagonal.diag_embed()

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        diagonal = value.diagonal(dim1=-1, dim2=-2)[..., 1:]
        row = ops.arange(2, self.dim + 1, dtype=self.concentration.dtype)
        power = 2 * (self.concentration - 1).unsqueeze(-1) + self.dim - row
        count = self.dim - 1
        a = self.concentration + 0.5 * count
        normalizer = 0.5 * count * math.log(math.pi) + ops.mvlgamma(a - 0.5, count) - a.lgamma() * count
        return (power * diagonal.log()).sum(-1) - normalizer


class Wishart(ByScaleTril, ExponentialFamily):
    """The sum of x x' over `df` normal vectors x of mean 0, by one of three matrices (..., n, n) as
    `MultivariateNormal`; df > n - 1 need not be whole.

    Draws by Bartlett's decomposition: a lower matrix with chi numbers on its diagonal, normal ones below it.

    >>> kiln.distributions.Wishart(3.0, kiln.eye(2)).mean
    tensor([[3., 0.],
            [0., 3.]])
    """

    support = constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(
        self,
        df: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = given_matrix(
            covariance_matrix=covariance_matrix, precision_matrix=precision_matrix, scale_tril=scale_tril
        )
        if given is None:
            raise AssertionError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
            )
        name, matrix = given
        n = matrix.shape[-1]
        asked = ops.as_tensor(df, dtype=matrix.dtype)
        batch_shape = broadcast_shapes(matrix.shape[:-2], asked.shape)
        self.df = asked.expand(batch_shape)
        if bool((self.df <= n - 1).any()):
            raise ValueError(f"Value of df={df} expected to be greater than ndim - 1 = {n - 1}.")
        setattr(self, name, matrix.expand((*batch_shape, *matrix.shape[-2:])))
        if bool((self.df < n).any()):
            warn(
                "Low df values detected. Singular samples are highly likely to occur for ndim - 1 < df < "
                "ndim."
            )
        super().__init__(batch_shape, matrix.shape[-2:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = factor_of(name, matrix)

    @property
    def arg_constraints(self) -> Any:
        return {
            "covariance_matrix": constraints.positive_definite,
            "precision_matrix": constraints.positive_definite,
            "scale_tril": constraints.lower_cholesky,
            "df": constraints.greater_than(self.event_shape[-1] - 1),
        }

    def _each(self, number: Tensor) -> Tensor:
        """Numbers of the batch, beside matrices."""
        return number.unsqueeze(-1).unsqueeze(-1)

    @property
    def mean(self) -> Tensor:
        return self._each(self.df) * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self.df - self._event_shape[-1] - 1
        return self._each(ops.where(factor > 0, factor, math.nan)) * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        diagonal = self.covariance_matrix.diagonal(dim1=-2, dim2=-1)
        outer = diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self._each(self.df) * (self.covariance_matrix.square() + outer)

    def _chi2(self) -> Chi2:
        """The squares of the diagonal that is drawn."""
        row = ops.arange(self._event_shape[-1], dtype=self.df.dtype)
        return Chi2(self.df.unsqueeze(-1) - row, validate_args=False)

    def _bartlett(self, sample_shape: Shape) -> Tensor:
        diagonal = self._chi2().rsample(sample_shape).sqrt()
        diagonal = diagonal.clamp(min=finfo(diagonal.dtype).eps)
        shape = tuple(self._extended_shape(sample_shape))
        below = ops.randn(shape, dtype=diagonal.dtype).tril(-1)
        factor = self._unbroadcasted_scale_tril @ (below + diagonal.diag_embed())
        return factor @ factor.mT

    def rsample(self, sample_shape: Shape = (), max_try_correction: int = 10) -> Tensor:
        """A draw. Matrices that come out singular, for rounding, are drawn again `max_try_correction`
        times.
        """
        sample = self._bartlett(sample_shape)
        singular = ~self.support.check(sample)
        if bool(singular.any()):
            warn("Singular sample detected.")
            for _ in range(max_try_correction):
                sample = ops.where(self._each(singular), self._bartlett(sample_shape), sample)
                singular = ~self.support.check(sample)
                if not bool(singular.any()):
                    break
        return sample

    def _half_volume(self) -> Tensor:
        """log det(2 covariance) / 2."""
        return self._event_shape[-1] * math.log(2) / 2 + half_log_det(self._unbroadcasted_scale_tril)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        n, df = self._event_shape[-1], self.df
        trace = ops.cholesky_solve(value, self._unbroadcasted_scale_tril).diagonal(dim1=-2, dim2=-1).sum(-1)
        density = (df - n - 1) / 2 * linalg.slogdet(value).logabsdet - trace / 2
        return density - df * self._half_volume() - ops.mvlgamma(df / 2, n)

    def entropy(self) -> Tensor:
        n, df = self._event_shape[-1], self.df
        row = ops.arange(n, dtype=df.dtype) / 2
        slope = ((df / 2).unsqueeze(-1) - row).digamma().sum(-1)
        normalizer = ops.mvlgamma(df / 2, n) - (df - n - 1) / 2 * slope
        return (n + 1) * self._half_volume() + normalizer + df * n / 2

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return self.precision_matrix * -0.5, (self.df - self._event_shape[-1] - 1) / 2

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        x, y = natural_params
        n = self._event_shape[-1]
        half = y + (n + 1) / 2
        return half * (n * math.log(2) - linalg.slogdet(x * -2).logabsdet) + ops.mvlgamma(half, n)
