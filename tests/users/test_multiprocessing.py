"""Tensors whose memory processes share, and `kiln.multiprocessing`, which sends them."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln
import kiln.multiprocessing as mp

FORK = mp.get_context("fork")


def in_child(function: Any, *args: Any) -> None:
    """Runs a function in a forked process, which must end well."""
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def through(value: Any) -> Any:
    """What another message of the same process to itself gives."""
    return pickle.loads(ForkingPickler.dumps(value))


def fill(x: Any, number: float) -> None:
    x.fill_(number)


# ---- memory ----


def test_memory_is_shared_with_processes_started_afterwards() -> None:
    x, y = kiln.zeros(3).share_memory_(), kiln.zeros(3)
    assert x.is_shared() and x[1:].is_shared() and not y.is_shared()
    in_child(fill, x, 2)
    in_child(fill, y, 2)
    assert x.tolist() == [2, 2, 2] and y.tolist() == [0, 0, 0]
    assert kiln.empty(0).share_memory_().tolist() == []


def test_all_that_look_at_the_memory_share_it() -> None:
    x = kiln.arange(6.0)
    view, array = x.view(2, 3)[1], x.numpy()
    loss = (x.requires_grad_() * x).sum()
    assert x.share_memory_() is x and x.share_memory_() is x and view.is_shared()
    in_child(kiln.no_grad()(fill), view, 7)
    assert x.tolist() == [0, 1, 2, 7, 7, 7]
    assert array.tolist() == [0, 1, 2, 3, 4, 5]  # of before: it keeps the old memory
    loss.backward()
    assert x.grad is not None and x.grad.tolist() == [0, 2, 4, 14, 14, 14]
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    y = kiln.from_numpy(frozen).share_memory_()
    y[0] = 5
    assert y.tolist() == [5, 1, 2] and frozen[0] == 0


def test_compiled_steps_write_to_it() -> None:
    model = kiln.nn.Linear(2, 1)
    model.share_memory()
    assert all(p.is_shared() for p in model.parameters())
    optimizer = kiln.optim.SGD(model.parameters(), lr=0.01)

    @kiln.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    x = kiln.ones(4, 2)
    losses = [float(step(x)) for _ in range(6)]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 6
    before = model.weight.tolist()
    in_child(step, x)
    assert model.weight.tolist() != before and model.weight.is_shared()


def descriptors() -> int:
    """How many of this process are memory to be shared."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:kiln")
        except FileNotFoundError:  # that of the listing, and of a thread that sends one
            pass
    return count


def test_memory_and_descriptors_go_with_the_last_tensor() -> None:
    gc.collect()
    assert descriptors() == 0
    x = kiln.zeros(5000).share_memory_()
    view, copy = x[7:], through(x)
    ends = time.monotonic() + 60
    while descriptors() > 1 and time.monotonic() < ends:  # the thread that has sent it
        os.sched_yield()
    assert descriptors() == 1
    del x, copy
    assert view.is_shared() and view.sum().item() == 0
    del view
    gc.collect()
    assert descriptors() == 0
    assert "memfd:kiln" not in Path("/proc/self/maps").read_text()


# ---- messages ----


def test_what_is_sent_is_the_same_memory() -> None:
    x = kiln.arange(12.0)
    whole, row, column = through([x, x.view(3, 4)[1], x.view(3, 4)[:, 2]])
    assert x.is_shared() and whole.data_ptr() == x.data_ptr()
    row.fill_(9)
    column[2] = -1
    assert x.tolist() == [0, 1, 2, 3, 9, 9, 9, 9, 8, 9, -1, 11]
    assert column.stride() == (4,) and column.storage_offset() == 2
    for value in (kiln.ones(()), kiln.empty(0, 3), kiln.ones(2, dtype=kiln.bfloat16), kiln.tensor([True])):
        got = through(value)
        assert (got.dtype, got.shape) == (value.dtype, value.shape) and kiln.equal(got, value)


def test_parameters_and_gradients() -> None:
    model = kiln.nn.Linear(2, 2)
    got = through(list(model.parameters()))
    assert [type(p) for p in got] == [kiln.nn.Parameter] * 2 and all(p.requires_grad for p in got)
    got[0].data.fill_(3)
    assert model.weight.tolist() == [[3, 3], [3, 3]]
    leaf = through(kiln.ones(2, requires_grad=True))
    assert leaf.requires_grad and leaf.is_leaf
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        through(leaf * 2)
    storage = through(leaf.untyped_storage())
    assert storage.data_ptr() == leaf.data_ptr()


