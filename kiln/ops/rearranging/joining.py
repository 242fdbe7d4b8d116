"""Arrays joined and combined: hstack and its kin, block_diag, meshgrid, choices of elements."""

from __future__ import annotations

from itertools import combinations as _combinations
from itertools import combinations_with_replacement as _with_replacement
from math import comb
from typing import Any

from kiln.errors import warn
from kiln.ops.creation.data import tensor
from kiln.ops.elementwise.arithmetic import convert
from kiln.ops.indexing.concatenation import cat, common, stack
from kiln.ops.indexing.gathering import index_select
from kiln.ops.rearranging.padding import surround
from kiln.ops.views.core_views import expand, reshape
from kiln.ops.views.shapes import atleast_1d, atleast_2d, atleast_3d
from kiln.ops.views.splits import narrow
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, expect_count, is_value, numel
from kiln.table.public import alias, public
from kiln.table.record import Tensor

_reshape, _expand = reshape.handle, expand.handle


def _stacking(name: str, lift: Any, dim_of: Any, text: str, example: tuple[str, str]) -> Any:
    """A function that joins arrays after giving them the dims they lack."""

    def function(tensors: Any, *, out: Any = None) -> Any:
        given = list(tensors)
        if not given:
            raise RuntimeError(f"{name} expects a non-empty TensorList")
        lifted = lift(given)
        result = cat(lifted, dim_of(lifted))
        return result if out is None else out.copy_(result)

    function.__doc__ = f"""{text}

    >>> {example[0]}
    {example[1]}
    """
    return public(
        name,
        method=False,
        samples=d.samples(
            lambda rng, t: (([d.array(rng, (2,), t), d.array(rng, (2,), t)],), {}),
            lambda rng, t: (([d.array(rng, (1, 2, 2), t), d.array(rng, (1, 2, 2), t)],), {}),
        ),
        dtypes="float32 int64",
        failures=d.failures((([],), {}, RuntimeError, "non-empty TensorList")),
    )(function)


def _column(x: Tensor) -> Any:
    return _reshape(x, (numel(x.shape), 1)) if x.ndim < 2 else x


hstack = _stacking(
    "hstack", atleast_1d, lambda xs: min(xs[0].ndim, 2) - 1,
    "Arrays joined along dim 1 (vectors: dim 0). RuntimeError for none, or other sizes that differ.",
    ("kiln.hstack((kiln.tensor([1]), kiln.tensor([2])))", "tensor([1, 2])"),
)  # fmt: skip
vstack = _stacking(
    "vstack", atleast_2d, lambda xs: 0,
    "Arrays of at least 2 dims (a vector is a row) joined along dim 0. RuntimeError for none, or other sizes "
    "that differ.",
    ("kiln.vstack((kiln.tensor([1]), kiln.tensor([2]))).shape", "kiln.Size([2, 1])"),
)  # fmt: skip
dstack = _stacking(
    "dstack", atleast_3d, lambda xs: 2,
    "Arrays of at least 3 dims joined along dim 2. RuntimeError for none, or other sizes that differ.",
    ("kiln.dstack((kiln.tensor([1]), kiln.tensor([2]))).shape", "kiln.Size([1, 1, 2])"),
)  # fmt: skip
column_stack = _stacking(
    "column_stack", lambda xs: list(map(_column, xs)), lambda xs: 1,
    "Arrays joined along dim 1, vectors as columns. RuntimeError for none, or other sizes that differ.",
    ("kiln.column_stack((kiln.tensor([1, 3]), kiln.tensor([2, 4]))).tolist()", "[[1, 2], [3, 4]]"),
)  # fmt: skip
alias("row_stack", "vstack", method=False)


@public(
    "block_diag",
    method=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t), d.array(rng, (2,), t), d.array(rng, (), t)), {}),
    ),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(1, 1, 1),), {}, RuntimeError, "2 or fewer dimensions")),
)
def block_diag(*tensors: Any) -> Any:
    """The matrix with matrices (a vector is a row) along its diagonal and zeros elsewhere. RuntimeError for
    more dims.

    >>> kiln.block_diag(kiln.tensor([[1, 2]]), kiln.tensor(3)).tolist()
    [[1, 2, 0], [0, 0, 3]]
    """
    for place, x in enumerate(tensors):
        if x.ndim > 2:
            raise RuntimeError(
                "torch.block_diag: Input tensors must have 2 or fewer dimensions. Input "
                f"{place} has {x.ndim} dimensions"
            )
    if not tensors:
        return tensor([[]])
    blocks = atleast_2d(list(tensors))
    dtype = common(list(blocks))
    width = sum(x.shape[1] for x in blocks)
    rows, start = [], 0
    for x in blocks:
        end = start + x.shape[1]
        x = x if dtype_name(x.dtype) == dtype else convert(x, dtype)
        rows.append(surround.handle(x, 0, (1,), (start,), (width - end,)))
        start = end
    return cat(rows, 0)


