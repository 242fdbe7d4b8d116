"""Views that name places in memory: diagonals, windows, as_strided; and arrays written at such places.

`diagonal` and `unfold` are of the kind as_strided: the core sees sizes, strides and an offset in memory. What
stands behind these is for the derivative, which is a function of `input`'s shape alone, however that lies in
memory. A value of a graph is taken as contiguous.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln import _core
from kiln.graph.size import least, product, quotient
from kiln.ops.creation.constants import filled
from kiln.ops.elementwise.arithmetic import clone, convert, written_to
from kiln.ops.views.core_views import (
    as_strided,
    gathered_back,
    permute,
    reshape,
    slice_,
    strided_reference,
    transpose,
    write,
    written_reference,
)
from kiln.ops.views.splits import select
from kiln.table import drawn as d
from kiln.table.arguments import answerable, dtype_name, into, is_value, numel
from kiln.table.kinds import normalize_dim
from kiln.table.public import methods, public
from kiln.table.record import Sizes, Structure, Tensor, composite, primitive


def _hidden(*args: Any) -> dict[str, Any]:
    """Settings of a view of the kind as_strided: one sample (of contiguous memory) and its reference."""
    return {
        "dtypes": "all",
        "public": False,
        "samples": d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), *args), {})),
        "reference": d.reference(lambda np, x, *places: strided_reference(np, x, *places[:3])),
    }


def contiguous_strides(shape: Any) -> tuple[Any, ...]:
    """Strides of an array of this shape whose elements lie in order."""
    return tuple(product(tuple(shape[k + 1 :])) for k in range(len(shape)))


def geometry(input: Tensor) -> tuple[tuple[Any, ...], Any]:
    """Strides and offset of a tensor; of a graph's value those of contiguous memory."""
    if is_value(input):
        return contiguous_strides(input.shape), 0
    return tuple(input.stride()), input.storage_offset()


# Diagonals


@primitive("as_strided", **_hidden((3,), (5,), (1,), (1, 0, 1)))
def diagonal(input: Tensor, sizes: Sizes, strides: Sizes, offset: Sizes, dims: Structure) -> Any:
    """The diagonal of two dims as the last dim: dims = (which diagonal, dim, dim).

    >>> kiln.tensor([[1, 2], [3, 4]]).diagonal()
    tensor([1, 4])
    """


@diagonal.derivative
def _(g: Tensor, input: Tensor, dims: tuple[int, ...]) -> Any:
    shape = tuple(input.shape)
    strides, offset = _along_diagonal(shape, contiguous_strides(shape), *dims)
    return write(filled(g.graph, 0, shape, g.dtype), g, strides, (offset,))


_diagonal = diagonal.handle


def _along_diagonal(shape: Any, strides: Any, which: int, a: int, b: int) -> tuple[tuple[Any, ...], Any]:
    """Strides of the diagonal's view, and what it adds to the offset."""
    rest = [s for k, s in enumerate(strides) if k not in (a, b)]
    return (*rest, strides[a] + strides[b]), which * strides[b] if which >= 0 else -which * strides[a]


def _length(rows: Any, columns: Any, which: int) -> Any:
    """How many elements a diagonal has."""
    rows, columns = (rows, columns - which) if which >= 0 else (rows + which, columns)
    if rows is columns:
        return rows
    if which and not answerable(rows, columns):
        raise TypeError(f"diagonal: whether the sizes {rows} and {columns} are below 0 is not known here")
    return 0 if which and (rows < 0 or columns < 0) else least(rows, columns)


def _at_places(np: ModuleType, x: Any, sizes: Any, strides: Any, offset: Any) -> Any:
    return written_reference(np, np.zeros(sizes, x.dtype), x, strides, offset)


