"""Order: sorting, the largest and smallest, ranks, positions in a sorted array."""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

from kiln import _core
from kiln.ops.creation.constants import full
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.indexing.gathering import gather
from kiln.ops.named_results import located
from kiln.ops.views.core_views import expand, permute, reshape
from kiln.ops.views.splits import select
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, run
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Sizes, Structure, Tensor, primitive
from kiln.table.registry import forms

LONGEST = 1 << 32  # elements along a sorted dim: a position is half a word


def _ordered(np: ModuleType, x: Any, dim: int, descending: bool, ranks: Any) -> Any:
    moved = np.moveaxis(np.asarray(x), dim, -1)
    if descending:
        backwards = moved[..., ::-1]
        order = moved.shape[-1] - 1 - np.argsort(backwards, -1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(moved, -1, kind="stable")
    return np.moveaxis(order[..., ranks[0] : ranks[0] + ranks[1]], -1, dim)


@primitive(
    "along",
    algorithm="sort",
    dtypes="all",
    public=False,
    differentiable=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 7), t), 1, False, (0, 7)), {}),
        lambda rng, t: ((d.array(rng, (50, 2), t), 0, True, (0, 50)), {}),
        lambda rng, t: ((d.array(rng, (2, 300), t), 1, True, (0, 3)), {}),
        lambda rng, t: ((d.array(rng, (2, 300), t), 1, False, (150, 1)), {}),
    ),
    reference=d.reference(_ordered),
)
def sort_positions(input: Tensor, dim: Structure, descending: Structure, ranks: Sizes) -> Any:
    """The positions along `dim` of some ranks (first, count), equals as they come, NaN as the largest.

    >>> kiln.argsort(kiln.tensor([3, 1, 2]))
    tensor([1, 2, 0])
    """


sort_positions.gives_positions = True


@primitive(
    "along",
    algorithm="search",
    dtypes="numeric",
    public=False,
    differentiable=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (9,), t), _sorted_columns(rng, t, (12, 9)), "left"), {}),
        lambda rng, t: ((d.array(rng, (3, 4), t), _sorted_columns(rng, t, (7, 3, 4)), "right"), {}),
    ),
    reference=d.reference(
        lambda np, x, rows, side: (rows < x if side == "left" else rows <= x).sum(0).astype("int64")
    ),
)
def search(input: Tensor, rows: Tensor, side: Structure) -> Any:
    """How many of the ascending rows[:, i..] come before input[i..]: those below, or not above ("right").

    >>> kiln.searchsorted(kiln.tensor([1, 3, 5]), kiln.tensor([3, 4]))
    tensor([1, 2])
    """


