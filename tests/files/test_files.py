"""Writing files: objects that take what they like, kills at any moment, other writers, what a path keeps."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import files

LIMIT = 240
LARGE = {"a": kiln.arange(100_000), "b": [kiln.ones(3), 1.5]}  # 0.8 MB
SMALL = {"a": kiln.arange(20), "b": kiln.ones(3, dtype=kiln.bfloat16), "c": kiln.zeros(0)}


def whole(obj: Any) -> bytes:
    """The file of an object."""
    file = io.BytesIO()
    kiln.save(obj, file)
    return file.getvalue()


# -- file objects -------------------------------------------------------------------------------------


class Raw(io.RawIOBase):
    """Takes what `taken` says of as many bytes as it is given."""

    def __init__(self, taken: Callable[[int], Any]) -> None:
        self.taken, self.content = taken, b""

    def writable(self) -> bool:
        return True

    def write(self, given: Any) -> Any:
        taken = self.taken(len(given))
        self.content += bytes(given[: taken if isinstance(taken, int) and taken > 0 else 0])
        return taken


@pytest.mark.parametrize("most", [1, 7, 300, 10**9])
def test_short_writes_are_continued(most: int) -> None:
    raw = Raw(lambda given: min(given, most))
    kiln.save(SMALL, raw)
    assert raw.content == whole(SMALL)


@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize(
    "answer, error, says",
    [
        (None, BlockingIOError, "would block"),
        (0, OSError, "int 0"),
        (-1, OSError, "int -1"),
        (10**9, OSError, "int 1000000000"),
        (2.0, OSError, "float 2.0"),
        ("all", OSError, "str 'all'"),
    ],
)
def test_what_write_may_not_return(after: int, answer: Any, error: type[OSError], says: str) -> None:
    """Nothing, or what cannot be, at any call: an error, which says that the object has part of a file."""
    calls = iter([3] * after)
    raw = Raw(lambda given: next(calls, answer))
    with pytest.raises(error, match=f"save: expected write.. to .*{says}") as caught:
        kiln.save(SMALL, raw)
    assert "not a whole file" in "".join(traceback.format_exception(caught.value))
    assert getattr(caught.value, "characters_written", 3 * after) == 3 * after


@pytest.mark.parametrize("buffering", [0, -1, 1 << 24])
def test_a_device_that_is_full(buffering: int) -> None:
    """Raw, or behind a buffer that is smaller or larger than the file: save raises, not a later close."""
    file = open("/dev/full", "wb", buffering=buffering)
    with pytest.raises(OSError, match="No space") as caught:
        kiln.save(LARGE, file)
    assert "not a whole file" in "".join(traceback.format_exception(caught.value))
    with pytest.raises(OSError, match="No space") if buffering else open(os.devnull):
        file.close()


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_pipe_that_does_not_wait(buffering: int) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    file = open(writer, "wb", buffering=buffering)
    with pytest.raises(BlockingIOError) as caught:
        kiln.save(LARGE, file)
    assert "not a whole file" in "".join(traceback.format_exception(caught.value))
    os.close(reader)
    with pytest.raises(BrokenPipeError) if buffering else open(os.devnull):
        file.close()


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_pipe_that_waits(buffering: int) -> None:
    reader, writer = os.pipe()
    got: list[bytes] = []
    with open(reader, "rb") as source:
        thread = threading.Thread(target=lambda: got.append(source.read()))
        thread.start()
        with open(writer, "wb", buffering=buffering) as file:
            kiln.save(LARGE, file)
        thread.join(LIMIT)
    assert got == [whole(LARGE)]


LIMITED = """
import io, resource, signal, sys, kiln
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
for buffering in (0, -1, 1 << 24):
    file = open(sys.argv[1], "wb", buffering=buffering)
    try:
        kiln.save(kiln.ones(4096), file)
    except OSError as error:
        print(error.errno, *error.__notes__)
    try:
        file.close()
    except OSError:
        pass