def echo(inbox: Any, outbox: Any) -> None:
    x, factor = inbox.get()
    x.mul_(factor)
    outbox.put((x, x + 1))
    assert inbox.get() is None  # the sender of memory lives until it is received


def test_queues() -> None:
    inbox, outbox = FORK.Queue(), FORK.Queue()
    process = FORK.Process(target=echo, args=(inbox, outbox))
    process.start()
    x = kiln.arange(4.0)
    inbox.put((x, 3))
    back, more = outbox.get(timeout=60)
    assert back.tolist() == x.tolist() == [0, 3, 6, 9] and back.data_ptr() == x.data_ptr()
    more[0] = 5
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0 and more.tolist() == [5, 4, 7, 10]


def doubled(x: Any) -> Any:
    return x.mul_(2)


def test_pools() -> None:
    tensors = [kiln.full((3,), float(k)) for k in range(4)]
    with FORK.Pool(1) as pool:
        results = pool.map(doubled, tensors)
    assert [x[0].item() for x in results] == [x[0].item() for x in tensors] == [0, 2, 4, 6]


def train(model: Any, seed: int) -> None:
    kiln.set_num_threads(1)
    generator = kiln.Generator().manual_seed(seed)
    optimizer = kiln.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(150):
        x = kiln.rand(8, 2, generator=generator)
        optimizer.zero_grad()
        (model(x) - x @ kiln.tensor([[2.0], [-3.0]])).square().mean().backward()
        optimizer.step()


def test_processes_train_one_model_without_locks() -> None:
    kiln.manual_seed(0)
    model = kiln.nn.Linear(2, 1)
    model.share_memory()
    started = [FORK.Process(target=train, args=(model, seed)) for seed in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 0]
    assert abs(model.weight[0, 0].item() - 2) < 0.8 and abs(model.weight[0, 1].item() + 3) < 0.8


# ---- spawn ----


def wrong(index: int, how: str) -> None:
    if index:
        signal.pause()
    if how == "raises":
        raise ValueError("of the child's own")
    if how == "exits":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("raises", "ProcessRaisedException", "-- Process 0 terminated with the following error:\nTraceback"),
        ("exits", "ProcessExitedException", "process 0 terminated with exit code 3"),
        ("dies", "ProcessExitedException", "process 0 terminated with signal SIGKILL"),
    ],
)
def test_the_first_process_that_fails(
    how: str, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is raised, and the others are ended."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(getattr(mp, kind)) as caught:
        mp.start_processes(wrong, (how,), nprocs=2, start_method="fork")
    error: Any = caught.value
    assert words in str(error) and error.error_index == 0 and error.error_pid > 0
    assert how != "raises" or "ValueError: of the child's own" in str(error)
    assert how != "dies" or (error.signal_name, error.exit_code) == ("SIGKILL", -9)
    assert FORK.active_children() == []
    assert not list(tmp_path.iterdir())
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.error_index) == (str(error), 0)


SPAWNED = """
import kiln
import kiln.multiprocessing as mp

def add(index, x, model):
    x[index] += 10 * (index + 1)
    model.bias.data.add_(1)

if __name__ == "__main__":
    x, model = kiln.zeros(2), kiln.nn.Linear(1, 1)
    before = model.bias.item()
    context = mp.spawn(add, (x, model), nprocs=2, join=False)
    assert len(context.pids()) == 2
    while not context.join():
        pass
    assert x.tolist() == [10.0, 20.0] and x.is_shared() and model.bias.item() > before, (x, model.bias)
    print("done")
"""


def test_new_interpreters_share_arguments(tmp_path: Path) -> None:
    program = tmp_path / "spawned.py"
    program.write_text(SPAWNED)
    done = subprocess.run([sys.executable, "-P", str(program)], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_names_of_both_modules() -> None:
    import multiprocessing

    assert all(getattr(mp, name) is getattr(multiprocessing, name) for name in multiprocessing.__all__)
    assert mp.get_sharing_strategy() in mp.get_all_sharing_strategies()
    mp.set_sharing_strategy("file_system")
    assert mp.get_sharing_strategy() == "file_system"
    mp.set_sharing_strategy("file_descriptor")
    with pytest.raises(AssertionError, match="invalid sharing strategy 'x'"):
        mp.set_sharing_strategy("x")
    with pytest.warns(FutureWarning, match="only supports start_method=spawn"):
        mp.spawn(print, nprocs=0, start_method="fork")
