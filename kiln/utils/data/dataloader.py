"""The loader: batches of a data set, made as they are asked for, in this process or ahead by workers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic

from kiln import _core
from kiln.absent import no_attribute
from kiln.errors import describe, message, warn
from kiln.utils.data._utils.collate import default_collate, default_convert
from kiln.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from kiln.utils.data._utils.worker import get_worker_info
from kiln.utils.data.dataset import Dataset, Item, IterableDataset
from kiln.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler, drawn_seed

if TYPE_CHECKING:
    from kiln.ops.random.generator import Generator

__all__ = ["DataLoader", "default_collate", "default_convert", "get_worker_info"]

Collate = Callable[[Any], Any]

# what a loader that is made does not change
_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class _DatasetKind:
    """Which fetcher a data set needs."""

    Map = 0
    Iterable = 1

    @staticmethod
    def create_fetcher(
        kind: int, dataset: Any, auto_collation: bool, collate_fn: Collate, drop_last: bool
    ) -> Any:
        """A fetcher at the data set's begin."""
        made = _MapDatasetFetcher if kind == _DatasetKind.Map else _IterableDatasetFetcher
        return made(dataset, auto_collation, collate_fn, drop_last)


class _InfiniteConstantSampler(Sampler[None]):
    """None for ever: the indices of a stream."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


class DataLoader(Generic[Item]):
    """Batches of `batch_size` samples, in order or shuffled anew each epoch.

    Which samples: `shuffle`, or `sampler`, an order of indices, or `batch_sampler`, which gives the batches
    themselves. `batch_size=None` gives single samples. `collate_fn` makes a batch of a list of samples:
    `default_collate`, or `default_convert` of a single sample. `drop_last` leaves out a last batch that is
    shorter.

    `num_workers` processes fetch batches ahead, `prefetch_factor` (2) each, and give them in order, or as
    they are there if not `in_order`. They are started when an iteration begins, by the start method of
    `multiprocessing_context`, and end with it unless `persistent_workers`. Worker k seeds Python's, NumPy's
    and kiln's random numbers by one draw from `generator` plus k, then calls `worker_init_fn(k)`. A batch's
    tensors come in memory that both processes see.

    An exception in a worker comes here with its own type and its traceback in the message; a worker that is
    killed is a RuntimeError, as is one that gives nothing for `timeout` seconds (0: no limit). In this
    process an exception keeps its type and gains a note that names the samples. `pin_memory` has no effect on
    the CPU.

    Raises ValueError for arguments that exclude each other and for negative numbers.

    >>> import kiln
    >>> data = kiln.utils.data.TensorDataset(kiln.arange(5))
    >>> [x.tolist() for (x,) in kiln.utils.data.DataLoader(data, batch_size=2)]
    [[0, 1], [2, 3], [4]]
    """

    dataset: Any  # with the length that a data set may have
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Collate
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    generator: Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    __initialized: bool = False

    def __init__(
        self,
        dataset: Dataset[Item],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _expect_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        self.generator = generator
        streams = isinstance(dataset, IterableDataset)
        self._dataset_kind = _DatasetKind.Iterable if streams else _DatasetKind.Map
        _expect_order(streams, shuffle, sampler, batch_sampler)
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                    "drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
            )
        if sampler is None:
            sampler = self._order(streams, bool(shuffle))
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        if collate_fn is None:
            collate_fn = default_convert if batch_sampler is None else default_collate
        self.collate_fn = collate_fn
        self.persistent_workers = persistent_workers
        self._IterableDataset_len_called: int | None = None
        self._iterator: Any = None
        self.check_worker_number_rationality()
        self.__initialized = True

    def _order(self, streams: bool, shuffle: bool) -> Sampler[Any]:
        """The order of single samples where none was given."""
        if streams:
            return _InfiniteConstantSampler()
        if shuffle:
            return RandomSampler(self.dataset, generator=self.generator)
        return SequentialSampler(self.dataset)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    @property
    def multiprocessing_context(self) -> Any:
        """How workers are started: a context of Python's multiprocessing, or None for the default one."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, given: Any) -> None:
        self._context = None if given is None else _context(given, self.num_workers)

    def check_worker_number_rationality(self) -> None:
        """Warns where there are more workers than this process may use cores."""
        cores = len(os.sched_getaffinity(0))
        if self.num_workers > cores:
            warn(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our suggested "
                f"max number of worker in current system is {cores}, which is smaller. Please be aware that "
                "excessive worker creation might get DataLoader running slow or even freeze."
            )

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if not self.num_workers:
            return _SingleProcessDataLoaderIter(self)
        from kiln.utils.data._utils import processes

        return processes._MultiProcessingDataLoaderIter(self)

    def __iter__(self) -> Iterator[Any]:
        if not self.persistent_workers:
            return self._get_iterator()
        if self._iterator is None or self._iterator._shutdown:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        found: Iterator[Any] = self._iterator
        return found

    def __len__(self) -> int:
        if self._dataset_kind == _DatasetKind.Map:
            return len(self._index_sampler)
        size = self._IterableDataset_len_called = len(self.dataset)
        if self.batch_size is None:
            return size
        return size // self.batch_size if self.drop_last else math.ceil(size / self.batch_size)


