"""From a list of samples to one batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message

MOST_DEPTH = 200  # of a sample: beyond that it contains itself


def default_collate(batch: Sequence[Any]) -> Any:
    """Samples of one structure as one structure of batches, by the type of the first.

    tensors and NumPy arrays are stacked along a new first dim; floats become a float64 tensor, ints and
    bools a tensor; strings and bytes stay a list; mappings, named tuples and sequences are batched
    entry by entry. Raises TypeError for other types, ValueError for sequences of different lengths.

    >>> import kiln
    >>> kiln.utils.data.default_collate([(1, "a"), (2, "b")])
    [tensor([1, 2]), ['a', 'b']]
    """
    return _collated(batch, 0)


def _collated(batch: Sequence[Any], depth: int) -> Any:
    first = batch[0]
    if isinstance(first, Tensor):
        return ops.stack(list(batch))
    if isinstance(first, bool):
        return ops.tensor(list(batch))
    if isinstance(first, float):
        return ops.tensor([float(x) for x in batch], dtype=_core.float64)
    if isinstance(first, int):
        return ops.tensor([int(x) for x in batch])
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        _expect_an_end(depth)
        return {key: _collated([sample[key] for sample in batch], depth + 1) for key in first}
    if isinstance(first, (tuple, list)):
        _expect_an_end(depth)
        return _collate_sequences(batch, depth)
    numpy = sys.modules.get("numpy")  # a sample can only be an array if someone imported NumPy
    if numpy is not None and isinstance(first, (numpy.ndarray, numpy.generic)):
        return ops.stack([ops.from_numpy(numpy.asarray(x)) for x in batch])
    expected = "tensors, arrays, numbers, strings, mappings or sequences"
    raise TypeError(
        message("default_collate", expected, describe(first), "pass a collate_fn for other types")
    )


def _expect_an_end(depth: int) -> None:
    """ValueError for a sample that contains itself."""
    if depth > MOST_DEPTH:
        raise ValueError(message("default_collate", f"at most {MOST_DEPTH} containers in each other", "more"))


def _collate_sequences(batch: Sequence[Any], depth: int) -> Any:
    """Samples that are sequences of one length: a batch per place; a named tuple stays one."""
    first = batch[0]
    sizes = {len(sample) for sample in batch}
    if len(sizes) != 1:
        raise ValueError(message("default_collate", "samples of one length", f"lengths {sorted(sizes)}"))
    places = [_collated(list(place), depth + 1) for place in zip(*batch, strict=True)]
    return type(first)(*places) if hasattr(first, "_fields") else places