@composite(
    dtypes="all",
    public=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3,), t), (3, 4), (5,), (1,)), {})),
    reference=d.reference(_at_places),
)
def placed(input: Tensor, sizes: Sizes, strides: Sizes, offset: Sizes) -> Any:
    """Zeros of the given sizes with `input` at the places that strides and offset give, each named once.

    >>> kiln.diag_embed(kiln.tensor([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    return write(filled(input.graph, 0, tuple(sizes), input.dtype), input, strides, offset)


@public(
    "diagonal",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 4), t),), {}),
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), -1, 2, 0), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), 5), {}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), 0, 1, -1), {}, RuntimeError, "cannot be identical"),
        ((d.Zeros(3),), {}, IndexError, "Dimension out of range"),
    ),
)
def diagonal_(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A view of the `offset`-th diagonal of two dims (above the main one if positive), as the last dim.

    IndexError for a dim out of range, RuntimeError if both are the same.

    >>> kiln.diagonal(kiln.tensor([[1, 2], [3, 4]]), 1)
    tensor([2])
    """
    ndim = input.ndim
    a, b = normalize_dim(dim1, ndim, "diagonal"), normalize_dim(dim2, ndim, "diagonal")
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    shape = tuple(input.shape)
    length = _length(shape[a], shape[b], offset)
    sizes = (*[s for k, s in enumerate(shape) if k not in (a, b)], length) if ndim > 2 else (length,)
    strides, start = geometry(input)
    strides, shift = _along_diagonal(shape, strides, offset, a, b)
    empty = isinstance(length, int) and length == 0
    return _diagonal(input, sizes, strides, (start if empty else start + shift,), (offset, a, b))


@public(
    "diag",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3,), t), -1), {}),
        lambda rng, t: ((d.array(rng, (3, 4), t), 1), {}),
    ),
    dtypes="float32 int64 bool",
    failures=d.failures(((d.Zeros(),), {}, RuntimeError, "Supports 1D or 2D tensors")),
)
def diag(input: Any, diagonal: int = 0, *, out: Any = None) -> Any:
    """Of a vector the matrix with it on a diagonal; of a matrix a copy of that diagonal. RuntimeError for
    others.

    >>> kiln.diag(kiln.tensor([1, 2]))
    tensor([[1, 0],
            [0, 2]])
    """
    if input.ndim not in (1, 2):
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    found = diag_embed(input, diagonal) if input.ndim == 1 else diagonal_(input, diagonal)
    return found if input.ndim == 1 and out is None else clone(found, **into(out))


@public(
    "diagflat",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 2), t), 1), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(2), "text"), {}, TypeError, "str")),
)
def diagflat(input: Any, offset: int = 0) -> Any:
    """The matrix with the elements of `input`, in order, on a diagonal.

    >>> kiln.diagflat(kiln.tensor([[1], [2]]))
    tensor([[1, 0],
            [0, 2]])
    """
    return diag_embed(reshape.handle(input, (numel(input.shape),)), offset)


