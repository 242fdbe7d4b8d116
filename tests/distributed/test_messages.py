"""Messages from rank to rank, objects, and groups of some of the ranks."""

from __future__ import annotations

import collections
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run

import kiln
import kiln.distributed as dist

LENGTHS = [0, 1, 1000, 8192, 8193, 300_000]  # in floats: short messages, long ones


def around(rank: int, size: int) -> list[bool]:
    """Each rank sends to the next, all at once, several tags of several lengths out of order."""
    to, of = (rank + 1) % size, (rank - 1) % size
    given = [kiln.arange(float(n)) + 10 * rank for n in LENGTHS]
    works = [dist.isend(x, to, tag=k) for k, x in enumerate(given)]
    outs = [kiln.zeros(n) for n in LENGTHS]
    for k in reversed(range(len(LENGTHS))):
        works.append(dist.irecv(outs[k], of, tag=k))
    for work in works:
        work.wait()
    return [kiln.equal(y, kiln.arange(float(n)) + 10 * of) for n, y in zip(LENGTHS, outs)]


@pytest.mark.parametrize("size", [2, 5])
def test_around_a_ring(size: int, tmp_path: Path) -> None:
    for found in run(around, size, tmp_path):
        assert all(found)


def from_anyone(rank: int, size: int) -> Any:
    if rank:
        for n in range(3):
            dist.send(kiln.tensor([rank, n]), 0)
        return None
    came = collections.defaultdict(list)
    for _ in range(3 * (size - 1)):
        x = kiln.zeros(2, dtype=kiln.int64)
        sender = dist.recv(x)
        assert x[0].item() == sender
        came[sender].append(x[1].item())
    return dict(came)


def test_from_anyone_in_the_order_of_each(tmp_path: Path) -> None:
    found = run(from_anyone, 4, tmp_path)
    assert found[0] == {1: [0, 1, 2], 2: [0, 1, 2], 3: [0, 1, 2]}


def parts_of_tensors(rank: int, size: int) -> Any:
    """What is sent or received need not lie side by side."""
    x = kiln.arange(12.0).view(3, 4)
    if rank == 0:
        dist.send(x.t()[1], 1)
        dist.send(x[:, ::2].bfloat16(), 1)
        return None
    y, z = kiln.zeros(3, 2), kiln.zeros(2, 3, dtype=kiln.bfloat16)
    dist.recv(y[:, 1], 0)
    dist.recv(z.t(), 0)
    return y.tolist(), z.tolist()


def test_parts_of_tensors(tmp_path: Path) -> None:
    assert run(parts_of_tensors, 2, tmp_path)[1] == (
        [[0.0, 1.0], [0.0, 5.0], [0.0, 9.0]],
        [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]],
    )


def unfit(rank: int, size: int) -> Any:
    found: list[Any] = []
    for n in (3, 100_000):
        if rank == 0:
            for _ in range(2):
                try:
                    dist.send(kiln.ones(n), 1)
                    found.append("sent")
                except RuntimeError as error:
                    found.append(str(error))
        else:
            for bad in (kiln.zeros(n + 1), kiln.zeros(n, dtype=kiln.int32)):
                with pytest.raises(
                    RuntimeError, match=r"recv: rank 0 of the group sent \d+ bytes of float32"
                ):
                    dist.recv(bad, 0)
        dist.barrier()
        if rank == 0:
            dist.send(kiln.ones(n), 1)
        else:
            y = kiln.zeros(n)
            dist.recv(y, 0)
            found.append(y.sum().item())
    return found


def test_messages_that_do_not_fit(tmp_path: Path) -> None:
    """The receiver is told what came, and who sent a long one too; the next is received as if there had been
    none.
    """
    sender, receiver = run(unfit, 2, tmp_path)
    assert receiver == [3.0, 100_000.0]
    assert sender[:2] == ["sent", "sent"]
    assert all("rank 1 of the group expected another size or dtype" in text for text in sender[2:])