def _expect_workers(num_workers: int, timeout: float, prefetch: int | None, persistent: bool) -> None:
    """ValueError for arguments about workers that have no meaning."""
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing. "
            "Let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if prefetch is not None and prefetch < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persistent and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _expect_order(streams: bool, shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    """ValueError for more than one order."""
    if streams:
        for name, given in (
            ("shuffle", shuffle or None),
            ("sampler", sampler),
            ("batch_sampler", batch_sampler),
        ):
            if given is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                    f"{name}={given}: "
                    "a stream has its own order"
                )
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")


def _context(given: Any, num_workers: int) -> Any:
    """The context of Python's multiprocessing that a loader is given, by itself or by its start method."""
    import multiprocessing

    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )
    if isinstance(given, str):
        methods = multiprocessing.get_all_start_methods()
        if given not in methods:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, but got "
                f"multiprocessing_context={given!r}"
            )
        return multiprocessing.get_context(given)
    if not isinstance(given, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the "
            "start method, "
            f"but got multiprocessing_context={given}"
        )
    return given


# ---- one epoch ----


class _BaseDataLoaderIter:
    """One epoch of a loader: an iterator over its batches."""

    _shutdown = False

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset = loader.dataset
        self._dataset_kind = loader._dataset_kind
        self._auto_collation = loader._auto_collation
        self._drop_last = loader.drop_last
        self._index_sampler = loader._index_sampler
        self._num_workers = loader.num_workers
        self._timeout = loader.timeout
        self._collate_fn = loader.collate_fn
        self._pin_memory = False
        if loader.pin_memory:
            warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned "
                "memory won't "
                "be used.",
            )
        self._begin(loader)
        self._base_seed = drawn_seed(loader.generator)
        self._persistent_workers = loader.persistent_workers

    def _begin(self, loader: DataLoader[Any]) -> None:
        """An epoch's begin."""
        self._sampler_iter = iter(self._index_sampler)
        self._num_yielded = 0
        self._IterableDataset_len_called = loader._IterableDataset_len_called

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Another epoch of the same iterator."""
        self._begin(loader)

    def __iter__(self) -> _BaseDataLoaderIter:
        return self

    def _next_index(self) -> Any:
        return next(self._sampler_iter)

    def _next_data(self) -> Any:
        raise NotImplementedError

    def _next(self) -> Any:
        data = self._next_data()
        self._num_yielded += 1
        said = self._IterableDataset_len_called
        if said is not None and self._num_yielded > said and self._dataset_kind == _DatasetKind.Iterable:
            hint = (
                "For multiprocessing data-loading, this comes of a data set that every worker iterates as a "
                "whole: get_worker_info() tells __iter__ which part is this worker's."
            )
            warn(
                f"Length of IterableDataset {self._dataset} was reported to be {said} (when accessing "
                f"len(dataloader)), but {self._num_yielded} samples have been fetched. "
                + (hint if self._num_workers else ""),
            )
        return data

    # A callable of the core: its errors show no lines of kiln's.
    __next__ = _core.Function(_next, True)

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __getstate__(self) -> Any:
        raise NotImplementedError(
            message(type(self).__name__, "no pickling", describe(self), "pickle the loader")
        )


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """Batches made in this process, each when it is asked for."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        if self._timeout:
            raise AssertionError(message("DataLoader", "timeout 0 without workers", str(self._timeout)))
        self._dataset_fetcher = _DatasetKind.create_fetcher(
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )

    def _next_data(self) -> Any:
        return self._dataset_fetcher.fetch(self._next_index())


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "_MultiProcessingDataLoaderIter":
            from kiln.utils.data._utils import processes

            return processes._MultiProcessingDataLoaderIter
        no_attribute(__name__, name)
