"""Messages from rank to rank: `send`, `recv` and their kin, matched by sender and tag.

One thread of a group serves all its connections. A message of a few bytes goes out at once and waits at the
receiver's; a long one is announced and goes out when the receiver has room for it. Messages of one sender
with one tag are received in the order they were sent in.

    WHOLE  tag, dtype, bytes, then the bytes      a short message
    ASKS   tag, dtype, bytes, number              a long one is there
    GO     number                                 it may come
    NO     number                                 nobody takes it
    BYTES  number, bytes, then the bytes
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from kiln.distributed.errors import DistBackendError
from kiln.distributed.links import Links, Lost

_HEAD = struct.Struct("<Bq16sQQ")  # kind, tag, dtype, bytes, number
_WHOLE, _ASKS, _GO, _NO, _BYTES = range(5)
_SHORT = 32 << 10  # bytes of a message that goes out unasked
ANY = -1


class Receipt:
    """A receive that was asked for."""

    def __init__(
        self, source: int, tag: int, dtype: str, into: memoryview, done: Callable[..., None]
    ) -> None:
        self.source, self.tag, self.dtype, self.into, self.done = source, tag, dtype, into, done

    def fits(self, source: int, tag: int) -> bool:
        """Whether a message is for it."""
        return self.source in (ANY, source) and self.tag == tag

    def error(self, source: int, dtype: str, nbytes: int) -> DistBackendError | None:
        """What is wrong with a message for it."""
        if dtype == self.dtype and nbytes == len(self.into):
            return None
        return DistBackendError(
            f"recv: rank {source} of the group sent {nbytes} bytes of {dtype}, expected {len(self.into)} of "
            f"{self.dtype}"
        )


class _Arrived:
    """A message that nobody asked for yet: its bytes, or that it waits at the sender's."""

    def __init__(self, tag: int, dtype: str, nbytes: int, number: int, data: bytearray | None) -> None:
        self.tag, self.dtype, self.nbytes, self.number, self.data = tag, dtype, nbytes, number, data


class _Peer:
    """One connection, as the thread has it."""

    def __init__(self, rank: int, s: socket.socket) -> None:
        self.rank, self.socket = rank, s
        self.out: deque[tuple[memoryview, Callable[..., None] | None]] = deque()
        self.head = bytearray(_HEAD.size)
        self.into = memoryview(self.head)  # what is being filled
        self.then: Callable[[], None] | None = None  # after the head: what the bytes behind it are for
        self.arrived: list[_Arrived] = []
        self.coming: dict[int, Receipt] = {}  # long messages that may come
        self.waiting: dict[int, tuple[memoryview, Callable[..., None]]] = {}  # long ones that may not go yet
        self.lost: Exception | None = None


