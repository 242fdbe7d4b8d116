"""Loaders with workers: batches, seeds, errors, and what becomes of processes and memory at every end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln
from kiln.utils import data
from kiln.utils.data._utils.channel import INLINE, Channel
from kiln.utils.data._utils.worker import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Images(data.Dataset[Any]):
    """Samples large enough for memory of their own."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return kiln.full((40, 40), float(index)), index


class Random(data.Dataset[Any]):
    """Numbers of three generators, and the worker that drew them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = data.get_worker_info()
        assert info is not None and info.dataset is self and info.num_workers == 2
        drawn = random.random(), float(np.random.random()), float(kiln.rand(()))
        return info.id, info.seed, *drawn


class Failing(data.Dataset[Any]):
    """What is given at index 5, by name."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            return getattr(self, self.how)()
        return index

    def value(self) -> None:
        raise ValueError("five is odd")

    def key(self) -> None:
        raise KeyError("five")

    def own(self) -> None:
        raise TwoPlaces("a", "b")

    def local(self) -> None:
        class Local(Exception):
            pass

        raise Local("here")

    def unpicklable(self) -> Any:
        return lambda: None

    def killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def gone(self) -> None:
        os._exit(3)


class TwoPlaces(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


class Part(data.IterableDataset[int]):
    """0 to 9, dealt out to the workers; all of them where `whole`."""

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        if self.whole or info is None:
            return iter(range(10))
        return iter(range(info.id, 10, info.num_workers))


def told(loader: Any) -> list[Any]:
    return [(x[:, 0, 0].tolist(), y.tolist()) for x, y in loader]


def settled() -> None:
    """No process, and nothing of a loader's memory."""
    gc.collect()
    assert multiprocessing.active_children() == []
    assert "memfd:kiln" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_epoch_is_the_same_however_many_workers(workers: int) -> None:
    def epochs(count: int) -> Any:
        kiln.manual_seed(5)
        loader = data.DataLoader(Images(), batch_size=5, shuffle=True, num_workers=count)
        return told(loader), told(loader), kiln.initial_seed(), float(kiln.rand(()))

    assert epochs(workers) == epochs(0)
    settled()


def test_seeds_of_workers() -> None:
    def drawn(seed: int) -> list[Any]:
        generator = kiln.Generator().manual_seed(seed)
        loader = data.DataLoader(Random(), batch_size=None, num_workers=2, generator=generator)
        return [tuple(sample) for sample in loader]

    first = drawn(1)
    assert first == drawn(1) != drawn(2)
    assert len({seed - worker for worker, seed, *_ in first}) == 1 and {s[0] for s in first} == {0, 1}
    for place in (2, 3, 4):  # no two samples, workers or libraries draw the same
        assert len({sample[place] for sample in first}) == 8
    assert data.get_worker_info() is None


def test_worker_init_fn_runs_in_each_worker() -> None:
    def begin(worker: int) -> None:
        info: Any = data.get_worker_info()
        info.dataset.offset = 100 * (worker + 1)

    class Offset(Images):
        offset = 0

        def __getitem__(self, index: int) -> Any:
            return self.offset + index

    loader = data.DataLoader(Offset(), batch_size=6, num_workers=2, worker_init_fn=begin)
    assert [y.tolist() for y in loader] == [[100, 101, 102, 103, 104, 105], [206, 207, 208, 209, 210, 211]]


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("value", ValueError, "five is odd"),
        ("key", KeyError, "KeyError: 'five'"),
        ("own", RuntimeError, "Caught TwoPlaces in"),
        ("local", RuntimeError, "here"),
        ("unpicklable", Exception, "pickle"),
    ],
)
def test_an_exception_of_a_worker(how: str, kind: type[Exception], words: str) -> None:
    """It has its type and its traceback, and the batches after it still come."""
    loader = data.DataLoader(Failing(how), batch_size=None, num_workers=2)
    batches, seen = iter(loader), []
    for _ in range(9):
        try:
            seen.append(next(batches))
        except StopIteration:
            break
        except Exception as error:
            assert isinstance(error, kind)
            text = str(error)
            assert text.startswith("Caught ") and words in text
            assert "in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n" in text
            assert how == "unpicklable" or f"in {how}\n" in text
            seen.append("failed")
    assert seen == [0, 1, 2, 3, 4, "failed", 6, 7]
    del batches
    settled()


def test_an_exception_names_the_samples_and_begins_may_fail() -> None:
    with pytest.raises(ValueError, match="while DataLoader made the batch of samples 4, 5"):
        list(data.DataLoader(Failing("value"), batch_size=2, num_workers=1))

    def begin(worker: int) -> None:
        raise OSError("no disk")

    batches = iter(data.DataLoader(Images(), num_workers=1, worker_init_fn=begin))
    for _ in range(2):
        with pytest.raises(OSError, match="Caught OSError in DataLoader worker process 0"):
            next(batches)
    del batches
    settled()


