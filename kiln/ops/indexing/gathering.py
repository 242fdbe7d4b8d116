"""Indexing by arrays of positions: gather, its transpose scatter_add, and what is made of them; joining
arrays.

An op that can fail on data states it in `checks` (record.IndexCheck): the core scans the index on the line of
the call, before anything is written. `x[...]` is in getitem.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.graph.size import product
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.views.core_views import expand, expand_, reshape, slice_
from kiln.table import arguments
from kiln.table import drawn as d
from kiln.table.arguments import (
    answerable,
    dtype_name,
    expect,
    into,
    is_value,
    numel,
    recorder_here,
    surely_equal,
    type_name,
)
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import IndexCheck, Sample, Structure, Tensor, composite, find, primitive

OUT = "index {index} is out of bounds for dimension {dim} with size {size}"


def _scattered(np: ModuleType, base: Any, dim: int, index: Any, src: Any) -> Any:
    out = base.copy()
    places = list(np.indices(index.shape))
    places[dim] = index
    np.add.at(out, tuple(places), src[tuple(map(slice, index.shape))])
    return out


def _taken(np: ModuleType, x: Any, dim: int, index: Any) -> Any:
    places = list(np.indices(index.shape))
    places[dim] = index
    return x[tuple(places)]


@primitive(
    "gather",
    checks=IndexCheck("index", "input", "dim", RuntimeError, OUT),
    dtypes="all",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 3), t), 0, rng.integers(0, 4, (2, 3))), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), 1, rng.integers(0, 5, (3, 7))), {}),
    ),
    reference=d.reference(_taken),
    public=False,
    failures=d.failures(
        ((d.Zeros(2, 3), 0, d.Zeros(1, 1, dtype="int64", value=5)), {}, RuntimeError, "out of bounds")
    ),
)
def gather(input: Tensor, dim: Structure, index: Tensor) -> Any:
    """out[..i..] = input[..index[..i..]..] along `dim` (counted from the front): of index's shape, which is
    no larger than input's along other dims. RuntimeError for an index out of bounds.

    >>> kiln.gather(kiln.tensor([[1, 2], [3, 4]]), 1, kiln.tensor([[0], [1]]))
    tensor([[1],
            [4]])
    """


@gather.derivative
def _(g: Tensor, input: Tensor, dim: Any, index: Any) -> Any:
    zeros = g.graph.add(find("full"), (arguments.number(g, 0),), (tuple(input.shape), g.dtype))
    return scatter_add(zeros, dim, index, g), None


@primitive(
    "along",
    algorithm="scatter",
    checks=IndexCheck("index", "input", "dim", RuntimeError, OUT),
    dtypes="numeric",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 3), t), 0, rng.integers(0, 4, (6, 3)), d.array(rng, (6, 3), t)), {})
    ),
    reference=d.reference(_scattered),
    public=False,
    failures=d.failures(
        (
            (d.Zeros(2, 3), 0, d.Zeros(1, 1, dtype="int64", value=5), d.Zeros(1, 1)),
            {},
            RuntimeError,
            "out of bounds",
        )
    ),
)
def scatter_add(input: Tensor, dim: Structure, index: Tensor, src: Tensor) -> Any:
    """`input` with src added at index along `dim` (counted from the front), in index order; index and src of
    one shape.

    RuntimeError for an index out of bounds.

    >>> kiln.zeros(3).scatter_add(0, kiln.tensor([0, 0, 2]), kiln.ones(3))
    tensor([2., 0., 1.])
    """


@scatter_add.derivative
def _(g: Tensor, dim: Any, index: Any) -> Any:
    return g, None, gather(g, dim, index)


def check_index(op: str, input: Tensor, dim: int, index: Any, src: Tensor | None = None) -> None:
    """PyTorch's errors for an index array that does not fit; one of nothing may be of any shape and dtype."""
    if 0 in index.shape:
        return
    if dtype_name(index.dtype) not in ("int32", "int64"):
        raise RuntimeError(f"{op}(): Expected dtype int32/int64 for index")
    if max(index.ndim, 1) != max(input.ndim, 1):
        which = "input" if src is None else "self"
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {which} tensor")
    if src is not None and max(index.ndim, 1) != max(src.ndim, 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")
    for k, (have, limit) in enumerate(zip(index.shape, input.shape)):
        if k != dim and answerable(have, limit) and have > limit:
            raise RuntimeError(
                f"Size does not match at dimension {k} expected index {list(index.shape)} to be no larger "
                f"than self {list(input.shape)} apart from dimension {dim}"
            )
    taken = () if src is None else src.shape
    for have, limit in zip(index.shape, taken):
        if answerable(have, limit) and have > limit:
            raise RuntimeError(f"Expected index {list(index.shape)} to be no larger than src {list(taken)}")


def long(index: Any) -> Any:
    """An index as int64."""
    return index if dtype_name(index.dtype) == "int64" else p.convert(index, "int64")


def unlike(input: Tensor, index: Any) -> bool:
    """Whether a call is for arrays in one dim: of a number, or with an index of nothing."""
    return input.ndim == 0 or index.ndim == 0 or 0 in index.shape


def in_one_dim(input: Tensor, index: Any, *src: Any) -> list[Any]:
    """The arrays of such a call, src no larger than index."""
    flat = [reshape(x, (product(tuple(x.shape)),)) for x in (input, long(index), *src)]
    return [*flat[:2], *(slice_(x, 0, (0, flat[1].shape[0], 1)) for x in flat[2:])]


@public("gather", dtypes="all")
def gather_(input: Any, dim: int, index: Any, *, sparse_grad: bool = False, out: Any = None) -> Any:
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on; of index's shape (int64 or int32). Gradients
    are dense, whatever `sparse_grad` says.

    IndexError for a dim out of range; RuntimeError for an index out of bounds, of another dtype or too large
    a shape.

    >>> kiln.gather(kiln.tensor([[1, 2], [3, 4]]), 1, kiln.tensor([[0], [1]]))
    tensor([[1],
            [4]])
    """
    dim = normalize_dim(dim, input.ndim, "gather")
    check_index("gather", input, dim, index)
    if unlike(input, index):
        flat, places = in_one_dim(input, index)
        return p.written_to(reshape(gather(flat, 0, places), tuple(index.shape)), out)
    return gather(input, dim, long(index), **into(out))


@public(
    "scatter_add",
    differs="equal places add up in their order, at every number of threads",
    inplace=True,
    dtypes="all",
)
def scatter_add_(input: Any, dim: int, index: Any, src: Any, *, out: Any = None) -> Any:
    """`input` with src[i][j] added at [index[i][j]][j] for dim 0, and so on; repeated places add up in index
    order.

    IndexError for a dim out of range; RuntimeError for an index out of bounds, other dtypes or too large a
    shape.

    >>> kiln.zeros(3).scatter_add(0, kiln.tensor([0, 0, 2]), kiln.ones(3))
    tensor([2., 0., 1.])
    """
    dim = normalize_dim(dim, input.ndim, "scatter_add")
    check_index("scatter", input, dim, index, src)
    if input.dtype != src.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    if unlike(input, index):
        flat, places, values = in_one_dim(input, index, src)
        found = scatter_add(flat, 0, places, values)
        return p.written_to(reshape(found, tuple(input.shape)), out, input)
    for k, (have, limit) in enumerate(zip(index.shape, src.shape)):
        if answerable(have, limit) and not surely_equal(have, limit):
            src = slice_(src, k, (0, have, 1))
    return scatter_add(input, dim, long(index), src, **into(out))


@composite(
    checks=IndexCheck("index", "input", "dim", IndexError, OUT, negative=True),
    dtypes="all",
    public=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), 1, rng.integers(-4, 4, (3, 2))), {})),
    reference=d.reference(lambda np, x, dim, index: np.take_along_axis(x, index, dim)),
    failures=d.failures(
        ((d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=-3)), {}, IndexError, "out of bounds for dimension"),
    ),
)
def gather_wrapped(input: Tensor, dim: Structure, index: Tensor) -> Any:
    """`gather` whose positions count from the end if negative. IndexError for one out of bounds.

    >>> kiln.take_along_dim(kiln.tensor([1, 2, 3]), kiln.tensor([-1]), 0)
    tensor([3])
    """
    return gather(input, dim, p.where(index < 0, index + arguments.number(input, input.shape[dim]), index))


@public(
    "take_along_dim",
    dtypes="all",
    differs="positions out of range raise; PyTorch takes them modulo the size along `dim`",
    samples=lambda rng, t: [
        Sample((d.array(rng, (3, 4), t), rng.integers(-4, 4, (3, 2)), 1)),
        Sample((d.array(rng, (1, 4), t), rng.integers(-4, 4, (3, 2)), -1)),
        Sample((d.array(rng, (3, 4), t), rng.integers(0, 12, (5,)))),
    ],
    failures=d.failures(
        ((d.Zeros(2, 2), d.Zeros(2, 2)), {}, RuntimeError, "should be Long"),
        ((d.Zeros(2, 2), d.Zeros(2, dtype="int64"), 0), {}, RuntimeError, "same number of dimensions"),
        ((d.Zeros(2), d.Zeros(1, dtype="int64", value=-1)), {}, RuntimeError, "out of bounds"),
    ),
    tests=d.Tests(keeps_less="another index than the one it was given"),
)
def take_along_dim(input: Any, indices: Any, dim: int | None = None, *, out: Any = None) -> Any:
    """`gather` whose index and input broadcast along the other dims, positions below 0 counted from the end;
    without `dim`, of the flat array, positions from 0.

    >>> x = kiln.tensor([[3, 1], [2, 4]])
    >>> kiln.take_along_dim(x, x.argmax(1, keepdim=True), 1)
    tensor([[3],
            [4]])
    """
    if dtype_name(indices.dtype) != "int64":
        raise RuntimeError(
            "torch.take_along_dim(): dtype of indices should be Long but got "
            f"{type_name(dtype_name(indices.dtype))}"
        )
    if dim is None:
        flat = reshape(input, (numel(input.shape),))
        return gather_(flat, 0, reshape(indices, (numel(indices.shape),)), **into(out))
    if input.ndim != indices.ndim:
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of dimensions, but got "
            f"{input.ndim} dimensions for input, and {indices.ndim} dimensions for indices"
        )
    dim = normalize_dim(dim, input.ndim, "take_along_dim")
    rest = [b if isinstance(a, int) and a == 1 else a for a, b in zip(input.shape, indices.shape)]
    wide = expand_(input, tuple(s if k == dim else rest[k] for k, s in enumerate(input.shape)))
    places = expand_(indices, tuple(s if k == dim else rest[k] for k, s in enumerate(indices.shape)))
    return gather_wrapped.handle(wide, dim, places, **into(out))


def _rows(x: Tensor, index: Any, dim: int) -> Tensor:
    """x with the positions in `index` (int64, any shape) in place of dim `dim`."""
    count = numel(index.shape)
    flat = reshape(index, (*(1,) * dim, count, *(1,) * (x.ndim - dim - 1)))
    places = expand(flat, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
    return reshape(gather(x, dim, places), (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]))


def vector(index: Any, op: str) -> Any:
    """A vector of positions as int64; an error for another dtype, IndexError for more dims."""
    dtype = dtype_name(index.dtype)
    if dtype not in ("int32", "int64"):
        kind = IndexError if op.startswith("index_fill") else RuntimeError  # PyTorch's
        raise kind(f"{op}(): Expected dtype int32 or int64 for index")
    if index.ndim > 1:
        if op == "index_copy":
            raise IndexError(f"index_copy_(): Index should have dimension 1 or 0 (got {index.ndim})")
        raise IndexError(f"{op}(): Index is supposed to be a vector")
    return index if dtype == "int64" else long(index)


@composite(
    checks=IndexCheck("index", "input", "dim", IndexError, "index out of range in self"),
    dtypes="all",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 3), t), 0, rng.integers(0, 4, (6,))), {}),
        lambda rng, t: ((d.array(rng, (2, 4, 3), t), -2, rng.integers(0, 4, (3,))), {}),
    ),
    reference=d.reference(lambda np, x, dim, index: np.take(x, index, dim)),
    failures=d.failures(
        ((d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=7)), {}, IndexError, "index out of range in self"),
        ((d.Zeros(2), 0, d.Zeros(1, 1, dtype="int64")), {}, IndexError, "supposed to be a vector"),
    ),
)
def index_select(input: Tensor, dim: Structure, index: Tensor) -> Any:
    """The slices of `input` along `dim` at the positions in the vector `index` (int64 or int32).

    IndexError for a position or dim out of range or an index that is not a vector.

    >>> kiln.index_select(kiln.tensor([1, 2, 3]), 0, kiln.tensor([2, 0]))
    tensor([3, 1])
    """
    index = vector(index, "index_select")
    if input.ndim == 0:
        if index.ndim and index.shape[0] != 1:
            raise RuntimeError("index_select(): Index to scalar can have only 1 value")
        return p.clone(input)
    if index.ndim == 0:
        index = reshape(index, (1,))
    return _rows(input, index, normalize_dim(dim, input.ndim, "index_select"))


_ROWS = d.samples(
    lambda rng, t: ((d.array(rng, (4, 3), t), 0, rng.integers(0, 4, (6,))), {}),
    lambda rng, t: ((d.array(rng, (2, 4), t), 1, rng.integers(0, 4, (2, 3))), {}),
)


@composite(
    dtypes="all",
    public=False,
    samples=_ROWS,
    reference=d.reference(lambda np, x, dim, index: np.take(x, index, dim)),
)
def rows_at(input: Tensor, dim: Structure, index: Tensor) -> Any:
    """`input` with the slices at positions (int64, any shape; known to be right) in place of `dim`.

    >>> kiln.tensor([1, 2, 3])[kiln.tensor([True, False, True])]
    tensor([1, 3])
    """
    return _rows(input, index, dim)


@composite(
    checks=IndexCheck("index", "input", "dim", IndexError, OUT, negative=True),
    dtypes="all",
    public=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 3), t), 0, rng.integers(-4, 4, (6,))), {}),
        lambda rng, t: ((d.array(rng, (2, 4), t), 1, rng.integers(0, 4, (2, 3))), {}),
    ),
    reference=d.reference(lambda np, x, dim, index: np.take(x, index, dim)),
    failures=d.failures(
        (
            (d.Zeros(2), 0, d.Zeros(1, dtype="int64", value=7)),
            {},
            IndexError,
            "is out of bounds for dimension 0",
        )
    ),
)
def take_at(input: Tensor, dim: Structure, index: Tensor) -> Any:
    """`input[.., index, ..]` for an integer array of any shape at `dim`: from the end if negative.

    IndexError for one out of bounds.

    >>> kiln.tensor([1, 2, 3])[kiln.tensor([-1, 0])]
    tensor([3, 1])
    """
    places = long(index)
    return _rows(input, p.where(places < 0, places + arguments.number(input, input.shape[dim]), places), dim)


def _check_table(input: Tensor, weight: Tensor) -> Any:
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    if dtype_name(input.dtype) not in ("int32", "int64"):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {type_name(dtype_name(input.dtype))} instead"
        )
    return long(input)


@composite(
    differs="no `max_norm`, `scale_grad_by_freq`, `sparse`",
    checks=IndexCheck("input", "weight", 0, IndexError, "index out of range in self"),
    method=False,
    samples=d.samples(lambda rng, t: ((rng.integers(0, 4, (2, 3)), d.array(rng, (4, 5), t)), {})),
    reference=d.reference(lambda np, index, weight: weight[index]),
    failures=d.failures(
        ((d.Zeros(1, dtype="int64", value=7), d.Zeros(2, 3)), {}, IndexError, "index out of range in self"),
        ((d.Zeros(1), d.Zeros(2, 3)), {}, RuntimeError, "scalar types: Long, Int"),
    ),
)
def embedding(input: Tensor, weight: Tensor) -> Any:
    """The rows of `weight` [n, d] at the positions `input` (int64 or int32, any shape): [..input.., d].

    IndexError for a position out of range, RuntimeError for one that is not an integer.

    >>> kiln.nn.functional.embedding(kiln.tensor([1]), kiln.tensor([[1.0], [2.0]]))
    tensor([[2.]])
    """
    return _rows(weight, _check_table(input, weight), 0)


@composite(
    method=False,
    public=False,
    differentiable=False,
    dtypes="integral",
    samples=lambda rng, t: [Sample((rng.integers(0, 4, (2, 3)), 4))],
    reference=d.reference(lambda np, index, n: (index[..., None] == np.arange(n)).astype("int64")),
)
def one_hot_(input: Tensor, num_classes: Structure) -> Any:
    """1 at each position of `input` and 0 elsewhere, along a new last dim of size num_classes: int64.

    >>> kiln.nn.functional.one_hot(kiln.tensor([1, 0]), 2)
    tensor([[0, 1],
            [1, 0]])
    """
    shape = (*input.shape, num_classes)
    places = input.graph.add(find("iota"), (), (shape, input.ndim))
    return p.convert(comparison.eq(reshape(input, (*input.shape, 1)), places), "int64")


@public("one_hot", method=False)
def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """1 at each position of `tensor` and 0 elsewhere, along a new last dim: int64. -1 counts the classes,
    which reads.

    RuntimeError for a dtype other than int64, or a position that is negative or not below num_classes.

    >>> kiln.nn.functional.one_hot(kiln.tensor([1, 0]), 2)
    tensor([[0, 1],
            [1, 0]])
    """
    if dtype_name(tensor.dtype) != "int64":
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    recorder = recorder_here(tensor)
    if num_classes != -1 and recorder is not None and not is_value(tensor):
        if num_classes <= 0:
            raise RuntimeError("one_hot: Can not infer total number of classes from empty tensor.")
        expect(tensor >= 0, RuntimeError, "one_hot: Class values must be non-negative.")
        text = "one_hot: Class values must be smaller than num_classes."
        expect(tensor < num_classes, RuntimeError, text)
    elif not is_value(tensor) and numel(tensor.shape):
        every = tensor  # a sample of a batch (kiln.func) is checked with all of the batch
        while hasattr(type(every), "whole") and recorder is None:
            every = every.whole
        if find("amin").handle(every).item() < 0:
            raise RuntimeError("one_hot: Class values must be non-negative.")
        largest = find("amax").handle(tensor if num_classes == -1 else every).item()
        if num_classes == -1:
            num_classes = int(largest) + 1
        elif largest >= num_classes:
            raise RuntimeError("one_hot: Class values must be smaller than num_classes.")
    elif num_classes <= 0:
        raise RuntimeError("one_hot: Can not infer total number of classes from empty tensor.")
    return one_hot_(tensor, num_classes)