@public(
    "diag_embed",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t),), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), -1, 0, -1), {}),
    ),
    dtypes="float32 bfloat16 bool",
    failures=d.failures(
        ((d.Zeros(2), 0, 1, -1), {}, RuntimeError, "cannot be identical"),
        ((d.Zeros(),), {}, IndexError, "Dimension out of range"),
    ),
)
def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Zeros with the last dim of `input` on a diagonal of two new dims. IndexError for a dim out of range,
    RuntimeError if both are the same.

    >>> kiln.diag_embed(kiln.tensor([[1, 2]]))
    tensor([[[1, 0],
             [0, 2]]])
    """
    ndim = input.ndim + 1
    a, b = (normalize_dim(dim, ndim, "diag_embed") for dim in (dim1, dim2))
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    if input.ndim == 0:
        raise IndexError("diag_embed: Dimension out of range: a 0-d tensor has no dim to place")
    *rest, length = input.shape
    size = length + abs(offset)
    others = iter(rest)
    shape = tuple([size if k in (a, b) else next(others) for k in range(ndim)])
    strides, start = _along_diagonal(shape, contiguous_strides(shape), offset, a, b)
    return placed.handle(input, shape, strides, (start,))


# Windows


@primitive("as_strided", **_hidden((3, 3, 2), (4, 1, 1), (0,), (1, 1, 1)))
def unfold(input: Tensor, sizes: Sizes, strides: Sizes, offset: Sizes, dims: Structure) -> Any:
    """Windows along a dim, their elements as the last dim: dims = (dim, step, whether windows overlap).

    >>> kiln.arange(4).unfold(0, 2, 1)
    tensor([[0, 1],
            [1, 2],
            [2, 3]])
    """


@unfold.derivative
def _(g: Tensor, input: Tensor, dims: tuple[int, ...]) -> Any:
    dim, step, overlap = dims
    shape = tuple(input.shape)
    own = contiguous_strides(shape) or (1,)
    strides = (*own[:dim], step * own[dim], *own[dim + 1 :], own[dim])[-g.ndim :]
    if overlap:
        return gathered_back(g, shape, strides, 0)
    return write(filled(g.graph, 0, shape, g.dtype), g, strides, (0,))


@public(
    "unfold",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 7), t), 1, 3, 2), {}),
        lambda rng, t: ((d.array(rng, (5, 2), t), 0, 2, 2), {}),
        lambda rng, t: ((d.array(rng, (), t), 0, 1, 1), {}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), 1, 4, 1), {}, RuntimeError, "maximum size for tensor at dimension 1 is 3"),
        ((d.Zeros(3), 0, 1, 0), {}, RuntimeError, "step is 0"),
        ((d.Zeros(3), 0, -1, 1), {}, RuntimeError, "size is -1"),
        ((d.Zeros(3), 1, 1, 1), {}, IndexError, "Dimension out of range"),
    ),
    tests=d.Tests(peer="Tensor.unfold"),
)
def unfold_(input: Any, dimension: int, size: int, step: int) -> Any:
    """A view of all windows of `size` elements along a dim, `step` apart, their elements as a new last dim.

    RuntimeError if `size` is larger than the dim or `step` not positive, IndexError for a dim out of range.

    >>> kiln.arange(5).unfold(0, 2, 2)
    tensor([[0, 1],
            [2, 3]])
    """
    dim, shape = normalize_dim(dimension, input.ndim, "unfold"), tuple(input.shape)
    total = shape[dim] if shape else 1
    if size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")
    if isinstance(total, int) and size > total:
        raise RuntimeError(f"maximum size for tensor at dimension {dim} is {total} but size is {size}")
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    strides, offset = geometry(input)
    if not shape:
        return unfold.handle(input, (size,), (1,), (offset,), (0, 1, 0))
    count = quotient(total - size, step) + 1
    sizes = (*shape[:dim], count, *shape[dim + 1 :], size)
    places = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim])
    return unfold.handle(input, sizes, places, (offset,), (dim, step, int(step < size)))


# as_strided, and arrays written at places


@public("as_strided", dtypes="all")
def as_strided_(input: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """A view of given sizes and strides into the tensor's memory. RuntimeError if it would leave it.

    Gradients flow unless places of `input` share memory; then NotImplementedError.

    >>> kiln.arange(4).as_strided((2, 2), (1, 2))
    tensor([[0, 2],
            [1, 3]])
    """
    offset = geometry(input)[1] if storage_offset is None else storage_offset
    if len(size) != len(stride):
        raise RuntimeError(
            f"as_strided: mismatch in length of strides and shape: {list(size)}, {list(stride)}"
        )
    if not is_value(input) and input.requires_grad and _core.grad_enabled():
        input = _in_memory_order(input, offset + _reach(size, stride))
    return as_strided.handle(input, tuple(size), tuple(stride), (offset,))


def _reach(sizes: Any, strides: Any) -> Any:
    """How many elements of memory a view covers, from its first place to its last."""
    return 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides))


@primitive("as_strided", tests=d.Tests(peer=None), **_hidden((12,), (1,), (0,), (4, 1, 0)))
def memory_around(input: Tensor, sizes: Sizes, strides: Sizes, offset: Sizes, places: Structure) -> Any:
    """The memory that `input` lies in, from its start on; places = (input's strides ..., its offset).

    >>> x = kiln.arange(4.0).requires_grad_()
    >>> x[1:].as_strided((2,), (2,)).sum().backward(); x.grad
    tensor([0., 1., 0., 1.])
    """


@memory_around.derivative
def _(g: Tensor, input: Tensor, places: tuple[int, ...]) -> Any:
    return as_strided(g, tuple(input.shape), places[:-1], places[-1:])


def _in_memory_order(input: Tensor, end: int) -> Any:
    """The view of `input` that a derivative by places is true of: its dims in the order of memory, or where
    it leaves gaps, the memory up to `end` and to its own end.
    """
    strides = input.stride()
    order = sorted(range(input.ndim), key=lambda dim: (-strides[dim], -input.shape[dim]))
    ordered = input if order == list(range(input.ndim)) else permute.handle(input, order)
    if ordered.storage_offset() == 0 and ordered.is_contiguous():
        return ordered
    if not isinstance(input, _core.Tensor) or _overlaps(
        ordered
    ):  # a sample of a batch has no memory of its own
        raise NotImplementedError(
            "as_strided: expected a tensor whose elements lie apart in memory where gradients flow, "
            f"got shape {tuple(input.shape)}, strides {tuple(strides)}; use x.contiguous() first"
        )
    start = input.storage_offset()
    end = max(end, start + _reach(input.shape, strides))
    return memory_around.handle(input, (end,), (1,), (0,), (*strides, start))


def _overlaps(input: Tensor) -> bool:
    """Whether places of a tensor may share memory, whose dims are in its order."""
    end = 1
    for size, stride in zip(reversed(input.shape), reversed(input.stride())):
        if size > 1 and stride < end:
            return True
        end += (size - 1) * stride
    return False


def _written_at(input: Tensor, src: Tensor, strides: Any, offset: Any) -> Any:
    """A copy of `input` with src, as its dtype, at places of contiguous memory."""
    if dtype_name(src.dtype) != dtype_name(input.dtype):
        src = convert(src, dtype_name(input.dtype))
    return write.handle(input, src, strides, (offset,))


def _fits(src: Tensor, sizes: Any) -> None:
    for have, want in zip(src.shape, sizes):
        if answerable(have, want) and have != want:
            break
    else:
        if src.ndim == len(sizes):
            return
    raise RuntimeError(
        "expected src to have a size equal to the slice of self. src size = "
        f"{list(src.shape)}, slice size = {list(sizes)}"
    )


@public(
    "select_scatter",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t), d.array(rng, (2,), t)), {"dim": 1, "index": -1})
    ),
    dtypes="float32 bfloat16 int64",
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(4), 0, 0), {}, RuntimeError, "expected src to have a size"),
        ((d.Zeros(2, 3), d.Zeros(3), 0, 2), {}, IndexError, "out of range"),
    ),
)
def select_scatter(input: Any, src: Any, dim: int, index: int) -> Any:
    """A copy of `input` with `src` in place of its `select(dim, index)`. RuntimeError for another shape.

    >>> kiln.select_scatter(kiln.zeros(2, 2), kiln.ones(2), 0, 1)
    tensor([[0., 0.],
            [1., 1.]])
    """
    select(input, dim, index)  # its errors
    dim, shape = normalize_dim(dim, input.ndim, "select_scatter"), tuple(input.shape)
    start = index + shape[dim] if index < 0 else index
    rest = (*shape[:dim], *shape[dim + 1 :])
    _fits(src, rest)
    strides = contiguous_strides(shape)
    return _written_at(input, src, (*strides[:dim], *strides[dim + 1 :]), start * strides[dim])


@public(
    "slice_scatter",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (5, 3), t), d.array(rng, (2, 3), t), 0, 1, 4, 2), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), d.array(rng, (2, 1), t)), {"dim": 1, "start": -1}),
    ),
    dtypes="float32 bfloat16 int64",
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 3), 0, 1), {}, RuntimeError, "expected src to have a size"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), 2), {}, IndexError, "Dimension out of range"),
    ),
)
def slice_scatter(
    input: Any,
    src: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    out: Any = None,
) -> Any:
    """A copy of `input` with `src` in place of input[start:end:step] along `dim`. RuntimeError for another
    shape.

    >>> kiln.slice_scatter(kiln.zeros(4), kiln.ones(2), 0, 0, None, 2)
    tensor([1., 0., 1., 0.])
    """
    dim, shape = normalize_dim(dim, input.ndim, "slice_scatter"), tuple(input.shape)
    first, last, step = slice(start, end, step).indices(shape[dim])
    count = max(0, -(-(last - first) // step))
    _fits(src, (*shape[:dim], count, *shape[dim + 1 :]))
    strides = list(contiguous_strides(shape))
    offset = first * strides[dim] if count else 0
    strides[dim] *= step
    return written_to(_written_at(input, src, tuple(strides), offset), out)


@public(
    "diagonal_scatter",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), d.array(rng, (3,), t), 1), {})),
    dtypes="float32 bfloat16 int64",
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(3)), {}, RuntimeError, "expected src to have a size")),
)
def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A copy of `input` with `src` in place of its `diagonal(offset, dim1, dim2)`. RuntimeError for another
    shape.

    >>> kiln.diagonal_scatter(kiln.zeros(2, 2), kiln.ones(2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    _fits(src, diagonal_(input, offset, dim1, dim2).shape)
    shape = tuple(input.shape)
    a, b = (normalize_dim(dim, input.ndim, "diagonal_scatter") for dim in (dim1, dim2))
    strides, start = _along_diagonal(shape, contiguous_strides(shape), offset, a, b)
    return _written_at(input, src, strides, start if src.shape[-1] else 0)


@public(
    "as_strided_scatter",
    differs="contiguous; PyTorch's gradient of `input` is that of another place",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 4), t), d.array(rng, (2, 2), t), (2, 2), (5, 1), 1), {})
    ),
    dtypes="float32 int64",
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(3), (2,), (1,)), {}, RuntimeError, "expected src to have a size")
    ),
    tests=d.Tests(peer_gradient=False, sees_layout=True),
)
def as_strided_scatter(
    input: Any, src: Any, size: Any, stride: Any, storage_offset: int | None = None
) -> Any:
    """A copy of `input` with `src` at places of its memory, each named once. RuntimeError for
    another shape, or places that lie outside.

    >>> kiln.as_strided_scatter(kiln.zeros(4), kiln.ones(2), (2,), (2,), 1)
    tensor([0., 1., 0., 1.])
    """
    _fits(src, size)
    if not is_value(input) and not (input.is_contiguous() and input.storage_offset() == 0):
        return _scattered_in_memory(input, src, size, stride, storage_offset)
    offset = storage_offset or 0
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    total = numel(input.shape)
    if 0 not in size and isinstance(total, int) and not 0 <= offset <= last < total:
        width = input.dtype.itemsize if isinstance(input.dtype, _core.dtype) else 1
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
            f"{width} requiring a storage size of {(last + 1) * width} are out of bounds for storage of size "
            f"{total * width}"
        )
    return _written_at(input, src, tuple(stride), offset)


def _scattered_in_memory(input: Tensor, src: Tensor, size: Any, stride: Any, offset: int | None) -> Any:
    """`as_strided_scatter` of what does not fill its memory from the start on: the memory is copied up to the
    last place there is, and the result lies in the copy as the input does in its own.
    """
    start = input.storage_offset()
    offset = start if offset is None else offset
    last = [
        first + sum((n - 1) * s for n, s in zip(shape, strides))
        for shape, strides, first in ((input.shape, input.stride(), start), (size, stride, offset))
    ]
    memory = clone(as_strided(input, (max(last) + 1,), (1,), 0))
    return as_strided(
        as_strided_scatter(memory, src, size, stride, offset), tuple(input.shape), input.stride(), start
    )


def fill_diagonal_(self: Any, fill_value: Any, wrap: bool = False) -> Any:
    """Writes a number on the main diagonal of at least two dims, all equal if there are more; with `wrap`, in
    a tall matrix, again from the row after its end. RuntimeError for fewer dims or unequal ones.

    >>> kiln.zeros(2, 2).fill_diagonal_(7)
    tensor([[7., 0.],
            [0., 7.]])
    """
    if self.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    shape = tuple(self.shape)
    if self.ndim > 2:
        if len(set(shape)) > 1:
            raise RuntimeError("all dimensions of input must be of equal length")
        view = self
        for _ in shape[1:]:
            view = diagonal_(view, 0, 0, view.ndim - 1)
        view.fill_(fill_value)
        return self
    starts = range(0, shape[0], shape[1] + 1) if wrap and shape[1] else range(min(1, shape[0]))
    for start in starts:
        rows = slice_.handle(self, 0, (start, shape[0] - start, 1))
        diagonal_(rows).fill_(fill_value)
    return self


@public(
    "adjoint",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3, 4), t),), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(3),), {}, RuntimeError, "only supported on matrices")),
)
def adjoint(input: Any) -> Any:
    """Matrices [..., n, m] transposed, as a view: of real numbers that is the adjoint. RuntimeError for a
    vector.

    >>> kiln.adjoint(kiln.zeros(2, 3)).shape
    kiln.Size([3, 2])
    """
    if input.ndim == 0:
        return permute.handle(input, ())
    if input.ndim == 1:
        raise RuntimeError(
            "tensor.adjoint() is only supported on matrices or batches of matrices. Got 1-D tensor."
        )
    return transpose(input, -2, -1)


methods({"fill_diagonal_": fill_diagonal_})
