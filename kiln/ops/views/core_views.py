"""Views: the five primitives the core runs natively, their two inverses, and PyTorch's functions over them.

A public function here is plain Python: it works out sizes and calls a primitive, on tensors and on graph
values alike. `embed` and `write` are not views: they are what the derivative of a view needs.
"""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

from kiln import _core
from kiln.graph.size import product, quotient
from kiln.ops.views.reinterpret import as_bits
from kiln.table import drawn as d
from kiln.table.arguments import is_value, number
from kiln.table.kinds import normalize_dim
from kiln.table.public import alias, public
from kiln.table.record import Sizes, Structure, Tensor, find, primitive
from kiln.table.registry import forms


def strided_reference(np: ModuleType, x: Any, sizes: Any, strides: Any, offset: Any) -> Any:
    flat = np.ascontiguousarray(x).reshape(-1)
    return np.lib.stride_tricks.as_strided(
        flat[offset[0] :], sizes, [s * flat.itemsize for s in strides]
    ).copy()


def _at(ndim: int, dim: int, start: int, count: int, step: int) -> Any:
    return (
        (slice(None),) * dim + (slice(start, start + count * step, step),) + (slice(None),) * (ndim - dim - 1)
    )


def _placed(np: ModuleType, x: Any, dim: int, place: Any) -> Any:
    size, start, step = place
    out = np.zeros((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype)
    out[_at(x.ndim, dim, start, x.shape[dim], step)] = x
    return out


def written_reference(np: ModuleType, base: Any, x: Any, strides: Any, offset: Any) -> Any:
    flat = base.reshape(-1).copy()
    where = offset[0] + np.add.reduce(
        np.meshgrid(*(np.arange(n) * s for n, s in zip(x.shape, strides)), indexing="ij")
    )
    flat[where] = x
    return flat.reshape(base.shape)


_ANY = {"dtypes": "all", "public": False}


@primitive(
    "reshape",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), (2, 6)), {})),
    reference=d.reference(lambda np, x, sizes: x.reshape(sizes)),
    failures=d.failures(((d.Zeros(6), (4,)), {}, RuntimeError, "invalid for input of size 6")),
    **_ANY,
)
def reshape(input: Tensor, sizes: Sizes) -> Any:
    """`input`'s elements in order, in another shape: a view where its strides allow, else a copy.

    >>> kiln.tensor([1, 2, 3, 4]).reshape(2, 2)
    tensor([[1, 2],
            [3, 4]])
    """


@reshape.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return reshape(g, tuple(input.shape))


@primitive(
    "permute",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3, 4), t), (2, 0, 1)), {})),
    reference=d.reference(lambda np, x, dims: x.transpose(dims)),
    **_ANY,
)
def permute(input: Tensor, dims: Structure) -> Any:
    """A view of `input` whose k-th dim is its dim dims[k].

    >>> kiln.zeros(2, 3).permute(1, 0).shape
    kiln.Size([3, 2])
    """


@permute.derivative
def _(g: Tensor, dims: tuple[int, ...]) -> Tensor:
    return permute(g, tuple(sorted(range(len(dims)), key=dims.__getitem__)))


@primitive(
    "expand",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 1), t), (2, 3, 4)), {})),
    reference=d.reference(lambda np, x, sizes: np.broadcast_to(x, sizes)),
    failures=d.failures(((d.Zeros(2, 3), (3, 3)), {}, RuntimeError, "must match the existing size")),
    **_ANY,
)
def expand(input: Tensor, sizes: Sizes) -> Any:
    """A view in which dims of size 1 and new leading dims repeat, without memory.

    >>> kiln.tensor([1, 2]).expand(2, 2)
    tensor([[1, 2],
            [1, 2]])
    """


@expand.derivative
def _(g: Tensor, input: Tensor) -> Any:
    return find("sum_to")(g, input)


@primitive(
    "slice",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 7), t), 1, (1, 3, 2)), {})),
    reference=d.reference(lambda np, x, dim, span: x[_at(x.ndim, dim, *span)]),
    **_ANY,
)
def slice_(input: Tensor, dim: Structure, span: Sizes) -> Any:
    """A view of `count` elements along `dim`, from `start` in steps of `step`: span = (start, count, step).

    >>> kiln.arange(6)[1:6:2]
    tensor([1, 3, 5])
    """


