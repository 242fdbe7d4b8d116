"""`x[key]` and `x[key] = value`: ints, slices, None, Ellipsis (views), then integer arrays and masks.

    x[1, ::2, None, ...]    views, one dim after the other; an int beside arrays selects first
    x[i, :, j]              what is left of x at the positions where i and j meet
    x[mask]                 the same with the positions where mask holds; it spans as many dims as it has

A *block* is the dims one array spans. Blocks that are neighbours are merged into one dim, of whose positions
there is one array: the result has its shape there. Blocks that are apart are moved to the front before.

    x[.., i, j, ..]   =   merged[.., i * size(j's dim) + j, ..]
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.errors import warn
from kiln.graph.size import Size, quotient
from kiln.ops.creation.constants import full
from kiln.ops.creation.data import beside
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.indexing.gathering import rows_at, scatter_add, take_at
from kiln.ops.indexing.masks import flat_places
from kiln.ops.indexing.scattering import scatter_set, wrapped
from kiln.ops.views.core_views import expand_, permute, reshape, slice_, unsqueeze
from kiln.ops.views.core_views import view as as_view
from kiln.ops.views.splits import select
from kiln.table import drawn as d
from kiln.table import registry
from kiln.table.arguments import dtype_name, fitting, has_values, is_value, numel, run
from kiln.table.public import methods, public
from kiln.table.record import Tensor
from kiln.table.registry import forms
from kiln.tuples import NamedTuple

_WRONG = (
    "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
    "(got {})"
)
_NOT_A_TUPLE = (
    "Using a non-tuple sequence for multidimensional indexing is deprecated; use x[tuple(seq)] instead of "
    "x[seq]"
)


def _is_array(x: Tensor) -> bool:
    return is_value(x) or isinstance(x, _core.Tensor)


def _entries(x: Tensor, key: Tensor) -> list[Any]:
    """The entries of a key, the ellipsis filled in with full slices."""
    entries = [_entry(e) for e in _parts(key)]
    used = sum(_dims_of(e) for e in entries if e is not None and e is not Ellipsis)
    if used > x.ndim:
        if x.ndim == 0:
            raise IndexError(
                "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ "
                "to convert a 0-dim tensor to a number"
            )
        raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
    for place, e in enumerate(entries):
        if e is Ellipsis:
            rest = [f for f in entries[place + 1 :] if f is not Ellipsis]
            return [*entries[:place], *[slice(None)] * (x.ndim - used), *rest]
    return entries


def _parts(key: Any) -> list[Any]:
    """The entries of a key: those of a tuple; with a warning, of a list of more than numbers."""
    if isinstance(key, tuple):
        return list(key)
    if isinstance(key, list) and len(key) < 32 and any(map(_is_part, key)):
        warn(_NOT_A_TUPLE)
        return list(key)
    return [key]


def _is_part(entry: Any) -> bool:
    """Whether an entry of a list says that the list is meant as a tuple: it is no number."""
    parts = (list, tuple, range, slice, type(...), type(None))
    return isinstance(entry, parts) or _is_array(entry) or getattr(entry, "ndim", 0) > 0


def _entry(entry: Any) -> Any:
    """A sequence of numbers or a NumPy array in a key as the tensor it stands for, anything else as it is."""
    if isinstance(entry, (list, tuple, range)):
        array = _core.from_nested(entry if isinstance(entry, list) else list(entry), None)
        return array if numel(array.shape) else p.convert(array, "int64")
    if _is_array(entry):
        if dtype_name(entry.dtype) != "uint8":
            return entry
        if entry.ndim:
            warn("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.")
        return p.convert(entry, "bool")
    if not getattr(entry, "ndim", 0):
        return entry
    array = beside(entry)
    return entry if array is None else array


def _dims_of(entry: Any) -> int:
    """How many dims of x an entry uses up."""
    if _is_array(entry) and dtype_name(entry.dtype) == "bool":
        return int(entry.ndim)
    if isinstance(entry, bool):
        return 0
    return 1


def _sliced(x: Tensor, dim: int, key: slice) -> Any:
    """x[.., key, ..] at `dim`."""
    size = x.shape[dim]
    step = 1 if key.step is None else key.step.__index__()
    if step == 0:
        raise ValueError("slice step cannot be zero")
    if step < 0:
        raise ValueError("step must be greater than zero")
    if key.start is None and key.stop is None and step == 1:
        return x
    if isinstance(size, int) and not isinstance(key.start, Size) and not isinstance(key.stop, Size):
        start, stop, step = key.indices(size)
        return slice_(x, dim, (start, max(0, -(-(stop - start) // step)), step))
    if key.start in (None, 0) and key.stop is None:
        return slice_(x, dim, (0, quotient(size + step - 1, step), step))
    if not is_value(x):  # whose sizes may be asked about: the answers are checked at each call
        start, stop = _cut(key.start, 0, size), _cut(key.stop, size, size)
        if step == 1:  # the same for a part that is empty
            return slice_(x, dim, (start, stop - start if start <= stop else 0, 1))
        return slice_(x, dim, (start, (stop - start + step - 1) // step if start < stop else 0, step))
    raise TypeError(
        f"x[{key.start}:{key.stop}]: the size of dim {dim} is symbolic ({size}): a slice cannot be cut to fit"
    )


def _cut(end: Any, default: Any, size: Any) -> Any:
    """An end of a slice, counted from the front and within the dim."""
    if end is None:
        return default
    end = size + end if end < 0 else end
    return 0 if end < 0 else size if end > size else end


class _Block(NamedTuple):
    """`dims` dims from `dim` on, and the array of the key that stands for them."""

    dim: int
    dims: int
    array: Any


def _viewed(x: Tensor, entries: list[Any]) -> tuple[Any, list[_Block]]:
    """x after the view entries, and its blocks."""
    blocks: list[_Block] = []
    dim = dropped = 0
    for entry in entries:
        if entry is None:
            x, dim = unsqueeze(x, dim), dim + 1
        elif isinstance(entry, slice):
            x, dim = _sliced(x, dim, entry), dim + 1
        elif isinstance(entry, bool):
            x, dim = unsqueeze(x, dim), dim + 1
            blocks.append(_Block(dim - 1, 1, run(full, 0, (int(entry),), "int64")))
        elif _is_array(entry):
            kind = _check_array(entry)
            if entry.ndim == 0 and kind == "bool":
                x = unsqueeze(x, dim)
                entry = reshape(entry, (1,))
            elif entry.ndim == 0 and has_values(entry):
                x = select(x, dim, _position(x, dim, int(entry), dropped))
                dropped += 1
                continue
            count = entry.ndim if kind == "bool" else 1
            blocks.append(_Block(dim, count, entry))
            dim += count
        elif not hasattr(entry, "__index__"):
            wrong = TypeError if isinstance(entry, (str, bytes)) else IndexError
            raise wrong(_WRONG.format(type(entry).__name__))
        else:
            x = select(x, dim, _position(x, dim, entry.__index__(), dropped))
            dropped += 1
    return x, blocks


def _position(x: Tensor, dim: int, index: int, dropped: int = 0) -> int:
    """`index`, which must be within dim `dim`; `dropped` dims before it have been selected away."""
    size = x.shape[dim]
    if isinstance(size, int) and not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dim + dropped} with size {size}")
    return index


def _check_array(array: Any) -> str:
    """The dtype of an index array, which must be of integers or bool."""
    name = dtype_name(array.dtype)
    if name not in ("int64", "int32", "bool"):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    return name


def getitem(x: Tensor, key: Tensor) -> Any:
    """x[key]; see the module's text. IndexError for what is out of range or no index, ValueError for a step
    below 1.

    >>> kiln.tensor([[1, 2], [3, 4]])[:, 1]
    tensor([2, 4])
    """
    if type(key) is int:
        if x.ndim == 0:
            _entries(x, key)
        return select(x, 0, _position(x, 0, key))
    view, blocks = _viewed(x, _entries(x, key))
    if not blocks:
        return view if view is not x else reshape(x, tuple(x.shape))
    if len(blocks) == 1 and dtype_name(blocks[0].array.dtype) != "bool":
        return take_at(view, blocks[0].dim, blocks[0].array)
    merged = _merged(view, blocks)
    return rows_at(reshape(merged.view, merged.shape), merged.dim, merged.places)


class _Merged(NamedTuple):
    """A view whose blocks, neighbours now, become the dim `dim` of `shape`; `places` along it, checked."""

    view: Any
    shape: tuple[Any, ...]
    dim: int
    places: Any
    order: tuple[int, ...]  # the dims of the view, as they stood before


def _merged(view: Any, blocks: list[_Block]) -> _Merged:
    """The blocks of a view as one dim."""
    places = [_places(view, block) for block in blocks]
    _check_together(places)
    spans = [dim for b in blocks for dim in range(b.dim, b.dim + b.dims)]
    first, order = spans[0], tuple(range(view.ndim))
    if spans != list(range(first, first + len(spans))):
        order = (*spans, *(k for k in order if k not in spans))
        view, first = permute(view, order), 0
    whole, end = places[0], first + blocks[0].dims
    for block, more in zip(blocks[1:], places[1:]):
        size = numel(view.shape[end : end + block.dims])
        whole, end = p.add(p.mul(whole, size), more), end + block.dims
    shape = (*view.shape[:first], numel(view.shape[first:end]), *view.shape[end:])
    return _Merged(view, shape, first, whole, order)


def _check_together(places: list[Any]) -> None:
    """IndexError for arrays that do not broadcast together."""
    ndim = max(x.ndim for x in places)
    for sizes in zip(*((1,) * (ndim - x.ndim) + tuple(x.shape) for x in places)):
        if len({s for s in sizes if isinstance(s, int) and s != 1}) > 1:
            shapes = ", ".join(str(list(x.shape)) for x in places)
            raise IndexError(
                f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
            )


def _places(view: Any, block: _Block) -> Any:
    """The positions a block's array stands for, in its dims laid flat."""
    if dtype_name(block.array.dtype) != "bool":
        return wrapped(block.array, view, block.dim)
    _check_mask(block.array, view, block.dim)
    return flat_places(block.array)


