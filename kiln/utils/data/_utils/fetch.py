"""Samples of a data set, by their indices or as they come, made into a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kiln.utils.data._utils.collate import default_collate
from kiln.utils.data.dataset import Subset, TensorDataset


class _BaseDatasetFetcher:
    """What a loader asks for batches: `fetch` gives that of some indices."""

    def __init__(
        self, dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> None:
        self.dataset = dataset
        self.auto_collation = auto_collation
        self.collate_fn = collate_fn
        self.drop_last = drop_last

    def fetch(self, possibly_batched_index: Any) -> Any:
        """The batch of a list of indices, or the sample of one."""
        raise NotImplementedError


class _MapDatasetFetcher(_BaseDatasetFetcher):
    """Of a data set whose samples have indices."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        if not self.auto_collation:
            return self.collate_fn(self.dataset[possibly_batched_index])
        try:
            if self.collate_fn is default_collate:
                rows = _tensor_rows(self.dataset, possibly_batched_index)
                if rows is not None:
                    return rows
            if getattr(self.dataset, "__getitems__", None):
                samples = self.dataset.__getitems__(possibly_batched_index)
            else:
                samples = [self.dataset[k] for k in possibly_batched_index]
            return self.collate_fn(samples)
        except Exception as error:
            indices = list(possibly_batched_index)
            shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
            error.add_note(f"while DataLoader made the batch of samples {shown}")
            raise


class _IterableDatasetFetcher(_BaseDatasetFetcher):
    """Of a stream, which is begun here: StopIteration when it is over."""

    def __init__(
        self, dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> None:
        super().__init__(dataset, auto_collation, collate_fn, drop_last)
        self.dataset_iter: Iterator[Any] = iter(dataset)
        self.ended = False

    def fetch(self, possibly_batched_index: Any) -> Any:
        if self.ended:
            raise StopIteration
        if not self.auto_collation:
            return self.collate_fn(next(self.dataset_iter))
        samples = []
        for _ in possibly_batched_index:
            try:
                samples.append(next(self.dataset_iter))
            except StopIteration:
                self.ended = True
                break
        if not samples or (self.drop_last and len(samples) < len(possibly_batched_index)):
            raise StopIteration
        return self.collate_fn(samples)


def _tensor_rows(dataset: Any, indices: Sequence[int]) -> list[Any] | None:
    """A batch gathered at once from rows of tensors, as stacking samples gives; None for other data sets."""
    while type(dataset) is Subset:
        indices = [dataset.indices[k] for k in indices]
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset:
        return None
    return list(dataset.rows(indices))
