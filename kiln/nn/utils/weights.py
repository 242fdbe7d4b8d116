"""Weights as a length and a direction, and weights divided by their largest singular value.

The mathematics of `weight_norm` and `spectral_norm`, and their first forms: a hook computes `weight` before
every forward. `parametrizations` has those that are properties.
"""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.errors import warn
from kiln.nn.convolutions import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter
from kiln.table.kinds import normalize_dim


def length(v: Tensor, dim: int | None) -> Tensor:
    """The norm over all dims but `dim`, which stay as 1; of all elements, of shape (), for None or -1."""
    if dim is None or dim == -1:
        whole: Tensor = ops.norm(v, 2)
        return whole
    others = [k for k in range(v.ndim) if k != dim % v.ndim]
    norm: Tensor = ops.norm(v, 2, others, True) if others else v.abs()
    return norm


def of_length(g: Tensor, v: Tensor, dim: int | None) -> Tensor:
    """v brought to the length g."""
    return v * (g / length(v, dim))


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """(size of `dim`, all others)."""
    matrix: Tensor = weight.movedim(dim, 0).flatten(1)
    return matrix


def unit(x: Tensor, eps: float) -> Tensor:
    """x divided by its norm, or by `eps` if that is more."""
    y: Tensor = x / ops.clamp(ops.norm(x, 2), eps)
    return y


def singular_dim(module: Module, dim: int | None) -> int:
    """The dim of outputs of a layer's weight, unless `dim` says another."""
    if dim is not None:
        return dim
    return int(isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)))


class _Computed:
    """A weight computed by a hook before forward."""

    what = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def compute(self, module: Any) -> Tensor:
        raise NotImplementedError

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute(module))

    def attach(self, module: Module) -> Module:
        for hook in _hooks(module, type(self)):
            if hook.name == self.name:
                raise RuntimeError(f"Cannot register two {self.what} hooks on the same parameter {self.name}")
        self.split(module)
        module.register_forward_pre_hook(self)
        return module

    def split(self, module: Any) -> None:
        """Put what the weight is computed from in its place."""
        raise NotImplementedError

    @classmethod
    def detach(cls, module: Any, name: str) -> Any:
        """Make the weight an ordinary parameter again."""
        for key, own in list(module._forward_pre_hooks.items()):
            if isinstance(own, cls) and own.name == name:
                weight = own.last(module)
                for part in (name, *own.parts()):
                    delattr(module, part)
                module.register_parameter(name, Parameter(weight.detach()))
                del module._forward_pre_hooks[key]
                return module
        raise ValueError(f"{cls.what} of '{name}' not found in {module}")

    def last(self, module: Any) -> Tensor:
        return self.compute(module)

    def parts(self) -> list[str]:
        raise NotImplementedError


def _hooks(module: Module, kind: type) -> list[Any]:
    return [own for own in module._forward_pre_hooks.values() if isinstance(own, kind)]


class WeightNorm(_Computed):
    what = "weight_norm"

    def __init__(self, name: str, dim: int | None) -> None:
        super().__init__(name)
        self.dim = dim

    def parts(self) -> list[str]:
        return [f"{self.name}_g", f"{self.name}_v"]

    def compute(self, module: Any) -> Tensor:
        g, v = (getattr(module, part) for part in self.parts())
        return of_length(g, v, self.dim)

    def split(self, module: Any) -> None:
        weight = getattr(module, self.name).detach()
        delattr(module, self.name)
        for part, value in zip(self.parts(), (length(weight, self.dim), weight), strict=True):
            module.register_parameter(part, Parameter(value))
        setattr(module, self.name, self.compute(module))


class SpectralNorm(_Computed):
    what = "spectral_norm"

    def __init__(self, name: str, iterations: int, dim: int, eps: float) -> None:
        super().__init__(name)
        self.iterations, self.dim, self.eps = iterations, dim, eps

    def parts(self) -> list[str]:
        return [f"{self.name}_orig", f"{self.name}_u", f"{self.name}_v"]

    def compute(self, module: Any) -> Tensor:
        if module.training:
            weight, u, v = (getattr(module, part) for part in self.parts())
            iterate(as_matrix(weight, self.dim), u, v, self.iterations, self.eps)
        return self.last(module)

    def last(self, module: Any) -> Tensor:
        weight, u, v = (getattr(module, part) for part in self.parts())
        return divided(weight, u, v, self.dim)

    def split(self, module: Any) -> None:
        weight = getattr(module, self.name)
        delattr(module, self.name)
        u, v = start(as_matrix(weight.detach(), self.dim), self.eps)
        names = self.parts()
        module.register_parameter(names[0], weight)
        setattr(module, self.name, weight.detach())
        module.register_buffer(names[1], u)
        module.register_buffer(names[2], v)


def start(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Unit vectors drawn for a matrix's first singular ones, after 15 iterations."""
    u, v = (unit(ops.randn(n, dtype=matrix.dtype), eps) for n in matrix.shape)
    iterate(matrix, u, v, 15, eps)
    return u, v


@no_grad()
def iterate(matrix: Tensor, u: Tensor, v: Tensor, count: int, eps: float) -> None:
    """Steps of the power method, written over v and then u."""
    for _ in range(count):
        v.copy_(unit(ops.mv(matrix.t(), u), eps))
        u.copy_(unit(ops.mv(matrix, v), eps))


def divided(weight: Tensor, u: Tensor, v: Tensor, dim: int) -> Tensor:
    """The weight divided by u @ W @ v; later iterations do not change what its gradient reads."""
    sigma: Tensor = ops.dot(u.clone(), ops.mv(as_matrix(weight, dim), v.clone()))
    return weight / sigma


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """From now on a weight is its length `weight_g` times the direction of `weight_v`; gives the module back.

    `weight_v` may have any length and is at first the weight as it was. The norm is taken over all dims but
    `dim` (None: all). Deprecated for `parametrizations.weight_norm`, which a FutureWarning says.
    """
    warn(
        "`kiln.nn.utils.weight_norm` is deprecated in favor of `kiln.nn.utils.parametrizations.weight_norm`.",
        FutureWarning,
    )
    if dim is not None:
        normalize_dim(dim, getattr(module, name).ndim, "weight_norm")
    return WeightNorm(name, dim).attach(module)


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Undo `weight_norm`, the weight what it is now. ValueError if there is none."""
    freed: Module = WeightNorm.detach(module, name)
    return freed


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """From now on a weight is `weight_orig` divided by its largest singular value; gives the module back.

    That is estimated by `n_power_iterations` steps of the power method each forward in training, from the
    buffers `weight_u` and `weight_v`. `dim` is the weight's dim of outputs. ValueError for no iterations.
    """
    if n_power_iterations <= 0:
        raise ValueError(
            f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
        )
    return SpectralNorm(name, n_power_iterations, singular_dim(module, dim), eps).attach(module)


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Undo `spectral_norm`, the weight what it is now. ValueError if there is none."""
    freed: Module = SpectralNorm.detach(module, name)
    return freed
