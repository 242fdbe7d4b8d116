"""Samplers: iterables of indices, or of lists of indices (batches)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Generic, TypeVar, Union

from kiln import _core, ops
from kiln.errors import describe, message

if TYPE_CHECKING:
    from kiln.ops.random.generator import Generator

Index = TypeVar("Index", covariant=True)


def permutation(size: int, generator: Generator | None = None) -> list[int]:
    """0 to size-1 in a random order drawn from `generator`, or from the default one.

    Positions are sorted by independent uniform doubles: 53 bits, so that ties do not bias the order.
    """
    keys = uniform(size, generator)
    return sorted(range(size), key=keys.__getitem__)


def uniform(size: int, generator: Generator | None) -> list[float]:
    """`size` doubles in [0, 1)."""
    drawn: list[float] = ops.rand(size, generator=generator, dtype=_core.float64).tolist()
    return drawn


class Sampler(Generic[Index]):
    """Base of the samplers: subclasses define `__iter__`, and `__len__` where it is known."""

    def __iter__(self) -> Iterator[Index]:
        raise NotImplementedError(f"{type(self).__name__} defines no __iter__")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ... in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """A new random order each time it is iterated; with `replacement`, independent draws.

    `num_samples` says how many (the data's size if None): permutations follow one another until it is met.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None and (type(num_samples) is not int or num_samples <= 0):
            raise ValueError(message("RandomSampler", "num_samples > 0", describe(num_samples)))
        self.data_source = data_source
        self.replacement = replacement
        self.generator = generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """How many indices one iteration gives."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size, left = len(self.data_source), self.num_samples
        if self.replacement:
            yield from (int(u * size) for u in uniform(left, self.generator))
            return
        while left > 0 and size > 0:
            order = permutation(size, self.generator)[:left]
            left -= len(order)
            yield from order

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in a random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for k in permutation(len(self.indices), self.generator):
            yield self.indices[k]

    def __len__(self) -> int:
        return len(self.indices)


class BatchSampler(Sampler[list[int]]):
    """The indices of another sampler in lists of `batch_size`; the last may be shorter unless `drop_last`."""

    def __init__(self, sampler: Union[Sampler[int], Iterable[int]], batch_size: int, drop_last: bool) -> None:
        if type(batch_size) is not int or batch_size <= 0:
            raise ValueError(message("BatchSampler", "batch_size > 0", describe(batch_size)))
        if not isinstance(drop_last, bool):
            raise ValueError(message("BatchSampler", "drop_last to be a bool", describe(drop_last)))
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
