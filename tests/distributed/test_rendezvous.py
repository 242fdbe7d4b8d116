"""From a URL to a store, and what is said where something is missing."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kiln.distributed.rendezvous import register_rendezvous_handler, rendezvous
from kiln.distributed.store import FileStore, HashStore, TCPStore

fork = multiprocessing.get_context("fork")
LONG = timedelta(seconds=60)
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def both(first: Any, second: Any) -> tuple[int, int]:
    """Two processes meet, each at its rank: the other writes what this one reads."""

    def child() -> None:
        store, rank, _ = next(second())
        store.set("other", str(rank))

    process = fork.Process(target=child)
    process.start()
    store, rank, size = next(first())
    assert store.get("other") == b"1"
    process.join(60)
    assert process.exitcode == 0
    return rank, size


def test_processes_meet_at_an_address() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    assert both(
        lambda: rendezvous(f"{url}?rank=0&world_size=2", timeout=LONG),
        lambda: rendezvous(url, 1, 2, timeout=LONG),
    ) == (0, 2)


def test_processes_meet_by_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**ENVIRONMENT, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    assert both(
        lambda: rendezvous("env://", timeout=LONG), lambda: rendezvous("env://", rank=1, timeout=LONG)
    ) == (0, 2)


def test_processes_meet_in_a_file(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    assert both(lambda: rendezvous(url, 0, 2), lambda: rendezvous(f"{url}?rank=1&world_size=2")) == (0, 2)


def test_the_program_that_started_the_ranks_may_have_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = TCPStore("127.0.0.1", 0, is_master=True, timeout=LONG)
    for name, value in {**ENVIRONMENT, "WORLD_SIZE": "1", "MASTER_PORT": str(agent.port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store, rank, size = next(rendezvous("env://", timeout=LONG))
    store.set("key", "x")
    assert (agent.get("key"), rank, size) == (b"x", 0, 1)


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_a_variable_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other, value in ENVIRONMENT.items():
        monkeypatch.setenv(other, value)
    monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=f"env:// rendezvous: environment variable {name} expected, but not"):
        next(rendezvous("env://"))


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        ("tcp://localhost?rank=0&world_size=1", ValueError, "tcp:// rendezvous: port number missing"),
        ("tcp://localhost:1?world_size=1", ValueError, "tcp:// rendezvous: rank parameter missing"),
        ("tcp://localhost:1?rank=0", ValueError, "tcp:// rendezvous: world size parameter missing"),
        ("file://?rank=0&world_size=1", ValueError, "file:// rendezvous: path missing"),
        ("file:///tmp/x?rank=0", ValueError, "file:// rendezvous: world size parameter missing"),
        ("nothing://x", RuntimeError, "No rendezvous handler for nothing://"),
        (3, RuntimeError, "`url` must be a string."),
    ],
)
def test_a_url_that_says_too_little(url: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        next(rendezvous(url))


def test_a_rank_that_is_said_twice() -> None:
    with pytest.raises(AssertionError, match="has node-specific arguments"):
        next(rendezvous("tcp://localhost:1?rank=0&world_size=1", rank=0))
    with pytest.raises(RuntimeError, match="`rank` must be an integer. 1.5"):
        rendezvous("env://", rank=1.5)  # type: ignore[arg-type]


def test_a_scheme_of_the_users_own() -> None:
    store = HashStore()

    def handler(url: str, **kwargs: Any) -> Iterator[tuple[HashStore, int, int]]:
        yield store, len(url), kwargs["size"]

    register_rendezvous_handler("own", handler)
    assert next(rendezvous("own://", size=5)) == (store, 6, 5)
    with pytest.raises(RuntimeError, match="own:// already registered"):
        register_rendezvous_handler("own", handler)


def test_a_rendezvous_is_had_once(tmp_path: Path) -> None:
    found = rendezvous(f"file://{tmp_path}/store", 0, 1)
    assert isinstance(next(found)[0], FileStore)
    with pytest.raises(RuntimeError, match="Unable to perform rerendezvous"):
        next(found)
