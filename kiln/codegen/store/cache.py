"""The cache on disk: entries by key, written whole or not at all, used only if nothing touched them.

    <directory>/kernels/            0700, ours, checked on the opened descriptor
        <key as 64 hex digits>      magic | key | hash of the content | length | content
                                    (native/program/entry.h)
        .<key as 64 hex digits>     one that is being written; its writer holds it locked (kiln/files.py)

An entry is a kernel's object, or an answer of `kiln.capture.service`. A key is the hash of what the entry is
and of the version of kiln, LLVM and the machine it is for; so nothing ever has to be removed to be right.
What was not used for longest is removed (`room.py`) when there is more than $KILN_CACHE_LIMIT: an entry's
time is that of its last use, to within a day. Whoever looks for it afterwards makes it anew.

The directory is $KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln, else none. Nothing here
raises for a state of the file system: what cannot be read is a miss, what cannot be written is not kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from kiln import _core
from kiln.errors import message
from kiln.late import later

T = TypeVar("T")

DEFAULT_LIMIT = 256 << 20  # bytes: some fifty thousand entries, of which a large program uses a thousand

_create, _write_all, _discard = (later("kiln.files", name) for name in ("create", "write_all", "discard"))
_make_room = later("kiln.codegen.store.room", "make_room")


def cache_directory() -> str | None:
    """Where kernels are kept, by the environment; None if there is no place."""
    chosen = os.environ.get("KILN_CACHE_DIR")
    if chosen:
        return chosen
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and os.path.isabs(shared):
        return os.path.join(shared, "kiln")
    home = os.path.expanduser("~")
    return os.path.join(home, ".cache", "kiln") if os.path.isabs(home) and home != "/" else None


def cache_limit() -> int:
    """How many bytes may be kept, by the environment: a number, with K, M or G for powers of 1024."""
    text = os.environ.get("KILN_CACHE_LIMIT")
    if not text:
        return DEFAULT_LIMIT
    number, unit = (text[:-1], text[-1].upper()) if text[-1] in "kKmMgG" else (text, "")
    if not (number.isascii() and number.isdigit()):
        raise ValueError(message("KILN_CACHE_LIMIT", "bytes, as 100000000 or 500M", repr(text)))
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


class DiskCache:
    """Entries in one directory; every method survives whatever is found there."""

    __slots__ = ("_directory", "_place", "_written", "hits", "limit", "misses", "path")

    def __init__(self, path: str | None, limit: int = DEFAULT_LIMIT) -> None:
        self.path, self.limit = path, limit
        self.hits = self.misses = 0
        self._directory: int | None = None
        self._place = (0, 0)  # its device and inode
        self._written = limit  # bytes since the folder was looked through

    def load(self, key: bytes) -> bytes | None:
        """The content stored under `key` (32 bytes), or None."""
        try:
            directory = self._open(create=False)
        except OSError:
            return None
        found = None if directory is None else _core.read_entry(directory, key)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def store(self, key: bytes, data: bytes) -> bool:
        """Keep content under `key`; False where that was not possible."""
        try:
            directory = self._open(create=True) if self.limit else None
            if directory is None or not _put(directory, key.hex(), _core.header_of_entry(key, data) + data):
                return False
            self._written += len(data) + 4096  # a file ends in the middle of a block
            if not key[-1] and self._written >= self.limit // 16:  # one key in 256, if much was written
                self._written = 0
                _make_room(directory, self.limit)
            return True
        except OSError:
            return False

    def apply(self, work: Callable[[int], T]) -> T | None:
        """What `work` makes of the opened directory; None where there is none, or it cannot be read."""
        try:
            directory = self._open(create=False)
            return None if directory is None else work(directory)
        except OSError:
            return None

    def _open(self, create: bool) -> int | None:
        """A descriptor of the directory, checked to be ours and private; None if there is none to trust."""
        if self._directory is not None and not self._still_open():
            self._directory = None
        if self._directory is not None or self.path is None:
            return self._directory
        path = os.path.join(self.path, "kernels")
        if create:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        state = os.fstat(directory)
        if state.st_uid != os.geteuid() or state.st_mode & 0o077:
            os.close(directory)
            return None
        self._directory, self._place = directory, (state.st_dev, state.st_ino)
        return directory

    def _still_open(self) -> bool:
        """Whether the descriptor is ours: a program may close all it did not open, and then open its own."""
        try:
            state = os.fstat(self._directory)  # type: ignore[arg-type]
        except OSError:
            return False
        return (state.st_dev, state.st_ino) == self._place

    def close(self) -> None:
        """Forget the opened directory."""
        if self._directory is not None and self._still_open():
            os.close(self._directory)
        self._directory = None


_disk = DiskCache(None)


def disk() -> DiskCache:
    """The cache of the directory that the environment names now."""
    global _disk
    path = cache_directory()
    if path != _disk.path:
        _disk = DiskCache(path, cache_limit())
    return _disk


def _put(directory: int, name: str, entry: bytes) -> bool:
    """Write a file beside its place and move it there; False where another process is writing it."""
    file = _create("." + name, 0o600, directory)
    if file is None:
        return False
    with file:
        try:
            _write_all(file, [entry])
            os.rename("." + name, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            _discard(file, "." + name, directory)
            raise
    return True
