"""Transforms of vectors and matrices, and of parts of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kiln import linalg, ops
from kiln._core import Size, Tensor
from kiln.distributions import constraints
from kiln.distributions.transforms.base import Shape, Transform
from kiln.distributions.transforms.numbers import Plain, inside
from kiln.distributions.utils import (
    finfo,
    lazy_property,
    sum_rightmost,
    tril_matrix_to_vec,
    vec_to_tril_matrix,
)
from kiln.table.callables import name_helpers as _name_helpers


def _require(shape: Shape, dims: int) -> None:
    if len(shape) < dims:
        raise ValueError("Too few dimensions on input")


def _after_one(x: Tensor) -> Tensor:
    """(1, x_0, ..., x_(n - 2)) of the last dim."""
    return ops.cat([ops.ones_like(x[..., :1]), x[..., :-1]], -1)


class ReshapeTransform(Transform):
    """The last dims, of `in_shape`, as `out_shape`.

    >>> kiln.distributions.ReshapeTransform((2, 2), (4,))(kiln.zeros(3, 2, 2)).shape
    kiln.Size([3, 4])
    """

    bijective = True

    def __init__(self, in_shape: Shape, out_shape: Shape, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError("in_shape, out_shape have different numbers of elements")
        super().__init__(cache_size)

    def _with(self, cache_size: int) -> Transform:
        return ReshapeTransform(self.in_shape, self.out_shape, cache_size)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape((*x.shape[: x.ndim - len(self.in_shape)], *self.out_shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape((*y.shape[: y.ndim - len(self.out_shape)], *self.in_shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(tuple(x.shape[: x.ndim - len(self.in_shape)]))

    def _exchanged(self, shape: Shape, old: Size, new: Size) -> Shape:
        _require(shape, len(old))
        cut = len(shape) - len(old)
        if tuple(shape[cut:]) != tuple(old):
            raise ValueError(f"Shape mismatch: expected {Size(shape[cut:])} but got {old}")
        return Size((*shape[:cut], *new))

    def forward_shape(self, shape: Shape) -> Shape:
        return self._exchanged(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._exchanged(shape, self.out_shape, self.in_shape)


class SoftmaxTransform(Plain):
    """y = softmax(x) of the last dim. It forgets a constant; the inverse is log(y).

    >>> kiln.distributions.SoftmaxTransform()(kiln.zeros(2))
    tensor([0.5000, 0.5000])
    """

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = False

    @property
    def sign(self) -> Any:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def forward_shape(self, shape: Shape) -> Shape:
        _require(shape, 1)
        return shape

    inverse_shape = forward_shape


class StickBreakingTransform(Plain):
    """Numbers (n,) to a point (n + 1,) of the simplex: each says by its sigmoid how much of what is left is
    broken off. Zeros give equal parts.

    >>> kiln.distributions.StickBreakingTransform()(kiln.zeros(1))
    tensor([0.5000, 0.5000])
    """

    domain = constraints.real_vector
    codomain = constraints.simplex

    @property
    def sign(self) -> Any:
        raise NotImplementedError

    def _offset(self, x: Tensor) -> Tensor:
        """log of how many parts come after each."""
        return ops.arange(x.shape[-1], 0, -1, dtype=x.dtype).log()

    def _call(self, x: Tensor) -> Tensor:
        share = inside((x - self._offset(x)).sigmoid())
        left = ops.cat([ops.ones_like(x[..., :1]), (1 - share).cumprod(-1)], -1)
        return ops.cat([share, ops.ones_like(x[..., :1])], -1) * left

    def _inverse(self, y: Tensor) -> Tensor:
        part = y[..., :-1]
        left = (1 - part.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        return part.log() - left.log() + self._offset(part)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        x = x - self._offset(x)
        return (ops.logsigmoid(x) - x + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Shape) -> Shape:
        _require(shape, 1)
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: Shape) -> Shape:
        _require(shape, 1)
        return Size((*shape[:-1], shape[-1] - 1))


class CorrCholeskyTransform(Transform):
    """Numbers (n (n - 1) / 2,) to the lower factor (n, n) of a correlation matrix.

    tanh of each is a partial correlation; a row is a point of the sphere, of which each one takes its share
    of what is left (Stan reference manual, Cholesky factors of correlation matrices).

    >>> kiln.distributions.CorrCholeskyTransform()(kiln.zeros(1))
    tensor([[1., 0.],
            [0., 1.]])
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        eps = finfo(x.dtype).eps
        partial = vec_to_tril_matrix(x.tanh().clamp(eps - 1, 1 - eps), diag=-1)
        left = (1 - partial.square()).sqrt().cumprod(-1)
        return (partial + ops.eye(partial.shape[-1], dtype=x.dtype)) * _after_one(left)

    def _inverse(self, y: Tensor) -> Tensor:
        left = _after_one(1 - y.square().cumsum(-1))
        return (tril_matrix_to_vec(y, diag=-1) / tril_matrix_to_vec(left, diag=-1).sqrt()).atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        left = tril_matrix_to_vec(1 - y.square().cumsum(-1), diag=-2)
        of_tanh = (x + ops.softplus(-2 * x) - math.log(2.0)).sum(-1)
        return 0.5 * left.log().sum(-1) - 2 * of_tanh

    def forward_shape(self, shape: Shape) -> Shape:
        _require(shape, 1)
        count = shape[-1]
        n = round((0.25 + 2 * count) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != count:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return Size((*shape[:-1], n, n))

    def inverse_shape(self, shape: Shape) -> Shape:
        _require(shape, 2)
        n = shape[-1]
        if shape[-2] != n:
            raise ValueError("Input is not square")
        return Size((*shape[:-2], n * (n - 1) // 2))


class LowerCholeskyTransform(Plain):
    """Matrices to lower ones, with the exponential of their diagonal.

    >>> kiln.distributions.LowerCholeskyTransform()(kiln.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    domain = constraints.independent(constraints.real, 2)
    codomain: Any = constraints.lower_cholesky
    bijective = False

    @property
    def sign(self) -> Any:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(LowerCholeskyTransform):
    """L L', for the lower matrix L of `LowerCholeskyTransform`.

    >>> kiln.distributions.PositiveDefiniteTransform()(kiln.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = super()._call(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return super()._inverse(linalg.cholesky(y))


# -- parts of a tensor --------------------------------------------------------------------------------------


def _asserted(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


class _Parts(Transform):
    """Transforms of parts of a tensor along `dim`, each of its own."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        _asserted(
            all(isinstance(t, Transform) for t in tseq), "All elements of tseq must be Transform instances"
        )
        super().__init__(cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq] if cache_size else list(tseq)
        self.dim = dim

    @property
    def bijective(self) -> Any:
        return all(t.bijective for t in self.transforms)

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError

    def _join(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _checked(self, x: Tensor, length: int) -> Tensor:
        _asserted(
            -x.ndim <= self.dim < x.ndim, f"dim {self.dim} out of range for tensor with {x.ndim} dimensions"
        )
        size = x.shape[self.dim]
        _asserted(size == length, f"x.size({self.dim}) = {size} must equal length {length}")
        return x

    def _call(self, x: Tensor) -> Tensor:
        return self._join([t(part) for t, part in zip(self.transforms, self._split(x))])

    def _inverse(self, y: Tensor) -> Tensor:
        return self._join([t.inv(part) for t, part in zip(self.transforms, self._split(y))])

    def _stretches(self, x: Tensor, y: Tensor) -> list[Tensor]:
        parts = zip(self.transforms, self._split(x), self._split(y))
        return [t.log_abs_det_jacobian(before, after) for t, before, after in parts]


class CatTransform(_Parts):
    """Transforms of parts of `lengths` (1 each), joined as by `cat`.

    >>> from kiln.distributions import CatTransform, ExpTransform, TanhTransform
    >>> CatTransform([ExpTransform(), TanhTransform()], lengths=[2, 1])(kiln.zeros(3))
    tensor([1., 1., 0.])
    """

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        _asserted(
            len(self.lengths) == len(self.transforms),
            f"lengths ({len(self.lengths)}) must match transforms ({len(self.transforms)})",
        )

    def _with(self, cache_size: int) -> Transform:
        return CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    @lazy_property
    def event_dim(self) -> Any:
        return max(t.event_dim for t in self.transforms)

    @lazy_property
    def length(self) -> int:
        """The size along `dim`."""
        return sum(self.lengths)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        return self._checked(x, self.length).split(self.lengths, self.dim)

    def _join(self, parts: list[Tensor]) -> Tensor:
        return ops.cat(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        stretches = [
            sum_rightmost(own, self.event_dim - t.event_dim)
            for t, own in zip(self.transforms, self._stretches(x, y))
        ]
        dim = self.dim - x.ndim if self.dim >= 0 else self.dim
        if dim + self.event_dim < 0:
            return ops.cat(stretches, dim + self.event_dim)
        return sum(stretches[1:], stretches[0])  # the parts are of one event


class StackTransform(_Parts):
    """Transforms of parts of one index each, joined as by `stack`.

    >>> from kiln.distributions import ExpTransform, StackTransform, TanhTransform
    >>> StackTransform([ExpTransform(), TanhTransform()])(kiln.zeros(2))
    tensor([1., 0.])
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    def _with(self, cache_size: int) -> Transform:
        return StackTransform(self.transforms, self.dim, cache_size)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.stack([t.codomain for t in self.transforms], self.dim)

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        return self._checked(x, len(self.transforms)).unbind(self.dim)

    def _join(self, parts: list[Tensor]) -> Tensor:
        return ops.stack(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._join(self._stretches(x, y))


_name_helpers(globals(), __name__)
