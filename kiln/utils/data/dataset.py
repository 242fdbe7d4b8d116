"""Data sets: sequences of samples."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.utils.data.sampler import permutation

if TYPE_CHECKING:
    from kiln.ops.random.generator import Generator

Item = TypeVar("Item", covariant=True)


class Dataset(Generic[Item]):
    """Samples by index: subclasses define `__getitem__` and, for samplers and loaders, `__len__`."""

    def __getitem__(self, index: Any) -> Item:
        raise NotImplementedError(f"{type(self).__name__} defines no __getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Item]):
    """Samples as a stream: subclasses define `__iter__`; a loader batches them in the order they come."""

    def __iter__(self) -> Iterator[Item]:
        raise NotImplementedError(f"{type(self).__name__} defines no __iter__")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is the i-th row of each tensor; all have the same first size (ValueError).

    >>> import kiln
    >>> data = kiln.utils.data.TensorDataset(kiln.arange(3), kiln.arange(3) * 10)
    >>> data[2]
    (tensor(2), tensor(20))
    """

    def __init__(self, *tensors: Tensor) -> None:
        sizes = [tuple(t.shape) for t in tensors]
        if not sizes or any(not shape or shape[0] != sizes[0][0] for shape in sizes):
            raise ValueError(message("TensorDataset", "tensors of one first size", f"shapes {sizes}"))
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def rows(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """The samples at `indices`, each tensor's rows gathered into one of shape (len(indices), ...)."""
        positions: Tensor = ops.tensor(list(indices), dtype=_core.int64)
        return tuple(ops.index_select(tensor, 0, positions) for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class Subset(Dataset[Item]):
    """The samples of another data set at `indices`."""

    def __init__(self, dataset: Dataset[Item], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Item:
        if isinstance(index, list):
            return self.dataset[[self.indices[k] for k in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[Any]):
    """The samples of several data sets, one after the other."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError(message("ConcatDataset", "at least one data set", "none"))
        self.cumulative_sizes: list[int] = []
        for dataset in self.datasets:
            before = self.cumulative_sizes[-1] if self.cumulative_sizes else 0
            self.cumulative_sizes.append(before + _size(dataset))

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(message("ConcatDataset", f"an index within {size} samples", str(index)))
        index %= size
        which = bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - before]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(
    dataset: Dataset[Item], lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset[Item]]:
    """Disjoint random subsets of the given lengths, or fractions that sum to 1.

    What rounding fractions down leaves is dealt out from the first subset on. Raises ValueError when
    the lengths do not sum to the data set's.
    """
    size = _size(dataset)
    counts = _split_sizes(size, lengths)
    order = permutation(size, generator)
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    return [Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def _split_sizes(size: int, lengths: Sequence[float]) -> list[int]:
    """`lengths` as counts that sum to `size`."""
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        for fraction in lengths:
            if not 0 <= fraction <= 1:
                raise ValueError(message("random_split", "fractions between 0 and 1", str(fraction)))
        counts = [math.floor(size * fraction) for fraction in lengths]
        for k in range(size - sum(counts)):
            counts[k % len(counts)] += 1
        return counts
    if sum(lengths) != size or any(int(n) != n or n < 0 for n in lengths):
        came = f"{list(lengths)}, which sums to {sum(lengths)}"
        raise ValueError(message("random_split", f"lengths that sum to {size}", came))
    return [int(n) for n in lengths]


def _size(dataset: Any) -> int:
    """How many samples; TypeError for a data set that does not say."""
    if not hasattr(dataset, "__len__"):
        raise TypeError(message("data", "a data set with __len__", describe(dataset)))
    return len(dataset)