def _check_mask(mask: Tensor, view: Any, dim: int) -> None:
    for k, (a, b) in enumerate(zip(mask.shape, view.shape[dim:])):
        if a != b:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {k} does not match the shape of the "
                f"indexed tensor {list(view.shape)} at index {k + dim}"
            )


def setitem(x: Tensor, key: Tensor, value: Any) -> None:
    """x[key] = value, a number or an array that broadcasts; see the module's text. Of equal places the last.

    >>> x = kiln.zeros(2, 2); x[0] = 1; x
    tensor([[1., 1.],
            [0., 0.]])
    """
    view, blocks = _viewed(x, _entries(x, key))
    if not blocks:
        copy_(view, _fitted(value, view) if _is_array(value) else value)
    elif _is_mask(blocks) and not getattr(value, "ndim", 0):
        _masked(view, blocks[0], value)
    else:
        one = _is_mask(blocks) and _is_array(value) and numel(value.shape) == 1
        if _is_array(value) and not one and not isinstance(key, bool):
            _check_dtypes(x, value)
        _put_at(view, _merged(view, blocks), value, scatter_set)


def _is_mask(blocks: list[_Block]) -> bool:
    """Whether one mask says where to put; one element, of any dtype, is put there as a number is."""
    return len(blocks) == 1 and dtype_name(blocks[0].array.dtype) == "bool"


