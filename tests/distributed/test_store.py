"""Stores: each call in every one, from several threads and processes, and what must not harm a server."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from backend import needs_torch, torch

from kiln.distributed.errors import DistError, DistNetworkError, DistStoreError
from kiln.distributed.store import FileStore, HashStore, PrefixStore, QueueEmptyError, Store, TCPStore, tcp
from kiln.distributed.store.table import HEADER, LONGEST, MAGIC, Op, packed

fork = multiprocessing.get_context("fork")
SHORT, LONG = timedelta(milliseconds=20), timedelta(seconds=60)


def tcp_store(**options: Any) -> TCPStore:
    return TCPStore("localhost", 0, is_master=True, timeout=LONG, **options)


@pytest.fixture(params=["tcp", "file", "hash", "prefix"])
def store(request: Any, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "tcp":
            yield tcp_store()
        case "file":
            yield FileStore(str(tmp_path / "store"), 1)
        case "hash":
            yield HashStore()
        case _:
            yield PrefixStore("outer", PrefixStore("inner", tcp_store()))


def finished(process: Any) -> None:
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0


def test_calls_of_every_store(store: Store) -> None:
    store.set("text", "x")
    store.set("bytes", b"\xff\0")
    store.set("", "an empty key")
    assert (store.get("text"), store.get("bytes"), store.get("")) == (b"x", b"\xff\0", b"an empty key")
    assert (store.add("n", 3), store.add("n", -5), store.get("n")) == (3, -2, b"-2")
    assert (store.check(["text", "n"]), store.check(["text", "q"]), store.check([])) == (True, False, True)
    assert store.wait(["text", "n"]) is None
    # a key without a value: what was expected, unless that is nothing
    assert store.compare_set("c", "old", "new") == b"old" and not store.check(["c"])
    assert store.compare_set("c", "", "new") == b"new" == store.get("c")
    assert store.compare_set("c", "other", "newer") == b"new"
    assert store.compare_set("c", "new", "newer") == b"newer" == store.get("c")
    assert (store.delete_key("c"), store.delete_key("c"), store.check(["c"])) == (True, False, False)
    store.multi_set(["a", "b"], ["1", b"2"])
    assert store.multi_get(["b", "a"]) == [b"2", b"1"] and store.has_extended_api()
    store.append("a", "0")
    store.append("fresh", "z")
    assert store.multi_get(["a", "fresh"]) == [b"10", b"z"]
    assert sorted(store.list_keys()) == ["", "a", "b", "bytes", "fresh", "n", "text"]
    assert store.num_keys() - len(store.list_keys()) in (0, 1)  # one by which users are counted


def test_queues_of_every_store(store: Store) -> None:
    assert store.queue_len("q") == 0
    for value in "123":
        store.queue_push("q", value)
    assert store.queue_len("q") == 3
    assert [store.queue_pop("q"), store.queue_pop("q", False), store.queue_pop("q")] == [b"1", b"2", b"3"]
    with pytest.raises(QueueEmptyError, match="queue is empty"):
        store.queue_pop("q", False)


def test_mistakes_in_every_store(store: Store) -> None:
    store.set("word", "x")
    with pytest.raises(ValueError, match="a key that has a number, but its value is b'x'"):
        store.add("word", 1)
    with pytest.raises(ValueError, match="not a number of 64 bits"):
        store.add("n", 1 << 63)
    with pytest.raises(DistStoreError, match="must be of same size"):
        store.multi_set(["a"], [])
    with pytest.raises(TypeError, match="keys are str, but got int"):
        store.set(1, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="values are str or bytes, but got float"):
        store.set("x", 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a datetime.timedelta, but got int"):
        store.set_timeout(3)  # type: ignore[arg-type]
    assert store.get("word") == b"x"  # it goes on


def test_what_is_not_there_in_time_is_named(store: Store) -> None:
    store.set("there", "x")
    with pytest.raises(DistStoreError, match="wait timeout after 20ms, keys: .*/missing") as caught:
        store.wait(["there", "missing"], SHORT)
    assert isinstance(caught.value, DistError) and isinstance(caught.value, RuntimeError)
    assert store.timeout != SHORT
    store.set_timeout(SHORT)
    assert store.timeout == SHORT
    for call in (store.get, store.queue_pop, lambda key: store.multi_get(["there", key])):
        with pytest.raises(DistStoreError, match="wait timeout after 20ms"):
            call("missing")
    assert store.get("there") == b"x"


def test_a_wait_ends_when_the_last_of_its_keys_is_there(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(store.multi_get, ["a", "b"]), pool.submit(store.queue_pop, "q")]
        counted = pool.submit(store.get, "n")
        store.set("b", "2")
        store.add("n", 4)
        store.queue_push("q", "3")
        assert counted.result(60) == b"4" and waits[1].result(60) == b"3"
        assert not waits[0].done()
        store.set("a", "1")
        assert waits[0].result(60) == [b"1", b"2"]


def test_threads_share_a_store(store: Store) -> None:
    def counts(thread: int) -> list[int]:
        store.set(f"thread {thread}", str(thread))
        return [store.add("n", 1) for _ in range(50)]

    with ThreadPoolExecutor(4) as pool:
        sums = [n for found in pool.map(counts, range(4)) for n in found]
    assert sorted(sums) == list(range(1, 201))
    assert store.multi_get([f"thread {i}" for i in range(4)]) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_processes_share_a_store(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    store: Store = tcp_store() if kind == "tcp" else FileStore(path)
    port = store.port if isinstance(store, TCPStore) else 0

    def child(rank: int) -> None:
        # inherited, and one of its own
        own = TCPStore("localhost", port, timeout=LONG) if kind == "tcp" else FileStore(path)
        for _ in range(25):
            store.add("n", 1)
            own.add("n", 1)
        own.queue_push("done", str(rank))
        assert store.get("go") == b"on"

    processes = [fork.Process(target=child, args=(rank,)) for rank in range(3)]
    for process in processes:
        process.start()
    assert sorted(store.queue_pop("done") for _ in processes) == [b"0", b"1", b"2"]
    assert store.get("n") == b"150"
    store.set("go", "on")
    for process in processes:
        finished(process)


def test_a_prefix_is_of_the_keys_alone() -> None:
    base = HashStore()
    store = PrefixStore("a", PrefixStore("b", base))
    store.set("key", "x")
    assert base.list_keys() == ["b/a/key"] and store.list_keys() == ["key"]
    assert store.underlying_store.get("a/key") == b"x"
    assert store._underlying_non_prefix_store is base
    store.set_timeout(SHORT)
    assert base.timeout == SHORT


def test_a_store_of_the_users_own_below_a_prefix() -> None:
    class Noted(Store):
        def __init__(self) -> None:
            self.sets: list[tuple[str, str | bytes]] = []

        def set(self, key: str, value: str | bytes) -> None:
            self.sets.append((key, value))

    noted = Noted()
    PrefixStore("p", noted).set("k", "v")
    assert noted.sets == [("p/k", "v")]
    with pytest.raises(NotImplementedError, match="Noted has no get"):
        noted.get("k")


# ---- TCPStore ----


def test_the_server_listens_on_the_loopback_interface_alone() -> None:
    for host in ("localhost", "127.0.0.1", "0.0.0.0"):
        store = TCPStore(host, 0, is_master=True, timeout=LONG)
        assert (store.host, store.port > 0) == (host, True)
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
        assert [a for a in listening if a.endswith(f":{store.port:04X}")] == [f"0100007F:{store.port:04X}"]


def test_a_master_waits_for_its_workers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def worker(rank: int) -> None:  # comes before the server is there, or after
        TCPStore("127.0.0.1", port, 3, False, LONG).add("came", 1)

    processes = [fork.Process(target=worker, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    store = TCPStore("127.0.0.1", port, 3, True, LONG)
    for process in processes:
        finished(process)
    assert store.get("came") == b"2"


def test_who_does_not_come_is_counted() -> None:
    with pytest.raises(
        DistStoreError, match=r"Timed out after 0.02 seconds waiting for clients. 1/2 clients"
    ):
        TCPStore("localhost", 0, 2, True, SHORT)


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(DistNetworkError, match=rf"timed out after 20ms .* \(localhost, {port}\)"):
        TCPStore("localhost", port, timeout=SHORT)
    for wrong in (-1, 1 << 16):
        with pytest.raises(ValueError, match=f"from 0 to 65535 but was {wrong}"):
            TCPStore("localhost", wrong)


def test_a_port_is_one_masters_unless_it_is_shared() -> None:
    first = tcp_store(multi_tenant=True)
    with pytest.raises(DistNetworkError, match=f"failed to listen on any .* port: {first.port}"):
        TCPStore("localhost", first.port, is_master=True, timeout=LONG)
    second = TCPStore("localhost", first.port, is_master=True, timeout=LONG, multi_tenant=True)
    first.set("key", "x")
    del first
    gc.collect()
    assert second.get("key") == b"x"  # the server is there while one of them is


def test_a_server_ends_with_its_store() -> None:
    def servers() -> int:
        return sum(thread.name == "kiln store" for thread in threading.enumerate())

    before, store = servers(), tcp_store()
    client = TCPStore("localhost", store.port, timeout=LONG)
    port = store.port
    assert servers() == before + 1
    del store
    gc.collect()
    assert servers() == before
    with pytest.raises(DistNetworkError, match=f"localhost:{port} has ended"):
        client.get("key")


def test_a_socket_that_listens_already() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with pytest.raises(ValueError, match=f"is bound to port {port}, expected to be bound to port 1"):
        TCPStore("localhost", 1, is_master=True, master_listen_fd=listener.fileno())
    store = TCPStore("localhost", port, is_master=True, timeout=LONG, master_listen_fd=listener.detach())
    assert (store.port, store.add("n", 1)) == (port, 1)


def serve_until_a_client_waits(tells: Any) -> None:
    store = tcp_store(multi_tenant=True)
    tells.send(store.port)
    server = tcp._shared[store.port].server
    while not server._waiting:
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_client_that_waits_learns_at_once_that_the_server_was_killed() -> None:
    told, tells = fork.Pipe(False)
    process = fork.Process(target=serve_until_a_client_waits, args=(tells,))
    process.start()
    port = told.recv()
    store = TCPStore("localhost", port, timeout=LONG)
    with pytest.raises(DistNetworkError, match=f"the server at localhost:{port} has ended"):
        store.get("never")
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_a_child_of_the_master_does_not_keep_the_server_alive() -> None:
    """A process that was forked while clients were connected inherits the server's ends of connections."""
    store = tcp_store()
    client = TCPStore("localhost", store.port, timeout=LONG)
    goes, told = fork.Pipe()
    process = fork.Process(target=goes.recv)
    process.start()
    del store
    gc.collect()
    with pytest.raises(DistNetworkError, match="has ended"):
        client.get("key")
    told.send("end")
    finished(process)


