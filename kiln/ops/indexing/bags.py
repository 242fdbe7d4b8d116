"""Reductions of stretches of rows: bags of an embedding, segments of an array."""

from __future__ import annotations

import math
from typing import Any

from kiln.errors import describe, message
from kiln.ops.creation.constants import arange, zeros
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.indexing.along_dim import index_add
from kiln.ops.indexing.concatenation import cat
from kiln.ops.indexing.gathering import embedding, rows_at
from kiln.ops.indexing.scattering import scatter_reduce
from kiln.ops.linalg.matrix_norms import vector_norm
from kiln.ops.reductions.scans import cumsum
from kiln.ops.sorting.counts import bincount, unique
from kiln.ops.sorting.sorts import searchsorted
from kiln.ops.views.core_views import expand, reshape, unsqueeze
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, expect, is_float, numel, recorder_here
from kiln.table.public import public
from kiln.table.record import Tensor

_WIDE = {"float16": "float32", "bfloat16": "float32"}


def _bags(offsets: Tensor, n: int) -> Tensor:
    """The bag of each of n rows, from where bags begin; -1 before the first."""
    return searchsorted(offsets, arange(n, dtype=dtype_name(offsets.dtype)), right=True) - 1


def _check_bag(input: Tensor, offsets: Tensor, weights: Tensor, mode: str) -> None:
    """PyTorch's errors for what makes no bags; it reads where bags begin."""
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if input.ndim not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}")
    if weights is not None and tuple(weights.shape) != tuple(input.shape):
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({tuple(weights.shape)}) is not None, then it must have "
            f"the same shape as the input ({tuple(input.shape)})"
        )
    if weights is not None and mode != "sum":
        raise NotImplementedError(
            f"embedding_bag: per_sample_weights is only supported for mode='sum' (got mode='{mode}')"
        )
    if (offsets is None) != (input.ndim == 2):
        if offsets is not None:
            raise ValueError(
                "embedding_bag: if input is 2D, then offsets has to be None, as its rows are the bags; got "
                f"{describe(offsets)}"
            )
        raise ValueError("embedding_bag: offsets has to be a 1D Tensor but got None")
    if offsets is None:
        return
    if offsets.ndim != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    n = input.shape[0]
    if recorder_here() is not None:
        ascend = comparison.ge(offsets[1:], offsets[:-1]).all() & comparison.le(offsets, n).all()
        told = "offsets[0] has to be 0, and offsets must ascend up to input's length at most"
        expect(comparison.eq(offsets[:1], 0).all() & ascend, RuntimeError, f"embedding_bag: {told}")
        return
    starts = offsets.tolist()
    if starts and starts[0] != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position "
            f"0. However, got {starts[0]}"
        )
    if starts != sorted(starts) or (starts and starts[-1] > n):
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {n}, and offsets must ascend; got {starts}"
        )


def _of_equal(rows: Any, left: Any, mode: str) -> Any:
    """Bags of one length: rows [bags, n, dim], `left` [bags, n] bool says which are in."""
    left = unsqueeze(left, 2)
    count = p.convert(left, dtype_name(rows.dtype)).sum(1)
    if mode != "max":
        total = p.where(left, rows, 0).sum(1)
        return total if mode == "sum" else total / p.maximum(count, 1)
    if not rows.shape[1]:
        return rows.sum(1)
    return p.where(count > 0, p.where(left, rows, -math.inf).amax(1), 0)


def _of_stretches(rows: Any, left: Any, bags: Any, count: int, mode: str) -> Any:
    """Bags of any length: rows [n, dim], the bag of each, and which are in."""
    dtype = dtype_name(rows.dtype)
    base = zeros((count, rows.shape[1]), dtype=dtype)
    sizes = unsqueeze(index_add(zeros(count, dtype=dtype), 0, bags, p.convert(left, dtype)), 1)
    left = unsqueeze(left, 1)
    if mode != "max":
        total = index_add(base, 0, bags, p.where(left, rows, 0))
        return total if mode == "sum" else total / p.maximum(sizes, 1)
    index = expand(unsqueeze(bags, 1), tuple(rows.shape))
    most = scatter_reduce(base - math.inf, 0, index, p.where(left, rows, -math.inf), "amax")
    return p.where(sizes > 0, most, 0)


def _bag_sample(mode: str, **more: Any) -> Any:
    def sample(rng: Any, t: str) -> Any:
        weights = {"per_sample_weights": d.array(rng, (7,), t)} if more.get("weights") else {}
        rest = {k: v for k, v in more.items() if k != "weights"}
        # where bags begin is sorted, and stays so: an array would be laid out in other ways
        table = d.distinct(rng, (6, 3), t).astype(d.held(t))
        return (rng.integers(0, 6, (7,)), table, _starts()), {"mode": mode, **weights, **rest}

    return sample


