"""Samplers: iterables of indices, or of lists of indices (batches)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar, Union

from kiln import _core, ops
from kiln.ops.random.generator import Generator

Index = TypeVar("Index", covariant=True)


def permutation(size: int, generator: Any = None) -> list[int]:
    """0 to size-1 in a random order drawn from `generator`, or from the default one.

    Positions are sorted by independent uniform doubles: 53 bits, so that ties do not bias the order.
    """
    keys: list[float] = ops.rand(size, generator=generator, dtype=_core.float64).tolist()
    return sorted(range(size), key=keys.__getitem__)


def drawn_seed(generator: Any = None) -> int:
    """A seed below 2^63: one draw from `generator`, or from the default one."""
    drawn: int = ops.randint(0, 2**63 - 1, (), generator=generator, dtype=_core.int64).item()
    return drawn


class Sampler(Generic[Index]):
    """Base of the samplers: subclasses define `__iter__`, and `__len__` where it is known.

    An order of indices, or of lists of indices, each of which is a batch.
    """

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
    Without a generator each iteration has one of its own, seeded by one draw from the default one, however
    many samples there are. TypeError for a `replacement` that is no bool, ValueError for no samples.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        """How many indices one iteration gives."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size, left = len(self.data_source), self.num_samples
        generator = self.generator
        if generator is None:
            generator = own_generator(drawn_seed())
        while left > 0 and size > 0:
            if self.replacement:
                count = min(left, 1024)
                order = ops.randint(0, size, (count,), generator=generator, dtype=_core.int64).tolist()
            else:
                order = permutation(size, generator)[:left]
            left -= len(order)
            yield from order

    def __len__(self) -> int:
        return self.num_samples


def own_generator(seed: int) -> Any:
    """A generator that starts from a seed."""
    return Generator().manual_seed(seed)


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


class WeightedRandomSampler(Sampler[int]):
    """Indices 0 to len(weights)-1, each drawn with a probability proportional to its weight.

    `weights`: numbers >= 0, in a sequence or a tensor of one dim, of any sum; `num_samples` indices an
    iteration. Without `replacement` none is drawn twice. ValueError for other arguments.

    >>> import kiln
    >>> list(kiln.utils.data.WeightedRandomSampler([0, 0, 1], 2))
    [2, 2]
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        _expect_positive("num_samples", num_samples)
        _expect_bool("replacement", replacement)
        self.weights = ops.as_tensor(weights, dtype=_core.float64)
        if self.weights.ndim != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(self.weights.shape)}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        drawn = ops.multinomial(self.weights, self.num_samples, self.replacement, generator=self.generator)
        yield from drawn.tolist()

    def __len__(self) -> int:
        return self.num_samples


def _expect_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value}")


def _expect_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} should be a boolean value, but got {name}={value}")


class BatchSampler(Sampler[list[int]]):
    """The indices of another sampler in lists of `batch_size`; the last may be shorter unless `drop_last`.

    ValueError for a size that is no int above 0.

    >>> import kiln
    >>> list(kiln.utils.data.BatchSampler(range(5), 2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Union[Sampler[int], Iterable[int]], batch_size: int, drop_last: bool) -> None:
        _expect_positive("batch_size", batch_size)
        _expect_bool("drop_last", drop_last)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