class Mail:
    """The messages of one rank. `done` of a call is told None or an error, then the sender's rank."""

    def __init__(self, links: Links, name_lost: Callable[[Lost], str]) -> None:
        self._peers = {rank: _Peer(rank, s) for rank, s in links.sockets.items()}
        self._name_lost = name_lost
        self._receipts: list[Receipt] = []
        self._asked: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._numbers = 0
        self._thread: threading.Thread | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._closed = False

    def send(self, rank: int, tag: int, dtype: str, data: memoryview, done: Callable[..., None]) -> None:
        """Sends bytes; they must stay as they are until that is done."""
        self._ask(lambda: self._begin(self._peers[rank], tag, dtype, data, done))

    def receive(self, receipt: Receipt) -> None:
        """Fills a buffer with the next message that is for it."""
        self._ask(lambda: self._expect(receipt))

    def cancel(self, receipt: Receipt) -> None:
        """Nobody waits for it any more; what comes is another's."""
        self._ask(lambda: self._forget(receipt))

    def close(self) -> None:
        """Ends the thread, once what was sent is out."""
        thread = self._thread
        if thread is not None:
            self._ask(self._end)
            thread.join(timeout=10.0)

    # ---- the callers' side ----

    def _ask(self, what: Callable[[], None]) -> None:
        with self._lock:
            self._asked.append(what)
            if self._thread is None:
                self._bell = socket.socketpair()
                for s in self._bell:
                    s.setblocking(False)
                self._thread = threading.Thread(target=self._serve, name="kiln messages", daemon=True)
                self._thread.start()
            bell = self._bell
        if bell is not None:
            with suppress(BlockingIOError, OSError):
                bell[1].send(b"!")

    # ---- the thread's side ----

    def _forget(self, receipt: Receipt) -> None:
        if receipt in self._receipts:
            self._receipts.remove(receipt)

    def _end(self) -> None:
        self._closed = True

    def _serve(self) -> None:
        assert self._bell is not None
        poll = select.poll()
        poll.register(self._bell[0], select.POLLIN)
        by_descriptor = {p.socket.fileno(): p for p in self._peers.values()}
        events = {}
        for descriptor in by_descriptor:
            events[descriptor] = select.POLLIN
            poll.register(descriptor, select.POLLIN)
        while not (self._closed and not any(p.out for p in self._peers.values())):
            ready = poll.poll()
            for descriptor, _ in ready:
                peer = by_descriptor.get(descriptor)
                if peer is None:
                    with suppress(BlockingIOError):
                        self._bell[0].recv(4096)
                elif peer.lost is None:
                    self._guarded(peer, self._read)
            while self._asked:
                self._asked.popleft()()
            for descriptor, peer in by_descriptor.items():
                if peer.out and peer.lost is None:
                    self._guarded(peer, self._write)
                wanted = 0 if peer.lost else select.POLLIN | (select.POLLOUT if peer.out else 0)
                if wanted != events[descriptor]:
                    events[descriptor] = wanted
                    if wanted:
                        poll.modify(descriptor, wanted)
                    else:
                        poll.unregister(descriptor)
        for peer in self._peers.values():  # what nobody took, or sent
            if peer.lost is None:
                self._lose(peer, "the process group was destroyed")
        for s in self._bell:
            s.close()

    def _guarded(self, peer: _Peer, turn: Callable[[_Peer], None]) -> None:
        """Reads or writes; a connection that ended, or brings what is no message, is given up."""
        try:
            turn(peer)
        except BlockingIOError:
            pass
        except Exception as error:
            self._lose(peer, str(error) if isinstance(error, OSError) else repr(error))

    def _begin(self, peer: _Peer, tag: int, dtype: str, data: memoryview, done: Callable[..., None]) -> None:
        if peer.lost:
            done(DistBackendError(f"send: rank {peer.rank} of the group is gone"))
            return
        if len(data) <= _SHORT:
            peer.out.append((memoryview(_HEAD.pack(_WHOLE, tag, dtype.encode(), len(data), 0)), None))
            peer.out.append((data, done))
            return
        self._numbers += 1
        peer.waiting[self._numbers] = data, done
        head = _HEAD.pack(_ASKS, tag, dtype.encode(), len(data), self._numbers)
        peer.out.append((memoryview(head), None))

    def _expect(self, receipt: Receipt) -> None:
        peers = self._peers.values() if receipt.source == ANY else [self._peers[receipt.source]]
        for peer in peers:
            for at, message in enumerate(peer.arrived):
                if receipt.fits(peer.rank, message.tag):
                    del peer.arrived[at]
                    self._deliver(peer, message, receipt)
                    return
        if all(peer.lost for peer in peers):
            whom = "every rank" if receipt.source == ANY else f"rank {receipt.source}"
            receipt.done(DistBackendError(f"recv: {whom} of the group is gone"))
            return
        self._receipts.append(receipt)

    def _deliver(self, peer: _Peer, message: _Arrived, receipt: Receipt) -> None:
        error = receipt.error(peer.rank, message.dtype, message.nbytes)
        if message.data is None:
            answer = _NO if error else _GO
            peer.out.append((memoryview(_HEAD.pack(answer, 0, b"", 0, message.number)), None))
            if error is None:
                peer.coming[message.number] = receipt
        elif error is None:
            receipt.into[:] = message.data
            receipt.done(None, peer.rank)
        if error is not None:
            receipt.done(error)

    def _write(self, peer: _Peer) -> None:
        while peer.out:
            data, done = peer.out[0]
            while len(data):
                data = data[peer.socket.send(data) :]
                peer.out[0] = data, done
            peer.out.popleft()
            if done is not None:
                done(None)

    def _read(self, peer: _Peer) -> None:
        while True:
            while len(peer.into):
                count = peer.socket.recv_into(peer.into)
                if not count:
                    raise OSError("closed by it")
                peer.into = peer.into[count:]
            then, peer.then = peer.then, None
            if then is None:
                self._headed(peer)
            else:
                then()
            if peer.then is None:
                peer.into = memoryview(peer.head)

    def _headed(self, peer: _Peer) -> None:
        """A head is there: what comes behind it is for whom."""
        kind, tag, dtype, nbytes, number = _HEAD.unpack(peer.head)
        name = dtype.rstrip(b"\0").decode(errors="replace")
        if kind == _GO:
            data, done = peer.waiting.pop(number)
            peer.out.append((memoryview(_HEAD.pack(_BYTES, 0, b"", len(data), number)), None))
            peer.out.append((data, done))
        elif kind == _NO:
            _, done = peer.waiting.pop(number)
            done(DistBackendError(f"send: rank {peer.rank} of the group expected another size or dtype"))
        elif kind == _ASKS:
            self._arrive(peer, _Arrived(tag, name, nbytes, number, None))
        elif kind == _BYTES:
            receipt = peer.coming.pop(number)
            peer.into = receipt.into
            peer.then = lambda: receipt.done(None, peer.rank)
        elif kind == _WHOLE and nbytes <= _SHORT:
            message = _Arrived(tag, name, nbytes, number, bytearray(nbytes))
            peer.into = memoryview(message.data or b"")
            peer.then = lambda: self._arrive(peer, message)
        else:
            raise OSError("a message that is none")

    def _arrive(self, peer: _Peer, message: _Arrived) -> None:
        for at, receipt in enumerate(self._receipts):
            if receipt.fits(peer.rank, message.tag):
                del self._receipts[at]
                self._deliver(peer, message, receipt)
                return
        peer.arrived.append(message)

    def _lose(self, peer: _Peer, why: str) -> None:
        """A connection ended: whoever waits for the rank is told."""
        peer.lost = DistBackendError("the process group was destroyed")
        told = [done for _, done in peer.out if done] + [done for _, done in peer.waiting.values()]
        told += [receipt.done for receipt in peer.coming.values()]
        peer.out.clear()
        peer.waiting.clear()
        peer.coming.clear()
        peer.arrived = [message for message in peer.arrived if message.data is not None]
        alone = all(p.lost for p in self._peers.values())
        gone = [r for r in self._receipts if r.source == peer.rank or (r.source == ANY and alone)]
        self._receipts = [r for r in self._receipts if r not in gone]
        told += [receipt.done for receipt in gone]
        if told and not self._closed:
            peer.lost = DistBackendError(self._name_lost(Lost(peer.rank, why)))
        for done in told:
            done(peer.lost)