def _starts() -> Any:
    import numpy as np

    return np.array([0, 2, 2, 6])


@public(
    "embedding_bag",
    method=False,
    layer=True,
    reads=True,
    differs="no `sparse`; `max` divides a gradient among equals; rows behind the last "
    "offset are in no bag's count",
    dtypes="float32 float64",
    samples=d.samples(
        _bag_sample("sum", weights=True),
        _bag_sample("mean", padding_idx=2),
        _bag_sample("max"),
        lambda rng, t: ((rng.integers(0, 6, (2, 3)), d.distinct(rng, (6, 3), t)), {"padding_idx": 1}),
    ),
    failures=d.failures(
        ((d.Zeros(3, dtype="int64"), d.Zeros(2, 3)), {}, ValueError, "offsets"),
        ((d.Zeros(3, dtype="int64"), d.Zeros(2, 3)), {"mode": "least"}, ValueError, "sum, mean or max"),
        (
            (d.Zeros(1, dtype="int64", value=7), d.Zeros(2, 3), d.Zeros(1, dtype="int64")),
            {},
            RuntimeError,
            "Index 0 of input takes value 7",
        ),
    ),
)
def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """The sums, means or maxima of the rows of `weight` [n, dim] at the integers of each bag: [bags, dim].

    A bag is a row of a 2-D `input`, or the stretch of a vector from one of `offsets` to the next;
    `include_last_offset`: the last offset is where the last bag ends. `per_sample_weights` (of input's shape)
    multiply the rows, for sums. Row `padding_idx` is left out. A bag of nothing gives zeros. `max_norm`: rows
    that are larger are made smaller, in place. With `scale_grad_by_freq` a row's gradient is divided by how
    often `input` names it: ValueError for maxima. ValueError, RuntimeError for what makes no bags,
    NotImplementedError for `sparse` gradients.

    >>> table = kiln.tensor([[1.0], [4.0]])
    >>> kiln.nn.functional.embedding_bag(kiln.tensor([0, 1, 1]), table, kiln.tensor([0, 2]))
    tensor([[2.5000],
            [4.0000]])
    """
    if sparse:
        raise NotImplementedError(message("embedding_bag", "dense gradients", "sparse=True"))
    if scale_grad_by_freq and mode == "max":
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    _check_bag(input, offsets, per_sample_weights, mode)
    if max_norm is not None:
        embedding_renorm_(weight, input, max_norm, norm_type)
    n = weight.shape[0]
    _check_rows(input, n)
    left = comparison.ge(input, 0)
    if padding_idx is not None:
        if not -n <= padding_idx < n:
            raise RuntimeError(
                f"padding_idx must be within the number of embeddings, {-n} through {n - 1}, but got "
                f"{padding_idx}"
            )
        left = comparison.ne(input, padding_idx % n)
    if scale_grad_by_freq:
        weight = _scaled_by_counts(weight, input)
    rows, dtype = embedding(input, weight), dtype_name(weight.dtype)
    rows = p.convert(rows, _WIDE.get(dtype, dtype))
    if per_sample_weights is not None:
        if dtype_name(per_sample_weights.dtype) != dtype:
            raise RuntimeError(message("embedding_bag", f"weights of {dtype}", describe(per_sample_weights)))
        rows = rows * unsqueeze(per_sample_weights, input.ndim)
    if offsets is None:
        return p.convert(_of_equal(rows, left, mode), dtype)
    bags, count = _bags(offsets, input.shape[0]), offsets.shape[0]
    if include_last_offset:
        count -= 1
        left = left & (bags < count)
        bags = p.minimum(bags, max(count - 1, 0))
    if not count:
        return zeros((0, weight.shape[1]), dtype=weight.dtype)
    return p.convert(_of_stretches(rows, left, bags, count, mode), dtype)


def _check_rows(input: Tensor, n: int) -> None:
    """RuntimeError for an index that is no row, or no integer."""
    if dtype_name(input.dtype) not in ("int64", "int32"):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {describe(input)}"
        )
    wrong = (input < 0) | (input >= n)
    if recorder_here() is not None:
        expect(~wrong, RuntimeError, f"embedding_bag: an index of input is not in the valid range [0, {n})")
    elif bool(wrong.any()):
        place = int(reshape(wrong, (numel(input.shape),)).int().argmax())
        value = reshape(input, (numel(input.shape),))[place].item()
        raise RuntimeError(
            f"embedding_bag: Index {place} of input takes value {value} which is not in the valid range "
            f"[0, {n})"
        )


def _scaled_by_counts(weight: Any, input: Tensor) -> Any:
    """The rows, whose gradients are divided by how often each is named."""
    rows = weight.view_as(weight)
    if rows.requires_grad:
        times = bincount(input.reshape(-1), minlength=rows.shape[0]).clamp(min=1).unsqueeze(-1)
        rows.register_hook(lambda g: g if g is None else g / times.to(g.dtype))
    return rows


