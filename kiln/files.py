"""Writing files whole; a leaf that imports nothing of kiln but messages.

A path is replaced in one move: the content is written beside it, synced, renamed. What is written beside is
called `.name.kiln-0.tmp`, and its writer holds a lock on it (flock) while it lives. So the next one to write
that name tells what a killed process left, which it removes, from what another one is about to rename: then
it takes the next number. Process ids would not do: containers share folders and number their processes alike.
Where a file system has no locks nothing is removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from kiln.errors import describe, message

_ACCESS = "system.posix_acl_access"  # the extended attribute that is an access control list
LOOKED_AT = 16  # numbers above one's own that are looked at for what was left: there may be gaps between them


def write_to(file: Any, chunks: Iterable[Any]) -> None:
    """Write every byte to a file object. Any error has a note that the object now holds part of a file."""
    try:
        write_all(file, chunks)
        if hasattr(file, "flush"):
            file.flush()
    except BaseException as error:
        error.add_note("save: what the file object holds now is not a whole file")
        raise


def write_all(file: Any, chunks: Iterable[Any]) -> None:
    """Write every byte; one call may take only some of those it is given.

    BlockingIOError for a call that takes none for now, OSError for one that returns what cannot be.
    """
    done = 0
    for chunk in chunks:
        rest = memoryview(chunk)
        while len(rest):
            taken = file.write(rest)
            if taken is None:
                text = message("save", "write() to return how many bytes it took", "None: it would block")
                raise BlockingIOError(errno.EAGAIN, text, done)
            if not isinstance(taken, int) or not 0 < taken <= len(rest):
                text = message("save", f"write() to take 1 to {len(rest)} bytes", describe(taken))
                raise OSError(errno.EIO, text)
            rest, done = rest[taken:], done + taken


def write_atomically(path: str, chunks: Iterable[Any]) -> None:
    """Write beside `path`, sync, rename over it, sync the folder; a symlink's target is what is replaced.

    A file that is replaced gives its permissions, and its owner, access control list and attributes as far as
    the process may set them. PermissionError for one that may not be written.
    """
    path = _followed(path)
    old = _replaceable(path)
    try:
        file, beside = _begin(*os.path.split(path), 0o666 if old is None else 0o600)
    except FileNotFoundError as error:  # there is no such folder: nobody asked for the name beside
        error.filename = path
        raise
    with file:
        try:
            if old is not None:
                _make_like(file.fileno(), path, old)
            write_all(file, chunks)
            os.fsync(file.fileno())
            if not _is_at(file.fileno(), beside):  # a machine that does not see our locks
                raise FileNotFoundError(errno.ENOENT, "save: what was written was removed meanwhile", beside)
            os.replace(beside, path)
        except BaseException:
            discard(file, beside)
            raise
    _sync_folder(os.path.dirname(path))


def _followed(path: str) -> str:
    """Where a chain of symlinks ends; no folder on the way has to be one that the process may look into."""
    for _ in range(40):
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return path
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _replaceable(path: str) -> os.stat_result | None:
    """The state of the regular file at `path`, None if nothing is there; raises for anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise not_regular("save", path, found.st_mode)
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))  # whether one may
    return found


def not_regular(op: str, path: str, mode: int) -> OSError:
    """The error for what is no file."""
    folder = stat.S_ISDIR(mode)
    kind = "a directory" if folder else "a device, fifo or socket"
    return (IsADirectoryError if folder else OSError)(message(op, "a regular file", f"{kind} at {path!r}"))


def _begin(folder: str, name: str, mode: int) -> tuple[Any, str]:
    """A new file beside the one of that name, open and locked, and its path; removes what was left there."""
    numbered = (os.path.join(folder, f".{name[:50]}.kiln-{k}.tmp") for k in count())
    for beside in numbered:
        file = create(beside, mode)
        if file is not None:
            break
    for _ in range(LOOKED_AT):
        remove_abandoned(next(numbered))
    return file, beside


def create(path: str, mode: int, folder: int | None = None) -> Any:
    """A new file, open for writing and locked; None where a living process has one of that name."""
    # in C, so that no interrupt leaves a descriptor that nobody has
    opener = partial(os.open, mode=mode, dir_fd=folder)
    while True:
        try:
            file = open(path, "xb", buffering=0, opener=opener)
        except FileExistsError:
            if remove_abandoned(path, folder):
                continue
            return None
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(file.fileno(), path, folder):
            return file
        file.close()  # taken for abandoned before it was locked


def discard(file: Any, path: str, folder: int | None = None) -> None:
    """Remove an open file that could not be finished; not another one that is there by now."""
    with suppress(OSError):
        if _is_at(file.fileno(), path, folder):
            os.unlink(path, dir_fd=folder)


def remove_abandoned(path: str, folder: int | None = None) -> bool:
    """Remove a file that nobody holds locked; whether it was."""
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not stat.S_ISREG(os.fstat(file).st_mode) or not _is_at(file, path, folder):
            return False
        os.unlink(path, dir_fd=folder)
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def _is_at(file: int, path: str, folder: int | None = None) -> bool:
    """Whether an open file is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _make_like(file: int, path: str, old: os.stat_result) -> None:
    """Give a file what writing into the old one would have kept."""
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
        with suppress(OSError):  # not ours to give away
            os.fchown(file, owner, group)
    if hasattr(os, "listxattr"):
        with suppress(OSError):  # no such attribute: not the folder's default list
            os.removexattr(file, _ACCESS)
        with suppress(OSError):  # a file system without attributes
            for name in os.listxattr(path):
                if name == _ACCESS or name.startswith("user."):
                    os.setxattr(file, name, os.getxattr(path, name))
    os.fchmod(file, stat.S_IMODE(old.st_mode) & 0o777)


def _sync_folder(folder: str) -> None:
    """Make a rename last; where the folder may not be read, or cannot be synced, it lasts as it may."""
    with suppress(PermissionError):
        descriptor = os.open(folder or os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)
