"""The server of a TCPStore: one thread that answers the requests of all clients, one at a time of each.

A client that sends what is no message, or a second request before the first is answered, is dropped. One
that waits for a key is answered when the key is there, or told that its time is over: a request's last value
is how many milliseconds it may wait.
"""

from __future__ import annotations

import heapq
import ipaddress
import selectors
import socket
import threading
import time
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from kiln.distributed.errors import DistNetworkError
from kiln.distributed.store.base import renewed_in_children
from kiln.distributed.store.table import (
    HEADER,
    WRITES,
    Malformed,
    NotYet,
    Op,
    Table,
    asked,
    message_size,
    packed,
    unpacked,
)

ANSWERED, LATE, IMPOSSIBLE = 0, 1, 2  # statuses of answers
_CHUNK = 1 << 16
_LONGEST_WAIT = 3600.0  # seconds between two looks at what has come
_numbered = count()


class _Request(NamedTuple):
    op: Op
    keys: list[bytes]
    values: list[bytes]
    until: float  # of time.monotonic


class _Client:
    """A connection, with what came and what is still to be sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received = bytearray()
        self.unsent = memoryview(b"")
        self.waiting: _Request | None = None


class Server:
    """Listens, and answers until it is closed."""

    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self._table = Table()
        self._listener = listener
        self._clients: set[_Client] = set()
        self._waiting: dict[bytes, list[_Client]] = {}
        self._deadlines: list[tuple[float, int, _Client, _Request]] = []
        self._wake, self._woken = socket.socketpair()
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        renewed_in_children(self, Server._forget)
        self._thread = threading.Thread(target=self._serve, name="kiln store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and all connections."""
        with suppress(OSError):
            self._wake.send(b"x")
        if threading.current_thread() is not self._thread:  # a finalizer runs in any
            self._thread.join()

    def _forget(self) -> None:
        """In a forked process, which has no such thread: connections end when the server's process does."""
        for connection in (self._listener, self._wake, self._woken, *(c.socket for c in list(self._clients))):
            connection.close()
        self._selector.close()

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._forget()

    def _turn(self) -> bool:
        """Waits for what comes next, and answers it; False when the server is to end."""
        left = self._deadlines[0][0] - time.monotonic() if self._deadlines else _LONGEST_WAIT
        for key, events in self._selector.select(min(left, _LONGEST_WAIT)):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
                continue
            client: _Client = key.data
            if client not in self._clients:  # dropped by one that was answered before in this turn
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    self._send(client)
                if events & selectors.EVENT_READ:
                    self._receive(client)
            except (OSError, Malformed):
                self._drop(client)
        self._end_waits()
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is free: the connection stays in the listener's queue until one is
            time.sleep(0.01)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client = _Client(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.discard(client)
            if client.waiting is not None:
                self._unlist(client, client.waiting)
                client.waiting = None
            self._selector.unregister(client.socket)
            client.socket.close()

    def _receive(self, client: _Client) -> None:
        try:
            data = client.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        if client.waiting is not None or client.unsent:
            raise Malformed("a request before the last one was answered")
        client.received += data
        size = message_size(client.received)
        if size is None or len(client.received) < size:
            return
        if len(client.received) > size:
            raise Malformed("more than one request")
        kind, keys, values = unpacked(client.received)
        client.received = bytearray()
        if not values or len(values[-1]) > 15 or not values[-1].isdigit():
            raise Malformed("a request without a time")
        until = time.monotonic() + int(values.pop()) / 1000
        self._answer(client, _Request(asked(kind, keys, values), keys, values, until))

    def _answer(self, client: _Client, request: _Request) -> None:
        """Answers a request or lets it wait; then those that waited for what it changed."""
        if not self._attempt(client, request) or request.op not in WRITES:
            return
        for key in request.keys:
            for other in self._waiting.pop(key, ()):
                if other.waiting is not None:
                    try:
                        self._attempt(other, other.waiting)
                    except OSError:
                        self._drop(other)

    def _attempt(self, client: _Client, request: _Request) -> bool:
        """Whether a request did not have to wait."""
        try:
            status, fields = ANSWERED, self._table.perform(request.op, request.keys, request.values)
            answer = packed(status, fields)
        except NotYet as missing:
            if client.waiting is not request:
                self._wait(client, request)
            self._waiting.setdefault(missing.key, []).append(client)
            return False
        except ValueError as error:
            answer = packed(IMPOSSIBLE, [str(error).encode()])
        self._reply(client, answer)
        return True

    def _wait(self, client: _Client, request: _Request) -> None:
        client.waiting = request
        heapq.heappush(self._deadlines, (request.until, next(_numbered), client, request))
        if len(self._deadlines) > 2 * len(self._clients) + 16:  # most are of requests that were answered
            self._deadlines = [entry for entry in self._deadlines if entry[2].waiting is entry[3]]
            heapq.heapify(self._deadlines)

    def _end_waits(self) -> None:
        """Tells those whose time is over, and forgets the times of those that were answered."""
        now = time.monotonic()
        while self._deadlines:
            until, _, client, request = self._deadlines[0]
            if client.waiting is request:
                if until > now:
                    return
                self._unlist(client, request)
                try:
                    self._reply(client, packed(LATE, []))
                except OSError:
                    self._drop(client)
            heapq.heappop(self._deadlines)

    def _unlist(self, client: _Client, request: _Request) -> None:
        for key in request.keys:
            others = [other for other in self._waiting.pop(key, ()) if other is not client]
            if others:
                self._waiting[key] = others

    def _reply(self, client: _Client, answer: bytes) -> None:
        client.waiting = None
        client.unsent = memoryview(answer)
        self._send(client)

    def _send(self, client: _Client) -> None:
        with suppress(BlockingIOError):
            while client.unsent:
                client.unsent = client.unsent[client.socket.send(client.unsent) :]
        writes = selectors.EVENT_WRITE if client.unsent else 0
        self._selector.modify(client.socket, selectors.EVENT_READ | writes, client)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address of this machine, and at no other. DistNetworkError if it cannot."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda item: item[0] != socket.AF_INET)
        if ipaddress.ip_address(str(address[0]).split("%")[0]).is_unspecified:
            address = ("::1" if family == socket.AF_INET6 else "127.0.0.1", *address[1:])
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise DistNetworkError(f"TCPStore: {host} is no address to listen at: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise DistNetworkError(
            f"The server socket has failed to listen on any local network address. port: {port}, "
            f"host: {host}: {error.strerror}"
        ) from None
    return listener


def receive_message(connection: socket.socket) -> tuple[int, list[bytes]]:
    """The status and fields of an answer. OSError if the connection ends, Malformed for what is none."""
    received = bytearray()
    size: int | None = None
    while size is None or len(received) < size:
        data = connection.recv(_CHUNK if size is not None else HEADER.size)
        if not data:
            raise ConnectionResetError("it has shut down or was killed")
        received += data
        if size is None:
            size = message_size(received)
    kind, keys, values = unpacked(received)
    return kind, keys + values
