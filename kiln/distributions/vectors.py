"""The multivariate normal distribution, by a covariance of full or of low rank."""

from __future__ import annotations

import math

from kiln import linalg, ops
from kiln._core import Size, Tensor
from kiln.distributions import constraints
from kiln.distributions.distribution import Distribution, Shape, checked
from kiln.distributions.utils import _standard_normal, broadcast_shapes, lazy_property

__all__ = ["LowRankMultivariateNormal", "MultivariateNormal"]


def _batch_mv(bmat: Tensor, bvec: Tensor) -> Tensor:
    """Matrices (..., n, m) times vectors (..., m). The name is read by libraries, as the next ones are."""
    return (bmat @ bvec.unsqueeze(-1)).squeeze(-1)


def _batch_mahalanobis(bL: Tensor, bx: Tensor) -> Tensor:
    """x' (L L')^-1 x of each vector (..., n), by lower factors L (..., n, n)."""
    outer = bx.ndim - bL.ndim + 1
    if outer < 1 or tuple(bx.shape[outer:-1]) != tuple(bL.shape[:-2]):
        solved: Tensor = linalg.solve_triangular(bL, bx.unsqueeze(-1), upper=False)
        return solved.square().sum((-2, -1))
    columns = bx.flatten(0, outer - 1).movedim(0, -1)  # vectors of one factor are solved together
    solved = linalg.solve_triangular(bL, columns, upper=False)
    return solved.square().sum(-2).movedim(-1, 0).reshape(tuple(bx.shape[:-1]))


def _precision_to_scale_tril(P: Tensor) -> Tensor:
    """The lower factor of the inverse of P: that of P with its order reversed, reversed and inverted."""
    factor = linalg.cholesky(P.flip((-2, -1))).flip((-2, -1)).mT
    identity = ops.eye(P.shape[-1], dtype=P.dtype)
    lower: Tensor = linalg.solve_triangular(factor, identity.expand(tuple(P.shape)), upper=False)
    return lower


def half_log_det(tril: Tensor) -> Tensor:
    """The logarithm of the determinant of lower factors: half that of what they are factors of."""
    return tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def given_matrix(**matrices: Tensor | None) -> tuple[str, Tensor] | None:
    """The name of the one matrix that is given, and it; None unless it is one. ValueError for a vector."""
    given = [(name, matrix) for name, matrix in matrices.items() if matrix is not None]
    if len(given) != 1:
        return None
    name, matrix = given[0]
    if matrix.ndim < 2:
        raise ValueError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
    return name, matrix


def factor_of(name: str, matrix: Tensor) -> Tensor:
    """The lower factor of the covariance that a matrix gives."""
    if name == "precision_matrix":
        return _precision_to_scale_tril(matrix)
    factor: Tensor = linalg.cholesky(matrix) if name == "covariance_matrix" else matrix
    return factor


class ByScaleTril(Distribution):
    """Distributions by a covariance, its inverse, or its lower factor: one is given, others are computed when
    they are read. `_unbroadcasted_scale_tril` is the factor in the shape it was given.
    """

    _unbroadcasted_scale_tril: Tensor

    def _batched(self, matrix: Tensor) -> Tensor:
        return matrix.expand((*self._batch_shape, *matrix.shape[-2:]))

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The lower factor of the covariance."""
        return self._batched(self._unbroadcasted_scale_tril)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance (..., n, n)."""
        return self._batched(self._unbroadcasted_scale_tril @ self._unbroadcasted_scale_tril.mT)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return self._batched(ops.cholesky_inverse(self._unbroadcasted_scale_tril))


class MultivariateNormal(ByScaleTril):
    """Normal vectors of mean `loc` (..., n), by one of three matrices (..., n, n).

    covariance_matrix   positive definite
    precision_matrix    its inverse
    scale_tril          its lower factor, of positive diagonal: nothing has to be decomposed

    >>> from kiln.distributions import MultivariateNormal
    >>> MultivariateNormal(kiln.zeros(2), kiln.eye(2)).log_prob(kiln.zeros(2))
    tensor(-1.8379)
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        given = given_matrix(
            covariance_matrix=covariance_matrix, precision_matrix=precision_matrix, scale_tril=scale_tril
        )
        if given is None:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
            )
        name, matrix = given
        batch_shape = broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        self.loc = loc.expand((*batch_shape, loc.shape[-1]))
        setattr(self, name, matrix.expand((*batch_shape, *matrix.shape[-2:])))
        super().__init__(batch_shape, loc.shape[-1:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = factor_of(name, matrix)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        variance = self._unbroadcasted_scale_tril.square().sum(-1)
        return variance.expand((*self._batch_shape, *self._event_shape))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        noise = _standard_normal(self._extended_shape(sample_shape), self.loc.dtype)
        return self.loc + _batch_mv(self._unbroadcasted_scale_tril, noise)

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        distance = _batch_mahalanobis(self._unbroadcasted_scale_tril, value - self.loc)
        normalizer = half_log_det(self._unbroadcasted_scale_tril)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + distance) - normalizer

    def entropy(self) -> Tensor:
        constant = 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi))
        return (half_log_det(self._unbroadcasted_scale_tril) + constant).expand(tuple(self._batch_shape))


def _batch_capacitance_tril(W: Tensor, D: Tensor) -> Tensor:
    """The lower factor of I + W' D^-1 W."""
    inner = (W.mT / D.unsqueeze(-2)) @ W
    factor: Tensor = linalg.cholesky(inner + ops.eye(W.shape[-1], dtype=W.dtype))
    return factor