def _sorted_columns(rng: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    found = d.array(rng, shape, dtype)
    found.sort(0)
    return found


def positions(input: Tensor, dim: int, descending: bool, first: int = 0, count: Any = None) -> Any:
    """sort_positions along a normal dim of an array of any rank; all unless `count` says."""
    if input.ndim == 0:
        return _zero(input)
    size = input.shape[dim]
    if isinstance(size, int) and size >= LONGEST:
        raise RuntimeError(f"sort: expected fewer than 2^32 elements along dim {dim}, got {size}")
    return sort_positions(input, dim, bool(descending), (first, size if count is None else count))


def _zero(input: Tensor) -> Tensor:
    return reshape(sort_positions(reshape(input, (1,)), 0, False, (0, 1)), ())


def _chosen(input: Tensor, dim: int, indices: Tensor) -> Any:
    return gather(input, dim, indices) if input.ndim else p.clone(input)


_BAD_DIM = d.failures(((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range"))


forms("sort", "-> values, indices")


@public("sort", differs="always stable", dtypes="numeric", samples=d.samples(
    lambda rng, t: ((d.distinct(rng, (4, 5), t),), {}),
    lambda rng, t: ((d.distinct(rng, (3, 40, 2), t), 1, True), {}),
    lambda rng, t: ((d.array(rng, (2, 9), t),), {"stable": True, "dim": 0}),
), failures=_BAD_DIM)  # fmt: skip
def sort(
    input: Any, dim: int = -1, descending: bool = False, stable: bool = False, *, out: Any = None
) -> Any:
    """The elements in order along `dim` and where they were: (values, indices); NaN is the largest.

    Always stable. The gradient goes where each element was. IndexError for a dim out of range.

    >>> kiln.sort(kiln.tensor([3, 1, 2])).values
    tensor([1, 2, 3])
    """
    dim = normalize_dim(dim, input.ndim, "sort")
    indices = positions(input, dim, descending)
    return located("sort", _chosen(input, dim, indices), indices, out)


@public("argsort", differs="always stable", dtypes="numeric", differentiable=False, samples=d.samples(
    lambda rng, t: ((d.distinct(rng, (4, 5), t),), {}),
    lambda rng, t: ((d.array(rng, (9,), t),), {"stable": True, "descending": True}),
), failures=_BAD_DIM)  # fmt: skip
def argsort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """The positions that sort `input` along `dim`, equals as they come: int64. IndexError for a dim out of
    range.

    >>> kiln.argsort(kiln.tensor([3, 1, 2]))
    tensor([1, 2, 0])
    """
    return positions(input, normalize_dim(dim, input.ndim, "argsort"), descending)


@public(
    "msort",
    differs="always stable",
    dtypes="numeric",
    samples=d.samples(lambda rng, t: ((d.distinct(rng, (7, 3), t),), {})),
)
def msort(input: Any, *, out: Any = None) -> Any:
    """`input` sorted along dim 0.

    >>> kiln.msort(kiln.tensor([3, 1, 2]))
    tensor([1, 2, 3])
    """
    return p.written_to(sort(input, 0).values, out)


forms("topk", "-> values, indices")


@public("topk",
    differs="of equals the earlier; sorted even without `sorted`", dtypes="numeric", samples=d.samples(
    lambda rng, t: ((d.distinct(rng, (4, 5), t), 2), {}),
    lambda rng, t: ((d.distinct(rng, (60, 2), t), 3, 0, False), {}),
    lambda rng, t: ((d.distinct(rng, (7,), t), 0), {}),
), failures=d.failures(
    ((d.Zeros(2, 3), 5), {}, RuntimeError, "out of range"),
    ((d.Zeros(2, 3), 1, 2), {}, IndexError, "Dimension out of range"),
))  # fmt: skip
def topk(
    input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: Any = None
) -> Any:
    """The `k` largest (or smallest) elements along `dim`, in order, and where they are: (values, indices).

    NaN is the largest; of equals the earlier. The gradient goes to the chosen. RuntimeError for more than
    there are, IndexError for a dim out of range.

    >>> kiln.topk(kiln.tensor([1, 3, 2]), 2).values
    tensor([3, 2])
    """
    dim = normalize_dim(dim, input.ndim, "topk")
    k = operator.index(k)
    size = input.shape[dim] if input.ndim else 1
    if k < 0 or (isinstance(size, int) and k > size):
        raise RuntimeError(f"selected index k out of range: k is {k}, dim {dim} has {size} elements")
    if input.ndim == 0:
        values, indices = topk(reshape(input, (1,)), k) if k == 0 else (p.clone(input), _zero(input))
        return located("topk", values, indices, out)
    indices = positions(input, dim, largest, 0, k)
    return located("topk", _chosen(input, dim, indices), indices, out)


forms("kthvalue", "-> values, indices")


@public("kthvalue", differs="of equals the earlier", dtypes="numeric", samples=d.samples(
    lambda rng, t: ((d.distinct(rng, (4, 5), t), 2), {}),
    lambda rng, t: ((d.distinct(rng, (30, 2), t), 3, 0, True), {}),
), failures=d.failures(
    ((d.Zeros(2, 3), 5), {}, RuntimeError, "out of range"),
    ((d.Zeros(2, 3), 1, 2), {}, IndexError, "Dimension out of range"),
))  # fmt: skip
def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False, *, out: Any = None) -> Any:
    """The k-th smallest element along `dim` (k from 1) and where it is: (values, indices).

    NaN is the largest. RuntimeError for a k out of range, IndexError for a dim out of range or of size 0.

    >>> kiln.kthvalue(kiln.tensor([3, 1, 2]), 2).values
    tensor(2)
    """
    dim = normalize_dim(dim, input.ndim, "kthvalue")
    size = input.shape[dim] if input.ndim else 1
    if isinstance(size, int) and not size:
        raise IndexError(f"kthvalue(): Expected reduction dim {dim} to have non-zero size.")
    if k < 1 or (isinstance(size, int) and k > size):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    if input.ndim == 0:
        return located("kthvalue", p.clone(input), _zero(input), out)
    indices = positions(input, dim, False, k - 1, 1)
    values = gather(input, dim, indices)
    if not keepdim:
        values, indices = select(values, dim, 0), select(indices, dim, 0)
    return located("kthvalue", values, indices, out)


forms(
    "searchsorted",
    "(sorted_sequence, input: Tensor | float, *, out_int32=False, right=False, side=None, sorter=None, "
    "out=None)",
)


@public(
    "searchsorted",
    method=False,
    dtypes="numeric",
    differentiable=False,
    samples=d.samples(
        lambda rng, t: ((_sorted_rows(rng, t, (12,)), d.array(rng, (3, 4), t)), {}),
        lambda rng, t: ((_sorted_rows(rng, t, (2, 12)), d.array(rng, (2, 4), t)), {"right": True}),
        lambda rng, t: ((_sorted_rows(rng, t, (12,)), 1), {"side": "right", "out_int32": True}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(3, 3)), {}, RuntimeError, "dimensions"),
        ((d.Zeros(3), d.Zeros(3)), {"side": "middle"}, RuntimeError, "side"),
    ),
)
def searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
    out: Any = None,
) -> Any:
    """Where each of `input` goes into the last dim of the ascending `sorted_sequence`, its order kept: int64.

    That is a vector, or has the leading dims of `input`; `sorter` sorts it first. Before equals, or after
    them with `right` (`side="right"`). RuntimeError if the shapes do not fit.

    >>> kiln.searchsorted(kiln.tensor([1, 3, 5]), kiln.tensor([3, 4]))
    tensor([1, 2])
    """
    if side not in (None, "left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError("torch.searchsorted(): side and right can't be set to opposites, got side of left")
    rows = sorted_sequence
    if sorter is not None:
        rows = gather(rows, rows.ndim - 1, sorter)
    values = input if hasattr(input, "ndim") else run(full, input, (), dtype_name(rows.dtype))
    fits = rows.ndim == values.ndim and tuple(rows.shape[:-1]) == tuple(values.shape[:-1])
    if rows.ndim == 0 or (rows.ndim > 1 and not fits):
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of "
            f"boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(rows.shape)} and input value tensor {list(values.shape)}"
        )
    names = [dtype_name(x.dtype) for x in (rows, values)]
    if names[0] != names[1]:
        common = _core.result_type([(n, 0 if x.ndim else 1) for n, x in zip(names, (rows, values))])
        rows, values = p.convert(rows, common), p.convert(values, common)
    found = search(values, _beside(rows, values), "right" if right or side == "right" else "left")
    if out_int32:
        found = p.convert(found, "int32")
    return p.written_to(found, out)


def _beside(rows: Any, values: Any) -> Any:
    """[.., n] as [n, ..values..] without memory."""
    last = rows.ndim - 1
    front = permute(rows, (last, *range(last)))
    shape = (*front.shape, 1) if last else (front.shape[0], *(1,) * values.ndim)
    return expand(reshape(front, shape), (front.shape[0], *values.shape))


def _sorted_rows(rng: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    found = d.array(rng, shape, dtype)
    found.sort(-1)
    return found


forms("bucketize", "(input: Tensor | float, boundaries, *, out_int32=False, right=False, out=None)")


@public(
    "bucketize",
    method=False,
    dtypes="numeric",
    differentiable=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 4), t), _sorted_rows(rng, t, (5,))), {}),
        lambda rng, t: ((d.array(rng, (7,), t), _sorted_rows(rng, t, (5,))), {"right": True}),
    ),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(3, 3)), {}, RuntimeError, "1 dimension")),
)
def bucketize(
    input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False, out: Any = None
) -> Any:
    """The number of the bucket between ascending `boundaries` (a vector) that each of `input` lies in: int64.

    boundaries[i - 1] < x <= boundaries[i], or <= and < with `right`. RuntimeError unless a vector.

    >>> kiln.bucketize(kiln.tensor([1, 4]), kiln.tensor([0, 2, 5]))
    tensor([1, 2])
    """
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right, out=out)
