"""From a list of samples to one batch, and from a sample to tensors."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.ops.views.reinterpret import elements
from kiln.table.callables import hide_frames
from kiln.utils.data._utils import worker

np_str_obj_array_pattern = re.compile("[SaUO]")  # of dtypes that become no tensors; libraries ask it
MOST_DEPTH = 200  # of a sample: beyond that it contains itself
_REFUSED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"

Key = type | tuple[type, ...]


def default_convert(data: Any) -> Any:
    """A sample with its NumPy arrays and numbers as tensors that share their memory; the rest stays.

    Mappings and sequences are followed; a tuple becomes a list, a named tuple stays one. What a loader
    without batches does with each sample.

    >>> import kiln, numpy
    >>> kiln.utils.data.default_convert((numpy.arange(2), "a", 1))
    [tensor([0, 1]), 'a', 1]
    """
    return _converted(data, 0)


def _converted(data: Any, depth: int) -> Any:
    if isinstance(data, Tensor):
        return data
    kind = type(data)
    if kind.__module__ == "numpy" and kind.__name__ not in ("str_", "bytes_", "string_"):
        return ops.as_tensor(data) if data.dtype.kind not in "SaUO" else data
    if not isinstance(data, (Mapping, Sequence)) or isinstance(data, (str, bytes)):
        return data
    _expect_an_end(depth, "default_convert")
    if isinstance(data, Mapping):
        return _mapping_like(data, {key: _converted(data[key], depth + 1) for key in data})
    parts = [_converted(part, depth + 1) for part in data]
    return _sequence_like(data, parts)


def _mapping_like(sample: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    """A mapping of the sample's type with other values; a dict, where the type makes none."""
    try:
        if isinstance(sample, MutableMapping):
            made: Any = copy.copy(sample)  # with what else it knows
            made.update(entries)
            return made
        return type(sample)(entries)  # type: ignore[call-arg]
    except TypeError:
        return entries


def _sequence_like(sample: Any, parts: list[Any]) -> Any:
    """A sequence of the sample's type with other items; a list for a tuple, and where the type makes none."""
    if isinstance(sample, tuple):
        return type(sample)(*parts) if hasattr(sample, "_fields") else parts
    try:
        if isinstance(sample, MutableSequence):
            made = copy.copy(sample)
            for k, part in enumerate(parts):
                made[k] = part
            return made
        return type(sample)(parts)
    except TypeError:
        return parts


def _expect_an_end(depth: int, name: str) -> None:
    """ValueError for a sample that contains itself."""
    if depth > MOST_DEPTH:
        raise ValueError(message(name, f"at most {MOST_DEPTH} containers in each other", "more"))


# ---- batches ----


def collate(batch: Any, *, collate_fn_map: dict[Key, Callable[..., Any]] | None = None) -> Any:
    """Samples of one structure as one structure of batches, by the type of the first.

    `collate_fn_map` says by type, or by a tuple of types, what makes a batch: a function of (samples,
    collate_fn_map=...). The type itself counts first, then the first key it is an instance of. Mappings,
    named tuples and sequences are batched entry by entry. RuntimeError for sequences of different lengths,
    TypeError for other types.

    >>> from kiln.utils.data._utils.collate import collate
    >>> collate([1, 2], collate_fn_map={int: lambda batch, *, collate_fn_map: sum(batch)})
    3
    """
    return _collated(batch, collate_fn_map, 0)


def _collated(batch: Any, by_type: dict[Key, Callable[..., Any]] | None, depth: int) -> Any:
    first = batch[0]
    kind = type(first)
    if by_type is not None:
        made = by_type.get(kind)
        if made is None:
            made = next((by_type[key] for key in by_type if isinstance(first, key)), None)
        if made is None:
            made = _of_numpy(first)
        if made is not None:
            return made(batch, collate_fn_map=by_type)
    if isinstance(first, Mapping):
        _expect_an_end(depth, "default_collate")
        entries = {key: _collated([sample[key] for sample in batch], by_type, depth + 1) for key in first}
        return _mapping_like(first, entries)
    if isinstance(first, Sequence):
        _expect_an_end(depth, "default_collate")
        if len({len(sample) for sample in batch}) != 1:
            raise RuntimeError("each element in list of batch should be of equal size")
        places = [_collated(place, by_type, depth + 1) for place in zip(*batch, strict=True)]
        return _sequence_like(first, places)
    raise TypeError(_REFUSED.format(kind))