def strangers() -> dict[str, bytes]:
    def message(**changes: int) -> bytes:
        header = {"size": 0, "kind": int(Op.KEYS), "keys": 0, "fields": 0} | changes
        return HEADER.pack(MAGIC, *header.values())

    one = struct.pack("<I", 1 << 31)
    return {
        "another protocol": b"GET / HTTP/1.1\r\n\r\n",
        "a header's first bytes, wrong": b"kx",
        "too long": message(size=LONGEST + 1),
        "more keys than fields": message(size=8, keys=2, fields=1),
        "more fields than bytes": message(size=8, fields=1 << 19),
        "a field beyond the end": message(size=4, fields=1) + one,
        "bytes beyond the fields": message(size=8, fields=1) + struct.pack("<II", 0, 0),
        "no such operation": packed(99, [], [b"1"]),
        "keys that the operation has not": packed(Op.ADD, [b"/a", b"/b"], [b"1", b"1"]),
        "no time": packed(Op.KEYS, [], []),
        "a time that is none": packed(Op.KEYS, [], [b"-1"]),
        "a long time": packed(Op.KEYS, [], [b"9" * 16]),
        "keys without values": packed(Op.SET, [b"/a"], [b"1"]),
        "two requests at once": 2 * packed(Op.KEYS, [], [b"1"]),
        "a second request while the first waits": packed(Op.GET, [b"/never"], [b"60000"]) + b"k",
    }


