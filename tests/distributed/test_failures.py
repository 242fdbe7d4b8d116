"""What goes wrong between ranks is an error on every rank, soon, and names the rank."""

from __future__ import annotations

import os
import signal
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ranks import Gone, run

import kiln
import kiln.distributed as dist

WAYS = pytest.mark.parametrize("sent", [False, True], ids=["shared", "sent"])


def said(call: Any) -> str:
    """What a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


DIFFERENT = {
    "sizes": lambda odd: dist.all_reduce(kiln.zeros(3 + odd)),
    "dtypes": lambda odd: dist.all_reduce(kiln.zeros(3, dtype=kiln.int32 if odd else kiln.float32)),
    "functions": lambda odd: dist.broadcast(kiln.zeros(3), 0) if odd else dist.all_reduce(kiln.zeros(3)),
    "operations": lambda odd: dist.all_reduce(kiln.zeros(3), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM),
    "sources": lambda odd: dist.broadcast(kiln.zeros(3), int(odd)),
}


def differing(rank: int, size: int) -> list[Any]:
    found = [said(lambda call=call: call(rank == 1)) for call in DIFFERENT.values()]
    x = kiln.ones(2)
    dist.all_reduce(x)  # the group is as good as before
    return [*found, x.tolist()]


@WAYS
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_do_different_things(size: int, sent: bool, tmp_path: Path) -> None:
    for *found, x in run(differing, size, tmp_path, sent=sent):
        assert x == [float(size)] * 2
        for text in found:
            assert text.startswith("Mismatch: Detected mismatch between collectives on ranks: rank 0: call")
            assert "rank 1: call" in text and text.count("rank 0: call") == 1


def uneven(rank: int, size: int) -> str:
    n = 2 if rank == 1 else 1
    return said(
        lambda: dist.all_gather([kiln.zeros(1 + (q == rank == 1)) for q in range(size)], kiln.ones(n))
    )


@WAYS
def test_sizes_that_were_not_told(sent: bool, tmp_path: Path) -> None:
    """Every rank is told who gives what nobody expects."""
    found = run(uneven, 3, tmp_path, sent=sent)
    assert any("gives 8 bytes" in text and "rank 1" in text for text in found)
    assert all(text.startswith("DistBackendError") for text in found)


def killed(rank: int, size: int, victim: int, at: int) -> list[str]:
    x = kiln.ones(300_000)
    for step in range(50):
        if rank == victim and step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        text = said(lambda: dist.all_reduce(x))
        if text != "nothing":
            return [text, said(lambda: dist.all_reduce(x)), said(dist.destroy_process_group)]
    return ["nothing"]


@WAYS
@pytest.mark.parametrize(("size", "victim", "at"), [(2, 0, 0), (2, 1, 7), (4, 2, 3), (4, 0, 11)])
def test_a_rank_that_dies(size: int, victim: int, at: int, sent: bool, tmp_path: Path) -> None:
    found = run(killed, size, tmp_path, victim, at, sent=sent)
    for rank, texts in enumerate(found):
        if rank == victim:
            assert isinstance(texts, Gone) and texts.code == -signal.SIGKILL
        else:
            first, second, last = texts
            assert first.startswith("DistBackendError: all_reduce") and f"rank {victim} is gone" in first
            assert "of no use any more" in second and last == "nothing"


def late(rank: int, size: int) -> str:
    if rank == 1:
        group = dist.group.WORLD
        assert group is not None
        return said(lambda: dist.recv(kiln.zeros(1), 0))  # until rank 0 gives up
    return said(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.2)))


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    found = run(late, 3, tmp_path)
    assert found[0] == "DistBackendError: monitored_barrier: rank 1 did not come within 0.2 s"
    assert "rank 1 did not come within 0.2 s" in found[2] and "DistBackendError" in found[1]


def alone(rank: int, size: int, path: str) -> str:
    dist.destroy_process_group()
    store = dist.FileStore(path, 2)
    return said(lambda: dist.init_process_group(
        "gloo", store=store, rank=0, world_size=2, timeout=timedelta(seconds=0.2)
    ))  # fmt: skip


def test_ranks_that_never_come(tmp_path: Path) -> None:
    (text,) = run(alone, 1, tmp_path, str(tmp_path / "lonely"))
    assert text.startswith("DistBackendError: init_process_group: ranks [1] did not come within 0.2 s")


def forked(rank: int, size: int, hold: tuple[int, int]) -> list[Any]:
    """A child has none of the group: neither may it use it, nor keeps it a dead rank alive."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.close(hold[1])
        os.write(writer, said(lambda: dist.all_reduce(kiln.ones(1))).encode())
        if rank == 1:
            os.read(hold[0], 1)  # until the test is over
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 4096).decode()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    found = [text, said(lambda: dist.all_reduce(kiln.ones(1)))]
    os.waitpid(child, 0)
    return found


