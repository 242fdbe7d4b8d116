"""Parts of an array along a dim, as views: narrow, select, unbind, split, chunk, tensor_split."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from kiln import _core
from kiln.graph.size import Size
from kiln.ops.views.core_views import reshape, slice_
from kiln.table import drawn as d
from kiln.table.arguments import (
    INTEGERS,
    answerable,
    dtype_name,
    expect_count,
    fixed_count,
    is_symbolic,
    is_value,
    number,
    type_name,
)
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Sizes, Structure, Tensor, composite, find
from kiln.table.registry import forms


@composite(
    native="select",
    tests=d.Tests(peer=None),
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), 1, (2,)), {})),
    reference=d.reference(lambda np, x, dim, place: x.take(place[0], dim)),
    dtypes="all",
    public=False,
)
def select_(input: Tensor, dim: Structure, place: Sizes) -> Any:
    """A view of one position along `dim`, without that dim; both are counted from the front.

    >>> kiln.tensor([[1, 2], [3, 4]])[1]
    tensor([3, 4])
    """
    shape = tuple(input.shape)
    return reshape(slice_(input, dim, (place[0], 1, 1)), (*shape[:dim], *shape[dim + 1 :]))


@composite(
    native="split",
    tests=d.Tests(peer=None),
    public=False,
    dtypes="all",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 5), t), 1, (2, 0, 3)), {})),
    reference=d.reference(lambda np, x, dim, lengths: tuple(np.split(x, np.cumsum(lengths)[:-1], dim))),
)
def split_(input: Tensor, dim: Structure, lengths: Sizes) -> Any:
    """Views along `dim` (counted from the front) of lengths that add up to its size: one call, one node.

    >>> [part.tolist() for part in kiln.arange(3).split([1, 2])]
    [[0], [1, 2]]
    """
    starts = accumulate(lengths, initial=0)
    return tuple([slice_(input, dim, (start, n, 1)) for start, n in zip(starts, lengths)])


@split_.derivative
def _(gs: Any, input: Tensor, dim: Any, lengths: Any) -> Tensor:
    return _joined(gs, input, dim, lengths)


@composite(
    native="split",
    tests=d.Tests(peer=None),
    public=False,
    dtypes="all",
    samples=d.samples(lambda rng, t: ((d.array(rng, (5, 2), t), 0, (4, 1)), {})),
    reference=d.reference(lambda np, x, dim, lengths: tuple(np.split(x, np.cumsum(lengths)[:-1], dim))),
)
def split_with_sizes_(input: Tensor, dim: Structure, lengths: Sizes) -> Any:
    """The same where the caller gave the lengths: another name in the graph that backward passes.

    >>> kiln.ones(3, requires_grad=True).split([1, 2])[1].grad_fn.name()
    'SplitWithSizesBackward0'
    """
    assert split_.body is not None
    return split_.body(input, dim, lengths)


@split_with_sizes_.derivative
def _(gs: Any, input: Tensor, dim: Any, lengths: Any) -> Tensor:
    return _joined(gs, input, dim, lengths)


@composite(
    native="unbind",
    tests=d.Tests(peer=None),
    public=False,
    dtypes="all",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3), t), 1, 3), {})),
    reference=d.reference(lambda np, x, dim, count: tuple(x.take(k, dim) for k in range(count))),
)
def unbind_(input: Tensor, dim: Structure, count: Structure) -> Any:
    """All `count` views along `dim` (counted from the front), each without it: one call, one node.

    >>> kiln.tensor([1, 2]).unbind()
    (tensor(1), tensor(2))
    """
    shape = tuple(input.shape)
    rest = (*shape[:dim], *shape[dim + 1 :])
    return tuple([reshape(slice_(input, dim, (k, 1, 1)), rest) for k in range(count)])


@unbind_.derivative
def _(gs: Any, input: Tensor, dim: Any, count: Any) -> Tensor:
    shape = tuple(input.shape)
    row = (*shape[:dim], 1, *shape[dim + 1 :])
    return _joined([g if g is None else reshape(g, row) for g in gs], input, dim, (1,) * count)


def _joined(gs: Any, input: Tensor, dim: int, lengths: Any) -> Any:
    """Gradients of parts side by side, in the shape of `input`; neighbours without one are one block of
    zeros.
    """
    shape, blocks, absent = tuple(input.shape), list[Any](), 0
    known = next(g for g in gs if g is not None)

    def zeros(length: Any) -> Any:
        sizes = (*shape[:dim], length, *shape[dim + 1 :])
        return known.graph.add(find("full"), (number(known, 0),), (sizes, known.dtype))

    for g, length in zip(gs, lengths):
        if g is None:
            absent = absent + length
            continue
        blocks += [g] if isinstance(absent, int) and absent == 0 else [zeros(absent), g]
        absent = 0
    blocks += [] if isinstance(absent, int) and absent == 0 else [zeros(absent)]
    return reshape(blocks[0] if len(blocks) == 1 else find("concat")(blocks, dim), shape)


_reshape, _slice, _select, _several, _sized, _all = (
    op.handle for op in (reshape, slice_, select_, split_, split_with_sizes_, unbind_)
)


@public("narrow", dtypes="all", quick=True)
def narrow(input: Any, dim: int, start: int, length: int) -> Any:
    """A view of `length` elements along `dim`, from `start` (which may count from the end).

    IndexError for a start out of range, RuntimeError for a length that is negative or does not fit.

    >>> kiln.arange(5).narrow(0, 1, 3)
    tensor([1, 2, 3])
    """
    if input.ndim == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    dim = normalize_dim(dim, input.ndim, "narrow")
    if isinstance(start, _core.Tensor):
        if start.ndim or dtype_name(start.dtype) not in INTEGERS:
            raise RuntimeError("start must be an 0-dim integral Tensor.")
        start = int(start)
    if isinstance(length, int) and length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    size = input.shape[dim]
    if isinstance(size, int) and isinstance(start, int) and isinstance(length, int):
        if not -size <= start <= size:
            raise IndexError(
                f"start out of range (expected to be in range of [{-size}, {size}], but got {start})"
            )
        start = start + size if start < 0 else start
        if start + length > size:
            raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    elif not is_value(input) and is_symbolic((size, start, length)):
        # sizes that may be asked about: the answers are checked at each call
        if not (-size <= start and start <= size):
            raise IndexError(f"start out of range (expected to be in range of [{-size}, {size}])")
        start = start + size if start < 0 else start
        if start + length > size:
            raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    elif is_symbolic((size,)):
        raise TypeError(
            f"narrow: the size of dim {dim} is symbolic ({size}), so the bounds cannot be checked here"
        )
    return _slice(input, dim, (start, length, 1))


@public("select", dtypes="all", quick=True)
def select(input: Any, dim: int, index: int) -> Any:
    """A view of position `index` along `dim`, without that dim. IndexError if it is out of range.

    >>> kiln.tensor([[1, 2], [3, 4]]).select(0, -1)
    tensor([3, 4])
    """
    if input.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim, shape = normalize_dim(dim, input.ndim, "select"), tuple(input.shape)
    size = shape[dim]
    if isinstance(size, int) and not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(shape)} at dimension {dim}"
        )
    start = index + size if index < 0 else index
    if isinstance(input, _core.Tensor):
        return _select(input, dim, start)
    return _reshape(_slice(input, dim, (start, 1, 1)), (*shape[:dim], *shape[dim + 1 :]))


def _known(input: Tensor, dim: int, op: str) -> Any:
    """The size along dim, which decides how many results there are, and so is asked about."""
    size = input.shape[dim]
    if not answerable(size):
        raise TypeError(
            f"{op}: the size of dim {dim} is symbolic ({size}): the number of results would depend on it"
        )
    return size


def _has_dims(input: Tensor, op: str) -> None:
    if input.ndim == 0:
        raise RuntimeError(f"{op} expects at least a 1-dimensional tensor")


@public("unbind", dtypes="all", quick=True)
def unbind(input: Any, dim: int = 0) -> tuple[Any, ...]:
    """The views along `dim`, each without it.

    >>> kiln.tensor([1, 2]).unbind()
    (tensor(1), tensor(2))
    """
    dim = normalize_dim(dim, input.ndim, "unbind")
    shape = tuple(input.shape)
    rest = (*shape[:dim], *shape[dim + 1 :])
    places = range(fixed_count(_known(input, dim, "unbind"), "divided into parts"))
    expect_count("unbind", len(places), "results")
    if isinstance(input, _core.Tensor):
        return _all(input, dim, len(places))  # type: ignore[no-any-return]
    return tuple([_reshape(_slice(input, dim, (k, 1, 1)), rest) for k in places])


forms(
    "split",
    "(input, split_size_or_sections: int | Sequence[int], dim=0) -> tuple[Tensor, ...]",
    "(input, *, split_size: int | Sequence[int], dim=0) -> tuple[Tensor, ...]",
    "(*, tensor: Tensor, split_size_or_sections: int | Sequence[int], dim=0) -> tuple[Tensor, ...]",
)


@public("split", dtypes="all", quick=True)
def split(
    input: Any = None,
    split_size_or_sections: Any = None,
    dim: int = 0,
    *,
    split_size: Any = None,
    tensor: Any = None,
) -> tuple[Any, ...]:
    """Views along `dim` of a given size (the last may be smaller), or of the sizes in a list, which must add
    up.

    >>> [part.tolist() for part in kiln.arange(5).split(2)]
    [[0, 1], [2, 3], [4]]
    """
    if input is None:  # the function's name for it
        if tensor is None:
            raise TypeError('split() missing 1 required positional argument: "tensor"')
        input = tensor
    if split_size is not None:  # the method's name for it
        split_size_or_sections = split_size
    if split_size_or_sections is None:
        raise TypeError('split() missing 1 required positional argument: "split_size_or_sections"')
    dim, lengths = _split(input, split_size_or_sections, dim)
    return _parts(
        _several if isinstance(split_size_or_sections, (int, Size)) else _sized, input, dim, lengths
    )


def _parts(op: Any, input: Any, dim: int, lengths: list[Any]) -> tuple[Any, ...]:
    """The views of one call, which are not to be written where gradients are recorded."""
    if isinstance(input, _core.Tensor):
        return op(input, dim, lengths)  # type: ignore[no-any-return]
    return _unsafe(input, dim, lengths)


def _unsafe(input: Any, dim: int, lengths: list[Any]) -> tuple[Any, ...]:
    """Views, each of which may be written in place alone."""
    starts = accumulate(lengths, initial=0)
    return tuple([_slice(input, dim, (start, n, 1)) for start, n in zip(starts, lengths)])


def _split(input: Any, split_size_or_sections: Any, dim: int) -> tuple[int, list[Any]]:
    """The dim from the front, and the lengths of the parts."""
    _has_dims(input, "split")
    dim = normalize_dim(dim, input.ndim, "split")
    size = _known(input, dim, "split")
    if isinstance(split_size_or_sections, (int, Size)):
        step = split_size_or_sections
        if step < 0 or (step == 0 and size):
            raise RuntimeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
                if step == 0
                else f"split expects split_size be non-negative, but got split_size={step}"
            )
        count = fixed_count((size + step - 1) // step, "divided into parts") if size else 1
        expect_count("split", count, "results")
        lengths = [*[step] * (count - 1), size - step * (count - 1)]
    else:
        lengths = list(split_size_or_sections)
        if sum(lengths) != size or any(n < 0 for n in lengths):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at "
                f"dimension {dim}), but got split_sizes={lengths}"
            )
    return dim, lengths


@public("chunk", dtypes="all", quick=True)
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """At most `chunks` views along `dim`, of equal size but for the last. RuntimeError unless chunks > 0.

    >>> [part.tolist() for part in kiln.arange(5).chunk(2)]
    [[0, 1, 2], [3, 4]]
    """
    return _parts(_several, input, *_chunk(input, chunks, dim))


def _chunk(input: Any, chunks: int, dim: int) -> tuple[int, list[Any]]:
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    _has_dims(input, "chunk")
    dim = normalize_dim(dim, input.ndim, "chunk")
    size = _known(input, dim, "chunk")
    if not size:
        expect_count("chunk", chunks, "results")
        return _split(input, [0] * chunks, dim)
    step = (size + chunks - 1) // chunks
    return _split(input, step, dim)


@public(
    "split_with_sizes",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 5), t), [2, 0, 3], 1), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(3), [1, 1]), {}, RuntimeError, "sum exactly to 3")),
)
def split_with_sizes(input: Any, split_sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    """Views along `dim` of the given sizes, which must add up. RuntimeError if they do not.

    >>> [part.tolist() for part in kiln.arange(3).split_with_sizes([1, 2])]
    [[0], [1, 2]]
    """
    parts: tuple[Any, ...] = split(input, list(split_sizes), dim)
    return parts


@public(
    "unsafe_split",
    samples=d.samples(lambda rng, t: ((d.array(rng, (5, 2), t), 2), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(3), -1), {}, RuntimeError, "non-negative")),
)
def unsafe_split(input: Any, split_size: int, dim: int = 0) -> tuple[Any, ...]:
    """As `split` of a size, but each result may be written in place, also where gradients are recorded.

    >>> x = kiln.ones(3, requires_grad=True) * 1
    >>> x.unsafe_split(2)[0].mul_(2).tolist()
    [2.0, 2.0]
    """
    return _unsafe(input, *_split(input, split_size, dim))


@public(
    "unsafe_chunk",
    samples=d.samples(lambda rng, t: ((d.array(rng, (5, 2), t), 2), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(3), 0), {}, RuntimeError, "greater than 0")),
)
def unsafe_chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """As `chunk`, but each result may be written in place, also where gradients are recorded.

    >>> x = kiln.ones(3, requires_grad=True) * 1
    >>> x.unsafe_chunk(2)[0].mul_(2).tolist()
    [2.0, 2.0]
    """
    return _unsafe(input, *_chunk(input, chunks, dim))


@public(
    "unsafe_split_with_sizes",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 5), t), [2, 0, 3], 1), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(3), [1, 1]), {}, RuntimeError, "sum exactly to 3")),
)
def unsafe_split_with_sizes(input: Any, split_sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    """As `split_with_sizes`, but each result may be written in place.

    >>> [part.tolist() for part in kiln.arange(3).unsafe_split_with_sizes([1, 2])]
    [[0], [1, 2]]
    """
    return _unsafe(input, *_split(input, list(split_sizes), dim))


def _at(input: Tensor, dim: int, places: list[int]) -> tuple[Any, ...]:
    """Views along `dim` between places, which may be negative, too large, or out of order."""
    size = _known(input, dim, "tensor_split")
    ends = [min(place if place >= 0 else max(place + size, 0), size) for place in places] + [size]
    starts = [0, *ends[:-1]]
    return tuple([_slice(input, dim, (start, max(end - start, 0), 1)) for start, end in zip(starts, ends)])


forms(
    "tensor_split",
    "(input, indices_or_sections: int | Sequence[int] | Tensor, dim=0) -> tuple[Tensor, ...]",
    "(input, *, indices: Sequence[int] | Tensor, dim=0) -> tuple[Tensor, ...]",
    "(input, *, sections: int | Tensor, dim=0) -> tuple[Tensor, ...]",
)


@public(
    "tensor_split",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (7, 2), t), 3), {}),
        lambda rng, t: ((d.array(rng, (2, 5), t), (1, -1, 9)), {"dim": 1}),
        lambda rng, t: ((d.array(rng, (2, 5), t), [4, 2], 1), {}),
    ),
    dtypes="float32 int64",
    failures=d.failures(
        ((d.Zeros(3), 0), {}, RuntimeError, "larger than 0"),
        ((d.Zeros(), 1), {}, RuntimeError, "at least a 1-dimensional"),
        ((d.Zeros(3), d.Zeros(1)), {}, RuntimeError, "dtype of long"),
    ),
)
def tensor_split(
    input: Any, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None
) -> tuple[Any, ...]:
    """Views along `dim`: as many as the int says, the first ones larger by 1 where it does not divide, or
    those between the given places (ints, or an int64 tensor, which is read).

    RuntimeError for less than one part, a 0-d tensor, or another dtype.

    >>> [part.tolist() for part in kiln.arange(5).tensor_split(2)]
    [[0, 1, 2], [3, 4]]
    """
    wanted = next((w for w in (indices_or_sections, indices, sections) if w is not None), None)
    if input.ndim == 0:
        raise RuntimeError(
            "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims"
        )
    dim = normalize_dim(dim, input.ndim, "tensor_split")
    if isinstance(wanted, _core.Tensor):
        if dtype_name(wanted.dtype) != "int64":
            raise RuntimeError(
                "tensor_split expected tensor_indices_or_sections to have dtype of long, but got "
                f"{type_name(dtype_name(wanted.dtype))}"
            )
        if wanted.ndim > 1:
            raise RuntimeError(
                "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or "
                f"one-dimensional tensor, but got a tensor with {wanted.ndim} dims"
            )
        wanted = wanted.tolist()
    if isinstance(wanted, (tuple, list)):
        return _at(input, dim, list(wanted))
    if wanted is None:
        raise TypeError("tensor_split(): expected an int, a list of ints or a tensor, got None")
    if wanted <= 0:
        raise RuntimeError(f"number of sections must be larger than 0, got {wanted}")
    size = _known(input, dim, "tensor_split")
    expect_count("tensor_split", wanted, "results")
    return _unsafe(input, dim, [(size + wanted - 1 - k) // wanted for k in range(wanted)])


def _fixed_split(name: str, dim: int, least: int) -> None:
    """hsplit, vsplit or dsplit: `tensor_split` along one dim, into equal parts."""

    def function(input: Tensor, *indices_or_sections: Any) -> tuple[Any, ...]:
        if input.ndim < least:
            raise RuntimeError(
                f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with "
                f"{input.ndim} dimensions!"
            )
        if not indices_or_sections:
            raise TypeError(f"{name}(): expected a number of parts or the places between them")
        along = 0 if input.ndim == 1 else dim
        wanted = indices_or_sections[0] if len(indices_or_sections) == 1 else indices_or_sections
        if isinstance(wanted, int):
            size = _known(input, along, name)
            if wanted <= 0 or size % wanted:
                raise RuntimeError(
                    f"torch.{name} attempted to split along dimension {along}, but the size of the dimension "
                    f"{size} is not divisible by the split_size {wanted}!"
                )
        return tensor_split(input, wanted, along)  # type: ignore[no-any-return]

    shape = (2, 4, 2)
    function.__doc__ = f"""Views along dim {dim} (of a vector: 0): equal ones, or those between places.

    RuntimeError for fewer than {least} dims, or a number that does not divide.

    >>> len(kiln.{name}(kiln.zeros{shape}, 2))
    2
    """
    public(
        name,
        samples=d.samples(
            lambda rng, t: ((d.array(rng, shape, t), 2), {}),
            lambda rng, t: ((d.array(rng, shape, t), (1,)), {}),
        ),
        dtypes="float32 int64",
        failures=d.failures(
            ((d.Zeros(*(3,) * (least - 1)), 1), {}, RuntimeError, "requires a tensor"),
            ((d.Zeros(3, 3, 3), 2), {}, RuntimeError, "not divisible"),
        ),
    )(function)


forms(
    "hsplit",
    "(input, indices_or_sections: int | Sequence[int], /) -> tuple[Tensor, ...]",
    "(input, index: int, other: int, /, *indices: int) -> tuple[Tensor, ...]",
)
forms(
    "vsplit",
    "(input, indices_or_sections: int | Sequence[int], /) -> tuple[Tensor, ...]",
    "(input, index: int, other: int, /, *indices: int) -> tuple[Tensor, ...]",
)
forms(
    "dsplit",
    "(input, indices_or_sections: int | Sequence[int], /) -> tuple[Tensor, ...]",
    "(input, index: int, other: int, /, *indices: int) -> tuple[Tensor, ...]",
)


for _name, _dim, _least in (("hsplit", 1, 1), ("vsplit", 0, 2), ("dsplit", 2, 3)):
    _fixed_split(_name, _dim, _least)
