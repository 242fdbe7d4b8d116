"""Collectives beside NumPy: every one, every dtype, sizes that differ, one to eight ranks, over shared memory
and over connections.
"""

from __future__ import annotations

import random
import select
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run

import kiln
import kiln.distributed as dist

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"]
WAYS = pytest.mark.parametrize("sent", [False, True], ids=["shared", "sent"])
OPS = {
    "SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and,
    "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip


def values(dtype: str, rank: int, shape: Any) -> Any:
    """Values of a rank, which tests know without asking it."""
    rng = np.random.default_rng(rank)
    x = kiln.from_numpy(rng.integers(0, 2 if dtype == "bool" else 5, shape))
    return x.to(getattr(kiln, dtype))


def as_list(x: Any) -> Any:
    return x.tolist()


def all_of(rank: int, size: int, dtype: str, shape: Any) -> dict[str, Any]:
    """Every collective of one dtype."""
    kind = getattr(kiln, dtype)
    found: dict[str, Any] = {}
    for name in OPS:
        if name[0] == "B" and kind.is_floating_point:
            continue
        x = values(dtype, rank, shape)
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        found[f"all_reduce {name}"] = x.tolist()
    x = values(dtype, rank, shape)
    dist.reduce(x, size - 1)
    found["reduce"] = x.tolist()
    x = values(dtype, rank, shape)
    dist.broadcast(x, size // 2)
    found["broadcast"] = x.tolist()
    outs = [kiln.zeros(q + 1, 2, dtype=kind) for q in range(size)]
    dist.all_gather(outs, values(dtype, rank, (rank + 1, 2)))
    found["all_gather"] = [y.tolist() for y in outs]
    whole = kiln.zeros(size, *shape, dtype=kind)
    dist.all_gather_into_tensor(whole, values(dtype, rank, shape))
    found["all_gather_into_tensor"] = whole.tolist()
    outs = [kiln.zeros(q, dtype=kind) for q in range(size)] if rank == 0 else None
    dist.gather(values(dtype, rank, (rank,)), outs, dst=0)
    found["gather"] = outs and [y.tolist() for y in outs]
    out = kiln.zeros(rank + 3, dtype=kind)
    given = [values(dtype, 10 + q, (q + 3,)) for q in range(size)] if rank == size - 1 else None
    dist.scatter(out, given, src=size - 1)
    found["scatter"] = out.tolist()
    out = kiln.zeros(rank + 1, dtype=kind)
    dist.reduce_scatter(out, [values(dtype, size * rank + q, (q + 1,)) for q in range(size)])
    found["reduce_scatter"] = out.tolist()
    out = kiln.zeros(2, dtype=kind)
    dist.reduce_scatter_tensor(out, values(dtype, rank, (2 * size,)), dist.ReduceOp.MAX)
    found["reduce_scatter_tensor"] = out.tolist()
    outs = [kiln.zeros(2 * q + rank, dtype=kind) for q in range(size)]
    dist.all_to_all(outs, [values(dtype, size * rank + q, (2 * rank + q,)) for q in range(size)])
    found["all_to_all"] = [y.tolist() for y in outs]
    out = kiln.zeros(size, 3, dtype=kind)
    dist.all_to_all_single(out, values(dtype, rank, (size, 3)))
    found["all_to_all_single"] = out.tolist()
    dist.barrier()
    return found


def expected(rank: int, size: int, dtype: str, shape: Any) -> dict[str, Any]:
    """The same by NumPy."""

    def of(seed: int, shape: Any) -> Any:
        x = values(dtype, seed, shape)
        return (x.float() if dtype == "bfloat16" else x).numpy()

    ranks = range(size)
    rows = [of(q, shape) for q in ranks]
    found: dict[str, Any] = {}
    for name, function in OPS.items():
        if name[0] != "B" or not getattr(kiln, dtype).is_floating_point:
            found[f"all_reduce {name}"] = reduce(function, rows).astype(rows[0].dtype).tolist()
    found["reduce"] = reduce(np.add, rows).tolist() if rank == size - 1 else rows[rank].tolist()
    found["broadcast"] = rows[size // 2].tolist()
    found["all_gather"] = [of(q, (q + 1, 2)).tolist() for q in ranks]
    found["all_gather_into_tensor"] = np.stack(rows).tolist()
    found["gather"] = [of(q, (q,)).tolist() for q in ranks] if rank == 0 else None
    found["scatter"] = of(10 + rank, (rank + 3,)).tolist()
    found["reduce_scatter"] = reduce(np.add, [of(size * q + rank, (rank + 1,)) for q in ranks]).tolist()
    cut = [of(q, (2 * size,)).reshape(size, 2)[rank] for q in ranks]
    found["reduce_scatter_tensor"] = reduce(np.maximum, cut).tolist()
    found["all_to_all"] = [of(size * q + rank, (2 * q + rank,)).tolist() for q in ranks]
    found["all_to_all_single"] = np.stack([of(q, (size, 3))[rank] for q in ranks]).tolist()
    return found


def all_dtypes(rank: int, size: int) -> dict[str, Any]:
    return {dtype: all_of(rank, size, dtype, (3, 2)) for dtype in DTYPES}


@WAYS
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_collective_and_dtype(size: int, sent: bool, tmp_path: Path) -> None:
    for rank, found in enumerate(run(all_dtypes, size, tmp_path, sent=sent)):
        for dtype in DTYPES:
            assert found[dtype] == expected(rank, size, dtype, (3, 2)), dtype


def lengths(room: int, size: int) -> list[int]:
    """Around the borders of pieces."""
    return [0, 1, room - 1, room, room + 1, size * room, size * room + 1, 2 * size * room - 3]


def of_lengths(rank: int, size: int) -> list[Any]:
    """Sums and copies of tensors around the borders; of random numbers, whose order of sums shows."""
    group = dist.group.WORLD
    assert group is not None
    board = group._board
    board.room = 4096  # of the pieces' room, a part: borders come soon
    found = []
    for n in lengths(1024, size):
        x = noise(rank, n)
        dist.all_reduce(x)
        y = noise(rank, n)
        dist.reduce(y, 0)
        z = noise(rank, n)
        dist.broadcast(z, size - 1)
        outs = [kiln.zeros(n + 7 * q) for q in range(size)]
        dist.all_gather(outs, noise(rank, n + 7 * rank))
        out = kiln.zeros(n + rank)
        dist.reduce_scatter(out, [noise(size * rank + q, n + q) for q in range(size)])
        found.append([v.numpy().tobytes() for v in (x, y, z, *outs, out)])
    return found


def noise(seed: int, n: int) -> Any:
    rng = np.random.default_rng(seed)
    return kiln.from_numpy((rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(np.float32))


@WAYS
@pytest.mark.parametrize("size", [2, 3, 5])
def test_sums_are_those_of_the_ranks_in_order(size: int, sent: bool, tmp_path: Path) -> None:
    """Bit for bit: ((x0 + x1) + x2) + ..., however a tensor is cut into pieces."""

    def added(parts: list[Any]) -> Any:
        return reduce(np.add, [x.numpy() for x in parts]).tobytes()

    ranks = range(size)
    for rank, found in enumerate(run(of_lengths, size, tmp_path, sent=sent)):
        for n, row in zip(lengths(1024, size), found):
            total = added([noise(q, n) for q in ranks])
            assert row[0] == total
            assert row[1] == (total if rank == 0 else noise(rank, n).numpy().tobytes())
            assert row[2] == noise(size - 1, n).numpy().tobytes()
            assert row[3:-1] == [noise(q, n + 7 * q).numpy().tobytes() for q in ranks]
            assert row[-1] == added([noise(size * q + rank, n + rank) for q in ranks])


def mixed(rank: int, size: int, seed: int, delays: bool) -> list[Any]:
    """A random program of calls, some waited for later, on tensors of any layout; with delays at random."""
    rng, own = random.Random(seed), random.Random(1000 * seed + rank)
    found, waiting = [], []
    for _ in range(40):
        if delays and own.random() < 0.3:
            select.select([], [], [], own.random() / 200)
        n, kind, later = rng.choice([1, 5, 3000]), rng.randrange(4), rng.random() < 0.5
        layout, root = rng.randrange(3), rng.randrange(size)
        whole = noise(rank + 17 * len(found), 2 * n).view(n, 2)
        x = (whole.t(), whole[:, 0], whole)[layout]
        if kind == 0:
            work = dist.all_reduce(x, async_op=later)
        elif kind == 1:
            work = dist.broadcast(x, root, async_op=later)
        elif kind == 2:
            work = dist.reduce(x, root, dist.ReduceOp.MAX, async_op=later)
        else:
            work = dist.all_to_all_single(kiln.zeros(size), kiln.ones(size) * rank, async_op=later)
        found.append(x)
        if work is not None:
            waiting.append(work)
        if rng.random() < 0.3:
            for work in waiting:
                assert work.wait()
            waiting.clear()
    for work in waiting:
        work.wait()
    return [x.tolist() for x in found]


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_give_the_same_with_delays(seed: int, tmp_path: Path) -> None:
    assert run(mixed, 3, tmp_path, seed, False) == run(mixed, 3, tmp_path, seed, True)


def recorded(rank: int, size: int) -> list[Any]:
    """In recorded regions, what was put off before is done before, what comes behind sees the sums."""
    step = kiln.compile(lambda x: (x * 2, dist.all_reduce(x), x + 1)[::2])
    found = []
    for _ in range(4):
        x = kiln.full((5,), float(rank + 1))
        found.append([y.tolist() for y in step(x)])
    return found


def test_in_recorded_regions(tmp_path: Path) -> None:
    for rank, found in enumerate(run(recorded, 2, tmp_path)):
        assert found == [[[2.0 * (rank + 1)] * 5, [4.0] * 5]] * 4


def averaged(rank: int, size: int) -> list[Any]:
    x = kiln.tensor([1.0, 2.0]) * (rank + 1)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    many = [kiln.ones(2), kiln.ones(3, 1) * rank]
    dist.all_reduce_coalesced(many)
    w = kiln.ones(2, requires_grad=True)
    before = w._version
    dist.all_reduce(w)
    return [x.tolist(), [y.tolist() for y in many], w.tolist(), w.requires_grad, w._version > before]


def test_means_lists_and_leaves(tmp_path: Path) -> None:
    for found in run(averaged, 3, tmp_path):
        assert found == [[2.0, 4.0], [[3.0, 3.0], [[3.0], [3.0], [3.0]]], [3.0, 3.0], True, True]
