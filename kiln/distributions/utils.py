"""What distributions share: parameters of one shape, probabilities and their logits, triangles as vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kiln import ops
from kiln._core import Size, Tensor, get_default_dtype
from kiln.autograd import enable_grad
from kiln.ops.creation.dtypes import finfo as _finfo
from kiln.table.callables import name_helpers as _name_helpers

if TYPE_CHECKING:
    from kiln._core import dtype as DType

Value = TypeVar("Value")

__all__ = [
    "broadcast_all",
    "logits_to_probs",
    "clamp_probs",
    "probs_to_logits",
    "lazy_property",
    "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]

finfo = cache(_finfo)
euler_constant = 0.57721566490153286060


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors and numbers as tensors of one shape; a number gets the dtype of the first tensor.

    ValueError for what is neither.

    >>> broadcast_all(kiln.zeros(2), 1.0)
    (tensor([0., 0.]), tensor([1., 1.]))
    """
    tensors = [v for v in values if isinstance(v, Tensor)]
    if not all(isinstance(v, (Tensor, int, float)) for v in values):
        raise ValueError("Input arguments must all be instances of Number, torch.Tensor or kiln.Tensor.")
    if len(tensors) < len(values):
        dtype = tensors[0].dtype if tensors else get_default_dtype()
        values = tuple(v if isinstance(v, Tensor) else ops.tensor(v, dtype=dtype) for v in values)
    shape = values[0].shape
    if all(v.shape == shape for v in values):
        return values
    return tuple(ops.broadcast_tensors(*values))


def broadcast_shapes(*shapes: Sequence[int]) -> Size:
    """The shape that shapes broadcast to. RuntimeError if they do not."""
    return ops.broadcast_shapes(*(tuple(shape) for shape in shapes))


def sum_rightmost(value: Tensor, count: int) -> Tensor:
    """The sum over the last `count` dims."""
    return value.sum(tuple(range(-count, 0))) if count else value


def _standard_normal(shape: Sequence[int], dtype: DType | None = None, device: Any = None) -> Tensor:
    """Draws from the standard normal distribution. The name is read by libraries."""
    return ops.randn(tuple(shape), dtype=dtype, device=device)


_sum_rightmost = sum_rightmost  # the name that libraries read


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """The sigmoid of log odds, or (not `is_binary`) the softmax of the last dim.

    >>> logits_to_probs(kiln.zeros(2))
    tensor([0.5000, 0.5000])
    """
    return ops.sigmoid(logits) if is_binary else ops.softmax(logits, -1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities no nearer to 0 and to 1 than the dtype's eps.

    >>> clamp_probs(kiln.tensor([0.0, 0.5]))
    tensor([1.1921e-07, 5.0000e-01])
    """
    eps = finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """The logarithms of clamped probabilities, or (`is_binary`) of their odds.

    >>> probs_to_logits(kiln.tensor([0.5]), is_binary=True)
    tensor([0.])
    """
    probs = clamp_probs(probs)
    return probs.log() - (-probs).log1p() if is_binary else probs.log()


class lazy_property(Generic[Value]):
    """A value computed, with gradients, when it is first read, and then an attribute of the object."""

    def __init__(self, wrapped: Callable[[Any], Value]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__
        self.__name__ = wrapped.__name__

    def __get__(self, instance: Any, owner: Any = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]
        with enable_grad():
            value = self.wrapped(instance)
        instance.__dict__[self.__name__] = value
        return value


def _lower_triangle(size: int, diag: int) -> Tensor:
    row = ops.arange(size)
    return row < row.unsqueeze(-1) + (diag + 1)


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """The elements (..., D, D) up to the diagonal `diag`, row by row, as (..., n).

    ValueError for a diagonal that the matrix has not.

    >>> tril_matrix_to_vec(kiln.tensor([[1, 0], [2, 3]]))
    tensor([1, 2, 3])
    """
    size = mat.shape[-1]
    if not -size <= diag < size:
        raise ValueError(f"diag ({diag}) provided is outside [{-size}, {size - 1}].")
    return mat[..., _lower_triangle(size, diag)]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """The matrix (..., D, D), zero above the diagonal `diag`, whose other elements are `vec`, row by row.

    ValueError for a length that no such triangle has.

    >>> vec_to_tril_matrix(kiln.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 0.],
            [2., 3.]])
    """
    count, size = vec.shape[-1], max(1, -diag)
    while (held := int(_triangle_count(size, diag))) < count:
        size += 1
    if held != count:
        raise ValueError(
            f"The size of last dimension is {count} which cannot be expressed as the lower triangular part "
            "of a square D x D matrix."
        )
    matrix = vec.new_zeros((*vec.shape[:-1], size, size))
    matrix[..., _lower_triangle(size, diag)] = vec
    return matrix


def _triangle_count(size: int, diag: int) -> int:
    """How many elements a triangle has."""
    return sum(min(max(row + 1 + diag, 0), size) for row in range(size))


_name_helpers(globals(), __name__)
