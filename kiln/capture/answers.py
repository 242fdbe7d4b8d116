"""Answers to the core as bytes: one form in memory and on disk (see native/program/answer.h).

    integer := 8 bytes, little endian        bool, int
    text    := integer, bytes                str, bytes
    list    := integer, items                list
    items one after the other                tuple

An answer that launches kernels begins with the list of their keys.
"""

from __future__ import annotations

from struct import pack, unpack_from
from typing import Any

KEY = 32  # bytes of a kernel's key


def packed(answer: Any) -> bytes:
    """The bytes of an answer."""
    parts: list[bytes] = []
    _write(answer, parts.append)
    return b"".join(parts)


def _write(item: Any, put: Any) -> None:
    if isinstance(item, int):
        put(pack("<q", item))
    elif isinstance(item, (str, bytes)):
        data = item.encode() if isinstance(item, str) else item
        put(pack("<q", len(data)))
        put(data)
    else:
        if isinstance(item, list):
            put(pack("<q", len(item)))
        for inner in item:
            _write(inner, put)


def structure(value: Any) -> tuple[Any, ...]:
    """A function's structure as an answer: what each part is, then the part."""
    if value is None:
        return (0,)
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, int):
        return 2, value
    if isinstance(value, float):
        return 3, unpack_from("<q", pack("<d", value))[0]
    if isinstance(value, str):
        return 4, value
    if isinstance(value, tuple):
        return 5, [structure(v) for v in value]
    raise TypeError(f"structure of type {type(value).__name__}: {value!r}")


def kernels_of(answer: bytes) -> list[bytes]:
    """The keys of the kernels an answer launches; none if it is not one."""
    count = unpack_from("<q", answer)[0] if len(answer) >= 8 else 0
    if not 0 <= count * (8 + KEY) <= len(answer) - 8:
        return []
    return [answer[at : at + KEY] for at in range(16, 16 + count * (8 + KEY), 8 + KEY)]
