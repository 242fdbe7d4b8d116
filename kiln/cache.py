"""Kernels and plans on disk: what is there, how much may be, and none of it any more.

They lie in a folder that the processes of a user share: $KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else
~/.cache/kiln. When there is more than $KILN_CACHE_LIMIT (bytes; K, M and G are powers of 1024; 256M unless
set; 0: nothing is written), what was not used for longest is removed. That costs the milliseconds it takes to
make it again, so it is always safe to clear the folder, also while other processes run.
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.store import room
from kiln.codegen.store.cache import disk
from kiln.errors import describe, message

__all__ = ["Info", "clear", "info", "limit"]


class Info(NamedTuple):
    """What the folder holds, and how often this process found there what it looked for."""

    folder: str | None
    entries: int
    bytes: int
    limit: int
    hits: int
    misses: int


def info() -> Info:
    """The folder (None: there is no place for one), what it holds, the limit, and this process's luck there.

    >>> import kiln
    >>> there = kiln.cache.info()
    >>> 0 <= there.entries * 4096 <= there.bytes, there.limit == kiln.cache.limit()
    (True, True)
    """
    cache = disk()
    found = cache.apply(room.files) or []
    return Info(
        cache.path, len(found), sum(file.size for file in found), cache.limit, cache.hits, cache.misses
    )


def clear() -> int:
    """Remove what is kept on disk; how many entries that were. What this process has in memory stays."""
    return disk().apply(room.clear) or 0


def limit(nbytes: int | None = None) -> int:
    """How many bytes may be kept; a number sets that for what this process writes, and makes room.

    >>> import kiln
    >>> before = kiln.cache.limit()
    >>> kiln.cache.limit(1 << 30)
    1073741824
    >>> kiln.cache.limit(before) == before
    True
    """
    cache = disk()
    if nbytes is not None:
        if not isinstance(nbytes, int) or nbytes < 0:
            raise ValueError(message("limit", "a number of bytes", describe(nbytes)))
        cache.limit = nbytes
        cache.apply(lambda directory: room.make_room(directory, nbytes))
    return cache.limit
