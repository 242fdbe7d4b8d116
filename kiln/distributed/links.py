"""Connections between the ranks of a group: one socket to each other rank, over which bytes of known lengths
go in both directions at once.

Ranks find each other by a store: each says where it listens, connects to those before it and accepts those
after it. Ranks of one machine use Unix sockets, which no other machine reaches; with others TCP, on the
interface that leads to the store. Whoever connects shows a secret of the group, or is dropped.

A rank that ends, however it ends, closes its sockets: others see that at once. Who sees it first writes into
the store whom it missed, so that all name the same rank.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kiln.distributed.errors import DistBackendError, DistNetworkError

_LONGEST = 2_000_000.0  # seconds, which poll can still take as milliseconds
_HELLO = struct.Struct("<16sII")  # the secret, the rank, which of its connections
_GREETING = 2.0  # seconds in which who connects shows the secret
_AGAIN = 0.005  # seconds between looks for a rank that listens somewhere else by now
_LOOPBACK = ("127.0.0.1", "::1", "localhost", "")
_live: weakref.WeakSet[Links] = weakref.WeakSet()


class Lost(DistBackendError):
    """The connection to a rank ended."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"the connection to rank {rank} ended ({why})")
        self.rank = rank


class Late(DistBackendError):
    """Ranks that did not come in time."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(f"ranks {ranks} did not come in time")
        self.ranks = ranks


class Deadline:
    """A moment until which something is waited for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + min(seconds, _LONGEST)

    def left(self) -> float:
        """Seconds, never below 0."""
        return max(self._at - time.monotonic(), 0.0)


