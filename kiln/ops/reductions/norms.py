"""Norms of vectors and what is made of them: `norm`, `dist`, `normalize`, `renorm`.

One formula serves them all. Where a power has no slope (at 0) the other side of a `where` gets a harmless
argument, so that gradients are PyTorch's there: 0.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.arithmetic import clamp_min, pow, where
from kiln.ops.elementwise.elementary import abs, root
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.reductions.core_reductions import reduce_max, reduce_min, reduce_sum
from kiln.table import drawn as d
from kiln.table import kinds, registry
from kiln.table.arguments import dtype_name, into, type_name
from kiln.table.kinds import normalize_dim, normalize_dims
from kiln.table.public import public
from kiln.table.record import Number, Structure, Tensor, composite
from kiln.table.registry import forms

INFINITY = float("inf")


def norm_over(x: Tensor, order: float, dims: tuple[int, ...], keepdim: bool) -> Any:
    """The norm of `order` of a wide array over some dims; its derivative at 0 is 0."""
    if order == 2:
        return root(reduce_sum(x * x, dims, keepdim))
    if order == 0:
        return reduce_sum(where(comparison.ne(x, 0), 1, x * 0), dims, keepdim)
    size = abs(x)
    if order == 1:
        return reduce_sum(size, dims, keepdim)
    if order in (INFINITY, -INFINITY):
        return (reduce_max if order > 0 else reduce_min)(size, dims, keepdim)
    zero = comparison.eq(size, 0)
    powers = where(zero, 0.0 if order > 0 else INFINITY, pow(where(zero, 1, size), order))
    total = reduce_sum(powers, dims, keepdim)
    none = comparison.eq(total, 0)
    return where(none, 0.0 if order > 0 else INFINITY, pow(where(none, 1, total), 1 / order))


def _floats(input: Tensor) -> Tensor:
    """The array wide, or PyTorch's error for what has no norm."""
    if input.dtype not in kinds.FLOATS:
        raise _not_floats(input.dtype)
    return wide(input)


def _not_floats(dtype: str) -> RuntimeError:
    return RuntimeError(
        f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {type_name(dtype)}"
    )


def _order(order: Any) -> float:
    """A norm's order as a number; TypeError, or NotImplementedError for a norm of matrices."""
    if order is None or order == "fro":
        return 2.0
    if isinstance(order, str):
        raise NotImplementedError(f"norm: expected p to be a number or 'fro', got {order!r}")
    if not isinstance(order, (int, float)):
        raise TypeError(f"norm: expected p to be a number or 'fro', got {type(order).__name__}")
    return float(order)


def _has_least(input: Tensor, order: float, dims: tuple[int, ...]) -> None:
    """RuntimeError for a norm of nothing that would be the least of nothing."""
    if (order < 0 or order == INFINITY) and any(
        isinstance(s := input.shape[k], int) and s == 0 for k in dims
    ):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {order:g} norm on an empty tensor because the operation "
            "does not have an identity"
        )


def _check_dtype(own: str, dtype: Any) -> None:
    """RuntimeError for an input without norm, and for a dtype of the result that cannot hold its values."""
    if own not in kinds.FLOATS:
        raise _not_floats(own)
    if dtype is None:
        return
    name = dtype_name(dtype)
    if name not in kinds.FLOATS:
        raise RuntimeError(f"linalg.vector_norm: dtype should be floating point, but got {type_name(name)}")
    place = kinds.FLOATS.index
    if own != name and (place(name) < 2 or place(name) < place(own)):
        raise RuntimeError(
            f"linalg.vector_norm: the dtype of the input ({type_name(own)}) should be convertible without "
            f"narrowing to the specified dtype ({type_name(name)})"
        )


def _reference(np: ModuleType, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    order = 2.0 if order in (None, "fro") else float(order)
    axes = tuple(range(x.ndim)) if dim is None else dim
    size = np.abs(np.asarray(x, np.float64))
    if order in (INFINITY, -INFINITY):
        result = (np.max if order > 0 else np.min)(size, axis=axes, keepdims=keepdim)
    elif order == 0:
        result = (size != 0).sum(axis=axes, keepdims=keepdim)
    else:
        result = (size**order).sum(axis=axes, keepdims=keepdim) ** (1 / order)
    return np.asarray(result).astype(x.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), 2, 1), {"keepdim": True}),
        lambda rng, t: ((d.array(rng, (3, 5), t), 1, 0), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), 3.5, -1), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), -INFINITY, (0, 1)), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), 0, 1), {}),
    ),
    reference=d.reference(_reference),
    failures=d.failures(((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "linalg.vector_norm")),
    public=False,
    tests=d.Tests(
        kinks=lambda np: (np.array([0.0, 0.0]),),
        rounding=4.0,
        history="of order 0 the gradient is zeros; PyTorch has none",
    ),
)
def norm(
    input: Tensor,
    p: Structure = "fro",
    dim: Structure = None,
    keepdim: Structure = False,
    dtype: Structure = None,
) -> Any:
    """The `p`-norm over `dim` (None: all) for any number p, "fro" being 2; floats. Its derivative at 0 is 0.

    "nuc": of a matrix, or of two dims, the sum of its singular values (kiln.linalg.matrix_norm). RuntimeError
    for integers, for a `dtype` narrower than the input's, and for the least of nothing.

    >>> kiln.norm(kiln.tensor([3.0, 4.0]))
    tensor(5.)
    """
    order, dims = _order(p), normalize_dims(dim, input.ndim, "norm")
    x, name = _floats(input), input.dtype if dtype is None else dtype_name(dtype)
    return narrow(norm_over(narrow(x, name) if name == "float64" else x, order, dims, keepdim), name)