@pytest.mark.parametrize("case", strangers())
def test_who_sends_no_request_is_dropped_without_harm(case: str) -> None:
    store = tcp_store()
    store.set("key", "x")
    with socket.create_connection(("127.0.0.1", store.port), timeout=60) as stranger:
        stranger.sendall(strangers()[case])
        assert stranger.recv(100) == b""
    assert store.get("key") == b"x"


def test_a_client_that_reads_no_answers_harms_nobody() -> None:
    store = tcp_store()
    store.set("long", bytes(1 << 24))
    with socket.create_connection(("127.0.0.1", store.port), timeout=60) as lazy:
        lazy.sendall(packed(Op.GET, [b"/long"], [b"1000"]))
        assert lazy.recv(4) == MAGIC
        assert store.add("n", 1) == 1
        assert len(store.get("long")) == 1 << 24


def test_a_value_that_is_too_long_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = tcp_store()
    monkeypatch.setattr("kiln.distributed.store.table.LONGEST", 1000)
    with pytest.raises(ValueError, match="a store takes 1000 bytes"):
        store.set("key", bytes(1001))
    store.set("key", bytes(900))
    store.append("key", bytes(900))
    with pytest.raises(ValueError, match="a store takes 1000 bytes"):
        store.get("key")
    assert store.check(["key"])