def test_a_process_that_was_forked(tmp_path: Path) -> None:
    hold = os.pipe()
    first, second = run(forked, 2, tmp_path, hold)
    for end in hold:
        os.close(end)
    assert "that of the process this one was forked from" in first[0]
    assert "rank 1 is gone" in first[1]
    assert isinstance(second, Gone)


def interrupted(rank: int, size: int) -> str:
    if rank == 1:
        group = dist.group.WORLD
        assert group is not None

        def interrupt() -> None:
            while not group._calls:  # until it is in the call
                pass
            os.kill(os.getpid(), signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt).start()
        try:
            dist.all_reduce(kiln.ones(3))
        except KeyboardInterrupt:
            return said(lambda: dist.all_reduce(kiln.ones(3)))
        return "went on"
    return said(lambda: dist.recv(kiln.ones(3), 1))


def test_an_interrupt_in_a_call(tmp_path: Path) -> None:
    """Whoever is interrupted leaves the group, which others see."""
    other, own = run(interrupted, 2, tmp_path)
    assert "of no use any more" in own and "KeyboardInterrupt" in own
    assert other.startswith("DistBackendError")


def test_strangers_are_dropped(tmp_path: Path) -> None:
    """Whoever connects without the group's secret gets nothing and harms nothing."""
    from kiln.distributed import links

    door = links._Door("")
    deadline = links.Deadline(20.0)
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * links._HELLO.size, os.urandom(7)):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(f"\0{door.address['unix']}")
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        came = door.accept(deadline)
        assert came is not None and links._greeted(came, b"s" * 16, deadline) == (-1, 0)
        came.close()
        stranger.close()
    door.close()


MISUSES = {
    "a second group": (lambda: dist.init_process_group("gloo"), ValueError, "twice"),
    "no tensor": (lambda: dist.all_reduce([1.0]), TypeError, "Expected parameter `tensor`"),
    "no list": (lambda: dist.all_gather(kiln.ones(1), kiln.ones(1)), TypeError, "parameter `tensor_list`"),
    "too few": (lambda: dist.all_gather([], kiln.ones(1)), ValueError, "0 tensors for a group of 1"),
    "two dtypes": (
        lambda: dist.all_gather([kiln.ones(1)], kiln.ones(1).int()), ValueError, "different dtypes"
    ),
    "no rank": (lambda: dist.broadcast(kiln.ones(1), 3), ValueError, "Global rank 3 is not part of group"),
    "two sources": (lambda: dist.broadcast(kiln.ones(1), 0, group_src=0), ValueError, "Can't specify both"),
    "bits of floats": (lambda: dist.all_reduce(kiln.ones(1), dist.ReduceOp.BXOR), RuntimeError, "no bits"),
    "means of ints": (
        lambda: dist.all_reduce(kiln.ones(1).int(), dist.ReduceOp.AVG), RuntimeError, "only floats"
    ),
    "no operation": (lambda: dist.all_reduce(kiln.ones(1), "sum"), TypeError, "expected a ReduceOp"),
    "to itself": (lambda: dist.send(kiln.ones(1), 0), ValueError, "should not be the same as the rank"),
    "splits": (
        lambda: dist.all_to_all_single(kiln.ones(3), kiln.ones(3), [2], [3]), RuntimeError, "Split sizes"
    ),
    "no such backend": (lambda: dist.new_group(backend="nccl"), RuntimeError, "NCCL built in"),
    "no such ranks": (lambda: dist.new_group([4]), ValueError, "within the world_size"),
    "no group": (lambda: dist.all_reduce(kiln.ones(1), group="all"), TypeError, "expected a group"),
}  # fmt: skip


def misused(rank: int, size: int) -> list[tuple[str, str]]:
    found = []
    for call, kind, text in MISUSES.values():
        try:
            call()
            found.append(("nothing", ""))
        except kind as error:
            found.append((type(error).__name__, "" if text in str(error) else str(error)))
    return found


def test_misuses(tmp_path: Path) -> None:
    (found,) = run(misused, 1, tmp_path)
    assert found == [(kind.__name__, "") for _, kind, _ in MISUSES.values()]


@pytest.mark.parametrize(
    "name", ["all_reduce", "barrier", "get_rank", "new_group", "send", "destroy_process_group"]
)
def test_without_a_group(name: str) -> None:
    args = {"all_reduce": (kiln.ones(1),), "send": (kiln.ones(1), 0)}.get(name, ())
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        getattr(dist, name)(*args)
