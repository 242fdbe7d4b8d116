"""Reading bytes that others wrote: every place and length is checked, and what is wrong is a `LinkError`."""

from __future__ import annotations

from struct import Struct
from typing import Any


class LinkError(ValueError):
    """An object that cannot be linked, with what is wrong with it."""


class Bytes:
    """Bytes of which no read goes past the end; `what` they are stands in messages."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self.data, self.what = memoryview(data), what

    def range(self, start: int, size: int) -> memoryview:
        """The `size` bytes at `start`."""
        if start < 0 or size < 0 or start + size > len(self.data):
            raise LinkError(
                f"{self.what}: damaged: bytes {start} to {start + size} of {len(self.data)} are asked for"
            )
        return self.data[start : start + size]

    def unpack(self, layout: Struct, start: int) -> tuple[Any, ...]:
        """The fields at `start`."""
        return layout.unpack(self.range(start, layout.size))

    def table(self, layout: Struct) -> list[tuple[Any, ...]]:
        """The fields of every row, if these bytes are whole rows."""
        if len(self.data) % layout.size:
            raise LinkError(f"{self.what}: damaged: {len(self.data)} bytes are no rows of {layout.size}")
        return list(layout.iter_unpack(self.data))

    def text(self, start: int, size: int) -> str:
        """The name that the `size` bytes at `start` spell."""
        return self._decoded(bytes(self.range(start, size)))

    def terminated(self, start: int) -> str:
        """The name at `start`, up to the byte that is 0."""
        self.range(start, 1)
        rest = bytes(self.data[start : start + LONGEST_NAME])
        end = rest.find(0)
        if end < 0:
            raise LinkError(f"{self.what}: damaged: a name without an end")
        return self._decoded(rest[:end])

    def _decoded(self, name: bytes) -> str:
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise LinkError(f"{self.what}: damaged: a name that is no UTF-8") from None


LONGEST_NAME = 1 << 14


def aligned(place: int, alignment: int) -> int:
    """The first multiple of `alignment` at or after `place`."""
    return -(-place // alignment) * alignment
