"""Writing at indexed places: scatter and its relatives, index_add, index_copy, index_fill, put.

The kernels put values in along one dim in ascending order of the index, so of equal places the
last one written stays, on every run. `scatter_add`, which gradients are made of, is in indexing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kiln.ops.creation.constants import full
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.indexing.gathering import OUT, check_index, gather, in_one_dim, long, scatter_add, unlike
from kiln.ops.views.core_views import expand, reshape, slice_
from kiln.table import arguments
from kiln.table import drawn as d
from kiln.table.arguments import answerable, dtype_name, into, is_float, number, numel, surely_equal
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import IndexCheck, Op, Structure, Tensor, composite, find, primitive
from kiln.table.registry import forms


def _put(np: ModuleType, how: str, base: Any, dim: int, index: Any, src: Any) -> Any:
    out = base.copy()
    for place in np.ndindex(index.shape):
        to = (*place[:dim], index[place], *place[dim + 1 :])
        if 0 <= index[place] < out.shape[dim]:
            old, new = out[to], src[place]
            out[to] = {"set": lambda a, b: b, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[how](
                old, new
            )
    return out


def _apart(rng: Any, shape: tuple[int, ...], size: int) -> Any:
    """Indices along dim 0 that differ within a column: no place is written twice."""
    import numpy as np

    return np.stack([rng.permutation(size)[: shape[0]] for _ in range(shape[1])], 1)


def _primitive(how: str, doc: str, dtypes: str) -> Op:
    """The scatter whose step is `how`. An index out of range does nothing."""

    def signature(input: Tensor, dim: Structure, index: Tensor, src: Tensor) -> Any:
        pass

    signature.__name__ = f"scatter_{how}"
    signature.__doc__ = f"""`input` with src {doc} at index along `dim` (counted from the front), ascending.

    An index out of range does nothing.

    >>> kiln.zeros(3).scatter(0, kiln.tensor([0, 2]), kiln.ones(2))
    tensor([1., 0., 1.])
    """

    def sample(shape: tuple[int, int], size: int, index: Any) -> Any:
        return lambda rng, t: (
            (d.array(rng, (size, shape[1]), t), 0, index(rng, shape, size), d.array(rng, shape, t)), {}
        )  # fmt: skip

    # the derivative of what replaces is that of different places
    repeated = _apart if how == "set" else lambda rng, shape, size: rng.integers(0, size, shape)

    return primitive(
        "along",
        algorithm="scatter",
        public=False,
        dtypes=dtypes,
        samples=d.samples(sample((4, 3), 6, repeated), sample((2, 20), 3, _apart)),
        reference=d.reference(lambda np, x, dim, index, src: _put(np, how, x, dim, index, src)),
    )(signature)


scatter_set = _primitive("set", "in place of what was there", "all")
scatter_prod = _primitive("prod", "multiplied in", "float")
scatter_max = _primitive("max", "where it is larger", "numeric")
scatter_min = _primitive("min", "where it is smaller", "numeric")


def _like(x: Tensor, value: float, shape: Any = None) -> Any:
    return x.graph.add(
        find("full"), (number(x, value),), (tuple(x.shape if shape is None else shape), x.dtype)
    )


@scatter_set.derivative
def _(g: Tensor, input: Tensor, dim: Any, index: Any) -> Any:
    return scatter_set(g, dim, index, _like(g, 0, index.shape)), None, gather(g, dim, index)


@scatter_prod.derivative
def _(g: Tensor, input: Tensor, dim: Any, index: Any, src: Tensor, y: Tensor) -> Any:
    """The product of the others: y / src, and at a zero the product of the rest, times the other zero if any.

    The other zero is written as a sum of them, z -> s - z, so that second derivatives are exact too.
    """
    zero, here = comparison.eq(src, 0), comparison.eq(input, 0)
    count = scatter_add(p.convert(here, "int64"), dim, index, p.convert(zero, "int64"))
    rest = scatter_prod(p.where(here, 1, input), dim, index, p.where(zero, 1, src))
    small = scatter_add(p.where(here, input, 0), dim, index, p.where(zero, src, 0))

    def others(x: Tensor, is_zero: Any, whole: Any, zeros: Any, left: Any, sum_of_zeros: Any) -> Tensor:
        paired = p.where(comparison.eq(zeros, 2), left * (sum_of_zeros - x), 0)
        at_zero = p.where(comparison.eq(zeros, 1), left, paired)
        return p.where(is_zero, at_zero, whole / p.where(is_zero, 1, x))

    own = others(input, here, y, count, rest, small)
    given = others(src, zero, *(gather(x, dim, index) for x in (y, count, rest, small)))
    return g * own, None, gather(g, dim, index) * given


def _evenly(g: Tensor, input: Tensor, dim: Any, index: Any, src: Tensor, y: Tensor) -> Any:
    """Shared by all that are equal to the extremum."""
    own = comparison.eq(input, y)
    given = comparison.eq(src, gather(y, dim, index))
    count = scatter_add(p.convert(own, g.dtype), dim, index, p.convert(given, g.dtype))
    each = g / p.where(comparison.eq(count, 0), 1, count)
    return p.where(own, each, 0), None, p.where(given, gather(each, dim, index), 0)


scatter_max.derivative(_evenly)
scatter_min.derivative(_evenly)

CHECK = IndexCheck("index", "input", "dim", RuntimeError, OUT)


@composite(
    checks=CHECK,
    dtypes="numeric",
    public=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 3), t), 0, _apart(rng, (3, 3), 4), d.array(rng, (3, 3), t)), {})
    ),
    reference=d.reference(lambda np, x, dim, index, src: _put(np, "set", x, dim, index, src)),
    failures=d.failures(
        ((d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=5), d.Zeros(1)), {}, RuntimeError, "out of bounds")
    ),
)
def put_along(input: Tensor, dim: Structure, index: Tensor, src: Tensor) -> Any:
    """scatter_set whose index is checked.

    >>> kiln.zeros(3).scatter(0, kiln.tensor([0, 2]), kiln.ones(2))
    tensor([1., 0., 1.])
    """
    return scatter_set(input, dim, index, src)


REDUCE: dict[str, Op] = {
    "sum": scatter_add,
    "mean": scatter_add,
    "prod": scatter_prod,
    "amax": scatter_max,
    "amin": scatter_min,
}


def _neutral(dtype: str, reduce: str) -> Any:
    """What changes nothing when reduced with."""
    if reduce in ("sum", "mean", "prod"):
        return 0 if reduce != "prod" else 1
    least = reduce == "amax"
    if dtype.startswith(("float", "bfloat")):
        return -float("inf") if least else float("inf")
    if dtype in ("bool", "uint8"):
        return 0 if least else 255 if dtype == "uint8" else True
    bits = int(dtype.removeprefix("int"))
    return -(1 << (bits - 1)) if least else (1 << (bits - 1)) - 1


def _scattered(
    np: ModuleType, x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    out, seen = x.astype("float64"), np.zeros(x.shape)
    for place in np.ndindex(index.shape):
        to = (*place[:dim], index[place], *place[dim + 1 :])
        old, new = out[to], src[place]
        joined = {"amax": max(old, new), "amin": min(old, new), "prod": old * new}.get(reduce, old + new)
        out[to] = joined if include_self or seen[to] else new
        seen[to] += 1
    if reduce == "mean":
        out = out / np.maximum(seen + include_self, 1)
        out = out if x.dtype.kind == "f" else np.floor(out)
    return out.astype(x.dtype)


@composite(
    checks=CHECK,
    dtypes="float",
    public=False,
    samples=d.samples(
        *(
            lambda rng, t, reduce=reduce, own=own: (
                (
                    d.array(rng, (4, 3), t, 0.5),
                    0,
                    rng.integers(0, 4, (5, 3)),
                    d.array(rng, (5, 3), t, 0.5),
                    reduce,
                    own,
                ),
                {},
            )
            for reduce in REDUCE
            for own in (True, False)
        )
    ),  # fmt: skip
    reference=d.reference(_scattered),
    failures=d.failures(
        (
            (d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=5), d.Zeros(1), "sum"),
            {},
            RuntimeError,
            "out of bounds",
        )
    ),
)
def reduce_along(
    input: Tensor,
    dim: Structure,
    index: Tensor,
    src: Tensor,
    reduce: Structure,
    include_self: Structure = True,
) -> Any:
    """`input` with src reduced in at index along `dim`; places that are not indexed stay.

    >>> kiln.ones(2).scatter_reduce(0, kiln.tensor([0, 0]), kiln.tensor([2.0, 3.0]), "sum")
    tensor([6., 1.])
    """
    x, values = (wide(v) if reduce in ("sum", "mean", "prod") else v for v in (input, src))
    base = x
    if not include_self:
        base = scatter_set(x, dim, index, _like(x, _neutral(input.dtype, reduce), index.shape))
    result = REDUCE[reduce](base, dim, index, values)
    if reduce == "mean":
        ones = _like(x, 1)
        start = ones if include_self else scatter_set(ones, dim, index, _like(x, 0, index.shape))
        count = p.detach(scatter_add(start, dim, index, _like(x, 1, index.shape)))
        result = result / count if is_float(x) else p.floor_divide(result, count)
    return narrow(result, input.dtype)


def _fitted(input: Tensor, dim: int, index: Any, src: Tensor, out: Any, run: Callable[..., Any]) -> Any:
    """run(x, dim, index, src, out=) on arrays that fit the kernel: of a dim at least, src no larger than
    index.
    """
    if unlike(input, index):
        x, places, values = in_one_dim(input, index, src)
        return p.written_to(reshape(run(x, 0, places, values), tuple(input.shape)), out, input)
    for k, (have, limit) in enumerate(zip(index.shape, src.shape)):
        if answerable(have, limit) and not surely_equal(have, limit):
            src = slice_(src, k, (0, have, 1))
    return run(input, dim, long(index), src, **into(out))


def _checked(input: Tensor, dim: int, index: Any, src: Tensor) -> int:
    dim = normalize_dim(dim, input.ndim, "scatter")
    check_index("scatter", input, dim, index, src)
    if src is not None and dtype_name(input.dtype) != dtype_name(src.dtype):
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    return dim


_SCATTER = {"add": "sum", "multiply": "prod"}


forms(
    "scatter",
    "(input, dim, index, src: Tensor | float, *, reduce: str | None = None, out=None)",
    "(input, dim, index, *, value: float, reduce: str | None = None, out=None)",
)


@public("scatter",
    differs="of equal places the last stays; PyTorch leaves that open",
    inplace=True, dtypes="numeric", samples=d.samples(
    lambda rng, t: ((d.array(rng, (4, 3), t), 0, _apart(rng, (3, 3), 4), d.array(rng, (3, 3), t)), {}),
    lambda rng, t: ((d.array(rng, (3, 5), t), 1, rng.integers(0, 5, (3, 2)), 2), {}),
), failures=d.failures(
    ((d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=5), d.Zeros(1)), {}, RuntimeError, "out of bounds"),
    ((d.Zeros(2), 0, d.Zeros(1), d.Zeros(1)), {}, RuntimeError, "int32/int64"),
    ((d.Zeros(2), 3, d.Zeros(1, dtype="int64"), d.Zeros(1)), {}, IndexError, "out of range"),
))  # fmt: skip
def scatter(
    input: Any,
    dim: int,
    index: Any,
    src: Any = None,
    *,
    value: Any = None,
    reduce: Any = None,
    out: Any = None,
) -> Any:
    """`input` with src[i][j] (or a number) at [index[i][j]][j] for dim 0, and so on; the last of equals.

    `reduce`: "add" or "multiply" instead of replacing. RuntimeError for an index out of bounds, other dtypes
    or too large a shape; IndexError for a dim out of range.

    >>> kiln.zeros(3).scatter(0, kiln.tensor([0, 2]), 5.0)
    tensor([5., 0., 5.])
    """
    src = value if src is None else src
    given = src if hasattr(src, "ndim") else None
    if given is not None and given.ndim == 0 and index.ndim:
        if index.ndim > 1:
            raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")
        src = given = reshape(given, (1,))
    dim = _checked(input, dim, index, given)
    if reduce is not None and reduce not in _SCATTER:
        raise RuntimeError("reduce argument must be either add or multiply.")
    if given is None:
        one = arguments.run(full, src, (1,) * max(index.ndim, 1), dtype_name(input.dtype))
        given = expand(one, tuple(index.shape) if index.ndim else (1,))
    if reduce is None:
        return _fitted(input, dim, index, given, out, put_along)
    return scatter_reduce(input, dim, index, given, _SCATTER[reduce], **into(out))


def out_of(out: Any, input: Tensor) -> dict[str, Any]:
    """`out=`, for arrays of a dim at least (another is written at the end)."""
    return into(out) if input.ndim else {}


@public("scatter_reduce", inplace=True, dtypes="numeric",
        differs="without `include_self` it takes no share of a gradient among equals; in PyTorch it does",
        samples=d.samples(
    lambda rng, t: (
        (d.array(rng, (4, 3), t), 0, rng.integers(0, 4, (5, 3)), d.array(rng, (5, 3), t), "amax"), {}
    ),
    lambda rng, t: (
        (d.array(rng, (3, 4), t, 0.5), 1, rng.integers(0, 4, (3, 3)), d.array(rng, (3, 3), t, 0.5), "mean"),
        {"include_self": False},
    ),
    lambda rng, t: (
        (d.array(rng, (3,), t), 0, rng.integers(0, 3, (7,)), d.array(rng, (7,), t), "prod"),
        {},
    ),
), failures=d.failures(
    ((d.Zeros(2), 0, d.Zeros(1, dtype="int64"), d.Zeros(1), "most"), {}, RuntimeError, "reduce argument"),
    ((d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=5), d.Zeros(1), "sum"), {}, RuntimeError, "of bounds"),
))  # fmt: skip
def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True, out: Any = None
) -> Any:
    """`input` with src reduced in at index along `dim`: "sum", "prod", "mean", "amax" or "amin".

    Without `include_self` the values indexed are not counted. RuntimeError as for `scatter`.

    >>> kiln.ones(2).scatter_reduce(0, kiln.tensor([0, 0]), kiln.tensor([2.0, 3.0]), "sum")
    tensor([6., 1.])
    """
    if reduce not in REDUCE:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}.")
    dim = _checked(input, dim, index, src)

    def run(*arrays: Any, **target: Any) -> Any:
        return reduce_along(*arrays, reduce, include_self, **target)

    return _fitted(input, dim, index, src, out, run)


@composite(
    checks=IndexCheck("index", "input", "dim", IndexError, OUT, negative=True),
    dtypes="integral",
    differentiable=False,
    public=False,
    samples=d.samples(lambda rng, t: ((rng.integers(-4, 4, (5,)), d.array(rng, (3, 4), "float32"), 1), {})),
    reference=d.reference(lambda np, index, x, dim: index % x.shape[dim]),
    failures=d.failures(
        (
            (d.Zeros(1, dtype="int64", value=7), d.Zeros(2), 0),
            {},
            IndexError,
            "is out of bounds for dimension 0",
        )
    ),
)
def wrapped(index: Tensor, input: Tensor, dim: Structure) -> Any:
    """Positions along `dim` of input, those below 0 counted from its end: int64. IndexError out of bounds.

    >>> kiln.tensor([1, 2, 3])[kiln.tensor([-1])]
    tensor([3])
    """
    places = long(index)
    return p.where(places < 0, places + number(input, input.shape[dim]), places)


# In the flat array

_FAR = "out of range: tried to access index {index} on a tensor of {size} elements."


@composite(
    checks=IndexCheck("index", "input", 0, IndexError, _FAR, negative=True),
    dtypes="all",
    public=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (12,), t), rng.integers(-12, 12, (2, 3))), {})),
    reference=d.reference(lambda np, x, index: x[index]),
    failures=d.failures(((d.Zeros(2), d.Zeros(1, dtype="int64", value=7)), {}, IndexError, "out of range")),
)
def take_flat(input: Tensor, index: Tensor) -> Any:
    """The elements of a vector at positions, from its end if negative.

    >>> kiln.tensor([[1, 2], [3, 4]]).take(kiln.tensor([0, -1]))
    tensor([1, 4])
    """
    flat = reshape(index, (numel(index.shape),))
    places = p.where(flat < 0, flat + number(input, input.shape[0]), flat)
    return reshape(gather(input, 0, places), tuple(index.shape))


@public("take", dtypes="all", samples=d.samples(
    lambda rng, t: ((d.array(rng, (3, 4), t), rng.integers(-12, 12, (2, 3))), {}),
), failures=d.failures(
    ((d.Zeros(2), d.Zeros(1, dtype="int64", value=7)), {}, IndexError, "out of range"),
    ((d.Zeros(2), d.Zeros(1)), {}, RuntimeError, "Long"),
))  # fmt: skip
def take(input: Any, index: Any, *, out: Any = None) -> Any:
    """The elements of the flat array at the positions in `index` (int64, negative from the end).

    IndexError for one out of range, RuntimeError for another dtype.

    >>> kiln.tensor([[1, 2], [3, 4]]).take(kiln.tensor([0, -1]))
    tensor([1, 4])
    """
    if dtype_name(index.dtype) != "int64":
        raise RuntimeError(f"take(): Expected a long tensor (Long) for index, but got {index.dtype}")
    return p.written_to(take_flat(reshape(input, (numel(input.shape),)), index), out)


@public("put",
    differs="of equal places the last stays; PyTorch leaves that open",
    inplace=True, dtypes="numeric", samples=d.samples(
    lambda rng, t: ((d.array(rng, (3, 4), t), rng.permutation(12)[:5] - 3, d.array(rng, (5,), t)), {}),
    lambda rng, t: ((d.array(rng, (3, 4), t), rng.integers(0, 12, (5,)), d.array(rng, (5,), t), True), {}),
), failures=d.failures(
    ((d.Zeros(2), d.Zeros(1, dtype="int64", value=7), d.Zeros(1)), {}, IndexError, "out of"),
    ((d.Zeros(2), d.Zeros(2, dtype="int64"), d.Zeros(1)), {}, IndexError, "same number of elements"),
))  # fmt: skip
def put(input: Any, index: Any, source: Any, accumulate: bool = False, *, out: Any = None) -> Any:
    """`input` with the elements of `source` at positions of the flat array (negative from the end), or added.

    IndexError for a position out of range, RuntimeError for other dtypes or numbers of elements.

    >>> kiln.zeros(2, 2).put(kiln.tensor([1, -1]), kiln.tensor([5.0, 6.0]))
    tensor([[0., 5.],
            [0., 6.]])
    """
    if dtype_name(index.dtype) not in ("int64", "int32"):
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype}")
    count = numel(index.shape)
    if numel(source.shape) != count:
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"{numel(source.shape)} and {count}"
        )
    if dtype_name(input.dtype) != dtype_name(source.dtype):
        raise RuntimeError(f"put_(): Expected a source of dtype {input.dtype}, got {source.dtype}")
    flat = reshape(input, (numel(input.shape),))
    places = wrapped(reshape(index, (count,)), flat, 0)
    run = scatter_add if accumulate else scatter_set
    result = reshape(run(flat, 0, places, reshape(source, (count,))), tuple(input.shape))
    return p.written_to(result, out, input)