class Opened:
    """What arrives by a function that fails, or is interrupted."""

    def __reduce__(self) -> Any:
        return opened, ()


def opened() -> None:
    raise KeyboardInterrupt if data.get_worker_info() is None else AssertionError


def test_a_batch_that_cannot_be_received_ends_the_iteration() -> None:
    """What a worker has said once does not come again: nobody waits for it."""
    loader = data.DataLoader([Opened(), Opened()], batch_size=None, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(RuntimeError, match="a batch could not be received; begin another iteration"):
        next(batches)
    assert loader is not None and iter(loader) is not batches
    del batches, loader
    settled()


@pytest.mark.parametrize(
    ("how", "words"), [("killed", "is killed by signal: Killed"), ("gone", "unexpectedly with exit code 3")]
)
def test_a_worker_that_dies_is_noticed(how: str, words: str) -> None:
    batches = iter(data.DataLoader(Failing(how), batch_size=None, num_workers=2))
    (pid,) = [process.pid for process in batches._workers[1:]]  # type: ignore[attr-defined]
    seen: list[Any] = []
    with pytest.raises(
        RuntimeError, match=rf"DataLoader worker \(pid\(s\) {pid}\) exited unexpectedly"
    ) as caught:
        for batch in batches:
            seen.append(batch)
    assert seen == [0, 1, 2, 3, 4] and words in str(caught.value)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(batches)
    del batches, caught
    settled()


def test_persistent_workers_after_one_died() -> None:
    """The next epoch has new ones; before, they are the same processes."""
    loader: Any = data.DataLoader(Images(), batch_size=4, num_workers=2, persistent_workers=True)
    first = told(loader)
    pids = [process.pid for process in loader._iterator._workers]
    assert told(loader) == first and [p.pid for p in loader._iterator._workers] == pids
    assert iter(loader) is iter(loader)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        told(loader)
    assert told(loader) == first
    del loader
    settled()


def test_time_is_limited() -> None:
    go = multiprocessing.Event()

    class Waiting(Images):
        def __getitem__(self, index: int) -> Any:
            return index if index < 2 else go.wait() and index

    batches = iter(data.DataLoader(Waiting(), batch_size=2, num_workers=1, timeout=0.2))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="DataLoader timed out after 0.2 seconds"):
        next(batches)
    go.set()
    assert next(batches).tolist() == [2, 3]
    del batches
    settled()
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):
        iter(data.DataLoader(Images(), num_workers=1, prefetch_factor=0))
    with pytest.raises(AssertionError, match="timeout"):
        next(iter(data.DataLoader(Images(), timeout=1)))


def test_an_epoch_that_is_left_leaves_nothing() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for persistent in (False, True):
        loader = data.DataLoader(Images(), num_workers=2, persistent_workers=persistent)
        for x, _ in loader:
            kept = x
            break
        pids = [process.pid for process in multiprocessing.active_children()]
        assert len(pids) == 2 or not persistent
        del loader, x
    gc.collect()
    assert multiprocessing.active_children() == [] and not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert kept[0, 0, 0].item() == 0 and kept.is_shared()
    del kept
    settled()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_start_methods_agree() -> None:
    """A new interpreter imports the data set, and gets it and its tensors as arguments."""
    rows = data.TensorDataset(kiln.arange(24.0).reshape(6, 4), kiln.arange(6))
    found = list(data.DataLoader(rows, batch_size=3, num_workers=1, multiprocessing_context="spawn"))
    assert [[x.tolist() for x in batch] for batch in found] == [
        [x.tolist() for x in batch] for batch in data.DataLoader(rows, batch_size=3)
    ]
    with pytest.warns(UserWarning, match="Got pickle error"), pytest.raises(Exception, match="[Pp]ickle"):
        iter(data.DataLoader(rows, num_workers=1, multiprocessing_context="spawn", collate_fn=lambda x: x))
    del found, rows
    settled()


def test_workers_begin_while_kernels_are_made() -> None:
    """The compiling thread rests during the fork, and a worker makes its own kernels."""
    step = kiln.compile(lambda x: (x * 3.5 + 1).sin())
    for _ in range(3):
        step(kiln.ones(7))

    class Computed(Images):
        def __getitem__(self, index: int) -> Any:
            return step(kiln.full((7,), float(index))) + kiln.full((7,), 2.0).cosh()

    with_workers = [x.tolist() for x in data.DataLoader(Computed(), batch_size=4, num_workers=2)]
    assert with_workers == [x.tolist() for x in data.DataLoader(Computed(), batch_size=4)]