@slice_.derivative
def _(g: Tensor, input: Tensor, dim: Any, span: Any) -> Any:
    return embed(g, dim, (input.shape[dim], span[0], span[2]))


@primitive(
    "as_strided",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), (2, 3), (1, 2), (1,)), {})),
    reference=d.reference(strided_reference),
    **_ANY,
)
def as_strided(input: Tensor, sizes: Sizes, strides: Sizes, offset: Sizes) -> Any:
    """A view of given sizes, strides and offset, in elements of `input`'s memory; places may be seen several
    times.

    >>> kiln.arange(4).as_strided((2, 2), (1, 2))
    tensor([[0, 2],
            [1, 3]])
    """


@as_strided.derivative
def _(g: Tensor, input: Tensor, strides: Any, offset: Any) -> Any:
    return gathered_back(g, tuple(input.shape), strides, offset[0])


def gathered_back(g: Tensor, shape: Any, strides: Any, offset: Any) -> Tensor:
    """Every element of g added at its place in contiguous memory of `shape`: a scatter, for places may
    repeat.
    """
    place = number(g, offset)
    for dim, stride in enumerate(strides):
        place = place + _positions(g, dim, stride)
    flat = g.graph.add(find("full"), (number(g, 0),), ((product(shape),), g.dtype))
    count = (product(tuple(g.shape)),)
    index = reshape(place, count) if g.shape else reshape(place + _positions(reshape(g, (1,)), 0, 0), (1,))
    return reshape(find("scatter_add")(flat, 0, index, reshape(g, count)), shape)


def _positions(g: Tensor, dim: int, stride: Any) -> Tensor:
    """stride * (the position along dim), over g's shape."""
    return g.graph.add(find("iota"), (), (tuple(g.shape), dim)) * number(g, stride)


@primitive(
    "embed",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 3), t), 1, (7, 1, 2)), {})),
    reference=d.reference(_placed),
    **_ANY,
)
def embed(input: Tensor, dim: Structure, place: Sizes) -> Any:
    """Zeros of `size` along `dim` with `input` at start, start + step, ...: place = (size, start, step).

    >>> x = kiln.ones(3, requires_grad=True)
    >>> x[1:].sum().backward(); x.grad
    tensor([0., 1., 1.])
    """


@embed.derivative
def _(g: Tensor, input: Tensor, dim: Any, place: Any) -> Any:
    return slice_(g, dim, (place[1], input.shape[dim], place[2]))


@primitive(
    "write",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), d.array(rng, (2, 3), t), (4, 1), (1,)), {})),
    reference=d.reference(written_reference),
    **_ANY,
)
def write(base: Tensor, input: Tensor, strides: Sizes, offset: Sizes) -> Any:
    """`base` with `input` at the places strides and offset give in its memory, each written once.

    >>> x = kiln.zeros(2, 2); x[:, 0] = kiln.ones(2); x
    tensor([[1., 0.],
            [1., 0.]])
    """


@write.derivative
def _(g: Tensor, input: Tensor, strides: Any, offset: Any) -> Any:
    zeros = g.graph.add(find("full"), (number(g, 0),), (tuple(input.shape), g.dtype))
    return write(g, zeros, strides, offset), as_strided(g, tuple(input.shape), strides, offset)


# Public functions: the core checks sizes and orders of plain ints, and these do where it cannot or where it
# would say it in other words than PyTorch. Handles, because a call of a record costs as much as the view.

_reshape, _permute, _expand = (op.handle for op in (reshape, permute, expand))


