"""`x[key]` and `x[key] = value`: ints, slices, None, Ellipsis (views), integer arrays and masks.

    x[1, ::2, None, ...]    views, one dim after the other
    x[index]                rows at the positions in an int64 array (a tensor, a NumPy array, a list)
    x[mask] = number        a `where`; x[mask] itself has a size that depends on data, and is not supported

A key may hold one array, as its first entry that is not None, Ellipsis or a full slice before it.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.graph.size import quotient
from kiln.ops import declare as d
from kiln.ops import pointwise as p
from kiln.ops.data import beside
from kiln.ops.declare import dtype_name
from kiln.ops.indexing import take_rows
from kiln.ops.views import expand_, permute, reshape, select, slice_, unsqueeze

_WRONG = (
    "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
    "(got {})"
)


def _is_array(x: Any) -> bool:
    return d.is_value(x) or isinstance(x, _core.Tensor)


def _entries(x: Any, key: Any) -> list[Any]:
    """The entries of a key, the ellipsis filled in with full slices."""
    entries = list(key) if isinstance(key, tuple) else [key]
    entries = [_entry(e) for e in entries]
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


def _entry(entry: Any) -> Any:
    """A list of numbers or a NumPy array in a key as the tensor it stands for, anything else as it is."""
    if isinstance(entry, list):
        return _core.from_nested(entry, None)
    if _is_array(entry) or not getattr(entry, "ndim", 0):
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


def _sliced(x: Any, dim: int, key: slice) -> Any:
    """x[.., key, ..] at `dim`."""
    size = x.shape[dim]
    step = 1 if key.step is None else key.step.__index__()
    if step == 0:
        raise ValueError("slice step cannot be zero")
    if step < 0:
        raise ValueError("step must be greater than zero")
    if key.start is None and key.stop is None and step == 1:
        return x
    if isinstance(size, int):
        start, stop, step = key.indices(size)
        return slice_(x, dim, (start, max(0, -(-(stop - start) // step)), step))
    if key.start in (None, 0) and key.stop is None:
        return slice_(x, dim, (0, quotient(size + step - 1, step), step))
    raise TypeError(
        f"x[{key.start}:{key.stop}]: the size of dim {dim} is symbolic ({size}): a slice cannot be cut to fit"
    )


def _viewed(x: Any, entries: list[Any]) -> tuple[Any, Any, int]:
    """x after the view entries; the one array entry, if any, and the dim it stands at."""
    array, place, dim, dropped = None, 0, 0, 0
    for entry in entries:
        if entry is None:
            x, dim = unsqueeze(x, dim), dim + 1
        elif isinstance(entry, slice):
            x, dim = _sliced(x, dim, entry), dim + 1
        elif _is_array(entry):
            if entry.ndim == 0 and dtype_name(entry.dtype) != "bool" and not d.is_value(entry):
                x = select(x, dim, _position(x, dim, int(entry), dropped))
                dropped += 1
                continue
            if array is not None:
                raise NotImplementedError(
                    "x[...]: one index array is supported; use gather for positions along several dims"
                )
            array, place, dim = entry, dim, dim + _dims_of(entry)
        elif isinstance(entry, bool) or not hasattr(entry, "__index__"):
            raise IndexError(_WRONG.format(type(entry).__name__))
        else:
            x = select(x, dim, _position(x, dim, entry.__index__(), dropped))
            dropped += 1
    return x, array, place


def _position(x: Any, dim: int, index: int, dropped: int = 0) -> int:
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


def getitem(x: Any, key: Any) -> Any:
    """x[key]; see the module's text. IndexError for what is out of range or no index, ValueError for a step
    below 1.

    >>> kiln.tensor([[1, 2], [3, 4]])[:, 1]
    tensor([2, 4])
    """
    if type(key) is int:
        if x.ndim == 0:
            _entries(x, key)
        return select(x, 0, _position(x, 0, key))
    view, array, dim = _viewed(x, _entries(x, key))
    if array is None:
        return view if view is not x else reshape(x, tuple(x.shape))
    if _check_array(array) == "bool":
        raise NotImplementedError(
            "x[mask]: the size of the result depends on data, which is not supported; use where(mask, ...)"
        )
    if dim == 0:
        return take_rows(view, array)
    front = (dim, *(k for k in range(view.ndim) if k != dim))
    rows = take_rows(permute(view, front), array)
    n = array.ndim
    return permute(rows, (*range(n, n + dim), *range(n), *range(n + dim, rows.ndim)))


def setitem(x: Any, key: Any, value: Any) -> None:
    """x[key] = value, a number or an array that broadcasts; see the module's text.

    >>> x = kiln.zeros(2, 2); x[0] = 1; x
    tensor([[1., 1.],
            [0., 0.]])
    """
    view, array, dim = _viewed(x, _entries(x, key))
    if array is None:
        copy_(view, _fitted(value, view) if _is_array(value) else value)
    elif _check_array(array) == "bool":
        _masked(view, array, dim, value)
    else:
        raise NotImplementedError(
            "x[index] = value: writing at an array of positions is not supported; use scatter_add, or where"
        )


def _masked(view: Any, mask: Any, dim: int, value: Any) -> None:
    """view[mask] = value for a number or a 0-d array: a `where` over the view."""
    if _is_array(value) and value.ndim:
        raise NotImplementedError(
            "x[mask] = values: only a number or a 0-d array can be written through a mask"
        )
    for k, (a, b) in enumerate(zip(mask.shape, view.shape[dim:])):
        if a != b:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {k} does not match the shape of the "
                f"indexed tensor {list(view.shape)} at index {k + dim}"
            )
    mask = reshape(mask, (*(1,) * dim, *mask.shape, *(1,) * (view.ndim - dim - mask.ndim)))
    p.where(mask, value, view, out=view)


def copy_(x: Any, source: Any, non_blocking: bool = False) -> Any:
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


def _fitted(source: Any, x: Any) -> Any:
    """`source` as an array of x's shape: without leading dims of size 1, then expanded."""
    if source.ndim > x.ndim and all(s == 1 for s in source.shape[: source.ndim - x.ndim]):
        source = reshape(source, tuple(source.shape[source.ndim - x.ndim :]))
    return source if tuple(source.shape) == tuple(x.shape) else expand_(source, tuple(x.shape))


def put(x: Any, source: Any) -> Any:
    """Writes an array of x's shape into x, converted to its dtype; returns x.

    Where gradients of x's former values are recorded, they are recorded to end here.
    """
    if _core.grad_enabled() and x.requires_grad:
        name = dtype_name(x.dtype)
        same = dtype_name(source.dtype) == name
        return p.overwrite(x, source if same else p.convert(source, name), out=x)
    p.convert(source, dtype_name(x.dtype), out=x)
    return x


def fill_(x: Any, value: Any) -> Any:
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


def _fill(x: Any, value: Any) -> Any:
    """Writes a number everywhere in x, whose elements share no memory; returns x."""
    _core.check_in_range(value, x.dtype)
    dtype = dtype_name(x.dtype)
    if dtype == "bool":
        value = bool(value)
    elif isinstance(value, float) and not dtype.startswith(("float", "bfloat")):
        value = int(value)
    if _core.grad_enabled() and x.requires_grad:
        return p.overwrite(x, value, out=x)
    return p.clone.handle(value, out=x)


def zero_(x: Any) -> Any:
    """Writes 0 everywhere in x; returns x.

    >>> kiln.ones(2).zero_()
    tensor([0., 0.])
    """
    return fill_(x, 0)


IN_PLACE = {"copy_": copy_, "fill_": fill_, "zero_": zero_}
