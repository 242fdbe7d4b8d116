"""A model's parameters as one flat vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from kiln import ops
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.table.callables import name_all as _name_all


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Every parameter, flattened in order, as one tensor of shape (total,); differentiable."""
    flat = [p.reshape(-1) for p in parameters]
    if not flat:
        raise ValueError(message("parameters_to_vector", "at least one parameter", "none"))
    vector: Tensor = ops.cat(flat)
    return vector


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give each parameter its stretch of `vec` (total,) as its data: views that share its memory.

    Raises ValueError when the sizes do not add up; nothing is changed then.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(message("vector_to_parameters", "a tensor", describe(vec)))
    held = list(parameters)
    total = sum(p.numel() for p in held)
    if vec.ndim != 1 or vec.numel() != total:
        raise ValueError(message("vector_to_parameters", f"a tensor of shape ({total},)", describe(vec)))
    start = 0
    for param in held:
        stop = start + param.numel()
        param.data = vec[start:stop].reshape(param.shape).detach()
        start = stop


_name_all(globals(), __name__)
