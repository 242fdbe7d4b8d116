"""Bytes of a file that is read in pieces, each where it is, none that is not there."""

from __future__ import annotations

import io
import mmap
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any, Union

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.late import later
from kiln.ops.creation.interop import lent
from kiln.ops.elementwise.arithmetic import clone

_not_regular = later("kiln.files", "not_regular")

Path = Union[str, "os.PathLike[str]"]

PIECE = 1 << 20  # bytes that are copied at once, while they are in a cache
SMALL = 1 << 16  # bytes of a piece that is written with others

# What a file may ask of whoever reads it.
MAX_SIZE = 2**63 - 1  # of a tensor, and of what it spans, in bytes
MAX_ALIKE = 32  # keys of a dict that have the same hash
FEW_ALIKE = f"at most {MAX_ALIKE} keys of one hash"


class Damaged(Exception):
    """What is wrong with a file, in words."""


class DamagedArchive(Damaged):
    """What is wrong with a zip archive, not with the pickle in it."""


def crowded(keys: Collection[Any]) -> bool:
    """Whether too many keys have one hash; numbers can be chosen so, and a dict takes that squared."""
    return len(keys) > MAX_ALIKE and max(Counter(map(hash, keys)).values()) > MAX_ALIKE


class Source(io.RawIOBase):
    """The bytes of a binary file from where it stands to its end; also a file of them by itself."""

    def __init__(self, file: Any, where: str) -> None:
        self.file, self.where = file, where
        self.start = file.tell()
        file.seek(0, os.SEEK_END)
        self.size = file.tell() - self.start
        self.place = 0

    def fill(self, at: int, view: Any) -> None:
        """Read as many bytes as there is room; a file cut short since it was measured is refused."""
        if at < 0 or at + len(view) > self.size:
            raise Damaged(f"expected {len(view)} bytes from {at} on, got a file of {self.size}")
        self.file.seek(self.start + at)
        done = 0
        while done < len(view):
            count = self._into(view[done:] if done else view)
            if not count:
                came = f"expected {len(view)} more bytes, got {done}"
                raise Damaged(f"{came} (the file changed while it was read)")
            done += count

    def _into(self, view: Any) -> Any:
        if hasattr(self.file, "readinto"):
            return self.file.readinto(view)
        piece = self.file.read(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def mapped(self) -> mmap.mmap:
        """The bytes as memory, from the file's start on: what is written there, this process alone sees."""
        return mmap.mmap(self.file.fileno(), self.start + self.size, access=mmap.ACCESS_COPY)

    def part(self, at: int, size: int) -> bytearray:
        """So many bytes from `at` on."""
        if size > self.size:
            raise Damaged(f"expected {size} bytes from {at} on, got a file of {self.size}")
        raw = bytearray(size)
        self.fill(at, memoryview(raw))
        return raw

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("seek: before the start")
        self.place = base + offset
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, view: Any) -> int:
        count = max(min(len(view), self.size - self.place), 0)
        self.fill(self.place, memoryview(view).cast("B")[:count])
        self.place += count
        return int(count)


def opened(f: Path | IO[bytes]) -> Source:
    """The bytes of a path or of a binary file object; OSError for what cannot be read."""
    if isinstance(f, (str, os.PathLike)):
        path = os.fspath(f)
        return Source(_open_regular(path), repr(path))
    if not hasattr(f, "read"):
        raise AttributeError(message("load", "a path or a binary file", describe(f)))
    if isinstance(f.read(0), str):
        raise TypeError(message("load", "a file opened in binary mode", "one that reads a str"))
    if hasattr(f, "seekable") and not f.seekable() or not hasattr(f, "seek"):
        f = io.BytesIO(f.read())
    return Source(f, "the file")


def _open_regular(path: str) -> IO[bytes]:
    """`path` opened for reading; a fifo or device is refused without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_regular("load", path, mode)
    return open(descriptor, "rb", buffering=0)


def mapped_tensor(content: mmap.mmap, at: int, dtype: Any, count: int) -> Any:
    """So many elements where they are in a mapped file; None where they cannot be used there."""
    if not count or at % dtype.itemsize or at + count * dtype.itemsize > len(content):
        return None
    found = _core.frombuffer(content, dtype.name, count, at)
    if dtype is _core.bool and found.view(_core.uint8).max().item() > 1:
        return None
    return found


def read_tensor(source: Source, at: int, dtype: Any, count: int, name: str, swapped: bool = False) -> Any:
    """So many elements of a file from byte `at` on, in memory of their own: shape [count]."""
    width = dtype.itemsize
    if at + count * width > source.size:
        raise Damaged(f"expected {count * width} bytes of {name} from {at} on, got a file of {source.size}")
    if count * width <= PIECE:
        return _elements(source, at, dtype, count, name, swapped) if count else ops.empty(0, dtype=dtype)
    made = ops.empty(count, dtype=dtype)
    step = PIECE // width
    buffer = bytearray(PIECE)
    for start in range(0, count, step):
        # by way of a piece: memory that is lent to a file is not written by recorded programs any more
        few = min(step, count - start)
        piece = _elements(source, at + start * width, dtype, few, name, swapped, buffer)
        made[start : start + few].copy_(piece)
    return made


def _elements(
    source: Source, at: int, dtype: Any, count: int, name: str, swapped: bool, buffer: Any = None
) -> Any:
    """A tensor of few elements; of `buffer` where that is given."""
    raw = bytearray(count * dtype.itemsize) if buffer is None else buffer
    view = memoryview(raw)[: count * dtype.itemsize]
    source.fill(at, view)
    if dtype is _core.bool and bytes(view).translate(None, b"\0\1"):
        raise Damaged(f"expected only 0 and 1 in the bools of {name}")
    if swapped and dtype.itemsize > 1:
        import numpy

        numpy.frombuffer(view, f"u{dtype.itemsize}").byteswap(inplace=True)
    found = _core.frombuffer(raw, dtype.name, count, 0)
    return clone(found) if buffer is None else found


def pieces(x: Tensor) -> Any:
    """The bytes of a tensor's elements in order, piece by piece, each good until the next is asked for."""
    if not x.is_contiguous():
        x = x.contiguous()
    flat, step = x.detach().reshape(-1), PIECE // x.element_size()
    for start in range(0, flat.numel(), step):
        yield lent(clone(flat[start : start + step]))


def gathered(chunks: Iterable[Any]) -> Iterator[Any]:
    """The same bytes, the small pieces together."""
    held = bytearray()
    for chunk in chunks:
        if len(chunk) < SMALL and len(held) < PIECE:
            held += chunk
            continue
        if held:
            yield held
        if len(chunk) < SMALL:
            held = bytearray(chunk)
        else:
            held = bytearray()
            yield chunk
    yield held
