"""Distinct values and counts: unique, isin, bincount, histograms."""

from __future__ import annotations

from typing import Any

from kiln.ops.creation.constants import full, linspace, zeros
from kiln.ops.creation.data import tensor
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.indexing.concatenation import cat, common
from kiln.ops.indexing.gathering import gather, long, rows_at, scatter_add
from kiln.ops.indexing.masks import flat_places
from kiln.ops.indexing.scattering import scatter_set
from kiln.ops.named_results import named
from kiln.ops.reductions.scans import scan_sum
from kiln.ops.sorting.sorts import argsort, searchsorted, sort
from kiln.ops.views.core_views import expand, movedim, reshape, slice_
from kiln.ops.views.splits import select
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, is_float, numel, run, type_name
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Sample, Tensor, find
from kiln.table.registry import forms


def _groups(fresh: Any) -> tuple[Any, Any]:
    """Each row's group and where groups begin, of rows in order: whether each differs from the one before."""
    return p.sub(scan_sum(fresh, 0, "int64"), 1), flat_places(fresh)


def _fresh(rows: Any) -> Any:
    """Whether each row of [n, m] differs from the one before; the first does."""
    n = rows.shape[0]
    one = run(full, True, (min(n, 1),), "bool")
    if n < 2:
        return one
    differ = comparison.ne(slice_(rows, 0, (1, n - 1, 1)), slice_(rows, 0, (0, n - 1, 1)))
    return cat([one, find("any").handle(differ, 1)])


def _distinct(rows: Any, order: Any, inverse: bool, counts: bool) -> tuple[Any, Any, Any]:
    """Where each value first is, inverse, counts: of rows [n, m] taken in an order (None: as they come)."""
    taken = rows if order is None else rows_at(rows, 0, order)
    group, starts = _groups(_fresh(taken))
    n, many = rows.shape[0], starts.shape[0]
    back = group if order is None else scatter_set(zeros(n, dtype="int64"), 0, order, group)
    if not counts or not many:
        count = zeros(many, dtype="int64") if counts else None
    else:
        ends = cat([slice_(starts, 0, (1, many - 1, 1)), tensor([n])])
        count = p.sub(ends, starts)
    first = starts if order is None else rows_at(order, 0, starts)
    return first, back if inverse else None, count