@public("embedding_renorm_", method=False, dtypes="float", differentiable=False)
def embedding_renorm_(input: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    """Makes the rows at `indices` whose norm is above `max_norm` smaller, in place; returns the table.

    >>> kiln.embedding_renorm_(kiln.tensor([[3.0, 4.0], [6.0, 8.0]]), kiln.tensor([0]), 1.0, 2.0)
    tensor([[0.6000, 0.8000],
            [6.0000, 8.0000]])
    """
    table = input.detach()
    used = unique(indices)
    rows = rows_at(table, 0, used)
    size = vector_norm(rows, norm_type, 1, True)
    scale = p.where(size > max_norm, max_norm / (size + 1e-7), 1)
    table.index_copy_(0, used, rows * scale)
    return input


# Segments

_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_REDUCE = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _ends(lengths: Any, offsets: Tensor, n: int, axis: int, unsafe: bool) -> Any:
    """Where segments begin, and at last where the last ends: [.., segments + 1]."""
    if (lengths is None) == (offsets is None):
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    given = offsets if lengths is None else lengths
    if given.ndim != axis + 1:
        raise RuntimeError(
            f"segment_reduce(): Expected axis to be the last dimension of lengths but got {axis}."
        )
    if lengths is None:
        return offsets
    if bool((lengths < 0).any()):
        raise RuntimeError("lengths contains negative value!")
    if not unsafe and not bool((lengths.sum(-1) == n).all()):
        raise RuntimeError(
            "segment_reduce(): Expected all rows of lengths along axis to sum to "
            "data.size(lengths.dim()-1) when !unsafe."
        )
    first = zeros((*lengths.shape[:-1], 1), dtype=lengths.dtype)
    return cat([first, p.convert(cumsum(lengths, -1), dtype_name(lengths.dtype))], -1)


@public(
    "segment_reduce",
    method=False,
    reads=True,
    dtypes="float32 float64",
    samples=d.samples(
        lambda rng, t: ((d.distinct(rng, (6, 2), t), "sum"), {"offsets": _starts()}),
        lambda rng, t: ((d.distinct(rng, (6, 2), t), "max"), {"offsets": _starts(), "initial": 1.0}),
        lambda rng, t: ((d.array(rng, (6,), t, 0.5, 2), "prod"), {"offsets": _starts()}),
        lambda rng, t: ((d.distinct(rng, (6,), t), "mean"), {"offsets": _starts(), "initial": 1.0}),
    ),
    failures=d.failures(
        ((d.Zeros(2), "sum"), {}, RuntimeError, "Either lengths or offsets"),
        ((d.Zeros(2), "least"), {}, RuntimeError, "reduce argument"),
    ),
    tests=d.Tests(history="sums have none; PyTorch's raises for every kind"),
)
def segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """The "sum", "mean", "max", "min" or "prod" of each segment along `axis`.

    Segments follow one another: by their `lengths` [.., segments], or by the `offsets` [.., segments + 1]
    they begin and end at; the dims before are those of `data` before `axis`. Each starts from `initial`;
    without it a segment of nothing gives 0, NaN, -inf, inf or 1. RuntimeError for lengths that do not sum to
    the data's, but if `unsafe`.

    >>> kiln.segment_reduce(kiln.tensor([1.0, 2.0, 3.0]), "sum", lengths=kiln.tensor([1, 2]))
    tensor([1., 5.])
    """
    kind = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    if kind not in _NEUTRAL:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}.")
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    if not is_float(data):
        raise NotImplementedError(f"\"_segment_reduce_cpu\" not implemented for '{dtype_name(data.dtype)}'")
    ends = _ends(lengths, offsets, data.shape[axis], axis, unsafe)
    outer, n, inner = numel(data.shape[:axis]), data.shape[axis], numel(data.shape[axis + 1 :])
    many, dtype = ends.shape[-1] - 1, dtype_name(data.dtype)
    edges = reshape(ends, (outer, many + 1))
    places = expand(arange(n, dtype=dtype_name(ends.dtype)), (outer, n))
    found = searchsorted(edges, places, right=True) - 1  # many: behind the last
    index = expand(unsqueeze(p.minimum(p.maximum(found, 0), many), 2), (outer, n, inner))
    start = zeros((outer, many + 1, inner), dtype=dtype) + (_NEUTRAL[kind] if initial is None else initial)
    values = reshape(data, (outer, n, inner))
    total = scatter_reduce(start, 1, index, values, _REDUCE[kind])[:, :many]
    if kind == "mean":
        count = unsqueeze(p.convert(edges[:, 1:] - edges[:, :-1], dtype), 2)
        total = total / (count if initial is None else p.maximum(count, 1))
    return reshape(total, (*data.shape[:axis], many, *data.shape[axis + 1 :]))