"""


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The first write is short, the second fails."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "x")], capture_output=True, text=True, timeout=LIMIT
    )
    said = f"{errno.EFBIG} save: what the file object holds now is not a whole file"
    assert done.stdout.splitlines() == [said] * 3, done.stderr


def test_files_of_the_standard_library(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x", "wb") as file:
        kiln.save(SMALL, file)  # type: ignore[arg-type]
    with gzip.open(tmp_path / "x", "rb") as file:
        assert file.read() == whole(SMALL)
    for text in (io.StringIO(), open(tmp_path / "y", "w")):
        with text, pytest.raises(TypeError, match="a path or a binary file"):
            kiln.save(SMALL, text)  # type: ignore[arg-type]


# -- kills --------------------------------------------------------------------------------------------

# forks; the child is killed at its n-th call or return, of Python or of C, while it saves
KILLS = """
import os, signal, sys, kiln
from itertools import count
from kiln import {what}

path = sys.argv[1]
{before}
def dies_at(n):
    events = count(1)
    def note(frame, event, what):
        if next(events) == n:
            os.kill(os.getpid(), signal.SIGKILL)
    return note

seen, left = set(), set()
for n in count(1):
    child = os.fork()
    if not child:
        sys.setprofile(dies_at(n))
        {save}
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    {check}
    left.add(len(os.listdir(os.path.dirname(path))))
    if not code:
        break
print(n > 100, sorted(seen), sorted(left))
"""


def run(program: str, *arguments: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_killed_at_every_moment_of_a_save(tmp_path: Path) -> None:
    """The file is the old one or the new one, never less; all that ever lies beside it is what the last one
    who was killed left, and the one who lives to the end removes that.
    """
    program = KILLS.format(
        what="serialization",
        before="kiln.save({'x': kiln.ones(4)}, path); new = {'x': kiln.zeros(4)}",
        save="kiln.save(new, path)",
        check="seen.add(kiln.load(path)['x'][0].item())",
    )
    assert run(program, str(tmp_path / "x")) == "True [0.0, 1.0] [1, 2]"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_killed_at_every_moment_of_keeping_an_entry(tmp_path: Path) -> None:
    """The same of the cache on disk."""
    program = KILLS.format(
        what="files",
        before="from kiln.codegen.store.cache import DiskCache\n"
        "cache, key = DiskCache(path), bytes(31) + b'1'\ncache.store(key, b'old'); path += '/kernels/x'",
        save="DiskCache(cache.path).store(key, b'new')",
        check="seen.add(cache.load(key))",
    ).replace("n > 100", "n > 30")
    assert run(program, str(tmp_path / "c")) == "True [b'new', b'old'] [1, 2]"
    assert len(list((tmp_path / "c" / "kernels").iterdir())) == 1


HALF = """
import os, resource, signal, sys, kiln
path, content = sys.argv[1], {"x": kiln.arange(300)}
kiln.save({"x": kiln.ones(4)}, path)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the file system kills who writes beyond the limit
for size in range(0, 2400, 90):
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        kiln.save(content, path)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ, size
    assert kiln.load(path)["x"].tolist() == [1.0] * 4
    assert len(os.listdir(os.path.dirname(path))) == 2
kiln.save(content, path)
"""


def test_killed_after_any_number_of_bytes(tmp_path: Path) -> None:
    run(HALF, str(tmp_path / "x"))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert kiln.load(tmp_path / "x")["x"].tolist() == list(range(300))


# -- several writers ----------------------------------------------------------------------------------

SLOW = """
import os, sys, kiln
from kiln import files
fsync = os.fsync
def wait(descriptor):
    print("written", flush=True)
    sys.stdin.readline()
    fsync(descriptor)