@public(
    "meshgrid",
    method=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2,), t), d.array(rng, (3,), t)), {"indexing": "ij"}),
        lambda rng, t: (
            ([d.array(rng, (2,), t), d.array(rng, (3,), t), d.array(rng, (), t)],),
            {"indexing": "xy"},
        ),
    ),
    dtypes="float32 int64",
    failures=d.failures(
        ((d.Zeros(2, 2),), {"indexing": "ij"}, RuntimeError, "0D or 1D"),
        ((d.Zeros(2),), {"indexing": "no"}, RuntimeError, "must be one of"),
        ((), {"indexing": "ij"}, RuntimeError, "non-empty TensorList"),
    ),
)
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Any, ...]:
    """Vectors (or numbers) as coordinates of a grid: views [n1, n2, ...]; with indexing="xy" its first two
    dims are swapped.

    RuntimeError for none, more dims, different dtypes or another `indexing`.

    >>> [x.tolist() for x in kiln.meshgrid(kiln.tensor([1, 2]), kiln.tensor([3, 4]))]
    [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
    """
    given = list(tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors)
    if not given:
        raise RuntimeError("meshgrid expects a non-empty TensorList")
    if indexing not in (None, "ij", "xy"):
        raise RuntimeError(f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    if indexing is None:
        warn(
            "meshgrid: in an upcoming release, it will be required to pass the indexing argument: "
            'indexing="ij" is what happens without it'
        )
    for x in given:
        if x.ndim > 1:
            raise RuntimeError(
                f"torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {list(x.shape)}"
            )
        if x.dtype != given[0].dtype:
            raise RuntimeError("torch.meshgrid expects all tensors to have the same dtype")
    swap = indexing == "xy" and len(given) >= 2
    if swap:
        given[:2] = given[1::-1]
    sizes = [numel(x.shape) for x in given]
    count = len(given)
    grids = [
        _expand(_reshape(x, (*(1,) * k, sizes[k], *(1,) * (count - k - 1))), sizes)
        for k, x in enumerate(given)
    ]
    if swap:
        grids[:2] = grids[1::-1]
    return tuple(grids)


@public(
    "cartesian_prod",
    method=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2,), t), d.array(rng, (3,), t)), {}),
        lambda rng, t: ((d.array(rng, (2,), t),), {}),
    ),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(2, 2), d.Zeros(1)), {}, RuntimeError, "1D vector")),
)
def cartesian_prod(*tensors: Any) -> Any:
    """Every choice of one element from each vector, as rows; of one vector, itself. RuntimeError for another
    number of dims.

    >>> kiln.cartesian_prod(kiln.tensor([1, 2]), kiln.tensor([3, 4])).tolist()
    [[1, 3], [1, 4], [2, 3], [2, 4]]
    """
    for x in tensors:
        if x.ndim != 1:
            raise RuntimeError(f"Expect a 1D vector, but got shape {list(x.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([_reshape(x, (numel(x.shape),)) for x in meshgrid(*tensors, indexing="ij")], 1)


@public(
    "combinations",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4,), t),), {}),
        lambda rng, t: ((d.array(rng, (3,), t), 3, True), {}),
        lambda rng, t: ((d.array(rng, (3,), t), 4), {}),
    ),
    dtypes="float32 int64",
    failures=d.failures(
        ((d.Zeros(2, 2),), {}, RuntimeError, "1D vector"),
        ((d.Zeros(2), -1), {}, RuntimeError, "non-negative number"),
    ),
)
def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """Every choice of r elements of a vector, in order, as rows [count, r]. RuntimeError for another number
    of dims, or a negative r.

    >>> kiln.combinations(kiln.tensor([1, 2, 3])).tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    if input.ndim != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input.shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return narrow(input, 0, 0, 0)
    size = input.shape[0]
    if not isinstance(size, int):
        raise TypeError(
            f"combinations: the size {size} is symbolic: the number of results would depend on it"
        )
    count = comb(size + r - 1 if with_replacement and size else size, r)
    expect_count("combinations", count * r, "places")
    rows = list((_with_replacement if with_replacement else _combinations)(range(size), r))
    flat = [k for row in rows for k in row]
    if is_value(input):
        chosen = [narrow(input, 0, k, 1) for k in flat] or [narrow(input, 0, 0, 0)]
        return _reshape(cat(chosen, 0), (len(rows), r))
    return _reshape(index_select(input, 0, tensor(flat, dtype="int64")), (len(rows), r))