class Links:
    """A connected socket for each other rank."""

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self.sockets = dict(sockets)
        self._rank_of = {s.fileno(): rank for rank, s in self.sockets.items()}
        for s in self.sockets.values():
            s.setblocking(False)
        _live.add(self)

    def close(self) -> None:
        """Ends all connections."""
        for s in self.sockets.values():
            s.close()
        self.sockets = {}

    def part(self) -> None:
        """Others see that this rank is gone; who waits for them here sees that they are."""
        for s in self.sockets.values():
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def exchange(self, out: Mapping[int, Any], into: Mapping[int, memoryview], deadline: Deadline) -> None:
        """Sends bytes to some ranks, and fills a buffer from each of some, all at the same time."""
        sending = {rank: left for rank, data in out.items() if (left := self._send(rank, memoryview(data)))}
        taking = {rank: left for rank, view in into.items() if (left := self._take(rank, view))}
        if not sending and not taking:
            return
        poll = select.poll()
        for rank in {*sending, *taking}:
            poll.register(self.sockets[rank], _events(rank in sending, rank in taking))
        while sending or taking:
            ready = poll.poll(deadline.left() * 1000)
            if not ready:
                raise Late(sorted(taking or sending))
            for descriptor, _ in ready:
                rank = self._rank_of[descriptor]
                if rank in sending:
                    _advance(sending, rank, self._send(rank, sending[rank]))
                if rank in taking:
                    _advance(taking, rank, self._take(rank, taking[rank]))
                if rank in sending or rank in taking:
                    poll.modify(descriptor, _events(rank in sending, rank in taking))
                else:
                    poll.unregister(descriptor)

    def _send(self, rank: int, data: memoryview) -> memoryview | None:
        """What is left to be sent."""
        try:
            while len(data):
                data = data[self.sockets[rank].send(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise Lost(rank, os.strerror(error.errno or 0)) from None
        return None

    def _take(self, rank: int, view: memoryview) -> memoryview | None:
        """What is left to be filled."""
        try:
            while len(view):
                count = self.sockets[rank].recv_into(view)
                if not count:
                    raise Lost(rank, "closed by it")
                view = view[count:]
        except BlockingIOError:
            return view
        except OSError as error:
            raise Lost(rank, os.strerror(error.errno or 0)) from None
        return None


def _events(sends: bool, takes: bool) -> int:
    return (select.POLLOUT if sends else 0) | (select.POLLIN if takes else 0)


def _advance(waiting: dict[int, memoryview], rank: int, left: memoryview | None) -> None:
    if left is None:
        del waiting[rank]
    else:
        waiting[rank] = left


def _forget() -> None:
    """In a process that was forked: the ranks' connections are not its own, and end when the rank does."""
    for links in list(_live):
        links.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# ---- how ranks find each other ----


def machine() -> str:
    """What only processes that can share Unix sockets and memory have in common."""
    parts = [socket.gethostname()]
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts.append(file.read().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts)


class _Door:
    """Where a rank listens: for ranks of its machine, and for others if the store is of another one."""

    def __init__(self, store_host: str) -> None:
        self.sockets: dict[str, socket.socket] = {}
        if sys.platform == "linux":
            near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            name = f"kiln-{os.getpid()}-{os.urandom(12).hex()}"
            near.bind(f"\0{name}")
            self._listen("unix", near)
            self.address = {"unix": name, "machine": machine()}
        else:
            self.address = {"machine": ""}
        if sys.platform != "linux" or store_host not in _LOOPBACK:
            host = _interface(store_host)
            far = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            far.bind((host, 0))
            self._listen("tcp", far)
            self.address["tcp"] = f"{host} {far.getsockname()[1]}"

    def _listen(self, kind: str, s: socket.socket) -> None:
        s.listen(1024)
        s.setblocking(False)
        self.sockets[kind] = s

    def accept(self, deadline: Deadline) -> socket.socket | None:
        """The next that comes; None when the time is over."""
        poll = select.poll()
        for s in self.sockets.values():
            poll.register(s, select.POLLIN)
        listening = {s.fileno(): s for s in self.sockets.values()}
        while ready := poll.poll(deadline.left() * 1000):
            with suppress(OSError):  # whoever came is gone again
                return listening[ready[0][0]].accept()[0]
        return None

    def close(self) -> None:
        for s in self.sockets.values():
            s.close()


def _interface(store_host: str) -> str:
    """The address of this machine from which the store's is reached."""
    if store_host in _LOOPBACK:
        return "127.0.0.1"
    family, _, _, _, address = socket.getaddrinfo(store_host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def connect(store: Any, rank: int, size: int, deadline: Deadline, kinds: int) -> tuple[list[Links], bool]:
    """`kinds` connections to each other rank, each kind as Links; whether all ranks are of one machine.

    `store` is the group's own. DistBackendError names those that did not come.
    """
    own = getattr(store, "_underlying_non_prefix_store", store)
    door = _Door(getattr(own, "host", ""))
    secret = os.urandom(16)
    try:
        address = {**door.address, "secret": secret.hex()}
        store.set(f"rank {rank}", "\n".join(f"{kind} {where}" for kind, where in address.items()))
        found: list[dict[int, socket.socket]] = [{} for _ in range(kinds)]
        for peer in range(rank):
            for kind in range(kinds):
                found[kind][peer] = _reach(store, peer, rank, kind, door.address["machine"], deadline)
        wanted = {(peer, kind) for peer in range(rank + 1, size) for kind in range(kinds)}
        while wanted:
            came = door.accept(deadline)
            if came is None:
                raise DistBackendError(_missing(sorted({peer for peer, _ in wanted}), deadline))
            peer, kind = _greeted(came, secret, deadline)
            if (peer, kind) not in wanted:
                came.close()
                continue
            wanted.discard((peer, kind))
            found[kind][peer] = came
        addresses = [_address(store, peer, deadline) for peer in range(size)]
    finally:
        door.close()
    for sockets in found:
        for s in sockets.values():
            if s.family != getattr(socket, "AF_UNIX", None):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    here = all(a["machine"] == door.address["machine"] and "unix" in a for a in addresses)
    return [Links(sockets) for sockets in found], here


def _missing(ranks: list[int], deadline: Deadline) -> str:
    return f"init_process_group: ranks {ranks} did not come within {deadline.seconds:g} s"


def _address(store: Any, peer: int, deadline: Deadline) -> dict[str, str]:
    key = f"rank {peer}"
    try:
        store.wait([key], timedelta(seconds=max(deadline.left(), 0.001)))
    except Exception as error:
        raise DistBackendError(f"{_missing([peer], deadline)} ({error})") from error
    lines = store.get(key).decode().split("\n")
    return dict(line.split(" ", 1) for line in lines)


def _reach(store: Any, peer: int, rank: int, kind: int, here: str, deadline: Deadline) -> socket.socket:
    """A connection to a rank that knows who it is from. What the store says may be of an earlier group of its
    name, until the rank comes to this one: nobody listens there.
    """
    again = threading.Event()
    while True:
        address = _address(store, peer, deadline)
        try:
            s = _connected(peer, here, address, deadline)
            s.sendall(_HELLO.pack(bytes.fromhex(address["secret"]), rank, kind))
            return s
        except OSError as error:
            if not deadline.left():
                raise DistNetworkError(
                    f"init_process_group: rank {peer} cannot be reached: {error}"
                ) from error
        again.wait(_AGAIN)


def _connected(peer: int, here: str, address: dict[str, str], deadline: Deadline) -> socket.socket:
    """A socket that is connected to where a rank listens."""
    if address["machine"] == here and "unix" in address:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(deadline.left() or 0.001)
        s.connect(f"\0{address['unix']}")
        return s
    if "tcp" not in address:
        raise DistNetworkError(
            f"init_process_group: rank {peer} is on another machine and listens on its own only; a store "
            "with a host (tcp://, env://) says where machines meet"
        )
    host, port = address["tcp"].split(" ")
    return socket.create_connection((host, int(port)), timeout=deadline.left() or 0.001)


def _greeted(came: socket.socket, secret: bytes, deadline: Deadline) -> tuple[int, int]:
    """The rank that a connection is from, and which it is; (-1, 0) for a stranger's."""
    came.settimeout(min(deadline.left(), _GREETING) or 0.001)
    try:
        data = b""
        while len(data) < _HELLO.size:
            more = came.recv(_HELLO.size - len(data))
            if not more:
                return -1, 0
            data += more
    except OSError:
        return -1, 0
    said, rank, kind = _HELLO.unpack(data)
    return (rank, kind) if hmac.compare_digest(said, secret) else (-1, 0)