os.fsync = wait
kiln.save({"x": kiln.full((4,), float(sys.argv[2]))}, sys.argv[1])
"""


class Slow:
    """A process that has written beside a path and waits before it goes on."""

    def __init__(self, path: Path, value: int) -> None:
        command = [sys.executable, "-c", SLOW, str(path), str(value)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "written\n"

    def end(self) -> None:
        self.process.communicate("\n\n", timeout=LIMIT)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


def test_a_living_writers_file_stays(tmp_path: Path) -> None:
    """Others save meanwhile and are killed; who is about to rename finds what he wrote."""
    path = tmp_path / "x"
    writers = [Slow(path, k) for k in range(4)]
    kiln.save({"x": kiln.full((4,), 9.0)}, path)
    assert len(list(tmp_path.iterdir())) == 5 and kiln.load(path)["x"][0].item() == 9
    writers[1].kill()
    writers[3].kill()
    assert len(list(tmp_path.iterdir())) == 5
    kiln.save({"x": kiln.full((4,), 8.0)}, path)
    assert len(list(tmp_path.iterdir())) == 3
    for k in (2, 0):
        writers[k].end()
        assert kiln.load(path)["x"].tolist() == [float(k)] * 4
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_threads_save_one_path(tmp_path: Path) -> None:
    """Every reader sees a whole file of one of them."""
    path, errors = tmp_path / "x", []

    def save(k: int) -> None:
        try:
            for _ in range(20):
                kiln.save({"x": kiln.full((1000,), float(k))}, path)
                assert len(set(kiln.load(path)["x"].tolist())) == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not errors and [p.name for p in tmp_path.iterdir()] == ["x"]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Whatever has the name of what would be written beside: a link, a folder, a fifo, a file in use."""
    kinds: list[Callable[[Path], Any]] = [
        lambda p: p.symlink_to(tmp_path / "precious"),
        lambda p: p.mkdir(),
        lambda p: os.mkfifo(p),
        lambda p: files.create(str(p), 0o600),
    ]
    (tmp_path / "precious").write_bytes(b"precious")
    places = [tmp_path / f".x.kiln-{k}.tmp" for k in range(len(kinds))]
    kept = [make(place) for make, place in zip(kinds, places)]
    (tmp_path / f".x.kiln-{len(kinds) + 3}.tmp").write_bytes(b"left")
    kiln.save(SMALL, tmp_path / "x")
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"x", "precious", *(place.name for place in places)}
    assert (tmp_path / "precious").read_bytes() == b"precious"
    kept[-1].close()


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has none: files are written whole, and nothing is removed that may be in use."""

    def none(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", none)
    (tmp_path / ".x.kiln-0.tmp").write_bytes(b"whose?")
    kiln.save(SMALL, tmp_path / "x")
    assert {p.name for p in tmp_path.iterdir()} == {"x", ".x.kiln-0.tmp"}


def test_locks_that_others_do_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is taken away by another machine, which puts its own there: an error."""
    path = tmp_path / "x"
    kiln.save({"x": kiln.ones(4)}, path)
    fsync = os.fsync

    def stolen(descriptor: int) -> None:
        fsync(descriptor)
        (beside,) = tmp_path.glob(".*")
        beside.unlink()
        beside.write_bytes(b"half of ano")

    monkeypatch.setattr(os, "fsync", stolen)
    with pytest.raises(FileNotFoundError, match="removed meanwhile"):
        kiln.save(SMALL, path)
    assert kiln.load(path)["x"].tolist() == [1.0] * 4
    assert [p.read_bytes() for p in tmp_path.glob(".*")] == [b"half of ano"]


