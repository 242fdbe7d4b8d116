"""Manipulation functions of the standard."""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.array_api import common as _common
from kiln.errors import message as _message


def broadcast_arrays(*arrays: Any) -> list[Any]:
    """Views of the arrays with one shape, each of its own dtype."""
    return (
        list(ops.broadcast_tensors(*(_common.array(x, "broadcast_arrays") for x in arrays))) if arrays else []
    )


def broadcast_to(x: _core.Tensor, /, shape: Any) -> _core.Tensor:
    """A view of the array with another shape."""
    return ops.broadcast_to(_common.array(x, "broadcast_to"), (shape,) if isinstance(shape, int) else shape)


def concat(arrays: Any, /, *, axis: int | None = 0) -> _core.Tensor:
    """Arrays, promoted, one after the other along an axis; flattened if that is None."""
    parts = _common.promote("concat", *arrays)
    if axis is None:
        return ops.cat([x.reshape(-1) for x in parts])
    for x in parts:  # PyTorch's cat takes an empty vector beside anything
        if x.ndim != parts[0].ndim:
            raise ValueError(
                _message("concat", "arrays of one number of dims", f"{parts[0].ndim} and {x.ndim}")
            )
    return ops.cat(parts, _common.place(axis, parts[0].ndim, "concat"))


def expand_dims(x: _core.Tensor, /, axis: int) -> _core.Tensor:
    """A view with a new axis of size 1. IndexError for a place that is none."""
    return ops.unsqueeze(x, _common.place(axis, _common.array(x, "expand_dims").ndim + 1, "expand_dims"))


def flip(x: _core.Tensor, /, *, axis: Any = None) -> _core.Tensor:
    """The elements in reverse order along axes (None: all)."""
    dims = _common.places(axis, _common.array(x, "flip").ndim, "flip")
    return ops.flip(x, dims) if dims else ops.clone(x)


def moveaxis(x: _core.Tensor, source: Any, destination: Any, /) -> _core.Tensor:
    """A view with axes moved to other places."""
    ndim = _common.array(x, "moveaxis").ndim
    return ops.movedim(
        x, _common.places(source, ndim, "moveaxis"), _common.places(destination, ndim, "moveaxis")
    )


def permute_dims(x: _core.Tensor, /, axes: Any) -> _core.Tensor:
    """A view with the axes in another order."""
    return ops.permute(x, _common.places(axes, _common.array(x, "permute_dims").ndim, "permute_dims"))


def repeat(x: _core.Tensor, repeats: Any, /, *, axis: int | None = None) -> _core.Tensor:
    """Each element along an axis (None: of the array flattened) as often as `repeats` (an array) says."""
    if axis is None:
        x, axis = _common.array(x, "repeat").reshape(-1), 0
    if isinstance(repeats, _core.Tensor):
        repeats = repeats.to(_core.int64).reshape(-1)
    return ops.repeat_interleave(x, repeats, dim=_common.place(axis, x.ndim, "repeat"))


def reshape(x: _core.Tensor, /, shape: Any, *, copy: bool | None = None) -> _core.Tensor:
    """The elements in another shape: a view where that can be, or a copy. ValueError if `copy=False` and it
    cannot.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    result = ops.reshape(_common.array(x, "reshape"), shape)
    shared = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    if copy is False and not shared:
        raise ValueError(_message("reshape", "a shape that needs no copy", f"shape {shape} with copy=False"))
    return ops.clone(result) if copy and shared else result


def roll(x: _core.Tensor, /, shift: Any, *, axis: Any = None) -> _core.Tensor:
    """The elements moved on along axes (None: as if flattened), the last ones to the front."""
    if axis is None:
        return ops.roll(_common.array(x, "roll"), shift)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    dims = tuple(_common.place(a, x.ndim, "roll") for a in axes)
    shifts = tuple(shift) if isinstance(shift, (tuple, list)) else (shift,) * len(dims)
    return ops.roll(x, shifts, dims) if dims else ops.clone(x)


def squeeze(x: _core.Tensor, /, axis: Any) -> _core.Tensor:
    """A view without axes of size 1. ValueError for an axis of another size."""
    dims = _common.places(axis, _common.array(x, "squeeze").ndim, "squeeze")
    for dim in dims:
        if x.shape[dim] != 1:
            raise ValueError(_message("squeeze", "axes of size 1", f"axis {dim} of shape {tuple(x.shape)}"))
    return ops.squeeze(x, dims)


def stack(arrays: Any, /, *, axis: int = 0) -> _core.Tensor:
    """Arrays of one shape, promoted, side by side along a new axis."""
    parts = _common.promote("stack", *arrays)
    return ops.stack(parts, _common.place(axis, parts[0].ndim + 1, "stack"))


def tile(x: _core.Tensor, repetitions: Any, /) -> _core.Tensor:
    """The array repeated along its last axes."""
    return ops.tile(_common.array(x, "tile"), tuple(repetitions))


def unstack(x: _core.Tensor, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Views along an axis."""
    return tuple(ops.unbind(x, _common.place(axis, _common.array(x, "unstack").ndim, "unstack")))