def test_waits_that_were_answered_are_not_kept() -> None:
    store = tcp_store()
    with ThreadPoolExecutor(1) as pool:
        for i in range(60):
            waits = pool.submit(store.get, f"key {i}")
            store.set(f"key {i}", "x")
            assert waits.result(60) == b"x"
    server = [o for o in gc.get_objects() if type(o).__name__ == "Server" and o.port == store.port][0]
    assert len(server._deadlines) <= 2 * len(server._clients) + 16 and not server._waiting


# ---- FileStore ----


def test_the_last_of_its_users_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    first, second = FileStore(str(path), 2), FileStore(str(path), 2)
    assert first.path == str(path)
    del first
    gc.collect()
    assert path.exists() and second.add("n", 1) == 1
    del second
    gc.collect()
    assert not path.exists()
    kept = FileStore(str(path))
    kept.set("key", "x")
    del kept
    gc.collect()
    assert FileStore(str(path)).get("key") == b"x"


def test_a_child_that_inherited_a_store_is_no_user(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "store"), 1)

    def child() -> None:
        nonlocal store
        store.set("from", "child")
        del store
        gc.collect()

    process = fork.Process(target=child)
    process.start()
    finished(process)
    assert store.get("from") == b"child"


def test_a_record_whose_writer_was_killed_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store"
    FileStore(str(path)).set("a", "1")
    whole = path.read_bytes()
    FileStore(str(path)).set("b", "2" * 100)
    longer = path.read_bytes()
    for cut in {*range(len(whole), longer.index(b"2" * 100) + 100, 17), *range(17)}:
        torn = tmp_path / f"{cut}"
        torn.write_bytes(longer[:cut])
        store = FileStore(str(torn))
        assert store.check(["b"]) is False and store.check(["a"]) is (cut >= len(whole))
        store.set("c", "3")
        assert FileStore(str(torn)).get("c") == b"3"


def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    FileStore(str(path)).set("a", "1" * 50)
    damaged = bytearray(path.read_bytes())
    damaged[-10] ^= 1
    forged = b"kilnkv1\n12345678" + struct.pack("<II", 0xEB8EBA67, 3) + b"xyz"
    for content in (b"a letter to a friend", b"short", bytes(damaged), forged):
        path.write_bytes(content)
        with pytest.raises(DistStoreError, match=f"{path} is not a store's, or it was damaged"):
            FileStore(str(path))
        assert path.read_bytes() == content


def test_a_file_that_has_no_room_keeps_the_keys_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = FileStore(str(path))
        store.set("a", "1")
        limit = path.stat().st_size + 50
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="too large"):
            store.set("a", "2" * 1000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert (store.get("a"), store.add("n", 1)) == (b"1", 1)

    process = fork.Process(target=child)
    process.start()
    finished(process)
    assert FileStore(str(path)).multi_get(["a", "n"]) == [b"1", b"1"]


def test_a_file_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = FileStore(str(path))
    store.set("old", "x")
    path.unlink()
    assert store.check(["old"]) is False
    FileStore(str(path)).set("new", "y")
    assert store.get("new") == b"y"


# ---- beside PyTorch ----


@needs_torch
@pytest.mark.parametrize("kind", [TCPStore, FileStore, HashStore, PrefixStore])
def test_names_are_pytorchs(kind: type[Store]) -> None:
    theirs = {name for name in dir(getattr(torch.distributed, kind.__name__)) if not name.startswith("_")}
    assert theirs - set(dir(kind)) <= {"barrier", "clone", "libuvBackend"}
