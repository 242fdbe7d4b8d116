"""Samples and the tensors they are part of, over several levels: the outermost batch is the first dim."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln.func.batched import Batched, everywhere
from kiln.func.levels import Level


def whole(x: Any, within: list[Level]) -> Any:
    """A value for every sample of the levels."""
    for level in reversed(within):
        x = everywhere(x, level)
    return x


def whole_of(x: Any) -> Any:
    """The tensor that a sample is part of."""
    while type(x) is Batched:
        x = x.whole
    return x


def sample(x: Any, within: list[Level]) -> Any:
    """A tensor with a batch in front per level, as one sample of it."""
    for level in within:
        x = Batched(x, level)
    return x


def batch_first(x: Any, own: list[Level], more: list[Level]) -> Any:
    """A value for every sample, the batches of `more` as one dim before those of `own`."""
    full = whole(x, [*own, *more])
    if not more:
        return full
    mine, count = len(own), len(own) + len(more)
    full = ops.permute(full, (*range(mine, count), *range(mine), *range(count, full.ndim)))
    return ops.reshape(full, (-1, *full.shape[len(more) :]))


def split_batch(x: Any, own: list[Level], more: list[Level]) -> Any:
    """What `batch_first` made, as one sample."""
    if not more:
        return sample(x, own)
    sizes, count = [level.size for level in more], len(own)
    split = ops.reshape(x, (*sizes, *x.shape[1:]))
    order = (*range(len(sizes), len(sizes) + count), *range(len(sizes)))
    return sample(ops.permute(split, (*order, *range(len(order), split.ndim))), [*own, *more])
