"""Data sets: sequences of samples, and streams of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message, warn
from kiln.table.callables import name_all as _name_all
from kiln.utils.data.sampler import permutation

if TYPE_CHECKING:
    from kiln.ops.random.generator import Generator

Item = TypeVar("Item", covariant=True)


class Dataset(Generic[Item]):
    """Samples by index: subclasses define `__getitem__` and, for samplers and loaders, `__len__`.

    One that has `__getitems__`, which takes a list of indices and gives a list of samples, is asked for a
    batch's samples at once.
    """

    def __getitem__(self, index: Any) -> Item:
        raise NotImplementedError(
            f"Subclasses of Dataset should implement __getitem__; {type(self).__name__} does not"
        )

    def __add__(self, other: Dataset[Any]) -> Dataset[Any]:
        """The samples of both, one data set after the other."""
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Item], Iterable[Item]):
    """Samples as a stream: subclasses define `__iter__`; a loader batches them in the order they come.

    Each worker of a loader iterates its own copy, so that all give the same samples unless `__iter__` asks
    `get_worker_info` which part is its own.

    >>> import kiln
    >>> class Count(kiln.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(3))
    >>> [x.tolist() for x in kiln.utils.data.DataLoader(Count(), batch_size=2)]
    [[0, 1], [2]]
    """

    def __iter__(self) -> Iterator[Item]:
        raise NotImplementedError(
            f"Subclasses of IterableDataset should implement __iter__; {type(self).__name__} does not"
        )

    def __add__(self, other: Dataset[Any]) -> Dataset[Any]:
        """The samples of both, one stream after the other."""
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is the i-th row of each tensor; all have the same first size (AssertionError).

    >>> import kiln
    >>> data = kiln.utils.data.TensorDataset(kiln.arange(3), kiln.arange(3) * 10)
    >>> data[2]
    (tensor(2), tensor(20))
    """

    def __init__(self, *tensors: Tensor) -> None:
        sizes = [tuple(t.shape) for t in tensors]
        if not sizes or any(not shape or shape[0] != sizes[0][0] for shape in sizes):
            raise AssertionError(
                "Size mismatch between tensors: "
                + message("TensorDataset", "tensors of one first size", f"shapes {sizes}")
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def rows(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """The samples at `indices`, each tensor's rows gathered into one of shape (len(indices), ...)."""
        positions: Tensor = ops.tensor(list(indices), dtype=_core.int64)
        return tuple(ops.index_select(tensor, 0, positions) for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class StackDataset(Dataset[Any]):
    """Samples of several data sets of one length side by side: sample i is a tuple of theirs, or a dict where
    the data sets have names.

    ValueError for data sets of different lengths, none, or some with names and some without.

    >>> import kiln
    >>> kiln.utils.data.StackDataset(image=[1, 2], text=["a", "b"])[1]
    {'image': 2, 'text': 'b'}
    """

    datasets: tuple[Any, ...] | dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or ``dict``- (via ``kwargs``) like "
                "input/output, but "
                "both types are given."
            )
        self.datasets = kwargs or args
        lengths = {_size(dataset) for dataset in (*args, *kwargs.values())}
        if not lengths:
            raise ValueError("At least one dataset should be passed")
        if len(lengths) > 1:
            raise ValueError(f"Size mismatch between datasets: lengths {sorted(lengths)}")
        (self._length,) = lengths

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """The samples at `indices`; data sets that have `__getitems__` are asked for theirs at once."""
        if isinstance(self.datasets, dict):
            columns = [_samples(dataset, indices) for dataset in self.datasets.values()]
            return [dict(zip(self.datasets, row, strict=True)) for row in zip(*columns, strict=True)]
        return list(zip(*(_samples(dataset, indices) for dataset in self.datasets), strict=True))

    def __len__(self) -> int:
        return self._length


def _samples(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """The samples of a data set at `indices`, at once if it can."""
    if not callable(getattr(dataset, "__getitems__", None)):
        return [dataset[k] for k in indices]
    found: list[Any] = dataset.__getitems__(indices)
    if len(found) != len(indices):
        raise ValueError(f"Nested dataset's output size mismatch. Expected {len(indices)}, got {len(found)}")
    return found


class ConcatDataset(Dataset[Any]):
    """The samples of several data sets, one after the other.

    AssertionError for none, and for a stream; ValueError for a negative index before the first sample.
    """

    datasets: list[Any]
    cumulative_sizes: list[int]

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset; use ChainDataset")
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """How many samples there are up to the end of each data set."""
        ends: list[int] = []
        for dataset in sequence:
            ends.append((ends[-1] if ends else 0) + _size(dataset))
        return ends

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            if -index > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            index += len(self)
        if index >= len(self):
            raise IndexError(message("ConcatDataset", f"an index within {len(self)} samples", str(index)))
        which = bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - before]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    @property
    def cummulative_sizes(self) -> list[int]:
        """An old name of `cumulative_sizes`, with a warning."""
        warn("`cummulative_sizes` attribute is renamed to `cumulative_sizes`", FutureWarning)
        return self.cumulative_sizes


class ChainDataset(IterableDataset[Any]):
    """The samples of several streams, one after the other. AssertionError where one is no IterableDataset."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def _streams(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise AssertionError(f"ChainDataset only supports IterableDataset, got {describe(dataset)}")
            yield dataset

    def __iter__(self) -> Iterator[Any]:
        for stream in self._streams():
            yield from stream

    def __len__(self) -> int:
        return sum(len(stream) for stream in self._streams())


class Subset(Dataset[Item]):
    """The samples of another data set at `indices`.

    A subclass that has its own `__getitem__` must have its own `__getitems__`, which loaders ask
    (NotImplementedError).
    """

    dataset: Dataset[Item]
    indices: Sequence[int]

    def __init__(self, dataset: Dataset[Item], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices
        kind = type(self)
        if kind.__getitem__ is not Subset.__getitem__ and kind.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{kind.__name__} overrides __getitem__ but not __getitems__, which loaders call; add\n\n"
                "def __getitems__(self, indices):\n    return [self[k] for k in indices]"
            )

    def __getitem__(self, index: Any) -> Item:
        if isinstance(index, list):
            return self.dataset[[self.indices[k] for k in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """The samples at several places; a data set that has `__getitems__` is asked for all at once."""
        of_all = [self.indices[k] for k in indices]
        if callable(getattr(self.dataset, "__getitems__", None)):
            found: list[Item] = self.dataset.__getitems__(of_all)  # type: ignore[attr-defined]
            return found
        return [self.dataset[k] for k in of_all]

    def __len__(self) -> int:
        return len(self.indices)


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
        for k, fraction in enumerate(lengths):
            if not 0 <= fraction <= 1:
                raise ValueError(f"Fraction at index {k} is not between 0 and 1")
        counts = [math.floor(size * fraction) for fraction in lengths]
        for k in range(size - sum(counts)):
            counts[k % len(counts)] += 1
        for k, count in enumerate(counts):
            if not count:
                warn(f"Length of split at index {k} is 0. This might result in an empty dataset.")
        return counts
    if sum(lengths) != size or any(int(n) != n or n < 0 for n in lengths):
        came = f"{list(lengths)}, which sums to {sum(lengths)}"
        raise ValueError(
            "Sum of input lengths does not equal the length of the input dataset! "
            + message("random_split", f"lengths that sum to {size}", came)
        )
    return [int(n) for n in lengths]


def _size(dataset: Any) -> int:
    """How many samples; TypeError for a data set that does not say."""
    if not hasattr(dataset, "__len__"):
        raise TypeError(message("data", "a data set with __len__", describe(dataset)))
    return len(dataset)


_name_all(globals(), __name__)
