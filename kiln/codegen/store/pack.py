"""The pack: entries made when the wheel was built, so that common programs find theirs in the first process.

    kiln/packs/answers          what every level shares
               x86-64-v4, ...   a level's kernels

    magic 16 | hash of kiln's source 32 | number 8 | number x record | entries
    record := key 32 | BLAKE2b of the entry as it lies there, compressed 32 | offset 8 | length 8

A pack is part of the installed package and trusted as its code is. One made from other sources than those
installed is no pack, and damaged entries are none. The index is read when the user's cache misses the first
entry, an entry when it is asked for.

KILN_PACK=0: none is looked for; any other value names the folder.
"""

from __future__ import annotations

import os
from _blake2 import blake2b
from bisect import bisect_left
from functools import cache
from struct import pack as packed
from struct import unpack_from
from zlib import compress, decompress

from kiln.codegen.store.identity import ROOT, host_source
from kiln.codegen.target import host_target

MAGIC = b"kiln-pack-v1\n\0\0\0"
HEADER = len(MAGIC) + 32 + 8
RECORD = 32 + 32 + 8 + 8
ANSWERS = "answers"


def load(key: bytes) -> bytes | None:
    """The entry of a key that came with kiln for this host's level, or None."""
    for pack in _packs(os.environ.get("KILN_PACK", ""), host_target().name):
        found = pack.load(key)
        if found is not None:
            return found
    return None


@cache
def _packs(folder: str, level: str) -> list[Pack]:
    if folder == "0":
        return []
    if not folder:
        folder = os.path.join(ROOT, "packs")
    return [Pack(os.path.join(folder, name), host_source()) for name in (ANSWERS, level)]


class Pack:
    """The entries of a file; none where it is missing, damaged or made from other sources."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.index = _index(path, source)

    def __len__(self) -> int:
        return len(self.index) // RECORD

    def load(self, key: bytes) -> bytes | None:
        """The entry of a key, or None."""
        at = RECORD * bisect_left(range(len(self)), key, key=self._key)
        if self.index[at : at + 32] != key:
            return None
        offset, length = unpack_from("<QQ", self.index, at + 64)
        found = _bytes(self.path, offset, length)
        return decompress(found) if _hash(found) == self.index[at + 32 : at + 64] else None

    def _key(self, i: int) -> bytes:
        return self.index[RECORD * i : RECORD * i + 32]


def _index(path: str, source: bytes) -> bytes:
    header = _bytes(path, 0, HEADER)
    if len(header) < HEADER or header[:-8] != MAGIC + source:
        return b""
    length = RECORD * int.from_bytes(header[-8:], "little")
    found = _bytes(path, HEADER, length)
    return found if len(found) == length else b""


def _bytes(path: str, offset: int, length: int) -> bytes:
    """A part of a file; less of it, or nothing, where there is no more."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        length = min(length, os.fstat(file).st_size - offset)
        return os.pread(file, length, offset) if length > 0 else b""
    except OSError:
        return b""
    finally:
        os.close(file)


def _hash(entry: bytes) -> bytes:
    return blake2b(entry, digest_size=32).digest()


def write(path: str, source: bytes, entries: dict[bytes, bytes]) -> None:
    """Writes a pack of entries by key."""
    records, contents, offset = [], [], HEADER + RECORD * len(entries)
    for key in sorted(entries):
        contents.append(compress(entries[key], 9))
        records.append(key + _hash(contents[-1]) + packed("<QQ", offset, len(contents[-1])))
        offset += len(contents[-1])
    with open(path, "wb") as file:
        file.write(b"".join([MAGIC, source, packed("<Q", len(entries)), *records, *contents]))