def _check_dtypes(x: Tensor, value: Tensor) -> None:
    """RuntimeError for values of another dtype, which are not converted where an index is an array."""
    if dtype_name(value.dtype) != dtype_name(x.dtype):
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {x.dtype} for the destination "
            f"and {value.dtype} for the source."
        )


def _masked(view: Any, block: _Block, value: Any) -> None:
    """view[mask] = value for a number or a 0-d array: a `where` over the view."""
    mask, dim = block.array, block.dim
    _check_mask(mask, view, dim)
    if not _is_array(value):
        value = fitting(value, dtype_name(view.dtype))
    elif dtype_name(value.dtype) != dtype_name(view.dtype):
        value = p.convert(value, dtype_name(view.dtype))
    mask = reshape(mask, (*(1,) * dim, *mask.shape, *(1,) * (view.ndim - dim - mask.ndim)))
    p.where(mask, value, view, out=view)


def _put_at(view: Any, merged: _Merged, value: Any, scatter: Any) -> None:
    """Puts a number or array, broadcast to what getitem would give, at the places of a merged dim."""
    dim, places, dtype = merged.dim, merged.places, dtype_name(view.dtype)
    result = (*merged.shape[:dim], *places.shape, *merged.shape[dim + 1 :])
    count = numel(places.shape)
    if not _is_array(value):
        value = run(full, fitting(value, dtype), (), dtype)
    elif dtype_name(value.dtype) != dtype:
        value = p.convert(value, dtype)
    source = reshape(_broadcast(value, result), (*merged.shape[:dim], count, *merged.shape[dim + 1 :]))
    index = reshape(places, (*(1,) * dim, count, *(1,) * (len(merged.shape) - dim - 1)))
    index = expand_(index, tuple(source.shape))
    try:
        flat = as_view(merged.view, merged.shape)
    except RuntimeError:  # its dims do not lie together: written to a copy, which is copied back
        changed = scatter(reshape(merged.view, merged.shape), dim, index, source)
        back = tuple(sorted(range(view.ndim), key=merged.order.__getitem__))
        put(view, permute(reshape(changed, tuple(merged.view.shape)), back))
        return
    scatter(flat, dim, index, source, out=flat)


def _broadcast(value: Any, shape: tuple[Any, ...]) -> Any:
    """A value expanded to the shape it is assigned to."""
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = reshape(value, tuple(value.shape[1:]))
    try:
        return expand_(value, shape)
    except RuntimeError:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing "
            f"result of shape {list(shape)}"
        ) from None