forms("norm", '(input, p: float | str | None = "fro", dim=None, keepdim=False, out=None, dtype=None)')


@public("norm", differs="second derivatives at 0 are 0; PyTorch's are NaN")
def checked_norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Any:
    if p == "nuc":
        dims = range(input.ndim) if dim is None else dim
        result = registry.function("linalg.matrix_norm")(input, p, tuple(dims), keepdim, dtype=dtype)
        return result if out is None else out.copy_(result)
    order = _order(p)
    _check_dtype(dtype_name(input.dtype), dtype)
    _has_least(input, order, normalize_dims(dim, input.ndim, "norm"))
    return norm.handle(input, order, dim, keepdim, dtype, **into(out))


checked_norm.__doc__ = norm.doc


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (3, 5), t), 1), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (3, 1), t), 0.5), {}),
    ),
    reference=d.reference(lambda np, x, y, order=2: _reference(np, x - y, order)),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size"),
        ((d.Zeros(2, dtype="int64"), d.Zeros(2, dtype="int64")), {}, RuntimeError, "floating point"),
    ),
)
def dist(input: Tensor, other: Tensor, p: Structure = 2) -> Any:
    """The `p`-norm of input - other, broadcast; floats. RuntimeError for integers.

    >>> kiln.dist(kiln.tensor([1.0, 2.0]), kiln.tensor([4.0, 6.0]))
    tensor(5.)
    """
    name = kinds.result_type((input, other))
    if name not in kinds.FLOATS:
        raise RuntimeError(
            f"norm(): input dtype should be either floating point or complex. Got {type_name(name)} instead."
        )
    apart = wide(narrow(input, name)) - wide(narrow(other, name))
    return narrow(norm_over(apart, _order(p), tuple(range(apart.ndim)), False), name)


forms("normalize", "(input, p=2.0, dim: int | Sequence[int] = 1, eps=1e-12, *, out=None)")


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), 3.0, (0, -1)), {}),
        lambda rng, t: ((d.array(rng, (4,), t), 1.0, 0, 20.0), {}),
    ),
    reference=d.reference(
        lambda np, x, order=2.0, dim=1, eps=1e-12: (
            x / np.maximum(_reference(np, np.asarray(x, np.float64), order, dim, True), eps)
        ).astype(x.dtype)
    ),
    failures=d.failures(
        ((d.Zeros(2),), {}, IndexError, "Dimension out of range"),
        ((d.Zeros(2, 2, dtype="int64"),), {}, RuntimeError, "linalg.vector_norm"),
    ),
    method=False,
)
def normalize(input: Tensor, p: Structure = 2.0, dim: Structure = 1, eps: Number = 1e-12) -> Any:
    """`input` over its `p`-norm along `dim`, which counts as at least `eps`; floats.

    IndexError for a dim out of range, RuntimeError for integers.

    >>> kiln.nn.functional.normalize(kiln.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    order, dims, x = _order(p), normalize_dims(dim, input.ndim, "normalize"), _floats(input)
    return narrow(x / clamp_min(norm_over(x, order, dims, True), eps), input.dtype)


def _renormed(np: ModuleType, x: Any, order: float, dim: int, maxnorm: float) -> Any:
    axes = tuple(k for k in range(x.ndim) if k != dim % x.ndim)
    size = _reference(np, np.asarray(x, np.float64), order, axes, True)
    return (x * np.where(size > maxnorm, maxnorm / (size + 1e-7), 1)).astype(x.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), 2, 0, 1.0), {}),
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), 1.5, -1, 9.0), {}),
    ),
    reference=d.reference(_renormed),
    failures=d.failures(
        ((d.Zeros(2, 2), -1, 0, 1.0), {}, RuntimeError, "non-positive-norm not supported"),
        ((d.Zeros(2), 2, 0, 1.0), {}, RuntimeError, "needs at least 2 dimensions"),
        ((d.Zeros(2, 2), 2, 5, 1.0), {}, IndexError, "Dimension out of range"),
    ),
    inplace=True,
)
def renorm(input: Tensor, p: Structure, dim: Structure, maxnorm: Number) -> Any:
    """`input` with each part along `dim` whose `p`-norm is above `maxnorm` scaled down to it; floats.

    RuntimeError for integers, p <= 0, or fewer than two dims.

    >>> kiln.renorm(kiln.tensor([[3.0, 4.0], [0.3, 0.4]]), 2, 0, 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    order = _order(p)
    if not order > 0:
        raise RuntimeError("renorm: non-positive-norm not supported")
    if input.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions")
    kept, x = normalize_dim(dim, input.ndim, "renorm"), _floats(input)
    dims = tuple(k for k in range(input.ndim) if k != kept)
    size = norm_over(x, order, dims, True)
    return narrow(x * where(comparison.gt(size, maxnorm), maxnorm / (size + 1e-7), 1.0), input.dtype)