def sizes_of(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes given one by one or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


def inferred(shape: Any, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """`sizes` with a -1 replaced by what the element count of `shape` leaves; PyTorch's errors."""
    total = product(tuple(shape))
    for k, size in enumerate(sizes):
        if isinstance(size, int) and size < -1:
            raise RuntimeError(f"invalid shape dimension {size} at index {k} of shape {list(sizes)}")
    open_dims = [k for k, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(open_dims) > 1:
        raise RuntimeError("only one dimension can be inferred")
    rest = product(tuple(s for k, s in enumerate(sizes) if k not in open_dims))
    if open_dims and isinstance(rest, int) and rest == 0:
        raise RuntimeError(
            f"cannot reshape tensor of {total} elements into shape {list(sizes)} because the unspecified "
            "dimension size -1 can be any value and is ambiguous"
            if total == 0
            else f"shape '{list(sizes)}' is invalid for input of size {total}"
        )
    if isinstance(total, int) and isinstance(rest, int) and (total % rest if open_dims else total != rest):
        raise RuntimeError(f"shape '{list(sizes)}' is invalid for input of size {total}")
    return tuple(quotient(total, rest) if k in open_dims else s for k, s in enumerate(sizes))


def _resolved(input: Tensor, shape: tuple[Any, ...]) -> Any:
    """The sizes asked for without -1; what their product must be is left to the core where it can see it."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if isinstance(input, _core.Tensor):
        if all(map(_plain, sizes)):
            return sizes
        if all(type(s) is int for s in sizes) and sizes.count(-1) == 1 and min(sizes) == -1:
            rest, total = -prod(sizes), input.numel()
            if rest > 0 and total % rest == 0:
                return [total // rest if s == -1 else s for s in sizes]
    return inferred(input.shape, tuple(sizes))


def _plain(size: Any) -> bool:
    return type(size) is int and size >= 0


_UNFIT: dict[str, Any] = {
    "failures": d.failures(
        ((d.Zeros(2, 3), (4, -1)), {}, RuntimeError, r"shape '\[4, -1\]' is invalid for input of size 6"),
        ((d.Zeros(2, 3), (0, -1)), {}, RuntimeError, r"shape '\[0, -1\]' is invalid for input of size 6"),
        ((d.Zeros(2, 3), (-1, -1)), {}, RuntimeError, "only one dimension can be inferred"),
        ((d.Zeros(0, 3), (0, -1)), {}, RuntimeError, "can be any value and is ambiguous"),
        ((d.Zeros(2, 3), (-2, 3)), {}, RuntimeError, "invalid shape dimension -2"),
    )
}


@public("reshape", dtypes="all", quick=True, **_UNFIT)
def reshape_(input: Any, *sizes: Any, shape: Any = None) -> Any:
    """`input`'s elements in another shape; one size may be -1. A view where possible. RuntimeError if it does
    not fit.

    >>> kiln.reshape(kiln.arange(6), (2, -1)).shape
    kiln.Size([2, 3])
    """
    if not sizes and shape is None:
        raise TypeError('reshape() missing 1 required positional arguments: "shape"')
    return _reshape(input, _resolved(input, sizes if shape is None else (shape,)))


forms("view", "(input, *size: int)", "(input, size: Sequence[int])", "(input, dtype: DType)")


@public("view", method=True, dtypes="all", quick=True, **_UNFIT)
def view(input: Any, *shape: Any, size: Any = None, dtype: Any = None) -> Any:
    """As `reshape`, but RuntimeError where the strides of a tensor would need a copy. Given a dtype: the same
    memory with its bits read as that, without gradients; the last dim grows or shrinks by the widths' ratio.

    >>> kiln.arange(6).view(3, 2).shape
    kiln.Size([3, 2])
    """
    if dtype is not None or (len(shape) == 1 and isinstance(shape[0], _core.dtype)):
        return as_bits(input, dtype or shape[0])
    if not shape and size is None:
        raise TypeError("view() received an invalid combination of arguments - got (), but expected sizes")
    sizes = _resolved(input, shape if size is None else (size,))
    if is_value(input) or input.is_contiguous():
        return _reshape(input, sizes)
    if not viewable(tuple(input.shape), tuple(input.stride()), tuple(sizes)):
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension "
            "spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return reshape(input, sizes)


def viewable(shape: tuple[int, ...], strides: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether elements laid out by `strides` can be seen in shape `sizes` without a copy."""
    if 0 in shape:
        return True
    runs: list[int] = []  # element counts of the stretches of dims that lie evenly in memory
    previous: tuple[int, int] | None = None
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if previous is not None and previous[1] == stride * size:
            runs[-1] *= size
        else:
            runs.append(size)
        previous = (size, stride)
    wanted = [s for s in sizes if s != 1]
    for run in runs:
        while run > 1:
            if not wanted or run % wanted[0]:
                return False
            run //= wanted.pop(0)
    return not wanted


@public("flatten", dtypes="all", quick=True)
def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Dims start_dim to end_dim (inclusive) as one. RuntimeError if they are out of order.

    >>> kiln.zeros(2, 3, 4).flatten(1).shape
    kiln.Size([2, 12])
    """
    ndim = input.ndim
    first, last = normalize_dim(start_dim, ndim, "flatten"), normalize_dim(end_dim, ndim, "flatten")
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    shape = tuple(input.shape)
    return _reshape(input, (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :]))


@public("unflatten", dtypes="all")
def unflatten(input: Any, dim: int, sizes: Any) -> Any:
    """Dim `dim` as several of the given sizes, one of which may be -1. RuntimeError if they do not multiply
    up to it.

    >>> kiln.zeros(2, 12).unflatten(1, (3, -1)).shape
    kiln.Size([2, 3, 4])
    """
    dim, shape = normalize_dim(dim, input.ndim, "unflatten"), tuple(input.shape)
    try:
        parts = inferred((shape[dim],), tuple(sizes))
    except RuntimeError as error:
        raise RuntimeError(
            f"unflatten: Provided sizes {list(sizes)} don't multiply up to the size of dim {dim} "
            f"({shape[dim]}) in the input tensor"
        ) from error
    return _reshape(input, (*shape[:dim], *parts, *shape[dim + 1 :]))


forms("permute", "(input, *dims: int)", "(input, dims: Sequence[int])")


@public("permute", dtypes="all", quick=True)
def permute_(input: Any, *order: Any, dims: Any = None) -> Any:
    """The dims in another order. RuntimeError unless every dim is named once; TypeError without any.

    >>> kiln.permute(kiln.zeros(2, 3, 4), (2, 0, 1)).shape
    kiln.Size([4, 2, 3])
    """
    if not order and dims is None:
        raise TypeError('permute() missing 1 required positional arguments: "dims"')
    order = sizes_of(order if dims is None else (dims,))
    if len(order) != input.ndim:
        raise RuntimeError(
            "permute(): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {input.ndim} is not equal to len(dims) = {len(order)}"
        )
    if not all(map(_plain, order)) or max(order, default=-1) >= len(order):
        order = tuple(normalize_dim(k, input.ndim, "permute") for k in order)
    if len(set(order)) != len(order):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return _permute(input, order)


@public("transpose", dtypes="all", quick=True)
def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """Two dims swapped. IndexError for a dim out of range.

    >>> kiln.zeros(2, 3).transpose(0, 1).shape
    kiln.Size([3, 2])
    """
    ndim = input.ndim
    a, b = normalize_dim(dim0, ndim, "transpose"), normalize_dim(dim1, ndim, "transpose")
    if ndim < 2:
        return _permute(input, (0,) * ndim)
    order = list(range(ndim))
    order[a], order[b] = b, a
    return _permute(input, order)


alias("swapaxes", "transpose")
alias("swapdims", "transpose")


_REVERSED = ((), (0,), (1, 0))


@public("t", dtypes="all", quick=True)
def t(input: Any) -> Any:
    """A matrix transposed; fewer dims stay. RuntimeError for more than 2 dims.

    >>> kiln.zeros(2, 3).t().shape
    kiln.Size([3, 2])
    """
    ndim = input.ndim
    if ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {ndim}D")
    return _permute(input, _REVERSED[ndim])


forms("movedim", "(input, source: int | Sequence[int], destination: int | Sequence[int])")


@public("movedim", dtypes="all")
def movedim(input: Any, source: Any, destination: Any) -> Any:
    """Dims `source` (an int or several) moved to `destination`; the others keep their order.

    >>> kiln.zeros(2, 3, 4).movedim(0, -1).shape
    kiln.Size([3, 4, 2])
    """
    pair = [(k,) if isinstance(k, int) else tuple(k) for k in (source, destination)]
    if len(pair[0]) != len(pair[1]):
        raise RuntimeError(
            f"movedim: Invalid source or destination dims: source ({list(pair[0])} dims) should contain the "
            f"same number of dims as destination ({list(pair[1])} dims)"
        )
    source, destination = ([normalize_dim(k, input.ndim, "movedim") for k in dims] for dims in pair)
    for what, dims, given in zip(("source", "destination"), (source, destination), pair):
        if len(set(dims)) != len(dims):
            raise RuntimeError(f"movedim: repeated dim in `{what}` ({list(given)})")
    rest = iter(k for k in range(input.ndim) if k not in source)
    order = [source[destination.index(k)] if k in destination else next(rest) for k in range(input.ndim)]
    return _permute(input, tuple(order))


alias("moveaxis", "movedim")


@public("squeeze", dtypes="all", quick=True)
def squeeze(input: Any, dim: Any = None) -> Any:
    """Without dims of size 1: all of them, or those in `dim` (an int or several) that are of size 1.

    >>> kiln.zeros(1, 2, 1).squeeze().shape
    kiln.Size([2])
    """
    shape = tuple(input.shape)
    ones = [k for k, s in enumerate(shape) if isinstance(s, int) and s == 1]
    if dim is not None:
        dims = dim if isinstance(dim, (tuple, list)) else (dim,)
        dims = [normalize_dim(k, input.ndim, "squeeze") for k in dims]
        if len(set(dims)) != len(dims):
            raise RuntimeError(f"squeeze: a dim appears multiple times in the list of dims {dims}")
        ones = [k for k in dims if k in ones]
    return _reshape(input, tuple([s for k, s in enumerate(shape) if k not in ones]) if ones else shape)


@public("unsqueeze", dtypes="all", quick=True)
def unsqueeze(input: Any, dim: int) -> Any:
    """With a new dim of size 1 at `dim`. IndexError for a dim out of range.

    >>> kiln.zeros(2).unsqueeze(0).shape
    kiln.Size([1, 2])
    """
    dim, shape = normalize_dim(dim, input.ndim + 1, "unsqueeze"), tuple(input.shape)
    return _reshape(input, (*shape[:dim], 1, *shape[dim:]))


@public("expand", method=True, dtypes="all", quick=True)
def expand_(input: Any, *sizes: Any, size: Any = None) -> Any:
    """Dims of size 1 and new leading dims repeated, as a view; -1 keeps a size. RuntimeError if it does not
    fit.

    >>> kiln.zeros(3, 1).expand(2, -1, 4).shape
    kiln.Size([2, 3, 4])
    """
    sizes, shape = sizes_of(sizes if size is None else (size,)), tuple(input.shape)
    extra = len(sizes) - len(shape)
    if extra < 0:
        raise RuntimeError(
            f"expand({list(shape)}, size={list(sizes)}): the number of sizes provided ({len(sizes)}) must be "
            f"greater or equal to the number of dimensions in the tensor ({len(shape)})"
        )
    result = tuple(
        shape[k - extra] if isinstance(s, int) and s == -1 and k >= extra else s for k, s in enumerate(sizes)
    )
    for k, (have, want) in enumerate(zip(shape, result[extra:])):
        if isinstance(have, int) and isinstance(want, int) and have not in (1, want):
            raise RuntimeError(
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at "
                f"non-singleton dimension {k + extra}.  Target sizes: {list(result)}.  Tensor sizes: "
                f"{list(shape)}"
            )
    if any(isinstance(s, int) and s < 0 for s in result):
        raise RuntimeError(
            f"expand: the expanded size of a new leading dim may not be negative, got {list(sizes)}"
        )
    return _expand(input, result)


@public("expand_as", dtypes="all")
def expand_as(input: Any, other: Any) -> Any:
    """`input` expanded to other's shape.

    >>> kiln.zeros(1, 2).expand_as(kiln.zeros(3, 2)).shape
    kiln.Size([3, 2])
    """
    return expand_(input, tuple(other.shape))


@public("broadcast_to", dtypes="all")
def broadcast_to(input: Any, size: Any) -> Any:
    """`input` expanded to `size`.

    >>> kiln.broadcast_to(kiln.zeros(2), (3, 2)).shape
    kiln.Size([3, 2])
    """
    return expand_(input, tuple(size))


@public("view_as", dtypes="all", quick=True)
def view_as(input: Any, other: Any) -> Any:
    """`input` viewed in other's shape.

    >>> kiln.arange(6).view_as(kiln.zeros(2, 3)).shape
    kiln.Size([2, 3])
    """
    return view(input, tuple(other.shape))