def test_compiled_steps_use_batches() -> None:
    """They read a batch where it is, and may write to it."""
    step = kiln.compile(lambda x, y: (x.mul_(2).sum() * 0.5, (x + y).sum(), x))
    loader = data.DataLoader(Images(), batch_size=4, num_workers=1, persistent_workers=True)
    for _ in range(4):
        for x, y in loader:
            before, written = x.sum().item(), x
            half, both, x = step(x, y[:, None, None])
            assert half.item() == before and both.item() == 2 * before + 1600 * y.sum().item()
            assert written.data_ptr() == x.data_ptr()


def test_streams_in_workers() -> None:
    assert [y.tolist() for y in data.DataLoader(Part(), batch_size=2, num_workers=2)] == [
        [0, 2], [1, 3], [4, 6], [5, 7], [8], [9],
    ]  # fmt: skip
    for persistent in (False, True):
        loader = data.DataLoader(Part(), batch_size=None, num_workers=3, persistent_workers=persistent)
        for _ in range(2):
            assert sorted(loader) == list(range(10))
    loader = data.DataLoader(Part(whole=True), batch_size=None, num_workers=2)
    assert len(loader) == 10
    with pytest.warns(
        UserWarning, match="Length of IterableDataset .* was reported to be 10 .*get_worker_info"
    ):
        assert len(list(loader)) == 20


class Nested(data.Dataset[Any]):
    """Sums of another loader's batches, which is begun in a worker."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        inner = data.DataLoader(Part(whole=True), batch_size=5, num_workers=self.workers)
        return [x.sum().item() for x in inner]


def test_loaders_in_each_other() -> None:
    found = [list(map(int, batch)) for batch in data.DataLoader(Nested(0), batch_size=None, num_workers=2)]
    assert found == [[10, 35], [10, 35]]
    with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
        list(data.DataLoader(Nested(1), num_workers=1))
    outer = data.DataLoader(Images(), batch_size=6, num_workers=1)
    for x, y in outer:
        for a, b in data.DataLoader(Images(), batch_size=6, num_workers=1):
            assert (a[:, 0, 0] == b).all()
        assert (x[:, 0, 0] == y).all()
    two = [iter(outer), iter(outer)]
    assert [next(it)[1].tolist() for it in (*two, *two)] == [[0, 1, 2, 3, 4, 5]] * 2 + [
        [6, 7, 8, 9, 10, 11]
    ] * 2
    del two, x, y, a, b
    settled()


def test_batches_as_they_are_there() -> None:
    go = multiprocessing.Event()

    class Slow(Images):
        def __getitem__(self, index: int) -> Any:
            return index if index else go.wait() and index

    batches = iter(data.DataLoader(Slow(), batch_size=None, num_workers=2, in_order=False))
    seen = [next(batches)]
    go.set()
    assert seen == [1] and sorted([*seen, *batches]) == list(range(12))


def test_an_iterator_of_another_process() -> None:
    """A child that inherits it may not use it, and its end is not that of the parent's workers."""
    batches = iter(data.DataLoader(Images(), batch_size=4, num_workers=2))
    next(batches)
    child = os.fork()
    if not child:
        try:
            next(batches)
        except RuntimeError as error:
            os._exit("another process" in str(error) and 7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(batches)) == 2
    del batches
    settled()


# ---- whole programs ----

PROGRAM = """
import os, signal, sys
import kiln
from kiln.utils import data

signal.signal(signal.SIGINT, signal.{interrupt})

class Endless(data.IterableDataset):
    def __iter__(self):
        while True:
            yield kiln.zeros(2000)

loader = data.DataLoader(Endless(), batch_size=2, num_workers=2, persistent_workers={persistent})
for k, batch in enumerate(loader):
    if k == 5:
        {then}
print("after")
"""


@pytest.mark.parametrize(
    ("then", "code", "errors"),
    [
        ("os.killpg(0, signal.SIGINT)", -signal.SIGINT, 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, 0),
        ("sys.exit(4)", 4, 0),
        ("break", 0, 0),
        ("signal.signal(signal.SIGTERM, lambda *_: None); break", 0, 0),
    ],
)
def test_programs_end_with_all_their_processes(then: str, code: int, errors: int) -> None:
    """By Ctrl-C, a kill, an exit in the middle of an epoch: all that write to the pipe have closed it."""
    ended, out, err = run_program(then, persistent="SIGTERM" not in then)
    assert ended == code, err
    assert err.count("Traceback") == errors == err.count("\nKeyboardInterrupt"), err
    assert out == ("after\n" if "break" in then else "")


def test_workers_ignore_interrupts_that_their_program_ignores() -> None:
    """As shells start programs in the background: Ctrl-C goes to all, and is meant for none of these."""
    then = "os.killpg(0, signal.SIGINT)\n    elif k == 20:\n        break"
    assert run_program(then, persistent=True, interrupt="SIG_IGN") == (0, "after\n", "")


