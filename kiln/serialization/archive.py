"""PyTorch's files: zip archives of records that are not compressed.

    archive/data.pkl        the object, as a pickle whose storages are named by their keys
    archive/byteorder       "little" or "big"
    archive/data/0 ...      the storages' bytes, from multiples of 64 on
    archive/version         "3"

Python's zipfile reads the directory; here everything it says is checked against the file before a byte of a
record is read: no two records share bytes or a name, so what is read is never more than the file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile

from kiln.serialization.source import Damaged, DamagedArchive, Source

ALIGNMENT = 64  # of records' bytes, as PyTorch aligns them
LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")
DESCRIPTOR = struct.Struct("<4s3I")
DESCRIPTOR64 = struct.Struct("<4sI2Q")
LARGE = 1 << 18  # bytes of a record whose sum another thread makes
PLAIN, YEAR = 0, (1 << 5 | 1)  # method, and 1 January 1980: files say no time
FLAGS = 0x808  # names in UTF-8, and sums after the bytes
BIG = 0xFFFFFFFF  # what 32 bits cannot say is in 64 of an extra field

# -- reading ------------------------------------------------------------------------------------------


def _damaged(text: str) -> DamagedArchive:
    return DamagedArchive(f"failed reading zip archive: {text}")


class Record(NamedTuple):
    """Where a record's bytes are."""

    at: int
    size: int


class Archive:
    """The records of an archive by name, without the folder that all of them are in."""

    def __init__(self, source: Source) -> None:
        self.source = source
        try:
            with ZipFile(source) as file:
                infos = sorted(file.infolist(), key=lambda info: info.header_offset)
                ends = file.start_dir
        except Damaged:
            raise
        except Exception as error:  # zipfile has no one error for what it does not understand
            raise DamagedArchive(f"failed reading zip archive: {error}") from None
        self._infos: dict[str, Any] = {}
        for info in infos:
            if info.orig_filename in self._infos:
                raise _damaged(f"expected every record once, got {info.orig_filename!r:.100} twice")
            self._infos[info.orig_filename] = info
        _check_apart(infos, ends)
        folders = [name[: -len("data.pkl")] for name in self._infos if name.endswith("/data.pkl")]
        folders = [folder for folder in folders if folder.count("/") == 1]
        if len(folders) != 1:
            raise DamagedArchive("failed locating file data.pkl: file not found")
        self.folder = folders[0]

    def __contains__(self, name: str) -> bool:
        return self.folder + name in self._infos

    def names(self) -> list[str]:
        """The records' names, in the order of their bytes."""
        return [name.removeprefix(self.folder) for name in self._infos]

    def find(self, name: str) -> Record:
        """Where a record is."""
        info = self._infos.get(self.folder + name)
        if info is None:
            raise DamagedArchive(f"failed locating file {name:.100}: file not found")
        if info.compress_type != ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
            raise _damaged(f"expected record {name:.100} as it is, got it compressed or encrypted")
        header = self.source.part(info.header_offset, LOCAL.size)
        magic, *_, named, extra = LOCAL.unpack(header)
        if magic != b"PK\3\4":
            raise _damaged(f"expected a header of record {name:.100}, got {bytes(magic)!r}")
        at = info.header_offset + LOCAL.size + named + extra
        if at + info.file_size > self.source.size:
            raise _damaged(f"expected {info.file_size} bytes of record {name:.100}, got a shorter file")
        return Record(at, info.file_size)

    def read(self, name: str) -> bytes:
        """A small record's bytes."""
        return bytes(self.source.part(*self.find(name)))


def _check_apart(infos: list[Any], end: int) -> None:
    """No record reaches into the next one, or into the directory."""
    for info, after in zip(infos, [*(i.header_offset for i in infos[1:]), end]):
        if info.header_offset < 0 or info.header_offset + LOCAL.size + info.compress_size > after:
            raise _damaged(f"expected {info.orig_filename!r:.100} before the next record, got an overlap")


# -- writing ------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A record to write: its name, its size and its bytes."""

    name: str
    size: int
    pieces: Iterable[Any]


def zipped(records: Iterable[Written]) -> Iterator[Any]:
    """The archive of some records, piece by piece."""
    at, directory = 0, []
    for record in records:
        name = f"archive/{record.name}".encode()
        header = _local_header(name, record.size, at)
        yield header
        crc = yield from (_summed_beside if record.size >= LARGE else _summed)(record.pieces)
        form = DESCRIPTOR64 if record.size >= BIG else DESCRIPTOR
        sums = form.pack(b"PK\7\x08", crc, record.size, record.size)
        yield sums
        directory.append(_central_header(name, crc, record.size, at))
        at += len(header) + record.size + len(sums)
    content = b"".join(directory)
    yield content
    yield _end(at, len(content), len(directory))


def _summed(pieces: Iterable[Any]) -> Generator[Any, None, int]:
    """The pieces, and then their sum."""
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
        yield piece
    return crc


def _summed_beside(pieces: Iterable[Any]) -> Generator[Any, None, int]:
    """The same while another thread sums: that takes as long as writing."""
    from concurrent.futures import ThreadPoolExecutor

    crc = 0
    with ThreadPoolExecutor(1) as other:
        for piece in pieces:
            pending = other.submit(zlib.crc32, piece, crc)
            yield piece
            crc = pending.result()
    return crc


def _local_header(name: bytes, size: int, at: int) -> bytes:
    """What stands before a record, as long as its bytes are aligned after it; their sum comes after them."""
    large = size >= BIG
    extra = struct.pack("<2H2Q", 1, 16, size, size) if large else b""
    before = at + LOCAL.size + len(name) + len(extra) + 4
    extra += b"FB" + struct.pack("<H", -before % ALIGNMENT) + b"Z" * (-before % ALIGNMENT)
    sizes = (BIG, BIG) if large else (size, size)
    fields = (b"PK\3\4", 45 if large else 20, FLAGS, PLAIN, 0, YEAR, 0, *sizes, len(name), len(extra))
    return LOCAL.pack(*fields) + name + extra


def _central_header(name: bytes, crc: int, size: int, at: int) -> bytes:
    """A record in the directory."""
    large = [value for value in (size, size, at) if value >= BIG]
    extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    version = 45 if large else 20
    fields = (b"PK\1\2", version, version, FLAGS, PLAIN, 0, YEAR, crc, min(size, BIG), min(size, BIG))
    return CENTRAL.pack(*fields, len(name), len(extra), 0, 0, 0, 0, min(at, BIG)) + name + extra


def _end(at: int, size: int, count: int) -> bytes:
    """Where the directory is."""
    found = b""
    if at >= BIG or size >= BIG or count >= 0xFFFF:
        found = END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
        found += LOCATOR.pack(b"PK\6\7", 0, at + size, 1)
    few = min(count, 0xFFFF)
    return found + END.pack(b"PK\5\6", 0, 0, few, few, min(size, BIG), min(at, BIG), 0)
