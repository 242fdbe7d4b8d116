"""What PyTorch's data sets, samplers, collation and loaders give and refuse, and kiln's as well."""

from __future__ import annotations

import re
from collections import OrderedDict, UserList, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln

Point = namedtuple("Point", "x y")
NAMES = ("bool", "int64", "float32", "float64")


def plain(value: Any) -> Any:
    """A batch as what answers hold: types of containers by name, tensors with their dtypes."""
    if hasattr(value, "detach"):
        return [str(value.dtype).rpartition(".")[2], value.tolist()]
    if isinstance(value, dict):
        return [type(value).__name__, [[k, plain(v)] for k, v in value.items()]]
    if isinstance(value, (list, tuple, UserList)):
        return [type(value).__name__, [plain(v) for v in value]]
    if isinstance(value, np.ndarray):
        return ["ndarray", value.tolist()]
    return [type(value).__name__, str(value)]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the type and the first words of its error."""
    try:
        return plain(call())
    except Exception as error:
        said = re.sub(r"^\w+: ", "", str(error))  # kiln's begin with the function's name
        return ["raised", type(error).__name__, [word.strip(":;,") for word in said.split()[:4]]]


def collated(library: Any) -> list[Any]:
    from_array, t = library.from_numpy, library.tensor
    batches: list[list[Any]] = [
        [1, 2], [1.5, 2.0], [True, False], [1, 2.5], ["a", "b"], [b"a"], [(1, "a"), (2, "b")],
        [[1, 2.5], [3, 4.5]], [{"a": 1, "b": [2.0]}, {"a": 3, "b": [4.0]}], [Point(1, 2.0), Point(3, 4.0)],
        [OrderedDict(b=1, a=2)], [UserList([1, 2]), UserList([3, 4])], [range(2), range(2)],
        [np.float32(1), np.float32(2)], [np.bool_(True)], [np.float64(3)], [np.arange(2), np.arange(2)],
        [np.array(3), np.array(4)], [t([1.0]), t([2.0])], [t(1), t(2)],
        [from_array(np.ones((2, 1))), from_array(np.zeros((2, 1)))],
        [t([1]), t([2.5])], [t([1]), t([1, 2])], [[1], [1, 2]], [None], [{1}], [1j], [np.array(["a"])],
        [object],
        [np.datetime64("2020")],
    ]  # fmt: skip
    return [outcome(lambda batch=batch: library.utils.data.default_collate(batch)) for batch in batches]


def converted(library: Any) -> list[Any]:
    samples: list[Any] = [
        1, "a", np.arange(2), np.float64(1), (1, np.ones(1)), [np.ones(1), 2], {"a": np.ones(1), "b": "c"},
        Point(np.array(1), 2), np.array(["a"]), np.str_("x"), None, range(2), OrderedDict(a=np.ones(1)),
        UserList([np.ones(1)]),
    ]  # fmt: skip
    return [outcome(lambda sample=sample: library.utils.data.default_convert(sample)) for sample in samples]


def by_type(library: Any) -> list[Any]:
    """Collation by functions of the caller's own."""
    collate = library.utils.data._utils.collate.collate

    def summed(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return sum(batch)

    def first(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return collate([batch[0]], collate_fn_map={int: summed})

    return [
        outcome(lambda: collate([1, 2], collate_fn_map={int: summed})),
        outcome(lambda: collate([True, True], collate_fn_map={int: summed})),
        outcome(lambda: collate([(1, 2), (3, 4)], collate_fn_map={int: summed})),
        outcome(lambda: collate([b"a", b"b"], collate_fn_map={(float, bytes): first, int: summed})),
        outcome(lambda: collate([[1], [2]], collate_fn_map={list: first, int: summed})),
        outcome(lambda: collate([1])),
    ]


def dealt(library: Any) -> list[Any]:
    sampler = library.utils.data.DistributedSampler
    return [
        [[list(s), len(s), s.total_size] for s in of]
        for of in (
            [sampler(range(n), r, k, shuffle=False, drop_last=d) for k in range(r)]
            for n in (0, 1, 2, 5, 6, 7)
            for r in (1, 2, 3, 7)
            for d in (False, True)
            if n or not d
        )
    ]


def arguments(library: Any) -> list[Any]:
    data = library.utils.data
    loader, rows = data.DataLoader, list(range(4))

    class Stream(data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Any:
            return iter(range(7))

        def __len__(self) -> int:
            return 7

    class Own(data.Subset):  # type: ignore[misc,name-defined]
        def __getitem__(self, index: Any) -> Any:
            return 1

    def set_size() -> None:
        loader(rows).batch_size = 2

    return [
        outcome(call)
        for call in (
            lambda: loader(rows, num_workers=-1), lambda: loader(rows, timeout=-1),
            lambda: loader(rows, prefetch_factor=2), lambda: loader(rows, num_workers=1, prefetch_factor=-1),
            lambda: loader(rows, persistent_workers=True), lambda: loader(rows, sampler=[1], shuffle=True),
            lambda: loader(rows, batch_sampler=[[1]], batch_size=2),
            lambda: loader(rows, batch_sampler=[[1]], drop_last=True),
            lambda: loader(rows, batch_size=None, drop_last=True), lambda: loader(rows, batch_size=0),
            lambda: loader(rows, batch_size=2, drop_last=1), lambda: loader(Stream(), shuffle=True),
            lambda: loader(Stream(), sampler=[1]), lambda: loader(Stream(), batch_sampler=[[1]]),
            lambda: loader(rows, multiprocessing_context="fork"),
            lambda: loader(rows, num_workers=1, multiprocessing_context="bad"),
            lambda: loader(rows, num_workers=1, multiprocessing_context=3), set_size,
            lambda: len(loader(Stream(), batch_size=2)), lambda: len(loader(Stream(), batch_size=None)),
            lambda: len(loader(Stream(), batch_size=2, drop_last=True)),
            lambda: len(loader(rows, batch_size=3)),
            lambda: list(loader(rows, batch_size=3)), lambda: list(loader(rows, batch_size=None)),
            lambda: list(loader(rows, batch_sampler=[[3, 1], [0]])),
            lambda: list(loader(rows, sampler=[2, 2])),
            lambda: list(loader({"a": 1, "b": 2}, sampler=["b", "a"])),
            lambda: list(loader(Stream(), batch_size=3, collate_fn=list)), lambda: data.RandomSampler([]),
            lambda: data.RandomSampler(rows, replacement=1), lambda: data.RandomSampler(rows, num_samples=0),
            lambda: data.BatchSampler(rows, True, False), lambda: data.BatchSampler(rows, 2, 0),
            lambda: data.WeightedRandomSampler([[1.0]], 1), lambda: data.WeightedRandomSampler([1.0], 0),
            lambda: data.WeightedRandomSampler([1.0], 1, 2),
            lambda: list(data.WeightedRandomSampler([0, 1], 3)),
            lambda: data.StackDataset(), lambda: data.StackDataset(rows, a=rows),
            lambda: data.StackDataset(rows, [1]), lambda: data.StackDataset(rows, rows)[1],
            lambda: data.StackDataset(a=rows, b=rows).__getitems__([1, 2]), lambda: data.ConcatDataset([]),
            lambda: data.ConcatDataset([Stream()]), lambda: data.ConcatDataset([rows, rows])[-9],
            lambda: data.ConcatDataset([rows, [9]])[-1],
            lambda: data.ConcatDataset([rows, [9]]).cumulative_sizes, lambda: list(data.ChainDataset([rows])),
            lambda: len(data.ChainDataset([Stream(), Stream()])), lambda: list(Stream() + Stream()),
            lambda: (data.Subset(rows, [1]) + data.Subset(rows, [2]))[1], lambda: Own(rows, [1]),
            lambda: data.TensorDataset(library.ones(2), library.ones(3)),
            lambda: data.random_split(rows, [1, 1]), lambda: data.random_split(rows, [0.5, 1.5, -1.0]),
            lambda: [len(part) for part in data.random_split(rows, [0.3, 0.3, 0.4])],
            lambda: data.Dataset()[0], lambda: data.get_worker_info(),
            lambda: data.DistributedSampler(rows, 2, 2), lambda: data.DistributedSampler(rows),
            lambda: data.default_collate([]),
        )
    ]  # fmt: skip


@pytest.mark.parametrize("what", [collated, converted, by_type, dealt, arguments])
@pytest.mark.filterwarnings("ignore:Length of split")
def test_the_same_as_pytorch(what: Any, answers: Any) -> None:
    ours, theirs = answers.both(what)
    assert len(ours) == len(theirs)
    assert not [(k, a, b) for k, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]


def test_paths_that_programs_import() -> None:
    from kiln.utils.data import dataloader, dataset, distributed, sampler
    from kiln.utils.data._utils import collate, worker
    from kiln.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter  # type: ignore

    data = kiln.utils.data
    assert issubclass(_MultiProcessingDataLoaderIter, _BaseDataLoaderIter)
    assert (dataloader.DataLoader, dataset.Subset) == (data.DataLoader, data.Subset)
    assert (sampler.BatchSampler, distributed.DistributedSampler) == (
        data.BatchSampler,
        data.DistributedSampler,
    )
    assert dataloader.default_collate is collate.default_collate and worker.get_worker_info() is None
    assert data.DataLoader[int].__origin__ is data.DataLoader and data.Dataset[int] and data.Sampler[int]
    loader: Any = data.DataLoader([1, 2], batch_size=2, drop_last=True, collate_fn=sum)
    names = (
        "dataset batch_size sampler batch_sampler num_workers collate_fn drop_last pin_memory timeout "
        "worker_init_fn multiprocessing_context prefetch_factor persistent_workers generator "
        "pin_memory_device in_order"
    )
    assert {name: getattr(loader, name) for name in names.split()} == {
        "dataset": [1, 2], "batch_size": 2, "sampler": loader.sampler, "batch_sampler": loader.batch_sampler,
        "num_workers": 0, "collate_fn": sum, "drop_last": True, "pin_memory": False, "timeout": 0,
        "worker_init_fn": None, "multiprocessing_context": None, "prefetch_factor": None,
        "persistent_workers": False, "generator": None, "pin_memory_device": "", "in_order": True,
    }  # fmt: skip
    loader.collate_fn = max
    assert list(loader) == [2]
    assert worker._generate_state(15014285634777110771, 1) == (1934848465, 763213760, 2959016433, 179751970)
    loader._DataLoader__initialized = False  # as loaders that never end do it
    loader.batch_sampler = [[0], [1, 1]]
    loader._DataLoader__initialized = True
    assert list(loader) == [1, 2]
    try:
        worker._worker_info = "x"
        for sample in (kiln.zeros(1), np.zeros(1), kiln.zeros(3, 2000)):
            assert data.default_collate([sample, sample]).is_shared()
    finally:
        worker._worker_info = None
    assert not data.default_collate([kiln.zeros(1)]).is_shared()


def test_orders_of_a_seed() -> None:
    data = kiln.utils.data
    sampler = data.DistributedSampler(range(10), num_replicas=2, rank=0)
    first = list(sampler)
    other = list(data.DistributedSampler(range(10), num_replicas=2, rank=1))
    assert first == list(sampler) and sorted(first + other) == list(range(10))
    sampler.set_epoch(1)
    assert list(sampler) != first
    kiln.manual_seed(0)
    drawn = list(data.WeightedRandomSampler([1, 0, 3], 800))
    assert set(drawn) == {0, 2} and 150 < drawn.count(0) < 250
    assert sorted(data.WeightedRandomSampler([1, 0, 3], 2, replacement=False)) == [0, 2]
    kiln.manual_seed(0)
    list(data.RandomSampler(range(5)))
    few = kiln.random.get_rng_state().tolist()
    kiln.manual_seed(0)
    list(data.RandomSampler(range(500)))
    assert few == kiln.random.get_rng_state().tolist()  # the default generator goes on by one draw


def test_samples_of_several_lengths() -> None:
    data = kiln.utils.data
    lengths = [(7 * k) % 23 + 1 for k in range(50)]
    rows = [(kiln.full((n, 2), float(n)), np.arange(n), n) for n in lengths]
    kiln.manual_seed(1)
    sampler = data.BucketBatchSampler(lengths, 8, bucket_batches=3)
    batches = list(sampler)
    assert (
        sorted(k for batch in batches for k in batch) == list(range(50)) and len(batches) == len(sampler) == 7
    )
    assert batches != list(sampler)
    spread = [max(lengths[k] for k in batch) - min(lengths[k] for k in batch) for batch in batches]
    assert sum(spread) / len(spread) < 11
    whole = list(
        data.BucketBatchSampler(kiln.tensor(lengths), 8, bucket_batches=0, shuffle=False, drop_last=True)
    )
    assert [len(batch) for batch in whole] == [8] * 6
    assert [lengths[k] for batch in whole for k in batch] == sorted(lengths)[:48]
    for (x, n), (i, m), y in data.DataLoader(rows, batch_sampler=sampler, collate_fn=data.pad_collate):
        assert (
            n.tolist() == m.tolist() == y.tolist()
            and x.shape == (len(n), max(n), 2)
            and i.dtype == kiln.int64
        )
        assert all((row[:k] == k).all() and not row[k:].any() for row, k in zip(x, n.tolist(), strict=True))
    values, n = data.pad_collate(
        [kiln.tensor([1]), kiln.tensor([2, 3])], padding_value=-1, padding_side="left"
    )
    assert values.tolist() == [[-1, 1], [2, 3]] and n.tolist() == [1, 2]
    for bad in ({"batch_size": 0}, {"batch_size": 2, "bucket_batches": -1}):
        with pytest.raises(ValueError, match="BucketBatchSampler"):
            data.BucketBatchSampler([1], **bad)
    with pytest.raises(RuntimeError, match="alike but for their first dim"):
        data.pad_collate([kiln.ones(1, 2), kiln.ones(1, 3)])
    with pytest.raises(ValueError, match="padding_side"):
        data.pad_collate([kiln.ones(1)], padding_side="up")