def _of_numpy(first: Any) -> Any:
    """How samples of NumPy's types become a batch; None for those it has no number or array for."""
    numpy = sys.modules.get("numpy")  # a sample can only be an array if someone imported NumPy
    if numpy is None or not isinstance(first, (numpy.ndarray, numpy.generic)):
        return None
    if isinstance(first, numpy.ndarray):
        return collate_numpy_array_fn
    return collate_numpy_scalar_fn if first.dtype.kind in "biuf" else None


def collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Tensors stacked along a new first dim; in a worker, in memory that the loader's process sees."""
    first = batch[0]
    shape, dtype = first.shape, first.dtype
    if not shape or not all(x.shape == shape and x.dtype is dtype for x in batch):
        return ops.stack(list(batch))
    sizes = (len(batch), *shape)
    if worker._worker_info is not None and dtype is not _core.bfloat16:  # of which Python knows no memory
        memory = worker.new_shared(len(batch) * first.nbytes)
        if memory is not None and not any(x.requires_grad for x in batch):
            _fill(memoryview(memory), batch, first.nbytes)
            whole: Tensor = elements(memory, dtype).view(sizes)
            return whole
    return ops.cat(list(batch)).view(sizes)  # as stack would, without a view of each


def _fill(memory: memoryview, batch: Any, nbytes: int) -> None:
    """Copies tensors of one size, one after the other."""
    for k, x in enumerate(batch):
        memory[k * nbytes : (k + 1) * nbytes] = memoryview(x.contiguous()).cast("B")


def collate_numpy_array_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Arrays stacked; TypeError for those of texts or objects."""
    if batch[0].dtype.kind in "SaUO":
        raise TypeError(_REFUSED.format(batch[0].dtype))
    return collate([ops.as_tensor(x) for x in batch], collate_fn_map=collate_fn_map)


def collate_numpy_scalar_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """NumPy's numbers as a tensor of their dtype."""
    import numpy

    return ops.as_tensor(numpy.asarray(batch))


def collate_float_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Python's floats as a float64 tensor."""
    return ops.tensor(list(batch), dtype=_core.float64)


def collate_int_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Python's ints, or bools, as a tensor."""
    return ops.tensor(list(batch))


def collate_str_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Texts as they are."""
    return batch


# What a program adds to it counts for every loader.
default_collate_fn_map: dict[Key, Callable[..., Any]] = {
    Tensor: collate_tensor_fn,
    float: collate_float_fn,
    int: collate_int_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}


def default_collate(batch: Sequence[Any]) -> Any:
    """Samples of one structure as one structure of batches, by the type of the first.

    Tensors and NumPy arrays are stacked along a new first dim; floats become a float64 tensor, ints and bools
    a tensor; texts and bytes stay as they are; mappings, named tuples and sequences are batched entry by
    entry, a tuple as a list. `default_collate_fn_map` of `kiln.utils.data._utils.collate` has more types, if
    a program puts them there. Raises TypeError for other types, RuntimeError for sequences of different
    lengths and tensors of different shapes, IndexError for no samples.

    >>> import kiln
    >>> kiln.utils.data.default_collate([(1, "a"), (2, "b")])
    [tensor([1, 2]), ('a', 'b')]
    """
    if isinstance(batch, (Mapping, Sequence)) and not batch:
        raise IndexError(f"default_collate: list index out of range: {describe(batch)} holds no samples")
    return _collated(batch, default_collate_fn_map, 0)


hide_frames(globals(), ("collate", "default_collate", "default_convert"))