def run_program(then: str, persistent: bool, interrupt: str = "default_int_handler") -> tuple[int, str, str]:
    """PROGRAM in a session of its own: its exit code and what it wrote."""
    program = PROGRAM.format(then=then, persistent=persistent, interrupt=interrupt)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


# ---- messages ----


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    a, b = (Channel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield a, b
    a.close()
    b.close()


def sent(a: Channel, b: Channel, value: Any) -> Any:
    a.send(value)
    answer = b.receive()
    assert answer is not None
    return answer[0]


def test_what_arrives(ends: tuple[Channel, Channel]) -> None:
    large = kiln.arange(6000.0).reshape(2, 3, 1000)
    tensors = [
        large, large.transpose(0, 1), large[:, 1], large.bfloat16(), large > 7, large.long(), kiln.ones(()),
        kiln.ones(3)[1:], kiln.empty(0, 3), kiln.ones(2).requires_grad_(), kiln.zeros(5000).requires_grad_(),
        large[:, :1, ::2].half(), kiln.ones(2, 8, 20, 20).contiguous(memory_format=kiln.channels_last),
    ]  # fmt: skip
    for x, y in zip(tensors, sent(*ends, tensors), strict=True):
        assert (x.dtype, x.shape, x.requires_grad) == (y.dtype, y.shape, y.requires_grad)
        assert kiln.equal(x.float(), y.float()) and y.is_leaf
        assert y.is_shared() == (x.nbytes >= SMALL)
        assert y.stride() == x.stride() or x._memory > 2 * x.nbytes
    a, b = sent(*ends, [large, large[0]])
    a[0] = 5
    assert b.sum().item() == 5 * 3000  # one storage, as before
    arrays = [np.arange(3000), np.ones((2, 2), np.float16), np.arange(9000.0).reshape(90, 100).T]
    for x, y in zip(arrays, sent(*ends, arrays), strict=True):
        assert x.dtype == y.dtype and (x == y).all() and y.flags.writeable
    weight = kiln.nn.Parameter(kiln.ones(3000))
    weight.tag = "own"  # type: ignore[attr-defined]
    got = sent(*ends, weight)
    assert type(got) is kiln.nn.Parameter and got.requires_grad and got.tag == "own" and got.is_shared()
    text = {"a": "x" * (3 * INLINE), "many": [kiln.full((3,), float(k)) for k in range(3000)]}
    found = sent(*ends, text)
    assert found["a"] == text["a"] and found["many"][2999].tolist() == [2999.0] * 3
    pages = [kiln.full((1024,), float(k)) for k in range(500)]  # more than descriptors go with a message
    assert [y[3].item() for y in sent(*ends, pages)] == list(range(500))
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf"):
        ends[0].send(kiln.ones(2, requires_grad=True) * 2)


def test_memory_is_filled_again_when_nobody_looks(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    x = kiln.zeros(5000)
    for k in range(20):
        y = sent(a, b, x + k)
        assert y[0].item() == k
        sent(b, a, None)  # what is no longer looked at is said with the next message
    assert len(a._own) == 2
    kept = [sent(a, b, x + k) for k in range(10)]
    assert [y[9].item() for y in kept] == list(range(10)) and len(a._own) >= 10
    looking, kept = kept[3][2:].numpy(), []
    sent(b, a, None)
    assert [sent(a, b, x - k)[0].item() for k in range(12)] and looking[0] == 3
    held = a.take(20000)  # as a worker that keeps a batch it has given
    first = sent(a, b, held)
    del first
    sent(b, a, None)
    numbers = {sent(a, b, x)._shared.number for _ in range(3)}
    assert held._shared.block.number not in numbers


def test_memory_that_a_fork_has_copied_is_given_up(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    y = sent(a, b, kiln.zeros(5000))
    b.forks += 1
    number = y._shared.number
    del y
    sent(b, a, None)
    assert number not in a._own and not a._free
    sent(a, b, None)
    assert number not in b._theirs


def test_messages_wait_for_room(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    for k in range(300):
        a.send(["x" * 4000, k])
    assert a.waiting
    seen = []
    while len(seen) < 300:
        if (answer := b.receive()) is not None:
            seen.append(answer[0][1])
        a.flush()
    assert seen == list(range(300)) and b.receive() is None
    a.close()
    with pytest.raises(EOFError):
        b.receive()
    with pytest.raises(EOFError):
        b.send(1)


def test_a_warning_says_that_workers_outnumber_cores() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data.DataLoader(Images(), num_workers=2 * len(os.sched_getaffinity(0)))
        assert "This DataLoader will create" in str(said[0].message) and said[0].filename == __file__
        said.clear()
        next(iter(data.DataLoader(Images(), pin_memory=True)))
        assert "'pin_memory' argument is set as true" in str(said[0].message) and said[0].filename == __file__