# -- what a path keeps --------------------------------------------------------------------------------


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "x", tmp_path / "link"
    before = os.umask(0o027)
    try:
        kiln.save({}, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    link.symlink_to(tmp_path / "between")
    (tmp_path / "between").symlink_to("x")
    for mode in (0o600, 0o664, 0o4755):
        path.chmod(mode)
        kiln.save({"x": kiln.ones(1)}, link)
        assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == mode & 0o777
    assert kiln.load(path)["x"].item() == 1.0
    dangling = tmp_path / "dangling"
    dangling.symlink_to("target")
    kiln.save({}, dangling)
    assert dangling.is_symlink() and kiln.load(tmp_path / "target") == {}
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        kiln.save({}, tmp_path / "loop")


def access_list(user: int) -> bytes:
    """An access control list that lets another user read: version, then (tag, permissions, id) of each."""
    everyone = 2**32 - 1
    lines = [(1, 6, everyone), (2, 4, user), (4, 4, everyone), (0x10, 4, everyone), (0x20, 0, everyone)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *line) for line in lines)


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if not name.startswith("security.")}


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes here")
def test_access_lists_are_kept(tmp_path: Path) -> None:
    """A file's own list is; the folder's default list is for new files, not for those that have none."""
    path = tmp_path / "x"
    kiln.save({}, path)
    try:
        os.setxattr(path, "system.posix_acl_access", access_list(12345))
        os.setxattr(path, "user.note", b"mine")
    except OSError:
        pytest.skip("this file system has none")
    before, mode = attributes(path), path.stat().st_mode
    kiln.save(SMALL, path)
    assert (attributes(path), path.stat().st_mode) == (before, mode) and len(before) == 2
    bare = tmp_path / "bare"
    kiln.save({}, bare)
    mode = bare.stat().st_mode
    os.setxattr(tmp_path, "system.posix_acl_default", access_list(54321))
    kiln.save(SMALL, bare)
    assert attributes(bare) == {} and bare.stat().st_mode == mode
    kiln.save(SMALL, tmp_path / "new")
    assert "system.posix_acl_access" in attributes(tmp_path / "new")


def as_user(user: int, folder: Path, work: Callable[[], Any]) -> Any:
    """What `work` raises (its type) or None in a child that is another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.setgroups([])
        os.setegid(user)
        os.seteuid(user)
        try:
            work()
            os.write(writer, b"None")
        except BaseException as error:
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        said = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_owners(tmp_path: Path) -> None:
    """Root gives back what it writes over; another user who may write a file becomes its owner; who may not
    write it, does not, also where the folder would let him.
    """
    path = tmp_path / "x"
    kiln.save({}, path)
    path.chmod(0o660)
    os.chown(path, 12345, 23456)
    kiln.save(SMALL, path)
    state = path.stat()
    assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (12345, 23456, 0o660)
    content = path.read_bytes()
    tmp_path.chmod(0o777)
    assert as_user(54321, tmp_path, lambda: kiln.save({}, "x")) == "PermissionError"
    os.chown(path, 54321, 54321)
    path.chmod(0o444)
    assert as_user(54321, tmp_path, lambda: kiln.save({}, "x")) == "PermissionError"
    assert path.read_bytes() == content and [p.name for p in tmp_path.iterdir()] == ["x"]
    os.chown(path, 12345, 23456)
    path.chmod(0o666)
    assert as_user(54321, tmp_path, lambda: kiln.save({}, "x")) == "None"
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (54321, 0o666)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_may_only_be_written(tmp_path: Path) -> None:
    """Nobody can list or sync it, and a file is saved there all the same."""
    os.chown(tmp_path, 54321, 54321)
    tmp_path.chmod(0o300)
    assert as_user(54321, tmp_path, lambda: kiln.save({}, "x")) == "None"
    assert kiln.load(tmp_path / "x") == {}


@pytest.mark.parametrize("name", ["x" * 255, "\N{FIRE}" * 60, "漢" * 85], ids=["1 byte", "4", "3"])
def test_long_names(name: str, tmp_path: Path) -> None:
    """As long as a file system takes."""
    kiln.save({}, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_interrupted_after_the_rename(tmp_path: Path) -> None:
    """An error after the rename does not take away what another process began meanwhile."""
    path, replace = tmp_path / "x", os.replace

    def late(source: str, target: str) -> None:
        replace(source, target)
        other.append(files.create(source, 0o600))
        raise KeyboardInterrupt

    other: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", late)
        with pytest.raises(KeyboardInterrupt):
            kiln.save(SMALL, path)
    assert path.exists() and len(list(tmp_path.glob(".*"))) == 1
    other[0].close()