def abandoned(rank: int, size: int) -> Any:
    """Receives that nobody waits for any more: a timeout, a group that goes."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.2))
    if rank == 0:
        x, y = kiln.zeros(2), kiln.zeros(2)
        with pytest.raises(RuntimeError, match="not done within"):
            dist.recv(x, 1, group)
        dist.barrier()
        dist.recv(y, 1, group)
        waits = dist.irecv(kiln.zeros(2), 1, group)
        assert waits is not None
        dist.destroy_process_group(group)
        with pytest.raises(RuntimeError, match="gone|destroyed"):
            waits.wait()
        return x.tolist(), y.tolist()
    dist.barrier()
    dist.send(kiln.ones(2), 0, group)
    dist.destroy_process_group(group)
    return None


def test_receives_that_were_given_up(tmp_path: Path) -> None:
    assert run(abandoned, 2, tmp_path)[0] == ([0.0, 0.0], [1.0, 1.0])


def inference(rank: int, size: int) -> Any:
    """Tensors of inference mode are written as others are."""
    with kiln.inference_mode():
        x, y = kiln.ones(2, 2).t(), kiln.zeros(2, 2)
    dist.all_reduce(x)
    if rank == 0:
        dist.send(kiln.ones(2), 1)
        return x.tolist()
    dist.recv(y[:, 1], 0)
    return y.tolist()


def test_tensors_of_inference_mode(tmp_path: Path) -> None:
    assert run(inference, 2, tmp_path) == [[[2.0, 2.0], [2.0, 2.0]], [[0.0, 1.0], [0.0, 1.0]]]


def in_a_batch(rank: int, size: int) -> Any:
    x, y = kiln.full((4,), float(rank)), kiln.zeros(4)
    ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y.tolist()


def test_a_batch(tmp_path: Path) -> None:
    assert run(in_a_batch, 2, tmp_path) == [[1.0] * 4, [0.0] * 4]


class Secret:
    """A class that receivers do not allow."""


def objects(rank: int, size: int) -> Any:
    own = {"rank": rank, "rows": [kiln.ones(rank), (None, "é" * rank)], "of": kiln.int64}
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"a": np.arange(rank), "b": np.float32(rank), "t": timedelta(1)})
    assert [(x["a"].tolist(), x["b"], x["t"].days) for x in everybody] == [
        (list(range(q)), q, 1) for q in range(size)
    ]
    dist.all_gather_object(everybody, own)
    names = [x["rank"] for x in everybody] + [x["rows"][1][1] for x in everybody]
    at_last: list[Any] | None = [None] * size if rank == size - 1 else None
    dist.gather_object(own["rows"], at_last, dst=size - 1)
    told = [1.5, {"a": kiln.arange(3)}] if rank == 1 else [None, None]
    dist.broadcast_object_list(told, src=1)
    share: list[Any] = [None]
    dist.scatter_object_list(share, [f"for {q}" for q in range(size)] if rank == 0 else None)
    if rank == 0:
        dist.send_object_list([own, 3], 1)
        sent: list[Any] = [None, None]
    else:
        sent = [None, None]
        if rank == 1:
            assert dist.recv_object_list(sent) == 0
    for bad in (Secret(), np.array([Secret()])):
        with pytest.raises(Exception, match="Secret|ObjectDType"):
            dist.all_gather_object(everybody, bad)
    return names, at_last and [len(x[0]) for x in at_last], told[0], told[1]["a"].tolist(), share, sent[1]


def test_objects(tmp_path: Path) -> None:
    for rank, found in enumerate(run(objects, 3, tmp_path)):
        assert found[0] == [0, 1, 2, "", "é", "éé"]
        assert found[1] == ([0, 1, 2] if rank == 2 else None)
        assert found[2:] == (1.5, [0, 1, 2], [f"for {rank}"], 3 if rank == 1 else None)


def groups(rank: int, size: int) -> Any:
    odd = dist.new_group([1, 3])
    pairs, every = dist.new_subgroups(2)
    x, y = kiln.tensor([float(rank)]), kiln.tensor([float(rank)])
    if rank % 2:
        dist.all_reduce(x, group=odd)
    dist.all_reduce(y, group=pairs)
    seen = [
        dist.get_rank(odd), dist.get_world_size(odd), dist.get_rank(pairs), len(every),
        dist.get_process_group_ranks(pairs), dist.get_global_rank(pairs, 1), dist.get_backend(),
        odd is dist.GroupMember.NON_GROUP_MEMBER,
    ]  # fmt: skip
    z = kiln.tensor([float(rank)])
    dist.broadcast(z, dist.get_global_rank(pairs, 1), group=pairs)
    some = dist.new_group([0, 2], use_local_synchronization=True) if rank in (0, 2) else None
    if some is not None:
        dist.barrier(some)
    dist.destroy_process_group(pairs)
    with pytest.raises(ValueError, match="destroyed"):
        dist.destroy_process_group(pairs)
    dist.barrier()
    dist.destroy_process_group()
    return [x.item(), y.item(), z.item(), *seen, dist.is_initialized()]


def test_groups_of_some_ranks(tmp_path: Path) -> None:
    for rank, found in enumerate(run(groups, 4, tmp_path)):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert found[:3] == [4.0 if rank % 2 else rank, float(sum(pair)), float(pair[1])]
        outside = rank % 2 == 0
        assert found[3:] == [
            -1 if outside else rank // 2, -1 if outside else 2, rank % 2, 2, pair, pair[1], "gloo", outside,
            False,
        ]  # fmt: skip


def outside(rank: int, size: int) -> Any:
    only = dist.new_group([0])
    if rank == 0:
        return None
    with pytest.warns(UserWarning, match="does not belong to the given group"):
        return dist.all_reduce(kiln.ones(1), group=only)


def test_outside_a_group(tmp_path: Path) -> None:
    assert run(outside, 2, tmp_path) == [None, None]


def followed(rank: int, size: int) -> Any:
    """What follows a call may make more calls of the group and wait for them."""

    def more(future: Any) -> Any:
        again = dist.all_reduce(future.value()[0], async_op=True)
        assert again is not None
        again.wait()
        return again.result()[0]

    work = dist.all_reduce(kiln.ones(3), async_op=True)
    assert work is not None
    return work.get_future().then(more).wait().tolist()


def test_calls_that_follow_calls(tmp_path: Path) -> None:
    assert run(followed, 2, tmp_path) == [[4.0] * 3] * 2


def again(rank: int, size: int) -> Any:
    """Groups come and go: the same names in one store, descriptors and threads that go with them."""
    store = dist.group.WORLD.store.underlying_store  # type: ignore[union-attr]
    for turn in range(3):
        dist.destroy_process_group()
        assert dist.group.WORLD is None
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        assert dist.GroupMember.WORLD is dist.group.WORLD is not None
        for _ in range(2):
            own = dist.new_group([0, 1], use_local_synchronization=True, timeout=timedelta(days=400))
            x = kiln.ones(1)
            dist.all_reduce(x, group=own)
            dist.destroy_process_group(own)
        if turn == 0:
            few = len(os.listdir("/proc/self/fd"))
    return x.item(), len(os.listdir("/proc/self/fd")) - few, store.timeout.total_seconds()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors by Linux' /proc")
def test_groups_come_and_go(tmp_path: Path) -> None:
    for value, more, seconds in run(again, 2, tmp_path):
        assert value == 2.0 and more <= 0 and seconds == 300.0


def handles(rank: int, size: int) -> Any:
    x = kiln.ones(1000)
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda f: f.value()[0] * 2)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is x
    return doubled.wait().sum().item()


def test_handles(tmp_path: Path) -> None:
    assert run(handles, 2, tmp_path) == [4000.0, 4000.0]
