"""The cache on disk: entries by key, written whole or not at all, used only if nothing touched them.

    <directory>/kernels/            0700, ours, checked on the opened descriptor
        <key as 64 hex digits>      magic | key | hash of the content | length | content     (native/entry.h)

An entry is a kernel's object, or an answer of `kiln.capture.service`. A key is the hash of what the entry is
and of the version of kiln, LLVM and the machine it is for; so nothing ever has to be removed to be right.

The directory is $KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln, else none. Nothing here
raises for a state of the file system: what cannot be read is a miss, what cannot be written is not kept.
"""

from __future__ import annotations

import os

from kiln import _core


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


class DiskCache:
    """Entries in one directory; every method survives whatever is found there."""

    __slots__ = ("_directory", "path")

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._directory: int | None = None

    def load(self, key: bytes) -> bytes | None:
        """The content stored under `key` (32 bytes), or None."""
        try:
            directory = self._open(create=False)
        except OSError:
            return None
        return None if directory is None else _core.read_entry(directory, key)

    def store(self, key: bytes, data: bytes) -> bool:
        """Keep content under `key`; False where that was not possible."""
        try:
            directory = self._open(create=True)
        except OSError:
            return False
        if directory is None:
            return False
        name = f".{key.hex()}.{os.urandom(8).hex()}"  # one who was killed may have left his
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(name, flags, 0o600, dir_fd=directory)
        except OSError:
            return False
        try:
            try:
                _write(file, _core.header_of_entry(key, data) + data)
            finally:
                os.close(file)
            os.rename(name, key.hex(), src_dir_fd=directory, dst_dir_fd=directory)
            return True
        except OSError:
            _remove(name, directory)
            return False

    def _open(self, create: bool) -> int | None:
        """A descriptor of the directory, checked to be ours and private; None if there is none to trust."""
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
        self._directory = directory
        return directory

    def close(self) -> None:
        """Forget the opened directory."""
        directory, self._directory = self._directory, None
        if directory is not None:
            os.close(directory)


_disk = DiskCache(None)


def disk() -> DiskCache:
    """The cache of the directory that the environment names now."""
    global _disk
    path = cache_directory()
    if path != _disk.path:
        _disk = DiskCache(path)
    return _disk


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _remove(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass
