"""`weight_norm` and `spectral_norm` as parametrizations: the weight is computed when it is read."""

from __future__ import annotations

from typing import Any

from kiln._core import Tensor
from kiln.nn.module import Module
from kiln.nn.utils.parametrize import register_parametrization
from kiln.nn.utils.weights import as_matrix, divided, iterate, length, of_length, singular_dim, start, unit


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
    the weight as it was. The norm is taken over all dims but `dim` (None: all).

    >>> import kiln
    >>> layer = kiln.nn.utils.parametrizations.weight_norm(kiln.nn.Linear(4, 3))
    >>> layer.parametrizations.weight.original0.shape
    kiln.Size([3, 1])
    """
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
