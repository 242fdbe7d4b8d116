"""`with kiln.batching():`: calls of ops are put on a list of the core, and run in launches of many at once."""

from __future__ import annotations

from types import TracebackType

from kiln import _core


class Batching:
    """A block in which calls of ops wait, and those that are alike run together; also a decorator."""

    def __enter__(self) -> None:
        _core.begin_batching()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _core.end_batching(kind is None)
