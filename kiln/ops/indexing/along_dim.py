"""Slices at a vector of positions along one dim: index_add, index_copy, index_fill, index_reduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from kiln.ops.creation.constants import full
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.indexing.gathering import scatter_add, vector
from kiln.ops.indexing.scattering import REDUCE, out_of, scatter_reduce, scatter_set, wrapped
from kiln.ops.views.core_views import expand, reshape
from kiln.table import arguments
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import IndexCheck, Number, Structure, Tensor, composite


def _across(x: Tensor, dim: int, index: Any) -> Tensor:
    """A vector of positions along `dim` as an index of x's other dims, without memory."""
    shape = (*(1,) * dim, index.shape[0], *(1,) * (x.ndim - dim - 1))
    return expand(reshape(index, shape), (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]))


def _by_vector(input: Tensor, dim: int, index: Any, source: Tensor, op: str) -> tuple[Any, Any, int, Any]:
    """Input, source, dim and index of an op of a vector, as arrays of a dim at least."""
    dim = normalize_dim(dim, input.ndim, op)
    index = vector(index, op)
    index = reshape(index, (1,)) if index.ndim == 0 else index
    flat = reshape(input, (1,)) if input.ndim == 0 else input
    if source is not None:
        source = reshape(source, (1,)) if source.ndim == 0 else source
        _check_source(flat, dim, index, source, op)
    return flat, source, dim, index


def _settled(run: Callable[..., Any], input: Tensor, out: Any) -> Any:
    """The result of run(out=), which sees a 0-d input as a vector, in input's shape."""
    if input.ndim:
        return run(**out_of(out, input))
    return p.written_to(reshape(run(), ()), out, input)


def _check_source(x: Tensor, dim: int, index: Any, source: Tensor, op: str) -> None:
    if x.dtype != source.dtype and dtype_name(x.dtype) != dtype_name(source.dtype):
        raise RuntimeError(
            f"{op}(): self and source expected to have the same dtype, but got (self) {x.dtype} and (source) "
            f"{source.dtype}"
        )
    sizes = x.shape
    wanted = (*sizes[:dim], index.shape[0], *sizes[dim + 1 :])
    if source.shape == wanted:
        return
    if op.startswith("index_copy") and source.ndim > dim and source.shape[dim] != index.shape[0]:
        raise IndexError(
            f"{op}(): Number of indices ({index.shape[0]}) should be equal to source.size(dim) "
            f"({source.shape[dim]})"
        )
    if tuple(source.shape) != tuple(wanted):
        if source.ndim == len(wanted) and source.shape[dim] != index.shape[0]:
            raise RuntimeError(
                f"{op}(): Number of indices ({index.shape[0]}) should be equal to source.size(dim): "
                f"({source.shape[dim]}), for dim: {dim}"
            )
        raise RuntimeError(
            f"{op}(): source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
        )


_VECTOR = d.samples(
    lambda rng, t: ((d.array(rng, (4, 3), t), 0, rng.permutation(4)[:3], d.array(rng, (3, 3), t)), {}),
    lambda rng, t: ((d.array(rng, (2, 5, 2), t), -2, rng.permutation(5)[:2], d.array(rng, (2, 2, 2), t)), {}),
)


def _failing(matrix: str = "vector") -> Any:
    """A position out of range, and a matrix of positions, with what is said of it."""
    return d.failures(
        (
            (d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=7), d.Zeros(1)),
            {},
            IndexError,
            "out of",
        ),
        ((d.Zeros(2), 0, d.Zeros(1, 1, dtype="int64"), d.Zeros(1)), {}, IndexError, matrix),
    )


@composite(
    checks=IndexCheck("index", "input", "dim", IndexError, "index out of range in self"),
    dtypes="numeric",
    public=False,
    samples=_VECTOR,
    reference=d.reference(
        lambda np, x, dim, index, source, alpha=1: _added(np, x, dim, index, source * alpha)
    ),
    failures=_failing(),
)
def add_at(input: Tensor, dim: Structure, index: Tensor, source: Tensor, alpha: Number = 1) -> Any:
    """index_add of arrays that fit.

    >>> kiln.zeros(3).index_add(0, kiln.tensor([0, 0]), kiln.ones(2))
    tensor([2., 0., 0.])
    """
    dim = normalize_dim(dim, input.ndim, "index_add")
    index = vector(index, "index_add")
    scaled = narrow(p.mul(wide(source), alpha), input.dtype)
    return scatter_add(input, dim, _across(source, dim, index), scaled)


def _added(np: ModuleType, x: Any, dim: int, index: Any, source: Any) -> Any:
    out = x.copy()
    np.add.at(np.moveaxis(out, dim, 0), index, np.moveaxis(source, dim, 0))
    return out


@public(
    "index_add",
    differs="equal places add up in their order, at every number of threads",
    inplace=True,
    dtypes="numeric",
    samples=_VECTOR,
    failures=_failing(),
)
def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """`input` with `alpha` times the slices of `source` added at the positions in the vector `index`.

    Repeated positions add up in order. IndexError for a position or dim out of range, RuntimeError if shapes
    or dtypes do not fit.

    >>> kiln.zeros(3).index_add(0, kiln.tensor([0, 0]), kiln.ones(2))
    tensor([2., 0., 0.])
    """
    x, source, dim, index = _by_vector(input, dim, index, source, "index_add")
    if out is None and input.ndim:
        return add_at.handle(x, dim, index, source, alpha)
    return _settled(partial(add_at, x, dim, index, source, alpha), input, out)


