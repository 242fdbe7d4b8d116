"""An epoch whose batches workers make ahead.

The loader holds a channel to each worker (channel.py) and asks each for a few batches ahead; `poll` says
which worker has something to say. A worker that dies closes its end, and so does a loader: each reads that as
the end of the messages, at once. No thread, no lock and no handler of a signal is shared with anybody, so
that none can be left in a wrong state by a kill or a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import time
import weakref
from collections.abc import Iterable
from itertools import cycle
from multiprocessing import forkserver
from typing import Any

from kiln._utils import ExceptionWrapper
from kiln.errors import warn
from kiln.multiprocessing import reductions as reductions  # tensors on their way to workers
from kiln.utils.data._utils import service
from kiln.utils.data._utils.channel import Channel
from kiln.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from kiln.utils.data._utils.service import Work, _IterableDatasetStopIteration
from kiln.utils.data._utils.worker import MP_STATUS_CHECK_INTERVAL
from kiln.utils.data.dataloader import DataLoader, _BaseDataLoaderIter, _DatasetKind

_open: set[Channel] = set()  # the loaders' ends in this process


def _before_fork() -> None:
    for channel in tuple(_open):
        channel.forks += 1


def _after_fork_in_child() -> None:
    """A worker's loader is its parent alone: whoever is forked from that has no end of the channel."""
    for channel in _open:
        channel.close()
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _end(workers: list[Any], channels: list[Channel], pid: int) -> None:
    """Ends the workers, those that do not listen by a signal."""
    if os.getpid() != pid:
        return
    for channel in channels:
        channel.close()
        channel.forget()
        _open.discard(channel)
    _join(workers)
    for kill in ("terminate", "kill"):
        late = [process for process in workers if process.is_alive()]
        for process in late:
            getattr(process, kill)()
        _join(late)


