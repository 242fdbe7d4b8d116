"""Elements chosen by a mask: their number is data, so it is read before the result is made."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.errors import message
from kiln.ops.creation.constants import full
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.indexing.concatenation import cat, stack
from kiln.ops.indexing.gathering import gather, rows_at
from kiln.ops.reductions.scans import scan_sum
from kiln.ops.views.core_views import expand_, reshape, slice_
from kiln.ops.views.splits import select
from kiln.table import drawn as d
from kiln.table.arguments import broadcast_shape, dtype_name, into, is_value, number, numel, run
from kiln.table.public import alias, public
from kiln.table.record import Sample, Sizes, Tensor, composite, find, primitive
from kiln.table.registry import forms


@primitive(
    "along",
    algorithm="compact",
    public=False,
    dtypes="bool",
    differentiable=False,
    samples=lambda rng, t: [
        Sample((mask, (int(mask.sum()),)))
        for mask in (d.array(rng, (37,), "bool"), d.array(rng, (3,), "bool"))
    ],
    reference=d.reference(lambda np, mask, count: np.flatnonzero(mask)),
)
def places_of(input: Tensor, count: Sizes) -> Any:
    """The positions at which the vector of bools `input` holds, `count` of them: int64.

    >>> kiln.tensor([0, 3, 4]).nonzero()
    tensor([[1],
            [2]])
    """


def flat_places(mask: Tensor) -> Any:
    """The positions (int64) of what is not zero in the array laid flat, ascending. Reads how many."""
    if is_value(mask):
        raise NotImplementedError(
            "a mask's number of elements depends on data: its positions cannot be part of a graph of symbols"
        )
    flat = p.convert(reshape(mask, (numel(mask.shape),)), "bool")
    return places_of(flat, (int(find("sum").handle(flat)),))


@composite(
    public=False,
    dtypes="integral",
    differentiable=False,
    samples=lambda rng, t: [Sample((rng.integers(0, 24, (5,)), (2, 3, 4)))],
    reference=d.reference(lambda np, places, sizes: np.stack(np.unravel_index(places, sizes), 1)),
)
def coordinates(input: Tensor, sizes: Sizes) -> Any:
    """Positions in an array laid flat as indices along its dims of `sizes`: [n] -> [n, dims], int64.

    >>> kiln.eye(2).nonzero()
    tensor([[0, 0],
            [1, 1]])
    """
    rest, found = p.convert(input, "int64"), []
    for size in reversed(sizes):
        found.append(p.remainder(rest, number(input, size)))
        rest = p.floor_divide(rest, number(input, size))
    return stack(found[::-1], 1)


forms(
    "nonzero",
    "(input, *, as_tuple: Literal[False] = False, out=None)",
    "(input, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]",
)


@public("nonzero", dtypes="all", differentiable=False, reads=True, samples=d.samples(
    lambda rng, t: ((d.array(rng, (7,), t, -1, 1),), {}),
    lambda rng, t: ((d.array(rng, (3, 4), "bool"),), {"as_tuple": True}),
    lambda rng, t: ((d.array(rng, (), t),), {}),
    lambda rng, t: ((d.array(rng, (0, 3), t),), {}),
))  # fmt: skip
def nonzero(input: Any, *, as_tuple: bool = False, out: Any = None) -> Any:
    """The indices of what is not zero, in order: [n, dims] int64, or a tuple of a vector per dim. Reads n.

    >>> kiln.tensor([0, 3, 4]).nonzero()
    tensor([[1],
            [2]])
    """
    places = flat_places(input)
    if input.ndim == 0:
        none = run(full, 0, (int(places.shape[0]), 0), "int64")
        return (places,) if as_tuple else p.written_to(none, out)
    found = coordinates(places, tuple(input.shape))
    if as_tuple:
        return tuple(select(found, 1, k) for k in range(input.ndim))
    return p.written_to(found, out)


alias("argwhere", "nonzero")


@public("nonzero_static", dtypes="all", differentiable=False, reads=True, samples=d.samples(
    lambda rng, t: ((d.array(rng, (3, 4), t, -1, 1),), {"size": 5}),
    lambda rng, t: ((d.array(rng, (4,), t, -1, 1),), {"size": 9, "fill_value": 7}),
    lambda rng, t: ((d.array(rng, (), t),), {"size": 2}),
), failures=d.failures(((d.Zeros(2),), {"size": -1}, RuntimeError, "non-negative")))  # fmt: skip
def nonzero_static(input: Any, *, size: int, fill_value: int = -1, out: Any = None) -> Any:
    """The first `size` rows of `nonzero`, and rows of `fill_value` if there are fewer: [size, dims] int64.

    >>> kiln.nonzero_static(kiln.tensor([0, 3, 4]), size=3)
    tensor([[ 1],
            [ 2],
            [-1]])
    """
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    found = nonzero(input)
    missing = max(size - found.shape[0], 0)
    rest = run(full, fill_value, (missing, input.ndim), "int64")
    return p.written_to(cat([slice_(found, 0, (0, size - missing, 1)), rest], 0), out)


forms(
    "where",
    "(condition) -> tuple[Tensor, ...]",
    "(condition, input: Operand, other: Operand, *, out=None)",
)


@public("where", method=False, plain=p.where)
def where(condition: Any, input: Any = None, other: Any = None, *, out: Any = None) -> Any:
    """`input` where the bool `condition` holds, else `other`; all three broadcast.

    Of `condition` alone the places of what is not zero, as nonzero(condition, as_tuple=True) gives them.
    RuntimeError for a condition that is not bool, TypeError for one of `input` and `other` without the other.

    >>> kiln.where(kiln.tensor([True, False]), 1.0, 2.0)
    tensor([1., 2.])
    >>> kiln.where(kiln.tensor([0, 3, 4]))
    (tensor([1, 2]),)
    """
    if input is None and other is None and out is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise TypeError(message("where", "`input` and `other`, or neither", "one of them"))
    name = dtype_name(condition.dtype)
    if name != "bool":
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got a tensor with dtype {name}"
        )
    return p.where(condition, input, other, **into(out))


@public("masked_select", dtypes="all", reads=True, samples=d.samples(
    lambda rng, t: ((d.array(rng, (3, 4), t), d.array(rng, (3, 4), "bool")), {}),
    lambda rng, t: ((d.array(rng, (3, 1), t), d.array(rng, (4,), "bool")), {}),
), failures=d.failures(
    ((d.Zeros(2), d.Zeros(2)), {}, RuntimeError, "expected BoolTensor"),
    ((d.Zeros(2), d.Zeros(3, dtype="bool")), {}, RuntimeError, "must match the size"),
))  # fmt: skip
def masked_select(input: Any, mask: Any, *, out: Any = None) -> Any:
    """The elements of `input` where the bool `mask` holds, as a vector; the two broadcast. Reads how many.

    RuntimeError for a mask that is not bool or does not fit.

    >>> kiln.masked_select(kiln.tensor([1, 2, 3]), kiln.tensor([True, False, True]))
    tensor([1, 3])
    """
    if dtype_name(mask.dtype) != "bool":
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}")
    shape = broadcast_shape(input, mask, "masked_select")
    flat = reshape(expand_(input, shape), (numel(shape),))
    found = rows_at(flat, 0, flat_places(expand_(mask, shape)))
    return p.written_to(found, out)


@composite(
    public=False,
    dtypes="all",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 4), t), d.array(rng, (3, 4), "bool"), d.array(rng, (12,), t)), {})
    ),
    reference=d.reference(lambda np, x, mask, source: _filled(np, x, mask, source)),
)
def fill_masked(input: Tensor, mask: Tensor, source: Tensor) -> Any:
    """`input` where `mask` (of its shape) does not hold, else the next of the vector `source`, in order.

    >>> kiln.zeros(3).masked_scatter(kiln.tensor([True, False, True]), kiln.tensor([1.0, 2.0]))
    tensor([1., 0., 2.])
    """
    count = numel(input.shape)
    before = reshape(scan_sum(reshape(mask, (count,)), 0, "int64"), tuple(input.shape))
    place = reshape(p.where(mask, before - 1, 0), (count,))
    return p.where(mask, reshape(gather(source, 0, place), tuple(input.shape)), input)


def _filled(np: ModuleType, x: Any, mask: Any, source: Any) -> Any:
    out = x.copy()
    out[mask] = source[: int(mask.sum())]
    return out


@public("masked_scatter", inplace=True, dtypes="all", reads=True, samples=d.samples(
    lambda rng, t: ((d.array(rng, (3, 4), t), d.array(rng, (3, 4), "bool"), d.array(rng, (3, 5), t)), {}),
    lambda rng, t: ((d.array(rng, (3, 4), t), d.array(rng, (4,), "bool"), d.array(rng, (12,), t)), {}),
), failures=d.failures(
    ((d.Zeros(2), d.Zeros(2), d.Zeros(2)), {}, RuntimeError, "boolean mask"),
    ((d.Zeros(2), d.Zeros(2, dtype="bool", value=1), d.Zeros(1)), {}, RuntimeError, "Number of elements"),
))  # fmt: skip
def masked_scatter(input: Any, mask: Any, source: Any, *, out: Any = None) -> Any:
    """`input` with the elements of `source`, in order, where the bool `mask` holds. Reads how many that are.

    RuntimeError for a mask that is not bool, another dtype of source, or one with too few elements.

    >>> kiln.zeros(3).masked_scatter(kiln.tensor([True, False, True]), kiln.tensor([1.0, 2.0]))
    tensor([1., 0., 2.])
    """
    if dtype_name(mask.dtype) != "bool":
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if dtype_name(input.dtype) != dtype_name(source.dtype):
        raise RuntimeError(
            f"masked_scatter: expected self and source to have same dtypes but got {input.dtype} and "
            f"{source.dtype}"
        )
    shape = tuple(input.shape) if out is not None else broadcast_shape(input, mask, "masked_scatter")
    mask = expand_(mask, shape)
    if int(find("sum").handle(mask)) > numel(source.shape):
        raise RuntimeError("masked_scatter: Number of elements of source < number of ones in mask")
    if numel(shape) == 0 or numel(source.shape) == 0:
        return input if out is not None else p.clone(expand_(input, shape))
    flat = reshape(source, (numel(source.shape),))
    return fill_masked(expand_(input, shape), mask, flat, **into(out))