@composite(
    checks=IndexCheck("index", "input", "dim", IndexError, "index out of range in self"),
    dtypes="numeric",
    public=False,
    samples=_VECTOR,
    reference=d.reference(lambda np, x, dim, index, source: _copied(np, x, dim, index, source)),
    failures=_failing("should have dimension 1 or 0"),
)
def copy_at(input: Tensor, dim: Structure, index: Tensor, source: Tensor) -> Any:
    """index_copy of arrays that fit.

    >>> kiln.zeros(3).index_copy(0, kiln.tensor([2]), kiln.ones(1))
    tensor([0., 0., 1.])
    """
    dim = normalize_dim(dim, input.ndim, "index_copy")
    index = vector(index, "index_copy")
    return scatter_set(input, dim, _across(source, dim, index), source)


def _copied(np: ModuleType, x: Any, dim: int, index: Any, source: Any) -> Any:
    out = x.copy()
    np.moveaxis(out, dim, 0)[index] = np.moveaxis(source, dim, 0)
    return out


@public(
    "index_copy",
    differs="of equal places the last stays; PyTorch leaves that open",
    inplace=True,
    dtypes="numeric",
    samples=_VECTOR,
    failures=_failing("should have dimension 1 or 0"),
)
def index_copy(input: Any, dim: int, index: Any, source: Any, *, out: Any = None) -> Any:
    """`input` with the slices of `source` at the positions in the vector `index`; of equals the last.

    IndexError for a position or dim out of range, RuntimeError if shapes or dtypes do not fit.

    >>> kiln.zeros(3).index_copy(0, kiln.tensor([2]), kiln.ones(1))
    tensor([0., 0., 1.])
    """
    x, source, dim, index = _by_vector(input, dim, index, source, "index_copy")
    return _settled(partial(copy_at, x, dim, index, source), input, out)


@public("index_fill", inplace=True, dtypes="numeric", samples=d.samples(
    lambda rng, t: ((d.array(rng, (4, 3), t), 0, rng.integers(-4, 4, (2,)), 2), {}),
    lambda rng, t: ((d.array(rng, (2, 5), t), 1, rng.integers(0, 5, (3,)), d.array(rng, (), t)), {}),
), failures=d.failures(
    ((d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=7), 1), {}, IndexError, "out of bounds"),
    ((d.Zeros(2), 3, d.Zeros(1, dtype="int64"), 1), {}, IndexError, "out of range"),
))  # fmt: skip
def index_fill(input: Any, dim: int, index: Any, value: Any, *, out: Any = None) -> Any:
    """`input` with one number (or 0-d array) at the positions in the vector `index` along `dim`.

    IndexError for a position or dim out of range.

    >>> kiln.zeros(3).index_fill(0, kiln.tensor([0, -1]), 1)
    tensor([1., 0., 1.])
    """
    if hasattr(value, "ndim") and value.ndim:
        raise RuntimeError(
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    x, _, dim, index = _by_vector(input, dim, index, None, "index_fill")
    index = wrapped(index, x, dim)
    if hasattr(value, "ndim"):  # its gradient is that of every place once, however often it is named
        one = value if value.dtype == input.dtype else p.convert(value, dtype_name(input.dtype))
        count = x.shape[dim]
        chosen = copy_at(_flags(False, count), 0, index, _flags(True, index.shape[0]))
        chosen = reshape(chosen, [count if k == dim else 1 for k in range(x.ndim)])
        return _settled(partial(p.where, chosen, one, x), input, out)
    one = arguments.run(full, value, (), dtype_name(input.dtype))
    shape = (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])
    return _settled(partial(copy_at, x, dim, index, expand(one, tuple(shape))), input, out)


def _flags(value: bool, count: Any) -> Any:
    return arguments.run(full, value, (count,), "bool")


@public("index_reduce", inplace=True, dtypes="float",
        differs="without `include_self` it takes no share of a gradient among equals; in PyTorch it does",
        samples=d.samples(
    lambda rng, t: (
        (d.array(rng, (4, 3), t), 0, rng.integers(0, 4, (5,)), d.array(rng, (5, 3), t), "amax"), {}
    ),
    lambda rng, t: (
        (d.array(rng, (2, 4), t, 0.5), 1, rng.integers(0, 4, (5,)), d.array(rng, (2, 5), t, 0.5), "prod"),
        {"include_self": False},
    ),
), failures=d.failures(
    ((d.Zeros(2), 0, d.Zeros(1, dtype="int64"), d.Zeros(1), "sum"), {}, RuntimeError, "reduce argument"),
))  # fmt: skip
def index_reduce(
    input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True, out: Any = None
) -> Any:
    """`input` with the slices of `source` reduced in at positions: "prod", "mean", "amax" or "amin".

    IndexError for a position or dim out of range, RuntimeError if shapes or dtypes do not fit.

    >>> kiln.ones(3).index_reduce(0, kiln.tensor([0, 0]), kiln.tensor([2.0, 3.0]), "amax")
    tensor([3., 1., 1.])
    """
    if reduce not in REDUCE or reduce == "sum":
        raise RuntimeError(
            f"index_reduce(): Expected reduce argument prod, mean, amax or amin, got {reduce}."
        )
    x, source, dim, index = _by_vector(input, dim, index, source, "index_reduce")
    run = partial(scatter_reduce, x, dim, _across(source, dim, index), source, reduce)
    return _settled(partial(run, include_self=include_self), input, out)
