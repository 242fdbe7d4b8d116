"""`TCPStore`: the keys are in a server, of which every process is a client."""

from __future__ import annotations

import operator
import os
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from kiln.distributed.errors import DistNetworkError, DistStoreError
from kiln.distributed.store.base import DEFAULT_TIMEOUT, Late, Store, Turns, renewed_in_children
from kiln.distributed.store.server import IMPOSSIBLE, LATE, Server, listening, receive_message
from kiln.distributed.store.table import Malformed, Op, packed

_CAME = b"init/"  # how many clients there are; a user's keys begin with "/"
_GRACE = 30.0  # seconds that an answer may take beyond what it waits for
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between attempts to reach a server that is not there yet


class TCPStore(Store):
    """A store whose keys are in the process that was made with `is_master`, for all that connect to it.

    The server listens at `host_name` alone: at the loopback interface, unless that is another address of this
    machine. Port 0 is one that is free; `port` says which. With `wait_for_workers` the master returns when
    `world_size` clients have come, itself among them. With `multi_tenant` masters of one process at one port
    share a server. `master_listen_fd`: a socket that listens already. `use_libuv` chooses nothing.

    Threads may share a store; a forked process that inherited one has its own connections. DistNetworkError
    names host and port when the server cannot be reached or has ended, DistStoreError says who did not come.

    >>> store = kiln.distributed.TCPStore("localhost", 0, is_master=True)
    >>> kiln.distributed.TCPStore("localhost", store.port).set("key", "value")
    >>> store.get("key")
    b'value'
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        if not isinstance(host_name, str):
            raise TypeError(f"TCPStore: host_name is a str, but got {type(host_name).__name__}")
        port = operator.index(port)
        if not 0 <= port < 1 << 16:
            raise ValueError(f"port must have value from 0 to 65535 but was {port}.")
        self.set_timeout(timeout)
        self._host = host_name
        self._port = _serving(self, host_name, port, multi_tenant, master_listen_fd) if is_master else port
        self._renew()
        renewed_in_children(self, TCPStore._renew)
        self._give_back(self._first_connection())
        if wait_for_workers and world_size is not None and world_size >= 0:
            self._call(Op.ADD, [_CAME], [b"1"])
            if is_master:
                self._wait_for(world_size)

    def __repr__(self) -> str:
        return f"TCPStore({self._host!r}, {self._port})"

    @property
    def host(self) -> str:
        """Where the server is, as it was given."""
        return self._host

    @property
    def port(self) -> int:
        """The port at which the server listens."""
        return self._port

    def _wait_for(self, world_size: int) -> None:
        try:
            self._call(Op.REACH, [_CAME], [b"%d" % world_size])
        except Late:
            came = int(self._call(Op.GET, [_CAME])[0])
            raise DistStoreError(
                f"Timed out after {self.timeout.total_seconds():g} seconds waiting for clients. "
                f"{came}/{world_size} clients joined."
            ) from None

    def _renew(self) -> None:
        """Connections of this process: none that was made before it was forked."""
        for connection in getattr(self, "_free", ()):
            connection.close()
        self._free: list[socket.socket] = []
        self._lock = threading.Lock()

    def _call(
        self, op: Op, keys: Sequence[bytes], values: Sequence[bytes] = (), timeout: timedelta | None = None
    ) -> list[bytes]:
        limit = self._seconds(timeout)
        request = packed(op, keys, [*values, b"%d" % round(limit * 1000)])
        with self._lock:
            connection = self._free.pop() if self._free else None
        if connection is None:
            connection = self._connection(min(limit + _GRACE, 60.0))
        try:
            connection.settimeout(limit + _GRACE)
            connection.sendall(request)
            status, fields = receive_message(connection)
        except (OSError, Malformed) as error:
            connection.close()
            raise DistNetworkError(
                f"TCPStore: the connection to the server at {self._host}:{self._port} has ended: {error}"
            ) from None
        except BaseException:  # an answer may still come, which is to be no other request's
            connection.close()
            raise
        self._give_back(connection)
        if status == LATE:
            raise Late
        if status == IMPOSSIBLE:
            raise ValueError(f"TCPStore.{op.name.lower()}: {fields[0].decode()}")
        return fields

    def _give_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._free.append(connection)

    def _first_connection(self) -> socket.socket:
        """A connection to a server that may not be there yet."""
        until = time.monotonic() + self._seconds(None)
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._connection(max(until - time.monotonic(), 0.001))
            except DistNetworkError as error:
                if time.monotonic() + pause > until:
                    milliseconds = self._timeout // timedelta(milliseconds=1)
                    raise DistNetworkError(
                        f"The client socket has timed out after {milliseconds}ms while trying to connect to "
                        f"({self._host}, {self._port}). {error}"
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _connection(self, seconds: float) -> socket.socket:
        try:
            connection = socket.create_connection((self._host, self._port), timeout=seconds)
        except OSError as error:
            raise DistNetworkError(
                f"TCPStore: the server at {self._host}:{self._port} cannot be reached: {error}"
            ) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection


class _Serving:
    """A server, with the stores that need it: the last one that ends closes it."""

    def __init__(self, server: Server) -> None:
        self.server, self.users = server, 0


_turns = Turns()
_shared: dict[int, _Serving] = {}  # by port: those that masters of this process may share


def _serving(store: Any, host: str, port: int, shares: bool, descriptor: int | None) -> int:
    """Starts a server for a store, or shares one; the port at which it listens."""
    with _turns:
        serving = _shared.get(port) if shares else None
        if serving is None:
            listener = listening(host, port) if descriptor is None else _inherited(descriptor, port)
            serving = _Serving(Server(listener))
            if shares:
                _shared[serving.server.port] = serving
        serving.users += 1
    weakref.finalize(store, _turns.leave, partial(_leave, serving, os.getpid()))
    return serving.server.port


def _leave(serving: _Serving, process: int) -> None:
    if os.getpid() != process:
        return
    serving.users -= 1
    if not serving.users:
        if _shared.get(serving.server.port) is serving:
            del _shared[serving.server.port]
        serving.server.close()


def _inherited(descriptor: int, port: int) -> socket.socket:
    listener = socket.socket(fileno=descriptor)
    bound = listener.getsockname()[1]
    if port not in (0, bound):
        listener.detach()
        raise ValueError(
            f"listen fd {descriptor} is bound to port {bound}, expected to be bound to port {port}"
        )
    return listener


def _forget_servers(_: Any) -> None:
    """In a forked process: servers are the parent's."""
    _shared.clear()


renewed_in_children(_Serving, _forget_servers)
