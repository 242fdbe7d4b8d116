"""The loader: batches of a data set, made in this process as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

from kiln import _core
from kiln.errors import describe, message
from kiln.utils.data.collate import default_collate
from kiln.utils.data.dataset import Dataset, Item, IterableDataset, Subset, TensorDataset
from kiln.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler

if TYPE_CHECKING:
    from kiln.ops.random.generator import Generator

Collate = Callable[[list[Any]], Any]


class DataLoader(Generic[Item]):
    """Batches of `batch_size` samples, in order or shuffled anew each epoch.

    `batch_size=None` gives single samples; `sampler` gives the order instead of `shuffle`;
    `batch_sampler` gives the batches themselves. `collate_fn` makes a batch of a list of samples.
    An exception while a batch is made keeps its type and gains a note that names the samples.

    >>> import kiln
    >>> data = kiln.utils.data.TensorDataset(kiln.arange(5))
    >>> [x.tolist() for (x,) in kiln.utils.data.DataLoader(data, batch_size=2)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Dataset[Item],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[int] | Iterable[int] | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        drop_last: bool = False,
        *,
        generator: Generator | None = None,
    ) -> None:
        if num_workers != 0:
            hint = "samples are made in this process"
            raise NotImplementedError(message("DataLoader", "num_workers=0", describe(num_workers), hint))
        self.dataset: Any = dataset  # with the length that a data set may have
        self.collate_fn = collate_fn
        self.generator = generator
        self.num_workers = 0
        self._streams = isinstance(dataset, IterableDataset)
        if self._streams and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "DataLoader: an IterableDataset gives its own order; expected no shuffle and no sampler"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: expected sampler or shuffle, got both")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "DataLoader: expected batch_sampler without batch_size, shuffle, sampler and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError("DataLoader: expected a batch_size for drop_last, got None")
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = self._order(shuffle) if sampler is None else sampler
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)

    def _order(self, shuffle: bool | None) -> Sampler[int] | Iterable[int]:
        """The order of single samples where none was given."""
        if self._streams:
            return ()
        if shuffle:
            return RandomSampler(self.dataset, generator=self.generator)
        return SequentialSampler(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        if self._streams:
            return self._stream()
        # Callables of the core: their errors show no lines of kiln's.
        if self.batch_sampler is None:
            return map(_core.Function(self._single, True), self.sampler)
        return map(_core.Function(self._fetch, True), self.batch_sampler)

    def _single(self, index: int) -> Any:
        """One sample, unbatched."""
        sample = self.dataset[index]
        return sample if self.collate_fn is None else self.collate_fn(sample)

    def _fetch(self, indices: Sequence[int]) -> Any:
        """The batch of the samples at `indices`."""
        try:
            if self.collate_fn is None:
                rows = _tensor_rows(self.dataset, indices)
                if rows is not None:
                    return rows
            if hasattr(self.dataset, "__getitems__"):
                samples = self.dataset.__getitems__(list(indices))
            else:
                samples = [self.dataset[k] for k in indices]
            return (self.collate_fn or default_collate)(samples)
        except Exception as error:
            shown = ", ".join(map(str, list(indices)[:8])) + (", ..." if len(indices) > 8 else "")
            error.add_note(f"while DataLoader made the batch of samples {shown}")
            raise

    def _stream(self) -> Iterator[Any]:
        """Batches of a data set that is a stream, or its samples where batch_size is None."""
        collate = self.collate_fn or default_collate
        if self.batch_size is None:
            for sample in self.dataset:
                yield sample if self.collate_fn is None else collate(sample)
            return
        samples: list[Any] = []
        for sample in self.dataset:
            samples.append(sample)
            if len(samples) == self.batch_size:
                yield collate(samples)
                samples = []
        if samples and not self.drop_last:
            yield collate(samples)

    def __len__(self) -> int:
        if self._streams:
            size = len(self.dataset)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        batches: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        return len(batches)


def _tensor_rows(dataset: Dataset[Any], indices: Sequence[int]) -> list[Any] | None:
    """A batch gathered at once from rows of tensors, as stacking samples gives; None for other data sets."""
    while type(dataset) is Subset:
        indices = [dataset.indices[k] for k in indices]
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset:
        return None
    return list(dataset.rows(indices))