def _rows_of(input: Tensor, dim: int | None) -> Tensor:
    """What is compared, as rows."""
    if dim is None:
        return reshape(input, (numel(input.shape), 1))
    n = input.shape[dim]
    return reshape(movedim(input, dim, 0), (n, numel(input.shape) // n if n else 0))


def _order_of(rows: Any) -> Any:
    """The order of rows by their first column, then the second, and so on."""
    order = argsort(select(rows, 1, rows.shape[1] - 1)) if rows.shape[1] else run(full, 0, (0,), "int64")
    for column in range(rows.shape[1] - 2, -1, -1):
        order = rows_at(order, 0, argsort(rows_at(select(rows, 1, column), 0, order), stable=True))
    return order


def _answer(input: Tensor, dim: int | None, found: Any, inverse: bool, counts: bool) -> Any:
    first, back, count = found
    if dim is None:
        values = rows_at(reshape(input, (numel(input.shape),)), 0, first)
        back = reshape(back, tuple(input.shape)) if inverse else None
    else:
        values = rows_at(input, normalize_dim(dim, input.ndim, "unique"), first)
    chosen = [values, *([back] if inverse else []), *([count] if counts else [])]
    return chosen[0] if len(chosen) == 1 else tuple(chosen)


def _whole(rng: Any, shape: tuple[int, ...], t: str, high: float = 3) -> Any:
    """Values that repeat."""
    return d.array(rng, shape, t, 0, high).round().astype(d.held(t))


_BAD_DIM = d.failures(((d.Zeros(2, 3),), {"dim": 5}, IndexError, "Dimension out of range"))
_REPEATED = d.samples(
    lambda rng, t: ((_whole(rng, (12,), t),), {}),
    lambda rng, t: (
        (_whole(rng, (3, 4), t),),
        {"return_inverse": True, "return_counts": True},
    ),
    lambda rng, t: (
        (_whole(rng, (6, 2), t, 2),),
        {"return_inverse": True, "return_counts": True, "dim": 0},
    ),
)


forms(
    "unique",
    "(input, sorted=True, return_inverse: Literal[False] = False, return_counts: Literal[False] = False, "
    "dim=None)",
    "(input, sorted=True, *, return_inverse: Literal[True], return_counts: Literal[False] = False, "
    "dim=None) -> tuple[Tensor, Tensor]",
    "(input, sorted=True, *, return_inverse: Literal[False] = False, return_counts: Literal[True], "
    "dim=None) -> tuple[Tensor, Tensor]",
    "(input, sorted=True, *, return_inverse: Literal[True], return_counts: Literal[True], "
    "dim=None) -> tuple[Tensor, Tensor, Tensor]",
    "(input, sorted, return_inverse: Literal[True], return_counts: Literal[False] = False, dim=None) "
    "-> tuple[Tensor, Tensor]",
)


@public(
    "unique",
    differs="has a derivative; PyTorch's has none",
    differentiable=False,
    reads=True,
    samples=_REPEATED,
    failures=_BAD_DIM,
)
def unique(
    input: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements (or slices along `dim`), in ascending order. Reads how many.

    With `return_inverse` also where each element went, with `return_counts` how often each is there: a tuple.
    A NaN is distinct from every other. IndexError for a dim out of range.

    >>> kiln.unique(kiln.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    rows = _rows_of(input, dim if dim is None else normalize_dim(dim, input.ndim, "unique"))
    found = _distinct(rows, _order_of(rows), return_inverse, return_counts)
    return _answer(input, dim, found, return_inverse, return_counts)


forms(
    "unique_consecutive",
    "(input, return_inverse: Literal[False] = False, return_counts: Literal[False] = False, dim=None)",
    "(input, *, return_inverse: Literal[True], return_counts: Literal[False] = False, "
    "dim=None) -> tuple[Tensor, Tensor]",
    "(input, *, return_inverse: Literal[False] = False, return_counts: Literal[True], "
    "dim=None) -> tuple[Tensor, Tensor]",
    "(input, *, return_inverse: Literal[True], return_counts: Literal[True], dim=None) -> tuple[Tensor, "
    "Tensor, Tensor]",
    "(input, return_inverse: Literal[True], return_counts: Literal[False] = False, dim=None) "
    "-> tuple[Tensor, Tensor]",
)


@public(
    "unique_consecutive",
    differs="has a derivative; PyTorch's has none",
    differentiable=False,
    reads=True,
    samples=_REPEATED,
    failures=_BAD_DIM,
)
def unique_consecutive(
    input: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """`input` without the elements (or slices along `dim`) that equal the one before. Reads how many remain.

    >>> kiln.unique_consecutive(kiln.tensor([1, 1, 2, 1]))
    tensor([1, 2, 1])
    """
    rows = _rows_of(input, dim if dim is None else normalize_dim(dim, input.ndim, "unique_consecutive"))
    found = _distinct(rows, None, return_inverse, return_counts)
    return _answer(input, dim, found, return_inverse, return_counts)


@public("isin",
    method=False, dtypes="numeric", differentiable=False, samples=d.samples(
    lambda rng, t: ((_whole(rng, (3, 4), t), _whole(rng, (5,), t)), {}),
    lambda rng, t: ((_whole(rng, (3, 4), t), 2), {"invert": True}),
), failures=d.failures(((1, 2), {}, TypeError, "tensor")))  # fmt: skip
def isin(
    elements: Any,
    test_elements: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
    out: Any = None,
) -> Any:
    """Whether each of `elements` is among `test_elements` (either may be a number): bool.

    >>> kiln.isin(kiln.tensor([1, 2, 3]), kiln.tensor([2, 5]))
    tensor([False,  True, False])
    """
    if not hasattr(elements, "ndim") and not hasattr(test_elements, "ndim"):
        raise TypeError("isin(): at least one of elements and test_elements must be a tensor")
    if not hasattr(test_elements, "ndim"):
        found = comparison.eq(elements, test_elements)
    else:
        if not hasattr(elements, "ndim"):
            elements = run(full, elements, (), dtype_name(test_elements.dtype))
        found = _among(elements, reshape(test_elements, (numel(test_elements.shape),)))
    return p.written_to(comparison.logical_not(found) if invert else found, out)


def _among(elements: Any, tests: Any) -> Any:
    if tests.shape[0] == 0:
        return run(full, False, tuple(elements.shape), "bool")
    dtype = common([elements, tests])
    elements, tests = (p.convert(x, dtype) for x in (elements, tests))
    rows = sort(tests).values
    place = searchsorted(rows, elements)
    last = rows.shape[0] - 1
    place = p.where(comparison.gt(place, last), last, place)
    flat = reshape(place, (numel(place.shape),))
    return comparison.eq(reshape(gather(rows, 0, flat), tuple(elements.shape)), elements)


# Counting


def _sample(*args: Any, **kwargs: Any) -> Sample:
    return Sample(args, kwargs)


@public("bincount", dtypes="integral", differentiable=False, reads=True, samples=lambda rng, t: [
    _sample(rng.integers(0, 5, (9,)).astype("uint8" if t == "bool" else t)),
    _sample(rng.integers(0, 5, (9,)), d.array(rng, (9,), "float32"), minlength=8),
], failures=d.failures(
    ((d.Zeros(2, 3, dtype="int64"),), {}, RuntimeError, "1-d non-negative"),
    ((d.Zeros(2, dtype="int64", value=-1),), {}, RuntimeError, "1-d non-negative"),
))  # fmt: skip
def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each of 0 .. the largest of a vector of integers >= 0 is there (or the sum of its `weights`).

    Int64; float weights give their dtype, others float64. Reads the largest. RuntimeError for anything else.

    >>> kiln.bincount(kiln.tensor([1, 1, 3]))
    tensor([0, 2, 0, 1])
    """
    refused = RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if input.ndim != 1 or is_float(input) or dtype_name(input.dtype) == "bool":
        raise refused
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and tuple(weights.shape) != tuple(input.shape):
        raise RuntimeError("weights should be 1-d and have the same length as input")
    places, size = long(input), int(minlength)
    if input.shape[0]:
        if int(find("amin").handle(places)) < 0:
            raise refused
        size = max(size, int(find("amax").handle(places)) + 1)
    if weights is None:
        each = expand.handle(run(full, 1, (1,), "int64"), (input.shape[0],))
    else:
        name = dtype_name(weights.dtype)
        each = weights if name in ("float32", "float64") else p.convert(weights, "float64")
    return scatter_add(run(full, 0, (size,), dtype_name(each.dtype)), 0, places, each)


def _into_bins(x: Tensor, edges: Any, weight: Tensor) -> Any:
    """The sums of weights between ascending edges, the last edge counted with its bin."""
    bins = edges.shape[0] - 1
    place = p.sub(searchsorted(edges, x, right=True), 1)
    place = p.where(comparison.eq(x, select(edges, 0, bins)), bins - 1, place)
    inside = comparison.ge(x, select(edges, 0, 0)) & comparison.le(x, select(edges, 0, bins))
    base = run(full, 0, (bins,), dtype_name(weight.dtype))
    return scatter_add(base, 0, p.where(inside, place, 0), p.where(inside, weight, 0))


def _limits(x: Tensor, low: float, high: float, *, around: float, op: str) -> tuple[float, float]:
    """The range of bins: what was asked, or that of the data; a point has `around` on both sides."""
    if low == high and x.shape[0]:
        low, high = (float(find(name).handle(x)) for name in ("amin", "amax"))
    if low == high:
        low, high = low - around, high + around
    if not (low < high and high - low < float("inf")):
        raise RuntimeError(f"{op}: range of [{low}, {high}] is not finite")
    return low, high


@public("histc", dtypes="float32 float64", differentiable=False, reads=True, samples=d.samples(
    lambda rng, t: ((d.array(rng, (30,), t), 5, -2, 2), {}),
    lambda rng, t: ((d.array(rng, (3, 10), t),), {"bins": 4}),
), failures=d.failures(
    ((d.Zeros(2), 0), {}, RuntimeError, "bins must be > 0"),
    ((d.Zeros(2), 3, 2, 1), {}, RuntimeError, "max must be larger than min"),
))  # fmt: skip
def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0, *, out: Any = None) -> Any:
    """How many elements lie in each of `bins` equal parts of [min, max], of input's dtype; equal: its range.

    What is outside, and NaN, is not counted. RuntimeError for integers, bins < 1 or max < min.

    >>> kiln.histc(kiln.tensor([1.0, 2.0, 1.0]), bins=4, min=0, max=3)
    tensor([0., 2., 1., 0.])
    """
    if bins < 1:
        raise RuntimeError("bins must be > 0")
    if max < min:
        raise RuntimeError("max must be larger than min")
    if not is_float(input):
        name = type_name(dtype_name(input.dtype))
        raise NotImplementedError(f"\"histogram_cpu\" not implemented for '{name}'")
    flat = reshape(input, (numel(input.shape),))
    low, high = _limits(flat, min, max, around=1, op="histc")
    edges = linspace(low, high, bins + 1, dtype=input.dtype)
    found = _into_bins(flat, edges, run(full, 1, tuple(flat.shape), dtype_name(input.dtype)))
    return p.written_to(found, out)


forms(
    "histogram",
    "(input, bins: int | Tensor = 100, *, range=None, weight=None, density=False, out=None) -> hist, "
    "bin_edges",
)


@public("histogram", dtypes="float32 float64", differentiable=False, reads=True, samples=d.samples(
    lambda rng, t: ((d.array(rng, (30,), t), 5), {}),
    lambda rng, t: ((d.array(rng, (30,), t), 4), {"range": (-1.0, 2.0), "density": True}),
    lambda rng, t: (
        (d.array(rng, (30,), t), d.array(rng, (4,), t, 0.1, 1).cumsum()), {"weight": d.array(rng, (30,), t)}
    ),
), failures=d.failures(
    ((d.Zeros(2), 0), {}, RuntimeError, "bins must be > 0"),
    ((d.Zeros(2, dtype="int64"), 3), {}, NotImplementedError, "not implemented for 'Long'"),
    ((d.Zeros(2), d.Zeros(2, dtype="float64")), {}, RuntimeError, "same dtype"),
    ((d.Zeros(2), 3), {"range": (1.0,)}, RuntimeError, "range should have 2 elements"),
))  # fmt: skip
def histogram(
    input: Any,
    bins: Any = 100,
    *,
    range: Any = None,
    weight: Any = None,
    density: bool = False,
    out: Any = None,
) -> Any:
    """The sums of `weight` (else counts) between edges, and the edges: (hist, bin_edges).

    `bins`: how many equal parts of `range` (else of the data's range), or a vector of ascending edges.
    `density`: divided so that the integral is 1. RuntimeError for bins < 1 or edges of another dtype;
    NotImplementedError but for float32 and float64.

    >>> kiln.histogram(kiln.tensor([1.0, 2.0, 1.0]), 2).hist
    tensor([2., 1.])
    """
    flat, dtype = reshape(input, (numel(input.shape),)), dtype_name(input.dtype)
    if hasattr(bins, "ndim") and dtype_name(bins.dtype) != dtype:
        raise RuntimeError(
            f"histogram: input and bins should have the same dtype, but got {dtype} and "
            f"{dtype_name(bins.dtype)}"
        )
    if dtype not in ("float32", "float64"):
        raise NotImplementedError(f"\"histogramdd\" not implemented for '{type_name(dtype)}'")
    if hasattr(bins, "ndim"):
        edges = p.clone(bins)
    else:
        if bins < 1:
            raise RuntimeError("histogram(): bins must be > 0")
        if range is not None and len(range) != 2:
            raise RuntimeError(
                f"torch.histogramdd: for a 1-dimensional histogram range should have 2 elements, but got "
                f"{len(range)}"
            )
        low, high = _limits(flat, *(range or (0.0, 0.0)), around=0.5, op="histogram")
        edges = linspace(low, high, bins + 1, dtype=input.dtype)
    each = run(full, 1, tuple(flat.shape), dtype)
    found = _into_bins(flat, edges, each if weight is None else reshape(weight, (numel(weight.shape),)))
    if density:
        n = edges.shape[0] - 1
        widths = p.sub(slice_(edges, 0, (1, n, 1)), slice_(edges, 0, (0, n, 1)))
        found = p.div(p.div(found, find("sum").handle(found)), widths)
    return named("histogram", *p.written((found, edges), out))


def _edges_of(column: Any, bins: Any, limits: Any) -> Any:
    """The edges of one dim: those given, or equal parts of a range."""
    if hasattr(bins, "ndim"):
        return bins
    if bins < 1:
        raise RuntimeError("histogramdd(): bins must be > 0")
    low, high = _limits(column, *(limits or (0.0, 0.0)), around=0.5, op="histogramdd")
    return linspace(low, high, bins + 1, dtype=column.dtype)


forms(
    "histogramdd",
    "(input, bins: int | Sequence[int] | Sequence[Tensor], *, range=None, weight=None, "
    "density=False) -> hist, bin_edges: tuple[Tensor, ...]",
)


@public("histogramdd", method=False, dtypes="float32 float64", differentiable=False, reads=True,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (30, 2), t), [3, 4]), {}),
        lambda rng, t: (
            (d.array(rng, (30, 2), t), 3),
            {"range": [-1.0, 2.0, -2.0, 1.0], "density": True, "weight": d.array(rng, (30,), t, 0.5, 2)},
        ),
    ), failures=d.failures(
        ((d.Zeros(2), [3]), {}, RuntimeError, "at least 2"),
        ((d.Zeros(2, 2), [3]), {}, RuntimeError, "dimension"),
    ))  # fmt: skip
def histogramdd(
    input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """The sums of `weight` (else counts) of points [.., n] in boxes between edges: (hist, bin_edges).

    `bins`: a number of equal parts, one for each of n dims, or a vector of edges for each. `range`: the ends
    of each dim, one after another; else those of the data. `density`: divided so that the integral is 1.

    >>> kiln.histogramdd(kiln.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), [2, 2]).hist
    tensor([[0., 1.],
            [1., 1.]])
    """
    if input.ndim < 2:
        raise RuntimeError("histogramdd(): input tensor should have at least 2 dimensions")
    n = input.shape[-1]
    bins = [bins] * n if isinstance(bins, int) else list(bins)
    if len(bins) != n:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input: expected "
            f"{n}, got {len(bins)}"
        )
    if range is not None and len(range) != 2 * n:
        raise RuntimeError(
            f"histogramdd: for a {n}-dimensional histogram range should have {2 * n} elements, but got "
            f"{len(range)}"
        )
    points = reshape(input, (numel(input.shape) // max(n, 1), n))
    dtype = dtype_name(input.dtype)
    each = run(full, 1, (points.shape[0],), dtype) if weight is None else reshape(weight, (points.shape[0],))
    edges: list[Any] = []
    place: Any = 0
    inside = comparison.eq(each, each)
    volume: Any = 1.0
    for k, wanted in enumerate(bins):
        column = select(points, 1, k)
        own = _edges_of(column, wanted, None if range is None else range[2 * k : 2 * k + 2])
        most = own.shape[0] - 1
        at = p.sub(searchsorted(own, column, right=True), 1)
        at = p.where(comparison.eq(column, select(own, 0, most)), most - 1, at)
        inside = (
            inside & comparison.ge(column, select(own, 0, 0)) & comparison.le(column, select(own, 0, most))
        )
        place = at if not edges else p.add(p.mul(place, most), at)
        edges.append(own)
        widths = p.sub(slice_(own, 0, (1, most, 1)), slice_(own, 0, (0, most, 1)))
        volume = reshape(widths, (most, *[1] * (n - 1 - k))) * volume
    sizes = tuple(own.shape[0] - 1 for own in edges)
    base = run(full, 0, (numel(sizes),), dtype)
    found = reshape(scatter_add(base, 0, p.where(inside, place, 0), p.where(inside, each, 0)), sizes)
    if density:
        found = p.div(p.div(found, find("sum").handle(found)), volume)
    return named("histogramdd", found, tuple(edges))
