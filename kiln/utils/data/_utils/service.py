"""A worker: a process that makes the batches it is asked for."""

from __future__ import annotations

import os
import random
import select
import signal
from typing import Any, NamedTuple

from kiln import _core, ops
from kiln._utils import ExceptionWrapper
from kiln.utils.data._utils import worker
from kiln.utils.data._utils.channel import Channel
from kiln.utils.data._utils.worker import MP_STATUS_CHECK_INTERVAL, WorkerInfo


class _IterableDatasetStopIteration(NamedTuple):
    """A worker's word that its stream is over."""

    worker_id: int


# ---- the process ----


class Work(NamedTuple):
    """What a worker is given: all of it goes to its process once."""

    fetcher: Any  # the class
    streams: bool  # whether the data set is a stream
    dataset: Any
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    base_seed: int
    init_fn: Any
    worker_id: int
    num_workers: int

    def begun(self) -> Any:
        """A fetcher at the data set's begin."""
        return self.fetcher(self.dataset, self.auto_collation, self.collate_fn, self.drop_last)


def seed_all(base_seed: int, worker_id: int) -> int:
    """Seeds kiln, Python and NumPy by the loader's seed and the worker's number; returns the sum of both."""
    import numpy.random

    seed = base_seed + worker_id
    random.seed(seed)
    ops.manual_seed(seed)
    numpy.random.seed(worker._generate_state(base_seed, worker_id))
    return seed


def run(end: Any, work: Work) -> None:
    """The worker's program, until the loader closes its end or is gone."""
    channel = Channel(end)
    try:
        try:
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a program in the background
                signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
        except ValueError:  # not the main thread of its process
            pass
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        _core.set_num_threads(1)
        seed = seed_all(work.base_seed, work.worker_id)
        worker._worker_info = WorkerInfo(work.worker_id, work.num_workers, seed, work.dataset)
        worker._channel = channel
        _Service(channel, work).run()
    except (EOFError, KeyboardInterrupt):  # the loader's process has ended, or is interrupted itself
        pass


class _Service:
    """The loader's tasks one after the other: (epoch, number, indices) in, (epoch, number, batch) out."""

    def __init__(self, channel: Channel, work: Work) -> None:
        self.channel, self.work = channel, work
        self.where = f"in DataLoader worker process {work.worker_id}"
        self.parent = os.getppid()
        self.poll = select.poll()
        self.epoch = 0
        self.fetcher: Any = None
        self.failed: ExceptionWrapper | None = None  # what kept an epoch from its begin

    def run(self) -> None:
        """Until the loader closes its end: EOFError."""
        try:
            if self.work.init_fn is not None:
                self.work.init_fn(self.work.worker_id)
            self.fetcher = self.work.begun()
        except Exception as error:
            self.failed = ExceptionWrapper((type(error), error, error.__traceback__), self.where)
        while True:
            epoch, number, index = self._task()
            try:
                found = self._found(epoch, index)
            except Exception as error:
                found = ExceptionWrapper((type(error), error, error.__traceback__), self.where)
            if found is not None:
                self._answer(number, found[0] if isinstance(found, tuple) else found)
            del found, index

    def _found(self, epoch: int, index: Any) -> Any:
        """The batch, in a tuple; the end of the stream, or why there is none; None for what nobody awaits."""
        if epoch != self.epoch:
            self.epoch, self.failed = epoch, None
            self.fetcher = self.work.begun()
        if self.failed is not None:
            return self.failed
        if self.fetcher is None:
            return None
        try:
            return (self.fetcher.fetch(index),)
        except StopIteration:
            if not self.work.streams:
                raise
            self.fetcher = None
            return (_IterableDatasetStopIteration(self.work.worker_id),)

    def _task(self) -> Any:
        while (task := self.channel.receive()) is None:
            self._wait(select.POLLIN)
        return task[0]

    def _answer(self, number: int, found: Any) -> None:
        """Sends what was found, or why it cannot be: as a RuntimeError where its type cannot be pickled."""
        try:
            self.channel.send((self.epoch, number, found))
        except EOFError:
            raise
        except Exception as error:
            wrapped = (
                found
                if isinstance(found, ExceptionWrapper)
                else ExceptionWrapper((type(error), error, error.__traceback__), self.where)
            )
            if wrapped is found or not _is_builtin(wrapped.exc_type):
                wrapped.exc_type = RuntimeError
            self.channel.send((self.epoch, number, wrapped))
        while self.channel.waiting:
            self._wait(select.POLLOUT)
            self.channel.flush()

    def _wait(self, event: int) -> None:
        """Until the socket is ready. EOFError where the loader's process is gone."""
        self.poll.register(self.channel.socket, event)
        if not self.poll.poll(1000 * MP_STATUS_CHECK_INTERVAL) and os.getppid() != self.parent:
            raise EOFError("the loader's process has ended")


def _is_builtin(kind: type) -> bool:
    return kind.__module__ in ("builtins", "_pickle")
