"""`orthogonal`, `weight_norm` and `spectral_norm` as parametrizations: the weight is computed when it is
read.
"""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.nn.module import Module
from kiln.nn.utils.parametrize import register_parametrization
from kiln.nn.utils.weights import as_matrix, divided, iterate, length, of_length, singular_dim, start, unit
from kiln.ops.creation.dtypes import finfo
from kiln.table import registry
from kiln.table.callables import name_all


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return of_length(g, v, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return length(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """From now on a weight is its length times a direction; gives the module back.

    The length is `parametrizations.weight.original0`; the direction is `original1`, of any length, at first
    the weight as it was. The norm is taken over all dims but `dim` (None: all); IndexError if
    there is none.

    >>> import kiln
    >>> layer = kiln.nn.utils.parametrizations.weight_norm(kiln.nn.Linear(4, 3))
    >>> layer.parametrizations.weight.original0.shape
    kiln.Size([3, 1])
    """
    ndim = getattr(module, name).ndim
    if dim is not None and not -ndim <= dim < ndim:
        ends = f"[-{ndim}, {ndim - 1}]"
        raise IndexError(f"Dimension out of range (expected to be in range of {ends}, but got {dim})")
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            ends = f"[-{weight.ndim}, {weight.ndim - 1}]"
            raise IndexError(f"Dimension out of range (expected to be in range of {ends} but got {dim})")
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps, self.n_power_iterations = dim % weight.ndim, eps, n_power_iterations
        if weight.ndim > 1:
            u, v = start(as_matrix(weight.detach(), self.dim), eps)
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return unit(weight, self.eps)
        if self.training:
            matrix = as_matrix(weight.detach(), self.dim)
            iterate(matrix.t(), self._v, self._u, self.n_power_iterations, self.eps)
        return divided(weight, self._u, self._v, self.dim)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """From now on a weight is `parametrizations.weight.original` divided by its largest singular value.

    That is estimated by `n_power_iterations` steps of the power method each time the weight is read in
    training. `dim` is the weight's dim of outputs; a vector is divided by its norm. Gives the module back.
    ValueError for a name the module does not have or no iterations, IndexError for a `dim` out of range.

    >>> import kiln
    >>> layer = kiln.nn.utils.parametrizations.spectral_norm(kiln.nn.Linear(4, 3))
    >>> abs(kiln.linalg.matrix_norm(layer.weight, 2).item() - 1) < 0.2
    True
    """
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    norm = _SpectralNorm(weight, n_power_iterations, singular_dim(module, dim), eps)
    return register_parametrization(module, name, norm)


_MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    """A matrix of orthonormal columns (of rows, if they are fewer) from any of its shape.

    matrix_exp     exp(A), A = L - L.T with the lower triangle L
    cayley         (I + A / 2) (I - A / 2)^-1
    householder    a product of reflections, whose vectors are L's columns, times signs on L's diagonal
    """

    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape, self.orthogonal_map = weight.shape, orthogonal_map
        if use_trivialization:  # what is computed is a step away from `base`, which assigning changes
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Tensor:
        wide = X.shape[-2] < X.shape[-1]
        x = X.mT if wide else X
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            vectors = x.tril(-1)
            tau = 2.0 / (1.0 + (vectors * vectors).sum(-2))
            signs = x.diagonal(dim1=-2, dim2=-1).int().unsqueeze(-2)
            q: Tensor = ops.orgqr(vectors, tau) * signs.to(x.dtype)
        else:
            lower = x.tril()
            if n != k:
                lower = ops.cat([lower, ops.zeros(*x.shape[:-1], n - k, dtype=x.dtype)], -1)
            q = self._of_skew(lower - lower.mT)[..., :k]
        base: Tensor | None = getattr(self, "base", None)
        if base is not None:
            q = base @ q
        tall: Tensor = q.mT if wide else q
        return tall

    def _of_skew(self, a: Tensor) -> Tensor:
        if self.orthogonal_map == "matrix_exp":
            q: Tensor = ops.matrix_exp(a)
            return q
        one: Tensor = ops.eye(a.shape[-1], dtype=a.dtype)
        q = registry.function("linalg.solve")(one - 0.5 * a, one + 0.5 * a)
        return q

    @no_grad()
    def right_inverse(self, Q: Tensor) -> Tensor:
        if Q.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape "
                f"{Q.shape}."
            )
        wide = Q.shape[-2] < Q.shape[-1]
        q = (Q.mT if wide else Q).detach()
        n, k = q.shape[-2:]
        if not hasattr(self, "base"):
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    "It is not possible to assign to the matrix exponential or the Cayley "
                    "parametrizations when "
                    "use_trivialization=False."
                )
            vectors, _ = ops.geqrf(q)
            diagonal = vectors.diagonal(dim1=-2, dim2=-1)
            diagonal.copy_(ops.where(diagonal < 0, -1.0, 1.0))
            tall: Tensor = vectors.mT if wide else vectors
            return tall
        if n != k:
            q = ops.cat([q, ops.randn(*q.shape[:-1], n - k, dtype=q.dtype)], -1)
        self.base = q.clone() if n == k and _is_orthogonal(q) else _orthogonalized(q)
        start: Tensor = -ops.eye(*Q.shape[-2:], dtype=Q.dtype).expand(Q.shape)
        return start.contiguous()


def _is_orthogonal(q: Tensor) -> bool:
    one: Tensor = ops.eye(q.shape[-1], dtype=q.dtype)
    return bool(ops.allclose(q.mT @ q, one, atol=10 * q.shape[-2] * finfo(q.dtype).eps))


def _orthogonalized(q: Tensor) -> Tensor:
    """The Q of a QR, its signs those of a positive R."""
    vectors, tau = ops.geqrf(q)
    signs = ops.sign(vectors.diagonal(dim1=-2, dim2=-1)).unsqueeze(-2)
    found: Tensor = ops.orgqr(vectors, tau) * signs
    return found


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """From now on a weight has orthonormal columns, or rows if they are fewer; gives the module back.

    `orthogonal_map` is how it is computed from any matrix: "matrix_exp" (where square, the default),
    "cayley" or "householder" (the default elsewhere). With `use_trivialization` what is computed is
    multiplied by a matrix `parametrizations.weight[0].base`, so that an orthogonal weight may be assigned;
    without it only to "householder", and it then starts from another matrix (NotImplementedError when
    assigning). ValueError for a name the module does not have, fewer than 2 dims, or an unknown map.

    >>> import kiln
    >>> layer = kiln.nn.utils.parametrizations.orthogonal(kiln.nn.Linear(20, 40))
    >>> kiln.allclose(layer.weight.T @ layer.weight, kiln.eye(20), atol=1e-5)
    True
    """
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.ndim < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    square = weight.shape[-2] == weight.shape[-1]
    how = orthogonal_map or ("matrix_exp" if square else "householder")
    if how not in _MAPS:
        raise ValueError(f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {how}')
    return register_parametrization(module, name, _Orthogonal(weight, how, use_trivialization), unsafe=True)


name_all(globals(), "kiln.nn")
