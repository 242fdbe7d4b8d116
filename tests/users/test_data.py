"""Data sets, samplers, the loader, and the digits that come with kiln."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest

import kiln
from kiln.utils import data

Point = namedtuple("Point", "x y")


class Squares(data.Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return {"x": kiln.tensor([index, index * index]), "name": f"n{index}", "half": index / 2}


class Stream(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


def rows(size: int = 10) -> data.TensorDataset:
    return data.TensorDataset(kiln.arange(size * 2).reshape(size, 2), kiln.arange(size))


def seen(loader: Any) -> list[int]:
    return [k for _, y in loader for k in y.tolist()]


def test_tensor_dataset() -> None:
    d = rows()
    x, y = d[3]
    assert len(d) == 10 and x.tolist() == [6, 7] and y.item() == 3
    with pytest.raises(AssertionError, match="Size mismatch between tensors"):
        data.TensorDataset(kiln.ones(2), kiln.ones(3))
    with pytest.raises(AssertionError, match="first size"):
        data.TensorDataset()


def test_subset_and_concatenation() -> None:
    d = data.Subset(rows(), [7, 2])
    assert [y.item() for _, y in (d[0], d[1])] == [7, 2] and len(d) == 2
    joined = d + rows(3)
    assert [joined[k][1].item() for k in range(len(joined))] == [7, 2, 0, 1, 2]
    assert joined[-1][1].item() == 2
    with pytest.raises(IndexError):
        joined[5]


def test_random_split() -> None:
    kiln.manual_seed(0)
    parts = data.random_split(rows(), [6, 3, 1])
    assert [len(p) for p in parts] == [6, 3, 1]
    assert sorted(k for p in parts for k in p.indices) == list(range(10))
    assert [len(p) for p in data.random_split(rows(), [0.5, 0.25, 0.25])] == [6, 2, 2]
    for lengths in ([5, 4], [0.5, 0.6], [11, -1]):
        with pytest.raises(ValueError, match="sum"):
            data.random_split(rows(), lengths)


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_batches_in_order(drop_last: bool, sizes: list[int]) -> None:
    loader = data.DataLoader(rows(), batch_size=4, drop_last=drop_last)
    batches = list(loader)
    assert [len(y) for _, y in batches] == sizes and len(loader) == len(sizes)
    assert batches[0][0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_shuffling_is_new_each_epoch_and_seeded() -> None:
    loader = data.DataLoader(rows(50), batch_size=8, shuffle=True)
    kiln.manual_seed(3)
    first, second = seen(loader), seen(loader)
    kiln.manual_seed(3)
    assert first == seen(loader) and first != second
    assert sorted(first) == sorted(second) == list(range(50)) != first


@pytest.mark.skipif(not hasattr(kiln, "Generator"), reason="this kiln has one generator only")
def test_a_generator_of_ones_own() -> None:
    def order() -> list[int]:
        return seen(data.DataLoader(rows(30), shuffle=True, generator=kiln.Generator().manual_seed(1)))

    first = order()
    kiln.rand(3)
    assert order() == first


def test_shuffling_favours_no_order() -> None:
    kiln.manual_seed(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(1200):
        order = tuple(data.RandomSampler(range(3)))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6 and all(140 <= n <= 260 for n in counts.values())


def test_gathered_rows_are_what_stacking_gives() -> None:
    class Own(data.TensorDataset):
        """Not the type the shortcut knows, so samples are stacked."""

    for indices in ([3, 1, 1], [9], list(range(10))):
        (fast,) = data.DataLoader(rows(), batch_sampler=[indices])
        (slow,) = data.DataLoader(Own(*rows().tensors), batch_sampler=[indices])
        (through,) = data.DataLoader(data.Subset(rows(), list(range(10))), batch_sampler=[indices])
        for other in (slow, through):
            assert type(other) is type(fast) is list
            assert [(t.dtype, t.tolist()) for t in other] == [(t.dtype, t.tolist()) for t in fast]


def test_collation_follows_the_structure() -> None:
    (batch,) = data.DataLoader(Squares(3), batch_size=3)
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 4]] and batch["name"] == ["n0", "n1", "n2"]
    assert batch["half"].dtype == kiln.float64 and batch["half"].tolist() == [0, 0.5, 1]
    point = data.default_collate([Point(1, True), Point(2, False)])
    assert isinstance(point, Point) and point.x.tolist() == [1, 2] and point.y.dtype == kiln.bool
    assert [x.tolist() for x in data.default_collate([(1, 2.0), (3, 4.0)])] == [[1, 3], [2.0, 4.0]]
    numpy = pytest.importorskip("numpy")
    assert data.default_collate([numpy.ones(2), numpy.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert data.default_collate([numpy.float32(1), numpy.float32(2)]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("batch", "error"),
    [([object()], TypeError), ([{1}], TypeError), ([None], TypeError), ([[1], [1, 2]], RuntimeError)],
)
def test_collation_refuses(batch: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="default_collate: batch must|of equal size"):
        data.default_collate(batch)


def test_samplers() -> None:
    assert list(data.SequentialSampler(range(3))) == [0, 1, 2]
    assert len(list(data.RandomSampler(range(3), num_samples=8))) == 8
    drawn = list(data.RandomSampler(range(3), replacement=True, num_samples=100))
    assert set(drawn) == {0, 1, 2}
    assert sorted(data.SubsetRandomSampler([5, 8, 2])) == [2, 5, 8]
    batches = data.BatchSampler(data.SequentialSampler(range(5)), 2, False)
    assert list(batches) == [[0, 1], [2, 3], [4]] and len(batches) == 3
    loader = data.DataLoader(rows(), sampler=[4, 2], batch_size=1)
    assert seen(loader) == [4, 2]
    for size in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="batch_size"):
            data.BatchSampler([], size, False)  # type: ignore[arg-type]


def test_no_batching_and_own_collation() -> None:
    assert [y.item() for _, y in data.DataLoader(rows(3), batch_size=None)] == [0, 1, 2]
    assert list(data.DataLoader(Squares(3), batch_size=2, collate_fn=len)) == [2, 1]


def test_streams() -> None:
    assert [b.tolist() for b in data.DataLoader(Stream(), batch_size=3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(list(data.DataLoader(Stream(), batch_size=3, drop_last=True))) == 2
    assert list(data.DataLoader(Stream(), batch_size=None)) == list(range(7))
    with pytest.raises(ValueError, match="own order"):
        data.DataLoader(Stream(), shuffle=True)


def test_an_error_names_the_samples() -> None:
    with pytest.raises(IndexError) as caught:
        list(data.DataLoader(Squares(3), batch_sampler=[[0, 7]]))
    assert any("samples 0, 7" in note for note in caught.value.__notes__)


def test_arguments_that_exclude_each_other() -> None:
    for options in (
        {"sampler": [0], "shuffle": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
    ):
        with pytest.raises(ValueError, match="mutually exclusive"):
            data.DataLoader(rows(), **options)  # type: ignore[arg-type]


def test_an_empty_data_set() -> None:
    assert list(data.DataLoader(rows(0), batch_size=2)) == []
    with pytest.raises(ValueError, match="num_samples should be a positive integer"):
        data.DataLoader(rows(0), batch_size=2, shuffle=True)


def test_digits() -> None:
    images, labels = kiln.datasets.load_digits()
    assert tuple(images.shape) == (1797, 8, 8) and images.dtype == kiln.uint8
    assert tuple(labels.shape) == (1797,) and labels.dtype == kiln.int64
    counts = [labels.tolist().count(k) for k in range(10)]
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    pixels = images.reshape(-1).tolist()
    assert sum(pixels) == 561718 and max(pixels) == 16
    assert images[0, 2].tolist() == [0, 3, 15, 2, 0, 11, 8, 0]
