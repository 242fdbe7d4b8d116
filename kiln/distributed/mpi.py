"""Groups over MPI (mpi4py, with MPICH or Open MPI): the pieces of boards and the messages of ranks go by its
sends and receives. Which sums are made, in which order, is the boards' (board.py), as over any other carrier.

`mpiexec -n 4 python program.py` starts the ranks. A rank that dies ends the program: that is MPI's way. MPI's
library tells nobody when something comes, so who waits looks again and again, ever less often.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from kiln.distributed.errors import DistBackendError
from kiln.distributed.links import Deadline, Late
from kiln.distributed.mail import ANY, Receipt

_HEAD = struct.Struct("<16sQ")  # dtype, bytes
_STEP = 1  # the tag of steps
_OFTEN = 2000  # looks without a pause
_PAUSE = 0.0005  # seconds between looks after that


def is_there() -> bool:
    """Whether mpi4py and an MPI library can be loaded."""
    try:
        _mpi()
    except (ImportError, RuntimeError):
        return False
    return True


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


def everybody() -> tuple[int, int]:
    """This process's rank among all that mpiexec started, and their number."""
    try:
        MPI = _mpi()
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            'init_process_group("mpi"): needs mpi4py and an MPI library, which are not there '
            f"({str(error).strip().splitlines()[-1]}); pip install mpi4py mpich"
        ) from None
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError('init_process_group("mpi"): this MPI library serves one thread only')
    return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def connect(ranks: list[int], number: int) -> tuple[MpiLinks, MpiMail]:
    """What the ranks of a group exchange steps and messages by; each of them calls it."""
    MPI = _mpi()
    world = MPI.COMM_WORLD
    some = world.Get_group().Incl(ranks)
    steps, heads, bodies = (world.Create_group(some, 3 * number + k) for k in range(3))
    some.Free()
    for comm in (steps, heads, bodies):
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    return MpiLinks(steps), MpiMail(heads, bodies)


class MpiLinks:
    """`Links` (links.py) over a communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._gone = False

    def exchange(self, out: Mapping[int, Any], into: Mapping[int, memoryview], deadline: Deadline) -> None:
        """Sends bytes to some ranks, and fills a buffer from each of some, all at the same time."""
        MPI = _mpi()
        if self._gone:
            raise DistBackendError("the process group is of no use any more")
        try:
            waiting = {
                ("from", rank): self._comm.Irecv([view, MPI.BYTE], source=rank, tag=_STEP)
                for rank, view in into.items()
                if len(view)
            }
            for rank, data in out.items():
                if len(data):
                    waiting["to", rank] = self._comm.Isend([data, MPI.BYTE], dest=rank, tag=_STEP)
            pause = _Pause()
            while not MPI.Request.Testall(list(waiting.values())):
                if not deadline.left():
                    late = {rank for (_, rank), request in waiting.items() if not request.Test()}
                    raise Late(sorted(late))
                pause()
        except MPI.Exception as error:
            raise DistBackendError(f"MPI: {error}") from error

    def part(self) -> None:
        """This rank is out of the group; MPI has no way to tell others."""
        self._gone = True

    def close(self) -> None:
        """Gives the communicator back, together with the other ranks; a group that failed keeps it."""
        if not self._gone and not _mpi().Is_finalized():
            self._comm.Disconnect()


class _Pause:
    """Waits ever longer between looks."""

    def __init__(self) -> None:
        self._looks = 0
        self._never = threading.Event()

    def __call__(self) -> None:
        self._looks += 1
        if self._looks > _OFTEN:
            self._never.wait(_PAUSE)


class MpiMail:
    """`Mail` (mail.py) over two communicators: a message is a head, which says what comes, and its bytes."""

    def __init__(self, heads: Any, bodies: Any) -> None:
        self._heads, self._bodies = heads, bodies
        self._asked: deque[Callable[[], None]] = deque()
        self._receipts: list[Receipt] = []
        self._going: list[tuple[list[Any], Callable[[], None]]] = []  # requests, and what follows them
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def send(self, rank: int, tag: int, dtype: str, data: memoryview, done: Callable[..., None]) -> None:
        """Sends bytes; they must stay as they are until that is done."""
        self._ask(lambda: self._begin(rank, tag, dtype, data, done))

    def receive(self, receipt: Receipt) -> None:
        """Fills a buffer with the next message that is for it."""
        self._ask(lambda: self._receipts.append(receipt))

    def cancel(self, receipt: Receipt) -> None:
        """Nobody waits for it any more; what comes is another's."""
        self._ask(lambda: self._forget(receipt))

    def close(self) -> None:
        """Ends the thread, once what was sent is out."""
        if self._thread is not None:
            self._ask(self._end)
            self._thread.join(timeout=10.0)
        if not self._going and not _mpi().Is_finalized():  # else what goes on keeps them
            self._heads.Disconnect()
            self._bodies.Disconnect()

    def _ask(self, what: Callable[[], None]) -> None:
        with self._changed:
            self._asked.append(what)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="kiln messages", daemon=True)
                self._thread.start()
            self._changed.notify()

    # ---- the thread's side ----

    def _forget(self, receipt: Receipt) -> None:
        if receipt in self._receipts:
            self._receipts.remove(receipt)

    def _end(self) -> None:
        self._closed = True
        for receipt in self._receipts:
            receipt.done(DistBackendError("the process group was destroyed"))
        self._receipts = []

    def _serve(self) -> None:
        pause = _Pause()
        while not (self._closed and not self._going):
            with self._changed:
                while not (self._asked or self._receipts or self._going):
                    self._changed.wait()
            moved = bool(self._asked)
            while self._asked:
                self._asked.popleft()()
            if self._look() or moved:
                pause = _Pause()
            else:
                pause()

    def _look(self) -> bool:
        """Takes what came, ends what is done; whether there was any."""
        MPI = _mpi()
        before = len(self._receipts), len(self._going)
        for receipt in list(self._receipts):
            source = MPI.ANY_SOURCE if receipt.source == ANY else receipt.source
            status = MPI.Status()
            head = self._heads.Improbe(source=source, tag=receipt.tag, status=status)
            if head is not None:
                self._receipts.remove(receipt)
                data = bytearray(_HEAD.size)
                head.Recv([data, MPI.BYTE])
                self._take(receipt, status.Get_source(), *_HEAD.unpack(data))
        left = []
        for requests, then in self._going:
            if MPI.Request.Testall(requests):
                then()
            else:
                left.append((requests, then))
        self._going = left
        return before != (len(self._receipts), len(left))

    def _take(self, receipt: Receipt, source: int, dtype: bytes, nbytes: int) -> None:
        MPI = _mpi()
        error = receipt.error(source, dtype.rstrip(b"\0").decode(errors="replace"), nbytes)
        into = receipt.into if error is None else memoryview(bytearray(nbytes))
        request = self._bodies.Irecv([into, MPI.BYTE], source=source, tag=receipt.tag)
        self._going.append(([request], lambda: receipt.done(error, source)))

    def _begin(self, rank: int, tag: int, dtype: str, data: memoryview, done: Callable[..., None]) -> None:
        MPI = _mpi()
        head = bytearray(_HEAD.pack(dtype.encode(), len(data)))
        requests = [
            self._heads.Isend([head, MPI.BYTE], dest=rank, tag=tag),
            self._bodies.Isend([data, MPI.BYTE], dest=rank, tag=tag),
        ]
        self._going.append((requests, lambda held=(head, data): done(None)))  # type: ignore[misc]
