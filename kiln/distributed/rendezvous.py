"""`rendezvous`: from a URL to the store by which the processes of a group find each other.

env://                                     RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of the environment
tcp://host:port?rank=0&world_size=2     rank 0 has the server
file:///path?rank=0&world_size=2        a file that all see
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from kiln.distributed.store import FileStore, Store, TCPStore

__all__ = ["register_rendezvous_handler", "rendezvous"]

_Found = tuple[Store, int, int]  # the store, rank, number of processes
_TIMEOUT = timedelta(minutes=30)
_handlers: dict[str, Callable[..., Iterator[_Found]]] = {}


def register_rendezvous_handler(scheme: str, handler: Callable[..., Iterator[_Found]]) -> None:
    """Makes `handler(url, **kwargs)` the one for URLs of a scheme; it yields (store, rank, world_size)."""
    if scheme in _handlers:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")
    _handlers[scheme] = handler


def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[_Found]:
    """Yields (store, rank, world_size) for a URL, which says rank and world_size where the arguments do not.

    ValueError names what is missing.
    """
    if not isinstance(url, str):
        raise RuntimeError(f"`url` must be a string. {type(url)}: {url}")
    if not isinstance(rank, numbers.Integral):
        raise RuntimeError(f"`rank` must be an integer. {rank}")
    if not isinstance(world_size, numbers.Integral):
        raise RuntimeError(f"`world_size` must be an integer. {world_size}")
    parts = urlparse(url)
    given = {"rank": rank, "world_size": world_size}
    given = {name: value for name, value in given.items() if value != -1}
    if given:
        query = _query(url)
        if not query.keys().isdisjoint({"rank", "world_size"}):
            raise AssertionError(f"The url: {url} has node-specific arguments(rank, world_size) already.")
        both = query | {name: str(value) for name, value in given.items()}
        url = parts._replace(query="&".join(f"{name}={value}" for name, value in both.items())).geturl()
    if parts.scheme not in _handlers:
        raise RuntimeError(f"No rendezvous handler for {parts.scheme}://")
    return _handlers[parts.scheme](url, **kwargs)


def _query(url: str) -> dict[str, str]:
    """The arguments after "?"."""
    pairs = (pair.split("=", 1) for pair in urlparse(url).query.split("&") if pair)
    return {pair[0]: pair[-1] for pair in pairs}


def _error(scheme: str, what: str) -> ValueError:
    return ValueError(f"Error initializing kiln.distributed using {scheme}:// rendezvous: {what}")


def _place(scheme: str, query: dict[str, str]) -> tuple[int, int]:
    """Rank and number of processes."""
    for name, called in (("rank", "rank"), ("world_size", "world size")):
        if name not in query:
            raise _error(scheme, f"{called} parameter missing")
    return int(query["rank"]), int(query["world_size"])


def _tcp_store(host: str, port: int, rank: int, world_size: int, timeout: timedelta) -> TCPStore:
    """Rank 0 has the server, unless the program that started the ranks has it."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port must have value from 0 to 65535 but was {port}.")
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return TCPStore(host, port, world_size, serves, timeout, multi_tenant=True)


def _by_file(url: str, **_: Any) -> Iterator[_Found]:
    path = urlparse(url).path
    if not path:
        raise _error("file", "path missing")
    rank, world_size = _place("file", _query(url))
    yield FileStore(path, world_size), rank, world_size
    raise RuntimeError("Unable to perform rerendezvous using file:// method")


def _by_address(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[_Found]:
    parts = urlparse(url)
    if parts.port is None:
        raise _error("tcp", "port number missing")
    if parts.hostname is None:
        raise _error("tcp", "host name missing")
    rank, world_size = _place("tcp", _query(url))
    yield _tcp_store(parts.hostname, parts.port, rank, world_size, timeout), rank, world_size
    raise RuntimeError("Unable to perform re-rendezvous using tcp:// method")


def _by_environment(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[_Found]:
    query = _query(url)
    rank = int(query["rank"] if "rank" in query else _variable("RANK"))
    world_size = int(query["world_size"] if "world_size" in query else _variable("WORLD_SIZE"))
    host, port = _variable("MASTER_ADDR"), int(_variable("MASTER_PORT"))
    yield _tcp_store(host, port, rank, world_size, timeout), rank, world_size
    raise RuntimeError("Unable to perform re-rendezvous using env:// method")


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise _error("env", f"environment variable {name} expected, but not set")
    return value


register_rendezvous_handler("tcp", _by_address)
register_rendezvous_handler("env", _by_environment)
register_rendezvous_handler("file", _by_file)
