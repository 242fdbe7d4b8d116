"""How large the cache on disk becomes: what goes first, what stays, what others notice; `kiln.cache`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_disk import PROGRAM, ROOT, filled, run  # noqa: F401

import kiln
from kiln import files
from kiln.codegen.store import cache as kept
from kiln.codegen.store.cache import DEFAULT_LIMIT, DiskCache, cache_limit

DAY = 86400
LIMIT = 120


def key(group: int, number: int, last: int = 1) -> bytes:
    """The name of an entry of some identity; only those that end in 0 have the folder looked through."""
    return bytes([group] * 8) + number.to_bytes(23, "little") + bytes([last])


def fill(cache: DiskCache, ages: dict[bytes, float]) -> Path:
    """Entries of 8 KB, last used so many days ago."""
    assert cache.path is not None
    folder, now = Path(cache.path) / "kernels", time.time()
    for name, days in ages.items():
        assert cache.store(name, bytes(5000))
        os.utime(folder / name.hex(), (now - days * DAY,) * 2)
    return folder


def names(folder: Path) -> set[bytes]:
    return {bytes.fromhex(p.name) for p in folder.iterdir()}


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    """Until a quarter is free; only when there is more than the limit; what is written just now stays."""
    cache = DiskCache(str(tmp_path), limit=20 * 8192)
    ages = {key(1, k): 40 - k for k in range(19)}
    folder = fill(cache, ages)
    assert cache.store(key(1, 99, 0), bytes(5000)) and len(names(folder)) == 20
    assert cache.store(key(1, 98), bytes(5000)) and len(names(folder)) == 21
    assert cache.store(key(1, 97, 0), bytes(5000))
    newest = sorted(ages, key=ages.__getitem__)[:12]
    assert names(folder) == {*newest, key(1, 99, 0), key(1, 98), key(1, 97, 0)}


def test_other_versions_go_first(tmp_path: Path) -> None:
    """All of an identity of which nothing was used for longer, though some of this one were used before that;
    of two that were used today, what each did not use for longest.
    """
    cache = DiskCache(str(tmp_path), limit=20 * 8192)
    old = {key(2, k): 3 + k / 100 for k in range(8)}
    ours = {key(1, k): 50 - k for k in range(10)}
    folder = fill(cache, {**old, **ours})
    cache.store(key(1, 99, 0), bytes(5000))
    assert names(folder) == {*old, *ours, key(1, 99, 0)}
    cache.limit = 14 * 8192
    cache.store(key(1, 98, 0), bytes(5000))
    assert names(folder) == {*ours, key(1, 99, 0), key(1, 98, 0)} - {key(1, 0), key(1, 1)}
    fill(cache, {key(3, 1): 0.0, key(3, 2): 45.5})
    cache.limit = 11 * 8192
    cache.store(key(1, 97, 0), bytes(5000))
    assert names(folder) == {*(key(1, k) for k in range(6, 10)), key(1, 99, 0), key(1, 98, 0), key(1, 97, 0),
                             key(3, 1)}  # fmt: skip


def test_a_use_is_noted_once_a_day(tmp_path: Path) -> None:
    """By who reads an entry last used more than a day before; a use after that writes nothing."""
    cache = DiskCache(str(tmp_path))
    folder = fill(cache, {key(1, 1): 1.1, key(1, 2): 0.9})
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    for name in (key(1, 1), key(1, 2)):
        assert cache.load(name) == bytes(5000)
    after = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert after[key(1, 2).hex()] == before[key(1, 2).hex()]
    assert abs(after[key(1, 1).hex()] / 1e9 - time.time()) < 600
    assert cache.load(key(1, 1)) is not None
    assert after == {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    fill(cache, {key(1, 3): 5})
    damaged = folder / key(1, 3).hex()
    damaged.write_bytes(damaged.read_bytes()[:-1])
    os.utime(damaged, (1, 1))
    assert cache.load(key(1, 3)) is None and damaged.stat().st_mtime == 1  # no use


def test_the_folder_is_seldom_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one in 256 entries that are written, if a sixteenth of the limit was; for none that is read."""
    looked: list[int] = []
    monkeypatch.setattr(kept, "_make_room", lambda directory, limit: looked.append(limit))
    cache = DiskCache(str(tmp_path), limit=32 << 20)
    for last in range(256):
        assert cache.store(key(1, 0, last), b"x") and cache.load(key(1, 0, last)) == b"x"
    assert looked == [32 << 20]
    cache.store(key(2, 1, 0), b"x")
    assert len(looked) == 1
    cache.store(key(2, 2, 1), bytes(2 << 20))
    assert len(looked) == 1
    cache.store(key(2, 3, 0), b"x")
    cache.store(key(2, 4, 0), b"x")
    assert len(looked) == 2
    assert (cache.hits, cache.misses) == (256, 0)


def test_what_killed_writers_left_goes(tmp_path: Path) -> None:
    """Also what is called as it was before there were locks; nothing that a living one writes."""
    cache = DiskCache(str(tmp_path))
    folder = fill(cache, {key(1, 1): 0})
    for name in ("." + "ab" * 32, "." + "cd" * 32 + ".0123456789abcdef"):
        (folder / name).write_bytes(b"half")
    living = files.create(str(folder / ("." + key(1, 2).hex())), 0o600)
    assert not cache.store(key(1, 2), b"someone else is writing it")
    cache.store(key(1, 3, 0), b"x")
    assert {p.name for p in folder.iterdir()} == {
        key(1, 1).hex(), key(1, 3, 0).hex(), "." + key(1, 2).hex()
    }  # fmt: skip
    living.close()
    assert cache.store(key(1, 2), b"now it is ours") and cache.load(key(1, 2)) == b"now it is ours"


