"""`FileStore`: the keys are in a file, for processes that see the same file system.

    file      "kilnkv1\\n", 8 random bytes by which it is known, then records that are only ever added
    record    CRC-32 and length of the request after it, which changed the keys

Every process keeps the keys that the records make, and reads those that are new before it asks. A lock of
the file's is held while records are added or read. A writer that was killed leaves a record that is shorter
than its length: others pass it over, and the next one writes in its place.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from kiln.distributed.errors import DistStoreError
from kiln.distributed.store.base import Late, Store, Turns
from kiln.distributed.store.table import (
    LONGEST,
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

_START = b"kilnkv1\n"
_HEAD = len(_START) + 8
_RECORD = struct.Struct("<II")
_USERS, _FINISHED = b"refcount/", b"cleanup/"  # a user's keys begin with "/"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01  # seconds between two looks at a file
# POSIX gives locks of files to processes: threads of one take turns by this one
_turns = Turns()


class FileStore(Store):
    """A store whose keys are in a file, which the first one makes and the last of `world_size` removes.

    With `world_size` -1 the file stays. A file that was there before is read: one left by an earlier run
    is to be removed first. DistStoreError if the file is none of a store's.

    >>> import tempfile
    >>> kiln.distributed.FileStore(f"{tempfile.mkdtemp()}/store", 1).add("ready", 1)
    1
    """

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        self._path = os.path.abspath(os.fspath(file_name))
        self._file = _File(self._path)
        self._call(Op.ADD, [_USERS], [b"1"])
        weakref.finalize(self, _turns.leave, partial(_leave, self._file, world_size, os.getpid()))

    def __repr__(self) -> str:
        return f"FileStore({self._path!r})"

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    def _call(
        self, op: Op, keys: Sequence[bytes], values: Sequence[bytes] = (), timeout: timedelta | None = None
    ) -> list[bytes]:
        until = time.monotonic() + self._seconds(timeout)
        pause = _FIRST_PAUSE
        while True:
            seen = _seen(self._path)
            try:
                return self._file.perform(op, keys, values)
            except NotYet:
                left = until - time.monotonic()
            if left <= 0:
                raise Late
            while left > 0 and _seen(self._path) == seen:
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
                left = until - time.monotonic()


def _seen(path: str) -> tuple[int, int, int] | None:
    """What is another one when a file has got a record."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class _File:
    """The records of a file, and the keys that they make."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._begin(b"")

    def _begin(self, head: bytes) -> None:
        """Nothing was read yet of the file that begins so."""
        self._head, self._table, self._end, self._size = head, Table(), _HEAD, 0

    def perform(self, op: Op, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """What a request is answered; it is a record if it changes keys. NotYet if it has to wait."""
        with _turns:
            return self.performed(op, keys, values)

    def performed(self, op: Op, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """The same for who has the turn."""
        writes = op in WRITES
        request = packed(op, keys, values) if writes else b""
        with self._locked(writes) as file:
            self._read(file)
            answer = self._table.perform(op, keys, values)
            if writes:
                try:
                    self._write(file, request)
                except BaseException:  # no room, or Ctrl-C: the keys are those that the file has
                    self._begin(b"")
                    raise
        return answer

    @contextmanager
    def _locked(self, writes: bool) -> Iterator[int]:
        """The file's descriptor while its lock is held; it is made where it is missing."""
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX if writes else fcntl.LOCK_SH)
                if os.fstat(file).st_nlink:
                    yield file
                    return
            finally:
                os.close(file)  # and its lock; a file that was removed while this one waited is made anew

    def _read(self, file: int) -> None:
        """Performs the whole records that are new."""
        head, size = _at(file, _HEAD, 0), os.fstat(file).st_size
        if not head.startswith(_START[: len(head)]):
            raise self._foreign()
        if head != self._head or size < self._end:
            self._begin(head)
        self._size = size
        while self._end + _RECORD.size <= self._size:
            check, length = _RECORD.unpack(_at(file, _RECORD.size, self._end))
            if length > LONGEST + _RECORD.size * 4:
                raise self._foreign()
            if self._end + _RECORD.size + length > self._size:
                return
            request = _at(file, length, self._end + _RECORD.size)
            if zlib.crc32(request) != check:
                raise self._foreign()
            self._replay(request)
            self._end += _RECORD.size + length

    def _replay(self, request: bytes) -> None:
        try:
            if message_size(request) != len(request):
                raise Malformed("a record of another length than its request")
            kind, keys, values = unpacked(request)
            self._table.perform(asked(kind, keys, values), keys, values)
        except (Malformed, NotYet) as error:
            raise self._foreign() from error

    def _foreign(self) -> DistStoreError:
        return DistStoreError(f"FileStore: {self.path} is not a store's, or it was damaged")

    def _write(self, file: int, request: bytes) -> None:
        """Adds a record where the whole ones end."""
        data = _RECORD.pack(zlib.crc32(request), len(request)) + request
        at = self._end
        if self._size < _HEAD:
            self._head = _START + os.urandom(_HEAD - len(_START))
            data, at = self._head + data, 0
        if self._size > at:
            os.ftruncate(file, at)
        view = memoryview(data)
        while view:
            count = os.pwrite(file, view, at)
            view, at = view[count:], at + count
        self._end = self._size = at


def _at(file: int, count: int, at: int) -> bytes:
    """So many bytes of a file, which has them."""
    parts = []
    while count and (part := os.pread(file, count, at)):
        parts.append(part)
        count, at = count - len(part), at + len(part)
    return b"".join(parts)


def _leave(file: _File, world_size: int, process: int) -> None:
    """The last of so many stores removes the file; a forked process is none of them."""
    if os.getpid() != process or not os.path.exists(file.path):
        return
    try:
        finished = int(file.performed(Op.ADD, [_FINISHED], [b"1"])[0])
        users = int(file.performed(Op.ADD, [_USERS], [b"-1"])[0])
        if 0 <= world_size <= finished and users == 0:
            os.unlink(file.path)
    except (OSError, DistStoreError):  # its folder went away before
        pass
