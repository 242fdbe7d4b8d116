"""One array as several views along a dim: unbind, split, chunk."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from kiln.ops.declare import public
from kiln.ops.kinds import normalize_dim
from kiln.ops.views import reshape, slice_

_reshape, _slice = reshape.handle, slice_.handle


def _known(input: Any, dim: int, op: str) -> int:
    """The size along dim, which decides how many results there are."""
    size = input.shape[dim]
    if not isinstance(size, int):
        raise TypeError(
            f"{op}: the size of dim {dim} is symbolic ({size}): the number of results would depend on it"
        )
    return size


@public("unbind")
def unbind(input: Any, dim: int = 0) -> tuple[Any, ...]:
    """The views along `dim`, each without it.

    >>> kiln.tensor([1, 2]).unbind()
    (tensor(1), tensor(2))
    """
    dim = normalize_dim(dim, input.ndim, "unbind")
    shape = tuple(input.shape)
    rest = (*shape[:dim], *shape[dim + 1 :])
    places = range(_known(input, dim, "unbind"))
    return tuple([_reshape(_slice(input, dim, (k, 1, 1)), rest) for k in places])


@public("split")
def split(input: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Views along `dim` of a given size (the last may be smaller), or of the sizes in a list, which must add
    up.

    >>> [part.tolist() for part in kiln.arange(5).split(2)]
    [[0, 1], [2, 3], [4]]
    """
    dim = normalize_dim(dim, input.ndim, "split")
    size = _known(input, dim, "split")
    if isinstance(split_size_or_sections, int):
        step = split_size_or_sections
        if step < 0 or (step == 0 and size):
            raise RuntimeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
                if step == 0
                else f"split expects split_size be non-negative, but got split_size={step}"
            )
        lengths = [min(step, size - k) for k in range(0, size, step)] if size else [0]
    else:
        lengths = list(split_size_or_sections)
        if sum(lengths) != size or any(n < 0 for n in lengths):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at "
                f"dimension {dim}), but got split_sizes={lengths}"
            )
    starts = accumulate(lengths, initial=0)
    return tuple([_slice(input, dim, (start, n, 1)) for start, n in zip(starts, lengths)])


@public("chunk")
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """At most `chunks` views along `dim`, of equal size but for the last. RuntimeError unless chunks > 0.

    >>> [part.tolist() for part in kiln.arange(5).chunk(2)]
    [[0, 1, 2], [3, 4]]
    """
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    dim = normalize_dim(dim, input.ndim, "chunk")
    size = _known(input, dim, "chunk")
    parts: tuple[Any, ...] = split(input, -(-size // chunks) if size else [0] * chunks, dim)
    return parts