def _batch_lowrank_logdet(W: Tensor, D: Tensor, capacitance_tril: Tensor) -> Tensor:
    """log det(W W' + D), by the matrix determinant lemma."""
    return 2 * half_log_det(capacitance_tril) + D.log().sum(-1)


def _batch_lowrank_mahalanobis(W: Tensor, D: Tensor, x: Tensor, capacitance_tril: Tensor) -> Tensor:
    """x' (W W' + D)^-1 x, by Woodbury's identity."""
    projected = _batch_mv(W.mT / D.unsqueeze(-2), x)
    return (x.square() / D).sum(-1) - _batch_mahalanobis(capacitance_tril, projected)


class LowRankMultivariateNormal(Distribution):
    """Normal vectors of mean `loc` (..., n) and covariance W W' + diag(D).

    W is `cov_factor` (..., n, m), D `cov_diag` (..., n) > 0. Densities and draws cost n m^2, not n^3.

    >>> from kiln.distributions import LowRankMultivariateNormal
    >>> LowRankMultivariateNormal(kiln.zeros(2), kiln.tensor([[1.0], [0.0]]), kiln.ones(2)).variance
    tensor([2., 1.])
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None
    ) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if cov_factor.ndim < 2:
            raise ValueError(
                "cov_factor must be at least two-dimensional, with optional leading batch dimensions"
            )
        (n,) = loc.shape[-1:]
        if cov_factor.shape[-2] != n:
            raise ValueError(f"cov_factor must be a batch of matrices with shape {n} x m")
        if tuple(cov_diag.shape[-1:]) != (n,):
            raise ValueError(f"cov_diag must be a batch of vectors with shape {Size((n,))}")
        batches = (tuple(x) for x in (loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1]))
        try:
            batch_shape = broadcast_shapes(*batches)
        except RuntimeError as error:
            raise ValueError(
                f"Incompatible batch shapes: loc {loc.shape}, cov_factor {cov_factor.shape}, "
                f"cov_diag {cov_diag.shape}"
            ) from error
        self.loc = loc.expand((*batch_shape, n))
        self.cov_factor = cov_factor.expand((*batch_shape, *cov_factor.shape[-2:]))
        self.cov_diag = cov_diag.expand((*batch_shape, n))
        self._unbroadcasted_cov_factor = cov_factor
        self._unbroadcasted_cov_diag = cov_diag
        self._capacitance_tril = _batch_capacitance_tril(cov_factor, cov_diag)
        super().__init__(batch_shape, (n,), validate_args=validate_args)

    @property
    def _parts(self) -> tuple[Tensor, Tensor]:
        return self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag

    def _batched(self, matrix: Tensor) -> Tensor:
        return matrix.expand((*self._batch_shape, *self._event_shape, *self._event_shape))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @lazy_property
    def variance(self) -> Tensor:
        factor, diagonal = self._parts
        return (factor.square().sum(-1) + diagonal).expand((*self._batch_shape, *self._event_shape))

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The lower factor of the covariance: D^1/2 times that of I + V V', V = D^-1/2 W."""
        factor, diagonal = self._parts
        root = diagonal.sqrt().unsqueeze(-1)
        relative = factor / root
        inner = relative @ relative.mT + ops.eye(self._event_shape[0], dtype=factor.dtype)
        return self._batched(root * linalg.cholesky(inner))

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance (..., n, n)."""
        factor, diagonal = self._parts
        return self._batched(factor @ factor.mT + diagonal.diag_embed())

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """Its inverse, by Woodbury's identity."""
        factor, diagonal = self._parts
        projected = linalg.solve_triangular(
            self._capacitance_tril, factor.mT / diagonal.unsqueeze(-2), upper=False
        )
        return self._batched(diagonal.reciprocal().diag_embed() - projected.mT @ projected)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        factor, diagonal = self._parts
        few = _standard_normal((*shape[:-1], factor.shape[-1]), self.loc.dtype)
        each = _standard_normal(shape, self.loc.dtype)
        return self.loc + _batch_mv(factor, few) + diagonal.sqrt() * each

    @checked
    def log_prob(self, value: Tensor) -> Tensor:
        distance = _batch_lowrank_mahalanobis(*self._parts, value - self.loc, self._capacitance_tril)
        log_det = _batch_lowrank_logdet(*self._parts, self._capacitance_tril)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + log_det + distance)

    def entropy(self) -> Tensor:
        log_det = _batch_lowrank_logdet(*self._parts, self._capacitance_tril)
        entropy = 0.5 * (self._event_shape[0] * (1 + math.log(2 * math.pi)) + log_det)
        return entropy.expand(tuple(self._batch_shape))
