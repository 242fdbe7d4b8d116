"""What items print, in the order of items: text of those that run ahead is kept."""

from __future__ import annotations

import sys
from typing import Any

from kiln import _core


class Output:
    """The output of one `map`: the first item that has not ended writes through, later ones are kept."""

    def __init__(self) -> None:
        self._first = 0  # of the items that have not ended
        self._ended: set[int] = set()
        self._kept: dict[int, list[tuple[Any, str]]] = {}

    def streams(self, index: int) -> tuple[Any, Any]:
        """What an item finds as `sys.stdout` and `sys.stderr`."""
        return Ordered(self, index, _stream(0)), Ordered(self, index, _stream(1))

    def write(self, index: int, stream: Any, text: str) -> None:
        """Writes what an item writes, or keeps it."""
        if index > self._first:
            self._kept.setdefault(index, []).append((stream, text))
        else:
            _write(stream, text)

    def is_first(self, index: int) -> bool:
        """Whether an item's output goes through."""
        return index <= self._first

    def end(self, index: int) -> None:
        """An item has ended: what the next ones wrote meanwhile is written."""
        self._ended.add(index)
        while self._first in self._ended:
            self._ended.remove(self._first)
            self._first += 1
            self._write(self._first)

    def close(self) -> None:
        """Writes all that is still kept; from now on nothing is."""
        kept, self._first = sorted(self._kept), sys.maxsize
        for index in kept:
            self._write(index)

    def _write(self, index: int) -> None:
        for stream, text in self._kept.pop(index, ()):
            _write(stream, text)


def _write(stream: Any, text: str) -> None:
    if stream is not None:  # a process without one
        stream.write(text)


def _stream(which: int) -> Any:
    """What this thread writes to now."""
    stream = (sys.stdout, sys.stderr)[which]
    return _core.stream_here(which) if isinstance(stream, Standing) else stream


class Standing:
    """What stands for `sys.stdout` (0) or `sys.stderr` (1) while any thread runs items: each thread's own."""

    def __init__(self, which: int) -> None:
        self._which = which

    def __getattr__(self, name: str) -> Any:
        return getattr(_core.stream_here(self._which), name)


class Ordered:
    """A stream whose text comes in the order of items; else what it stands for."""

    def __init__(self, output: Output, index: int, stream: Any) -> None:
        self._output, self._index, self._stream = output, index, stream

    def write(self, text: str) -> int:
        """Writes the text when it is the item's turn."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._output.write(self._index, self._stream, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Writes several."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flushes what has been written through."""
        if self._stream is not None and self._output.is_first(self._index):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_core.set_standing(Standing(0), Standing(1))