def _join(workers: list[Any]) -> None:
    """Waits for processes, for some seconds in all."""
    until = time.monotonic() + MP_STATUS_CHECK_INTERVAL
    for process in workers:
        process.join(max(0.0, until - time.monotonic()))


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """Batches made by workers. Tasks are numbered; each is some indices, and goes to one worker."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        if not loader.prefetch_factor or loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        loader.check_worker_number_rationality()
        self._prefetch_factor = loader.prefetch_factor
        self._in_order = loader.in_order
        self._worker_init_fn = loader.worker_init_fn
        self._epoch = 0
        self._workers: list[Any] = []
        self._channels: list[Channel] = []
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._workers, self._channels, self._pid)
        self._dead: RuntimeError | None = None
        context = loader.multiprocessing_context or multiprocessing.get_context()
        try:
            for k in range(self._num_workers):
                self._start(context, k)
        except BaseException:
            self._shutdown_workers()
            raise
        self._poll = select.poll()
        self._by_descriptor = {c.socket.fileno(): k for k, c in enumerate(self._channels)}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)
        self._prime()

    def _start(self, context: Any, k: int) -> None:
        import numpy.random  # before the fork, as each worker seeds it  # noqa: F401

        streams = self._dataset_kind == _DatasetKind.Iterable
        work = Work(
            _IterableDatasetFetcher if streams else _MapDatasetFetcher,
            streams,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
            self._base_seed,
            self._worker_init_fn,
            k,
            self._num_workers,
        )
        if context.get_start_method() == "forkserver":  # which must not inherit the signals held back below
            forkserver.ensure_running()
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(own)
        _open.add(channel)
        self._channels.append(channel)
        process = context.Process(target=service.run, args=(theirs, work), daemon=True)
        # Ctrl-C comes when the worker has begun: to both of them, or to none
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
            self._workers.append(process)
        except (TypeError, AttributeError, ImportError) as error:
            _warn_of_pickle(error)
            raise
        except Exception as error:
            if type(error).__name__ == "PicklingError":
                _warn_of_pickle(error)
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    # ---- tasks ----

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._epoch += 1
        self._prime()

    def _prime(self) -> None:
        """The first tasks of an epoch."""
        self._send_idx = 0  # the next task to be sent
        self._rcvd_idx = 0  # the next to be given
        self._task_info: dict[
            int, tuple[Any, ...]
        ] = {}  # task -> (worker,), or (worker, batch) if it has come
        self._workers_status = [True] * self._num_workers  # whether its stream goes on
        self._workers_num_tasks = [0] * self._num_workers
        self._worker_queue_idx_cycle = cycle(range(self._num_workers))
        for _ in range(self._prefetch_factor * self._num_workers):
            self._try_put_index()

    def _try_put_index(self) -> None:
        """Sends the next task, if there is one and a worker for it."""
        k = self._worker_for_a_task()
        if k is None:
            return
        try:
            index = self._next_index()
        except StopIteration:
            return
        self._task_info[self._send_idx] = (k,)
        self._workers_num_tasks[k] += 1
        try:
            self._channels[k].send((self._epoch, self._send_idx, index))
        except EOFError:
            self._died([k])
        except BaseException:
            self._broke("indices could not be sent")
            raise
        self._send_idx += 1

    def _worker_for_a_task(self) -> int | None:
        most = self._prefetch_factor * self._num_workers
        for _ in range(self._num_workers):
            k = next(self._worker_queue_idx_cycle)
            if self._workers_status[k] and (
                self._in_order or self._workers_num_tasks[k] < most // sum(self._workers_status)
            ):
                return k
        return None

    # ---- batches ----

    def _next_data(self) -> Any:
        if self._dead is not None:
            raise self._dead
        if self._pid != os.getpid():
            raise RuntimeError("DataLoader: this iterator's workers are another process's; begin one here")
        while True:
            if not self._advance():
                if not self._persistent_workers:
                    self._shutdown_workers()
                raise StopIteration
            info = self._task_info[self._rcvd_idx]
            if len(info) == 2:
                del self._task_info[self._rcvd_idx]
                self._rcvd_idx += 1
                return self._process(info[1], info[0])
            number, data = self._receive(info[0])
            if isinstance(data, _IterableDatasetStopIteration):
                self._workers_status[data.worker_id] = False
                self._try_put_index()
            elif number == self._rcvd_idx or not self._in_order:
                (k,) = self._task_info.pop(number)
                self._rcvd_idx += number == self._rcvd_idx
                return self._process(data, k)
            else:
                self._task_info[number] += (data,)

    def _advance(self) -> bool:
        """Goes on to the next task that has a batch or will have one; whether there is one."""
        while self._rcvd_idx < self._send_idx:
            info = self._task_info.get(self._rcvd_idx)
            if info is not None:
                if len(info) == 2 or self._workers_status[info[0]]:
                    return True
                del self._task_info[self._rcvd_idx]
            self._rcvd_idx += 1
        return False

    def _process(self, data: Any, k: int) -> Any:
        self._workers_num_tasks[k] -= 1
        self._try_put_index()
        if isinstance(data, ExceptionWrapper):
            data.reraise()
        return data

    def _receive(self, first: int) -> tuple[int, Any]:
        """The next answer of this epoch, looked for at one worker first: (task, batch)."""
        until = time.monotonic() + self._timeout if self._timeout > 0 else None
        ready: Iterable[int] = [first]
        while True:
            ended = []
            for k in ready:
                channel = self._channels[k]
                try:
                    channel.flush()
                    answer = channel.receive()
                except EOFError:
                    ended.append(k)
                    continue
                except BaseException:  # an object that cannot be made here, Ctrl-C
                    self._broke("a batch could not be received")
                    raise
                if answer is not None and answer[0][0] == self._epoch:
                    return answer[0][1], answer[0][2]
            if ended:
                self._died(ended)
            ready = self._wait(until)

    def _wait(self, until: float | None) -> list[int]:
        """The workers that have something to say, or have room for what waits. RuntimeError when time is
        over.
        """
        left = None if until is None else max(0.0, until - time.monotonic())
        waiting = [c for c in self._channels if c.waiting]
        for channel in waiting:
            self._poll.modify(channel.socket, select.POLLIN | select.POLLOUT)
        found = self._poll.poll(None if left is None else 1000 * left)
        for channel in waiting:
            self._poll.modify(channel.socket, select.POLLIN)
        if not found and left is not None:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        return [self._by_descriptor[descriptor] for descriptor, _ in found]

    # ---- ends ----

    def _broke(self, why: str) -> None:
        """Ends the workers, as what one of them waits for will never come."""
        self._dead = RuntimeError(f"DataLoader: {why}; begin another iteration")
        self._shutdown_workers()

    def _died(self, which: list[int]) -> None:
        """RuntimeError for workers that ended by themselves."""
        processes = [self._workers[k] for k in which]
        _join(processes)
        pids = ", ".join(str(process.pid) for process in processes)
        self._dead = RuntimeError(
            f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {_how(processes[0])}"
        )
        self._shutdown_workers()
        raise self._dead

    def _shutdown_workers(self) -> None:
        self._shutdown = True
        self._finalizer()


def _how(process: Any) -> str:
    """How a worker ended."""
    code = process.exitcode
    if code is not None and code < 0:
        try:
            name = signal.strsignal(-code)
        except ValueError:
            name = None
        return f"DataLoader worker (pid {process.pid}) is killed by signal: {name or -code}."
    return (
        f"DataLoader worker (pid {process.pid}) exited unexpectedly with exit code {code}. Its own "
        "message, if it had "
        "one, is above; with num_workers=0 the error comes here."
    )


def _warn_of_pickle(error: Exception) -> None:
    warn(
        "Got pickle error when attempting to start a worker Process: the data set, its functions and "
        "worker_init_fn must "
        f"be picklable for this start method, or use multiprocessing_context='fork' ({error})",
    )