def index_put_(x: Tensor, indices: Tensor, values: Any, accumulate: bool = False) -> Any:
    """x[indices] = values, or with `accumulate` added, repeated places in order; returns x.

    >>> kiln.zeros(3).index_put_((kiln.tensor([0, 0]),), kiln.ones(2), accumulate=True)
    tensor([2., 0., 0.])
    """
    if _is_array(values):
        _check_dtypes(x, values)
    key = tuple(slice(None) if i is None else i for i in indices)
    if not accumulate:
        setitem(x, key, values)
        return x
    view, blocks = _viewed(x, _entries(x, key))
    if blocks:
        _put_at(view, _merged(view, blocks), values, scatter_add)
    else:
        p.add(view, _fitted(values, view) if _is_array(values) else values, out=view)
    return x


forms("index_put", "(input, indices: Sequence[Tensor | None], values: Operand, accumulate=False)")


@public("index_put",
    differs="of equal places the last stays; PyTorch leaves that open",
    dtypes="numeric", reads=True, samples=d.samples(
    lambda rng, t: ((d.array(rng, (4, 3), t), [rng.permutation(4)[:2]], d.array(rng, (2, 3), t)), {}),
    lambda rng, t: (
        (d.array(rng, (4, 3), t), [rng.integers(-4, 4, (5,)) for _ in "ab"][:1], d.array(rng, (5, 3), t)),
        {"accumulate": True},
    ),
), failures=d.failures(
    ((d.Zeros(2), [d.Zeros(1, dtype="int64", value=7)], d.Zeros(1)), {}, IndexError, "out of"),
    ((d.Zeros(2), [d.Zeros(1, dtype="int64")], d.Zeros(3)), {}, RuntimeError, "shape mismatch"),
))  # fmt: skip
def index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """`input` with `values` where the arrays of `indices` meet, as by x[indices] = values, or added.

    IndexError for a position out of range, RuntimeError for shapes or dtypes that do not fit.

    >>> kiln.zeros(3).index_put((kiln.tensor([1]),), kiln.tensor([5.0]))
    tensor([0., 5., 0.])
    """
    return index_put_(p.clone(input), indices, values, accumulate)


def copy_(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    """Writes `source` (a number, or an array that broadcasts) into x, converted to its dtype; returns x.

    >>> kiln.zeros(2).copy_(kiln.tensor([1, 2]))
    tensor([1., 2.])
    """
    if not _is_array(source):
        return _fill(x, source)
    if source is x and not (_core.grad_enabled() and x.requires_grad):
        return x
    fitted = _fitted(source, x)
    # an array that overlaps x is refused for its own places, not for those it has when repeated
    return put(x, source if source.ndim <= x.ndim else fitted)


def _fitted(source: Tensor, x: Tensor) -> Any:
    """`source` as an array of x's shape: without leading dims of size 1, then expanded."""
    if source.ndim > x.ndim and all(s == 1 for s in source.shape[: source.ndim - x.ndim]):
        source = reshape(source, tuple(source.shape[source.ndim - x.ndim :]))
    return source if tuple(source.shape) == tuple(x.shape) else expand_(source, tuple(x.shape))


def put(x: Tensor, source: Tensor) -> Any:
    """Writes an array of x's shape into x, converted to its dtype; returns x.

    Where gradients of x's former values are recorded, they are recorded to end here.
    """
    if _core.grad_enabled() and x.requires_grad:
        name = dtype_name(x.dtype)
        same = dtype_name(source.dtype) == name
        return p.overwrite(x, source if same else p.convert(source, name), out=x)
    p.convert(source, dtype_name(x.dtype), out=x)
    return x


def fill_(x: Tensor, value: Any) -> Any:
    """Writes one number (or the element of a 0-d array) everywhere in x; returns x.

    >>> kiln.zeros(2).fill_(3)
    tensor([3., 3.])
    """
    if not _is_array(value):
        if x.is_contiguous():
            return _fill(x, value)
        # one number may go where elements share memory: to each place once
        places = x
        for dim, (size, stride) in enumerate(zip(x.shape, x.stride())):
            if stride == 0 and size > 1:
                places = slice_(places, dim, (0, 1, 1))
        _fill(places, value)
        return x
    if value.ndim:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions."
        )
    return put(x, expand_(value, tuple(x.shape)))


def _fill(x: Tensor, value: Any) -> Any:
    """Writes a number everywhere in x, whose elements share no memory; returns x."""
    value = fitting(value, dtype_name(x.dtype))
    if _core.grad_enabled() and x.requires_grad:
        return p.overwrite(x, value, out=x)
    return p.clone.handle(value, out=x)


def zero_(x: Tensor) -> Any:
    """Writes 0 everywhere in x; returns x.

    >>> kiln.ones(2).zero_()
    tensor([0., 0.])
    """
    return fill_(x, 0)


methods({"copy_": copy_, "fill_": fill_, "zero_": zero_, "index_put_": index_put_})
registry.FUNCTIONS.update({name: registry.METHODS[name] for name in ("fill_", "zero_", "index_put_")})