def test_what_is_not_an_entry_stays(tmp_path: Path) -> None:
    """Somebody's notes, folders and links, whatever the limit."""
    cache = DiskCache(str(tmp_path), limit=1)
    folder = fill(cache, {key(1, 1): 0})
    (folder / "notes").write_bytes(b"mine")
    (folder / ("ab" * 32)).mkdir()
    (folder / ("cd" * 32)).symlink_to("notes")
    cache.store(key(1, 2, 0), b"x")
    assert {p.name for p in folder.iterdir()} == {"notes", "ab" * 32, "cd" * 32}


def test_removing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process was faster, or nothing can be removed: the entry is kept all the same."""

    def fails(name: str, dir_fd: int | None = None) -> None:
        raise PermissionError(1, "no")

    cache = DiskCache(str(tmp_path), limit=1)
    fill(cache, {key(1, 1): 3})
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fails)
        assert cache.store(key(1, 2, 0), b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fails)
        assert cache.store(key(1, 3, 0), b"x")
    assert cache.load(key(1, 1)) and cache.load(key(1, 2, 0)) == b"x" == cache.load(key(1, 3, 0))


CLEARING = """
import kiln
print("here", flush=True)
while True:
    kiln.cache.clear()
    kiln.cache.limit(30000)
"""


def test_processes_whose_entries_vanish(filled: tuple[Path, str], tmp_path: Path) -> None:  # noqa: F811
    """While one removes everything all the time, others fill the folder, read from it and are right."""
    variables = {**os.environ, "KILN_CACHE_DIR": str(tmp_path), "KILN_CHECK": "0"}
    expected = filled[1]
    command = [sys.executable, "-c"]
    clearing = subprocess.Popen([*command, CLEARING], env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert clearing.stdout is not None and clearing.stdout.readline() == "here\n"
        others = [
            subprocess.Popen([*command, PROGRAM], env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        assert [other.communicate(timeout=LIMIT)[0] for other in others] == [expected] * 2
        assert clearing.poll() is None
    finally:
        clearing.kill()
        clearing.communicate()
    assert run(PROGRAM, tmp_path) == expected


def test_a_small_limit(filled: tuple[Path, str], tmp_path: Path) -> None:  # noqa: F811
    """Less than a program needs: it runs as ever; of nothing, no folder is made."""
    for limit in ("20K", "0"):
        assert run(PROGRAM, tmp_path / limit, KILN_CACHE_LIMIT=limit) == filled[1]
    assert not (tmp_path / "0").exists()


# -- kiln.cache ---------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("KILN_CACHE_LIMIT", raising=False)
    return tmp_path / "kernels"


def test_info_and_clear(place: Path) -> None:
    empty = (str(place.parent), 0, 0, DEFAULT_LIMIT)
    assert kiln.cache.info()[:4] == empty and not place.exists()
    cache = kept.disk()
    fill(cache, {key(1, k): k for k in range(3)})
    cache.load(key(1, 1)), cache.load(key(1, 1)), cache.load(key(1, 7))
    there = kiln.cache.info()
    assert there == (str(place.parent), 3, 3 * 8192, DEFAULT_LIMIT, 2, 1)
    assert (there.folder, there.entries, there.bytes, there.limit, there.hits, there.misses) == there
    assert kiln.cache.clear() == 3 and kiln.cache.info()[:4] == empty
    assert (kiln.ones(7) + 1).tolist() == [2.0] * 7


def test_limit(place: Path) -> None:
    """What is set makes room at once, and holds for what is written from then on."""
    assert kiln.cache.limit() == DEFAULT_LIMIT
    cache = kept.disk()
    fill(cache, {key(1, k): 9 - k for k in range(9)})
    assert kiln.cache.limit(8 * 8192) == 8 * 8192 == kiln.cache.info().limit
    assert names(place) == {key(1, k) for k in range(3, 9)}
    assert kiln.cache.limit(0) == 0 and names(place) == set()
    assert not cache.store(key(1, 1), b"x")
    for wrong in (-1, 1.5, "1G"):
        with pytest.raises(ValueError, match="limit: expected a number of bytes"):
            kiln.cache.limit(wrong)  # type: ignore[arg-type]


def test_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None to be had, or one that is not ours alone: nothing there, nothing to clear."""
    monkeypatch.setenv("HOME", "/")
    for name in ("KILN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert kiln.cache.info()[:3] == (None, 0, 0) and kiln.cache.clear() == 0
    fill(DiskCache(str(tmp_path)), {key(1, 1): 0})
    (tmp_path / "kernels").chmod(0o755)
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    assert kiln.cache.info()[:3] == (str(tmp_path), 0, 0) and kiln.cache.clear() == 0
    assert kiln.cache.limit(0) == 0 and len(names(tmp_path / "kernels")) == 1


def test_the_limit_of_the_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, nbytes in {
        "0": 0, "12345": 12345, "3K": 3 << 10, "500m": 500 << 20, "2G": 2 << 30, "": DEFAULT_LIMIT
    }.items():  # fmt: skip
        monkeypatch.setenv("KILN_CACHE_LIMIT", text)
        assert cache_limit() == nbytes
    for text in ("-1", "1.5G", "G", "many", "1 G", "²"):
        monkeypatch.setenv("KILN_CACHE_LIMIT", text)
        with pytest.raises(ValueError, match="KILN_CACHE_LIMIT: expected bytes"):
            cache_limit()


def test_only_who_writes_pays(filled: tuple[Path, str]) -> None:  # noqa: F811
    """A process that finds everything imports nothing that writes, locks or looks through folders."""
    check = "\nassert not {'kiln.files', 'kiln.codegen.store.room', 'kiln.cache', 'fcntl'} & set(sys.modules)"
    assert run(PROGRAM + check, filled[0]) == filled[1]
