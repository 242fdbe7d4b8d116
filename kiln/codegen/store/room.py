"""How the cache on disk is kept small: which entries go, and what killed processes left.

Once in 256 entries that are written, the folder is looked through (3 us a file), by a process that has
written a sixteenth of the limit since it last did so. If there is more than the limit, entries go until a
quarter of it is free, so that this is seldom needed. First those of an identity (of kiln's source, LLVM,
target and machine) of which nothing was used for longest, in days: other versions. Then those that were not
used for longest themselves. Another process may do the same, or be reading or writing: a file that is open
stays readable, and what is gone is made anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from kiln.files import remove_abandoned

BLOCK = 4096  # bytes that file systems give files in
DAY = 86400.0
GROUP = 16  # characters at the start of a name that entries of one identity share


class File(NamedTuple):
    """An entry: what it is called, when it was last used, the bytes it takes."""

    name: str
    used: float
    size: int


def make_room(directory: int, limit: int) -> None:
    """Remove what killed writers left, and entries if they take more than `limit` bytes; what can be."""
    try:
        found = files(directory)
    except OSError:
        return
    total = sum(file.size for file in found)
    if total <= limit:
        return
    newest: dict[str, float] = {}
    for file in found:
        newest[file.name[:GROUP]] = max(newest.get(file.name[:GROUP], 0), file.used // DAY)
    for file in sorted(found, key=lambda file: (newest[file.name[:GROUP]], file.used)):
        with suppress(OSError):
            os.unlink(file.name, dir_fd=directory)
        total -= file.size
        if total <= limit - limit // 4:
            return


def clear(directory: int) -> int:
    """Remove every entry, and what killed writers left; how many entries there were."""
    found = files(directory)
    for file in found:
        with suppress(OSError):
            os.unlink(file.name, dir_fd=directory)
    return len(found)


def files(directory: int) -> list[File]:
    """Every entry. What killed writers left is removed on the way."""
    return list(_files(directory))


def _files(directory: int) -> Iterator[File]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    own = os.open(".", flags, dir_fd=directory)  # who reads a folder has a place in it
    try:
        with os.scandir(own) as found:
            for entry in found:
                if entry.name.startswith("."):
                    remove_abandoned(entry.name, directory)
                    continue
                with suppress(OSError):
                    if len(entry.name) == 64 and entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        yield File(entry.name, state.st_mtime, (state.st_size // BLOCK + 1) * BLOCK)
    finally:
        os.close(own)
