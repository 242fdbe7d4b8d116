"""Ranks: medians, modes and quantiles, all made of a sorted order."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.graph.size import quotient
from kiln.ops.creation.constants import full
from kiln.ops.creation.constants import positions as positions_along
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.three_operands import lerp
from kiln.ops.indexing.gathering import gather
from kiln.ops.named_results import located
from kiln.ops.reductions.core_reductions import reduce_any, reduce_argmax, reduce_sum
from kiln.ops.reductions.extrema import not_empty
from kiln.ops.reductions.scans import scan_argmax
from kiln.ops.sorting.sorts import sort, sort_positions
from kiln.ops.views.core_views import movedim, reshape
from kiln.ops.views.splits import select
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, expect, is_float, is_symbolic, may_expect, numel, run
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Structure, Tensor, composite, find
from kiln.table.registry import forms

# Positions along a dim, which is kept with size 1


def _nan_like(t: str, rng: Any, shape: tuple[int, ...]) -> Any:
    x = d.array(rng, shape, t)
    if x.dtype.kind == "f":
        x.reshape(-1)[::4] = float("nan")
    return x


@composite(
    public=False,
    dtypes="numeric",
    differentiable=False,
    gives_positions=True,
    samples=d.samples(
        lambda rng, t: ((d.distinct(rng, (3, 6), t), 1), {}),
        lambda rng, t: ((_nan_like(t, rng, (5, 2)), 0), {}),
    ),
    reference=d.reference(lambda np, x, dim: _median_place(np, x, dim)),
)
def median_place(input: Tensor, dim: Structure) -> Any:
    """Where the lower median along `dim` is: the first NaN, if there is one.

    >>> kiln.tensor([3, 1, 2]).median(0).indices
    tensor(2)
    """
    count = input.shape[dim] - 1
    half = count // 2 if isinstance(count, int) else quotient(count, 2)
    found = sort_positions(input, dim, False, (half, 1))
    if not is_float(input):
        return found
    nan = reduce_any(comparison.ne(input, input), (dim,), True)
    return p.where(nan, reduce_argmax(input, (dim,), True), found)


def _median_place(np: ModuleType, x: Any, dim: int) -> Any:
    order = np.argsort(x, dim, kind="stable")
    found = np.take(order, [(x.shape[dim] - 1) // 2], dim)
    if x.dtype.kind != "f":
        return found
    nan = np.isnan(x)
    return np.where(nan.any(dim, keepdims=True), nan.argmax(dim, keepdims=True), found)


@composite(
    public=False,
    dtypes="float",
    differentiable=False,
    samples=d.samples(lambda rng, t: ((_nan_like(t, rng, (5, 6)), 1), {})),
    reference=d.reference(
        lambda np, x, dim: np.take_along_axis(
            np.argsort(x, dim, kind="stable"),
            np.maximum(((~np.isnan(x)).sum(dim, keepdims=True) - 1) // 2, 0),
            dim,
        )
    ),
)
def nanmedian_place(input: Tensor, dim: Structure) -> Any:
    """Where the lower median of what is not NaN is along `dim`.

    >>> kiln.tensor([3.0, float("nan"), 2.0]).nanmedian(0).indices
    tensor(2)
    """
    order = sort_positions(input, dim, False, (0, input.shape[dim]))
    count = reduce_sum(p.convert(comparison.eq(input, input), "int64"), (dim,), True)
    rank = p.where(comparison.gt(count, 0), p.floor_divide(p.sub(count, 1), 2), 0)
    return gather(order, dim, rank)


@composite(
    public=False,
    dtypes="numeric",
    differentiable=False,
    gives_positions=True,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 9), t, 0, 3).round().astype(d.held(t)), 1), {})),
    reference=d.reference(lambda np, x, dim: _mode_place(np, x)),
)
def mode_place(input: Tensor, dim: Structure) -> Any:
    """The last place along `dim` of the most frequent value; of several, of the smallest.

    >>> kiln.tensor([3, 1, 3]).mode(0).indices
    tensor(2)
    """
    order = sort_positions(input, dim, False, (0, input.shape[dim]))
    rows = gather(input, dim, order)
    here = positions_along(order, dim)
    fresh = comparison.ne(rows, gather(rows, dim, p.where(comparison.gt(here, 0), p.sub(here, 1), 0)))
    began = p.where(fresh, here, 0)  # the run of equals: at the largest so far
    start = gather(began, dim, scan_argmax(began, dim, "int64"))
    return gather(order, dim, reduce_argmax(here - start, (dim,), True))


def _mode_place(np: ModuleType, x: Any) -> Any:
    found = []
    for row in x:
        values, counts = np.unique(row, return_counts=True)
        found.append(np.flatnonzero(row == values[counts.argmax()])[-1])
    return np.array(found)[:, None]


# Their public forms


def _at_places(input: Tensor, dim: int, place: Any, name: str, keepdim: bool, out: Any) -> Any:
    """Values and positions along a dim of an array of any rank."""
    dim = normalize_dim(dim, input.ndim, name)
    not_empty(input, (dim,), name)
    if input.ndim == 0:
        return located(name, p.clone(input), run(full, 0, (), "int64"), out)
    indices = place(input, dim)
    values = gather(input, dim, indices)
    if not keepdim:
        values, indices = select(values, dim, 0), select(indices, dim, 0)
    return located(name, values, indices, out)


@composite(
    public=False,
    dtypes="numeric",
    samples=d.samples(
        lambda rng, t: ((d.distinct(rng, (15,), t), False), {}),
        lambda rng, t: ((d.distinct(rng, (4,), t), True), {}),
    ),
    reference=d.reference(lambda np, x, ignore_nan: np.sort(x)[(x.size - 1) // 2]),
)
def middle(input: Tensor, ignore_nan: Structure) -> Any:
    """The lower median of a vector.

    >>> kiln.tensor([1.0, 2.0, 3.0]).median()
    tensor(2.)
    """
    place = nanmedian_place if ignore_nan and is_float(input) else median_place
    return reshape(gather(input, 0, place(input, 0)), ())


@middle.derivative
def _(g: Tensor, input: Tensor, y: Tensor) -> Tensor:
    """Shared by all that equal it."""
    same = comparison.eq(input, y) | (comparison.ne(input, input) & comparison.ne(y, y))
    return p.where(same, g / reduce_sum(p.convert(same, g.dtype), (0,), False), 0)


def _middle(input: Tensor, ignore_nan: bool) -> Any:
    """The median of all elements."""
    flat = reshape(input, (numel(input.shape),))
    if not is_symbolic(flat.shape) and flat.shape[0] == 0:
        return run(full, float("nan"), (), dtype_name(input.dtype))
    return middle(flat, ignore_nan)


_MEDIANS = d.samples(
    lambda rng, t: ((d.distinct(rng, (3, 5), t),), {}),
    lambda rng, t: ((d.distinct(rng, (3, 6), t), 1), {}),
    lambda rng, t: ((d.distinct(rng, (4, 2), t), 0, True), {}),
)
_NO_DIM = d.failures(((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range"))


forms("median", "(input) -> Tensor", "(input, dim: int, keepdim=False, *, out=None) -> values, indices")


@public("median", dtypes="numeric", samples=_MEDIANS, failures=_NO_DIM)
def median(input: Any, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """The median: of all elements, or along `dim` with where it is, (values, indices); of two the lower.

    NaN if there is one. Of all elements, equals share the gradient. IndexError for a dim out of range or of
    size 0.

    >>> kiln.median(kiln.tensor([3, 1, 2]))
    tensor(2)
    """
    if dim is None:
        return _middle(input, False)
    return _at_places(input, dim, median_place, "median", keepdim, out)


forms("nanmedian", "(input) -> Tensor", "(input, dim: int, keepdim=False, *, out=None) -> values, indices")


@public("nanmedian", dtypes="numeric", samples=_MEDIANS, failures=_NO_DIM)
def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """`median` of what is not NaN; NaN where all are.

    >>> kiln.nanmedian(kiln.tensor([3.0, float("nan"), 2.0]))
    tensor(2.)
    """
    if dim is None:
        return _middle(input, True)
    place = nanmedian_place if is_float(input) else median_place
    return _at_places(input, dim, place, "nanmedian", keepdim, out)


forms("mode", "-> values, indices")


@public("mode", differs="the last place of the value; PyTorch leaves open which", dtypes="numeric",
        samples=d.samples(
    lambda rng, t: ((d.distinct(rng, (3, 9), t),), {}),
    lambda rng, t: ((d.distinct(rng, (9, 2), t), 0, True), {}),
), failures=_NO_DIM)  # fmt: skip
def mode(input: Any, dim: int = -1, keepdim: bool = False, *, out: Any = None) -> Any:
    """The most frequent value along `dim` (of several the smallest) and its last place: (values, indices).

    IndexError for a dim out of range or of size 0.

    >>> kiln.mode(kiln.tensor([3, 1, 3])).values
    tensor(3)
    """
    return _at_places(input, dim, mode_place, "mode", keepdim, out)


# Quantiles

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(name: str, ignore_nan: bool) -> Any:
    """quantile or nanquantile."""

    def function(
        input: Tensor,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        out: Any = None,
    ) -> Any:
        _check_quantile(name, input, q, interpolation)
        many = hasattr(q, "ndim") and q.ndim == 1
        ranks = (
            reshape(q, (numel(q.shape),))
            if hasattr(q, "ndim")
            else run(full, q, (1,), dtype_name(input.dtype))
        )
        shape = _kept(input, dim, keepdim)
        if dim is None or input.ndim == 0:
            rows = reshape(input, (numel(input.shape),))
        else:
            rows = movedim(input, dim, -1)
        found = movedim(_ranked(sort(rows, -1).values, ranks, interpolation, ignore_nan), -1, 0)
        found = reshape(found, (*((ranks.shape[0],) if many else ()), *shape))
        return p.written_to(found, out)

    what = "of what is not NaN" if ignore_nan else "NaN if there is one"
    function.__doc__ = f"""The `q`-quantiles along `dim` (a number, or a vector: a new first dim); {what}.

    `interpolation` between two elements: linear, lower, higher, midpoint, nearest. RuntimeError for a dtype
    other than float32 and float64, or a q outside [0, 1].

    >>> kiln.{name}(kiln.tensor([0.0, 1.0, 2.0]), 0.75)
    tensor(1.5000)
    """
    return public(
        name,
        differs="of any size; PyTorch's of up to 16 million elements",
        dtypes="float32 float64",
        samples=d.samples(
            lambda rng, t: ((d.distinct(rng, (3, 5), t), 0.3), {}),
            lambda rng, t: ((d.distinct(rng, (3, 5), t), d.array(rng, (2,), t, 0, 1), 1), {"keepdim": True}),
            lambda rng, t: ((d.distinct(rng, (6, 2), t), 0.7, 0), {"interpolation": "midpoint"}),
        ),
        failures=d.failures(
            ((d.Zeros(3), 1.5), {}, RuntimeError, "range"),
            ((d.Zeros(3, dtype="int64"), 0.5), {}, RuntimeError, "float or double"),
        ),
    )(function)


def _check_quantile(name: str, input: Tensor, q: Any, interpolation: str) -> None:
    if not hasattr(q, "ndim") and not 0 <= q <= 1:
        raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
    if dtype_name(input.dtype) not in ("float32", "float64"):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got "
            f"{interpolation}"
        )
    if not is_symbolic(input.shape) and numel(input.shape) == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if hasattr(q, "ndim"):
        if q.ndim > 1 or dtype_name(q.dtype) != dtype_name(input.dtype):
            raise RuntimeError(
                f"{name}() q must be a number or a vector of the same dtype as the input tensor"
            )
        inside = comparison.ge(q, 0) & comparison.le(q, 1)
        if may_expect(q):
            expect(inside, RuntimeError, f"{name}() q values must be in the range [0, 1]")


def _kept(input: Tensor, dim: int | None, keepdim: bool) -> tuple[Any, ...]:
    """The shape after reducing `dim` (None: all)."""
    if dim is None:
        return (1,) * input.ndim if keepdim else ()
    dim = normalize_dim(dim, input.ndim, "quantile")
    shape = tuple(input.shape)
    return (*shape[:dim], *((1,) if keepdim and shape else ()), *shape[dim + 1 :])


def _ranked(rows: Any, q: Any, interpolation: str, ignore_nan: bool) -> Any:
    """The quantiles of ascending rows along their last dim: [.., n] and [k] -> [.., k]."""
    last, dtype = rows.ndim - 1, dtype_name(rows.dtype)
    good = comparison.eq(rows, rows)
    count = find("sum").handle(good, last, True) if ignore_nan else rows.shape[last]
    top = p.where(comparison.gt(count, 0), count - 1, 0) if ignore_nan else count - 1
    rank = p.mul(q, p.convert(top, dtype) if ignore_nan else top)
    if interpolation == "nearest":
        rank = rank.round()
    below = rank.floor() if interpolation != "higher" else rank.ceil()
    shape = (*rows.shape[:-1], q.shape[0])
    wide = [p.convert(b, "int64").expand(shape) for b in (below, rank.ceil())]
    lower = gather(rows, last, wide[0])
    if interpolation in ("linear", "midpoint"):
        weight = p.sub(rank, below) if interpolation == "linear" else _half(rank, below)
        lower = lerp(lower, gather(rows, last, wide[1]), weight.expand(shape))
    if ignore_nan:
        return lower
    return p.where(find("all").handle(good, last, True), lower, float("nan"))


def _half(rank: Any, below: Any) -> Any:
    return p.where(comparison.eq(rank, below), 0.0, 0.5) + p.mul(rank, 0)


quantile = _quantile("quantile", False)
nanquantile = _quantile("nanquantile", True)
